"""The adaptive plan: tables of the next step, and properties of every run."""

import asyncio
import pickle
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import World, chance, last, replay_from, same

from each_row import each_row
from redraft.errors import ConfigError
from redraft.loop.engine import advance
from redraft.loop.records import Candidate, Comparison, Failure, Feedback, StopReason
from redraft.loop.steps import Compare, Generate, Grade, Refine, Repair, Stop
from redraft.loop.stopping import (
    DEFAULT_ITERATIONS,
    DEFAULT_PATIENCE,
    done,
    max_iterations,
    patience,
    target,
)
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.adaptive import Adaptive, p_meets_musts
from redraft.plans.quality.lineage import comparison_winner, observe
from redraft.plans.quality.posterior import Posterior
from redraft.plans.quality.priors import Priors
from redraft.plans.self_refine import SelfRefine
from redraft.session.options import Options
from redraft.usage import Usage

JUDGE, OTHER = PanelGrader("judge"), PanelGrader("other")
CHECK = PanelGrader("check", model_free=True)
FORM = PanelGrader("no_a", must=True, model_free=True, editable=True)
RANKER = PanelGrader("ranker", compares=True)

HELPS = Priors(draft_mean=0.5, gain=0.3, retention=0.8, draft_sd=0.02, draft_mean_sd=0.1)
HURTS = Priors(draft_mean=0.5, gain=-0.2, retention=0.8, step_sd=0.02, draft_sd=0.25)
DOUBTS = Priors(
    draft_mean=0.5,
    gain=-0.3,
    retention=0.7,
    step_sd=0.01,
    draft_sd=0.1,
    draft_mean_sd=0.3,
    noise_sd=0.3,
    bias_sd=0.0,
)
CONSTANT = Priors(
    draft_mean=0.5,
    gain=0.0,
    retention=0.5,
    step_sd=0.0,
    gain_sd=0.0,
    draft_sd=0.0,
    draft_mean_sd=0.1,
)
BARE = SelfRefine(target(1.0) | max_iterations(9))


def draft(id, **more):
    return Candidate(id, f"text {id}", by="m", role="generate", **more)


def child(id, parent, text=None):
    return Candidate(id, text or f"text {id}", parent, by="m", role="refine")


def feedback(id, score, grader="judge", repeat=0, **more):
    return Feedback(score, candidate=id, grader=grader, repeat=repeat, **more)


def failed_grade(id, grader, repeat, **more):
    return Failure(("feedback", id, grader, repeat), "grade", "ModelError", **more)


def failed_candidate(id, role="generate", **more):
    return Failure(("candidate", id), role, "ModelError", "no", **more)


def comparison(*ids, **more):
    return Comparison(ids, grader="ranker", **more)


def trace(panel, *records, response=None):
    return Trace(Task("q", response), tuple(panel), records)


def describe(steps):
    """Return the steps as short texts for the tables."""
    lines = []
    for step in steps:
        match step:
            case Generate():
                lines.append(f"draft {step.id}")
            case Refine():
                lines.append(f"refine {step.parent} as {step.id}")
            case Repair():
                lines.append(f"repair {step.parent.id} as {step.id}")
            case Grade():
                lines.append(f"{step.grader} {step.candidate.id} look {step.repeat}")
            case Compare():
                lines.append(f"{step.grader} {[c.id for c in step.candidates]}")
            case Stop():
                lines.append(f"stop {step.best} {step.reason}")
    return lines


TWO = [draft(0), feedback(0, 0.6), draft(1), feedback(1, 0.6)]
UNEVEN = [
    draft(0),
    feedback(0, 0.6),
    feedback(0, 0.6, "other"),
    draft(1),
    feedback(1, 0.6),
    feedback(1, 0.6, "other"),
]


