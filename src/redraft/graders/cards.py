"""Validation cards: what was measured of a grader, where it is stored, and whether the grader may
be trusted.

A card is JSON, stored under the grader's fingerprint. It is about the grader as it was: its rubric,
its prompts, its settings and the model that answered. When one of these changes, so does the
fingerprint, and the card is stale.

Before a run spends anything, `with_trust` looks up the cards of its graders. Requirements,
Redraft's graders that ask no model, and graders made of nothing else need no card; if there is one,
it counts. A function of the user needs a card, as any grader does: it may measure the wrong thing.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from ..base.documents import read_small_text
from ..base.text import format_estimate, pluralize
from ..errors import ConfigError, StoreError
from ..loop.serialize import field_validators, object_from_json, unpack
from ..loop.trace import PanelGrader
from ..plans.quality.calibration import Calibration
from ..storage import write_atomic
from ..storage.secure_files import cards_folder, make_folder
from .traits import GraderTraits

# ---- measures

MIN_ROWS = 10  # fewer rows prove nothing
MIN_CALIBRATION_LABELS = 100  # labels with scores from which a card holds a calibration
MIN_NOISE_ANSWERS = (
    50  # answers that were scored repeatedly, from which the noise is known well enough for priors
)
NOISE = "noise sigma"  # the name of the measure of the noise of scores


@dataclass(frozen=True, slots=True)
class Measure:
    """A value, its 95% interval, the number of rows, and the value of a grader that guesses. None
    means unknown.

    `clusters` is the number of clusters that the rows form, None if each row counts on its own.
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    chance: float | None = None
    about: str = ""
    clusters: int | None = None

    @property
    def beats_chance(self) -> bool:
        """Whether the whole interval lies above chance, on enough rows; the rows of one cluster
        count as one.
        """
        return (
            (self.n if self.clusters is None else self.clusters) >= MIN_ROWS
            and self.low is not None
            and self.chance is not None
            and self.low > self.chance
        )


@dataclass(frozen=True, slots=True)
class ClassRates:
    """Precision, recall and F1 of one class, each None if unknown, and the number of rows that
    truly have it.
    """

    name: str
    precision: float | None
    recall: float | None
    f1: float | None
    n: int


# ---- cards

SCHEMA = 2
LATER_FIELDS = {
    "calibration",
    "repeated_rows",
    "clusters",
    "parts",
}  # written where they are set, so that earlier releases read the other cards
# what a grader is made of: its criteria, all else but the model, and the model that answers
PARTS = {"rubric": "its rubric", "judge": "its code, prompt or a setting", "model": "its model"}
RECORDED_FINGERPRINT = "recorded"  # replaces the fingerprint on cards of recorded outputs


