"""`redraft grade`: grade given answers without changing them, and show the feedback."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ...base.sync import run_sync
from ...errors import ConfigError
from ...grading import GradeReport, GraderFeedback, grade_tasks
from ...grading import grade as grade_task
from ...loop.task import Task
from ...loop.visible_tests import hidden_results
from ...requirements.spec import check_foreign_spec
from ...result import format_score
from ...tables import BadRow, Row, RowMapping, infer_columns, iter_rows
from ...tables.columns import with_one_response
from ...tables.readers import is_table
from ...usage import NO_USAGE
from .. import options
from ..command_classes import GroupedCommand
from ..display import show_activity
from ..exit_codes import FAILED, IMPERFECT, OK
from ..options import OptionValues
from ..output import read_text, warning
from ..progress import format_usage
from ..request import canonical_requirements, make_task
from ..rollouts import find_graders, reward_rows
from ..terminal import TraceView, console, text_line

MAX_ROWS = 200  # of a table; more are a batch
EPILOG = """\b
Examples:
  redraft grade --response answer.md --require words:80-200 --require bullets:3
  redraft grade "Explain quantum computing" --response answer.md --model openai:gpt-4o-mini
  redraft grade "Summarise it" --response - --rubric rubric.toml --json < answer.md
  redraft grade "Summarise it" --response a.md --response b.md --grader graders.py:polite
  redraft grade trajectories.jsonl --grader tool_selection --judge openai:gpt-4o
  redraft grade rollouts.jsonl --as-rewards --grader clarity --judge openai:gpt-4o > rewards.jsonl
  redraft grade "Prove it" --response proof.md --judge openai:gpt-5 --judge-param reasoning_effort=low