@each_row(
    ("panel", "prior", "records", "steps"),
    [
        ([JUDGE], HELPS, [], ["draft 0"]),
        ([JUDGE], HELPS, [draft(0)], ["judge 0 look 0"]),
        ([JUDGE, OTHER], HELPS, [draft(0), feedback(0, 0.5)], ["other 0 look 0"]),
        ([JUDGE], HELPS, [draft(0), feedback(0, 0.5)], ["refine 0 as 1"]),
        ([JUDGE], HURTS, [draft(0), feedback(0, 0.5)], ["draft 1"]),
        ([JUDGE], CONSTANT, [draft(0), feedback(0, 0.5)], ["stop 0 gain"]),
        ([JUDGE], HELPS, [draft(0), feedback(0, 0.5), child(1, 0)], ["judge 1 look 0"]),
        ([JUDGE], HURTS, [draft(0), feedback(0, 0.3), draft(1), feedback(1, 0.4)], ["draft 2"]),
        ([JUDGE], HURTS, [draft(0), feedback(0, 0.3), draft(1), feedback(1, 1.0)], ["stop 1 gain"]),
        ([JUDGE], DOUBTS, [*TWO, draft(2), feedback(2, 0.0)], ["stop 0 gain"]),
        ([JUDGE], DOUBTS, [*TWO, feedback(0, 0.6, repeat=1)], ["draft 2"]),
        (
            [JUDGE],
            DOUBTS,
            [*TWO, feedback(0, 0.1, repeat=1), feedback(0, 0.1, repeat=2)],
            ["stop 1 gain"],
        ),
        ([JUDGE], HELPS, [draft(0), feedback(0, None)], ["draft 1"]),
        ([JUDGE], HELPS, [draft(0), feedback(0, None), draft(1)], ["judge 1 look 0"]),
        (
            [JUDGE],
            HELPS,
            [draft(0), feedback(0, None), draft(1), feedback(1, None)],
            ["stop 1 failed"],
        ),
        ([JUDGE], HELPS, [failed_candidate(0)], ["stop None failed"]),
        ([JUDGE], HELPS, [draft(0), failed_grade(0, "judge", 0)], ["stop 0 failed"]),
        (
            [JUDGE],
            HELPS,
            [draft(0), feedback(0, 0.5), failed_candidate(1, "refine")],
            ["stop 0 failed"],
        ),
        ([JUDGE], HURTS, [draft(0), feedback(0, 0.5), failed_candidate(1)], ["draft 2"]),
        (
            [JUDGE],
            HURTS,
            [
                draft(0),
                feedback(0, 0.5),
                failed_candidate(1),
                failed_candidate(2),
                failed_candidate(3),
                failed_candidate(4),
            ],
            ["stop 0 max_iterations"],
        ),
        (
            [JUDGE],
            HELPS,
            [draft(0), feedback(0, 0.5), child(1, 0), failed_grade(1, "judge", 0)],
            ["refine 0 as 2"],
        ),
        ([JUDGE, OTHER], DOUBTS, [*UNEVEN, feedback(0, 0.5, repeat=1)], ["draft 2"]),
        ([JUDGE, OTHER], DOUBTS, [*UNEVEN, failed_grade(0, "other", 1)], ["draft 2"]),
        ([CHECK], HELPS, [draft(0), feedback(0, 1.0, "check")], ["stop 0 target"]),
        ([RANKER], HELPS, [draft(0)], ["ranker [0]"]),
        ([FORM, JUDGE], HELPS, [draft(0), feedback(0, 0.0, "no_a")], ["repair 0 as 1"]),
    ],
)
def test_next_step(panel, prior, records, steps):
    """The plan returns the step that is due, else the most valuable step for its cost, else a
    stop.
    """
    plan = Adaptive(BARE, 0.005, max_attempts=4, priors=prior, price_rises=False)
    assert describe(plan(trace(panel, *records))) == steps


def unreadable(id, repeat, grader="judge"):
    return Failure(("feedback", id, grader, repeat), "grade", "BadResponseError")


READ = [draft(0), feedback(0, 0.5), child(1, 0)]


@pytest.mark.parametrize(
    ("panel", "records", "steps"),
    [
        ([JUDGE], [draft(0), unreadable(0, 0)], ["judge 0 look 1"]),
        ([JUDGE], [draft(0), unreadable(0, 0), unreadable(0, 1)], ["draft 1"]),
        (
            [JUDGE],
            [draft(0), unreadable(0, 0), unreadable(0, 1), draft(1), unreadable(1, 0)],
            ["judge 1 look 1"],
        ),
        (
            [JUDGE],
            [
                draft(0),
                unreadable(0, 0),
                unreadable(0, 1),
                draft(1),
                unreadable(1, 0),
                unreadable(1, 1),
            ],
            ["stop 1 failed"],
        ),
        ([JUDGE], [*READ, unreadable(1, 0)], ["judge 1 look 1"]),
        ([JUDGE], [*READ, unreadable(1, 0), unreadable(1, 1)], ["judge 1 look 2"]),
        ([JUDGE], [*READ, unreadable(1, 0), unreadable(1, 1), unreadable(1, 2)], ["refine 0 as 2"]),
        ([JUDGE], [*READ, failed_grade(1, "judge", 0)], ["refine 0 as 2"]),
        (
            [JUDGE, OTHER],
            [*UNEVEN[:3], child(2, 0), feedback(2, 0.7), unreadable(2, 0, "other")],
            ["other 2 look 1"],
        ),
        ([FORM, JUDGE], [draft(0), feedback(0, 1.0, "no_a"), unreadable(0, 0)], ["judge 0 look 1"]),
    ],
)
def test_unreadable_grades_are_asked_for_again(panel, records, steps):
    """A grade that could not be read is asked for again: twice while nothing is readable, else
    three times if that is worth most.
    """
    assert (
        describe(Adaptive(BARE, 0.0, max_attempts=8, priors=HELPS)(trace(panel, *records))) == steps
    )


