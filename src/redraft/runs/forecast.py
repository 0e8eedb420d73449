"""What a run likely takes, before anything is asked: model calls, tokens, USD.

The plan works on tasks that are made up as its priors say (see `imagined`). Where graders compute, nothing is known of the
answers that they let pass: each passes with even odds. Prompts are counted at 4 bytes a token; an answer is as long as the
responses that are given, or 300 tokens. Retries and second questions are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..core.records import NO_USAGE, Candidate, Comparison, Feedback, Record, Usage
from ..core.trace import PanelGrader
from ..plans import Plan
from ..plans.adaptive import Adaptive
from ..quality.priors import Priors
from ..session import Session
from .entries import Survey
from .imagined import imagined, worked

DUEL = 2  # calls: two answers are compared in both orders
BYTES_A_TOKEN = 4
ANSWER, VERDICT = 300, 250  # tokens
INSTRUCTIONS, ADVICE = 300, 80  # tokens that a judge is told beside a prompt and an answer, and a refiner beside them

Range = tuple[int, int]
Who = tuple[str, str]
"""A role, and for "grade" and "compare" the name of a grader."""


@dataclass(frozen=True, slots=True)
class Likely:
    """What a run likely takes; `cost` in USD, None where a price is unknown."""

    calls: int
    tokens: int
    cost: float | None

    def within(self, calls: Range, tokens: Range, cost: tuple[float, float] | None) -> Likely:
        """What of it lies in these ranges, else the nearest end; an unknown cost stays so."""
        usd = None if self.cost is None or cost is None else min(max(self.cost, cost[0]), cost[1])
        return Likely(min(max(self.calls, calls[0]), calls[1]), min(max(self.tokens, tokens[0]), tokens[1]), usd)


def likely_of(desk: Session, plan: Plan, survey: Survey, rows: int) -> Likely | None:
    """What so many rows of a table likely take; None for a plan of the user's own."""
    if desk.options.plan is not None:
        return None
    panel, cast = desk.common_panel()
    given = rows * survey.answered / max(1, survey.total)
    steps: defaultdict[Who, float] = defaultdict(float)
    for share, answered in ((given, True), (rows - given, False)):
        if share and (answered or cast.writer):
            for who, n in steps_of_a_row(desk, plan, panel, answered=answered).items():
                steps[who] += share * n
    usages = [(who, usage_of(who, n, desk, survey)) for who, n in steps.items()]
    lines = [(cast.judges[by] if by else cast.writer, usage) for (_, by), usage in usages if usage.calls]
    costs = [line.price.cost(usage) if line and line.price else None for line, usage in lines]
    known = [cost for cost in costs if cost is not None]
    total = sum((usage for _, usage in lines), NO_USAGE)
    return Likely(round(total.calls), round(total.tokens or 0), sum(known) if len(known) == len(costs) else None)


def steps_of_a_row(desk: Session, plan: Plan, panel: Iterable[PanelGrader], *, answered: bool) -> dict[Who, float]:
    """How often a row is worked on, on average, and by whom; only where a model is asked."""
    asked = {seat.name: seat for seat in panel if not seat.model_free}
    priors = plan.priors if isinstance(plan, Adaptive) else Priors()
    worlds = imagined(priors if asked else even_odds(desk.options.target_score), asked.values(), answered=answered)
    traces = [worked(trace, plan, world) for world, trace in worlds]
    steps: defaultdict[Who, float] = defaultdict(float)
    for who in filter(None, (_who(record) for trace in traces for record in trace.records)):
        steps[who] += 1
    answers = sum(len(trace.candidates) for trace in traces)
    for name, seat in asked.items():
        grader = desk.common_panel()[1].graders[name]
        if seat.must:  # they are not imagined
            steps["grade", name] = answers * seat.repeats
        steps["grade", name] += len(traces) * calls_a_task(grader) / max(1, calls_a_look(grader))
    return {who: n / len(traces) for who, n in steps.items() if not who[1] or who[1] in asked}


def even_odds(target: float) -> Priors:
    """By these, every text reaches the target half of the time, whatever it came from, and is graded as it is."""
    drafts = Priors(draft_mean=target, draft_mean_sd=0, draft_sd=0.1, noise_sd=0, bias_sd=0, bias_drift=0)
    return replace(drafts, gain=target, gain_sd=0, retention=0, step_sd=0.1)


def _who(record: Record) -> Who | None:
    match record:
        case Candidate(role="generate" | "refine"):
            return record.role, ""
        case Feedback():
            return "grade", record.grader
        case Comparison():
            return "compare", record.grader
    return None


def usage_of(who: Who, n: float, desk: Session, survey: Survey) -> Usage:
    """What `n` such steps take, where texts are as long as they likely are."""
    role, grader = who
    prompt = survey.prompt_bytes / max(1, survey.total) / BYTES_A_TOKEN
    answer = survey.answer_bytes / survey.answered / BYTES_A_TOKEN if survey.answered else ANSWER
    answer = min(answer, desk.options.max_tokens or answer)
    if role in {"generate", "refine"}:
        return _usage(n, prompt + (answer + ADVICE if role == "refine" else 0), answer)
    calls = n * calls_a_look(desk.common_panel()[1].graders[grader]) * (DUEL if role == "compare" else 1)
    return _usage(calls, prompt + answer * (2 if role == "compare" else 1) + INSTRUCTIONS, VERDICT)


def _usage(calls: float, read: float, written: float) -> Usage:
    return Usage(round(calls), round(calls * read), round(calls * written))


def calls_a_look(grader: Any) -> int:
    """The calls that one look of a grader takes: one, or as many as all of its parts take."""
    parts = getattr(grader, "parts", ())
    if not parts:
        return int(not getattr(grader, "model_free", False))
    return sum(map(calls_a_look, parts)) * int(getattr(grader, "repeats", 1))


def calls_a_task(grader: Any) -> int:
    """The calls that a grader, or all of its parts, make once for a task, beside those of each look."""
    return int(getattr(grader, "setup_calls", 0)) + sum(map(calls_a_task, getattr(grader, "parts", ())))
