"""`redraft best`: choose the best of several answers, and show the ranking."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource
from rich.table import Table
from rich.text import Text

from ...base.checks import is_blank
from ...base.sync import run_sync
from ...loop.ranking import RankedAnswer
from ...loop.records import Candidate
from ...loop.task import Task
from ...loop.trace import Trace
from ...plans.self_refine import BestOfN
from ...result import (
    Result,
    conclusion_error,
    format_score,
    is_graded,
    sorted_failures,
    stop_phrase,
)
from ...session.options import load_template
from ...session.panel import graders_for_tasks, needs_judge
from .. import options
from ..command_classes import GroupedCommand
from ..errors import warn_if_ungraded
from ..options import OptionValues
from ..output import check_output, notice, read_text
from ..progress import describe_origin, feedback_summary, format_usage, print_event
from ..refinement import RefinementProgress, build_request, conclude, run_request
from ..request import find_model, make_task
from ..terminal import console, text_line

UNKNOWN_PROMPT = "(The request is unknown. Judge the answers as texts.)"
EPILOG = """\b
Examples:
  redraft best "Name a bakery on a boat" -n 6 --grader ranker
  redraft best "Name a bakery on a boat" -n 6 --keep 3 --grader judge
  redraft best "Explain quantum computing" --model ollama:llama3.2 --judge openai:gpt-4o-mini --require words:80-200
  redraft best "Summarise it" --response a.md --response b.md --grader judge > best.md
  redraft best --response a.md --response b.md --require bullets:3 --json

\b
The best answer goes to stdout, the ranking to stderr. Ties are marked; the
earliest of tied answers is kept. With --keep K, the K best answers are
printed, best first, with a line "---" between them. With --json, stdout gets one JSON object per
line for every event; the last two are {"event": "ranking", ...} and
{"event": "result", ...}. Given answers are compared, never changed; with
requirements only, no model is called.

