"""The work behind `redraft rubric`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from ..casting import Desk
from ..core.errors import ConfigError
from ..graders import Rubric
from ..graders.rubric import DEFAULT
from ..options import Options
from ..text import plain
from ..validation.estimates import Measure
from ..validation.induction import Induced, Induction, as_toml
from ..validation.labelled import read_cases
from ..validation.page import shown
from . import files
from .exits import OK
from .measuring import UNPROVEN, columns_of, say_what_was_read
from .wishes import budget_of, model_found, model_named


def induce(typed: Mapping[str, Any]) -> int:
    """Draw a rubric from data; the exit code."""
    labelled = read_cases(typed["data"], columns_of(typed), kind=typed["kind"], limit=typed["limit"])
    say_what_was_read(labelled)
    start = Rubric.load(typed["start"]) if typed["start"] else DEFAULT
    start = replace(start, name=typed["name"] or Path(typed["output"] or typed["data"]).stem)
    found = asyncio.run(_induced(list(labelled.cases), start, typed))
    _hand_over(found, typed)
    return OK if found.improved else UNPROVEN


async def _induced(cases: list[Any], start: Rubric, typed: Mapping[str, Any]) -> Induced:
    writer = await model_found(typed["model"])
    if writer is None:
        raise ConfigError("a model must propose the criteria and none was found: give --model; `redraft models` tells more")
    options = Options(budget=budget_of(typed), max_in_flight=typed["max_in_flight"], deadline=typed["deadline"], cache={})
    desk = Desk(options, writer, None, model_named(typed["judge"]) or None)
    try:
        return await Induction(desk, cases, start, typed["rounds"], _tell).run()
    finally:
        await desk.close()


def _tell(what: str, agreement: Measure) -> None:
    click.echo(f"redraft: {what}: {plain(shown(agreement))}", err=True)


def _hand_over(found: Induced, typed: Mapping[str, Any]) -> None:
    text = as_toml(found, Path(typed["data"]).name)
    if typed["output"]:
        files.write_whole(typed["output"], text)
    if typed["as_json"]:
        measures = {"reached": asdict(found.reached), "began": asdict(found.began), "rounds": [asdict(m) for m in found.rounds]}
        click.echo(json.dumps({"improved": found.improved, "rubric": text, **measures}, indent=2))
    elif not typed["output"]:
        click.echo(text, nl=False)
    verdict = "better than the start" if found.improved else "nothing was better than the start, which is kept"
    click.echo(f"redraft: {verdict}: {plain(shown(found.reached))}; the start: {plain(shown(found.began))}", err=True)
