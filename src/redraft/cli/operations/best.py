"""Chooses the best of several answers, and shows the ranking."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
from click.core import ParameterSource
from rich.table import Table
from rich.text import Text

from ...base.checks import is_blank
from ...base.sync import run_sync
from ...errors import RedraftError
from ...loop.ranking import RankedAnswer
from ...loop.records import Candidate
from ...loop.trace import Trace
from ...plans.self_refine import BestOfN
from ...result import (
    Result,
    conclusion_error,
    format_score,
    is_graded,
    stop_phrase,
)
from ...session.options import load_template
from ...session.session import graders_for_tasks, needs_judge
from ..errors import INTERRUPTED, exit_code, warn_if_ungraded
from ..output import check_output, notice, read_text, warning
from ..progress import describe_origin, feedback_summary, format_usage, print_event
from ..request import SharedArguments, build_request, find_model, make_task
from ..terminal import console, text_line
from .run import (
    RefinementDisplay,
    best_so_far,
    run_request,
    write_error,
    write_result,
)

UNKNOWN_PROMPT = "(The request is unknown. Judge the answers as texts.)"


@dataclass(frozen=True, kw_only=True)
class BestArguments(SharedArguments):
    """The arguments of `redraft best`."""

    prompt: str | None = None
    n: int = 4
    keep: int = 1
    response: tuple[str, ...] = ()
    system: str | None = None
    context: str | None = None
    reference: str | None = None
    tests: str | None = None
    output: str | None = None
    overwrite: bool = False


def run_command(ctx: click.Context, values: dict[str, Any]) -> int:
    """Choose an answer, report the ranking, write the best answer, and return the exit code."""
    arguments = BestArguments.from_values(values)
    _check(arguments, n_given=ctx.get_parameter_source("n") is ParameterSource.COMMANDLINE)
    display = RankingDisplay(as_json=arguments.as_json)
    try:
        result = run_sync(_choose(arguments, display))
    except (KeyboardInterrupt, asyncio.CancelledError) as interruption:
        partial_result = best_so_far(interruption, display)
        if partial_result is None or (arguments.response and not is_graded(partial_result.trace)):
            warning("interrupted before there was an answer")
            return INTERRUPTED
        result = partial_result
    except RedraftError as error:  # without a grade, none of the given answers is chosen
        return write_error(
            error,
            None if arguments.response else error.result,
            arguments.output,
            as_json=arguments.as_json,
        )
    ranked = result.ranking
    if arguments.as_json:
        print_event("ranking", answers=[answer_data(row, arguments) for row in ranked])
    else:
        show_ranking(result, ranked, arguments, display.progress.seconds)
    write_result(result, arguments.output, as_json=arguments.as_json, text=_kept_text(result))
    return exit_code(result)


def _check(arguments: BestArguments, *, n_given: bool) -> None:
    """Raise UsageError for arguments that exclude each other, and for a missing prompt."""
    if arguments.response and n_given:
        raise click.UsageError("-n drafts answers and --response gives them: leave out one")
    if len(arguments.response) == 1:
        raise click.UsageError(
            "there is only one answer to choose from: give --response at least twice"
        )
    given = len(arguments.response) or arguments.n
    if arguments.keep > given:
        raise click.UsageError(
            f"--keep {arguments.keep} is more than the {given} answers to choose from"
        )
    if not arguments.response and not arguments.prompt:
        raise click.UsageError(
            'a prompt is missing, for example: redraft best "Name a bakery on a boat" -n 4 '
            "--grader ranker"
        )
    if arguments.output:
        check_output(arguments.output, overwrite=arguments.overwrite)


async def _choose(arguments: BestArguments, display: RankingDisplay) -> Result:
    """Choose the best of new drafts, or of the given answers. With requirements alone, no model is
    called. Raises UsageError.
    """
    a, names = arguments, arguments.response
    if (a.prompt, *names).count("-") > 1:
        raise click.UsageError("only one of PROMPT and --response can be read from stdin")
    prompt = a.prompt or UNKNOWN_PROMPT
    task = make_task(
        prompt, a.require, system=a.system, context=a.context, reference=a.reference, tests=a.tests
    )
    texts = [read_text(name, "--response") for name in names]
    if blank := next(
        (name for name, text in zip(names, texts, strict=True) if is_blank(text)), None
    ):
        raise click.UsageError(f"--response: {blank} is blank, which is no answer: leave it out")
    trace = Trace(task, records=tuple(Candidate(id, text) for id, text in enumerate(texts)))
    repairs = not names and a.settings.get("editor") is not False
    prompt = load_template("draft_prompt", a.settings.get("draft_prompt"))
    plan = BestOfN(len(names) or a.n, repairs=repairs, draft_prompt=prompt, keep=a.keep)
    callbacks = {"on_record": display.record, "on_step": display.step}
    request = build_request(
        a, trace, plan=plan, draft_prompt=None, editor=repairs, max_iterations=0, **callbacks
    )
    if names:
        needs_model = needs_judge(
            graders_for_tasks(request.graders, request.judge, request.options.answer, [task])
        )
        request = replace(
            request, model=(await find_model(a.model) or False) if needs_model else False
        )
    result = await run_request(request, display)
    if names and not is_graded(result.trace):
        raise conclusion_error(result)
    return result


class RankingDisplay(RefinementDisplay):
    """Shows a choice between answers while it runs; given answers are not reported."""

    def begin(self, trace: Trace) -> None:
        super().begin(replace(trace, records=()))
        self.progress.trace = trace


def _kept_text(result: Result) -> str | None:
    """Return the answers that are kept, best first, with a line between them; None if it is only
    the best.
    """
    kept = [row.candidate.display_text for row in result.top]
    return "\n\n---\n\n".join(text.strip("\n") for text in kept) if len(kept) > 1 else None


def answer_data(row: RankedAnswer, arguments: BestArguments) -> dict[str, Any]:
    """Return a ranked answer as plain data."""
    return {
        **row.to_dict(),
        "response": arguments.response[row.candidate.id] if arguments.response else None,
    }


def show_ranking(
    result: Result, ranking: Sequence[RankedAnswer], arguments: BestArguments, seconds: float
) -> None:
    """Show the ranking and the usage on stderr."""
    err, trace = console(stderr=True), result.trace
    err.print(_ranking_table(ranking, trace, arguments))
    for comparison in trace.comparisons:
        if comparison.reason:
            err.print(text_line(f"{comparison.grader}: {comparison.reason}", "dim"))
    lines = [_summary(result, ranking, arguments)]
    # the live view does not keep failures; elsewhere they were reported when they happened
    if sys.stderr.isatty():
        lines += [f"failed: {failure}" for failure in dict.fromkeys(result.metadata["failures"])]
    else:
        lines.append(format_usage(result.usage, seconds))
    for text in lines:
        notice(text)
    for name in result.metadata["broken"]:
        notice(f"still broken: {name}")
    warn_if_ungraded(result)
    if sys.stdout.isatty() and sys.stderr.isatty() and not arguments.output:
        click.echo(err=True)


def _ranking_table(
    ranking: Sequence[RankedAnswer], trace: Trace, arguments: BestArguments
) -> Table:
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
            text_line(_label(c, arguments), style),
            text_line(feedback_summary(trace, c), "dim"),
        )
        table.add_row(Text(rank, style), label, Text(score, style), feedback)
    return table


def _summary(result: Result, ranking: Sequence[RankedAnswer], arguments: BestArguments) -> str:
    """Name the best answer, the answers that tie with it, and the reason why the run stopped
    early.
    """
    first, *others = ranking
    equals = [
        _label(row.candidate, arguments) for row in others if row.tied and row.rank == first.rank
    ]
    tie = f", a tie with {', '.join(equals)}: the earliest is kept" if equals else ""
    score = f" · score {format_score(result.score)}" if result.trace.pointwise_graders else ""
    note = f" ({result.trace.outcome.note})" if result.trace.outcome else ""
    early_stop = f" · stopped: {stop_phrase(result.trace)}{note}" if result.stop.resumable else ""
    what = (
        f"best of {len(ranking)}"
        if first.rank
        else f"none of {len(ranking)} is graded, the one to return"
    )
    return f"{what}: {_label(first.candidate, arguments)}{tie}{score}{early_stop}"


def _label(candidate: Candidate, arguments: BestArguments) -> str:
    """Return the file that an answer came from, or how it was made."""
    if arguments.response:
        return str(arguments.response[candidate.id])
    origin = describe_origin(candidate)
    return (
        f"{origin} {candidate.id}" if candidate.role == "generate" else f"{candidate.id} {origin}"
    )
