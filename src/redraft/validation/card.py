"""What was measured of a grader, kept: a card of Markdown and JSON, filed under the grader's fingerprint.

A card speaks for the grader as it was: for its rubric, its prompts, its settings and the model that answered. When one
of these changes the fingerprint does, and the card is stale.
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
from ..errors import StoreError
from ..small_files import read_small_text
from ..storage import write_atomic
from ..storage.paths import data_dir
from ..storage.secure_files import make_folder
from .estimates import ClassRates, Measure

SCHEMA = 1
RECORDED_FINGERPRINT = "recorded"  # stands for the fingerprint where recorded outputs were measured


@dataclass(frozen=True)
class Card:
    """One validation of one grader. `made` is the day (ISO 8601, UTC), `rows` how many cases of `data` were judged.

    `lost` counts the cases of which nothing is known (the network, the money, no recorded output), `skipped` the rows of
    `data` that could not be understood. `source`: "live", or the format that
    recorded outputs were read in. `sha256` is that of the labelled file.
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
        """Whether the grader was found to be better than chance, for sure."""
        return self.headline.beats_chance

    def summary(self) -> str:
        """The headline in words: "preference 0.81 [0.76, 0.85] of 300 rows (chance 0.50), pairs.jsonl, 2026-05-01"."""
        return f"{format_measure(self.headline)}, {self.data}, {self.date}"

    def to_json(self) -> str:
        return json.dumps({"redraft_card": SCHEMA, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Card:
        """The card that `to_json` wrote. Raises StoreError for anything else."""
        try:
            data = object_from_json(text)
            if data.pop("redraft_card") != SCHEMA:
                raise ValueError(f"this release reads cards of schema {SCHEMA}")
            data["headline"] = unpack(Measure, data["headline"])
            for name in ("measures", "groups"):
                data[name] = tuple(unpack(Measure, row) for row in data[name])
            data["rates"] = tuple(unpack(ClassRates, row) for row in data["rates"])
            held = {name: data[name] for name in field_validators(cls).keys() & data.keys()}
            if wrong := next((name for name, value in held.items() if not field_validators(cls)[name](value)), None):
                raise ValueError(f"{wrong} cannot be {held[wrong]!r:.80}")
            return cls(**held)
        except (StoreError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"{where} is no card of a grader: {error}") from error


def format_measure(measure: Measure) -> str:
    """A measure in words, with its interval, rows and chance."""
    value = "unknown" if measure.value is None else f"{measure.value:.2f}"
    interval = "" if measure.low is None or measure.high is None else f" [{measure.low:.2f}, {measure.high:.2f}]"
    chance = "" if measure.chance is None else f" (chance {measure.chance:.2f})"
    return f"{measure.name} {value}{interval} of {measure.n} rows{chance}"


@dataclass(frozen=True)
class CardStore:
    """A folder of cards: in it a folder for every grader, model and data set, with all that a validation left."""

    folder: Path

    @classmethod
    def in_folder(cls, folder: str | Path | None) -> CardStore:
        """The shelf in `folder`; None is the user's own."""
        return cls(Path(folder) if folder else data_dir() / "cards")

    def card_folder(self, grader: str, fingerprint: str, data: str, sha256: str) -> Path:
        """The folder of one validation: of one grader as it is, on one set of data as it is read."""
        return self.folder / f"{_slug(grader)}-{fingerprint[:8]}-{_slug(data)}-{sha256[:8]}"

    @cached_property
    def cards(self) -> list[Card]:
        """All cards, the newest first. One that cannot be read is warned of and left out."""
        found = [card for path in sorted(self.folder.glob("*/card.json")) if (card := _read_card(path))]
        return sorted(found, key=lambda card: card.date, reverse=True)

    def trust_status(self, grader: str, fingerprint: str) -> TrustStatus:
        """What the cards say of a grader as it is now; of several, that of the most rows. Recorded outputs vouch for nobody."""
        own = [
            c for c in self.cards if c.fingerprint != RECORDED_FINGERPRINT and (c.grader == grader or c.fingerprint == fingerprint)
        ]
        current = [card for card in own if card.fingerprint == fingerprint]
        if not own:
            return TrustStatus(grader, "none", "it was never validated")
        if not current:
            words = f"it was validated as it was on {own[0].date}; rubric, prompt or model have changed"
            return TrustStatus(grader, "stale", words, own[0])
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
    """What is known of a grader: "trusted", "chance" (its interval includes it), "stale", "none", or "computes".

    The last is for requirements and our own graders that compute, without a card: they measure what they say, always the same.
    """

    grader: str
    status: str
    explanation: str
    card: Card | None = None

    @property
    def trusted(self) -> bool:
        return self.status in {"trusted", "computes"}

    def to_data(self) -> dict[str, Any]:
        """The same as plain data, for a trace: the headline of the card, not all of it."""
        data: dict[str, Any] = {"status": self.status, "words": self.explanation}
        if self.card:
            data |= {
                "headline": asdict(self.card.headline),
                "data": self.card.data,
                "made": self.card.date,
                "model": self.card.model,
            }
        return data


def write_card_file(path: Path, text: str) -> None:
    """Write a file of a card, folder and all. Raises StoreError where it cannot be."""
    try:
        make_folder(path.parent)
        write_atomic(path, text, follow=False)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}; the verdicts are kept, the same command goes on") from error


def _slug(text: str) -> str:
    """A name that is safe as part of a file name."""
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")[:48] or "unnamed"
