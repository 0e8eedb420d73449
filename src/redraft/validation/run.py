"""The validation of a grader: it judges labelled cases, and its verdicts are measured and
summarised on a card.

The grader judges each case once per repeat, and pairs in both orders if it compares responses. It
never sees the labels. If it gives no readable verdict, the verdict is empty. If the network or the
budget prevented a verdict, none is stored, and the next run judges the case again. Verdicts are
stored as JSON Lines when they arrive, so that an interrupted run can be resumed. The first line
holds the grader's fingerprint and the digest of the labelled data, each further line one case and
repeat. An incomplete last line is dropped; a file of another grader or other data is an error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import (
    AsyncGenerator,
    Callable,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from html import escape
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, Self

from ..base.text import pluralize
from ..errors import EXTERNAL_ERRORS, ConfigError, GradingError, StoreError
from ..graders.base import MESSAGE_NEEDS, has_needed
from ..graders.cards import (
    RECORDED_FINGERPRINT,
    Card,
    CardStore,
    Measure,
    format_measure,
)
from ..graders.traits import GraderTraits, check_environments
from ..loop.engine import cancel_and_wait
from ..loop.records import Candidate, Comparison, Failure, Feedback, Record, StopReason
from ..loop.serialize import object_from_json, unpack
from ..loop.steps import Compare, Grade
from ..loop.trace import PanelGrader
from ..plans.quality.calibration import Calibration
from ..protocols import Perform
from ..session.perform import Roles, make_performer
from ..session.session import Session
from ..storage import LockedLineFile
from ..storage.secure_files import make_folder
from ..usage import NO_USAGE, Usage
from . import statistics as m
from .attacks import Attack, attack_success_rates, attacked_cases
from .benchmark_report import report_of
from .calibration import calibrate_grader
from .card_page import write_card
from .cases import LabelledCase, Verdict
from .report import ReportConfig, ValidationReport

VERDICTS_SCHEMA = 2
MAX_REASON_CHARS = 300  # of why there is no score
MAX_CONSECUTIVE_FAILURES = 10  # cases without a verdict after which a run ends


@dataclass(frozen=True)
class LabelledData:
    """Labelled cases, the name of their source, and the sha256 of the source and of how it was
    read.

    `skipped_rows` counts the rows that could not be understood, `repeated_rows` those that are
    equal to another one. `report_config` says how labels and scores are read, `column_list` names
    the columns of the source.
    """

    cases: Sequence[LabelledCase]
    name: str
    sha256: str
    skipped_rows: int = 0
    report_config: ReportConfig = ReportConfig()
    column_list: str = ""
    repeated_rows: int = 0

    def __post_init__(self) -> None:
        if not self.cases:
            raise ConfigError(f"{self.name}: it has no labelled rows")
        if len({case.kind for case in self.cases}) > 1:
            raise ConfigError(f"{self.name}: all labels must be of one kind")


@dataclass(frozen=True)
class LiveConfig:
    """How a grader is run: the repeats per case, the attacks, and a callback for each case.

    `restart`: do not resume from the verdicts of an earlier run, and rename their file.
    """

    repeats: int = 1
    attacks: Sequence[Attack] = ()
    restart: bool = False
    on_case_judged: Callable[[JudgedCase], object] | None = None


@dataclass(frozen=True)
class ValidationResult:
    """How far a grader agrees with the labels of people.

    Attributes:
        card: The measures, and what they are about: the grader with its fingerprint and model, the
            data, and the day.
        report: The same measures with the figures for plots.
        card_store: The folder of cards in which the verdicts are, and in which `save_card` saves
            the card.
        stop_reason: Why the run ended before all cases were judged, or None.
        skipped: Why rows of the data were left out: their locations and the reasons.
        column_notes: How the columns of the data were understood.
        verdicts: What the grader said of each case.
    """

    card: Card
    report: ValidationReport
    card_store: CardStore
    stop_reason: StopReason | None = None
    skipped: tuple[str, ...] = ()
    column_notes: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = field(default=(), repr=False)

    @property
    def trusted(self) -> bool:
        """Whether the grader is better than chance, with 95% confidence."""
        return self.card.trusted

    @property
    def headline(self) -> Measure:
        """The measure that decides whether the grader is trusted."""
        return self.card.headline

    @property
    def measures(self) -> Mapping[str, Measure]:
        """All measures by name."""
        return {measure.name: measure for measure in self.card.measures}

    @property
    def groups(self) -> Mapping[str, Measure]:
        """The headline for each group of rows."""
        return {measure.name: measure for measure in self.card.groups}

    @property
    def attacks(self) -> Mapping[str, Measure]:
        """The share of attacks that changed the verdict, by kind of attack; empty without
        attacks.
        """
        return {
            row["name"]: Measure(**row) for row in (self.card.attacks or {}).get("measures", ())
        }

    @property
    def calibration(self) -> Calibration | None:
        """The map from scores to people's labels: for kinds score and pass, with 100 labels or
        more; else None.
        """
        return self.card.calibration

    @property
    def usage(self) -> Usage | None:
        """The usage of the calls of this run; None for recorded outputs."""
        return None if self.card.usage is None else Usage(**self.card.usage)

    @property
    def card_folder(self) -> Path:
        """The folder of the verdicts and of the card."""
        card = self.card
        return self.card_store.card_folder(card.grader, card.fingerprint, card.data, card.sha256)

    def save_card(self) -> Path:
        """Save the card with its plots, so that `require_validated` finds it, and return its
        folder.

        A card of more rows of the same data is kept. Raises StoreError if a file cannot be written.
        """
        write_card(self.card, self.report, self.card_folder)
        return self.card_folder

    def to_dict(self) -> dict[str, Any]:
        """Return the card as plain data that `json.dumps` accepts, with `trusted` and
        `stop_reason`.
        """
        return {
            "trusted": self.trusted,
            "stop_reason": self.stop_reason and str(self.stop_reason),
            **asdict(self.card),
        }

    def __repr__(self) -> str:
        return (
            f"ValidationResult(grader={self.card.grader!r}, trusted={self.trusted}, "
            f"{self.card.summary()})"
        )

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{escape(format_measure(m))}</td></tr>" for m in self.card.measures)
        return (
            f"<p>{escape(self.card.grader)}: {escape(self.card.summary())}</p><table>{rows}</table>"
        )


@dataclass
class GraderRun:
    """Has one grader judge cases. Stored verdicts are reused, new ones are stored."""

    harness: GraderHarness
    verdict_file: VerdictFile
    config: LiveConfig
    usage: Usage = NO_USAGE
    failures: dict[str, str] = field(default_factory=dict)
    stop_reason: StopReason | None = None

    async def judge_cases(self, cases: Sequence[LabelledCase]) -> dict[str, list[Verdict]]:
        """Return all verdicts on these cases, stored and new, by case."""
        async for judged in self.harness.judge(cases, self.verdict_file.judged_cases):
            self._record_case(judged)
        verdicts = self.verdict_file.verdicts(case.id for case in cases)
        return m.group_values((verdict.case, verdict) for verdict in verdicts)

    def _record_case(self, judged_case: JudgedCase) -> None:
        self.verdict_file.add(judged_case)
        self.usage += judged_case.usage
        self.stop_reason = self.stop_reason or judged_case.stop_reason
        if judged_case.outage:
            self.failures[judged_case.case] = judged_case.outage
        if self.config.on_case_judged:
            self.config.on_case_judged(judged_case)

    async def measure_attacks(
        self, data: LabelledData, verdicts: Mapping[str, Sequence[Verdict]]
    ) -> dict[str, Any] | None:
        """Return how often the attacks change the verdict, and a note if there was nothing to
        attack.
        """
        if not self.config.attacks or self.stop_reason:
            return None
        threshold = data.report_config.threshold
        cases = [
            case for case, _ in attacked_cases(data.cases, self.config.attacks, verdicts, threshold)
        ]
        attacked = await self.judge_cases(cases)
        note = (
            ""
            if cases
            else (
                "nothing to attack: the grader prefers, or passes, every answer that people found "
                "worse"
            )
        )
        measures = [
            asdict(measure)
            for measure in attack_success_rates(cases, attacked, threshold)
            if measure.n
        ]
        return {"measures": measures, "note": note}


async def validate_live(
    data: LabelledData, session: Session, card_store: CardStore, config: LiveConfig = LiveConfig()
) -> ValidationResult:
    """Have the only grader of a session judge labelled cases, and return its measures and its card.

    Verdicts are stored as they arrive, so that an interrupted run can be resumed. Raises
    ConfigError for a kind of label that does not suit the grader or a grader that cannot work on
    this machine, and GradingError if no case could be judged.
    """
    m.check_dependencies()
    harness = GraderHarness(session, config.repeats)
    _check_labels(data, harness)
    check_environments(harness.roles.traits.values())
    name = harness.panel_grader.name
    fingerprint, parts = harness.roles.identify(name)
    folder = card_store.card_folder(name, fingerprint, data.name, data.sha256)
    header = {"grader": fingerprint, "data": data.sha256}
    with VerdictFile(folder / "verdicts.jsonl", header, restart=config.restart) as verdict_file:
        run = GraderRun(harness, verdict_file, config)
        verdicts = await run.judge_cases(data.cases)
        _check_readable([v for by_case in verdicts.values() for v in by_case], run)
        report = report_of(
            data.cases, [v for by_case in verdicts.values() for v in by_case], data.report_config
        )
        attacks = await run.measure_attacks(data, verdicts)
        calibration = _calibrate(data, [v for by_case in verdicts.values() for v in by_case])
    about = (name, fingerprint, harness.model, today_utc(), data.name, data.sha256, "live")
    card = Card(
        *about,
        attacks=attacks,
        usage=asdict(run.usage),
        calibration=calibration,
        parts=parts,
        **_report_fields(data, report),
    )
    said = tuple(v for by_case in verdicts.values() for v in by_case)
    return ValidationResult(card, report, card_store, run.stop_reason, verdicts=said)


def validate_recorded(
    data: LabelledData,
    verdicts: Sequence[Verdict],
    card_store: CardStore,
    *,
    grader: str,
    output_format: str,
) -> ValidationResult:
    """Measure recorded verdicts. Their card has no fingerprint, so no live grader is trusted
    because of it.
    """
    m.check_dependencies()
    if not verdicts:
        raise GradingError("no recorded output belongs to any of the labelled rows")
    _check_readable(verdicts)
    report = report_of(data.cases, verdicts, data.report_config)
    about = (grader, RECORDED_FINGERPRINT, "", today_utc(), data.name, data.sha256, output_format)
    card = Card(*about, calibration=_calibrate(data, verdicts), **_report_fields(data, report))
    return ValidationResult(card, report, card_store, verdicts=tuple(verdicts))


def _check_readable(verdicts: Sequence[Verdict], run: GraderRun | None = None) -> None:
    """Raise GradingError if no case has a verdict: nothing was measured, so there is no card."""
    if any(_has_verdict(verdict) for verdict in verdicts):
        return
    outages = iter(run.failures.values() if run else ())
    reason = next(outages, None) or next(
        (verdict.reason for verdict in verdicts if verdict.reason), "no verdict"
    )
    again = "; `restart` judges the cases again" if run and verdicts else ""
    raise GradingError(
        f"nothing could be judged: {reason}{again}", usage=run.usage if run else NO_USAGE
    )


def _has_verdict(verdict: Verdict) -> bool:
    return verdict.readable or any(score is not None for score in verdict.scores)


def _report_fields(data: LabelledData, result: ValidationReport) -> dict[str, Any]:
    """Return the fields of a card that a report determines, and the numbers of rows that it does
    not cover.
    """
    names = (
        "kind",
        "rows",
        "headline",
        "measures",
        "groups",
        "class_rates",
        "confusion",
        "parse_errors",
    )
    return {name: getattr(result, name) for name in names} | {
        "unjudged": len(data.cases) - result.rows,
        "skipped_rows": data.skipped_rows,
        "repeated_rows": data.repeated_rows,
    }


def _calibrate(data: LabelledData, verdicts: Sequence[Verdict]) -> Calibration | None:
    return calibrate_grader(data.cases, verdicts, data.report_config.scale)


def today_utc() -> str:
    return datetime.now(UTC).date().isoformat()


def _check_labels(data: LabelledData, harness: GraderHarness) -> None:
    """Raise ConfigError for labels or rows that do not suit the grader."""
    kind = data.cases[0].kind
    for name, needed in harness.traits.all_needs():
        if not any(has_needed(case.task, needed) for case in data.cases):
            if needed in MESSAGE_NEEDS:
                raise ConfigError(
                    f"no row of {data.name} has what grader {name!r} needs: {MESSAGE_NEEDS[needed]}"
                )
            raise ConfigError(
                f"grader {name!r} needs a {needed}, and no row of {data.name} has one: name its "
                f"column, such as -c {needed}=COLUMN"
                + (f"; there are {data.column_list}" if data.column_list else "")
            )
    if harness.panel_grader.compares and kind in {"score", "pass"}:
        raise ConfigError(
            f"grader {harness.panel_grader.name!r} ranks answers; labels of kind {kind!r} need "
            "one that scores a single answer"
        )


# ---- asking the grader


@dataclass(frozen=True)
class JudgedCase:
    """The verdicts of one repeat on one case, and their usage. `outage` is the error if an external
    cause prevented them.
    """

    case: str
    repeat: int
    verdicts: tuple[Verdict, ...] = ()
    usage: Usage = NO_USAGE
    outage: str = ""
    stop_reason: StopReason | None = None


@dataclass
class GraderHarness:
    """Has a grader judge cases, `repeats` times each."""

    session: Session
    repeats: int = 1
    panel_grader: PanelGrader = field(init=False)
    roles: Roles = field(init=False)
    _perform: Perform = field(init=False)

    def __post_init__(self) -> None:
        panel, self.roles = self.session.resolve_panel(())
        seconds = self.session.options.deadline
        self.panel_grader, self._perform = (
            panel[0],
            make_performer(self.roles, None if seconds is None else monotonic() + seconds),
        )

    @property
    def traits(self) -> GraderTraits:
        """What the grader says of itself."""
        return self.roles.traits[self.panel_grader.name]

    @property
    def model(self) -> str:
        """The name of the model that the grader calls; "" if it calls none."""
        client = self.roles.judges.get(self.panel_grader.name)
        return client.name if client and self.traits.makes_calls else ""

    async def judge(
        self, cases: Iterable[LabelledCase], done_keys: Container[tuple[str, int]] = frozenset()
    ) -> AsyncGenerator[JudgedCase, None]:
        """Yield the verdicts as they arrive. Cases and repeats in `done_keys` are left out.

        At most `max_in_flight` cases run at a time. No more cases start once the budget or the time
        is used up, and after MAX_CONSECUTIVE_FAILURES cases in a row without a verdict.
        """
        failures = 0
        pending: Iterator[tuple[LabelledCase, int]] = (
            (case, repeat)
            for case in cases
            for repeat in range(self.repeats)
            if (case.id, repeat) not in done_keys
        )
        running: set[asyncio.Task[JudgedCase]] = set()
        try:
            while running := self._start_pending(running, pending):
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for judged in (task.result() for task in done):
                    failures = failures + 1 if judged.outage else 0
                    if failures >= MAX_CONSECUTIVE_FAILURES:
                        judged = replace(  # noqa: PLW2901
                            judged, stop_reason=judged.stop_reason or StopReason.FAILED
                        )
                    pending = iter(()) if judged.stop_reason else pending
                    yield judged
        finally:
            await cancel_and_wait(running)

    def _start_pending(
        self, running: set[asyncio.Task[JudgedCase]], pending: Iterator[tuple[LabelledCase, int]]
    ) -> set[asyncio.Task[JudgedCase]]:
        free = self.session.options.max_in_flight - len(running)
        return running | {
            asyncio.ensure_future(self._judge_case(case, repeat))
            for case, repeat in islice(pending, free)
        }

    async def _judge_case(self, case: LabelledCase, repeat: int) -> JudgedCase:
        candidates = [Candidate(i, text) for i, text in enumerate(case.responses)]
        if self.panel_grader.compares:
            records: Sequence[Record] = [
                await self._perform(
                    Compare(self.panel_grader.name, case.task, tuple(candidates), repeat)
                )
            ]
        else:
            grades = (
                self._perform(Grade(self.panel_grader.name, case.task, c, repeat))
                for c in candidates
            )
            records = await asyncio.gather(*grades)
        return _judged_case(case, repeat, records, calls_model=self.traits.makes_calls)


def _judged_case(
    case: LabelledCase, repeat: int, records: Sequence[Record], *, calls_model: bool
) -> JudgedCase:
    """Return the verdicts in the records of one case and repeat."""
    judged = JudgedCase(case.id, repeat, usage=sum((r.usage for r in records), NO_USAGE))
    failures = [r for r in records if isinstance(r, Failure)]
    if external := next((f for f in failures if f.error in EXTERNAL_ERRORS), None):
        outage = f"{external.error}: {external.message}"
        return replace(judged, outage=outage, stop_reason=external.stop_reason)
    if isinstance(records[0], Comparison):
        return replace(judged, verdicts=tuple(_comparison_verdicts(case, repeat, records[0])))
    grades = [r for r in records if isinstance(r, Feedback)]
    if not grades:
        verdict = Verdict(case.id, repeat=repeat, reason=failures[0].message)
        return replace(judged, verdicts=(verdict,))
    scores = tuple(r.score if isinstance(r, Feedback) else None for r in records)
    reason = "" if None not in scores else _missing_score(failures, () if calls_model else grades)
    return replace(judged, verdicts=(Verdict(case.id, scores, repeat=repeat, reason=reason),))


def _missing_score(failures: Iterable[Failure], grades: Iterable[Feedback]) -> str:
    """Return why there is no score: the first failure, or what a grader that only computes says;
    what a model writes instead of a score is no reason.
    """
    reasons = [
        *(failed.message for failed in failures),
        *(grade.reason for grade in grades if grade.score is None),
    ]
    shown = (" ".join(reason[:MAX_REASON_CHARS].split()) for reason in reasons)
    return next(filter(None, shown), "it gave no score")


def _comparison_verdicts(
    case: LabelledCase, repeat: int, comparison: Comparison
) -> Iterator[Verdict]:
    """Yield a verdict for each vote that ranks all responses or, if there is none, one for the
    whole comparison.
    """
    complete = [
        v
        for v in comparison.votes
        if isinstance(v, Comparison) and len(v.ranking) == len(case.responses)
    ]
    for vote in complete or [comparison]:
        ranks = vote.ranks
        yield Verdict(
            case.id,
            ranks=tuple(ranks[i] for i in range(len(case.responses))),
            presentation_order=vote.presentation_order,
            repeat=repeat,
        )
    for failed in comparison.votes:
        if isinstance(failed, Failure):
            yield Verdict(case.id, repeat=repeat, reason=failed.message)


# ---- verdicts on disk


class VerdictFile:
    """The stored verdicts of one grader on one data set, locked for one process. Raises StoreError
    for a file of other verdicts.

    With `restart` the existing file is renamed to "verdicts.before.jsonl".
    """

    def __init__(self, path: Path, header: dict[str, str], *, restart: bool = False) -> None:
        self.path, self.header = path, {"redraft_verdicts": VERDICTS_SCHEMA, **header}
        self.judged_cases: dict[tuple[str, int], JudgedCase] = {}
        try:
            make_folder(path.parent)
            exists = path.exists() and path.stat().st_size > 0
        except OSError as error:
            raise StoreError(
                f"verdicts {str(path)!r} cannot be stored: {error.strerror}"
            ) from error
        self._lines = LockedLineFile(path, "verdicts", resume=exists)
        if exists and restart:
            self._lines.close()
            path.replace(path.with_suffix(".before.jsonl"))
            self._lines = LockedLineFile(path, "verdicts")
        try:
            if self._lines.is_empty:  # also one whose first line is torn
                self._lines.write([json.dumps(self.header)], "nothing is in it")
            else:
                self._load()
        except BaseException:
            self._lines.close()
            raise

    def _load(self) -> None:
        text = self.path.read_bytes().decode("utf-8", "replace")
        for n, line in enumerate(text.splitlines(), 1):
            try:
                data = object_from_json(line)
                judged = _parse_judged_case(data) if n > 1 else None
            except (StoreError, KeyError, TypeError, ValueError, AttributeError) as error:
                raise StoreError(
                    f"{self._lines.name}, line {n}: not a line of verdicts: {error}"
                ) from error
            if judged:
                self.judged_cases[judged.case, judged.repeat] = judged
            elif data.get("redraft_verdicts") != VERDICTS_SCHEMA:
                raise StoreError(
                    f"{self._lines.name}: these verdicts have schema "
                    f"{data.get('redraft_verdicts')!r:.20}, and this release reads schema "
                    f"{VERDICTS_SCHEMA}; move the file away and validate again"
                )
            elif data != self.header:
                raise StoreError(
                    f"{self._lines.name} are of another grader or other data: {line[:200]}"
                )

    def add(self, judged_case: JudgedCase) -> None:
        """Store the verdicts on a case. If an outage prevented them, nothing is stored, so that the
        next run judges the case.
        """
        if not judged_case.outage:
            self.judged_cases[judged_case.case, judged_case.repeat] = judged_case
            self._lines.write(
                [json.dumps(asdict(judged_case))],
                f"{pluralize(len(self.judged_cases), 'verdict is', 'verdicts are')} stored; the "
                "same command resumes",
            )

    def verdicts(self, cases: Iterable[str]) -> list[Verdict]:
        """Return all verdicts on these cases."""
        case_ids = set(cases)
        return [
            v
            for (case, _), judged in sorted(self.judged_cases.items())
            if case in case_ids
            for v in judged.verdicts
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()


def _parse_judged_case(data: Mapping[str, Any]) -> JudgedCase:
    """Return the content of a line that `add` wrote."""
    stop_reason = data["stop_reason"] and StopReason(data["stop_reason"])
    verdicts = tuple(_parse_verdict(**v) for v in data["verdicts"])
    return JudgedCase(
        str(data["case"]),
        int(data["repeat"]),
        verdicts,
        unpack(Usage, data["usage"]),
        data["outage"],
        stop_reason,
    )


def _parse_verdict(
    *, scores: list[Any], presentation_order: list[int], ranks: list[int] | None, **fields: Any
) -> Verdict:
    if not all(s is None or (type(s) in {int, float} and 0 <= s <= 1) for s in scores):
        raise ValueError(f"scores must be numbers in [0, 1] or null, got {scores!r}")
    return Verdict(
        scores=tuple(scores),
        presentation_order=tuple(presentation_order),
        ranks=None if ranks is None else tuple(ranks),
        **fields,
    )