def test_no_attempts_no_second_question():
    """Without calls for attempts, a grade that could not be read is not asked for again."""
    assert describe(Adaptive(BARE, max_attempts=0)(trace([JUDGE], draft(0), unreadable(0, 0)))) == [
        "stop 0 failed"
    ]


@pytest.mark.parametrize(
    ("confidence", "step"),
    [
        (0.05, "stop 0 target"),
        (0.3, "stop 0 target"),
        (0.5, "refine 0 as 1"),
        (0.9, "refine 0 as 1"),
    ],
)
def test_confidence_moves_the_target(confidence, step):
    """The target is reached with the probability of `confidence`, and never below the graders' own
    scores.
    """
    prior = replace(HELPS, draft_mean_sd=0.2)
    plan = Adaptive(
        SelfRefine(target(0.8) | max_iterations(9)), 0.0, priors=prior, confidence=confidence
    )
    assert describe(plan(trace([JUDGE], draft(0), feedback(0, 0.9)))) == [step]
    assert describe(plan(trace([JUDGE], draft(0), feedback(0, 0.7)))) == ["refine 0 as 1"]


def test_note_of_a_target_has_its_probability():
    """The stop says with which probability the target is reached, and so does the outcome."""
    (stop,) = Adaptive(SelfRefine(target(0.5)), priors=HELPS)(
        trace([JUDGE], draft(0), feedback(0, 0.9))
    )
    assert 0.5 < stop.p_target < 1
    assert (
        stop.note
        == f"the estimate is {stop.score:.2f}; it reaches the target, 0.5, with a probability of {stop.p_target:.2f}"
    )


@pytest.mark.parametrize(("score", "p"), [(0.75, 1.0), (0.74, 0.0)])
def test_computed_target_is_certain(score, p):
    """Scores of graders that call no model are exact, so that the target is reached or not."""
    (stop,) = Adaptive(SelfRefine(target(0.75) | max_iterations(0)), max_attempts=0)(
        trace([CHECK], draft(0), feedback(0, score, "check"))
    )
    assert (stop.p_target, stop.score) == (p, score)


MUST = PanelGrader("form", must=True, model_free=True)


def attempts_at_must(*met):
    """Return a broken draft and its refinements, of which some met the must."""
    records = [draft(0), feedback(0, 0.0, "form"), feedback(0, 0.5)]
    for i, passed in enumerate(met, 1):
        records += [child(i, 0), feedback(i, float(passed), "form"), feedback(i, 0.3)]
    return records


@pytest.mark.parametrize(
    ("met", "patient", "role"),
    [
        ((), False, "refine"),
        ((False,), False, "refine"),
        ((False,) * 2, False, "stop"),
        ((False,) * 7, True, "refine"),
        ((True,), False, "refine"),
    ],
)
def test_a_broken_must_is_repaired_until_patience_ends(met, patient, role):
    """While a must is broken, its price does not end the work: the further rules do."""
    more = {"exact_stop": max_iterations(99), "max_attempts": 9} if patient else {}
    plan = Adaptive(SelfRefine(target(1.0), repairs=False), 0.0, priors=HELPS, **more)
    assert plan(trace([MUST, JUDGE], *attempts_at_must(*met)))[0].role == role


@pytest.mark.parametrize(
    ("kept", "p"), [((), 4 / 5), ((True,), 5 / 6), ((False,), 4 / 6), ((False, False, True), 5 / 8)]
)
def test_probability_that_a_refinement_keeps_the_musts(kept, p):
    """It is learned from the refinements of texts that met them; without musts it is 1."""
    records = [draft(0), feedback(0, 1.0, "form"), feedback(0, 0.5)]
    for i, held in enumerate(kept, 1):
        records += [child(i, 0), feedback(i, float(held), "form"), feedback(i, 0.5)]
    assert p_meets_musts(trace([MUST, JUDGE], *records), "refine") == pytest.approx(p)
    assert p_meets_musts(trace([JUDGE], *records), "refine") == 1


def test_copy_is_not_graded():
    """A candidate with its parent's text uses its parent's grades."""
    records = [
        *UNEVEN,
        child(2, 0, "text 0"),
        feedback(0, 0.5, repeat=1),
        feedback(0, 0.5, "other", 1),
    ]
    steps = Adaptive(BARE, 0.0, max_attempts=9, priors=DOUBTS)(trace([JUDGE, OTHER], *records))
    assert not any(isinstance(step, Grade) and step.candidate.id == 2 for step in steps)


