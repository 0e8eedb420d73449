"""A plan with a view of what is left: tables of the next step, and properties of every run within a
budget.
"""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_adaptive import (
    BARE,
    CHECK,
    DOUBTS,
    FORM,
    HELPS,
    HURTS,
    JUDGE,
    child,
    describe,
    draft,
    feedback,
    trace,
    unreadable,
)

from redraft import Task
from redraft.errors import ConfigError
from redraft.loop.records import Candidate, Feedback, StopReason
from redraft.loop.steps import Generate, Grade, Refine, Stop
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans import UNLIMITED, Left, PlanDecision
from redraft.plans.adaptive import Adaptive
from redraft.plans.base import RoundByRound
from redraft.plans.limits import (
    affordable_count,
    at_once,
    mean_need,
    minus,
    rounds_left,
    step_needs,
    total,
)
from redraft.plans.quality.lineage import observe
from redraft.plans.quality.posterior import Posterior
from redraft.plans.quality.priors import Priors
from redraft.plans.quality.simulate import SimulatedTask, simulated_record
from redraft.usage import Usage

CALL = Usage(1)
ADVICE = {"actions": ("Say what is missing.",)}
GRADED = [draft(0), feedback(0, 0.5)]
PAIR = [*GRADED, child(1, 0), feedback(1, 0.5)]
# refining pays, scores say little
KEEN = Priors(draft_mean=0.5, gain=0.3, retention=0.8, gain_sd=0.01, noise_sd=0.3)


def plan(priors=HELPS, **more):
    return Adaptive(BARE, 0.0, max_attempts=8, priors=priors, **more)


@pytest.mark.parametrize(
    ("left", "steps"),
    [
        (UNLIMITED, ["refine 0 as 1"]),
        (Left(calls=2), ["refine 0 as 1"]),
        (Left(calls=1), ["stop 0 budget"]),
        (Left(calls=0), ["stop 0 budget"]),
        (Left(tokens=200), ["refine 0 as 1"]),
        (Left(tokens=199), ["stop 0 budget"]),
        (Left(usd=0.5), ["refine 0 as 1"]),
        (Left(usd=0.49), ["stop 0 budget"]),
        (Left(input_tokens=160), ["refine 0 as 1"]),
        (Left(input_tokens=159), ["stop 0 budget"]),
        (Left(output_tokens=40), ["refine 0 as 1"]),
        (Left(output_tokens=39), ["stop 0 budget"]),
        (Left(seconds=2.9), ["stop 0 deadline"]),
        (Left(calls=9, seconds=0.0), ["stop 0 deadline"]),
    ],
)
def test_a_text_is_offered_only_with_its_grades(left, steps):
    """A text of 100 tokens, .25 USD and 2 s needs as much again, and 1 s, for its grade."""
    cost = Usage(1, 80, 20, cost=0.25, answer_tokens=100, answer_cost=0.25)
    records = draft(0, usage=cost, seconds=2.0), feedback(0, 0.5, usage=cost, seconds=1.0)
    assert describe(plan().decide(trace([JUDGE], *records), left).steps) == steps


def test_a_budget_that_no_step_needs_is_no_reason_to_stop():
    """Where no text is worth its price, the reason is the gain, whatever is left."""
    pricey = Adaptive(BARE, 0.9, max_attempts=8, priors=HELPS)
    assert describe(pricey.decide(trace([JUDGE], *GRADED), Left(calls=1)).steps) == ["stop 0 gain"]


def test_the_note_names_the_need_and_the_rest():
    """The user reads what a text takes and what is left."""
    (stop,) = plan().decide(trace([JUDGE], *GRADED), Left(calls=1)).steps
    assert stop.note == "a text with its grades takes about 2 calls, 1 is left of the budget"


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (Left(tokens=199), "200 tokens, 199 are left of the budget"),
        (Left(usd=0.4), "0.50 USD, 0.40 USD are left of the budget"),
        (Left(input_tokens=159), "160 input tokens, 159 are left of the budget"),
        (Left(output_tokens=39), "40 output tokens, 39 are left of the budget"),
        (Left(seconds=2.9), "3.0 s, 2.9 s are left before the deadline"),
    ],
)
def test_the_note_is_in_the_unit_of_what_is_short(left, words):
    """Each limit has its words."""
    cost = Usage(1, 80, 20, cost=0.25, answer_tokens=100, answer_cost=0.25)
    records = draft(0, usage=cost, seconds=2.0), feedback(0, 0.5, usage=cost, seconds=1.0)
    (stop,) = plan().decide(trace([JUDGE], *records), left).steps
    assert stop.note == f"a text with its grades takes about {words}"


