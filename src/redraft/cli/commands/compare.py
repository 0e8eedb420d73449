"""`redraft compare`: say whether B is better than A, or of several who is better than whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import click
from click.core import ParameterSource
from rich.markup import escape
from rich.table import Table

from ...base.sync import run_sync
from ...comparison import api
from ...comparison.labels import NOT_RANDOM
from ...comparison.leaderboards import Leaderboard, leaderboard
from ...comparison.report import (
    DEFAULT_MARGIN,
    ComparisonReport,
    format_interval,
    format_signed,
)
from ...comparison.task_writer import add_tasks
from ...comparison.variants import budget_left, variant_settings
from ...errors import ConfigError
from ...models.model_names import PREFIXES
from ...runs import BatchProgress
from ...session.options import Options
from ...session.panel import needs_judge
from ...settings import BatchFields, OptionFields, Settings
from ...usage import NO_USAGE, Usage
from ...validation.grader_comparison import compare_graders
from ...validation.labelled import random_cases, read_cases
from ...validation.statistics import PairedDifference
from .. import options
from ..command_classes import ConfiguredCommand
from ..display import activity_spinner, make_display, message_writer
from ..exit_codes import OK
from ..options import OptionValues, setting_options
from ..output import notice, print_json, warning
from ..request import (
    announce_sources,
    budget_of,
    build_settings,
    find_judge,
    find_model,
    graders_and_requirements,
    judging_settings,
    parse_model,
    with_declared_parameters,
)
from ..stored_runs import describe_runs, journal_paths, read_runs
from ..terminal import console, figure_table, text_line
from ..user_code import load_grader

SECONDS_UNTIL_PROGRESS = 1.0
MAX_LISTED = 5  # unreadable rows that are listed one by one
STYLES = {
    "better": "bold green",
    "worse": "bold red",
    "undecided": "bold yellow",
    "not worse": "bold green",
}
GRADER_OPTIONS = ("grader", "require", "weight", "rubric", "template")
SUFFIXES = {  # of results
    *(".jsonl", ".ndjson", ".json", ".csv", ".tsv"),
    *(".parquet", ".journal", ".eval", ".gz", ".zst"),
}
RESULT_ROLES = ("id", "prompt", "messages", "response")
ARGUMENTS = ("score", "lower_is_better", "cluster", "slices", "margin", "level", "anytime")
OF_TWO = ("labels", "label_columns", "scale", "slices", "margin", "anytime")
COMMAND_LINE = ParameterSource.COMMANDLINE

EPILOG = """\b
Examples:
  redraft compare before.jsonl after.jsonl
  redraft compare before.jsonl after.jsonl --labels people.jsonl --slice topic
  redraft compare logs/old.eval logs/new.eval --score match
  redraft compare openai:gpt-4o-mini openai:gpt-4o --data tasks.jsonl --grader helpfulness --judge openai:gpt-4o
  redraft compare old.md new.md --data tasks.jsonl --model openai:gpt-4o-mini --grader rules.py:score
  redraft compare helpfulness rules.py:score --labels people.jsonl --judge openai:gpt-4o-mini
  redraft compare MODEL MODEL MODEL --data tasks.jsonl --grader pairwise --judge openai:gpt-4o
  redraft compare MODEL MODEL --tasks-from "questions of beginners about SQL" -n 50 --judge openai:gpt-4o

\b
A and B are finished runs: outputs or journals of `redraft batch`, tables with a column
of scores, or results of promptfoo or Inspect. FILE#NAME names one of several runs in a
file. With --data, A and B are models or files with prompts: both answer the same tasks,
and the same graders grade. Two graders are compared by how far they agree with
--labels.

\b
Rows are paired by their ID, else by their task. Repeats, such as epochs, are averaged,
and rows of equal tasks count as one cluster. The answer is better, worse or undecided;
undecided says how many more rows or labels would decide. With --labels it is about
what people say, whatever the bias of the judge.

