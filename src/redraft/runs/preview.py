"""What a run would read, call and cost, before any call is made.

The expected cost comes from simulated tasks (see `simulate`). If graders are computed, nothing is known of which answers pass:
each passes with a probability of one half. Prompts are counted at 4 bytes a token; an answer is as long as the given responses,
or 300 tokens. Retries and repeated requests after an unreadable answer are left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

from ..core.records import Candidate, Comparison, Feedback, Message, Record
from ..core.trace import PanelGrader
from ..middleware import Budget
from ..middleware.call_costs import CHARS_PER_TOKEN, DEFAULT_OUTPUT_TOKENS
from ..plans import NoiseAwarePlan, Plan
from ..plans.self_refine import BestOfN
from ..quality.priors import Priors
from ..session import Session
from ..storage.journal import Journal, RowInfo
from ..tables.readers import BadRow
from ..usage import NO_USAGE, Usage
from .config import BatchConfig
from .dataset import BatchDataset, BatchRow, DatasetSummary
from .row_key import RowKeys, changed_parts, row_key
from .row_result import RowResult
from .simulate import run_to_end, simulate_tasks

N = TypeVar("N", int, float)
SAMPLES = 3
CHUNK = 256
JUDGE_PROMPT = 1200  # tokens of a judge's own instructions, at most
MIN_OUTPUT = 64
CALLS_PER_COMPARISON = 2  # two answers are compared in both orders
BYTES_PER_TOKEN = 4
ANSWER, VERDICT = 300, 250  # tokens
INSTRUCTIONS, ADVICE = 300, 80  # tokens that a judge reads beside a prompt and an answer, and a refiner beside them

Range = tuple[int, int]
WorkKind = tuple[str, str]
"""A role, and for "grade" and "compare" the name of a grader."""


@dataclass(frozen=True)
class BatchPreview:
    """What a run would do.

    `summary` says what is read, `samples` are the messages of the first rows. `calls` and `tokens` are ranges over all rows that
    are not finished (`known` are), `cost` is in USD, None if a price is unknown; `expected` lies within them, None for a plan of
    the user's own. `bad` are unusable rows, with the reasons. `changes` say which rows of an earlier run would be redone, and why.
    """

    summary: tuple[str, ...]
    rows: int
    bad: tuple[BadRow, ...]
    known: int
    samples: tuple[tuple[Message, ...], ...]
    calls: Range
    tokens: Range
    cost: tuple[float, float] | None
    expected: ExpectedUsage | None
    changes: tuple[str, ...] = ()


def preview_run(
    config: BatchConfig, dataset: BatchDataset, summary: DatasetSummary, session: Session, plan: Plan, *, explain: bool = False
) -> BatchPreview:
    """Read the data and the journal, if there is one. Raises ConfigError and StoreError."""
    bad: list[BadRow] = []
    entries = dataset.rows(summary.duplicates, lambda row: bad.append(row) if len(bad) < SAMPLES else None)
    comparison = JournalComparison(config, session, plan)
    samples: list[tuple[Message, ...]] = []
    while chunk := list(islice(entries, CHUNK)):
        samples += [entry.task.messages for entry in chunk[: SAMPLES - len(samples)]]
        if not comparison.add(chunk) and not explain and len(samples) >= SAMPLES:
            break
    rows = summary.total - comparison.known
    ranges = cost_ranges(session, plan, summary, rows)
    expected = estimate_usage(session, plan, summary, rows)
    starts = describe_responses(dataset, summary, writes=session.writer is not None)
    return BatchPreview(
        (f"{summary.total:,} rows in {dataset.source.name}", dataset.shape.description, *starts),
        summary.total,
        tuple(bad),
        comparison.known,
        tuple(samples),
        *ranges,
        expected and expected.within(*ranges),
        tuple(comparison.changes()),
    )


def describe_responses(dataset: BatchDataset, summary: DatasetSummary, *, writes: bool) -> Iterator[str]:
    """Say how many rows have a response, or why none has. `writes`: whether a model can draft one."""
    if summary.with_response:
        others = "get a first draft" if writes else "have none"
        yield f"{summary.with_response:,} rows have a response to start with, {summary.total - summary.with_response:,} {others}"
    else:
        yield f"every row gets a first draft: {dataset.missing_response_reason}"


def cost_ranges(
    session: Session, plan: Plan, summary: DatasetSummary, rows: int
) -> tuple[Range, Range, tuple[float, float] | None]:
    """Return the least and the most calls, tokens and USD for so many rows, within the budget."""
    given = round(rows * summary.with_response / max(1, summary.total))
    (new, most_new), (old, most_old) = (calls_per_row(session, plan, with_response=given) for given in (False, True))
    calls = ((rows - given) * new + given * old, (rows - given) * most_new + given * most_old)
    least, most = tokens_per_call(session, summary)
    tokens = (calls[0] * least, calls[1] * most)
    cost, limits = usd_range(session, calls, tokens), session.options.budget or Budget()
    return limit_range(calls, limits.calls), limit_range(tokens, limits.tokens), cost and limit_range(cost, limits.usd)


def limit_range(amounts: tuple[N, N], limit: N | None) -> tuple[N, N]:
    """Return as much of both amounts as a budget allows."""
    return amounts if limit is None else (min(amounts[0], limit), min(amounts[1], limit))


class JournalComparison:
    """Compares the rows as they are now with the journal."""

    def __init__(self, config: BatchConfig, session: Session, plan: Plan) -> None:
        self._config, self._keys = config, RowKeys(session, plan)
        self._journal = Journal(config.journal, create=False, read_only=True) if config.journal.exists() else None
        self._name = config.name
        self._reason_counts: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self.known = 0

    def add(self, entries: Sequence[BatchRow]) -> bool:
        """Compare rows with the journal; return False if there is none."""
        if self._journal is None:
            return False
        notes = self._journal.rows_by_id(self._name, [entry.id for entry in entries])
        for entry in entries:
            self._compare(entry, notes.get(entry.id))
        return True

    def _compare(self, entry: BatchRow, note: RowInfo | None) -> None:
        parts = self._keys.parts(entry.task)
        if note is None:
            self._rows["new"] += 1
        elif note.key == row_key(parts):
            redo = note.result and self._config.redoes(RowResult.from_data(note.status, note.result))
            finished = note.status != "open" and not redo
            self._rows["finished" if finished else "to be resumed"] += 1
            self.known += finished
        else:
            self._rows["changed"] += 1
            self._reason_counts.update(self._reasons(note, parts))

    def _reasons(self, note: RowInfo, parts: dict[str, str]) -> Iterator[str]:
        for part in changed_parts(note.key_parts, parts):
            yield from (f"setting {name}" for name in self._settings_since(note)) if part == "settings" else [f"the row's {part}"]

    def _settings_since(self, note: RowInfo) -> list[str]:
        run = self._journal.run(self._name) if self._journal else None
        old = run.metadata.get("settings", {}).get(note.key_parts.get("settings")) if run else None
        return changed_parts(old, self._keys.settings) if old else ["(of an older journal)"]

    def changes(self) -> Iterator[str]:
        """Yield lines for people."""
        if self._journal is None:
            yield "there is no journal yet: every row is new"
            return
        self._journal.close()
        yield ", ".join(f"{n:,} rows {what}" for what, n in sorted(self._rows.items())) or "no rows"
        for why, n in sorted(self._reason_counts.items()):
            yield f"{why} changed: {n:,} rows are redone; calls that stay the same come from the cache"


def calls_per_row(session: Session, plan: Plan, *, with_response: bool) -> Range:
    """Return the fewest and the most calls of a row, without retries and repeated requests. `with_response`: it has one."""
    panel, roles = session.common_panel()
    compares_at_end = isinstance(plan, NoiseAwarePlan)
    calls = {grader.name: grader.repeats * calls_per_grade(roles.graders[grader.name]) for grader in panel if not grader.model_free}
    grading = sum(calls[grader.name] for grader in panel if not (grader.model_free or (compares_at_end and grader.compares)))
    drafts = getattr(plan, "drafts", 1)
    once = sum(calls_per_task(grader) for grader in roles.graders.values())
    if session.writer is None:
        return (once + grading, once + grading) if with_response else (0, 0)
    least = once + (grading if with_response else drafts * (1 + grading))
    more = 0 if isinstance(plan, BestOfN) else session.options.max_iterations
    at_end = sum(calls.get(grader.name, 0) for grader in panel if grader.compares) if compares_at_end else 0
    return least, least + more * (1 + grading) + CALLS_PER_COMPARISON * at_end


def tokens_per_call(session: Session, summary: DatasetSummary) -> Range:
    """Return the tokens of a call: with a short answer; and with a judge's instructions and the longest answer."""
    prompt = summary.prompt_bytes // max(1, summary.total) // CHARS_PER_TOKEN + 1
    most = session.options.max_tokens or DEFAULT_OUTPUT_TOKENS
    return prompt + MIN_OUTPUT, prompt + JUDGE_PROMPT + 2 * most