NEEDS = st.builds(Left, *[st.none() | st.floats(0, 100)] * 6)


@given(NEEDS, NEEDS)
def test_left_arithmetic(left, need):
    """What is left less a step is never more than before nor negative."""
    rest = minus(left, need)
    for name in ("calls", "tokens", "usd", "input_tokens", "output_tokens"):
        before, after = (getattr(value, name) for value in (left, rest))
        assert (after is None) == (before is None) and (after is None or 0 <= after <= before)
    assert left.allows(need) == (left.exceeded_limit(need) == "")
    assert UNLIMITED.allows(need) and affordable_count(UNLIMITED, need) == rounds_left(
        UNLIMITED, need
    ) == float("inf")


def test_needs_are_means_and_unknown_stays_unknown():
    """One text of two has no token count, so that of a text is unknown; parts add, at the same time
    only in calls and money.
    """
    known = Candidate(0, "a", usage=Usage(1, 6, 4, answer_tokens=10, answer_cost=1.0), seconds=2.0)
    unknown = Candidate(
        1, "b", usage=Usage(3, None, None, answer_tokens=None, answer_cost=2.0), seconds=4.0
    )
    assert mean_need([known, unknown]) == Left(2.0, None, 1.5, 3.0)
    assert mean_need([]) == Left(1, 0, 0, 0, 0, 0)
    one = mean_need([known])
    assert total([one, one]) == Left(2, 20, 2.0, 4.0, 12, 8)
    assert at_once([(one, 3), (Left(1, 1, 1, 5.0, 1, 1), 1)]) == Left(4, 31, 4.0, 5.0, 19, 13)
    needs = step_needs(trace([JUDGE, CHECK, PanelGrader("three", repeats=3)], *GRADED))
    assert (needs.graded_text.calls, needs.grade.calls) == (5, 1)


@pytest.mark.parametrize(
    "name", ["calls", "tokens", "usd", "seconds", "input_tokens", "output_tokens"]
)
def test_left_is_checked(name):
    """What is left is no negative number, nor NaN."""
    for value in (-1, float("nan"), "1"):
        with pytest.raises(ConfigError, match=name):
            Left(**{name: value})


# ---- rounds


WRITTEN = draft(0, usage=CALL, seconds=2.0), feedback(0, 0.5, usage=CALL, seconds=1.0)


@pytest.mark.parametrize(
    ("more", "left", "steps"),
    [
        ({}, UNLIMITED, ["refine 0 as 1"]),
        # there is time for one round
        ({}, Left(seconds=3.0), [f"refine 0 as {n}" for n in range(1, 9)]),
        ({}, Left(seconds=3.0, calls=5), ["refine 0 as 1", "refine 0 as 2"]),
        # equal prompts would give equal texts
        ({"allow_new_drafts": False}, Left(seconds=3.0), ["refine 0 as 1"]),
        ({"max_attempts": 100}, Left(seconds=3.0), [f"refine 0 as {n}" for n in range(1, 65)]),
        ({}, Left(seconds=6.0), [f"refine 0 as {n}" for n in range(1, 5)]),  # for two
        ({}, Left(seconds=24.0), ["refine 0 as 1"]),
    ],
)
def test_width_of_a_round(more, left, steps):
    """A round has as many texts as the deadline needs, and as the budget and the attempts allow."""
    ours = replace(plan(), **more)
    assert describe(ours.decide(trace([JUDGE], *WRITTEN), left).steps) == steps


def test_a_wide_plan_names_only_steps_that_it_takes():
    """It asks for no grade again, so the note of its stop does not say what another grade would
    gain.
    """
    ours = Adaptive(BARE, 0.5, max_attempts=8, priors=HURTS)
    unread = [*WRITTEN, replace(child(1, 0), seconds=2.0), unreadable(1, 0)]
    for left, is_named in ((UNLIMITED, True), (Left(seconds=3.0), False)):
        (stop,) = ours.decide(trace([JUDGE], *unread), left).steps
        assert "a refinement" in stop.note and ("another grade" in stop.note) is is_named


def test_a_round_spreads_where_one_more_of_a_kind_gains_little():
    """Refinements of one text that hardly differ are not worth as much as another draft."""
    same = Priors(
        draft_mean=0.5, gain=0.2, retention=0.8, gain_sd=0.0, step_sd=0.0, draft_sd=0.1, bias_sd=0.0
    )
    left = Left(seconds=3.0, calls=5)
    assert describe(plan(same).decide(trace([JUDGE], *WRITTEN), left).steps) == [
        "refine 0 as 1",
        "draft 2",
    ]


