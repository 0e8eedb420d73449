"""Validation cards: what was measured of a grader, as JSON, stored under the grader's fingerprint.

A card is about the grader as it was: its rubric, its prompts, its settings and the model that answered. When one of these changes,
so does the fingerprint, and the card is stale.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..core.serialize import object_from_json, unpack
from ..core.type_checks import field_validators
from ..documents import read_small_text
from ..errors import StoreError
from ..storage import write_atomic
from ..storage.paths import data_dir
from ..storage.secure_files import make_folder
from .measure import ClassRates, Measure

SCHEMA = 2
RECORDED_FINGERPRINT = "recorded"  # replaces the fingerprint on cards of recorded outputs


@dataclass(frozen=True)
class Card:
    """One validation of one grader. `date` is the day (ISO 8601, UTC), `rows` the number of cases of `data` that were judged.

    `unjudged` counts the cases without a verdict (an outage, the budget, no recorded output), `skipped_rows` the rows of `data`
    that could not be understood. `source` is "live", or the format in which recorded outputs were read. `sha256` is that of the
    labelled file.
    """

    grader: str
    fingerprint: str
    model: str
    date: str
    data: str
    sha256: str
    source: str
    kind: str
    rows: int
    unjudged: int
    headline: Measure
    skipped_rows: int = 0
    measures: tuple[Measure, ...] = ()
    groups: tuple[Measure, ...] = ()
    class_rates: tuple[ClassRates, ...] = ()
    confusion: Mapping[str, Mapping[str, int]] | None = None
    parse_errors: Mapping[str, int] | None = None
    usage: Mapping[str, Any] | None = None
    attacks: Mapping[str, Any] | None = None

    @property
    def trusted(self) -> bool:
        """Whether the grader is better than chance, with 95 % confidence."""
        return self.headline.beats_chance

    def summary(self) -> str:
        """Return the headline in words: "preference 0.81 [0.76, 0.85] of 300 rows (chance 0.50), pairs.jsonl, 2026-05-01"."""
        return f"{format_measure(self.headline)}, {self.data}, {self.date}"

    def to_json(self) -> str:
        return json.dumps({"redraft_card": SCHEMA, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Card:
        """Return the card that `to_json` wrote. Raises StoreError for anything else."""
        try:
            data = object_from_json(text)
            if (version := data.pop("redraft_card")) != SCHEMA:
                raise ValueError(
                    f"it has schema {version!r:.20}, and this release reads schema {SCHEMA}; validate the grader again"
                )
            data["headline"] = unpack(Measure, data["headline"])
            for name in ("measures", "groups"):
                data[name] = tuple(unpack(Measure, row) for row in data[name])
            data["class_rates"] = tuple(unpack(ClassRates, row) for row in data["class_rates"])
            values = {name: data[name] for name in field_validators(cls).keys() & data.keys()}
            if invalid := next((name for name, value in values.items() if not field_validators(cls)[name](value)), None):
                raise ValueError(f"{invalid} cannot be {values[invalid]!r:.80}")
            return cls(**values)
        except (StoreError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"{where} is not a validation card: {error}") from error


def format_measure(measure: Measure) -> str:
    """Return a measure in words, with its interval, rows and chance."""
    value = "unknown" if measure.value is None else f"{measure.value:.2f}"
    interval = "" if measure.low is None or measure.high is None else f" [{measure.low:.2f}, {measure.high:.2f}]"
    chance = "" if measure.chance is None else f" (chance {measure.chance:.2f})"
    return f"{measure.name} {value}{interval} of {measure.n} rows{chance}"


@dataclass(frozen=True)
class CardStore:
    """A folder of cards, with a subfolder for every validation: one grader and model on one data set."""

    folder: Path

    @classmethod
    def in_folder(cls, folder: str | Path | None) -> CardStore:
        """Return the store in `folder`; with None, the user's own."""
        return cls(Path(folder) if folder else data_dir() / "cards")

    def card_folder(self, grader: str, fingerprint: str, data: str, sha256: str) -> Path:
        """Return the folder of one validation: of one version of a grader, on one data set read in one way."""
        return self.folder / f"{_slug(grader)}-{fingerprint[:8]}-{_slug(data)}-{sha256[:8]}"

    @cached_property
    def cards(self) -> list[Card]:
        """All cards, the newest first. A card that cannot be read is left out, with a warning."""
        cards = [card for path in sorted(self.folder.glob("*/card.json")) if (card := _read_card(path))]
        return sorted(cards, key=lambda card: card.date, reverse=True)

    def trust_status(self, grader: str, fingerprint: str) -> TrustStatus:
        """Return what the cards say about a grader as it is now: the one of the most rows. Cards of recordings do not count."""
        own = [
            c for c in self.cards if c.fingerprint != RECORDED_FINGERPRINT and (c.grader == grader or c.fingerprint == fingerprint)
        ]
        current = [card for card in own if card.fingerprint == fingerprint]
        if not own:
            return TrustStatus(grader, "none", "it was never validated")
        if not current:
            explanation = f"it was validated on {own[0].date}, and its rubric, prompt, settings or model have changed since"
            return TrustStatus(grader, "stale", explanation, own[0])
        card = max(current, key=lambda card: card.rows)
        if not card.trusted:
            return TrustStatus(grader, "chance", f"it may be no better than chance: {card.summary()}", card)
        return TrustStatus(grader, "trusted", card.summary(), card)


def _read_card(path: Path) -> Card | None:
    try:
        return Card.from_json(read_small_text(path), str(path))
    except (OSError, ValueError, StoreError) as error:
        warnings.warn(f"a card is left out: {path}: {error}", stacklevel=2)
        return None


@dataclass(frozen=True)
class TrustStatus:
    """What is known of a grader: "trusted", "chance" (its interval includes chance), "stale", "none", or "deterministic".

    The last is for requirements and Redraft's graders that ask no model: they need no validation card.
    """

    grader: str
    status: str
    explanation: str
    card: Card | None = None

    @property
    def trusted(self) -> bool:
        return self.status in {"trusted", "deterministic"}

    def to_data(self) -> dict[str, Any]:
        """Return the status as plain data for a trace, with the headline of the card."""
        data: dict[str, Any] = {"status": self.status, "explanation": self.explanation}
        if self.card:
            data |= {
                "headline": asdict(self.card.headline),
                "data": self.card.data,
                "date": self.card.date,
                "model": self.card.model,
            }
        return data


def write_card_file(path: Path, text: str) -> None:
    """Write a file of a card, and its folder. Raises StoreError if that fails."""
    try:
        make_folder(path.parent)
        write_atomic(path, text, follow=False)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror}; the verdicts are stored, the same command resumes"
        ) from error


def _slug(text: str) -> str:
    """Return the text as a safe part of a file name."""
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")[:48] or "unnamed"
