"""Compares two runs, models or prompts, and shows whether B is better; as a gate, says so by the
exit code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, Self, cast

import click
from click.core import ParameterSource
from rich.table import Table

from ...base.sync import run_sync
from ...comparison import ComparisonReport, compare
from ...comparison.ci_reports import OnUndecided, gate_passes, junit_xml, markdown_summary
from ...comparison.labels import NOT_RANDOM
from ...comparison.report import DEFAULT_MARGIN, format_interval, format_signed
from ...errors import ConfigError
from ...graders import must
from ...models.model_names import PREFIXES
from ...runs import BatchSettings
from ...session.panel import needs_judge
from ...settings import ValidationSettings, settings_for
from ...validation.differences import PairedDifference
from ...validation.grader_comparison import compare_graders
from ...validation.labelled import random_cases, read_cases
from ..errors import OK, UNDECIDED, WORSE
from ..grader_code import load_grader
from ..output import check_writable, notice, warning
from ..request import (
    SharedArguments,
    announce_sources,
    budget_of,
    build_settings,
    canonical_requirements,
    find_judge,
    find_model,
    load_graders,
    parse_model,
    with_declared_parameters,
)
from ..stored_runs import describe_runs, journal_paths, read_runs
from ..terminal import console, text_line

MAX_LISTED = 5  # unreadable rows that are listed one by one
STYLES = {
    "better": "bold green",
    "worse": "bold red",
    "undecided": "bold yellow",
    "not worse": "bold green",
}
GRADER_OPTIONS = ("grader", "require", "rubric", "template")
RESULT_SUFFIXES = {
    ".jsonl",
    ".ndjson",
    ".json",
    ".csv",
    ".tsv",
    ".parquet",
    ".journal",
    ".eval",
    ".gz",
    ".zst",
}
RESULT_ROLES = ("id", "prompt", "messages", "response")


@dataclass(frozen=True, kw_only=True)
class CompareArguments(SharedArguments):
    """The arguments of `redraft compare` and `redraft gate`."""

    a: str
    b: str
    score: str
    lower_is_better: bool | None
    column: tuple[str, ...]
    labels: tuple[str, ...]
    label_columns: tuple[str, ...]
    scale: tuple[float, float] | None
    cluster: str | None
    slices: tuple[str, ...]
    margin: float | None
    level: float
    anytime: bool
    data: str | None
    journal: str | None
    limit: int | None
    undecided: OnUndecided = "fail"
    junit: str | None = None
    markdown: str | None = None
    names_graders: bool = False

    @property
    def calls(self) -> bool:
        """Whether something is run or graded anew, so that models are needed."""
        return self.data is not None or self.names_graders

    @property
    def are_graders(self) -> bool:
        """Whether A and B are graders, to be compared on the labels: neither is a file with
        results.
        """
        return (
            bool(self.labels)
            and self.data is None
            and not any(_is_results(each) for each in (self.a, self.b))
        )

    @property
    def has_prompts(self) -> bool:
        """Whether A or B is a file with a prompt."""
        return any(Path(each).is_file() for each in (self.a, self.b))

    @classmethod
    def from_context(cls, ctx: click.Context, values: Mapping[str, Any]) -> Self:
        """Create the arguments; graders that a file or the environment names do not grade finished
        runs anew.
        """
        names = any(
            ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in GRADER_OPTIONS
        )
        may_be_grader = bool(values["labels"])
        sources = (
            {}
            if values["data"] is not None
            else {n: _run_source(values[n], may_be_grader=may_be_grader) for n in ("a", "b")}
        )
        return cls.from_values({**values, **sources, "names_graders": names})


def run_compare(ctx: click.Context, values: Mapping[str, Any]) -> int:
    """Compare, show the report, and return the exit code."""
    arguments = CompareArguments.from_context(ctx, values)
    report = _compare(arguments)
    if arguments.as_json:
        click.echo(json.dumps(report.as_data(), indent=2))
    else:
        _show(report.headline(), report.verdict, report)
    return OK


def run_gate(ctx: click.Context, values: Mapping[str, Any]) -> int:
    """Compare, write the files for continuous integration, show the verdict, and return the exit
    code.
    """
    arguments = CompareArguments.from_context(ctx, values)
    for option, path in (("--junit", arguments.junit), ("--markdown", arguments.markdown)):
        if path:
            check_writable(path, option)
    began = monotonic()
    report = _compare(arguments)
    if arguments.junit:
        Path(arguments.junit).write_text(
            junit_xml(report, arguments.undecided, seconds=monotonic() - began), encoding="utf-8"
        )
    if arguments.markdown:
        with Path(arguments.markdown).open("a", encoding="utf-8") as file:
            file.write(markdown_summary(report, arguments.undecided))
    if arguments.as_json:
        click.echo(
            json.dumps(
                {"passed": gate_passes(report, arguments.undecided), **report.as_data()}, indent=2
            )
        )
    else:
        _show(report.gate_line(), report.gate, report)
    if gate_passes(report, arguments.undecided):
        return OK
    return WORSE if report.gate == "worse" else UNDECIDED


def _compare(arguments: CompareArguments) -> ComparisonReport:
    """Return the report; unreadable rows are listed."""
    err = console(stderr=True)
    with err.status("comparing ...") if err.is_interactive and arguments.calls else nullcontext():
        report = run_sync(
            _compare_graders(arguments) if arguments.are_graders else _compare_live(arguments)
        )
    for reason in report.skipped[:MAX_LISTED]:
        warning(f"unreadable: {reason}")
    return report


async def _compare_live(a: CompareArguments) -> ComparisonReport:
    columns = dict(text.split("=", 1) for text in a.column)
    live: dict[str, Any] = {"result_columns": columns}
    settings: dict[str, Any] = {}
    if a.data is None:
        _check_results(a.a, a.b)
    if a.calls:
        settings = {
            **build_settings(a),
            "budget": budget_of(a),
            "limit": a.limit,
            "say": _say_once(),
        }
        live = await _live_arguments(a)
        if a.data is None:
            live["result_columns"] = columns
        else:
            settings["columns"] = {role.replace("-", "_"): name for role, name in columns.items()}
    if wrong := [role for role in live.get("result_columns", {}) if role not in RESULT_ROLES]:
        raise click.UsageError(
            f"--column {wrong[0]}=...: the columns of results are {', '.join(RESULT_ROLES)}; "
            "--score names the score"
        )
    if a.journal:
        settings["journal"] = a.journal
    return await compare(
        _variant(a.a),
        _variant(a.b),
        a.data,
        labels=a.labels or None,
        score=a.score,
        lower_is_better=a.lower_is_better,
        label_columns=_label_columns(a.label_columns) or None,
        label_scale=a.scale,
        cluster=a.cluster,
        slices=a.slices,
        margin=a.margin,
        level=a.level,
        anytime=a.anytime,
        **live,
        **cast("BatchSettings", settings),
    )


async def _compare_graders(a: CompareArguments) -> ComparisonReport:
    """Have A and B judge the labelled answers; the report is about how far they agree with
    people.
    """
    if a.names_graders:
        raise click.UsageError(
            "A and B are the graders that are compared: leave out --grader, --require, --rubric "
            "and --template"
        )
    settings = settings_for("validate", build_settings(a))
    if len(a.labels) != 1:
        raise click.UsageError("--labels: graders are compared on one file of labels")
    labelled = read_cases(a.labels[0], _label_columns(a.label_columns))
    found = await compare_graders(
        replace(labelled, cases=random_cases([labelled])[0][: a.limit]),
        load_grader(a.a),
        load_grader(a.b),
        await find_judge(a.judge, a.model) or False,
        confidence=a.level,
        lower_is_better=a.lower_is_better,
        **cast("ValidationSettings", {**settings, "budget": budget_of(a)}),
    )
    margin = DEFAULT_MARGIN if a.margin is None else a.margin
    forms = ("grader", "grader")
    unused = {NOT_RANDOM: len(labelled.not_random)} if labelled.not_random else {}
    about: Any = {
        "score_name": found.measure,
        "margin": margin,
        "level": a.level,
        "forms": forms,
        "unused_labels": unused,
    }
    return ComparisonReport(a.a, a.b, found.difference, usage=found.usage, **about)


def _is_results(name: str) -> bool:
    """Return whether a name is that of a file with results, and no grader."""
    file, sign, _ = name.partition("#")
    return (
        Path(name).is_file()
        or (bool(sign) and Path(file).is_file())
        or Path(file).suffix in RESULT_SUFFIXES
    )


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
        is_other_file = Path(name).is_file() and Path(name).suffix not in RESULT_SUFFIXES
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


async def _live_arguments(a: CompareArguments) -> dict[str, Any]:
    """Return the models and graders, if something is run or graded."""
    graders = [
        *(must(spec) for spec in canonical_requirements(a.require)),
        *(load_graders(a.grader, a.rubric, a.template) or []),
    ]
    judge = parse_model(a.judge)
    live: dict[str, Any] = {"graders": graders or None, "judge": judge}
    if a.data is not None and a.has_prompts:
        live["model"] = await find_model(a.model)
        announce_sources(live["model"], judge)
    elif (
        a.data is None and judge is None and a.model and not (graders and not needs_judge(graders))
    ):
        live["judge"] = await find_judge(None, a.model)
    return live


def _label_columns(texts: tuple[str, ...]) -> dict[str, str]:
    """Return the columns of labels by role. Raises UsageError."""
    columns = {}
    for text in texts:
        ours, sign, theirs = text.partition("=")
        if not (sign and ours):
            raise click.UsageError(
                f"--label-column {text}: a column is given as OURS=THEIRS, such as label=human"
            )
        columns[ours] = theirs
    return columns


def _show(line: str, verdict: str, report: ComparisonReport) -> None:
    """Print the verdict, the figures and the slices."""
    out = console(stderr=False)
    out.print(text_line(line, STYLES[verdict]))
    for text in report.summary()[1:]:
        out.print(text_line(text))
    for column, by_name in report.slices.items():
        out.print()
        out.print(_slice_table(column, by_name))


def _slice_table(column: str, by_name: Mapping[str, PairedDifference]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for n, header in enumerate((column, "A", "B", "difference", "interval", "rows", "B is")):
        table.add_column(header, justify="left" if n in {0, 6} else "right", no_wrap=True)
    for name, d in by_name.items():
        cells = (
            name or "(none)",
            f"{d.mean_a:.3f}",
            f"{d.mean_b:.3f}",
            format_signed(d.value),
            format_interval(d.interval),
            f"{d.rows:,}",
            d.verdict,
        )
        table.add_row(*map(text_line, cells))
    return table
