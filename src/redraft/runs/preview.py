"""The preview of a run: what it would read, call and cost, without making a call.

The ranges of calls, tokens and cost follow from the settings. The expected usage is estimated on
simulated tasks (`quality.simulate`); if no grader calls a model, each answer passes with
probability one half. For the estimate a token counts as 4 bytes, and an answer is as long as the
mean of the given responses, or 300 tokens. Retries, and repeated requests after an unreadable
answer, are left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import TypeVar

from ..base.error_text import error_text
from ..base.text import pluralize
from ..errors import ConfigError
from ..graders.traits import GraderTraits
from ..loop.records import Candidate, Comparison, Feedback, Record
from ..loop.task import Message, Task
from ..loop.trace import PanelGrader, Trace
from ..middleware import Budget
from ..middleware.call_costs import CHARS_PER_TOKEN, DEFAULT_OUTPUT_TOKENS
from ..plans import Plan, plan_traits
from ..plans.quality.lineage import llm_graders
from ..plans.quality.priors import Priors
from ..plans.quality.simulate import run_to_end, simulate_tasks
from ..session.session import Session
from ..storage.journal import Journal, RowInfo
from ..tables.readers import BadRow
from ..usage import NO_USAGE, Usage
from .config import BatchConfig
from .dataset import BatchDataset, BatchRow, DatasetSummary
from .online_priors import second_look_rows
from .row_key import RowKeys, changed_parts, row_key
from .sample_prompts import PromptSample

N = TypeVar("N", int, float)
SAMPLES = 3  # rows whose messages, or errors, are shown
CHUNK = 256
JUDGE_PROMPT = 1200  # tokens of a judge's own instructions, at most
MIN_OUTPUT = 64  # tokens
CALLS_PER_COMPARISON = 2  # two answers are compared in both orders
BYTES_PER_TOKEN = 4
ANSWER, VERDICT = 300, 250  # tokens that a writer writes, and a judge
# tokens that a judge, and a refiner, reads in addition to the prompt and the answer
INSTRUCTIONS, ADVICE = (300, 80)

Range = tuple[int, int]
StepKind = tuple[str, str]
"""The role of a step, and the name of the grader for "grade" and "compare" ("" for others)."""


@dataclass(frozen=True)
class BatchPreview:
    """What a run would do.

    Attributes:
        summary: Lines about the data, for people.
        rows: The number of usable rows.
        bad: The first unusable rows, with the reasons.
        known: The number of rows that an earlier run has finished.
        samples: The messages of the first rows.
        calls: The least and the most calls for the other rows, within the budget.
        tokens: The same for tokens.
        cost: The same in USD; None if a price is unknown.
        expected: The expected usage, within these ranges; None for a plan of the user's own.
        changes: Which rows of an earlier run would be redone and why, for people.
        prompts: What each model would be sent for the first row, with stand-ins for answers and
            advice.
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
    prompts: tuple[PromptSample, ...] = ()


def preview_run(
    config: BatchConfig,
    dataset: BatchDataset,
    summary: DatasetSummary,
    session: Session,
    plan: Plan,
    *,
    explain: bool = False,
) -> BatchPreview:
    """Return the preview, by the data and the journal (if it exists). Raises ConfigError and
    StoreError.
    """
    bad: list[BadRow] = []
    entries = dataset.rows(
        summary.duplicates, lambda row: bad.append(row) if len(bad) < SAMPLES else None
    )
    comparison = JournalComparison(config, session, plan)
    samples: list[tuple[Message, ...]] = []
    while chunk := list(islice(entries, CHUNK)):
        samples += [first_messages(plan, entry.task) for entry in chunk[: SAMPLES - len(samples)]]
        if not comparison.add(chunk) and not explain and len(samples) >= SAMPLES:
            break
    rows = summary.total - comparison.known
    looks = second_look_grades(config, session, plan, summary.total)
    fewer = {} if comparison.known else looks
    ranges = cost_ranges(
        session, plan, summary, rows, (calls_for(session, fewer), calls_for(session, looks))
    )
    expected = estimate_usage(session, plan, summary, rows, fewer)
    starts = describe_responses(dataset, summary, writes=session.models.writer is not None)
    return BatchPreview(
        (
            f"{pluralize(summary.total, 'row')} in {dataset.source.name}",
            dataset.shape.description,
            *starts,
        ),
        summary.total,
        tuple(bad),
        comparison.known,
        tuple(samples),
        *ranges,
        expected and expected.within(*ranges),
        tuple(comparison.changes()),
    )


