"""The work behind `redraft rubric`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from ..errors import ConfigError
from ..graders import Rubric
from ..graders.rubric import DEFAULT_RUBRIC
from ..options import Options
from ..session import Session
from ..storage import write_atomic
from ..text import strip_control_sequences
from ..validation.card_page import format_headline
from ..validation.estimates import Measure
from ..validation.labelled import read_cases
from ..validation.rubric_induction import InducedRubric, RubricInduction, to_toml
from . import files
from .exits import FAILED, OK, complain
from .measuring import UNPROVEN, columns_of, say_what_was_read
from .origins import announce
from .wishes import budget_of, model_found, model_named, prices_of


def induce(typed: Mapping[str, Any]) -> int:
    """Draw a rubric from data; the exit code."""
    labelled = read_cases(typed["data"], columns_of(typed), kind=typed["kind"], limit=typed["limit"])
    say_what_was_read(labelled)
    start = Rubric.load(typed["start"]) if typed["start"] else DEFAULT_RUBRIC
    start = replace(start, name=_named(typed) or start.name)
    start.to_toml()  # what is missing for it is said before anything is paid
    found = asyncio.run(_induced(list(labelled.cases), start, typed))
    _hand_over(found, typed)
    _say(found)
    if found.stop_reason:
        complain(f"ended early: {found.stop_reason}", "give it more money or time, or look at the model")
        return FAILED
    return OK if found.improved else UNPROVEN


def _named(typed: Mapping[str, Any]) -> str:
    return (typed["name"] or Path(typed["output"] or typed["data"]).stem).strip()


async def _induced(cases: list[Any], start: Rubric, typed: Mapping[str, Any]) -> InducedRubric:
    writer = await model_found(typed["model"])
    if writer is None:
        raise ConfigError("a model must propose the criteria and none was found: give --model; `redraft models` tells more")
    limits = {name: typed[name] for name in ("max_in_flight", "deadline", "timeout")}
    options = Options(budget=budget_of(typed), prices=prices_of(typed), cache={}, **limits)
    judge = model_named(typed["judge"]) or None
    announce(writer, judge)
    desk = Session(options, writer, None, judge)
    try:
        return await RubricInduction(desk, cases, start, typed["rounds"], _tell).run()
    finally:
        await desk.close()


def _tell(what: str, agreement: Measure) -> None:
    click.echo(f"redraft: {what}: {strip_control_sequences(format_headline(agreement))}", err=True)


def _hand_over(found: InducedRubric, typed: Mapping[str, Any]) -> None:
    """Write or print it. A search that ended early and found nothing better leaves what there was alone."""
    text = to_toml(found, Path(typed["data"]).name)
    worth_it = found.improved or not found.stop_reason
    if typed["output"] and worth_it:
        write_atomic(typed["output"], text)
    if typed["as_json"]:
        click.echo(json.dumps({**asdict(found), "rubric": text}, indent=2))
    elif worth_it and not typed["output"]:
        files.show_answer(text)


def _say(found: InducedRubric) -> None:
    if found.note:
        complain(found.note)
    by = " by the rows it was chosen by" if found.stop_reason else ""
    verdict = f"better than the start{by}" if found.improved else "nothing was better than the start, which is kept"
    one, start = (
        (found.selection_agreement, found.round_agreements[0])
        if found.stop_reason
        else (found.test_agreement, found.start_agreement)
    )
    click.echo(
        f"redraft: {verdict}: {strip_control_sequences(format_headline(one))}; the start: {strip_control_sequences(format_headline(start))}",
        err=True,
    )