def usd_range(session: Session, calls: Range, tokens: Range) -> tuple[float, float] | None:
    """Return USD for so many tokens, at the prices of the models: if all are input, and if half of them are output."""
    _, roles = session.common_panel()
    prices = [client.price for client in (roles.writer, *roles.judges.values()) if client]
    if not calls[1] or not prices:
        return 0.0, 0.0
    ends = Usage(calls[0], tokens[0], 0), Usage(calls[1], tokens[1] // 2, tokens[1] // 2)
    costs = [price.cost(end) if price else None for price in prices for end in ends]
    known = [cost for cost in costs if cost is not None]
    return (min(known), max(known)) if len(known) == len(costs) else None


@dataclass(frozen=True, slots=True)
class ExpectedUsage:
    """What a run is expected to consume; `cost` in USD, None if a price is unknown."""

    calls: int
    tokens: int
    cost: float | None

    def within(self, calls: Range, tokens: Range, cost: tuple[float, float] | None) -> ExpectedUsage:
        """Return the estimate within these ranges; an unknown cost stays unknown."""
        usd = None if self.cost is None or cost is None else min(max(self.cost, cost[0]), cost[1])
        return ExpectedUsage(min(max(self.calls, calls[0]), calls[1]), min(max(self.tokens, tokens[0]), tokens[1]), usd)


def estimate_usage(session: Session, plan: Plan, summary: DatasetSummary, rows: int) -> ExpectedUsage | None:
    """Return what so many rows are expected to consume; None for a plan of the user's own."""
    if session.options.plan is not None:
        return None
    panel, roles = session.common_panel()
    given = rows * summary.with_response / max(1, summary.total)
    steps: defaultdict[WorkKind, float] = defaultdict(float)
    for share, with_response in ((given, True), (rows - given, False)):
        if share and (with_response or roles.writer):
            for kind, n in steps_per_row(session, plan, panel, with_response=with_response).items():
                steps[kind] += share * n
    usages = [(kind, expected_usage(kind, n, session, summary)) for kind, n in steps.items()]
    clients = [(roles.judges[by] if by else roles.writer, usage) for (_, by), usage in usages if usage.calls]
    costs = [client.price.cost(usage) if client and client.price else None for client, usage in clients]
    known = [cost for cost in costs if cost is not None]
    total = sum((usage for _, usage in clients), NO_USAGE)
    return ExpectedUsage(round(total.calls), round(total.tokens or 0), sum(known) if len(known) == len(costs) else None)


def steps_per_row(session: Session, plan: Plan, panel: Iterable[PanelGrader], *, with_response: bool) -> dict[WorkKind, float]:
    """Return the mean number of steps of each kind that call a model, by simulation."""
    on_panel = {grader.name: grader for grader in panel if not grader.model_free}
    priors = plan.priors if isinstance(plan, NoiseAwarePlan) else Priors()
    if not on_panel:
        priors = priors_with_even_odds(session.options.target_score)
    tasks = simulate_tasks(priors, on_panel.values(), with_response=with_response)
    traces = [run_to_end(trace, plan, task) for task, trace in tasks]
    steps: defaultdict[WorkKind, float] = defaultdict(float)
    for kind in filter(None, (_kind(record) for trace in traces for record in trace.records)):
        steps[kind] += 1
    answers = sum(len(trace.candidates) for trace in traces)
    for name, panel_grader in on_panel.items():
        grader = session.common_panel()[1].graders[name]
        if panel_grader.must:  # they are not simulated
            steps["grade", name] = answers * panel_grader.repeats
        steps["grade", name] += len(traces) * calls_per_task(grader) / max(1, calls_per_grade(grader))
    return {kind: n / len(traces) for kind, n in steps.items() if not kind[1] or kind[1] in on_panel}


def priors_with_even_odds(target: float) -> Priors:
    """Return priors by which every text reaches the target with a probability of one half, and grades are exact."""
    drafts = Priors(draft_mean=target, draft_mean_sd=0, draft_sd=0.1, noise_sd=0, bias_sd=0, bias_drift=0)
    return replace(drafts, gain=target, gain_sd=0, retention=0, step_sd=0.1)


def _kind(record: Record) -> WorkKind | None:
    match record:
        case Candidate(role="generate" | "refine"):
            return record.role, ""
        case Feedback():
            return "grade", record.grader
        case Comparison():
            return "compare", record.grader
    return None


def expected_usage(kind: WorkKind, n: float, session: Session, summary: DatasetSummary) -> Usage:
    """Return the usage of `n` such steps with texts of the expected length."""
    role, grader = kind
    prompt = summary.prompt_bytes / max(1, summary.total) / BYTES_PER_TOKEN
    answer = summary.response_bytes / summary.with_response / BYTES_PER_TOKEN if summary.with_response else ANSWER
    answer = min(answer, session.options.max_tokens or answer)
    if role in {"generate", "refine"}:
        return _usage(n, prompt + (answer + ADVICE if role == "refine" else 0), answer)
    calls = n * calls_per_grade(session.common_panel()[1].graders[grader]) * (CALLS_PER_COMPARISON if role == "compare" else 1)
    return _usage(calls, prompt + answer * (2 if role == "compare" else 1) + INSTRUCTIONS, VERDICT)


def _usage(calls: float, read: float, written: float) -> Usage:
    return Usage(round(calls), round(calls * read), round(calls * written))


def calls_per_grade(grader: Any) -> int:
    """Return the calls for one grade: one, or as many as all parts of the grader make."""
    parts = getattr(grader, "parts", ())
    if not parts:
        return int(not getattr(grader, "model_free", False))
    return sum(map(calls_per_grade, parts)) * int(getattr(grader, "repeats", 1))


def calls_per_task(grader: Any) -> int:
    """Return the calls that a grader, or all of its parts, make once for a task, beside those for each grade."""
    return int(getattr(grader, "setup_calls", 0)) + sum(map(calls_per_task, getattr(grader, "parts", ())))