def first_messages(plan: Plan, task: Task) -> tuple[Message, ...]:
    """Return the messages of a task: those of the user's own draft prompt, if the plan has one.
    Raises ConfigError.
    """
    prompts = plan_traits(plan).prompts
    if prompts is None or prompts.draft is None:
        return task.messages
    try:
        return prompts.draft_messages(Trace(task))
    except Exception as error:
        raise ConfigError(f"draft_prompt: {error_text(error)}") from error


def describe_responses(
    dataset: BatchDataset, summary: DatasetSummary, *, writes: bool
) -> Iterator[str]:
    """Yield a line about how many rows have a response, or why none has. `writes`: whether a model
    can write drafts.
    """
    if summary.with_response:
        what = ("gets a first draft", "get a first draft") if writes else ("has none", "have none")
        yield (
            f"{pluralize(summary.with_response, 'row has', 'rows have')} a response to start with, "
            f"{pluralize(summary.total - summary.with_response, *what)}"
        )
    else:
        yield f"every row gets a first draft: {dataset.missing_response_reason}"
    if summary.blank:
        yield f"blank given responses, which count as none: {summary.blank:,}"


def second_look_grades(
    config: BatchConfig, session: Session, plan: Plan, rows: int
) -> dict[str, int]:
    """Return how many first answers each judge grades twice in a run of so many rows."""
    panel, _ = session.common_panel()
    noise_aware = plan_traits(plan).noise_aware
    if not (config.calibrate and config.learns_online and noise_aware):
        return {}
    is_known = session.knowledge.labelled_figures.noise_sd is not None
    looks = 0 if is_known else len(second_look_rows(panel, noise_aware.priors, rows))
    return {judge.name: looks for judge, _ in llm_graders(panel)}


def calls_for(session: Session, grades: Mapping[str, int]) -> int:
    """Return the number of calls for so many grades by each grader."""
    traits = session.common_panel()[1].traits
    return sum(n * calls_per_grade(traits[name]) for name, n in grades.items())


def cost_ranges(
    session: Session, plan: Plan, summary: DatasetSummary, rows: int, looks: Range = (0, 0)
) -> tuple[Range, Range, tuple[float, float] | None]:
    """Return the least and the most calls, tokens and USD for a number of rows, within the budget.

    `looks`: the least and the most calls for second looks.
    """
    with_response = round(rows * summary.with_response / max(1, summary.total))
    (low_without, high_without), (low_with, high_with) = (
        calls_per_row(session, plan, with_response=b) for b in (False, True)
    )
    without = rows - with_response
    more = round(
        rows * (summary.responses - summary.with_response) / max(1, summary.total)
    ) * grading_calls(session, plan)
    low, high = (
        without * low_without + with_response * low_with,
        without * high_without + with_response * high_with,
    )
    calls = (more + low + looks[0], more + high + looks[1])
    least, most = tokens_per_call(session, summary)
    tokens = (calls[0] * least, calls[1] * most)
    cost, limits = usd_range(session, calls, tokens), session.options.budget or Budget()
    return (
        limit_range(calls, limits.calls),
        limit_range(tokens, limits.tokens),
        cost and limit_range(cost, limits.usd),
    )


def limit_range(amounts: tuple[N, N], limit: N | None) -> tuple[N, N]:
    """Return both amounts, at most the limit of a budget (None: no limit)."""
    return amounts if limit is None else (min(amounts[0], limit), min(amounts[1], limit))