@given(
    st.sampled_from([0.0, 1.0]) | st.floats(0, 1),
    st.sampled_from([JUDGE, PanelGrader("judge", score_step=1.0)]),
    st.sampled_from([HELPS, HURTS, DOUBTS, Priors()]),
    st.sampled_from([("refine", 0), ("generate", None)]),
)
def test_an_imagined_text_moves_no_belief(score, panel, priors, step):
    """A score that comes out as expected leaves the means as they are, and the imagined text has
    the expected quality.
    """
    _, parent = step
    before = Posterior(observe(trace([panel], draft(0), feedback(0, score))), priors)
    after = before.with_expected_text(*step, -1)
    assert after.means[0] == pytest.approx(before.means[0], abs=2e-6)
    unseen = Posterior(
        observe(
            trace(
                [panel], draft(0), feedback(0, score), draft(1) if parent is None else child(1, 0)
            )
        ),
        priors,
    )
    assert after.means[-1] == pytest.approx(unseen.means[1], abs=2e-6)
    assert after.sds[-1] < unseen.sds[1]


def test_a_round_ends_before_the_next_begins():
    """While one text of a round is being written, the others are graded, and nothing else begins,
    nor ends the run.
    """
    ours, asked, left = plan(), [], Left(seconds=3.0, calls=7)

    def preview(now):
        return ours.decide(now, left)

    def decide(now):
        asked.append(len(now.records))
        return preview(now)

    steps = RoundByRound(preview, decide)
    start = trace([JUDGE], *WRITTEN)
    assert len(steps(start)) == 3
    two = start + child(2, 0)
    assert describe(steps(two)) == ["refine 0 as 1", "refine 0 as 3", "judge 2 look 0"]
    graded = two + feedback(2, 0.9)
    assert describe(steps(graded)) == ["refine 0 as 1", "refine 0 as 3"]
    all_in = graded + child(1, 0) + child(3, 0)
    assert describe(steps(all_in)) == ["judge 1 look 0", "judge 3 look 0"]
    steps(all_in + feedback(1, 0.1) + feedback(3, 0.1))
    assert asked == [2, 6, 8]


def test_a_round_does_not_end_a_run_whose_texts_are_being_written():
    """A stop waits for them."""
    decisions = iter(
        [
            PlanDecision([Generate(1, ()), Generate(2, ())], []),
            PlanDecision([Stop(0, StopReason.DONE)]),
        ]
    )
    steps = RoundByRound(lambda _: next(decisions), lambda _: next(decisions))
    start = trace([JUDGE], *GRADED)
    steps(start)
    assert describe(steps(start + draft(1))) == ["draft 2"]


# ---- every run within a budget


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 14),
    st.integers(0, 10**6),
    st.sampled_from([HELPS, HURTS, DOUBTS, KEEN]),
    st.none() | st.floats(0, 9),
    st.integers(1, 2),
)
def test_a_run_keeps_its_budget(calls, seed, priors, seconds, repeats):
    """No step is asked for that cannot be paid for to its end, no text stays ungraded, and the run
    ends.
    """
    ours = plan(priors)
    simulator = SimulatedTask(priors, random.Random(seed))
    now, spent, per_text = (
        Trace(Task("q"), (PanelGrader("judge", repeats=repeats),)),
        0,
        1 + repeats,
    )
    for step in (
        Generate(0, ()),
        *(Grade("judge", now.task, Candidate(0, "1"), n) for n in range(repeats)),
    ):
        record = simulated_record(simulator, step)
        now += (
            Feedback(
                record.score, **ADVICE, candidate=0, grader="judge", repeat=step.repeat, usage=CALL
            )
            if isinstance(step, Grade)
            else record
        )
    while not now.outcome:
        decision = ours.decide(now, Left(calls=calls - spent, seconds=seconds))
        steps = now.missing(decision.steps)
        assert steps
        if decision.choices is not None and not isinstance(steps[0], Stop):
            assert all(isinstance(step, Generate | Refine) for step in steps)
            assert len(steps) * per_text <= calls - spent
        for step in steps:
            now += simulated_record(simulator, step)
            spent += not isinstance(step, Stop)
    assert spent <= calls
    assert [c.id for c in now.candidates if not now.feedback[c.id]] == []
    assert now.score is not None


def test_equal_traces_and_rests_give_equal_steps():
    """A decision depends on nothing but the trace and what is left."""
    assert FORM.editable
    for left in (UNLIMITED, Left(calls=3), Left(seconds=9.0)):
        first, second = (plan(KEEN).decide(trace([JUDGE], *PAIR), left) for _ in range(2))
        assert first == second
