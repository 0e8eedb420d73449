"""What a run came to: counted row by row, in constant memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from ..core.records import StopReason, Usage
from .progress import Mean, Progress, price_told
from .rows import NOT_STARTED, Came

LONGEST_REASON = 300
Z = 1.959964  # two-sided 95 % of a normal distribution


@dataclass(slots=True)
class Spread:
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
        """95 % for the mean, by the normal distribution, within what differences of scores can be; None with fewer than two."""
        if self.n < 2:
            return None
        half = Z * sqrt(self.squares / (self.n - 1) / self.n)
        return max(-1.0, self.mean - half), min(1.0, self.mean + half)


@dataclass(slots=True)
class Iteration:
    """What a refinement of this number brought over all rows that had one."""

    gain: Mean = field(default_factory=Mean)
    rows: int = 0
    calls: int = 0
    cost: float | None = 0.0

    def as_data(self, number: int) -> dict[str, Any]:
        """Calls and USD are for one point: a hundredth of the score's range, summed over rows."""
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
class Tally:
    """Counts the rows of a run as they end."""

    uplift: Spread = field(default_factory=Spread)
    improved: int = 0
    unchanged: int = 0
    regressed: int = 0
    unsure: int = 0
    broken: int = 0
    stops: Counter[str] = field(default_factory=Counter)
    diagnoses: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    iterations: dict[int, Iteration] = field(default_factory=dict)

    def settle(self, came: Came) -> None:
        """Count a row that ended."""
        self.stops[came.columns["stop"]] += 1
        self.broken += came.columns["broken"] is not None
        if found := came.columns["diagnosis"]:
            self.diagnoses[found] += 1
        if came.kind and came.kind != NOT_STARTED:
            self.errors[came.kind] += 1
            self.reasons.setdefault(came.kind, _reason(came))
        first, best = came.columns["initial_score"], came.columns["best_score"]
        if first is not None and best is not None:
            self.uplift.add(best - first)
            self.improved += came.lifted
            self.unsure += came.unsure
            self.regressed += came.worse and not (came.lifted or came.unsure)
            self.unchanged += not (came.worse or came.lifted or came.unsure)
        self._walk(came)

    def _walk(self, came: Came) -> None:
        before: float | None = None
        for n, (top, calls, cost) in enumerate(came.path):
            at = self.iterations.setdefault(n, Iteration())
            at.rows += 1
            at.calls += calls
            at.cost = None if cost is None or at.cost is None else at.cost + cost
            if n and top is not None and before is not None:
                at.gain.add(top - before)
            before = top


