"""The report of a run: counted row by row, in constant memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from ..core.records import StopReason
from ..usage import Usage
from .progress import BatchProgress, Mean, format_price
from .row_result import NOT_STARTED, RowResult

MAX_REASON = 300
Z = 1.959964  # two-sided 95 % of a normal distribution


@dataclass(slots=True)
class RunningMean:
    """Mean and variance of a stream of numbers (Welford 1962)."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.n += 1
        ahead = value - self.mean
        self.mean += ahead / self.n
        self.squares += ahead * (value - self.mean)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean by the normal distribution, within [-1, 1]; None for fewer than two numbers."""
        if self.n < 2:
            return None
        half = Z * sqrt(self.squares / (self.n - 1) / self.n)
        return max(-1.0, self.mean - half), min(1.0, self.mean + half)


@dataclass(slots=True)
class IterationStats:
    """The effect of the n-th refinement over all rows that had one."""

    gain: Mean = field(default_factory=Mean)
    rows: int = 0
    calls: int = 0
    cost: float | None = 0.0

    def as_data(self, number: int) -> dict[str, Any]:
        """Return plain data. Calls and USD are also given for each point: a hundredth of the score's range, summed over rows."""
        points = 100 * self.gain.sum
        return {
            "iteration": number,
            "rows": self.rows,
            "gain": self.gain.value,
            "calls": self.calls,
            "cost": self.cost,
            "calls_per_point": self.calls / points if points > 0 else None,
            "usd_per_point": self.cost / points if self.cost is not None and points > 0 else None,
        }


@dataclass
class ReportBuilder:
    """Counts the rows of a run as they end."""

    uplift: RunningMean = field(default_factory=RunningMean)
    improved: int = 0
    unchanged: int = 0
    regressed: int = 0
    unsure: int = 0
    broken: int = 0
    stops: Counter[str] = field(default_factory=Counter)
    diagnoses: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    iterations: dict[int, IterationStats] = field(default_factory=dict)

    def add(self, result: RowResult) -> None:
        """Count a row that ended."""
        self.stops[result.columns["stop"]] += 1
        self.broken += result.columns["broken"] is not None
        if found := result.columns["diagnosis"]:
            self.diagnoses[found] += 1
        if result.error_kind and result.error_kind != NOT_STARTED:
            self.errors[result.error_kind] += 1
            self.reasons.setdefault(result.error_kind, _reason(result))
        first, best = result.columns["initial_score"], result.columns["best_score"]
        if first is not None and best is not None:
            self.uplift.add(best - first)
            self.improved += result.improved
            self.unsure += result.unsure
            self.regressed += result.worse and not (result.improved or result.unsure)
            self.unchanged += not (result.worse or result.improved or result.unsure)
        self._add_iterations(result)

    def _add_iterations(self, result: RowResult) -> None:
        before: float | None = None
        for n, (top, calls, cost) in enumerate(result.score_by_iteration):
            at = self.iterations.setdefault(n, IterationStats())
            at.rows += 1
            at.calls += calls
            at.cost = None if cost is None or at.cost is None else at.cost + cost
            if n and top is not None and before is not None:
                at.gain.add(top - before)
            before = top


