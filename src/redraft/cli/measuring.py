"""The work behind `redraft validate`: read, ask, measure, file the card, show it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

import click

from ..errors import ConfigError
from ..graders import Judge, Rubric, as_grader
from ..options import Options
from ..session import Session
from ..text import strip_control_sequences
from ..validation import card as cards
from ..validation import recorded_formats as recorded
from ..validation.attacks import read_attacks
from ..validation.harness import JudgedCase
from ..validation.labelled import LabelledCases, read_cases, read_verdicts
from ..validation.report import ReportConfig
from ..validation.run import LabelledData, LiveConfig, ValidationResult, validate
from ..validation.run import validate_recorded as measure_recorded
from .exits import FAILED, INTERRUPTED, OK, complain
from .origins import announce
from .wishes import budget_of, model_found, prices_of

UNPROVEN = 3
SHOWN = 20  # rows that are left out, one by one
GOES_ON = "the same command, without --afresh, goes on from here"
EVERY = 2.0  # seconds between two lines of progress


def measure(typed: Mapping[str, Any]) -> int:
    """Validate a grader; the exit code."""
    columns, scale = columns_of(typed), _scale(typed["scale"])
    if typed["recorded"]:
        recorded.find_format(typed["recorded"])
    if typed["grader"] and not typed["recorded"]:
        as_grader(typed["grader"])
    labelled = read_cases(typed["data"], columns, kind=typed["kind"], limit=typed["limit"])
    say_what_was_read(labelled)
    if labelled.scale and not typed["scale"]:
        low, high = labelled.scale
        click.echo(f"redraft: people gave {low:g} to {high:g}; with --scale LOW-HIGH leniency is measured, too", err=True)
    if labelled.ignored_filters and not typed["outputs"]:
        raise ConfigError(f"where:{labelled.ignored_filters[0]}: no row has such a column")
    reading = ReportConfig(typed["threshold"], scale)
    digest = _digest(typed["data"], {**columns, "kind": str(typed["kind"])})
    data = LabelledData(labelled.cases, Path(typed["data"]).name, digest, len(labelled.skipped_rows), reading, labelled.column_list)
    shelf = cards.CardStore.in_folder(typed["cards"])
    try:
        found = (
            _recorded(data, typed, labelled.ignored_filters, shelf) if typed["recorded"] else asyncio.run(_live(data, typed, shelf))
        )
    except (KeyboardInterrupt, asyncio.CancelledError):
        complain("interrupted; what was answered is kept", GOES_ON)
        return INTERRUPTED
    from ..validation.card_page import write_card

    if not write_card(found):
        complain("the card on file is about more rows of the same data, and is kept")
    _show(found, typed)
    if found.stop_reason:
        complain(f"ended early: {found.stop_reason}; of {found.card.unjudged} rows nothing is known", GOES_ON)
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


def _scale(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    low, _, high = text.partition("-")
    try:
        scale = float(low), float(high)
    except ValueError:
        scale = 0.0, 0.0
    if not scale[0] < scale[1] or not all(map(isfinite, scale)):
        raise click.UsageError(f"--scale {text}: a scale is given as LOW-HIGH, such as 1-5")
    return scale


def _digest(path: str, columns: Mapping[str, str]) -> str:
    told = hashlib.sha256(json.dumps(sorted(columns.items())).encode())
    with Path(path).open("rb") as held:
        while block := held.read(1 << 20):
            told.update(block)
    return told.hexdigest()


def say_what_was_read(labelled: LabelledCases) -> None:
    """How the columns were understood, and which rows were not."""
    for line in labelled.column_notes:
        click.echo(f"redraft: {strip_control_sequences(line)}", err=True)
    if labelled.skipped_rows:
        for row in labelled.skipped_rows[:SHOWN]:
            complain(f"left out: {row.location}: {row.message}")
        complain(f"{len(labelled.skipped_rows)} rows were left out")


async def _live(data: LabelledData, typed: Mapping[str, Any], shelf: cards.CardStore) -> ValidationResult:
    limits = {name: typed[name] for name in ("max_in_flight", "deadline", "timeout")}
    options = Options(budget=budget_of(typed), prices=prices_of(typed), **limits)
    model = await model_found(typed["judge"] or typed["model"])
    announce(model)
    desk = Session(options, None, _grader(typed), model)
    attacks = read_attacks(typed["attacks"]) if typed["attacks"] else []
    with _progress(len(data.cases) * typed["looks"] + len(attacks), typed) as told:
        live = LiveConfig(typed["looks"], attacks, typed["afresh"], told)
        try:
            return await validate(data, desk, shelf, live)
        finally:
            await desk.close()


def _grader(typed: Mapping[str, Any]) -> Any:
    if typed["rubric"]:
        rubric = Rubric.load(typed["rubric"])
        return Judge(rubric, rubric.name)
    return typed["grader"]


def _recorded(data: LabelledData, typed: Mapping[str, Any], ignored: Sequence[str], shelf: cards.CardStore) -> ValidationResult:
    form = typed["recorded"]
    if typed["attacks"]:
        raise ConfigError("--attacks need a live grader: recorded outputs cannot be asked again")
    path, columns = typed["outputs"] or typed["data"], columns_of(typed)
    verdicts = read_verdicts(path, data.cases, columns, lambda text: recorded.parse_output(text, form), ignored)
    looks = max((v.repeat for v in verdicts), default=0) + 1
    if looks > 1:
        complain(f"up to {looks} outputs on the same row are taken as looks of one judge", "several judges: -c where:COLUMN=VALUE")
    name = typed["grader"] or Path(typed["outputs"] or typed["data"]).stem
    return measure_recorded(data, verdicts, shelf, grader=name, output_format=form)


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

        def advance(_: JudgedCase) -> None:
            bar.update(task, advance=1, description="judging" if next(left, 0) else "measuring")

        yield advance


@dataclass
class _Lines:
    """How far it is, as a JSON line now and then."""

    total: int
    done: int = 0
    lost: int = 0
    told: float = 0.0

    def __call__(self, judged: JudgedCase) -> None:
        self.done += 1
        self.lost += bool(judged.outage)
        if self.done == self.total or monotonic() - self.told > EVERY:
            self.told = monotonic()
            click.echo(json.dumps({"event": "judged", "done": self.done, "of": self.total, "lost": self.lost}), err=True)


def _show(found: ValidationResult, typed: Mapping[str, Any]) -> None:
    if typed["as_json"]:
        click.echo(found.card.to_json(), nl=False)
        return
    from .carddrawing import draw

    draw(found)