@dataclass(frozen=True)
class Card:
    """One validation of one grader. `date` is the day (ISO 8601, UTC), `rows` the number of cases
    of `data` that were judged.

    `unjudged` counts the cases without a verdict (an outage, the budget, no recorded output),
    `skipped_rows` the rows of `data` that could not be understood, `repeated_rows` those that were
    equal to another one and do not count. `source` is "live", or the format in which recorded
    outputs were read. `sha256` belongs to the labelled file. `calibration` maps scores to people's
    labels (kinds score and pass, 100 labels or more). `parts` are hashes of what the fingerprint is
    made of, by the names in PARTS, so that one can say which of them has changed.
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
    repeated_rows: int = 0
    measures: tuple[Measure, ...] = ()
    groups: tuple[Measure, ...] = ()
    class_rates: tuple[ClassRates, ...] = ()
    confusion: Mapping[str, Mapping[str, int]] | None = None
    parse_errors: Mapping[str, int] | None = None
    usage: Mapping[str, Any] | None = None
    attacks: Mapping[str, Any] | None = None
    calibration: Calibration | None = None
    parts: Mapping[str, str] | None = None

    @property
    def trusted(self) -> bool:
        """Whether the grader is better than chance, with 95% confidence."""
        return self.headline.beats_chance

    @property
    def noises(self) -> list[tuple[float, int]]:
        """The standard deviation of repeated scores, and of how many answers; if they are known."""
        measures = (measure for measure in self.measures if measure.name == NOISE)
        return [(m.value, m.n) for m in measures if m.value and m.n >= MIN_NOISE_ANSWERS]

    def changed_parts(self, parts: Mapping[str, str]) -> str:
        """Return in words what of the grader has changed, from its parts now."""
        before = self.parts or {}
        changed = [PARTS[name] for name in PARTS if before.get(name) != parts.get(name)]
        if PARTS["rubric"] in changed:  # it is part of the judge
            changed = [part for part in changed if part != PARTS["judge"]]
        if not (before and parts and changed):
            return "its rubric, prompt, settings or model have"
        return f"{' and '.join(changed)} {'have' if len(changed) > 1 else 'has'}"

    def repeats_line(self) -> str:
        """Return what is said of rows that are not independent; "" if all are."""
        lines = []
        if self.repeated_rows:
            lines.append(
                f"{pluralize(self.repeated_rows, 'row')} equal to another one: identical rows "
                "count once"
            )
        if (clusters := self.headline.clusters) is not None:
            rows = pluralize(self.headline.n, "row")
            lines.append(
                f"{rows} of {pluralize(clusters, 'cluster')}: rows with the same ID or task count "
                "as one cluster"
            )
            if clusters < MIN_ROWS:
                way = "if rows are independent, -c cluster=COLUMN names what tells them apart"
                lines.append(f"fewer than {MIN_ROWS} prove nothing; {way}")
        return "; ".join(lines)

    def summary(self) -> str:
        """Return the headline in words: "preference 0.81 [0.76, 0.85] of 300 rows (chance 0.50),
        pairs.jsonl, 2026-05-01".
        """
        return f"{format_measure(self.headline)}, {self.data}, {self.date}"

    def to_json(self) -> str:
        def without_unset(fields: list[tuple[str, Any]]) -> dict[str, Any]:
            return {name: value for name, value in fields if value or name not in LATER_FIELDS}

        return (
            json.dumps(
                {"redraft_card": SCHEMA, **asdict(self, dict_factory=without_unset)}, indent=2
            )
            + "\n"
        )

    @classmethod
    def from_json(cls, text: str, where: str) -> Card:
        """Return the card that `to_json` wrote. Raises StoreError for anything else."""
        try:
            data = object_from_json(text)
            if (version := data.pop("redraft_card")) != SCHEMA:
                raise ValueError(
                    f"it has schema {version!r:.20}, and this release reads schema {SCHEMA}; "
                    "validate the grader again"
                )
            data["headline"] = unpack(Measure, data["headline"])
            for name in ("measures", "groups"):
                data[name] = tuple(unpack(Measure, row) for row in data[name])
            data["class_rates"] = tuple(unpack(ClassRates, row) for row in data["class_rates"])
            if data.get("calibration") is not None:
                data["calibration"] = Calibration.from_data(data["calibration"])
            validators = field_validators(cls)
            values = {name: data[name] for name in validators.keys() & data.keys()}
            if invalid := next(
                (name for name, value in values.items() if not validators[name](value)), None
            ):
                raise ValueError(f"{invalid} cannot be {values[invalid]!r:.80}")
            return cls(**values)
        except (StoreError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"{where} is not a validation card: {error}") from error


def calibration_for(card: Card | None) -> Calibration | None:
    """Return what people's labels say about the scores of a grader; None unless its card is trusted
    and holds a calibration.
    """
    return card.calibration if card is not None and card.trusted else None


def format_measure(measure: Measure) -> str:
    """Return a measure in words, with its interval, rows and chance."""
    value = format_estimate(measure.value, measure.low, measure.high)
    chance = "" if measure.chance is None else f" (chance {measure.chance:.2f})"
    clusters = "" if measure.clusters is None else f" in {pluralize(measure.clusters, 'cluster')}"
    rows = pluralize(measure.n, "row")
    return f"{measure.name} {value} of {rows}{clusters}{chance}"


class JudgeMeasures(NamedTuple):
    """What validation cards say about the scores of a judge; None for what they do not say.

    `calibration` is by labels of single answers. `noise` is the standard deviation of repeated
    scores of the same answers, and how many answers had them; validations with labels of pairs
    measure it, too.
    """

    calibration: Calibration | None = None
    noise: tuple[float, int] | None = None


@dataclass(frozen=True)
class CardStore:
    """A folder of cards, with a subfolder for every validation: one grader and model on one data
    set.
    """

    folder: Path

    @classmethod
    def in_folder(cls, folder: str | Path | None) -> CardStore:
        """Return the store in `folder`; with None, the user's own."""
        return cls(cards_folder(folder))

    def card_folder(self, grader: str, fingerprint: str, data: str, sha256: str) -> Path:
        """Return the folder of one validation: of one version of a grader, on one data set read in
        one way.
        """
        return self.folder / f"{_slug(grader)}-{fingerprint[:8]}-{_slug(data)}-{sha256[:8]}"

    @cached_property
    def cards(self) -> list[Card]:
        """All cards, the newest first. Those that cannot be read are left out, with one warning."""
        return _read_cards(self.folder.glob("*/card.json"))

    def cards_of(self, grader: str) -> list[Card]:
        """Return the cards of the grader of that name, the newest first; a warning tells of those
        that cannot be read.
        """
        return [
            card
            for card in _read_cards(self.folder.glob(f"{_slug(grader)}-*/card.json"))
            if card.grader == grader
        ]

    def measures_of(self, fingerprint: str) -> JudgeMeasures:
        """Return what labels of people say about the scores of the grader with this fingerprint.

        The card with the most rows decides whether it is trusted, whatever the kind of its labels:
        a grader that does not prefer what people prefer has no calibration either. Only cards of
        this grader are read, in the folders that `card_folder` names, and no warning is given:
        every run asks.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = _read_cards(self.folder.glob(f"*-{fingerprint[:8]}-*/card.json"))
        current = sorted(
            (card for card in found if card.fingerprint == fingerprint), key=lambda card: -card.rows
        )
        if not current or not current[0].trusted:
            return JudgeMeasures()
        trusted = [card for card in current if card.trusted]
        calibrations = filter(None, map(calibration_for, trusted))
        enough = (each for each in calibrations if each.labels >= MIN_CALIBRATION_LABELS)
        noises = (noise for card in trusted for noise in card.noises)
        return JudgeMeasures(next(enough, None), next(noises, None))

    def trust_status(
        self, grader: str, fingerprint: str, parts: Mapping[str, str] = MappingProxyType({})
    ) -> TrustStatus:
        """Return what the cards say about a grader as it is now, with what of it has changed if its
        `parts` are known. The card with the most rows counts; cards of recordings do not.
        """
        own = [
            c
            for c in self.cards
            if c.fingerprint != RECORDED_FINGERPRINT
            and (c.grader == grader or c.fingerprint == fingerprint)
        ]
        current = [card for card in own if card.fingerprint == fingerprint]
        if not own:
            return TrustStatus(grader, "none", "it was never validated")
        if not current:
            explanation = (
                f"it was validated on {own[0].date}, and {own[0].changed_parts(parts)} changed "
                "since"
            )
            return TrustStatus(grader, "stale", explanation, own[0])
        card = max(current, key=lambda card: card.rows)
        if not card.trusted:
            return TrustStatus(
                grader, "chance", f"it may be no better than chance: {card.summary()}", card
            )
        return TrustStatus(grader, "trusted", card.summary(), card)


def _read_cards(paths: Iterable[Path]) -> list[Card]:
    """Return the cards in these files, the newest first."""
    cards: list[Card] = []
    problems: list[str] = []
    for path in sorted(paths):
        try:
            cards.append(Card.from_json(read_small_text(path), str(path)))
        except StoreError as error:
            problems.append(str(error))
        except (OSError, ValueError) as error:
            problems.append(f"{path}: {error}")
    if problems:
        left_out = "a card is" if len(problems) == 1 else f"{len(problems)} cards are"
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        warnings.warn(f"{left_out} left out: {problems[0]}{more}", stacklevel=3)
    return sorted(cards, key=lambda card: card.date, reverse=True)


@dataclass(frozen=True)
class TrustStatus:
    """The trust in a grader: "trusted", "chance" (its interval includes chance), "stale", "none",
    or "deterministic".

    "deterministic" graders are requirements and Redraft's graders that ask no model: they need no
    validation card.
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
            f"{path} cannot be written: {error.strerror}; the verdicts are stored, the same "
            "command resumes"
        ) from error