\b
Three or more make a leaderboard: with --grader pairwise each pair of them is judged in
both orders, and shown are shares of wins and strengths (Bradley-Terry); else mean
scores. It says who is not told apart from whom. --tasks-from lets a model write the
tasks to a file that one can read and edit; the same command then goes on with it.
"""  # noqa: E501

comparison = options.combine(
    options.under(
        "Results",
        options.option(
            "--score",
            metavar="NAME",
            default="",
            help="The score to compare: a column, metric, scorer or grader.",
        ),
        options.direction("scores of the runs; for two graders, of the labels"),
        options.columns,
    ),
    options.under(
        "Labels of people",
        options.option(
            "--labels",
            multiple=True,
            type=click.Path(exists=True, dir_okay=False),
            metavar="FILE",
            help="Labels of people on some answers, such as those of `redraft label` (repeatable).",
        ),
        options.column_names(
            "--label-column",
            "label_columns",
            help="Name of a column of the labels (repeatable), as -c of `redraft validate`.",
        ),
        options.scale(
            "Scale of the labels, such as 1-5. Default: that of `redraft label`, or 0-1."
        ),
    ),
    options.under(
        "Statistics",
        options.option(
            "--cluster",
            metavar="COLUMN",
            help=(
                "Rows with the same value in COLUMN do not count as independent. Default: rows of "
                "equal tasks."
            ),
        ),
        options.option(
            "--slice",
            "slices",
            multiple=True,
            metavar="COLUMN",
            help=(
                "Compare the values of COLUMN one by one (repeatable); the intervals hold for all "
                "of them at once."
            ),
        ),
        options.option(
            "--margin",
            type=options.POSITIVE,
            metavar="D",
            help="Loss that does not matter. Default: 0.02 for scores from 0 to 1.",
        ),
        options.option(
            "--level",
            type=options.NumberRange(0, 1, min_open=True, max_open=True),
            default=0.95,
            show_default=True,
            metavar="P",
            help="Confidence of the intervals.",
        ),
        options.option(
            "--anytime",
            is_flag=True,
            help="Use an interval that stays valid however often you look. Rows in random order.",
        ),
    ),
    options.under(
        "Running or grading anew",
        options.option(
            "--data",
            type=options.FILE,
            metavar="TASKS",
            help="A and B are models or files with prompts: run both on the tasks in this file.",
        ),
        options.option(
            "--journal",
            type=click.Path(dir_okay=False),
            metavar="FILE",
            help=(
                "File that keeps every call, so that a second comparison repeats none. Default: "
                "compare.journal."
            ),
        ),
        setting_options(BatchFields, "limit"),
        setting_options(OptionFields, "max_iterations", max_iterations=0),
    ),
    options.grading,
    options.models,
    options.sampling,
    options.budget,
    setting_options(OptionFields, "max_in_flight"),
    options.timeout,
    options.as_json,
)


@click.command(
    short_help="Say whether B is better than A.",
    cls=ConfiguredCommand,
    epilog=EPILOG,
)
@click.argument("a", type=options.FILE, metavar="A")
@click.argument("b", type=options.FILE, metavar="B")
@click.argument("more", type=options.FILE, nargs=-1, metavar="[MORE]...")
@comparison
@options.option(
    "--tasks-from",
    heading="Running or grading anew",
    metavar="TEXT",
    help=(
        "A description, from which the --judge or the --model writes the tasks to the file --data, "
        "or tasks.jsonl, unless they are there."
    ),
)
@options.option(
    "-n",
    "count",
    heading="Running or grading anew",
    type=options.COUNT,
    default=50,
    show_default=True,
    metavar="N",
    help="How many tasks are written.",
)
@options.debug
@click.pass_context
def compare(
    ctx: click.Context,
    /,
    *,
    more: tuple[str, ...],
    tasks_from: str | None,
    count: int,
    as_json: bool,
    **settings: Any,
) -> int:
    """Say whether B is better than A, worse, or undecided: paired, with an interval, and what would
    decide it. With more than two, say who is better than whom.
    """
    names = [settings["a"], settings["b"], *more]
    if more:
        refuse_options(ctx, OF_TWO, f"is about two, and there are {len(names)}")
    used = NO_USAGE
    if tasks_from is None:
        refuse_options(ctx, ("count",), "is the number of tasks that --tasks-from writes")
    else:
        _check_variants(names)
        settings["data"] = settings["data"] or "tasks.jsonl"
        used = run_sync(_write_tasks(tasks_from, count, settings))
    settings |= after(settings, used)
    if more:
        board = run_sync(_rank(names, ctx, settings))
        board = replace(board, usage=board.usage + used)
        warn_of_skipped(board.skipped)
        if as_json:
            print_json(board.as_data())
        else:
            _show_leaderboard(board)
        return OK
    report = compare_variants(ctx, settings)
    report = replace(report, usage=report.usage + used)
    if as_json:
        print_json(report.as_data())
    else:
        show_report(report.headline(), report.verdict, report)
    return OK


def refuse_options(ctx: click.Context, names: Sequence[str], reason: str) -> None:
    """Raise UsageError, with a reason, if one of these parameters is given on the command line."""
    for param in ctx.command.params:
        if param.name in names and ctx.get_parameter_source(param.name) is COMMAND_LINE:
            raise click.UsageError(f"{param.opts[0]} {reason}")


def _check_variants(names: Sequence[str]) -> None:
    """Raise UsageError for a finished run, and ConfigError for a variant that does not exist,
    before tasks for them are written.
    """
    for name in names:
        if _is_file(name) and Path(name).suffix in SUFFIXES:
            raise click.UsageError(
                f"{name!r} is a finished run, and --tasks-from is for models and prompts"
            )
        variant_settings(name)


async def _write_tasks(description: str, count: int, settings: OptionValues) -> Usage:
    """Have the model that judges, else the one that answers, write tasks to the data file, and
    return what it took.
    """
    writer = await find_judge(settings["judge"], settings["model"])
    given = {**build_settings(settings), "budget": budget_of(settings)}
    own = {name: given[name] for name in given.keys() & Options.__dataclass_fields__.keys()}
    file = Path(settings["data"])
    return await add_tasks(description, file, count, writer, say=notice, **cast("Settings", own))


def after(settings: OptionValues, used: Usage) -> OptionValues:
    """Return the options with what calls so far have left of the budget."""
    if (budget := budget_of(settings)) is None:
        return settings
    left = budget_left(budget, used)
    limits = {"budget_usd": left.usd, "budget_calls": left.calls, "budget_tokens": left.tokens}
    return {**settings, **limits}


async def _rank(names: Sequence[str], ctx: click.Context, settings: OptionValues) -> Leaderboard:
    """Return the leaderboard of three or more."""
    names = [source_of(name, settings) for name in names]
    with show_progress(ctx, settings, names) as progress:
        given = await arguments_of(names, settings, progress)
        own = {name: value for name, value in given.items() if name not in OF_TWO}
        return await leaderboard([_variant(name) for name in names], settings["data"], **own)


def _show_leaderboard(board: Leaderboard) -> None:
    """Print who is best, the table, and what is to be said of it."""
    out = console(stderr=False)
    first, *others = board.summary()
    out.print(text_line(first, "bold"))
    headings, *rows = board.table()
    out.print(figure_table(headings, rows, headings[2:-1]))
    for text in others:
        out.print(text_line(text))


def names_graders(ctx: click.Context) -> bool:
    """Return whether the command line names graders: those that a file or the environment names do
    not grade finished runs anew.
    """
    return any(ctx.get_parameter_source(name) is COMMAND_LINE for name in GRADER_OPTIONS)


def has_calls(ctx: click.Context, settings: OptionValues) -> bool:
    """Return whether something is run or graded anew."""
    return settings["data"] is not None or names_graders(ctx)


@contextmanager
def show_progress(
    ctx: click.Context, settings: OptionValues, names: Sequence[str]
) -> Iterator[RunsProgress | None]:
    """Show how far the runs with these names are; None if nothing is run or graded anew."""
    if not has_calls(ctx, settings):
        yield None
        return
    progress = RunsProgress((*names, "pairs"))
    with progress.display:
        yield progress


def compare_variants(ctx: click.Context, settings: OptionValues) -> ComparisonReport:
    """Compare what the options of `redraft compare` name, and list unreadable rows."""
    has_labels, has_tasks = bool(settings["labels"]), settings["data"] is not None
    a, b = (source_of(settings[name], settings) for name in "ab")
    are_graders = has_labels and not has_tasks and not (_is_results(a) or _is_results(b))
    if are_graders and names_graders(ctx):
        raise click.UsageError(
            "A and B are the graders that are compared: leave out --grader, --require, "
            "--weight, --rubric and --template"
        )
    with show_progress(ctx, settings, (a, b)) as progress:
        report = run_sync(
            _compare_graders(a, b, settings)
            if are_graders
            else _compare_runs(a, b, settings, progress)
        )
    warn_of_skipped(report.skipped)
    return report


def warn_of_skipped(reasons: Sequence[str]) -> None:
    """List unreadable rows."""
    for reason in reasons[:MAX_LISTED]:
        warning(f"unreadable: {reason}")


class RunsProgress:
    """Says how far a comparison is, from the first second on.

    It is called with the progress of one batch after the other, whose `names` these are; the last
    one has all that follow.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._runs: list[BatchProgress] = []
        self._spinner = activity_spinner("comparing ...")
        self.display = make_display(
            lambda: self._spinner, write=message_writer(), wait=SECONDS_UNTIL_PROGRESS
        )

    def __call__(self, progress: BatchProgress) -> None:
        if not any(progress is each for each in self._runs):
            self._runs.append(progress)
        if progress.total is None and not progress.ended_rows:
            return
        name = self._names[min(len(self._runs), len(self._names)) - 1]
        total = "" if progress.total is None else f" of {progress.total:,}"
        line = f"{name}: {progress.ended_rows:,}{total} done"
        self._spinner.update(text=f"comparing ... {escape(line)}")
        self.display.show_progress(line, "progress", lambda: {"run": name, **progress.as_data()})


