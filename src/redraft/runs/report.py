"""The report of a run: `ReportBuilder` counts rows as they end, in constant memory; `build_report`
makes the `BatchReport`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from html import escape
from math import sqrt
from typing import Any

from ..base.money import format_usd
from ..base.text import pluralize, strip_control_sequences
from ..loop.records import StopReason
from ..middleware.prompt_cuts import CUT
from ..plans.quality.result_facts import ResultFacts
from ..usage import Usage
from .forecast import RunForecast
from .progress import BatchProgress, Mean, format_price
from .row_result import NOT_STARTED

MAX_REASON, MAX_ID = 300, 80  # characters that are shown
COUNTS = ("improved", "unchanged", "regressed", "unsure", "broken", "cut_prompts")
COUNTERS = ("stops", "diagnoses", "errors", "bases")
Z = 1.959964  # two-sided 95 % of a normal distribution


@dataclass(slots=True)
class RunningMean:
    """Mean and variance of a stream of numbers (Welford 1962)."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.n += 1
        deviation = value - self.mean
        self.mean += deviation / self.n
        self.squares += deviation * (value - self.mean)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean by the normal approximation, clipped to [-1, 1]; None for
        fewer than two numbers.
        """
        if self.n < 2:
            return None
        half = Z * sqrt(self.squares / (self.n - 1) / self.n)
        return max(-1.0, self.mean - half), min(1.0, self.mean + half)


@dataclass(slots=True)
class IterationStats:
    """The gain and the cost of the n-th refinement, over all rows that had one."""

    gain: Mean = field(default_factory=Mean)
    rows: int = 0
    calls: int = 0
    cost: float | None = 0.0

    def as_data(self, number: int) -> dict[str, Any]:
        """Return plain data. `calls_per_point` and `usd_per_point` are per gain of 0.01, summed
        over rows.
        """
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


OWN_ERROR = "ConfigError"  # whose message repeats no endpoint, and says what to change


@dataclass
class ReportBuilder:
    """Counts the rows of a run as they end."""

    uplift: RunningMean = field(default_factory=RunningMean)
    improved: int = 0
    unchanged: int = 0
    regressed: int = 0
    unsure: int = 0
    broken: int = 0
    cut_prompts: int = 0
    stops: Counter[str] = field(default_factory=Counter)
    diagnoses: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    error_rows: dict[str, str] = field(default_factory=dict)
    iterations: dict[int, IterationStats] = field(default_factory=dict)
    bases: Counter[str] = field(default_factory=Counter)

    def add(self, result: ResultFacts, row: str) -> None:
        """Count a row that ended; `row` is its ID."""
        self.stops[result.stop] += 1
        self.broken += bool(result.broken)
        self.cut_prompts += CUT in result.note
        if result.diagnosis:
            self.diagnoses[result.diagnosis] += 1
        if result.error_kind and result.error_kind != NOT_STARTED:
            self.errors[result.error_kind] += 1
            self.reasons.setdefault(result.error_kind, _error_line(result))
            self.error_rows.setdefault(result.error_kind, row)
        first, best = result.initial_score, result.score
        if first is not None and best is not None:
            self.uplift.add(best - first)
            if result.score_basis:
                self.bases[result.score_basis] += 1
            self.improved += result.improved
            self.unsure += result.unsure
            self.regressed += result.worse and not (result.improved or result.unsure)
            self.unchanged += not (result.worse or result.improved or result.unsure)
        before: float | None = None
        for n, (score, calls, cost) in enumerate(result.by_iteration):
            stats = self.iterations.get(n) or self.iterations.setdefault(n, IterationStats())
            stats.rows += 1
            stats.calls += calls
            stats.cost = None if cost is None or stats.cost is None else stats.cost + cost
            if n and score is not None and before is not None:
                stats.gain.add(score - before)
            before = score

    def as_data(self) -> dict[str, Any]:
        """Return plain data, from which `from_data` makes an equal object."""
        return {
            "uplift": list(astuple(self.uplift)),
            "counts": {name: getattr(self, name) for name in COUNTS},
            "counters": {name: dict(getattr(self, name)) for name in COUNTERS},
            "reasons": self.reasons,
            "error_rows": self.error_rows,
            "iterations": [
                [*astuple(it.gain), it.rows, it.calls, it.cost]
                for _, it in sorted(self.iterations.items())
            ],
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> ReportBuilder:
        """Return what `as_data` described."""
        iterations = {
            n: IterationStats(Mean(gains, gain), *more)
            for n, (gains, gain, *more) in enumerate(data["iterations"])
        }
        rows, mean, squares = data["uplift"]
        counters: dict[str, Any] = {name: Counter(data["counters"][name]) for name in COUNTERS}
        uplift = RunningMean(rows, mean, squares)
        examples = {"reasons": data["reasons"], "error_rows": data.get("error_rows", {})}
        return cls(uplift, **data["counts"], **counters, **examples, iterations=iterations)


@dataclass(frozen=True)
class BatchReport:
    """The report of a run. None: unknown, or not applicable.

    Attributes:
        rows: Rows in the output: `done` + `failed` + `unfinished` + `not_started`.
        done: Rows that are finished.
        failed: Rows that ended with an error, or that no grader could score.
        reused: Rows of `done` and `failed` that an earlier run had finished.
        unfinished: Rows that were cut short; their best answer so far is in the output.
        not_started: Rows for which no budget or time was left.
        bad: Rows that cannot be used; they are in the errors file.
        blank: Given responses in the data that are blank. A blank response is no response.
        remaining: Rows that the run did not reach, and that are not in the output.
        seconds: The duration of the run.
        usage: What was paid in this run. Calls answered from the cache are counted, but not paid
            for.
        uplift: The mean of best - first score in [-1, 1], over the rows with both; estimates if
            graders are noisy.
        interval: The 95 % interval of `uplift`.
        mean_first: The mean score of the first answers.
        mean_best: The mean score of the best answers.
        improved: Rows whose best answer satisfies more musts than the first, or as many and scores
            higher by more than the noise of the graders explains.
        unsure: Rows whose best answer scores higher, but with too few grades to rule out noise.
        unchanged: Rows with two scores that are neither improved, unsure nor regressed.
        regressed: Rows in which a later answer scored lower, and the first was kept.
        broken: Rows whose best answer violates a must.
        cut_prompts: Rows whose best answer was written to a prompt that the server had cut.
        stops: The number of rows by the reason why they stopped.
        diagnoses: The number of rows by their diagnosis (see `redraft.plans.quality.diagnosis`).
        errors: The number of rows by the kind of their error.
        reasons: The first message of each kind of error, which may quote a prompt or an endpoint.
        error_rows: The ID of the row with that message.
        by_iteration: The gain and the cost of each iteration, over all rows.
        score_bases: The number of rows of `uplift` by what stands behind their scores, as in
            `Result.score_basis`.
        end_reason: Why the run ended early: "budget", "deadline", "interrupted", "fatal", "outage"
            or "disk"; "" if it is complete.
        message: Details of `end_reason`, for people. It has no text of an endpoint, which may
            repeat a prompt: the output has that.
        forecast: What the other rows take, if this was a pilot.
        journal_lost: Whether the journal was deleted and could not be restored; if not, the same
            command resumes the run.
        output: The path of the output.
        journal: The path of the journal.
        run: The name of the run.
        excess: What was spent beyond the budget, and why, for people; "" if nothing was.
        price: The gain of score that each `price_unit` had to bring at the end, if rows shared a
            budget.
        price_unit: "calls", "tokens" (in thousands) or "usd".
        priors: The priors at the start of the run; None for the shipped ones.
        initial_prior_tasks: The number of tasks to which those were fitted.
        prior_refits: For each refit the first row that it applies to ("from"), and the number of
            "rows" to which it was fitted.
        prior_rows: The number of rows of this run to which the priors were fitted that are offered
            to other runs (0: none).
        second_looks: The number of additional grades of first answers, made to learn how noisy
            judges are; `usage` includes them.
        saved_prior_tasks: The number of tasks behind the priors that are saved for other runs now.
        callback_errors: What `on_record` and `on_step` raised, in words; the run went on.
        cache_savings: What the answers from the cache cost in USD when they were made.
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
    second_looks: int = 0
    unsure: int = 0
    cut_prompts: int = 0
    remaining: int = 0
    blank: int = 0
    journal_lost: bool = False
    forecast: RunForecast | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    error_rows: Mapping[str, str] = field(default_factory=dict)
    score_bases: Mapping[str, int] = field(default_factory=dict)
    callback_errors: tuple[str, ...] = ()
    cache_savings: float | None = 0.0

    @property
    def resumable(self) -> bool:
        """Whether the same command would resume the run."""
        return not self.journal_lost and bool(
            self.end_reason or self.unfinished or self.not_started
        )

    def as_data(self) -> dict[str, Any]:
        """Return plain data."""
        data = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in {"usage", "forecast"}
        }
        u = self.usage
        forecast = {"forecast": self.forecast.as_data()} if self.forecast else {}
        return (
            data
            | forecast
            | {
                "resumable": self.resumable,
                "calls": u.calls,
                "retried_calls": u.retried_calls,
                "tokens": u.tokens,
                "cost": u.cost,
                "cached_calls": u.cached_calls,
            }
        )

    def summary(self, *, quote_errors: bool = True) -> list[str]:
        """Return the lines of a summary for people.

        Without `quote_errors`, a row stands for the message of each kind of error but ConfigError.
        """
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
            f"blank given responses, which count as none: {self.blank:,}" if self.blank else "",
            self._idle_line(),
            self._score_line(),
            "stopped: " + ", ".join(f"{why} {n:,}" for why, n in stops.items()) if stops else "",
            "diagnosis: " + ", ".join(f"{what} {n:,}" for what, n in self.diagnoses.items())
            if self.diagnoses
            else "",
            "errors: " + ", ".join(f"{kind} {n:,}" for kind, n in self.errors.items())
            if self.errors
            else "",
            *(
                f"{kind}, for example{f': {why}' if quote_errors or kind == OWN_ERROR else self._error_row(kind)}"  # noqa: E501
                for kind, why in self.reasons.items()
            ),
            *self.callback_errors,
            f"best answer violates a must: {self.broken:,}" if self.broken else "",
            f"prompts cut by the server: {pluralize(self.cut_prompts, 'row')}"
            if self.cut_prompts
            else "",
            *budget_and_priors(self.as_data()).values(),
            self._payment_line(),
            *(self.forecast.summary() if self.forecast else []),
        ]
        return list(filter(None, lines))

    def _repr_html_(self) -> str:
        rows, *lines = (escape(strip_control_sequences(line)) for line in self.summary())
        return f"<p>{rows}</p><ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"

    def _error_row(self, kind: str) -> str:
        row = self.error_rows.get(kind)
        return (
            " in a row of the output" if row is None else f" in row {row[:MAX_ID]!r} of the output"
        )

    def _idle_line(self) -> str:
        """Return a line for a run in which no row was left to do; "" for others."""
        if self.end_reason or not self.reused or self.reused < self.rows:
            return ""
        failed = "; --retry failed repeats the failed ones" if self.failed else ""
        return (
            f"all rows were finished before, so nothing was done{failed}; another output starts a "
            "new run"
        )

    def _score_line(self) -> str:
        if self.uplift is None or self.mean_first is None or self.mean_best is None:
            return "score unknown"
        interval = (
            f" (95 %: {self.interval[0]:+.3f} to {self.interval[1]:+.3f})" if self.interval else ""
        )
        counts = [
            f"improved {self.improved:,}",
            *([f"too few grades to tell {self.unsure:,}"] if self.unsure else []),
            f"unchanged {self.unchanged:,}",
            f"regressed (first answer kept) {self.regressed:,}",
        ]
        scores = f"score {self.mean_first:.3f} -> {self.mean_best:.3f}{self._basis_text()}"
        return f"{scores}, uplift {self.uplift:+.3f}{interval}; {', '.join(counts)}"

    def _basis_text(self) -> str:
        """Return what stands behind the scores, with a space before it; "" if no judge does."""
        if len(self.score_bases) == 1:
            return f" {next(iter(self.score_bases))}"
        return (
            f" ({', '.join(f'{n:,} {basis}' for basis, n in self.score_bases.items())})"
            if self.score_bases
            else ""
        )

    def _payment_line(self) -> str:
        u = self.usage
        tokens = "tokens unknown" if u.tokens is None else f"{u.tokens:,} tokens"
        cost = "cost unknown" if u.cost is None else format_usd(u.cost)
        saved = ""
        if u.cached_calls:
            worth = (
                "" if self.cache_savings is None else f", {format_usd(self.cache_savings)} saved"
            )
            saved = f"; {u.cached_calls:,} calls from the cache{worth}"
        return f"paid: {u.calls:,} calls, {tokens}, {cost}{saved}; {self.seconds:.1f} s"