class JournalComparison:
    """Compares the rows with the journal, if it exists. `known` counts the finished rows."""

    def __init__(self, config: BatchConfig, session: Session, plan: Plan) -> None:
        self._config, self._keys = config, RowKeys(session, plan)
        self._journal = (
            Journal(config.journal, create=False, read_only=True)
            if config.journal.exists()
            else None
        )
        self._name = config.name
        self._reason_counts: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self.known = 0

    def add(self, entries: Sequence[BatchRow]) -> bool:
        """Compare rows with the journal; return False if it does not exist."""
        if self._journal is None:
            return False
        infos = self._journal.rows_by_id(self._name, [entry.id for entry in entries])
        for entry in entries:
            self._compare(entry, infos.get(entry.id))
        return True

    def _compare(self, entry: BatchRow, info: RowInfo | None) -> None:
        parts = self._keys.parts(entry.task)
        if info is None:
            self._rows["new"] += 1
        elif info.key == row_key(parts):
            result = info.facts
            finished = info.status != "open" and not (result and self._config.redoes(result))
            self._rows["finished" if finished else "to be resumed"] += 1
            self.known += finished
        else:
            self._rows["changed"] += 1
            for part in changed_parts(info.key_parts, parts):
                reasons = (
                    self._changed_settings(info) if part == "settings" else [f"the row's {part}"]
                )
                self._reason_counts.update(reasons)

    def _changed_settings(self, info: RowInfo) -> list[str]:
        """Return the settings that have changed since a row was processed."""
        run = self._journal.run(self._name) if self._journal else None
        old = run.metadata.get("settings", {}).get(info.key_parts.get("settings")) if run else None
        names = changed_parts(old, self._keys.settings) if old else ["(of an older journal)"]
        return [f"setting {name}" for name in names]

    def changes(self) -> Iterator[str]:
        """Yield lines for people, and close the journal."""
        if self._journal is None:
            yield "there is no journal yet: every row is new"
            return
        self._journal.close()
        counts = (f"{pluralize(n, 'row')} {what}" for what, n in sorted(self._rows.items()))
        yield ", ".join(counts) or "no rows"
        for reason, n in sorted(self._reason_counts.items()):
            yield (
                f"{reason} changed: {pluralize(n, 'row is', 'rows are')} redone; calls that stay "
                "the same come from the cache"
            )


def calls_per_row(session: Session, plan: Plan, *, with_response: bool) -> Range:
    """Return the fewest and the most calls of a row with or without a response, not counting
    retries and repeated requests.
    """
    panel, roles = session.common_panel()
    traits = plan_traits(plan)
    calls, grading = calls_by_grader(session), grading_calls(session, plan)
    once = sum(map(calls_per_task, roles.traits.values()))
    if session.models.writer is None:
        return (once + grading, once + grading) if with_response else (0, 0)
    least = once + (grading if with_response else traits.drafts * (1 + grading))
    at_end = (
        sum(calls.get(grader.name, 0) for grader in panel if grader.compares)
        if traits.noise_aware
        else 0
    )
    return least, least + traits.max_attempts * (1 + grading) + CALLS_PER_COMPARISON * at_end


def grading_calls(session: Session, plan: Plan) -> int:
    """Return the number of calls that grade one answer; a noise-aware plan compares answers only at
    the end.
    """
    compares_at_end = plan_traits(plan).noise_aware is not None
    comparers = {grader.name for grader in session.common_panel()[0] if grader.compares}
    return sum(
        n
        for name, n in calls_by_grader(session).items()
        if not (compares_at_end and name in comparers)
    )


def calls_by_grader(session: Session) -> dict[str, int]:
    """Return the number of calls for all grades of one answer by each grader."""
    panel, roles = session.common_panel()
    return {
        grader.name: grader.repeats * calls_per_grade(roles.traits[grader.name]) for grader in panel
    }