@dataclass(frozen=True)
class BatchReport:
    """The report of a run.

    `uplift` is the mean of best - first score over the rows that have both, `interval` its 95 % interval; if graders are noisy,
    both are estimates. `improved` counts rows whose best answer keeps more musts than the first, or as many and scores higher by
    more than the graders' noise explains; `unsure` those whose best answer may be better, but with too few grades to tell: the
    mean over all rows may tell. `regressed` counts rows of which a later answer scored less and the first was kept; `broken`
    those whose best answer breaks a must. `diagnoses` counts rows by their diagnosis (see `redraft.quality.diagnosis`). `usage` is
    what was paid in this run; its cached calls were not.

    `end_reason` says what ended the run early: "" (nothing), "budget", "deadline", "interrupted", "fatal", "outage" or "disk";
    `message` says it in words. The same command then resumes the run, unless `journal_lost`. `remaining` counts rows that the run
    did not come to, beside those that are `not_started`, which have a row in the output. `reasons`: the first message of
    each kind of error. `excess`: what was spent beyond the budget, and why, in words; "" if nothing was.

    `price`: what each `price_unit` had to gain at the end, if rows shared a budget. `priors`: those at the start of the run
    (None: the shipped ones), fitted to `initial_prior_tasks`; `prior_refits`: from which row on ("from") priors fitted to how
    many more "rows" of the run hold. `prior_rows`: rows of this run whose priors were saved for runs with priors="learned" (0:
    none were), `saved_prior_tasks`: the tasks behind the priors that are saved now.
    """

    rows: int
    done: int
    failed: int
    reused: int
    unfinished: int
    not_started: int
    bad: int
    seconds: float
    usage: Usage
    uplift: float | None
    interval: tuple[float, float] | None
    improved: int
    unchanged: int
    regressed: int
    broken: int
    mean_first: float | None
    mean_best: float | None
    stops: Mapping[str, int]
    diagnoses: Mapping[str, int]
    errors: Mapping[str, int]
    by_iteration: tuple[Mapping[str, Any], ...]
    end_reason: str = ""
    message: str = ""
    output: str | None = None
    journal: str = ""
    run: str = ""
    excess: str = ""
    price: float | None = None
    price_unit: str = ""
    priors: Mapping[str, Any] | None = None
    initial_prior_tasks: int = 0
    prior_refits: tuple[Mapping[str, int], ...] = ()
    prior_rows: int = 0
    saved_prior_tasks: int = 0
    unsure: int = 0
    remaining: int = 0
    journal_lost: bool = False
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def resumable(self) -> bool:
        """Whether the same command would resume the run."""
        return not self.journal_lost and bool(self.end_reason or self.unfinished or self.not_started)

    @property
    def cache_savings(self) -> float | None:
        """USD that answers from the cache would have cost; None if a price is unknown."""
        made, paid = self.usage.answer_cost, self.usage.cost
        return None if made is None or paid is None else max(0.0, made - paid)

    def as_data(self) -> dict[str, Any]:
        """Return plain data."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "usage"}
        u = self.usage
        return own | {
            "resumable": self.resumable,
            "calls": u.calls,
            "retried_calls": u.retried_calls,
            "tokens": u.tokens,
            "cost": u.cost,
            "cached_calls": u.cached_calls,
            "cache_savings": self.cache_savings,
        }

    def summary(self) -> list[str]:
        """Return a few lines for people."""
        stops = {why: n for why, n in self.stops.items() if why != NOT_STARTED}
        rows = f"rows {self.done:,} done" + "".join(
            f", {count:,} {what}"
            for count, what in (
                (self.failed, "failed"),
                (self.unfinished, "cut short"),
                (self.not_started + self.remaining, "not tried"),
                (self.bad, "unreadable"),
            )
            if count
        )
        lines = [
            rows + (f" ({self.reused:,} of them before)" if self.reused else ""),
            self._nothing_done(),
            self._score_line(),
            "stopped: " + ", ".join(f"{why} {n:,}" for why, n in stops.items()) if stops else "",
            "diagnosis: " + ", ".join(f"{what} {n:,}" for what, n in self.diagnoses.items()) if self.diagnoses else "",
            "errors: " + ", ".join(f"{kind} {n:,}" for kind, n in self.errors.items()) if self.errors else "",
            *(f"{kind}, for example: {why}" for kind, why in self.reasons.items()),
            f"the best breaks a must: {self.broken:,}" if self.broken else "",
            *budget_and_priors(self.as_data()).values(),
            self._payment_line(),
        ]
        return list(filter(None, lines))

    def _nothing_done(self) -> str:
        if self.end_reason or not self.reused or self.reused < self.rows:
            return ""
        failed = "; --retry failed repeats the failed ones" if self.failed else ""
        return f"all rows were finished before, so nothing was done{failed}; another output starts a new run"

    def _score_line(self) -> str:
        if self.uplift is None or self.mean_first is None or self.mean_best is None:
            return "score unknown"
        around = f" (95 %: {self.interval[0]:+.3f} to {self.interval[1]:+.3f})" if self.interval else ""
        counts = [
            f"improved {self.improved:,}",
            *([f"too few grades to tell row by row {self.unsure:,}"] if self.unsure else []),
            f"unchanged {self.unchanged:,}",
            f"later ones worse and the first kept {self.regressed:,}",
        ]
        return f"score {self.mean_first:.3f} -> {self.mean_best:.3f}, uplift {self.uplift:+.3f}{around}; {', '.join(counts)}"

    def _payment_line(self) -> str:
        u = self.usage
        tokens = "tokens unknown" if u.tokens is None else f"{u.tokens:,} tokens"
        cost = "cost unknown" if u.cost is None else f"{u.cost:.4f} USD"
        saved = ""
        if u.cached_calls:
            worth = "" if self.cache_savings is None else f", {self.cache_savings:.4f} USD saved"
            saved = f"; {u.cached_calls:,} calls from the cache{worth}"
        return f"paid: {u.calls:,} calls, {tokens}, {cost}{saved}; {self.seconds:.1f} s"


SUMMARIZED = ("price", "price_unit", "priors", "initial_prior_tasks", "prior_refits", "prior_rows", "saved_prior_tasks")


def _reason(result: RowResult) -> str:
    """Return the error message of a row on one line."""
    message = " ".join(str(result.columns["error"] or "").removeprefix(f"{result.error_kind}: ").split())
    return message if len(message) <= MAX_REASON else f"{message[:MAX_REASON]}..."


def budget_and_priors(report: Mapping[str, Any]) -> dict[str, str]:
    """Return what a report, as plain data, says of the budget, the price and the priors: a line each, in words."""
    lines = {
        "budget": report.get("excess", ""),
        "price": _price(report),
        "priors": "; ".join(_priors(report)),
        "learned": _saved_priors(report),
    }
    return {name: line for name, line in lines.items() if line}


def _price(report: Mapping[str, Any]) -> str:
    if report.get("price") is None:
        return ""
    rows = report["stops"].get(StopReason.GAIN, 0)
    ended = f"; {rows:,} row{'s' * (rows != 1)} ended because nothing more was worth its price" if rows else ""
    return format_price(report["price"], report["price_unit"]) + ended


def _priors(report: Mapping[str, Any]) -> Iterator[str]:
    if tasks := report.get("initial_prior_tasks"):
        yield f"started with priors fitted to {tasks:,} tasks"
    elif report.get("priors"):
        yield "started with the given priors"
    for refit in report.get("prior_refits", ()):
        yield f"rows from {refit['from']:,} on use priors fitted to {refit['rows']:,} earlier rows"


def _saved_priors(report: Mapping[str, Any]) -> str:
    rows, tasks = report.get("prior_rows", 0), report.get("saved_prior_tasks", 0)
    if tasks > rows:
        return f"priors fitted to {tasks:,} tasks stay saved for --priors learned, not those of {rows:,} rows now: redraft priors"
    return f"priors fitted to {rows:,} rows are saved for --priors learned: redraft priors" if tasks else ""


def build_report(progress: BatchProgress, builder: ReportBuilder, **about: Any) -> BatchReport:
    """Return the report of a run that has ended."""
    return BatchReport(
        rows=progress.done + progress.failed + progress.unfinished + progress.not_started,
        **{name: getattr(progress, name) for name in ("done", "failed", "reused", "unfinished", "not_started", "bad")},
        seconds=progress.seconds,
        usage=progress.usage,
        **{name: getattr(builder, name) for name in ("improved", "unchanged", "regressed", "unsure", "broken")},
        uplift=builder.uplift.mean if builder.uplift.n else None,
        interval=builder.uplift.interval,
        mean_first=progress.first.value,
        mean_best=progress.best.value,
        stops=dict(sorted(builder.stops.items())),
        diagnoses=dict(sorted(builder.diagnoses.items())),
        errors=dict(sorted(builder.errors.items())),
        reasons=dict(sorted(builder.reasons.items())),
        by_iteration=tuple(it.as_data(n) for n, it in sorted(builder.iterations.items())),
        price=progress.price,
        price_unit=progress.price_unit,
        remaining=progress.remaining or 0,
        **about,
    )
