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
)

from redraft import Task
from redraft.errors import ConfigError
from redraft.loop.records import Candidate, Feedback, Outcome, StopReason
from redraft.loop.steps import Generate, Grade, Refine, Stop
from redraft.loop.stopping import target
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans import UNLIMITED, Left, PlanDecision
from redraft.plans.adaptive import Adaptive
from redraft.plans.base import RoundByRound
from redraft.plans.limits import (
    affordable_count,
    at_once,
    mean_need,
    minus,
    plus,
    rounds_left,
    step_needs,
    total,
)
from redraft.plans.quality.lineage import observe
from redraft.plans.quality.posterior import Posterior
from redraft.plans.quality.priors import Priors
from redraft.plans.quality.simulate import SimulatedTask, simulated_record
from redraft.plans.self_refine import SelfRefine
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
        (Left(seconds=3.0), ["refine 0 as 1"]),
        (Left(seconds=2.9), ["stop 0 deadline"]),
        (Left(calls=9, seconds=0.0), ["stop 0 deadline"]),
    ],
)
def test_a_text_is_offered_only_with_its_grades(left, steps):
    """A text of 100 tokens, .25 USD and 2 s needs as much again, and 1 s, for its grade."""
    cost = Usage(1, 80, 20, cost=0.25, answer_tokens=100, answer_cost=0.25)
    records = draft(0, usage=cost, seconds=2.0), feedback(0, 0.5, usage=cost, seconds=1.0)
    assert describe(plan(width=1).decide(trace([JUDGE], *records), left).steps) == steps


@pytest.mark.parametrize(
    ("calls", "steps"), [(0, ["stop 0 budget"]), (1, ["judge 0 look 1"]), (2, ["judge 0 look 1"])]
)
def test_the_rest_of_a_budget_buys_another_look(calls, steps):
    """If a text with its grade cannot be paid for, a contender is graded again."""
    records = [draft(0), feedback(0, 0.6), draft(1), feedback(1, 0.6)]
    assert describe(plan(DOUBTS).decide(trace([JUDGE], *records), Left(calls=calls)).steps) == steps


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
    (stop,) = plan(width=1).decide(trace([JUDGE], *records), left).steps
    assert stop.note == f"a text with its grades takes about {words}"


@pytest.mark.parametrize(
    ("more", "priors", "panel", "records", "left", "steps"),
    [
        ({}, KEEN, [JUDGE], GRADED, Left(calls=1), ["stop 0 budget"]),
        ({"unseen_last": True}, KEEN, [JUDGE], GRADED, Left(calls=1), ["refine 0 as 1"]),
        ({"unseen_last": True}, KEEN, [JUDGE], GRADED, Left(calls=0), ["stop 0 budget"]),
        # nothing is learned
        ({"unseen_last": True}, Priors(), [JUDGE], GRADED, Left(calls=1), ["stop 0 budget"]),
        # refining does not pay
        ({"unseen_last": True}, HURTS, [JUDGE], GRADED, Left(calls=1), ["stop 0 budget"]),
        # from too few tasks
        (
            {"unseen_last": True},
            replace(KEEN, tasks=31),
            [JUDGE],
            GRADED,
            Left(calls=1),
            ["stop 0 budget"],
        ),
        (
            {"unseen_last": True},
            replace(KEEN, tasks=32),
            [JUDGE],
            GRADED,
            Left(calls=1),
            ["refine 0 as 1"],
        ),
        (
            {"unseen_last": True},
            KEEN,
            [PanelGrader("judge", must=True)],
            [draft(0), feedback(0, 1.0)],
            Left(calls=1),
            ["stop 0 budget"],
        ),
        (
            {"unseen_last": True},
            KEEN,
            [JUDGE],
            [*GRADED, child(1, 0)],
            Left(calls=0),
            ["stop 1 budget"],
        ),
        (
            {"unseen_last": True},
            KEEN,
            [JUDGE],
            [*GRADED, child(1, 0)],
            Left(calls=1),
            ["judge 1 look 0"],
        ),
        (
            {"unseen_last": True},
            KEEN,
            [JUDGE],
            [*GRADED, child(1, 0)],
            UNLIMITED,
            ["judge 1 look 0"],
        ),
        # reserved with its text
        ({}, KEEN, [JUDGE], [*GRADED, child(1, 0)], Left(calls=0), ["judge 1 look 0"]),
    ],
)
def test_unseen_last(more, priors, panel, records, left, steps):
    """The last call may buy a refinement that no judge grades, if learned priors expect it to be
    better.
    """
    assert describe(plan(priors, **more).decide(trace(panel, *records), left).steps) == steps