SUMMARIZED = (
    "price",
    "price_unit",
    "priors",
    "initial_prior_tasks",
    "prior_refits",
    "prior_rows",
    "saved_prior_tasks",
    "second_looks",
)


def _error_line(result: ResultFacts) -> str:
    """Return the error message of a row on one line."""
    message = " ".join((result.error or "").removeprefix(f"{result.error_kind}: ").split())
    return message if len(message) <= MAX_REASON else f"{message[:MAX_REASON]}..."


def budget_and_priors(report: Mapping[str, Any]) -> dict[str, str]:
    """Return a line each, for people, about the budget, the price and the priors of a report in
    plain data.
    """
    lines = {
        "budget": report.get("excess", ""),
        "price": _price_line(report),
        "priors": "; ".join(_prior_phrases(report)),
        "calibration": _calibration_line(report),
        "learned": _saved_priors_line(report),
    }
    return {name: line for name, line in lines.items() if line}


def _price_line(report: Mapping[str, Any]) -> str:
    if report.get("price") is None:
        return ""
    rows = report["stops"].get(StopReason.GAIN, 0)
    ended = (
        f"; {rows:,} row{'s' * (rows != 1)} ended because nothing more was worth its price"
        if rows
        else ""
    )
    return format_price(report["price"], report["price_unit"]) + ended


