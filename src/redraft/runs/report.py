"""The report of a run: `ReportBuilder` counts rows as they end, in constant memory; `build_report`
makes the `BatchReport`.

A report has a part for each question: what became of the rows (`RunRows`), what the work brought
(`RunScores`), what was paid (`RunSpending`), and which priors were used (`RunPriors`). Its form as
JSON values, version 2, is the same nesting. `BatchReport.from_data` reads it, and version 1, which
releases up to 0.2 wrote into journals: one level, whose other names are in `VERSION_1`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from html import escape
from math import sqrt
from typing import Any, TypeVar

from ..base.money import format_usd
from ..base.text import format_duration, pluralize, strip_control_sequences
from ..errors import StoreError
from ..loop.records import StopReason
from ..loop.serialize import field_validators
from ..middleware.prompt_cuts import CUT
from ..plans.quality.result_facts import ResultFacts
from ..usage import Usage, add_optional
from .forecast import ForecastRange, RunForecast
from .progress import SCHEMA, BatchProgress, Mean, format_price
from .row_result import NOT_STARTED

MAX_REASON, MAX_ID = 300, 80  # characters that are shown
OWN_ERROR = "ConfigError"  # whose message repeats no endpoint, and says what to change
Z = 1.959964  # two-sided 95% of a normal distribution
T = TypeVar("T")


# ---- the report


@dataclass(frozen=True, slots=True)
class ErrorExample:
    """The first error of a kind.

    Attributes:
        message: Its message, which may quote a prompt or an endpoint; "" if it is left out.
        row: The ID of its row; None if it is unknown.
    """

    message: str = ""
    row: str | None = None


@dataclass(frozen=True, slots=True)
class RunRows:
    """What became of the rows, as numbers of rows.

    Attributes:
        done: Rows that are finished.
        failed: Rows that ended with an error, or that no grader could score.
        unfinished: Rows that were cut short; their best answer so far is in the output.
        not_started: Rows for which no budget or time was left.
        remaining: Rows that the run did not reach, and that are not in the output.
        reused: Rows of `done` and `failed` that an earlier run had finished.
        bad: Rows that cannot be used; they are in the errors file.
        blank: Given responses in the data that are blank. A blank response is no response.
        improved: Rows whose best answer satisfies more musts than the first, or as many and scores
            higher by more than the noise of the graders explains.
        unsure: Rows whose best answer scores higher, but with too few grades to rule out noise.
        unchanged: Rows with two scores that are neither improved, unsure nor regressed.
        regressed: Rows in which a later answer scored lower, and the first was kept.
        broken: Rows whose best answer violates a must.
        cut_prompts: Rows whose best answer was written to a prompt that the server had cut.
        stops: Rows by the reason why they stopped.
        diagnoses: Rows by their diagnosis (see `redraft.plans.quality.diagnosis`).
        errors: Rows by the kind of their error.
        error_examples: The first error of each kind.
    """

    done: int = 0
    failed: int = 0
    unfinished: int = 0
    not_started: int = 0
    remaining: int = 0
    reused: int = 0
    bad: int = 0
    blank: int = 0
    improved: int = 0
    unsure: int = 0
    unchanged: int = 0
    regressed: int = 0
    broken: int = 0
    cut_prompts: int = 0
    stops: Mapping[str, int] = field(default_factory=dict)
    diagnoses: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    error_examples: Mapping[str, ErrorExample] = field(default_factory=dict)

    @property
    def in_output(self) -> int:
        """Rows in the output: `done` + `failed` + `unfinished` + `not_started`."""
        return self.done + self.failed + self.unfinished + self.not_started


@dataclass(frozen=True, slots=True)
class IterationReport:
    """One iteration, over all rows that had it. None: unknown, or not applicable.

    Attributes:
        iteration: Its number; 0 is the first answer.
        rows: The number of rows.
        gain: The mean gain of score over the iteration before.
        calls: The calls of its answers.
        cost: Their cost in USD.
        calls_per_point: The calls for a gain of 0.01, summed over rows.
        usd_per_point: The cost of the same.
    """

    iteration: int
    rows: int
    gain: float | None
    calls: int
    cost: float | None
    calls_per_point: float | None
    usd_per_point: float | None


@dataclass(frozen=True, slots=True)
class RunScores:
    """What the work brought, over the rows with two scores; estimates if graders are noisy. None:
    no row has them.

    Attributes:
        initial: The mean score of the first answers.
        best: The mean score of the best answers.
        uplift: The mean of best - first score, in [-1, 1].
        uplift_interval: The 95% interval of `uplift`.
        bases: The number of rows by what stands behind their scores, as in `Result.score_basis`.
        by_iteration: The gain and the cost of each iteration.
    """

    initial: float | None = None
    best: float | None = None
    uplift: float | None = None
    uplift_interval: tuple[float, float] | None = None
    bases: Mapping[str, int] = field(default_factory=dict)
    by_iteration: tuple[IterationReport, ...] = ()


@dataclass(frozen=True, slots=True)
class RunSpending:
    """What was paid in this run. Calls answered from the cache are counted, but not paid for.
    None: unknown.

    Attributes:
        calls: Model calls, with those that failed and were repeated.
        retried_calls: How many of them were retries or repeated questions.
        cached_calls: Calls that were answered from the cache.
        tokens: Input and output tokens together.
        input_tokens: Tokens that models read. (Unknown in a report of 0.2, as the next three.)
        output_tokens: Tokens that models wrote.
        answer_tokens: As in `redraft.Usage`.
        answer_cost: As in `redraft.Usage`.
        cost: The cost in USD.
        cache_savings: What the answers from the cache cost in USD when they were made.
        excess: What was spent beyond the budget, and why, for people; "" if nothing was.
        price: The gain of score that each `price_unit` had to bring at the end, if rows shared a
            budget.
        price_unit: "calls", "tokens" (in thousands) or "usd".
    """

    calls: int = 0
    retried_calls: int = 0
    cached_calls: int = 0
    tokens: int | None = 0
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    answer_tokens: int | None = 0
    answer_cost: float | None = 0.0
    cost: float | None = 0.0
    cache_savings: float | None = 0.0
    excess: str = ""
    price: float | None = None
    price_unit: str = ""

    @classmethod
    def from_usage(cls, usage: Usage, **others: Any) -> RunSpending:
        """Return the spending with this usage."""
        return cls(tokens=usage.tokens, **asdict(usage), **others)

    @property
    def usage(self) -> Usage:
        """The same as a `Usage`, to be added to others."""
        return Usage(
            self.calls,
            self.input_tokens,
            self.output_tokens,
            self.cached_calls,
            self.retried_calls,
            self.cost,
            self.answer_tokens,
            self.answer_cost,
        )


@dataclass(frozen=True, slots=True)
class RunPriors:
    """The priors that a run used, and what it learned for others.

    Attributes:
        initial: The priors at the start of the run; None for the shipped ones.
        initial_tasks: The number of tasks to which those were fitted.
        refits: For each refit the first row that it applies to ("from"), and the number of "rows"
            to which it was fitted.
        second_looks: The number of additional grades of first answers, made to learn how noisy
            judges are; the spending includes them.
        offered_rows: The number of rows of this run to which the priors were fitted that are
            offered to other runs (0: none).
        saved_tasks: The number of tasks behind the priors that are saved for other runs now.
    """

    initial: Mapping[str, Any] | None = None
    initial_tasks: int = 0
    refits: tuple[Mapping[str, int], ...] = ()
    second_looks: int = 0
    offered_rows: int = 0
    saved_tasks: int = 0


@dataclass(frozen=True)
class BatchReport:
    """The report of a run. None: unknown, or not applicable.

    Attributes:
        rows: What became of the rows.
        scores: What the work brought.
        spending: What was paid.
        priors: The priors that were used.
        stop: Why the run ended early: "budget", "deadline", "interrupted", "fatal", "outage" or
            "disk"; "" if it is complete.
        stop_note: The same in words. It has no text of an endpoint, which may repeat a prompt: the
            output has that.
        seconds: The duration of the run.
        run: The name of the run.
        output: The path of the output.
        journal: The path of the journal.
        journal_lost: Whether the journal was deleted and could not be restored; if not, the same
            command resumes the run.
        forecast: What the other rows take, if this was a pilot.
        callback_errors: What `on_record` and `on_step` raised, in words; the run went on.
    """

    rows: RunRows = RunRows()
    scores: RunScores = RunScores()
    spending: RunSpending = RunSpending()
    priors: RunPriors = RunPriors()
    stop: str = ""
    stop_note: str = ""
    seconds: float = 0.0
    run: str = ""
    output: str | None = None
    journal: str = ""
    journal_lost: bool = False
    forecast: RunForecast | None = None
    callback_errors: tuple[str, ...] = ()

    @property
    def resumable(self) -> bool:
        """Whether the same command would resume the run."""
        return not self.journal_lost and bool(
            self.stop or self.rows.unfinished or self.rows.not_started
        )

    def as_data(self, *, quote_errors: bool = True) -> dict[str, Any]:
        """Return the report as JSON values, in version 2. Without `quote_errors` it has no messages
        of rows.
        """
        data = {"schema": SCHEMA, **asdict(self), "resumable": self.resumable}
        data["rows"]["in_output"] = self.rows.in_output
        for example in () if quote_errors else data["rows"]["error_examples"].values():
            example["message"] = ""
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> BatchReport:
        """Return the report that `as_data` described, or version 1. Raises StoreError for anything
        else.
        """
        try:
            version = data.get("schema", 1)
            if version not in (1, SCHEMA):
                raise StoreError(
                    f"a report of schema {version!r:.80}; this release reads schemas 1 and "
                    f"{SCHEMA}: use the Redraft that wrote it, or a newer one"
                )
            return _read_report(_as_version_2(data) if version == 1 else data)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise StoreError(f"not a report: {type(error).__name__}, {error}") from error

    def summary(self, *, quote_errors: bool = True) -> list[str]:
        """Return the lines of a summary for people.

        Without `quote_errors`, a row stands for the message of each kind of error but ConfigError.
        """
        rows = self.rows
        lines = [
            _counts_line(rows),
            f"blank given responses, which count as none: {rows.blank:,}" if rows.blank else "",
            _idle_line(self),
            _score_line(self.scores, rows),
            *_end_lines(rows, quote_errors=quote_errors),
            *self.callback_errors,
            f"best answer violates a must: {rows.broken:,}" if rows.broken else "",
            f"prompts cut by the server: {pluralize(rows.cut_prompts, 'row')}"
            if rows.cut_prompts
            else "",
            *self.budget_and_priors().values(),
            f"{_payment_line(self.spending)}; {format_duration(self.seconds)}",
            *(self.forecast.summary() if self.forecast else []),
        ]
        return list(filter(None, lines))

    def budget_and_priors(self) -> dict[str, str]:
        """Return a line each, for people, about the budget, the price and the priors."""
        lines = {
            "budget": self.spending.excess,
            "price": _price_line(self.spending, self.rows),
            "priors": _start_line(self.priors),
            "calibration": _second_looks_line(self.priors, self.spending.calls),
            "learned": _saved_line(self.priors),
        }
        return {name: line for name, line in lines.items() if line}

    def _repr_html_(self) -> str:
        rows, *lines = (escape(strip_control_sequences(line)) for line in self.summary())
        return f"<p>{rows}</p><ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"


# ---- in words, for people


def _counts_line(rows: RunRows) -> str:
    counts = (
        (rows.failed, "failed"),
        (rows.unfinished, "cut short"),
        (rows.not_started + rows.remaining, "not tried"),
        (rows.bad, "unreadable"),
    )
    others = "".join(f", {count:,} {what}" for count, what in counts if count)
    before = f" ({rows.reused:,} of them before)" if rows.reused else ""
    return f"rows {rows.done:,} done{others}{before}"


def _idle_line(report: BatchReport) -> str:
    """Return a line for a run in which no row was left to do; "" for others."""
    rows = report.rows
    if report.stop or not rows.reused or rows.reused < rows.in_output:
        return ""
    failed = "; --retry failed repeats the failed ones" if rows.failed else ""
    return (
        f"all rows were finished before, so nothing was done{failed}; another output starts a new "
        "run"
    )


def _score_line(scores: RunScores, rows: RunRows) -> str:
    if scores.uplift is None or scores.initial is None or scores.best is None:
        return "score unknown"
    interval = ""
    if scores.uplift_interval:
        low, high = scores.uplift_interval
        interval = f" (95%: {low:+.3f} to {high:+.3f})"
    unsure = f", too few grades to tell {rows.unsure:,}" if rows.unsure else ""
    return (
        f"score {scores.initial:.3f} -> {scores.best:.3f}{_basis_text(scores.bases)}, "
        f"uplift {scores.uplift:+.3f}{interval}; improved {rows.improved:,}{unsure}, "
        f"unchanged {rows.unchanged:,}, regressed (first answer kept) {rows.regressed:,}"
    )


def _basis_text(bases: Mapping[str, int]) -> str:
    """Return what stands behind the scores, with a space before it; "" if no judge does."""
    if len(bases) == 1:
        return f" {next(iter(bases))}"
    counts = ", ".join(f"{n:,} {basis}" for basis, n in bases.items())
    return f" ({counts})" if counts else ""


def _end_lines(rows: RunRows, *, quote_errors: bool) -> Iterator[str]:
    """Yield why rows stopped, their diagnoses, and their errors with an example each."""
    stops = {why: n for why, n in rows.stops.items() if why != NOT_STARTED}
    named = ("stopped", stops), ("diagnosis", rows.diagnoses), ("errors", rows.errors)
    for what, counts in named:
        if counts:
            yield f"{what}: " + ", ".join(f"{name} {n:,}" for name, n in counts.items())
    for kind, example in rows.error_examples.items():
        if quote_errors or kind == OWN_ERROR:
            yield f"{kind}, for example: {example.message}"
        else:
            place = "a row" if example.row is None else f"row {example.row[:MAX_ID]!r}"
            yield f"{kind}, for example in {place} of the output"


def _price_line(spending: RunSpending, rows: RunRows) -> str:
    if spending.price is None:
        return ""
    ended = rows.stops.get(StopReason.GAIN, 0)
    why = f"; {pluralize(ended, 'row')} ended because nothing more was worth its price"
    return format_price(spending.price, spending.price_unit) + (why if ended else "")


def _start_line(priors: RunPriors) -> str:
    """Return the priors at the start, and what replaced them; "" for the shipped ones alone."""
    phrases = [
        f"rows from {refit['from']:,} on use priors fitted to {refit['rows']:,} earlier rows"
        for refit in priors.refits
    ]
    if priors.initial_tasks:
        phrases.insert(
            0, f"started with priors fitted to {pluralize(priors.initial_tasks, 'task')}"
        )
    elif priors.initial:
        phrases.insert(0, "started with the given priors")
    return "; ".join(phrases)


def _second_looks_line(priors: RunPriors, calls: int) -> str:
    if not (looks := priors.second_looks):
        return ""
    share = f" ({looks / calls:.1%} of the calls)" if calls else ""
    return (
        f"{pluralize(looks, 'first answer was', 'first answers were')} graded twice, to learn how "
        f"noisy the judge is{share}"
    )


def _saved_line(priors: RunPriors) -> str:
    rows, tasks = priors.offered_rows, priors.saved_tasks
    if tasks > rows:
        return (
            f"priors fitted to {pluralize(tasks, 'task')} stay saved for runs with learned priors, "
            f"not those of {pluralize(rows, 'row')} now: redraft priors"
        )
    return (
        f"priors fitted to {pluralize(rows, 'row')} are saved for runs with learned priors: "
        "redraft priors"
        if tasks
        else ""
    )


def _payment_line(spending: RunSpending) -> str:
    tokens = "tokens unknown" if spending.tokens is None else pluralize(spending.tokens, "token")
    cost = "cost unknown" if spending.cost is None else format_usd(spending.cost)
    saved = ""
    if spending.cached_calls:
        savings = spending.cache_savings
        worth = "" if savings is None else f", {format_usd(savings)} saved"
        saved = f"; {pluralize(spending.cached_calls, 'call')} from the cache{worth}"
    return f"paid: {pluralize(spending.calls, 'call')}, {tokens}, {cost}{saved}"


# ---- reading its form

PARTS: Mapping[str, type] = {
    "rows": RunRows,
    "scores": RunScores,
    "spending": RunSpending,
    "priors": RunPriors,
}
VERSION_1 = {  # the names that differ, as they were; the others are in a part now
    "scores.initial": "mean_first",
    "scores.best": "mean_best",
    "scores.uplift_interval": "interval",
    "scores.bases": "score_bases",
    "priors.initial": "priors",
    "priors.initial_tasks": "initial_prior_tasks",
    "priors.refits": "prior_refits",
    "priors.offered_rows": "prior_rows",
    "priors.saved_tasks": "saved_prior_tasks",
    "stop": "end_reason",
    "stop_note": "message",
}
NOT_IN_VERSION_1 = dict.fromkeys(("input_tokens", "output_tokens", "answer_tokens", "answer_cost"))


def _as_version_2(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return version 1 as version 2."""
    flat = {**NOT_IN_VERSION_1, **data}
    rows = data.get("error_rows", {})
    flat["error_examples"] = {
        kind: {"message": message, "row": rows.get(kind)}
        for kind, message in data.get("reasons", {}).items()
    }
    nested: dict[str, Any] = {
        part: {
            f.name: flat[was]
            for f in fields(cls)
            if (was := VERSION_1.get(f"{part}.{f.name}", f.name)) in flat
        }
        for part, cls in PARTS.items()
    }
    own = {f.name: VERSION_1.get(f.name, f.name) for f in fields(BatchReport)}
    return {name: flat[was] for name, was in own.items() if was in flat} | nested


