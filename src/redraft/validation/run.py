"""One validation from end to end: labelled data in, verdicts as they come, a card out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from ..core.records import NO_USAGE, StopReason, Usage
from ..errors import ConfigError, GradingError
from ..graders.inputs import needs_of
from ..session import Session
from . import statistics as m
from .attacks import Attack, attack_success_rates, attacked_cases
from .card import RECORDED_FINGERPRINT, Card, CardStore
from .cases import LabelledCase, Verdict
from .estimates import ValidationReport
from .harness import GraderHarness, JudgedCase
from .report import ReportConfig, build_report
from .verdicts import VerdictFile


@dataclass(frozen=True)
class LabelledData:
    """Labelled cases, the name of where they came from, and the sha256 of that and of how it was read.

    `skipped` counts the rows that could not be understood. `reading` says how labels and scores are to be read, `columns` names
    the columns that there are.
    """

    cases: Sequence[LabelledCase]
    name: str
    sha256: str
    skipped_rows: int = 0
    report_config: ReportConfig = ReportConfig()
    column_list: str = ""

    def __post_init__(self) -> None:
        if not self.cases:
            raise ConfigError(f"{self.name}: there is nothing labelled in it")
        if len({case.kind for case in self.cases}) > 1:
            raise ConfigError(f"{self.name}: all labels must be of one kind")


@dataclass(frozen=True)
class LiveConfig:
    """How a grader is asked: how often about each case, with which attacks, and who is told of each answer.

    `afresh`: verdicts of an earlier run are not taken up, but set aside.
    """

    repeats: int = 1
    attacks: Sequence[Attack] = ()
    restart: bool = False
    on_case_judged: Callable[[JudgedCase], object] | None = None


@dataclass(frozen=True)
class ValidationResult:
    """What came of it: the card, where it lies, all measures, and why it ended early, if it did."""

    card: Card
    report: ValidationReport
    card_store: CardStore
    stop_reason: StopReason | None = None

    @property
    def card_folder(self) -> Any:
        card = self.card
        return self.card_store.card_folder(card.grader, card.fingerprint, card.data, card.sha256)


@dataclass
class GraderRun:
    """A run of questions to one grader: what is known already is not asked, what is answered is kept."""

    harness: GraderHarness
    verdict_file: VerdictFile
    config: LiveConfig
    usage: Usage = NO_USAGE
    failures: dict[str, str] = field(default_factory=dict)
    stop_reason: StopReason | None = None

    async def judge_cases(self, cases: Sequence[LabelledCase]) -> dict[str, list[Verdict]]:
        """All verdicts on these cases, by case: those known, and those asked for now."""
        async for judged in self.harness.judge(cases, self.verdict_file.judged_cases):
            self._record_case(judged)
        said: defaultdict[str, list[Verdict]] = defaultdict(list)
        for verdict in self.verdict_file.verdicts(case.id for case in cases):
            said[verdict.case].append(verdict)
        return dict(said)

    def _record_case(self, judged_case: JudgedCase) -> None:
        self.verdict_file.add(judged_case)
        self.usage += judged_case.usage
        self.stop_reason = self.stop_reason or judged_case.stop_reason
        if judged_case.outage:
            self.failures[judged_case.case] = judged_case.outage
        if self.config.on_case_judged:
            self.config.on_case_judged(judged_case)

    async def measure_attacks(self, data: LabelledData, verdicts: Mapping[str, Sequence[Verdict]]) -> dict[str, Any] | None:
        """How often the attacks turn its verdict; a note where there is nothing that could be turned."""
        if not self.config.attacks or self.stop_reason:
            return None
        threshold = data.report_config.threshold
        cases = [case for case, _ in attacked_cases(data.cases, self.config.attacks, verdicts, threshold)]
        turned = await self.judge_cases(cases)
        note = "" if cases else "nothing to attack: it prefers, or lets pass, every answer that people found worse"
        return {
            "measures": [asdict(measure) for measure in attack_success_rates(cases, turned, threshold) if measure.n],
            "note": note,
        }


async def validate(
    data: LabelledData, session: Session, card_store: CardStore, config: LiveConfig = LiveConfig()
) -> ValidationResult:
    """Ask the one grader of a desk about labelled cases, measure it, and say so on a card.

    Verdicts are kept as they arrive: a run that was cut short goes on where it stopped. Raises ConfigError for a kind of
    label that the grader cannot speak to, and GradingError when nothing at all could be judged.
    """
    m.check_dependencies()
    bench = GraderHarness(session, config.repeats)
    _check_labels(data, bench)
    mark = session.fingerprint(bench.roles, bench.panel_grader.name)
    place = card_store.card_folder(bench.panel_grader.name, mark, data.name, data.sha256)
    with VerdictFile(place / "verdicts.jsonl", {"grader": mark, "data": data.sha256}, restart=config.restart) as kept:
        asking = GraderRun(bench, kept, config)
        said = await asking.judge_cases(data.cases)
        if not said:
            raise GradingError(f"nothing could be judged: {next(iter(asking.failures.values()), 'no verdict')}", usage=asking.usage)
        found = build_report(data.cases, [v for held in said.values() for v in held], data.report_config)
        attacks = await asking.measure_attacks(data, said)
    about = (bench.panel_grader.name, mark, bench.model, today_utc(), data.name, data.sha256, "live")
    card = Card(*about, attacks=attacks, usage=asdict(asking.usage), **_report_fields(data, found))
    return ValidationResult(card, found, card_store, asking.stop_reason)


def validate_recorded(
    data: LabelledData, verdicts: Sequence[Verdict], card_store: CardStore, *, grader: str, output_format: str
) -> ValidationResult:
    """Measure recorded verdicts. The card is about those recordings: it has no fingerprint, and vouches for no live grader."""
    m.check_dependencies()
    if not verdicts:
        raise GradingError("no recorded output belongs to any of the labelled rows")
    found = build_report(data.cases, verdicts, data.report_config)
    return ValidationResult(
        Card(grader, RECORDED_FINGERPRINT, "", today_utc(), data.name, data.sha256, output_format, **_report_fields(data, found)),
        found,
        card_store,
    )


def _report_fields(data: LabelledData, result: ValidationReport) -> dict[str, Any]:
    """What a report says, and how many rows it says nothing about."""
    names = ("kind", "rows", "headline", "measures", "groups", "rates", "classes", "complaints")
    return {name: getattr(result, name) for name in names} | {"lost": len(data.cases) - result.rows, "skipped": data.skipped_rows}


def today_utc() -> str:
    return datetime.now(UTC).date().isoformat()


def _check_labels(data: LabelledData, harness: GraderHarness) -> None:
    """Raises ConfigError for labels, or rows, that the grader cannot speak to."""
    kind = data.cases[0].kind
    for name, needed in needs_of(harness.roles.graders[harness.panel_grader.name]):
        if not any(getattr(case.task, needed) for case in data.cases):
            raise ConfigError(
                f"grader {name!r} needs a {needed}, and no row of {data.name} has one: say which column holds it, "
                f"such as -c {needed}=COLUMN" + (f"; there are {data.column_list}" if data.column_list else "")
            )
    if harness.panel_grader.compares and kind in {"score", "pass"}:
        raise ConfigError(
            f"grader {harness.panel_grader.name!r} ranks answers; labels of kind {kind!r} need one that scores a single answer"
        )