\b
Exit codes: 0 the best answer is printed, 1 failed, 2 usage, 3 the best answer
is printed and breaks a requirement, or has no grade, 130 interrupted.
"""  # noqa: E501


@click.command(short_help="Keep the best of several answers.", cls=GroupedCommand, epilog=EPILOG)
@click.argument("prompt", required=False)
@options.option(
    "-n",
    "n",
    heading=options.WRITING,
    common=True,
    type=options.COUNT,
    default=4,
    show_default=True,
    metavar="N",
    help="Number of drafts.",
)
@options.option(
    "--keep",
    heading=options.WRITING,
    common=True,
    type=options.COUNT,
    default=1,
    show_default=True,
    metavar="K",
    help="Number of the best answers to keep.",
)
@options.option(
    "--response",
    heading=options.WRITING,
    common=True,
    type=options.READABLE,
    multiple=True,
    metavar="FILE",
    help="Choose among these answers instead of drafting (repeatable; - for stdin).",
)
@options.grading
@options.answer
@options.models
@options.draft_prompt
@options.editor
@options.budget
@options.timeout
@options.sampling
@options.system
@options.background
@options.output
@options.as_json
@options.debug
@click.pass_context
def best(
    ctx: click.Context,
    /,
    *,
    prompt: str | None,
    n: int,
    keep: int,
    response: tuple[str, ...],
    system: str | None,
    context: str | None,
    reference: str | None,
    tests: str | None,
    output: str | None,
    overwrite: bool,
    as_json: bool,
    **settings: Any,
) -> int:
    """Draft several answers to PROMPT (- for stdin), or compare given ones, and keep the best."""
    n_given = ctx.get_parameter_source("n") is ParameterSource.COMMANDLINE
    _check(prompt, response, keep, n, n_given=n_given)
    if output:
        check_output(output, overwrite=overwrite)
    background = {"system": system, "context": context, "reference": reference, "tests": tests}
    progress = RefinementProgress(as_json=as_json, given_records=len(response))

    def choose() -> Result:
        task = make_task(prompt or UNKNOWN_PROMPT, settings["require"], **background)
        texts = _read_answers(response)
        plan = _make_plan(settings, texts, n, keep)
        return run_sync(_choose(task, texts, plan, settings, progress))

    return conclude(
        choose,
        progress,
        lambda result: _report(result, response, progress),
        output,
        needs_grade=bool(response),  # without a grade, none of the given answers is chosen
    )


def _check(
    prompt: str | None, response: tuple[str, ...], keep: int, n: int, *, n_given: bool
) -> None:
    """Raise UsageError for arguments that exclude each other, and for a missing prompt."""
    if response and n_given:
        raise click.UsageError("-n drafts answers and --response gives them: leave out one")
    if len(response) == 1:
        raise click.UsageError(
            "there is only one answer to choose from: give --response at least twice"
        )
    answers = len(response) or n
    if keep > answers:
        raise click.UsageError(f"--keep {keep} is more than the {answers} answers to choose from")
    if not response and not prompt:
        raise click.UsageError(
            'a prompt is missing, for example: redraft best "Name a bakery on a boat" -n 4 '
            "--grader ranker"
        )
    if (prompt, *response).count("-") > 1:
        raise click.UsageError("only one of PROMPT and --response can be read from stdin")


def _read_answers(names: Sequence[str]) -> list[str]:
    """Return the answers in these files. Raises UsageError."""
    texts = [read_text(name, "--response") for name in names]
    for name, text in zip(names, texts, strict=True):
        if is_blank(text):
            raise click.UsageError(f"--response: {name} is blank, which is no answer: leave it out")
    return texts


def _make_plan(settings: OptionValues, texts: Sequence[str], n: int, keep: int) -> BestOfN:
    """Return the plan that chooses among the given answers, or among `n` drafts. Raises
    ConfigError.
    """
    prompt = load_template("draft_prompt", settings["draft_prompt"])
    repairs = not texts and settings["editor"]
    return BestOfN(len(texts) or n, repairs=repairs, draft_prompt=prompt, keep=keep)


async def _choose(
    task: Task,
    texts: Sequence[str],
    plan: BestOfN,
    settings: OptionValues,
    progress: RefinementProgress,
) -> Result:
    """Choose the best of the given answers, or of new drafts. With requirements alone, no model is
    called for given ones. Raises GradingError if none of those can be graded.
    """
    trace = Trace(task, records=tuple(Candidate(id, text) for id, text in enumerate(texts)))
    request = build_request(
        settings,
        trace,
        plan=plan,
        draft_prompt=None,
        editor=plan.repairs,
        max_iterations=0,
        on_record=progress.record,
        on_step=progress.step,
    )
    if texts:
        graders = graders_for_tasks(request.graders, request.judge, request.options.answer, [task])
        model = (await find_model(settings["model"]) or False) if needs_judge(graders) else False
        request = replace(request, model=model)
    result = await run_request(request, progress)
    if texts and not is_graded(result.trace):
        raise conclusion_error(result)
    return result


def _report(result: Result, names: Sequence[str], progress: RefinementProgress) -> None:
    """Show the ranking and the usage on stderr, or the ranking as JSON on stdout."""
    if progress.as_json:
        print_event(
            "ranking",
            answers=[
                {**row.to_dict(), "response": names[row.candidate.id] if names else None}
                for row in result.ranking
            ],
        )
        return
    err, trace = console(stderr=True), result.trace
    err.print(_ranking_table(result.ranking, trace, names))
    for comparison in trace.comparisons:
        if comparison.reason:
            err.print(text_line(f"{comparison.grader}: {comparison.reason}", "dim"))
    lines = [_summary(result, result.ranking, names)]
    # the live view does not keep failures; elsewhere they were reported when they happened
    if sys.stderr.isatty():
        lines += dict.fromkeys(f"failed: {f.role}: {f.message}" for f in sorted_failures(trace))
    else:
        lines.append(format_usage(result.usage, progress.seconds))
    for text in lines:
        notice(text)
    for name in result.facts.broken:
        notice(f"still broken: {name}")
    warn_if_ungraded(result)


def _ranking_table(ranking: Sequence[RankedAnswer], trace: Trace, names: Sequence[str]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, max_width=34, overflow="ellipsis")
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for row in ranking:
        c = row.candidate
        rank = "not graded" if row.rank is None else f"{row.rank}{' tie' if row.tied else ''}"
        style = (
            "bold green" if trace.best is not None and row.rank and c.id == trace.best.id else ""
        )
        score = format_score(trace.scores[c.id]) if trace.pointwise_graders else ""
        label, feedback = (
            text_line(_label(c, names), style),
            text_line(feedback_summary(trace, c), "dim"),
        )
        table.add_row(Text(rank, style), label, Text(score, style), feedback)
    return table


def _summary(result: Result, ranking: Sequence[RankedAnswer], names: Sequence[str]) -> str:
    """Name the best answer, the answers that tie with it, and the reason why the run stopped
    early.
    """
    first, *others = ranking
    equals = [_label(row.candidate, names) for row in others if row.tied and row.rank == first.rank]
    tie = f", a tie with {', '.join(equals)}: the earliest is kept" if equals else ""
    score = f" · score {format_score(result.score)}" if result.trace.pointwise_graders else ""
    note = f" ({result.trace.outcome.note})" if result.trace.outcome else ""
    early_stop = f" · stopped: {stop_phrase(result.trace)}{note}" if result.stop.resumable else ""
    what = (
        f"best of {len(ranking)}"
        if first.rank
        else f"none of {len(ranking)} is graded, the one to return"
    )
    return f"{what}: {_label(first.candidate, names)}{tie}{score}{early_stop}"


def _label(candidate: Candidate, names: Sequence[str]) -> str:
    """Return the file that an answer came from, or how it was made."""
    if names:
        return names[candidate.id]
    origin = describe_origin(candidate)
    return (
        f"{origin} {candidate.id}" if candidate.role == "generate" else f"{candidate.id} {origin}"
    )