def test_new_draft_only_where_allowed():
    """A plan adds no draft to a given response, and none where new drafts are switched off."""
    plan, first = Adaptive(BARE, 0.0, priors=HURTS), [draft(0), feedback(0, 0.5)]
    assert describe(plan(trace([JUDGE], *first))) == ["draft 1"]
    assert describe(replace(plan, allow_new_drafts=False)(trace([JUDGE], *first))) == [
        "refine 0 as 1"
    ]
    given = trace([JUDGE], Candidate(0, "given"), feedback(0, 0.5), response="given")
    assert describe(plan(given)) == ["refine 0 as 1"]


def test_stop_note_gives_price_and_expected_gains():
    """The note names the price and the expected gain of each kind of step."""
    (stop,) = Adaptive(BARE, 0.05, priors=CONSTANT)(trace([JUDGE], draft(0), feedback(0, 0.5)))
    assert stop.reason == "gain"
    assert stop.note.startswith("no step gains 0.05 a call: a refinement 0.0")
    assert "a new draft 0.0" in stop.note


@pytest.mark.parametrize(
    ("unit", "words"), [("calls", "a call"), ("tokens", "for 1,000 tokens"), ("usd", "for a USD")]
)
def test_stop_note_uses_the_unit_of_the_price(unit, words):
    """Every rate in the note is below the price, also as it is rounded."""
    price = 0.05 if unit == "calls" else 0.5
    usage = usage_of(tokens=1000, usd=1.0)
    (stop,) = Adaptive(BARE, price, unit, priors=CONSTANT)(
        trace([JUDGE], draft(0, usage=usage), feedback(0, 0.5, usage=usage))
    )
    head, gains = stop.note.split(": ")
    assert head == f"no step gains {price:g} {words}"
    assert all(
        0 <= float(one.rsplit(" ", 1)[1]) < price and "-" not in one for one in gains.split(", ")
    )


def test_higher_price_stops_sooner():
    """A step that is worth a low price is not taken at a high one."""
    first = trace([JUDGE], draft(0), feedback(0, 0.5))
    reasons = [
        Adaptive(BARE, price, priors=HELPS)(first)[0].role for price in (0.0, 0.01, 0.05, 0.5)
    ]
    assert reasons == sorted(reasons) == ["refine", "refine", "refine", "stop"]


# ---- stop rules see estimates


@pytest.mark.parametrize(
    ("noise", "step"),
    [(0.0, "stop 0 target"), (0.02, "stop 0 target"), (0.3, "refine 0 as 1")],
)
def test_target_applies_to_the_estimate(noise, step):
    """One high score of a noisy judge does not reach the target."""
    prior = replace(HELPS, noise_sd=noise, bias_sd=0.0, draft_mean_sd=0.3)
    plan = Adaptive(SelfRefine(target(0.9) | max_iterations(9)), 0.0, priors=prior)
    assert describe(plan(trace([JUDGE], draft(0), feedback(0, 0.93)))) == [step]


def test_done_stops():
    """The plan stops when the grader of the best candidate wants no more changes."""
    plan = Adaptive(SelfRefine(target(1.0) | done()), 0.0, priors=HELPS)
    assert describe(plan(trace([JUDGE], draft(0), feedback(0, 0.5, done=True)))) == ["stop 0 done"]
    assert describe(plan(trace([JUDGE], draft(0), feedback(0, 0.5, done=False)))) == [
        "refine 0 as 1"
    ]


def test_patience_stops():
    """The plan stops after refinements that do not raise the estimate."""
    plan = Adaptive(
        SelfRefine(patience(2)), 0.0, max_attempts=9, allow_new_drafts=False, priors=HURTS
    )
    worse = [draft(0), feedback(0, 0.7), child(1, 0), feedback(1, 0.2)]
    assert plan(trace([JUDGE], *worse))[0].role != "stop"
    assert describe(plan(trace([JUDGE], *worse, child(2, 0), feedback(2, 0.1)))) == [
        "stop 0 patience"
    ]


@pytest.mark.parametrize("attempts", range(4))
def test_max_attempts_bounds_new_texts(attempts):
    """Refinements and new drafts count together, and the note gives their number."""
    records = [draft(0), feedback(0, 0.5)]
    plan = Adaptive(BARE, 0.0, max_attempts=attempts, priors=HELPS)
    for i in range(1, attempts + 1):
        assert describe(plan(trace([JUDGE], *records)))[0].startswith("refine")
        records += [child(i, 0), feedback(i, 0.5 + i / 20)]
    for repeat in range(1, 3 if attempts else 1):  # no calls are left for repeated grades either
        assert plan(trace([JUDGE], *records))[0].role == "stop", repeat
    (stop,) = plan(trace([JUDGE], *records))
    assert (stop.reason, stop.note) == (
        "max_iterations",
        f"{attempts} attempt{'s' * (attempts != 1)} made",
    )


