"""`redraft rubric`: induce a rubric from labelled data, or propose one from a description."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import click
from click.core import ParameterSource

from ...base.checks import format_value
from ...base.sync import run_sync
from ...errors import ConfigError
from ...graders import rubric as rubrics
from ...graders.judging.pointwise import Judge
from ...models.endpoint_url import redacted_model_name
from ...session.models import Models
from ...session.options import Options
from ...session.panel import graders_of_run
from ...session.session import Session
from ...settings import Settings
from ...storage.secure_files import write_atomic
from ...validation.card_page import format_headline
from ...validation.cases import LabelKind
from ...validation.rubric_induction import InducedRubric, RubricInduction, to_toml
from ...validation.rubric_proposal import proposal_to_toml, propose_rubric
from .. import options
from ..command_classes import ConfiguredCommand
from ..exit_codes import FAILED, IMPERFECT, OK
from ..options import OptionValues
from ..output import check_output, notice, print_answer, print_json, read_text, warning
from ..request import (
    announce_sources,
    find_model,
    judging_settings,
    parameter_settings,
    parse_model,
)
from .validate import read_labelled

EPILOG = """\b
Examples:
  redraft rubric "Product descriptions for a shop that sells used bicycles" -o rubric.toml
  redraft rubric labelled.jsonl --model openai:gpt-4o -o rubric.toml
  redraft rubric --from pairs.csv --start letters.toml --judge ollama:llama3.2 -o letters2.toml
  redraft validate other.jsonl --rubric rubric.toml

\b
From a description, a model proposes criteria in one call, and nobody has checked them:
edit the file. From labelled rows, criteria are tested against the labels:

\b
The rows are split three ways: examples for the model that proposes criteria, rows to
choose between proposals, and rows for the final report. The search stops when agreement
with people no longer rises.
Exit codes: 0 a better rubric was found or one was proposed, 1 failed or ended early,
2 usage, 3 none was better on the rows held out for the report: the rubric that it started
from is written.
"""
SOURCE_MESSAGE = (
    'give a file with labelled answers, or a description of the task, such as "Replies to '
    "customers' complaints\""
)
NO_MODEL = (
    "a model must propose the criteria and none was found: give --model; `redraft models` lists "
    "them"
)
DATA_SUFFIXES = {".jsonl", ".json", ".csv", ".tsv", ".parquet", ".gz", ".zst", ".txt", ".toml"}
DATA_OPTIONS = {
    "start": "--start",
    "columns": "--column",
    "kind": "--kind",
    "limit": "--limit",
    "rounds": "--rounds",
    "judge": "--judge",
    "judge_param": "--judge-param",
    "max_in_flight": "--max-in-flight",
}


@click.command(
    short_help="Find criteria for a judge, from labelled data or a description.",
    cls=ConfiguredCommand,
    epilog=EPILOG,
)
@click.argument("source", required=False, type=options.FILE, metavar="[FILE|DESCRIPTION]")
@click.option(
    "--from",
    "data",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Labelled answers, as FILE.",
)
@click.option(
    "--start",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="The rubric to start from. Default: that of the built-in judge.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the rubric (TOML) to FILE instead of stdout.",
)
@options.overwrite
@click.option("--name", metavar="NAME", help="Name of the rubric. Default: the name of the file.")
@options.label_columns
@click.option(
    "--kind",
    type=click.Choice(["score", "pass", "pair"]),
    help="Kind of the labels, if the data do not show it.",
)
@options.label_limit
@click.option(
    "--rounds",
    type=options.COUNT,
    default=4,
    show_default=True,
    metavar="N",
    help="Try at most N proposals.",
)
@options.setting(
    "--model", metavar="MODEL", help="The model that proposes criteria. Default: look for one."
)
@options.setting(
    "--judge",
    metavar="MODEL",
    help="The model that judges by them. Default: the model that proposes.",
)
@options.params
@options.judge_calls_in_flight
@options.budget
@options.timeout
@options.as_json
@options.debug
@click.pass_context
def rubric(
    ctx: click.Context,
    /,
    *,
    source: str | None,
    data: str | None,
    start: str | None,
    output: str | None,
    overwrite: bool,
    name: str | None,
    columns: Mapping[str, str],
    kind: LabelKind | None,
    limit: int | None,
    rounds: int,
    as_json: bool,
    **settings: Any,
) -> int:
    """Write a rubric: criteria by which a judge agrees with the people who labelled FILE, or
    criteria proposed for tasks of the kind in DESCRIPTION (- for stdin).
    """
    if source is not None and data is not None:
        raise click.UsageError(
            f"both {format_value(source, 60)} and --from were given: leave out one"
        )
    if output:
        check_output(output, overwrite=overwrite)
    if source and source != "-" and os.path.isfile(source):  # noqa: PTH113  (Path.is_file raises an error for a long text)
        data = source
    name = (name or Path(output or data or "rubric").stem).strip()
    if data is None:
        text = _description(ctx, source)
        return run_sync(_propose(text, name or "rubric", settings, output=output, as_json=as_json))
    cases = list(read_labelled(data, columns, kind, limit).cases)
    first = rubrics.Rubric.load(start) if start else rubrics.DEFAULT_RUBRIC
    first = replace(first, name=name or first.name)
    first.to_toml()  # missing requirements are reported before anything is paid for
    induced = run_sync(_induce(cases, first, rounds, settings))
    text = to_toml(induced, Path(data).name)
    # a search that ended early without an improvement leaves an existing file alone
    is_worth_writing = induced.improved or not induced.stop_reason
    if is_worth_writing or as_json:
        _write(text, asdict(induced), output if is_worth_writing else None, as_json=as_json)
    return _report(induced)


def _description(ctx: click.Context, source: str | None) -> str:
    """Return the description of a task. Raises UsageError without one, for the name of a file that
    does not exist, and for options that need labelled data.
    """
    if source is None:
        raise click.UsageError(SOURCE_MESSAGE)
    if Path(source).suffix.lower() in DATA_SUFFIXES and len(source.split()) == 1:
        raise click.UsageError(f"there is no file {source!r}; {SOURCE_MESSAGE}")
    for name, option in DATA_OPTIONS.items():
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{option} needs labelled data, and {format_value(source, 60)} is no file: it is "
                "a description"
            )
    return read_text(source, "DESCRIPTION") if source == "-" else source


def _write(text: str, data: Mapping[str, Any], output: str | None, *, as_json: bool) -> None:
    """Write a rubric to its file, or print it; with `as_json` print what is known about it."""
    if output:
        write_atomic(output, text)
    if as_json:
        print_json({**data, "rubric": text})
    elif not output:
        print_answer(text)


async def _find_writer(settings: OptionValues) -> Any:
    """Return the model that proposes criteria. Raises ConfigError if there is none."""
    if (model := await find_model(settings["model"])) is None:
        raise ConfigError(NO_MODEL)
    return model


def _session_settings(settings: OptionValues) -> Settings:
    """Return the settings of a session whose model writes proposals."""
    judging = judging_settings({**settings, "grader": ()})
    return cast("Settings", {**judging, **parameter_settings(settings)})


async def _propose(
    description: str, name: str, settings: OptionValues, *, output: str | None, as_json: bool
) -> int:
    """Propose a rubric for tasks of the kind described, write it, and return the exit code."""
    rubrics.DEFAULT_RUBRIC.to_toml()  # as above
    model = await _find_writer(settings)
    announce_sources(model)
    found = await propose_rubric(description, model, name=name, **_session_settings(settings))
    author = redacted_model_name(model if isinstance(model, str) else model.name)
    text = proposal_to_toml(found, description, author)
    _write(text, found.to_data(), output, as_json=as_json)
    notice(
        f"{len(found.criteria)} criteria proposed and not checked: edit them before you use them"
    )
    return OK


async def _induce(
    cases: list[Any], start: rubrics.Rubric, rounds: int, settings: OptionValues
) -> InducedRubric:
    """Return the rubric by which a judge agrees best with people."""
    writer = await _find_writer(settings)
    judge = parse_model(settings["judge"])
    announce_sources(writer, judge)
    graders = graders_of_run(Judge(start, start.name), judge, None)
    options = Options.from_settings({**_session_settings(settings), "cache": {}})

    def report(what: str, agreement: Any) -> None:
        notice(f"{what}: {format_headline(agreement)}")

    async with Session(options, Models(options, writer, judge or None), graders) as session:
        return await RubricInduction(session, cases, start, rounds, report).run()


def _report(induced: InducedRubric) -> int:
    """Compare the rubric with the one that the search started from, and return the exit code."""
    if induced.note:
        warning(induced.note)
    if induced.stop_reason:
        basis = " on the rows it was chosen by"
        best, start = induced.selection_agreement, induced.round_agreements[0]
    else:
        basis, best, start = "", induced.test_agreement, induced.start_agreement
    verdict = (
        f"better than the start{basis}"
        if induced.improved
        else "nothing was better than the start, which is kept"
    )
    notice(f"{verdict}: {format_headline(best)}; the start: {format_headline(start)}")
    if induced.stop_reason:
        warning(
            f"ended early: {induced.stop_reason}",
            "raise the budget or the deadline, or check the model",
        )
        return FAILED
    return OK if induced.improved else IMPERFECT