@dataclass(frozen=True)
class Report:
    """What a run came to.

    `uplift` is the mean of best - first score over the rows that have both, `interval` its 95 % interval; where graders are
    noisy, both are what is believed. `improved` are rows whose best keeps more musts than the first answer, or as many and
    scores higher by more than the graders' noise explains; `unsure` those whose best may be better, with too few looks to
    tell: what one row leaves open, the mean over all may tell. `regressed` are those of which a later answer scored less and
    the first was kept; `broken` those whose best breaks a must. `diagnoses` counts rows by what there is to say of
    them (see `redraft.quality.diagnosis`). `usage` is what was paid for now, its cached calls what was not.
    `ended` says what cut the run short: "" (nothing), "budget", "deadline", "interrupted", "fatal", "outage" or "disk";
    `message` says it in words. Whatever was cut short, the same command goes on, unless the journal is `lost`. `left` are rows
    that the run did not come to, beside those that are `not_started`, which have a row in the output.

    `reasons`: by the kind of an error, what the first of that kind said.

    `excess`: what was spent beyond the budget, and why, in words; "" where it was kept.

    `price`: what each `price_unit` had to gain at the end, where rows shared a purse. `priors`: those of the run's beginning
    (None: the shipped ones), `began_with`: the tasks that taught them; `learned`: from which row ("from") what how many "rows"
    taught holds. `taught`: rows that teach a run with priors="learned" (0: none do), `for_next`: the tasks that taught what it
    begins with.
    """

    rows: int
    done: int
    failed: int
    kept: int
    cut: int
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
    ended: str = ""
    message: str = ""
    output: str | None = None
    journal: str = ""
    run: str = ""
    excess: str = ""
    price: float | None = None
    price_unit: str = ""
    priors: Mapping[str, Any] | None = None
    began_with: int = 0
    learned: tuple[Mapping[str, int], ...] = ()
    taught: int = 0
    for_next: int = 0
    unsure: int = 0
    left: int = 0
    lost: bool = False
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def resumable(self) -> bool:
        """Whether there is something left that the same command would go on with."""
        return not self.lost and bool(self.ended or self.cut or self.not_started)

    @property
    def saved(self) -> float | None:
        """USD that answers from the cache would have cost; None where a price is unknown."""
        made, paid = self.usage.answer_cost, self.usage.cost
        return None if made is None or paid is None else max(0.0, made - paid)

    def as_data(self) -> dict[str, Any]:
        """Plain data."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "usage"}
        u = self.usage
        return own | {
            "resumable": self.resumable,
            "calls": u.calls,
            "retried_calls": u.retried_calls,
            "tokens": u.tokens,
            "cost": u.cost,
            "cached_calls": u.cached_calls,
            "saved": self.saved,
        }

    def summary(self) -> list[str]:
        """A few lines for people."""
        stops = {why: n for why, n in self.stops.items() if why != NOT_STARTED}
        rows = f"rows {self.done:,} done" + "".join(
            f", {count:,} {what}"
            for count, what in (
                (self.failed, "failed"),
                (self.cut, "cut short"),
                (self.not_started + self.left, "not tried"),
                (self.bad, "unreadable"),
            )
            if count
        )
        lines = [
            rows + (f" ({self.kept:,} of them before)" if self.kept else ""),
            self._again,
            self._scores(),
            "stopped: " + ", ".join(f"{why} {n:,}" for why, n in stops.items()) if stops else "",
            "diagnosis: " + ", ".join(f"{what} {n:,}" for what, n in self.diagnoses.items()) if self.diagnoses else "",
            "errors: " + ", ".join(f"{kind} {n:,}" for kind, n in self.errors.items()) if self.errors else "",
            *(f"{kind}, for one: {why}" for kind, why in self.reasons.items()),
            f"the best breaks a must: {self.broken:,}" if self.broken else "",
            *purse_and_priors(self.as_data()).values(),
            self._paid(),
        ]
        return list(filter(None, lines))

    @property
    def _again(self) -> str:
        """That nothing was done, since all was done before; and what to do where that is not what was meant."""
        if self.ended or not self.kept or self.kept < self.rows:
            return ""
        failed = "; --retry failed does those again that failed" if self.failed else ""
        return f"all rows were finished before, so nothing was done{failed}; another output begins a new run"

    def _scores(self) -> str:
        if self.uplift is None or self.mean_first is None or self.mean_best is None:
            return "score unknown"
        around = f" (95 %: {self.interval[0]:+.3f} to {self.interval[1]:+.3f})" if self.interval else ""
        counts = [
            f"improved {self.improved:,}",
            *([f"too few looks to tell row by row {self.unsure:,}"] if self.unsure else []),
            f"unchanged {self.unchanged:,}",
            f"later ones worse and the first kept {self.regressed:,}",
        ]
        return f"score {self.mean_first:.3f} -> {self.mean_best:.3f}, uplift {self.uplift:+.3f}{around}; {', '.join(counts)}"

    def _paid(self) -> str:
        u = self.usage
        tokens = "tokens unknown" if u.tokens is None else f"{u.tokens:,} tokens"
        cost = "cost unknown" if u.cost is None else f"{u.cost:.4f} USD"
        saved = ""
        if u.cached_calls:
            worth = "" if self.saved is None else f", {self.saved:.4f} USD saved"
            saved = f"; {u.cached_calls:,} calls from the cache{worth}"
        return f"paid: {u.calls:,} calls, {tokens}, {cost}{saved}; {self.seconds:.1f} s"


OF_PURSE = ("price", "price_unit", "priors", "began_with", "learned", "taught", "for_next")


def _reason(came: Came) -> str:
    """What the error of a row said, on one line."""
    said = " ".join(str(came.columns["error"] or "").removeprefix(f"{came.kind}: ").split())
    return said if len(said) <= LONGEST_REASON else f"{said[:LONGEST_REASON]}..."


def purse_and_priors(report: Mapping[str, Any]) -> dict[str, str]:
    """What a report, as plain data, tells of the budget, the purse and what is believed: a line each, in words."""
    told = {
        "budget": report.get("excess", ""),
        "purse": _purse(report),
        "priors": "; ".join(_priors(report)),
        "learned": _for_next(report),
    }
    return {name: line for name, line in told.items() if line}


def _purse(report: Mapping[str, Any]) -> str:
    if report.get("price") is None:
        return ""
    rows = report["stops"].get(StopReason.GAIN, 0)
    ended = f"; {rows:,} row{'s' * (rows != 1)} ended because nothing more was worth its price" if rows else ""
    return price_told(report["price"], report["price_unit"]) + ended


def _priors(report: Mapping[str, Any]) -> Iterator[str]:
    if tasks := report.get("began_with"):
        yield f"began with what {tasks:,} tasks taught"
    elif report.get("priors"):
        yield "began with the priors that were given"
    for stage in report.get("learned", ()):
        yield f"rows from {stage['from']:,} on go by what {stage['rows']:,} rows taught"


def _for_next(report: Mapping[str, Any]) -> str:
    taught, tasks = report.get("taught", 0), report.get("for_next", 0)
    if tasks > taught:
        return f"what {tasks:,} tasks taught is kept for --priors learned, not what {taught:,} rows taught now: redraft priors"
    return f"what {taught:,} rows taught is kept for --priors learned: redraft priors" if tasks else ""


def report_of(progress: Progress, tally: Tally, **about: Any) -> Report:
    """The report of a run that has ended."""
    return Report(
        rows=progress.done + progress.failed + progress.cut + progress.not_started,
        **{name: getattr(progress, name) for name in ("done", "failed", "kept", "cut", "not_started", "bad", "seconds", "usage")},
        **{name: getattr(tally, name) for name in ("improved", "unchanged", "regressed", "unsure", "broken")},
        uplift=tally.uplift.mean if tally.uplift.n else None,
        interval=tally.uplift.interval,
        mean_first=progress.first.value,
        mean_best=progress.best.value,
        stops=dict(sorted(tally.stops.items())),
        diagnoses=dict(sorted(tally.diagnoses.items())),
        errors=dict(sorted(tally.errors.items())),
        reasons=dict(sorted(tally.reasons.items())),
        by_iteration=tuple(it.as_data(n) for n, it in sorted(tally.iterations.items())),
        price=progress.price,
        price_unit=progress.price_unit,
        left=progress.left or 0,
        **about,
    )