def test_the_price_rises_from_the_third_text_on():
    """The note has the price and gains as they are; an attempt is a text, or as many grades."""
    plan = Adaptive(BARE, 0.2, max_attempts=9, priors=HELPS)
    flat = replace(plan, price_rises=False)
    records, factors, notes = [draft(0), feedback(0, 0.5)], [], []
    for i in range(1, 5):
        (stop,), (flat_stop,) = (each(trace([JUDGE], *records)) for each in (plan, flat))
        factors.append(plan.price_factor(trace([JUDGE], *records)))
        notes.append(stop.note.partition(":")[0])
        assert stop.note.partition(":")[2] == flat_stop.note.partition(":")[2]
        assert flat_stop.note.startswith("no step gains 0.2 a call:")
        records += [child(i, 0), feedback(i, 0.5)]
    assert factors == [1.0, 1.0, 1.5, 2.0]
    assert notes == [f"no step gains {price} a call" for price in ("0.2", "0.2", "0.3", "0.4")]
    asked_again = [
        draft(0),
        feedback(0, 0.5),
        child(1, 0),
        unreadable(1, 0),
        feedback(1, 0.5, repeat=1),
    ]
    assert plan.price_factor(trace([JUDGE], *asked_again)) == 1.25


def test_the_risen_price_decides():
    """A step that the flat price allows is too dear once the price has risen above its gain."""
    records = [
        draft(0),
        feedback(0, 0.5),
        child(1, 0),
        feedback(1, 0.5),
        child(2, 0),
        feedback(2, 0.5),
    ]
    choices = Adaptive(BARE, 0.0, max_attempts=9, price_rises=False).decide(
        trace([JUDGE], *records)
    )
    rate = max(choice.gain_per_cost for choice in choices.choices)
    for price, goes_on in ((0.6 * rate, True), (0.7 * rate, False)):
        plan = Adaptive(BARE, price, max_attempts=9)
        assert plan.decide(trace([JUDGE], *records)).continues is goes_on
        assert replace(plan, price_rises=False).decide(trace([JUDGE], *records)).continues


def test_a_named_price_does_not_rise():
    """The setting `min_expected_gain` is the price of every step; the plan's own one rises."""
    named, own = (
        Options(**given).make_plan(writes=True, noisy=True)
        for given in ({"min_expected_gain": 0.01}, {})
    )
    assert (named.min_expected_gain, named.price_rises) == (0.01, False)
    assert (own.min_expected_gain, own.price_rises) == (Adaptive.min_expected_gain, True)


# ---- the answer returned

LUCKY = [draft(0), feedback(0, 0.9), draft(1), *(feedback(1, 0.85, repeat=n) for n in range(6))]
LOUD = replace(DOUBTS, draft_mean=0.4, draft_mean_sd=0.05)


@pytest.mark.parametrize("reason", [StopReason.BUDGET, StopReason.DEADLINE])
def test_exhausted_limit_keeps_the_best_estimate(reason):
    """A score that was measured often beats a slightly higher one that was measured once."""
    cut = trace([JUDGE], *LUCKY, failed_candidate(2, "generate", stop_reason=reason))
    (stop,) = Adaptive(BARE, priors=LOUD)(cut)
    assert (cut.best.id, stop.best, stop.reason) == (0, 1, reason)
    low, high = stop.interval
    assert 0 <= low < stop.score < high <= 1
    assert stop.score < 0.85


def test_interrupted_run_keeps_the_best_estimate():
    """An interrupted run returns the answer that the plan itself would have chosen."""
    outcome = Adaptive(BARE, priors=LOUD).outcome_if_stopped(
        trace([JUDGE], *LUCKY), StopReason.CANCELLED, "interrupted"
    )
    assert (outcome.best, outcome.reason, outcome.note) == (1, "cancelled", "interrupted")
    ended = trace([JUDGE], *LUCKY, outcome)
    assert (ended.best.id, ended.judge_score) == (1, pytest.approx(0.85))
    assert ended.score == outcome.score < 0.85


def test_run_interrupted_before_any_grade_has_no_score():
    """An answer without a grade has neither a score nor an interval."""
    outcome = Adaptive().outcome_if_stopped(trace([JUDGE], draft(0)), StopReason.CANCELLED, "")
    assert (outcome.best, outcome.score, outcome.interval) == (0, None, None)
    assert Adaptive().outcome_if_stopped(trace([JUDGE]), StopReason.CANCELLED, "").best is None