def tokens_per_call(session: Session, summary: DatasetSummary) -> Range:
    """Return the tokens of a call with a short answer, and of one with a judge's instructions and
    the longest answer.
    """
    prompt = summary.prompt_bytes // max(1, summary.total) // CHARS_PER_TOKEN + 1
    most = session.options.max_tokens or DEFAULT_OUTPUT_TOKENS
    return prompt + MIN_OUTPUT, prompt + JUDGE_PROMPT + 2 * most


def usd_range(session: Session, calls: Range, tokens: Range) -> tuple[float, float] | None:
    """Return the cost in USD if all tokens are input, and if half of them are output; None if a
    price is unknown.

    With several models it is the range over their prices.
    """
    _, roles = session.common_panel()
    prices = [client.price for client in (roles.writer, *roles.judges.values()) if client]
    if not calls[1] or not prices:
        return 0.0, 0.0
    usages = Usage(calls[0], tokens[0], 0), Usage(calls[1], tokens[1] // 2, tokens[1] // 2)
    costs = [price.cost(usage) if price else None for price in prices for usage in usages]
    known = [cost for cost in costs if cost is not None]
    return (min(known), max(known)) if len(known) == len(costs) else None


@dataclass(frozen=True, slots=True)
class ExpectedUsage:
    """What a run is expected to consume; `cost` in USD, None if a price is unknown."""

    calls: int
    tokens: int
    cost: float | None

    def within(
        self, calls: Range, tokens: Range, cost: tuple[float, float] | None
    ) -> ExpectedUsage:
        """Return the estimate within these ranges; an unknown cost stays unknown."""
        usd = None if self.cost is None or cost is None else min(max(self.cost, cost[0]), cost[1])
        return ExpectedUsage(
            min(max(self.calls, calls[0]), calls[1]),
            min(max(self.tokens, tokens[0]), tokens[1]),
            usd,
        )


def estimate_usage(
    session: Session,
    plan: Plan,
    summary: DatasetSummary,
    rows: int,
    looks: Mapping[str, int] | None = None,
) -> ExpectedUsage | None:
    """Return the expected usage of a number of rows; None for a plan of the user's own. `looks`:
    second looks by grader.
    """
    if session.options.plan is not None:
        return None
    steps = expected_steps(session, plan, summary, rows)
    for name, n in (looks or {}).items():
        steps["grade", name] += n
    usages = [_priced_usage(kind, n, session, summary) for kind, n in steps.items()]
    total = sum(usages, NO_USAGE)
    return ExpectedUsage(round(total.calls), round(total.tokens or 0), total.cost)


def _priced_usage(kind: StepKind, n: float, session: Session, summary: DatasetSummary) -> Usage:
    """Return the usage of `n` steps of a kind with its cost in USD; None if the price is
    unknown.
    """
    usage, (_, roles) = expected_usage(kind, n, session, summary), session.common_panel()
    client = roles.judges[kind[1]] if kind[1] else roles.writer
    if not usage.calls:
        return NO_USAGE
    return usage.with_cost(client.price.cost(usage) if client and client.price else None)


def expected_steps(
    session: Session, plan: Plan, summary: DatasetSummary, rows: int
) -> defaultdict[StepKind, float]:
    """Return the expected number of steps of each kind that call a model, for a number of rows."""
    panel, roles = session.common_panel()
    with_response = rows * summary.with_response / max(1, summary.total)
    steps: defaultdict[StepKind, float] = defaultdict(float)
    for count, has_response in ((with_response, True), (rows - with_response, False)):
        if count and (has_response or roles.writer):
            for kind, n in steps_per_row(session, plan, panel, with_response=has_response).items():
                steps[kind] += count * n
    # the further responses of a row are graded, too
    for grader in panel if summary.responses else ():
        if not grader.compares and roles.traits[grader.name].makes_calls:
            more = (summary.responses - summary.with_response) / summary.total
            steps["grade", grader.name] += rows * more * grader.repeats
    return steps


def steps_per_row(
    session: Session, plan: Plan, panel: Iterable[PanelGrader], *, with_response: bool
) -> dict[StepKind, float]:
    """Return the mean number of steps of each kind that call a model, by simulation."""
    traits = session.common_panel()[1].traits
    callers = {
        grader.name: grader
        for grader in panel
        if not grader.model_free or traits[grader.name].makes_calls
    }
    traces = _simulated_traces(session, plan, callers.values(), with_response=with_response)
    steps: defaultdict[StepKind, float] = defaultdict(float)
    for kind in filter(None, (_step_kind(record) for trace in traces for record in trace.records)):
        steps[kind] += 1
    answers = sum(len(trace.candidates) for trace in traces)
    for name, panel_grader in callers.items():
        if panel_grader.must or panel_grader.model_free:  # these are not simulated
            steps["grade", name] = answers * panel_grader.repeats
        steps["grade", name] += (
            len(traces) * calls_per_task(traits[name]) / max(1, calls_per_grade(traits[name]))
        )
    return {kind: n / len(traces) for kind, n in steps.items() if not kind[1] or kind[1] in callers}


def _simulated_traces(
    session: Session, plan: Plan, callers: Iterable[PanelGrader], *, with_response: bool
) -> list[Trace]:
    """Return the traces of simulated tasks, graded by those of these graders that are judges."""
    judges = [grader for grader in callers if not grader.model_free]
    even = priors_with_even_odds(session.options.target_score)
    priors = plan_traits(plan).priors if judges else even
    tasks = simulate_tasks(priors, judges, Random(0), with_response=with_response)
    return [run_to_end(trace, plan, task) for task, trace in tasks]


def priors_with_even_odds(target: float) -> Priors:
    """Return priors by which every answer reaches the target with probability one half, and grades
    are exact.
    """
    drafts = Priors(
        draft_mean=target, draft_mean_sd=0, draft_sd=0.1, noise_sd=0, bias_sd=0, bias_drift=0
    )
    return replace(drafts, gain=target, gain_sd=0, retention=0, step_sd=0.1)


def _step_kind(record: Record) -> StepKind | None:
    match record:
        case Candidate(role="generate" | "refine"):
            return record.role, ""
        case Feedback():
            return "grade", record.grader
        case Comparison():
            return "compare", record.grader
    return None


def expected_usage(kind: StepKind, n: float, session: Session, summary: DatasetSummary) -> Usage:
    """Return the usage of `n` steps of a kind, with texts of the expected length."""
    role, grader = kind
    prompt = summary.prompt_bytes / max(1, summary.total) / BYTES_PER_TOKEN
    answer = (
        summary.response_bytes / summary.responses / BYTES_PER_TOKEN
        if summary.responses
        else ANSWER
    )
    answer = min(answer, session.options.max_tokens or answer)
    if role in {"generate", "refine"}:
        return _usage(n, prompt + (answer + ADVICE if role == "refine" else 0), answer)
    traits = session.common_panel()[1].traits[grader]
    calls = n * calls_per_grade(traits) * (CALLS_PER_COMPARISON if role == "compare" else 1)
    if traits.model_free:  # a server of its own: it is sent no instructions and returns a number
        return _usage(calls, prompt + answer, 0)
    return _usage(calls, prompt + answer * (2 if role == "compare" else 1) + INSTRUCTIONS, VERDICT)


def _usage(calls: float, input_tokens: float, output_tokens: float) -> Usage:
    return Usage(round(calls), round(calls * input_tokens), round(calls * output_tokens))


def calls_per_grade(traits: GraderTraits) -> int:
    """Return the number of calls for one grade: those of all parts of a composite grader, or its
    own.
    """
    if not traits.parts:
        return traits.grade_calls if traits.makes_calls else 0
    calls = map(calls_per_grade, traits.parts)
    return max(calls) if traits.choose_parts else sum(calls) * traits.repeats


def calls_per_task(traits: GraderTraits) -> int:
    """Return the number of calls that a grader and its parts make once for a task, in addition to
    those for each grade.
    """
    calls = list(map(calls_per_task, traits.parts))
    return traits.setup_calls + (max(calls) if traits.choose_parts else sum(calls))