async def _compare_runs(
    a: str, b: str, settings: OptionValues, progress: RunsProgress | None
) -> ComparisonReport:
    """Compare finished runs, or with `progress` what is run or graded anew."""
    return await api.compare(
        _variant(a),
        _variant(b),
        settings["data"],
        labels=settings["labels"] or None,
        label_columns=settings["label_columns"] or None,
        label_scale=settings["scale"],
        **await arguments_of((a, b), settings, progress),
    )


async def arguments_of(
    names: Sequence[str], settings: OptionValues, progress: RunsProgress | None
) -> dict[str, Any]:
    """Return the arguments of a comparison of variants or, without --data, of finished runs; with
    `progress` those of what is run or graded anew.
    """
    given: dict[str, Any] = {name: settings[name] for name in ARGUMENTS}
    columns = settings["column"]
    if settings["data"] is None:
        _check_results(*names)
        if wrong := [role for role in columns if role not in RESULT_ROLES]:
            raise click.UsageError(
                f"--column {wrong[0]}=...: the columns of results are {', '.join(RESULT_ROLES)}; "
                "--score names the score"
            )
        given["result_columns"] = columns
    else:
        given["columns"] = columns
    if progress:
        given |= {
            **build_settings(settings),
            "budget": budget_of(settings),
            "limit": settings["limit"],
            "say": _say_once(),
            "on_progress": progress,
            **await models_and_graders(settings, has_prompts=any(map(_is_file, names))),
        }
    if settings["journal"]:
        given["journal"] = settings["journal"]
    return given