def test_must_comes_before_the_estimate():
    """A candidate that breaks a `must` loses, however high its estimate."""
    records = [
        draft(0),
        feedback(0, 0.0, "no_a"),
        feedback(0, 1.0),
        draft(1),
        feedback(1, 1.0, "no_a"),
        feedback(1, 0.2),
    ]
    plan = Adaptive(SelfRefine(max_iterations(0), repairs=False), priors=HELPS)
    assert describe(plan(trace([FORM, JUDGE], *records))) == ["stop 1 max_iterations"]


# ---- costs


def usage_of(*, tokens=None, usd=None):
    return Usage(1, answer_tokens=tokens, answer_cost=usd)


@pytest.mark.parametrize(
    ("unit", "writing", "judging", "role"),
    [
        ("tokens", usage_of(), usage_of(tokens=10), "stop"),
        ("tokens", usage_of(tokens=10), usage_of(), "stop"),
        ("tokens", usage_of(tokens=500), usage_of(tokens=500), "refine"),
        ("tokens", usage_of(tokens=500_000), usage_of(tokens=500), "stop"),
        ("usd", usage_of(), usage_of(usd=0.01), "stop"),
        ("usd", usage_of(usd=0.01), usage_of(usd=0.01), "refine"),
        ("usd", usage_of(usd=100.0), usage_of(usd=0.01), "stop"),
        ("usd", usage_of(usd=0.0), usage_of(usd=0.0), "refine"),
    ],
)
def test_gain_is_compared_with_cost(unit, writing, judging, role):
    """A step of high or unknown cost is not taken, and a free one is."""
    costs = trace([JUDGE], draft(0, usage=writing), feedback(0, 0.5, usage=judging))
    (step,) = Adaptive(BARE, 0.01, unit, priors=HELPS)(costs)
    assert step.role == role


def test_unknown_cost_is_reported():
    """The stop note says so when no price is known."""
    (stop,) = Adaptive(BARE, 0.01, "usd", priors=HELPS)(
        trace([JUDGE], draft(0, usage=usage_of()), feedback(0, 0.5, usage=usage_of()))
    )
    assert stop.note == "the cost of a step in usd is unknown, so no step is worth it"


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_expected_gain": -1},
        {"min_expected_gain": float("nan")},
        {"min_expected_gain": True},
        {"cost_unit": "hours"},
        {"max_attempts": -1},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"price_rises": 1},
    ],
)
def test_invalid_settings_are_rejected(wrong):
    """The error names the setting and its value."""
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must be .* got"):
        Adaptive(**wrong)


# ---- the tie-break

PAIR = [draft(0), feedback(0, 0.6), draft(1), feedback(1, 0.62)]
FAR = [draft(0), feedback(0, 0.1), draft(1), feedback(1, 0.9)]
NO = Priors(noise_sd=0.1, gain=-0.5, gain_sd=0.0, step_sd=0.0, draft_sd=0.1)


@pytest.mark.parametrize(
    ("panel", "records", "steps"),
    [
        ([JUDGE, RANKER], PAIR, ["ranker [0, 1]"]),
        ([JUDGE, replace(RANKER, repeats=2)], PAIR, ["ranker [0, 1]", "ranker [0, 1]"]),
        ([JUDGE], PAIR, ["stop 1 max_iterations"]),
        ([JUDGE, RANKER], FAR, ["stop 1 max_iterations"]),
        ([JUDGE, RANKER], [*PAIR, comparison(0, 1)], ["stop 0 max_iterations"]),
        ([JUDGE, RANKER], [*PAIR, comparison(1, 0)], ["stop 1 max_iterations"]),
        ([JUDGE, RANKER], [*PAIR, comparison(0, 1, ties=((0, 1),))], ["stop 1 max_iterations"]),
        (
            [JUDGE, RANKER],
            [*PAIR, comparison(0, 1, votes=(comparison(0, 1), comparison(1, 0)))],
            ["stop 1 max_iterations"],
        ),
        (
            [JUDGE, RANKER],
            [*PAIR, comparison(0, 1, votes=(comparison(0, 1), comparison(0, 1)))],
            ["stop 0 max_iterations"],
        ),
        (
            [JUDGE, RANKER],
            [*PAIR, Failure(("comparison", (0, 1), "ranker", 0), "compare", "X")],
            ["stop 1 max_iterations"],
        ),
        (
            [JUDGE, RANKER],
            [*PAIR, failed_candidate(2, "refine", stop_reason=StopReason.BUDGET)],
            ["stop 1 budget"],
        ),
    ],
)
def test_comparers_break_ties_last(panel, records, steps):
    """A comparer decides between the two best if their estimates are close, unless it contradicts
    itself.
    """
    plan = Adaptive(SelfRefine(max_iterations(9), drafts=2), 0.0, max_attempts=0, priors=NO)
    assert describe(plan(trace(panel, *records))) == steps