def test_an_unseen_text_is_checked_without_a_model():
    """Graders that compute grade it; if it breaks a must, the best graded answer is returned."""
    must = PanelGrader("no_b", must=True, model_free=True)
    ours = plan(KEEN, unseen_last=True)
    start = [*GRADED, feedback(0, 1.0, "no_b"), child(1, 0)]
    assert describe(ours.decide(trace([must, JUDGE], *start), Left(calls=0)).steps) == [
        "no_b 1 look 0"
    ]
    for score, best in ((1.0, 1), (0.0, 0)):
        (stop,) = ours.decide(
            trace([must, JUDGE], *start, feedback(1, score, "no_b")), Left(calls=0)
        ).steps
        assert (stop.best, stop.reason, stop.score is None) == (best, StopReason.BUDGET, best == 1)


def test_the_forecast_is_the_belief():
    """Score and interval are unknown; the forecast is what the priors say of a refinement of the
    best answer.
    """
    records = [*GRADED, child(1, 0)]
    (stop,) = plan(KEEN, unseen_last=True).decide(trace([JUDGE], *records), Left(calls=0)).steps
    expected = Posterior(observe(trace([JUDGE], *GRADED)), KEEN).expected_text("refine", 0)
    assert (stop.score, stop.interval) == (None, None)
    mean, low, high = stop.forecast
    assert mean == pytest.approx(expected.mean, abs=1e-5) and low == pytest.approx(
        mean - 1.96 * expected.sd, abs=1e-4
    )
    assert low < mean < high <= 1


def test_the_probability_of_the_target_is_that_of_the_returned_text():
    """Of a text that no judge graded it is the forecast's, and not that of the best graded one."""
    records = [*GRADED, child(1, 0)]
    ours = Adaptive(SelfRefine(target(0.75)), 0.0, max_attempts=8, priors=KEEN, unseen_last=True)
    (stop,) = ours.decide(trace([JUDGE], *records), Left(calls=0)).steps
    belief = Posterior(observe(trace([JUDGE], *records)), KEEN)
    assert stop.best == 1
    assert stop.p_target == pytest.approx(belief.p_at_least(1, 0.75), abs=1e-5)
    assert stop.p_target > belief.p_at_least(0, 0.75) + 0.1


@pytest.mark.parametrize(
    "forecast", [(0.5, 0.6, 0.7), (0.5, 0.4), (0.5, 0.4, 1.2), (float("nan"), 0.4, 0.6), "no"]
)
def test_a_wrong_forecast_is_refused(forecast):
    """A forecast is a mean between the ends of its interval, all in [0, 1]."""
    with pytest.raises(ValueError, match=r"forecast|interval|score"):
        Outcome(0, StopReason.BUDGET, forecast=forecast)


NEEDS = st.builds(Left, *[st.none() | st.floats(0, 100)] * 6)


@given(NEEDS, NEEDS)
def test_left_arithmetic(left, need):
    """What is left less a step is never more than before nor negative; what a step took is put
    back.
    """
    rest = minus(left, need)
    for name in ("calls", "tokens", "usd", "input_tokens", "output_tokens"):
        before, after, took = (getattr(value, name) for value in (left, rest, need))
        assert (after is None) == (before is None) and (after is None or 0 <= after <= before)
        if None not in {before, took} and took <= before:
            assert getattr(plus(rest, need), name) == pytest.approx(before)
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
    assert (needs.graded_text.calls, needs.repeat.calls) == (5, 2)


@pytest.mark.parametrize(
    "name", ["calls", "tokens", "usd", "seconds", "input_tokens", "output_tokens"]
)
def test_left_is_checked(name):
    """What is left is no negative number, nor NaN."""
    for value in (-1, float("nan"), "1"):
        with pytest.raises(ConfigError, match=name):
            Left(**{name: value})


# ---- rounds