async def models_and_graders(settings: OptionValues, *, has_prompts: bool) -> dict[str, Any]:
    """Return the models and graders with which something is run or graded; `has_prompts`: whether
    A or B is a file with a prompt.
    """
    graders = graders_and_requirements(settings)
    judge, model = parse_model(settings["judge"]), settings["model"]
    found: dict[str, Any] = {"graders": graders, "judge": judge}
    if settings["data"] is None:
        if judge is None and model and (needs_judge(graders) or not graders):
            found["judge"] = await find_judge(None, model)
    elif has_prompts:
        found["model"] = await find_model(model)
        announce_sources(found["model"], judge)
    return found


async def _compare_graders(a: str, b: str, settings: OptionValues) -> ComparisonReport:
    """Have A and B judge the labelled answers; the report is about how far they agree with
    people.
    """
    if len(settings["labels"]) != 1:
        raise click.UsageError("--labels: graders are compared on one file of labels")
    labelled = read_cases(settings["labels"][0], settings["label_columns"])
    found = await compare_graders(
        replace(labelled, cases=random_cases([labelled])[0][: settings["limit"]]),
        load_grader(a),
        load_grader(b),
        await find_judge(settings["judge"], settings["model"]) or False,
        confidence=settings["level"],
        lower_is_better=settings["lower_is_better"],
        **judging_settings(settings),
    )
    return ComparisonReport(
        a,
        b,
        found.difference,
        score_name=found.measure,
        margin=DEFAULT_MARGIN if settings["margin"] is None else settings["margin"],
        level=settings["level"],
        forms=("grader", "grader"),
        unused_labels={NOT_RANDOM: len(labelled.not_random)} if labelled.not_random else {},
        usage=found.usage,
    )