@pytest.mark.parametrize(
    ("score", "tie_breaks", "steps"),
    [
        (0.6, [], ["ranker [0, 1]"]),
        (0.6, [comparison(0, 1)], ["stop 0 target"]),
        (0.73, [], ["stop 1 target"]),
        (0.73, [comparison(0, 1)], ["stop 1 target"]),
    ],
)
def test_tie_break_respects_the_target(score, tie_breaks, steps):
    """If only one of the two reaches the target, that one is the answer."""
    plan = Adaptive(SelfRefine(target(score), drafts=2), priors=NO)
    high = [draft(0), feedback(0, 0.72), draft(1), feedback(1, 0.82)]
    assert describe(plan(trace([JUDGE, RANKER], *high, *tie_breaks))) == steps


@pytest.mark.parametrize(
    ("tie_breaks", "winner"),
    [
        ([], None),
        ([comparison(0, 1)], 0),
        ([comparison(1, 0)], 1),
        ([comparison(0, 1), comparison(1, 0, repeat=1)], None),
        ([comparison(0, 1), comparison(1, 0, repeat=1), comparison(1, 0, repeat=2)], 1),
        ([comparison(1, 0, ties=((0, 1),))], None),
        ([comparison(0, 1, votes=(comparison(0, 1), comparison(1, 0)))], None),
        ([comparison(2, 0)], None),
    ],
)
def test_preferred_candidate(tie_breaks, winner):
    """The candidate wins that most comparisons of exactly these two prefer, whatever the order
    shown.
    """
    compared = trace([JUDGE, RANKER], draft(0), draft(1), draft(2), *tie_breaks)
    assert comparison_winner(compared, [compared.by_id[0], compared.by_id[1]]) == winner
    assert comparison_winner(compared, [compared.by_id[1], compared.by_id[0]]) == winner


# ---- whole runs


class Noisy(World):
    """A world with few distinct scores and with refinements that sometimes change nothing."""

    def answer(self, step):
        return step if isinstance(step, Stop) else super().answer(step)

    def text(self, step):
        same = chance(self.seed, "same", step.id).random() < 0.15
        return "never mind" if same else super().text(step)

    def score(self, step):
        return super().score(step) if step.grader == "no_a" else round(super().score(step), 1)


PANELS = {
    "judge": (JUDGE,),
    "two": (JUDGE, PanelGrader("other", weight=2.0)),
    "looks": (PanelGrader("judge", repeats=2), OTHER),
    "form": (FORM, JUDGE),
    "mixed": (CHECK, JUDGE),
    "free": (CHECK,),
    "duel": (JUDGE, RANKER),
}
RULES = target(0.9) | done() | patience(4)
runs = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10_000),
        "panel": st.sampled_from(sorted(PANELS)),
        "prior": st.sampled_from([Priors(), HELPS, HURTS, DOUBTS]),
        "drafts": st.sampled_from([1, 1, 2, 3]),
        "attempts": st.integers(0, 6),
        "price": st.sampled_from([0.0, 0.003, 0.01]),
        "fails": st.just(0.0),
        "given": st.sampled_from([False, False, True]),
    }
)
failing = runs.flatmap(
    lambda run: st.sampled_from([0.1, 0.3, 0.6, 1.0]).map(lambda share: {**run, "fails": share})
)


def plan_of(run):
    rules = SelfRefine(RULES | max_iterations(run["attempts"]), run["drafts"])
    return Adaptive(rules, run["price"], max_attempts=run["attempts"], priors=run["prior"])


def begin(run):
    start = trace(PANELS[run["panel"]], response="a given answer" if run["given"] else None)
    return start + Candidate(0, "a given answer") if run["given"] else start


def carry_out(start, run, world):
    return asyncio.run(last(advance(start, plan_of(run), world)))


def model_calls(world, panel):
    """Count the model calls of a world, without tie-breaks."""
    model_graders = {grader.name for grader in panel if not grader.model_free}
    repairs = set(world.repaired)
    return sum(
        slot[2] in model_graders
        if slot[0] == "feedback"
        else slot[0] == "candidate" and slot[1] not in repairs
        for slot in world.asked
    )


class CountingEditor(Noisy):
    """An editor that records the candidates it made."""

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.repaired = set()

    def answer(self, step):
        if isinstance(step, Repair):
            self.repaired.add(step.id)
        return super().answer(step)


def world_of(run):
    return CountingEditor(run["seed"], run["fails"])


@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(st.one_of(runs, failing))
def test_calls_are_bounded(run):
    """A run makes at most (1 + repeats) x (drafts + attempts) calls: 2 x (1 + max_iterations) for
    one judge and one draft.
    """
    world, panel = world_of(run), PANELS[run["panel"]]
    carry_out(begin(run), run, world)
    repeats = sum(
        grader.repeats for grader in panel if not grader.model_free and not grader.compares
    )
    first = 1 if run["given"] else run["drafts"]
    assert model_calls(world, panel) <= (1 + repeats) * (first + run["attempts"])