def _prior_phrases(report: Mapping[str, Any]) -> Iterator[str]:
    if tasks := report.get("initial_prior_tasks"):
        yield f"started with priors fitted to {tasks:,} tasks"
    elif report.get("priors"):
        yield "started with the given priors"
    for refit in report.get("prior_refits", ()):
        yield f"rows from {refit['from']:,} on use priors fitted to {refit['rows']:,} earlier rows"


def _calibration_line(report: Mapping[str, Any]) -> str:
    looks, calls = report.get("second_looks", 0), report.get("calls", 0)
    share = f" ({looks / calls:.1%} of the calls)" if calls else ""
    return (
        f"{looks:,} first answers were graded twice, to learn how noisy the judge is{share}"
        if looks
        else ""
    )


def _saved_priors_line(report: Mapping[str, Any]) -> str:
    rows, tasks = report.get("prior_rows", 0), report.get("saved_prior_tasks", 0)
    if tasks > rows:
        return (
            f"priors fitted to {tasks:,} tasks stay saved for runs with learned priors, not those "
            f"of {rows:,} rows now: redraft priors"
        )
    return (
        f"priors fitted to {rows:,} rows are saved for runs with learned priors: redraft priors"
        if tasks
        else ""
    )


def build_report(progress: BatchProgress, builder: ReportBuilder, **others: Any) -> BatchReport:
    """Return the report of a run that has ended; `others` are the fields that neither `progress`
    nor `builder` knows.
    """
    return BatchReport(
        rows=progress.done + progress.failed + progress.unfinished + progress.not_started,
        **{
            name: getattr(progress, name)
            for name in ("done", "failed", "reused", "unfinished", "not_started", "bad")
        },
        seconds=progress.seconds,
        usage=progress.usage,
        cache_savings=progress.cache_savings,
        **{name: getattr(builder, name) for name in COUNTS},
        uplift=builder.uplift.mean if builder.uplift.n else None,
        interval=builder.uplift.interval,
        mean_first=progress.first.value,
        mean_best=progress.best.value,
        stops=dict(sorted(builder.stops.items())),
        diagnoses=dict(sorted(builder.diagnoses.items())),
        errors=dict(sorted(builder.errors.items())),
        reasons=dict(sorted(builder.reasons.items())),
        error_rows=dict(sorted(builder.error_rows.items())),
        score_bases=dict(sorted(builder.bases.items())),
        by_iteration=tuple(it.as_data(n) for n, it in sorted(builder.iterations.items())),
        price=progress.price,
        price_unit=progress.price_unit,
        remaining=progress.remaining or 0,
        **others,
    )