def _read_report(data: Mapping[str, Any]) -> BatchReport:
    """Return a report from its form in version 2."""
    rows, scores, forecast = data["rows"], data["scores"], data.get("forecast")
    examples = {kind: _read(ErrorExample, each) for kind, each in rows["error_examples"].items()}
    iterations = tuple(_read(IterationReport, each) for each in scores["by_iteration"])
    if not all({"from", "rows"} <= refit.keys() for refit in data["priors"].get("refits", ())):
        raise ValueError("a refit says from which row it applies, and to how many it was fitted")
    return _read(
        BatchReport,
        data,
        rows=_read(RunRows, rows, error_examples=examples),
        scores=_read(RunScores, scores, by_iteration=iterations),
        spending=_read(RunSpending, data["spending"]),
        priors=_read(RunPriors, data["priors"]),
        forecast=forecast and _read_forecast(forecast),
    )


def _read_forecast(data: Mapping[str, Any]) -> RunForecast:
    ranges = {
        name: _read(ForecastRange, value)
        for name, value in data.items()
        if isinstance(value, Mapping)
    }
    return _read(RunForecast, data, **ranges)


def _read(cls: type[T], data: Mapping[str, Any], **parts: Any) -> T:
    """Return an object from its fields in `data`, and its `parts` that are objects. Raises
    TypeError, or ValueError with the name of the field.
    """
    values = {}
    for name, is_valid in field_validators(cls).items():
        if name in parts or name in data:
            value = parts[name] if name in parts else data[name]
            values[name] = tuple(value) if isinstance(value, list) else value
            if not is_valid(values[name]):
                raise ValueError(f"{name} cannot be {value!r:.80}")
    return cls(**values)


