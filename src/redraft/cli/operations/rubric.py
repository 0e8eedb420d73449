"""Induces a rubric from labelled data and reports how far a judge that uses it agrees with people,
or proposes one without data.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import click
from click.core import ParameterSource

from ...base.checks import format_value
from ...errors import ConfigError
from ...graders import Judge, Rubric
from ...graders.rubric import DEFAULT_RUBRIC
from ...models.endpoint_url import redacted_model_name
from ...session.options import Options
from ...session.session import Session, graders_of_run
from ...settings import Settings
from ...storage import write_atomic
from ...validation import propose_rubric
from ...validation.card_page import format_headline
from ...validation.rubric_induction import InducedRubric, RubricInduction, to_toml
from ...validation.rubric_proposal import proposal_to_toml
from ..errors import FAILED, OK, UNPROVEN
from ..output import check_output, notice, print_answer, read_text, warning
from ..request import (
    announce_sources,
    find_model,
    parameter_settings,
    parse_model,
)
from .validate import JudgingArguments

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


@dataclass(frozen=True, kw_only=True)
class RubricArguments(JudgingArguments):
    """The arguments of `redraft rubric`, named after its options."""

    start: str | None
    output: str | None
    overwrite: bool
    name: str | None
    rounds: int

    def own_settings(self) -> Settings:
        """Return the settings of a session whose model writes proposals."""
        return cast("Settings", {**self.session_settings(), **parameter_settings(self)})


def run_command(ctx: click.Context, values: Mapping[str, Any]) -> int:
    """Write a rubric from labelled data or from a description, and return the exit code. Raises
    UsageError.
    """
    others = dict(values)
    source: str | None = others.pop("source")
    data: str | None = others.pop("data")
    if source is not None and data is not None:
        raise click.UsageError(
            f"both {format_value(source, 60)} and --from were given: leave out one"
        )
    if source is None and data is None:
        raise click.UsageError(SOURCE_MESSAGE)
    if source and source != "-" and os.path.isfile(source):  # noqa: PTH113  (Path.is_file raises an error for a long text)
        data = source
    arguments = RubricArguments.from_values({**others, "data": data or ""})
    if arguments.output:
        check_output(arguments.output, overwrite=arguments.overwrite)
    if data is not None:
        return _induce_command(arguments)
    assert source is not None
    _check_description(ctx, source)
    return _propose_command(
        read_text(source, "DESCRIPTION") if source == "-" else source, arguments
    )


def _check_description(ctx: click.Context, text: str) -> None:
    """Raise UsageError for the name of a file that does not exist, and for options that need
    labelled data.
    """
    if Path(text).suffix.lower() in DATA_SUFFIXES and len(text.split()) == 1:
        raise click.UsageError(f"there is no file {text!r}; {SOURCE_MESSAGE}")
    for name, option in DATA_OPTIONS.items():
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{option} needs labelled data, and {format_value(text, 60)} is no file: it is a "
                "description"
            )


def _propose_command(description: str, arguments: RubricArguments) -> int:
    """Propose a rubric for tasks of the kind described, write it, and return the exit code."""
    name = (arguments.name or Path(arguments.output or "rubric").stem).strip() or "rubric"
    DEFAULT_RUBRIC.to_toml()  # missing requirements are reported before anything is paid for
    rubric, model = asyncio.run(_propose(description, name, arguments))
    text = proposal_to_toml(rubric, description, model)
    if arguments.output:
        write_atomic(arguments.output, text)
    if arguments.as_json:
        click.echo(json.dumps({**rubric.to_data(), "rubric": text}, indent=2))
    elif not arguments.output:
        print_answer(text)
    notice(
        f"{len(rubric.criteria)} criteria proposed and not checked: edit them before you use them"
    )
    return OK


async def _propose(description: str, name: str, arguments: RubricArguments) -> tuple[Rubric, str]:
    """Return the proposed rubric, and the name of the model that proposed it."""
    model = await find_model(arguments.model)
    if model is None:
        raise ConfigError(NO_MODEL)
    announce_sources(model)
    rubric = await propose_rubric(description, model, name=name, **arguments.own_settings())
    return rubric, redacted_model_name(model if isinstance(model, str) else model.name)


def _induce_command(arguments: RubricArguments) -> int:
    """Induce a rubric, write it, report how well it agrees with people, and return the exit
    code.
    """
    cases = list(arguments.read_cases().cases)
    start = Rubric.load(arguments.start) if arguments.start else DEFAULT_RUBRIC
    name = (arguments.name or Path(arguments.output or arguments.data).stem).strip()
    start = replace(start, name=name or start.name)
    start.to_toml()  # missing requirements are reported before anything is paid for
    induced = asyncio.run(_induce(cases, start, arguments))
    _write_rubric(induced, arguments)
    _report_rubric(induced)
    if induced.stop_reason:
        warning(
            f"ended early: {induced.stop_reason}",
            "raise the budget or the deadline, or check the model",
        )
        return FAILED
    return OK if induced.improved else UNPROVEN


async def _induce(cases: list[Any], start: Rubric, arguments: RubricArguments) -> InducedRubric:
    writer = await find_model(arguments.model)
    if writer is None:
        raise ConfigError(NO_MODEL)
    judge = parse_model(arguments.judge)
    announce_sources(writer, judge)
    graders = graders_of_run(Judge(start, start.name), judge, None)
    options = Options.from_settings({**arguments.own_settings(), "cache": {}})
    session = Session(options, writer, graders, judge or None)

    def report(what: str, agreement: Any) -> None:
        notice(f"{what}: {format_headline(agreement)}")

    try:
        return await RubricInduction(session, cases, start, arguments.rounds, report).run()
    finally:
        await session.close()


def _write_rubric(induced: InducedRubric, arguments: RubricArguments) -> None:
    """Write or print the rubric. A search that ended early without an improvement leaves an
    existing file alone.
    """
    text = to_toml(induced, Path(arguments.data).name)
    worth_writing = induced.improved or not induced.stop_reason
    if arguments.output and worth_writing:
        write_atomic(arguments.output, text)
    if arguments.as_json:
        click.echo(json.dumps({**asdict(induced), "rubric": text}, indent=2))
    elif worth_writing and not arguments.output:
        print_answer(text)


def _report_rubric(induced: InducedRubric) -> None:
    """Compare the rubric with the one that the search started from."""
    if induced.note:
        warning(induced.note)
    basis = " on the rows it was chosen by" if induced.stop_reason else ""
    verdict = (
        f"better than the start{basis}"
        if induced.improved
        else "nothing was better than the start, which is kept"
    )
    best, start = (
        (induced.selection_agreement, induced.round_agreements[0])
        if induced.stop_reason
        else (induced.test_agreement, induced.start_agreement)
    )
    comparison = f"{format_headline(best)}; the start: {format_headline(start)}"
    notice(f"{verdict}: {comparison}")