def _slug(text: str) -> str:
    """Return the text as a safe part of a file name."""
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")[:48] or "unnamed"


# ---- trust

VALIDATE_HINT = "measure it against labelled data with `redraft validate`"
OWN_CODE_HINT = (
    "code of your own is measured with redraft.validation.validate, or with --grader FILE.py:NAME; "
    "a demand that `redraft graders` lists, such as 'characters:<80', needs no card"
)


Identify: TypeAlias = Callable[[str], tuple[str, Mapping[str, str]]]


class UntrustedGraderWarning(UserWarning):
    """An unvalidated grader is in use."""


def _trust_status(
    panel_name: str,
    traits: GraderTraits,
    identify: Identify,
    card_store: CardStore,
) -> TrustStatus:
    found = card_store.trust_status(traits.name, *identify(panel_name))
    status = replace(found, grader=panel_name)
    if status.status == "none" and traits.is_deterministic:
        return TrustStatus(panel_name, "deterministic", "needs no validation card")
    if status.trusted or not traits.is_user_defined:
        return status
    return replace(status, explanation=f"{status.explanation} ({OWN_CODE_HINT})")


def with_trust(
    panel: tuple[PanelGrader, ...],
    graders: Mapping[str, GraderTraits],
    identify: Identify,
    card_store: CardStore,
    require_validated: str,
) -> tuple[PanelGrader, ...]:
    """Return the panel with the trust status of each grader. Warn of those not trusted; with
    "error" raise ConfigError. `identify` returns the fingerprint of a grader by its name there, and
    its parts.
    """
    statuses = [
        _trust_status(member.name, graders[member.name], identify, card_store) for member in panel
    ]
    untrusted = [s for s in statuses if not s.trusted]
    message = "; ".join(f"grader {s.grader!r} is not trusted: {s.explanation}" for s in untrusted)
    if untrusted and require_validated == "error":
        raise ConfigError(f"require_validated='error': {message}; {VALIDATE_HINT}")
    if untrusted:
        warnings.warn(f"{message}; {VALIDATE_HINT}", UntrustedGraderWarning, stacklevel=2)
    return tuple(
        replace(member, card=s.to_data()) for member, s in zip(panel, statuses, strict=True)
    )
