"""Induces a rubric from labelled data, and reports how far a judge that uses it agrees with people."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from ...errors import ConfigError
from ...graders import Rubric
from ...graders.rubric import DEFAULT_RUBRIC
from ...session import Session
from ...storage import write_atomic
from ...text import strip_control_sequences
from ...validation.card_page import format_headline
from ...validation.rubric_induction import InducedRubric, RubricInduction, to_toml
from ..errors import FAILED, OK, UNPROVEN
from ..output import check_writable, print_answer, warning
from ..request import announce_sources, find_model, parse_model
from .validate import JudgingArguments


@dataclass(frozen=True, kw_only=True)
class RubricArguments(JudgingArguments):
    """The arguments of `redraft rubric`, named after its options."""

    start: str | None
    output: str | None
    name: str | None
    rounds: int


def run_command(values: Mapping[str, Any]) -> int:
    """Induce a rubric, write it, report how well it agrees with people, and return the exit code."""
    arguments = RubricArguments(**values)
    if arguments.output:
        check_writable(arguments.output)
    cases = list(arguments.read_cases().cases)
    start = Rubric.load(arguments.start) if arguments.start else DEFAULT_RUBRIC
    name = (arguments.name or Path(arguments.output or arguments.data).stem).strip()
    start = replace(start, name=name or start.name)
    start.to_toml()  # missing requirements are reported before anything is paid for
    induced = asyncio.run(_induce(cases, start, arguments))
    _write_rubric(induced, arguments)
    _report_rubric(induced)
    if induced.stop_reason:
        warning(f"ended early: {induced.stop_reason}", "raise the budget or the deadline, or check the model")
        return FAILED
    return OK if induced.improved else UNPROVEN


async def _induce(cases: list[Any], start: Rubric, arguments: RubricArguments) -> InducedRubric:
    writer = await find_model(arguments.model)
    if writer is None:
        raise ConfigError("a model must propose the criteria and none was found: give --model; `redraft models` lists them")
    judge = parse_model(arguments.judge) or None
    announce_sources(writer, judge)
    session = Session(arguments.session_options(cache={}), writer, None, judge)

    def report(what: str, agreement: Any) -> None:
        click.echo(f"redraft: {what}: {strip_control_sequences(format_headline(agreement))}", err=True)

    try:
        return await RubricInduction(session, cases, start, arguments.rounds, report).run()
    finally:
        await session.close()


def _write_rubric(induced: InducedRubric, arguments: RubricArguments) -> None:
    """Write or print the rubric. A search that ended early without an improvement leaves an existing file alone."""
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
    verdict = f"better than the start{basis}" if induced.improved else "nothing was better than the start, which is kept"
    best, start = (
        (induced.selection_agreement, induced.round_agreements[0])
        if induced.stop_reason
        else (induced.test_agreement, induced.start_agreement)
    )
    comparison = f"{format_headline(best)}; the start: {format_headline(start)}"
    click.echo(f"redraft: {verdict}: {strip_control_sequences(comparison)}", err=True)