def _is_file(name: str) -> bool:
    return Path(name).is_file()


def _is_results(name: str) -> bool:
    """Return whether a name is that of a file with results, and no grader."""
    file, sign, _ = name.partition("#")
    exists = _is_file(name) or (bool(sign) and _is_file(file))
    return exists or Path(file).suffix in SUFFIXES


def source_of(name: str, settings: OptionValues) -> str:
    """Return a variant, or without --data the finished run or the grader that a name means."""
    if settings["data"] is not None:
        return name
    return _run_source(name, may_be_grader=bool(settings["labels"]))


def _run_source(name: str, *, may_be_grader: bool) -> str:
    """Return the journal and the run that the name of a run in this folder means; else the name of
    a file or a data set itself.

    Raises ConfigError for a plain word that means neither, unless it may be the name of a grader.
    """
    if Path(name).exists() or any(sign in name for sign in ":#/\\*?"):
        return name
    paths = journal_paths(None)
    runs = read_runs(paths, strict=False)
    matches = [run for run in runs if name in {run.info.name, run.info.display_name}]
    if not (matches or may_be_grader or _is_results(name)):
        raise ConfigError(
            f"there is no run or file {name!r}; {describe_runs(runs, paths)} (a data set of the "
            f"Hugging Face hub is hf:{name})"
        )
    return f"{matches[0].path}#{matches[0].info.display_name}" if len(matches) == 1 else name


def _check_results(*names: str) -> None:
    """Raise UsageError for the name of a model or a prompt, which can be compared only on tasks."""
    for name in names:
        is_other_file = _is_file(name) and Path(name).suffix not in SUFFIXES
        if is_other_file or name.startswith(PREFIXES):
            raise click.UsageError(
                f"{name!r} is no file of results; to compare models or prompts, name the tasks: "
                "--data FILE"
            )


def _variant(name: str) -> Any:
    """Return a name, or the settings of a variant if files declare parameters for the model with
    that name.
    """
    model = with_declared_parameters(name)
    return name if model is name else {"label": name, "model": model}


def _say_once() -> Callable[[str], None]:
    """Return a function that shows a message of a run, unless the other run has had the same."""
    said: set[str] = set()

    def say(text: str) -> None:
        if text not in said:
            said.add(text)
            notice(text)

    return say


def show_report(line: str, verdict: str, report: ComparisonReport) -> None:
    """Print the verdict, the figures and the slices."""
    out = console(stderr=False)
    out.print(text_line(line, STYLES[verdict]))
    for text in report.summary()[1:]:
        out.print(text_line(text))
    for column, by_name in report.slices.items():
        out.print()
        out.print(_slice_table(column, by_name.items()))


def _slice_table(column: str, slices: Iterable[tuple[str, PairedDifference]]) -> Table:
    headings = (column, "A", "B", "difference", "interval", "rows", "B is")
    rows = (
        (
            name or "(none)",
            f"{d.mean_a:.3f}",
            f"{d.mean_b:.3f}",
            format_signed(d.value),
            format_interval(d.interval),
            f"{d.rows:,}",
            d.verdict,
        )
        for name, d in slices
    )
    return figure_table(headings, rows, headings[1:6])