@pytest.mark.parametrize(
    ("more", "left", "steps"),
    [
        ({"width": 1}, UNLIMITED, ["refine 0 as 1"]),
        ({"width": 3}, UNLIMITED, ["refine 0 as 1", "refine 0 as 2", "refine 0 as 3"]),
        ({"width": 3}, Left(calls=5), ["refine 0 as 1", "refine 0 as 2"]),
        # equal prompts would give equal texts
        ({"width": 3, "allow_new_drafts": False}, UNLIMITED, ["refine 0 as 1"]),
        ({"width": 64}, UNLIMITED, [f"refine 0 as {n}" for n in range(1, 9)]),
        # there is time for one round
        ({}, Left(seconds=3.0), [f"refine 0 as {n}" for n in range(1, 9)]),
        ({}, Left(seconds=6.0), [f"refine 0 as {n}" for n in range(1, 5)]),  # for two
        ({}, Left(seconds=24.0), ["refine 0 as 1"]),
        ({"width": 2}, Left(seconds=3.0), ["refine 0 as 1", "refine 0 as 2"]),
    ],
)
def test_width_of_a_round(more, left, steps):
    """A round has as many texts as `width`, the budget and the attempts allow; a deadline widens
    it.
    """
    records = draft(0, usage=CALL, seconds=2.0), feedback(0, 0.5, usage=CALL, seconds=1.0)
    assert describe(plan(**more).decide(trace([JUDGE], *records), left).steps) == steps


def test_a_wide_plan_names_only_steps_that_it_takes():
    """It grades no text again, so the note of its stop does not say what another grade would
    gain.
    """
    (stop,) = (
        replace(plan(DOUBTS, width=2), min_expected_gain=0.5).decide(trace([JUDGE], *PAIR)).steps
    )
    assert "a refinement" in stop.note and "another grade" not in stop.note


def test_a_round_spreads_where_one_more_of_a_kind_gains_little():
    """Refinements of one text that hardly differ are not worth as much as another draft."""
    same = Priors(
        draft_mean=0.5, gain=0.2, retention=0.8, gain_sd=0.0, step_sd=0.0, draft_sd=0.1, bias_sd=0.0
    )
    assert describe(plan(same, width=2).decide(trace([JUDGE], *GRADED)).steps) == [
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
    before = Posterior(observe(trace([panel], draft(0), feedback(0, score))), priors)
    after = before.with_expected_text(*step, -1)
    assert after.means[0] == pytest.approx(before.means[0], abs=2e-6)
    expected = before.expected_text(*step)
    assert (
        after.means[-1] == pytest.approx(min(1.0, max(0.0, expected.mean)), abs=2e-6)
        and after.sds[-1] < expected.sd
    )


def test_a_round_ends_before_the_next_begins():
    """While one text of a round is being written, the others are graded, and nothing else begins,
    nor ends the run.
    """
    ours, asked = plan(width=3), []

    def decide(now):
        asked.append(len(now.records))
        return ours.decide(now)

    steps = RoundByRound(ours.decide, decide)
    start = trace([JUDGE], *GRADED)
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
    st.integers(1, 4),
    st.booleans(),
    st.integers(1, 2),
)
def test_a_run_keeps_its_budget(calls, seed, priors, width, unseen, repeats):
    """No step is asked for that cannot be paid for to its end, no text but a last unseen one stays
    ungraded, and the run ends.
    """
    ours = plan(priors, width=width, unseen_last=unseen)
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
        decision = ours.decide(now, Left(calls=calls - spent))
        steps = now.missing(decision.steps)
        assert steps
        if decision.choices is not None and not isinstance(steps[0], Stop):
            unseen_steps = [step for step in steps if isinstance(step, Refine) and step.unseen]
            texts = [step for step in steps if isinstance(step, Generate | Refine)]
            need = len(texts) * per_text if texts and not unseen_steps else len(steps)
            assert need <= calls - spent and len(texts) <= width
        for step in steps:
            now += simulated_record(simulator, step)
            spent += not isinstance(step, Stop)
    assert spent <= calls
    ungraded = [c.id for c in now.candidates if not now.feedback[c.id]]
    assert ungraded in ([], [now.candidates[-1].id]) if unseen else ungraded == []
    assert (now.outcome.forecast is not None) == (now.best.id in ungraded)
    assert now.score is None if ungraded and now.best.id in ungraded else now.score is not None


def test_equal_traces_and_rests_give_equal_steps():
    """A decision depends on nothing but the trace and what is left."""
    assert FORM.editable
    for left in (UNLIMITED, Left(calls=3), Left(seconds=9.0)):
        first, second = (
            plan(KEEN, width=2, unseen_last=True).decide(trace([JUDGE], *PAIR), left)
            for _ in range(2)
        )
        assert first == second