\b
With requirements only, no model is called. Exit codes: 0 graded, 1 a grader failed,
2 usage, 3 a requirement (--require) is not met, 130 interrupted.
"""  # noqa: E501


@click.command(short_help="Grade given answers.", cls=GroupedCommand, epilog=EPILOG)
@click.argument("prompt", required=False, default="")
@options.option(
    "--response",
    heading=options.GRADING,
    common=True,
    type=options.READABLE,
    multiple=True,
    metavar="FILE",
    help=(
        "The answer (- for stdin); repeat it for a table of several. Without it, PROMPT names a "
        "file with rows."
    ),
)
@options.grading
@options.answer
@options.models
@options.budget
@options.timeout
@options.background
@options.encoding
@options.option(
    "--as-rewards",
    heading=options.OUTPUT,
    is_flag=True,
    help=(
        "Grade the rows of a training run, of any number, and write the reward of each as a line "
        "of JSON. Graders may rank."
    ),
)
@options.as_json
@options.debug
def grade(
    *,
    prompt: str,
    response: tuple[str, ...],
    context: str | None,
    reference: str | None,
    tests: str | None,
    as_rewards: bool,
    as_json: bool,
    **settings: Any,
) -> int:
    """Grade a response to PROMPT (- for stdin), or the answers in the rows of a file: scores,
    reasons, and suggested changes.
    """
    background = {"context": context, "reference": reference, "tests": tests}
    bad: list[BadRow] = []
    if as_rewards:
        if response or any(background.values()):
            raise click.UsageError(
                "--as-rewards takes the name of a file with rows, and no --response, --context, "
                "--reference or --tests"
            )
        return reward_rows(_checked_table(prompt), settings)
    if response:
        answers = _answers_in_files(prompt, response, settings["require"], background)
    elif any(background.values()):
        raise click.UsageError(
            "--context, --reference and --tests go with --response; rows have columns of these "
            "names"
        )
    else:
        answers, bad = _answers_of_rows(prompt, settings["require"])
    names = [each.name for each in answers]
    with show_activity("grading ..."):
        reports = run_sync(_grade(answers, settings))
    if as_json:
        click.echo(json.dumps(_as_data(reports, names), indent=2))
    elif len(reports) == 1:
        _show(reports[0])
    else:
        _show_table(reports, names)
    for row in bad:
        warning(f"{row.location}: {row.message}")
    return FAILED if bad else max(map(_exit_code, reports), key=(OK, IMPERFECT, FAILED).index)


@dataclass(frozen=True)
class _Answer:
    """A task with an answer to grade: its name in the table of scores, and where it comes from, for
    errors.
    """

    task: Task
    name: str
    location: str


def _answers_in_files(
    prompt: str,
    names: Sequence[str],
    require: Sequence[str],
    background: Mapping[str, str | None],
) -> list[_Answer]:
    """Return the answers in these files. Raises UsageError."""
    if (prompt, *names).count("-") > 1:
        raise click.UsageError("only one of PROMPT and --response can be read from stdin")
    first, *others = names
    task = make_task(prompt, require, response=first, **background)
    tasks = [task, *(replace(task, response=read_text(name, "--response")) for name in others)]
    return [
        _Answer(each, name, name if others else "") for each, name in zip(tasks, names, strict=True)
    ]


def _answers_of_rows(file: str, require: Sequence[str]) -> tuple[list[_Answer], list[BadRow]]:
    """Return the answers in the rows of a file, and the rows that cannot be graded. Raises
    UsageError.
    """
    _checked_table(file)
    entries: list[Row | BadRow] = []
    rows: list[Row] = []
    for row in islice(iter_rows(file, entries.append), MAX_ROWS + 1):
        entries.append(row)
        rows.append(row)
    if len(rows) > MAX_ROWS:
        raise click.UsageError(
            f"{file} has more than {MAX_ROWS} rows: redraft batch {file} --mode grade -o OUT"
        )
    answers, bad = _split(entries, rows, canonical_requirements(require))
    if bad and not answers:
        raise ConfigError(f"{bad[0].location}: {bad[0].message}")
    return answers, bad


def _checked_table(file: str) -> str:
    if not is_table(file):
        raise click.UsageError(
            "give --response FILE, or the name of a file with rows, such as rows.jsonl, instead "
            "of PROMPT"
        )
    return file


def _split(
    entries: Sequence[Row | BadRow], rows: Sequence[Row], require: Sequence[str]
) -> tuple[list[_Answer], list[BadRow]]:
    """Return the answers of the rows, and the rows that cannot be graded."""
    if not rows and entries:
        return [], [entry for entry in entries if isinstance(entry, BadRow)]
    mapping = infer_columns([row.values for row in rows], check_requirement=check_foreign_spec)
    answers: list[_Answer] = []
    bad: list[BadRow] = []
    for n, entry in enumerate(entries, 1):
        try:
            if isinstance(entry, BadRow):
                bad.append(entry)
            else:
                task = _task_of_row(entry, mapping, require)
                answers.append(_Answer(task, task.id or f"row {n}", _place(entry, task, mapping)))
        except ConfigError as error:
            bad.append(BadRow(entry.location, str(error)))
    return answers, bad


def _place(row: Row, task: Task, mapping: RowMapping) -> str:
    """Return the file and line of a row, with the columns of fields that graders may need and that
    are empty in this row.
    """
    names = (
        (field, getattr(mapping.columns, field)) for field in ("context", "reference", "tests")
    )
    empty = [repr(name) for field, name in names if name and not getattr(task, field)]
    columns = "column" if len(empty) == 1 else "columns"
    return f"{row.location} ({columns} {', '.join(empty)} empty)" if empty else row.location


def _task_of_row(row: Row, mapping: RowMapping, require: Sequence[str]) -> Task:
    """Return the task of a row, with these requirements besides its own. Raises ConfigError for a
    row without one answer.
    """
    try:
        task = mapping.task(row.values)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    try:
        task = with_one_response(task)
    except ConfigError as error:
        several = "give each a row of its own; `redraft batch FILE --mode grade -o OUT` grades all"
        none = "the row needs a column 'response', or messages that end with an answer"
        raise ConfigError(f"{error}; {several if task.responses else none}") from error
    return replace(task, requirements=tuple(dict.fromkeys([*task.requirements, *require])))


async def _grade(answers: Sequence[_Answer], settings: OptionValues) -> list[GradeReport]:
    """Return a report for each answer; errors name its location. A model is looked for only if a
    grader asks one.
    """
    tasks, locations = [each.task for each in answers], [each.location for each in answers]
    graders, judge, form, grading = await find_graders(tasks, settings)
    if len(tasks) == 1 and not locations[0]:
        return [await grade_task(tasks[0], graders, judge, answer=form, **grading)]
    return await grade_tasks(tasks, graders, judge, answer=form, settings=grading, names=locations)


def _exit_code(report: GradeReport) -> int:
    """Return 1 if no score is known for another reason than that critics give none, 3 if a
    requirement is not met, else 0.
    """
    if report.failures or not report.trace.graded_candidates:
        return FAILED
    return IMPERFECT if report.broken_musts else OK


def _as_data(reports: Sequence[GradeReport], names: Sequence[str]) -> Any:
    """Return plain data: the report, or a list of reports with the files of their answers."""
    if len(reports) == 1:
        return reports[0].to_dict()
    return [
        {"response": name, **report.to_dict()} for name, report in zip(names, reports, strict=True)
    ]


def _show(report: GradeReport) -> None:
    """Show the feedback of each grader, the score, and the usage."""
    out = console(stderr=False)
    out.print(TraceView(out).feedback_table([f for f in report.feedback if not f.failure]))
    for feedback in report.feedback:
        if feedback.failure:
            out.print(text_line(_failure_text(feedback), "red"))
    out.print()
    broken = f" · broken: {len(report.broken_musts)}" if report.broken_musts else ""
    out.print(Text(f"score {format_score(report.score)}{broken}", "bold"))
    out.print(Text(format_usage(report.usage), "dim"))


def _show_table(reports: Sequence[GradeReport], names: Sequence[str]) -> None:
    """Show a row for each answer with the scores of all graders, then the errors and the usage."""
    out = console(stderr=False)
    graders = list(dict.fromkeys(f.grader for report in reports for f in report.feedback))
    table = Table(box=None, padding=(0, 2, 0, 0))
    for header in ("response", "score", *graders):
        table.add_column(text_line(header))
    for name, report in zip(names, reports, strict=True):
        by_name = report.by_name
        cells = [_cell(by_name[grader]) if grader in by_name else "" for grader in graders]
        table.add_row(text_line(name), format_score(report.score), *cells)
    out.print(table)
    for name, report in zip(names, reports, strict=True):
        if report.error and not report.feedback:
            out.print(text_line(f"{name}: {report.error}", "red"))
        for feedback in report.feedback:
            if feedback.failure:
                out.print(text_line(f"{name}: {_failure_text(feedback)}", "red"))
    out.print()
    out.print(Text(format_usage(sum((report.usage for report in reports), NO_USAGE)), "dim"))


def _cell(feedback: GraderFeedback) -> str:
    """Return the score, and how many hidden tests pass."""
    hidden = hidden_results(feedback.repeats)
    score = "failed" if feedback.failure else format_score(feedback.score)
    return f"{score} (hidden: {hidden[0]} of {hidden[1]})" if hidden else score


def _failure_text(feedback: GraderFeedback) -> str:
    return f"{feedback.grader} failed: {feedback.failure.message if feedback.failure else ''}"
