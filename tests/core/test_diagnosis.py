"""Diagnoses of finished refinements: tables of traces."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.loop.records import (
    Candidate,
    Comparison,
    Failure,
    Feedback,
    Outcome,
    StopReason,
)
from redraft.loop.stopping import max_iterations, target
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.adaptive import Adaptive
from redraft.plans.quality.diagnosis import (
    DiagnosisKind,
    diagnose,
    has_significant_gain,
    selection_reason,
)
from redraft.plans.quality.priors import Priors
from redraft.plans.quality.simulate import SimulatedTask, run_to_end
from redraft.plans.self_refine import SelfRefine
from redraft.runs.row_result import row_result

CHECK, JUDGE = PanelGrader("check", model_free=True), PanelGrader("judge")


def finished_trace(*answers, graders=(CHECK,), best=0, reason="patience", estimates=(), noise=None):
    """Build a finished trace from (parent, score, score of the next grader ...); a tuple of scores
    holds repeats.

    Parent None makes a draft, "given" a given response, and "=" a copy of the answer before.
    """
    records = []
    for id, (parent, *scores) in enumerate(answers):
        copied, text = parent == "=", f"text {id - 1 if parent == '=' else id}"
        role = "given" if parent == "given" else "generate" if parent is None else "refine"
        records.append(
            Candidate(
                id, text, id - 1 if copied else parent if role == "refine" else None, role=role
            )
        )
        for grader, score in zip(graders, () if copied else scores, strict=not copied):
            repeats = score if isinstance(score, tuple) else (score,)
            records += [
                Feedback(s, candidate=id, grader=grader.name, repeat=n)
                for n, s in enumerate(repeats)
            ]
    interval = (0.0, 1.0) if estimates else None
    end = Outcome(
        best,
        StopReason(reason),
        "so it is",
        dict(estimates).get(best),
        interval,
        tuple(estimates),
        noise,
    )
    return Trace(Task("q"), tuple(graders), (*records, end))


def kind(*answers, **more):
    found = diagnose(finished_trace(*answers, **more))
    return None if found is None else str(found.kind)


@pytest.mark.parametrize(
    ("answers", "more", "expected"),
    [
        ([(None, 1.0)], {"reason": "target"}, "reached"),
        ([(None, 0.0), (0, 0.0), (0, 0.0)], {"reason": "done"}, "reached"),
        ([(None, 0.5)], {"reason": "max_iterations"}, None),
        ([(None, 0.5), (0, 0.8)], {"reason": "max_iterations", "best": 1}, None),
        ([(None, 0.5), (0, 0.8), (1, 0.8), (1, 0.7)], {"best": 1}, "ceiling"),
        ([(None, 0.5), (0, 0.5), (0, 0.5)], {}, "ceiling"),
        ([(None, 0.5), ("=", None), ("=", None)], {}, "ceiling"),
        ([(None, 0.5), (0, 0.4), (0, 0.3)], {}, "regression"),
        ([(None, 0.5), (0, 0.4)], {"reason": "gain"}, "regression"),
        ([(None, 0.5), (0, 0.6), (1, 0.1), (1, 0.1)], {"best": 1}, "ceiling"),
        ([(None, 0.0), (0, 0.0), (0, 0.0)], {}, "bad check"),
        ([("given", 0.0), (0, 0.0)], {"reason": "gain"}, "ceiling"),
        ([("given", 0.0), (0, 0.0), (0, 0.0)], {}, "bad check"),
        ([(None, 0.0), (0, 0.2), (0, 0.0)], {"best": 1}, "ceiling"),
        ([(None, 0.5), (None, 0.5), (None, 0.5)], {"reason": "gain"}, None),
    ],
)
def test_computed_scores_have_no_noise(answers, more, expected):
    """With graders that call no model, every fall is a regression, however small."""
    assert kind(*answers, **more) == expected


@pytest.mark.parametrize(
    ("answers", "more", "expected"),
    [
        ([(None, 0.6), (0, 0.7)], {"best": 1, "reason": "gain"}, "too few repeats"),
        ([(None, 0.6), (0, 0.5), (0, 0.5)], {}, "too few repeats"),
        ([(None, 0.6), (0, 0.61)], {"best": 1, "reason": "gain", "noise": 0.01}, "noise"),
        ([(None, 0.61), (0, 0.6)], {"noise": 0.01}, "noise"),
        ([(None, 0.3), (0, 0.8)], {"best": 1, "reason": "gain"}, None),
        ([(None, 0.3), (0, 0.9), (1, 0.8)], {"best": 1}, "ceiling"),
        ([(None, 0.9), (0, 0.3), (0, 0.3)], {}, "regression"),
        ([(None, 0.9)], {"reason": "gain"}, None),
        ([(None, None), (0, 0.9)], {"best": 1, "reason": "gain"}, None),
        (
            [(None, (0.6, 0.6, 0.6, 0.6)), (0, (0.8, 0.8, 0.8, 0.8))],
            {"best": 1, "reason": "gain"},
            None,
        ),
        (
            [(None, (0.2, 0.9, 0.1)), (0, (0.9, 0.4, 0.9))],
            {"best": 1, "reason": "gain"},
            "too few repeats",
        ),
    ],
)
def test_moves_within_the_noise_are_ignored(answers, more, expected):
    """A move within a judge's noise is no move; repeated grades of one text show how large the
    noise is.
    """
    assert kind(*answers, graders=(JUDGE,), **more) == expected


def test_estimates_come_before_observed_scores():
    """A fall of the observed score is no regression if the estimate does not fall."""
    answers = [(None, 1.0), (0, 0.6), (0, 0.6)]
    assert kind(*answers, graders=(JUDGE,)) == "regression"
    estimates = ((0, 0.7), (1, 0.71), (2, 0.71))
    assert kind(*answers, graders=(JUDGE,), estimates=estimates) == "ceiling"


def test_known_noise_is_used():
    """The same scores differ for a precise judge and are inconclusive for a noisy one."""
    answers = (None, 0.5), (0, 0.7)
    assert kind(*answers, graders=(JUDGE,), best=1, reason="gain", noise=0.0) is None
    assert kind(*answers, graders=(JUDGE,), best=1, reason="gain", noise=0.02) is None
    assert kind(*answers, graders=(JUDGE,), best=1, reason="gain", noise=0.2) == "too few repeats"


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (
            [(None, 0.95), (0, 0.95), (0, 0.95)],
            "2 refinements did not improve on answer 0: the graders give every answer",
        ),
        ([(None, 0.951), (0, 0.949)], "the graders give every answer 0.95"),
        ([(None, 0.95), (None, 0.95)], None),
        ([(None, 0.95), ("=", None)], "did not improve on answer 0"),
    ],
)
def test_constant_judge_is_not_called_noisy(answers, expected):
    """The diagnosis says that the judge does not discriminate, or says nothing."""
    found = diagnose(finished_trace(*answers, graders=(JUDGE,), reason="gain"))
    assert (
        (found is None)
        if expected is None
        else (found.kind is DiagnosisKind.CEILING and expected in found.message)
    )
    assert found is None or ("every answer" in found.message) is (answers[-1][0] != "=")


@pytest.mark.parametrize(
    ("grader", "scores", "bad"),
    [
        (PanelGrader("words:5", must=True, model_free=True), (0.0, 0.0, 0.0), True),
        (PanelGrader("words:5", must=True, model_free=True), (0.0, 1.0, 0.0), False),
        (PanelGrader("safe", must=True), (0.8, 0.6, 0.8), True),
        (PanelGrader("half", model_free=True, editable=True), (0.5, 0.5, 0.5), True),
        (PanelGrader("overlap", model_free=True), (0.2, 0.2, 0.2), False),
        (PanelGrader("overlap", model_free=True), (0.0, 0.0, 0.0), True),
        (PanelGrader("opinion"), (0.0, 0.0, 0.0), False),
        (PanelGrader("words:5", must=True, model_free=True), (None, None, None), False),
        (PanelGrader("words:5", must=True, model_free=True), (None, None, 0.0), False),
    ],
)
def test_unmet_check_is_named(grader, scores, bad):
    """A `must` needs a full score; a low judge score or an unmeasured check is not reported."""
    answers = [(parent, own, 0.5) for parent, own in zip((None, 0, 0), scores, strict=True)]
    found = diagnose(
        finished_trace(*answers, graders=(grader, PanelGrader("other", model_free=True)))
    )
    is_named = found and found.kind is DiagnosisKind.BAD_CHECK and grader.name in found.message
    assert bool(is_named) is bad


def test_all_unmet_checks_are_named():
    """Two checks that cannot be met together are both named."""
    answers = [(None, 0.0, 0.0), (0, 0.0, 0.0), (0, 0.0, 0.0)]
    graders = (
        PanelGrader("words:5", must=True, model_free=True),
        PanelGrader("no_commas", must=True, model_free=True),
    )
    assert "words:5 or no_commas" in diagnose(finished_trace(*answers, graders=graders)).message


@pytest.mark.parametrize("reason", ["budget", "deadline", "failed", "cancelled"])
def test_interrupted_run_has_no_diagnosis(reason):
    """An unfinished run gets no diagnosis."""
    assert kind((None, 0.5), (0, 0.4), (0, 0.4), reason=reason) is None


def test_run_without_result_has_no_diagnosis():
    """A run without an outcome, an answer or a grade gets no diagnosis."""
    trace = finished_trace((None, 0.5), (0, 0.4), (0, 0.4))
    assert diagnose(Trace(trace.task, trace.panel, trace.records[:-1])) is None
    assert kind((None, None), reason="gain") is None
    nothing = Failure(("candidate", 0), "generate", "ModelError")
    assert diagnose(Trace(Task("q"), (CHECK,), (nothing, Outcome(None, StopReason.FAILED)))) is None


scores = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))


@given(
    st.lists(
        st.tuples(st.one_of(st.none(), st.just("="), st.integers(0, 5)), scores, scores),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(list(StopReason)),
    st.booleans(),
    st.booleans(),
)
def test_any_trace_has_at_most_one_diagnosis(answers, reason, noisy, must):
    """The diagnosis does not depend on the order of the records."""
    answers = [
        (None if i == 0 or (isinstance(p, int) and p >= i) else p, *fits)
        for i, (p, *fits) in enumerate(answers)
    ]
    graders = (PanelGrader("a", model_free=not noisy), PanelGrader("b", model_free=True, must=must))
    trace = finished_trace(*answers, graders=graders, reason=str(reason))
    found = diagnose(trace)
    assert found is None or found.message
    other = Trace(trace.task, trace.panel, (*reversed(trace.records[:-1]), trace.records[-1]))
    assert diagnose(other) == found


# ---- simulated tasks with known truth


STEADY = {
    "gain": 0.0,
    "gain_sd": 0.0,
    "retention": 1.0,
    "step_sd": 0.0,
    "draft_sd": 0.0,
    "bias_sd": 0.0,
    "bias_drift": 0.0,
}
RULES = SelfRefine(target(1.0) | max_iterations(3))
PLANS = {"believing": Adaptive(RULES, min_expected_gain=0.001), "plain": RULES}


def simulate_all(plan, world, repeats, tasks=120):
    """Return the true gain and the finished trace of each simulated task."""
    dice = random.Random(7)
    for _ in range(tasks):
        truth = SimulatedTask(world, dice)
        trace = run_to_end(Trace(Task("t"), (PanelGrader("judge", repeats=repeats),)), plan, truth)
        yield truth.qualities[trace.best.id] - truth.qualities[0], trace


@pytest.mark.parametrize("repeats", [1, 8])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.slow(but_each=4)
def test_simulated_gains_are_told_from_noise(plan, repeats):
    """No gain of 0.2 is called noise, and hardly any task without a gain counts as improved."""
    gained = [trace for gain, trace in simulate_all(plan, Priors(), repeats) if gain >= 0.2]
    assert len(gained) > 15
    assert not [
        trace
        for trace in gained
        if (diagnosis := diagnose(trace)) and diagnosis.kind is DiagnosisKind.NOISE
    ]
    flat = [trace for _, trace in simulate_all(plan, Priors(**STEADY), repeats)]
    assert sum(map(has_significant_gain, flat)) <= 0.05 * len(flat)


def test_enough_repeats_tell_a_gain_from_none():
    """A precise judge, or many repeats, settle whether a task improved."""
    known = Adaptive(RULES, priors=Priors(noise_sd=0.02))
    found = [
        has_significant_gain(trace)
        for gain, trace in simulate_all(known, Priors(noise_sd=0.02), 1)
        if gain >= 0.2
    ]
    assert found
    assert all(found)
    flat = [diagnose(trace) for _, trace in simulate_all(RULES, Priors(**STEADY, noise_sd=0.02), 8)]
    assert (
        sum(fits is not None and fits.kind is DiagnosisKind.NOISE for fits in flat) > len(flat) / 2
    )


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_improved_count_agrees_with_diagnoses(plan):
    """No row counts as improved whose diagnosis is noise or inconclusive."""
    for _, trace in simulate_all(plan, Priors(), 1):
        row = row_result(trace)
        assert row.improved + row.unsure <= 1
        if row.columns["diagnosis"] in {"noise", "too few repeats", "regression"}:
            assert not row.improved
        if row.unsure:
            assert row.columns["diagnosis"]


# ---- why the highest score was not returned


@pytest.mark.parametrize(
    ("answers", "more", "why"),
    [
        ([(None, 0.5), (0, 0.8)], {"best": 1}, ""),
        ([(None, 0.5), (0, 0.5)], {}, ""),
        (
            [(None, 0.5), (0, 0.8)],
            {"best": 0, "estimates": ((0, 0.7), (1, 0.6))},
            "its estimated quality is higher",
        ),
        ([(None, 0.5), (0, 0.8)], {"best": 0}, "by the plan's decision"),
        ([(None, None), (0, 0.8)], {"best": 1}, ""),
    ],
)
def test_reason_for_not_returning_the_highest_score(answers, more, why):
    """One sentence names both answers, their difference and the reason; it is empty if the highest
    was returned.
    """
    reason = selection_reason(finished_trace(*answers, graders=(JUDGE,), reason="gain", **more))
    assert (
        reason.endswith("by the plan's decision")
        if why == "by the plan's decision"
        else why in reason
    )
    assert bool(reason) is bool(why)
    assert not reason or reason.startswith(
        "answer 1 was scored 0.30 higher than answer 0, which is the best "
    )


def test_reason_names_constraint_or_comparison():
    """The reason names the constraints that the other answer breaks, or says that the two were
    compared.
    """
    graders = (PanelGrader("words:5", must=True, model_free=True), JUDGE)
    assert "the other breaks words:5" in selection_reason(
        finished_trace((None, 1.0, 0.5), (0, 0.0, 0.8), graders=graders)
    )
    trace = finished_trace((None, 0.5), (0, 0.8), graders=(JUDGE,), reason="gain")
    comparison = Comparison((0, 1), grader="tie_break")
    compared = Trace(
        trace.task,
        (*trace.panel, PanelGrader("tie_break", compares=True)),
        (*trace.records[:-1], comparison, trace.records[-1]),
    )
    assert "won the comparison of the two" in selection_reason(compared)