@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(st.one_of(runs, failing))
def test_every_run_ends_without_repeated_steps(run):
    """A run ends whatever fails, and returns a graded candidate if there is one."""
    world = world_of(run)
    ended = carry_out(begin(run), run, world)
    assert len(world.asked) == len(set(world.asked))
    assert ended.outcome
    if ended.graded_candidates:
        assert ended.scores[ended.best.id] is not None
        low, high = ended.outcome.interval
        assert 0 <= low <= ended.score <= high <= 1
        assert all(
            ended.must_pass_rate(c.id) <= ended.must_pass_rate(ended.best.id)
            for c in ended.graded_candidates
        )
    if not run["fails"]:
        assert all(
            ended.scores[c.id] is not None
            for c in ended.candidates
            if c.id not in ended.replaced_ids
        )


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(run=runs, cut=st.floats(0, 1))
def test_every_prefix_resumes_to_the_same_answer(run, cut):
    """A run that is cut anywhere, pickled and resumed gives the same answer and estimate without
    repeated calls.
    """
    full = carry_out(begin(run), run, world_of(run))
    n = max(1, int(cut * len(full.records)))
    prefix = pickle.loads(pickle.dumps(Trace(full.task, full.panel, full.records[:n])))
    world = world_of(run)
    resumed = carry_out(prefix, run, world) or prefix
    assert same(resumed, full)
    assert resumed.outcome == full.outcome
    assert not {r.slot for r in prefix.records} & set(world.asked)


@given(st.one_of(runs, failing))
def test_arrival_order_does_not_matter(run):
    """Two runs whose records arrive in different orders hold the same records, including
    failures.
    """
    one, other = (carry_out(begin(run), run, world_of(run)) for _ in range(2))
    assert same(one, other)
    assert one.outcome == other.outcome


@settings(max_examples=60, deadline=None)
@given(run=runs, cut=st.floats(0, 1), seed=st.integers(0, 99))
def test_plan_depends_on_records_only(run, cut, seed):
    """The same records in any order give the same steps."""
    full = carry_out(begin(run), run, world_of(run))
    records = full.records[: max(1, int(cut * (len(full.records) - 1)))]
    shuffled = random.Random(seed).sample(records, len(records))
    assert plan_of(run)(Trace(full.task, full.panel, tuple(shuffled))) == plan_of(run)(
        Trace(full.task, full.panel, records)
    )


@settings(max_examples=60, deadline=None)
@given(runs)
def test_computed_scores_are_exact(run):
    """With deterministic graders the answer and its score are those of the plain rules."""
    run = {**run, "panel": "free"}
    ended = carry_out(begin(run), run, world_of(run))
    observed = Trace(ended.task, ended.panel, ended.records[:-1])
    assert ended.best == observed.best
    assert ended.score == pytest.approx(ended.judge_score, abs=1e-6)


def test_replay_performs_no_step():
    """A complete trace replays without performing a step."""
    run = {
        "seed": 4,
        "panel": "two",
        "prior": HELPS,
        "drafts": 2,
        "attempts": 4,
        "price": 0.0,
        "fails": 0.0,
        "given": False,
    }
    full = carry_out(begin(run), run, world_of(run))

    async def perform(step):
        pytest.fail(f"{step} is performed")

    assert same(carry_out(begin(run), run, replay_from(full, perform)), full)


def test_reported_score_is_the_posterior_mean():
    """The score of the outcome is the posterior mean of the returned candidate."""
    run = {
        "seed": 7,
        "panel": "judge",
        "prior": DOUBTS,
        "drafts": 3,
        "attempts": 3,
        "price": 0.0,
        "fails": 0.0,
        "given": False,
    }
    ended = carry_out(begin(run), run, world_of(run))
    posterior = Posterior(observe(ended), DOUBTS)
    assert ended.score == posterior.means[ended.best.id] == max(posterior.means.values())


def test_the_docs_name_the_rules_of_the_plans():
    """The table of docs/adaptive.md, and the example of a price there."""
    page = (Path(__file__).parents[2] / "docs" / "adaptive.md").read_text()
    price = f"{Adaptive.min_expected_gain:g}"
    assert f"| `max_iterations` | {DEFAULT_ITERATIONS} | {Adaptive.max_attempts}: " in page
    assert f"| `patience` | {DEFAULT_PATIENCE} | none: " in page
    assert f"| `min_expected_gain` | | {price}, and it rises from the third text on |" in page
    assert f"{price}, the default of\n`min_expected_gain`" in page
