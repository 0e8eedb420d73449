"""Every paid text is graded, whatever ends the run, and no run fails while a text has a score: the
real engine, any panel.
"""

from __future__ import annotations

import asyncio
import json
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redraft import Budget, Feedback, Judge, Usage, must, refine, refine_many
from redraft.errors import BudgetExhaustedError, GradingError, RedraftError
from redraft.graders import Jury
from redraft.loop.records import Failure
from redraft.loop.trace import Trace
from redraft.models import Price
from redraft.plans import best_of
from redraft.plans.quality.priors import Priors
from redraft.protocols import Reply

PRIORS = Priors(draft_mean=0.5, gain=0.3, retention=0.8, gain_sd=0.01, noise_sd=0.3, tasks=64)


class Chance:
    """A model that writes short texts, and that judges at random; some of its grades cannot be
    read.
    """

    price = Price(1000, 1000)

    def __init__(self, seed, silent, seconds=0.0):
        self.name = self.identity = "chance"
        self.chance, self.silent, self.seconds = random.Random(seed), silent, seconds

    async def complete(self, request):
        if self.seconds:
            await asyncio.sleep(self.seconds * self.chance.random() * 2)
        shown = str(request.messages)
        usage = Usage(
            1, input_tokens=40, output_tokens=10, cost=0.05, answer_tokens=50, answer_cost=0.05
        )
        if "truth" not in shown:
            return Reply(
                "text " + "ab"[self.chance.randrange(2)] + str(self.chance.randrange(10**6)), usage
            )
        if self.chance.random() < self.silent:
            return Reply("no json", usage)
        line = {"evidence": "e", "change": "c", "score": self.chance.randrange(6)}
        return Reply(json.dumps({"reason": "r", "criteria": {"truth": line}, "done": False}), usage)


def advise(text):
    """Never score."""
    return Feedback(None, actions=("say more",))


def advise_at_times(text):
    """Say nothing about some texts."""
    return Feedback(None, actions=("say more",)) if "b" in text else Feedback(None)


GRADERS = {
    "judge": lambda: Judge({"truth": "It is true."}),
    "two": lambda: Judge({"truth": "It is the truth."}, name="second"),
    "must judge": lambda: must(Judge({"truth": "It must be true."}, name="strict")),
    "jury": lambda: Jury([Judge({"truth": "It is true, they say."}, name="juror")], repeats=2),
    "computed": lambda: "contains:a",
    "must": lambda: must("contains:a"),
    "critic": lambda: advise,
    "silent critic": lambda: advise_at_times,
}
PANELS = st.lists(st.sampled_from(sorted(GRADERS)), min_size=1, max_size=3, unique=True)
BUDGETS = st.one_of(
    st.none(),
    st.builds(Budget, calls=st.integers(1, 12)),
    st.builds(Budget, usd=st.floats(0.05, 3)),
    st.builds(Budget, tokens=st.integers(100, 3000)),
    st.builds(Budget, input_tokens=st.integers(100, 4000), output_tokens=st.integers(100, 2000)),
)
PLANS = st.sampled_from(["default", "plain", "noise-aware", "best of 3"])


def settings_of(plan, panel):
    """Return the settings of a plan."""
    more = {"max_iterations": 3, "patience": 9, "max_in_flight": 4}
    if plan == "best of 3":
        return {"plan": best_of(3), "max_in_flight": 4}
    if plan == "plain":
        return more | {"noise_aware": False}
    has_judge = {"judge", "two", "must judge", "jury"} & {*panel}
    if plan == "noise-aware" or has_judge:
        more |= {"noise_aware": True, "priors": PRIORS, "min_expected_gain": 0.0}
    return more


def trace_of(outcome):
    """Return the trace of a result or of an error."""
    result = outcome.result if isinstance(outcome, RedraftError) else outcome
    return result.trace if result is not None else None


def check(outcome):
    """Assert that nothing paid for is left ungraded, and that no run failed that has a score."""
    trace = trace_of(outcome)
    if trace is None:
        return
    stop = trace.outcome.reason if trace.outcome else None
    scored = [id for id, score in trace.scores.items() if score is not None]
    assert not (scored and (isinstance(outcome, GradingError) or stop == "failed")), trace.outcome
    judges = [grader for grader in trace.pointwise_graders if not grader.model_free]
    paid = [
        c
        for c in trace.candidates
        if c.role in {"generate", "refine"}
        and not trace.is_unchanged(c)
        and c.id not in trace.replaced_ids
    ]
    left = [c.id for c in paid if any(missing_grade(trace, c, grader) for grader in judges)]
    if stop == "deadline":  # how long a call takes is not known
        return
    assert left == [], (left, trace.outcome)


def missing_grade(trace: Trace, candidate, grader):
    """Whether a grader was not asked about a candidate. (Its answer may be unreadable, with no call
    left to ask again.)
    """
    if any(f.grader == grader.name for f in trace.feedback[candidate.id]):
        return False
    failed = [
        r
        for r in trace.records
        if isinstance(r, Failure) and r.step_slot[:3] == ("feedback", candidate.id, grader.name)
    ]
    return not any(failure.usage.calls for failure in failed)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    PANELS,
    BUDGETS,
    PLANS,
    st.sampled_from([0.0, 0.3, 0.6]),
    st.sampled_from([None, None, 0.05]),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_nothing_paid_for_is_wasted(panel, budget, plan, silent, deadline, many, seed):
    """A text that was paid for has all grades that its judges give."""
    model = Chance(seed, silent, 0.005 if deadline else 0.0)
    more = settings_of(plan, panel) | {
        "budget": budget,
        "deadline": deadline,
        "retries": 0,
    }
    graders = [GRADERS[name]() for name in panel]

    async def run():
        if many:
            return [*await refine_many(["one", "two", "three"], model, graders, **more)]
        return [await refine("one", model, graders, **more)]

    try:
        outcomes = asyncio.run(run())
    except (GradingError, BudgetExhaustedError) as error:
        outcomes = [error]
    for outcome in outcomes:
        check(outcome)
