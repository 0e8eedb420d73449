"""The work behind `redraft validate`: read, ask, measure, file the card, show it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import click

from ..casting import Desk
from ..core.errors import ConfigError
from ..graders import Judge, Rubric, recorded
from ..options import Options
from ..text import plain
from ..validation import cards
from ..validation.attacks import read_attacks
from ..validation.job import Data, Live, Validated, validate
from ..validation.job import recorded as measure_recorded
from ..validation.judging import Judged
from ..validation.labelled import Labelled, read_cases, read_verdicts
from .exits import FAILED, INTERRUPTED, OK, complain
from .wishes import budget_of, model_found

UNPROVEN = 3
EVERY = 2.0  # seconds between two lines of progress


def measure(typed: Mapping[str, Any]) -> int:
    """Validate a grader; the exit code."""
    columns = columns_of(typed)
    labelled = read_cases(typed["data"], columns, kind=typed["kind"], limit=typed["limit"])
    say_what_was_read(labelled)
    data = Data(labelled.cases, Path(typed["data"]).name, _digest(typed["data"], columns))
    shelf = cards.Shelf.at(typed["cards"])
    try:
        found = _recorded(data, typed, columns, shelf) if typed["recorded"] else asyncio.run(_live(data, typed, shelf))
    except (KeyboardInterrupt, asyncio.CancelledError):
        complain("interrupted; what was answered is kept", "the same command goes on from here")
        return INTERRUPTED
    from ..validation.page import file_card

    place = file_card(found)
    _show(found, place, typed)
    if found.ends:
        complain(f"ended early: {found.ends}", "the same command with more money or time goes on from here")
        return FAILED
    return OK if found.card.trusted else UNPROVEN


def columns_of(typed: Mapping[str, Any]) -> dict[str, str]:
    """The columns that were named. Raises UsageError."""
    return dict(_column(text) for text in typed["columns"])


def _column(text: str) -> tuple[str, str]:
    ours, equals, theirs = text.partition("=")
    if not equals or not ours or not theirs:
        raise click.UsageError(f"-c {text}: a column is given as OURS=THEIRS, such as -c prompt=question")
    return ours.strip(), theirs.strip()


def _digest(path: str, columns: Mapping[str, str]) -> str:
    told = hashlib.sha256(json.dumps(sorted(columns.items())).encode())
    with Path(path).open("rb") as held:
        while block := held.read(1 << 20):
            told.update(block)
    return told.hexdigest()


def say_what_was_read(labelled: Labelled) -> None:
    """How the columns were understood, and which rows were not."""
    for line in labelled.recognised:
        click.echo(f"redraft: {plain(line)}", err=True)
    if labelled.skipped:
        first = "; ".join(f"{row.place}: {row.message}" for row in labelled.skipped[:3])
        complain(f"{len(labelled.skipped)} rows were left out: {first}{' ...' if len(labelled.skipped) > 3 else ''}")


async def _live(data: Data, typed: Mapping[str, Any], shelf: cards.Shelf) -> Validated:
    options = Options(budget=budget_of(typed), max_in_flight=typed["max_in_flight"], deadline=typed["deadline"])
    desk = Desk(options, None, _grader(typed), await model_found(typed["judge"] or typed["model"]))
    attacks = read_attacks(typed["attacks"]) if typed["attacks"] else []
    with _progress(len(data.cases) * typed["looks"] + len(attacks), typed) as told:
        live = Live(typed["looks"], attacks, typed["afresh"], typed["threshold"], told)
        try:
            return await validate(data, desk, shelf, live)
        finally:
            await desk.close()


def _grader(typed: Mapping[str, Any]) -> Any:
    if typed["rubric"]:
        rubric = Rubric.load(typed["rubric"])
        return Judge(rubric, rubric.name)
    return typed["grader"]


def _recorded(data: Data, typed: Mapping[str, Any], columns: Mapping[str, str], shelf: cards.Shelf) -> Validated:
    form = typed["recorded"]
    if typed["attacks"]:
        raise ConfigError("--attacks need a live grader: recorded outputs cannot be asked again")
    verdicts = read_verdicts(typed["outputs"] or typed["data"], data.cases, columns, lambda text: recorded.read(text, form))
    name = typed["grader"] or Path(typed["outputs"] or typed["data"]).stem
    return measure_recorded(data, verdicts, shelf, grader=name, form=form, threshold=typed["threshold"])


@contextmanager
def _progress(total: int, typed: Mapping[str, Any]) -> Iterator[Any]:
    """Tells of the answers: a bar on a terminal, else a JSON line every other second."""
    if not sys.stderr.isatty():
        yield _Lines(total)
        return
    from rich.progress import Progress

    from .live import console

    with Progress(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("judging", total=total)
        left = iter(range(total - 1, -1, -1))

        def advance(_: Judged) -> None:
            bar.update(task, advance=1, description="judging" if next(left, 0) else "measuring")

        yield advance


@dataclass
class _Lines:
    """How far it is, as a JSON line now and then."""

    total: int
    done: int = 0
    lost: int = 0
    told: float = 0.0

    def __call__(self, judged: Judged) -> None:
        self.done += 1
        self.lost += bool(judged.lost)
        if self.done == self.total or monotonic() - self.told > EVERY:
            self.told = monotonic()
            click.echo(json.dumps({"event": "judged", "done": self.done, "of": self.total, "lost": self.lost}), err=True)


def _show(found: Validated, place: Path, typed: Mapping[str, Any]) -> None:
    if typed["as_json"]:
        click.echo(found.card.to_json(), nl=False)
        return
    from .carddrawing import draw

    draw(found, place)