# ---- counting rows


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
        """The 95% interval of the mean by the normal approximation, clipped to [-1, 1]; None for
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

    def report(self, number: int) -> IterationReport:
        """Return the figures of the iteration with this number."""
        points = 100 * self.gain.sum
        calls_per_point = self.calls / points if points > 0 else None
        usd_per_point = self.cost / points if self.cost is not None and points > 0 else None
        return IterationReport(
            number,
            self.rows,
            self.gain.value,
            self.calls,
            self.cost,
            calls_per_point,
            usd_per_point,
        )


@dataclass
class ReportBuilder:
    """Counts the rows of a run as they end. `counts` are those of `RunRows` by their names, as far
    as they are about answers and their scores.
    """

    uplift: RunningMean = field(default_factory=RunningMean)
    counts: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    diagnoses: Counter[str] = field(default_factory=Counter)
    bases: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    error_examples: dict[str, ErrorExample] = field(default_factory=dict)
    iterations: dict[int, IterationStats] = field(default_factory=dict)

    def add(self, result: ResultFacts, row: str) -> None:
        """Count a row that ended; `row` is its ID."""
        self.stops[result.stop] += 1
        self.counts["broken"] += bool(result.broken)
        self.counts["cut_prompts"] += CUT in result.note
        if result.diagnosis:
            self.diagnoses[result.diagnosis] += 1
        if (kind := result.error_kind) and kind != NOT_STARTED:
            self.errors[kind] += 1
            self.error_examples.setdefault(kind, ErrorExample(_error_line(result), row))
        first, best = result.initial_score, result.score
        if first is not None and best is not None:
            self.uplift.add(best - first)
            self.counts[_change(result)] += 1
            if result.score_basis:
                self.bases[result.score_basis] += 1
        self._add_iterations(result)

    def _add_iterations(self, result: ResultFacts) -> None:
        before: float | None = None
        for n, (score, calls, cost) in enumerate(result.by_iteration):
            stats = self.iterations.get(n) or self.iterations.setdefault(n, IterationStats())
            stats.rows += 1
            stats.calls += calls
            stats.cost = add_optional(stats.cost, cost)
            if n and score is not None and before is not None:
                stats.gain.add(score - before)
            before = score


def _change(result: ResultFacts) -> str:
    """Return which count of `RunRows` a row with two scores belongs to."""
    if result.improved:
        return "improved"
    if result.unsure:
        return "unsure"
    return "regressed" if result.worse else "unchanged"


def _error_line(result: ResultFacts) -> str:
    """Return the error message of a row on one line."""
    message = " ".join((result.error or "").removeprefix(f"{result.error_kind}: ").split())
    return message if len(message) <= MAX_REASON else f"{message[:MAX_REASON]}..."


def build_report(
    progress: BatchProgress,
    builder: ReportBuilder,
    *,
    blank: int = 0,
    excess: str = "",
    **others: Any,
) -> BatchReport:
    """Return the report of a run that has ended; `others` are fields of the report that neither
    `progress` nor `builder` knows.
    """
    rows = RunRows(
        progress.done,
        progress.failed,
        progress.unfinished,
        progress.not_started,
        progress.remaining or 0,
        progress.reused,
        progress.bad,
        blank,
        **builder.counts,
        stops=dict(sorted(builder.stops.items())),
        diagnoses=dict(sorted(builder.diagnoses.items())),
        errors=dict(sorted(builder.errors.items())),
        error_examples=dict(sorted(builder.error_examples.items())),
    )
    scores = RunScores(
        progress.first.value,
        progress.best.value,
        builder.uplift.mean if builder.uplift.n else None,
        builder.uplift.interval,
        dict(sorted(builder.bases.items())),
        tuple(it.report(n) for n, it in sorted(builder.iterations.items())),
    )
    spending = RunSpending.from_usage(
        progress.usage,
        cache_savings=progress.cache_savings,
        excess=excess,
        price=progress.price,
        price_unit=progress.price_unit,
    )
    return BatchReport(rows, scores, spending, seconds=progress.seconds, **others)
