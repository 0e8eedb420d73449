"""`redraft rubric`: induce a rubric from labelled data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...errors import ConfigError
from ...text import strip_control_sequences
from .. import options
from ..config import ConfiguredCommand
from ..errors import FAILED, OK, UNPROVEN
from ..judging import JudgingRequest, column_option, limit_option, max_in_flight_option
from ..output import check_writable, print_answer, warning

if TYPE_CHECKING:
    from ...graders import Rubric
    from ...validation.rubric_induction import InducedRubric

EPILOG = """\b
Examples:
  redraft rubric --from labelled.jsonl --model openai:gpt-4o -o rubric.toml
  redraft rubric --from pairs.csv --start letters.toml --judge ollama:llama3.2 -o letters2.toml
  redraft validate other.jsonl --rubric rubric.toml

\b
The rows are split three ways: examples for the model that proposes criteria, rows to
choose between proposals, and rows for the final report. The search stops when agreement
with people no longer rises.
Exit codes: 0 a better rubric was found, 1 failed or ended early, 2 usage, 3 none was
better on the rows held out for the report: the rubric that it started from is written.
"""


@dataclass(frozen=True, kw_only=True)
class RubricRequest(JudgingRequest):
    """The parameters of `redraft rubric`, named after its options."""

    start: str | None
    output: str | None
    name: str | None
    rounds: int


@click.command(cls=ConfiguredCommand, epilog=EPILOG)
@click.option(
    "--from", "data", type=click.Path(exists=True, dir_okay=False), required=True, metavar="FILE", help="Labelled answers."
)
@click.option(
    "--start",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="The rubric to start from. Default: that of the built-in judge.",
)
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False), metavar="FILE", help="Write the rubric (TOML) to FILE instead of stdout."
)
@click.option("--name", metavar="NAME", help="Name of the rubric. Default: the name of the file.")
@column_option
@click.option(
    "--kind", type=click.Choice(["score", "pass", "pair"]), help="What the labels are. Needed where the data do not tell."
)
@limit_option
@click.option("--rounds", type=options.COUNT, default=4, show_default=True, metavar="N", help="Try at most N proposals.")
@options.setting("--model", metavar="MODEL", help="The model that proposes criteria. Default: look for one.")
@options.setting("--judge", metavar="MODEL", help="The model that judges by them. Default: the model that proposes.")
@max_in_flight_option
@options.spending
@options.timeout
@options.as_json
@options.debug
def rubric(**parameters: Any) -> int:
    """Find criteria by which a judge agrees with people, and write them as a rubric."""
    request = RubricRequest(**parameters)
    if request.output:
        check_writable(request.output)
    import asyncio

    from ...graders import Rubric
    from ...graders.rubric import DEFAULT_RUBRIC

    cases = list(request.read_cases().cases)
    start = Rubric.load(request.start) if request.start else DEFAULT_RUBRIC
    name = (request.name or Path(request.output or request.data).stem).strip()
    start = replace(start, name=name or start.name)
    start.to_toml()  # missing requirements are reported before anything is paid
    found = asyncio.run(_induce(cases, start, request))
    _write(found, request)
    _report(found)
    if found.stop_reason:
        warning(f"ended early: {found.stop_reason}", "raise the budget or the deadline, or check the model")
        return FAILED
    return OK if found.improved else UNPROVEN


async def _induce(cases: list[Any], start: Rubric, request: RubricRequest) -> InducedRubric:
    from ...session import Session
    from ...validation.card_page import format_headline
    from ...validation.rubric_induction import RubricInduction
    from ..request import announce_sources, find_model, parse_model

    writer = await find_model(request.model)
    if writer is None:
        raise ConfigError("a model must propose the criteria and none was found: give --model; `redraft models` lists them")
    judge = parse_model(request.judge) or None
    announce_sources(writer, judge)
    session = Session(request.session_options(cache={}), writer, None, judge)

    def report(what: str, agreement: Any) -> None:
        click.echo(f"redraft: {what}: {strip_control_sequences(format_headline(agreement))}", err=True)

    try:
        return await RubricInduction(session, cases, start, request.rounds, report).run()
    finally:
        await session.close()


def _write(found: InducedRubric, request: RubricRequest) -> None:
    """Write or print the rubric. A search that ended early without an improvement leaves an existing file alone."""
    from ...storage import write_atomic
    from ...validation.rubric_induction import to_toml

    text = to_toml(found, Path(request.data).name)
    worth_writing = found.improved or not found.stop_reason
    if request.output and worth_writing:
        write_atomic(request.output, text)
    if request.as_json:
        click.echo(json.dumps({**asdict(found), "rubric": text}, indent=2))
    elif worth_writing and not request.output:
        print_answer(text)


def _report(found: InducedRubric) -> None:
    """Compare the rubric with the one that the search started from."""
    from ...validation.card_page import format_headline

    if found.note:
        warning(found.note)
    basis = " on the rows it was chosen by" if found.stop_reason else ""
    verdict = f"better than the start{basis}" if found.improved else "nothing was better than the start, which is kept"
    best, start = (
        (found.selection_agreement, found.round_agreements[0])
        if found.stop_reason
        else (found.test_agreement, found.start_agreement)
    )
    comparison = f"{format_headline(best)}; the start: {format_headline(start)}"
    click.echo(f"redraft: {verdict}: {strip_control_sequences(comparison)}", err=True)
