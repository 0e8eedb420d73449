"""What is said of work that has ended: tables of traces."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.quality.diagnosis import DiagnosisKind, diagnose, has_significant_gain, selection_reason
from redraft.plans.adaptive import Adaptive
from redraft.plans.self_refine import SelfRefine
from redraft.quality.priors import Priors
from redraft.core.records import Candidate, Comparison, Failure, Feedback, Outcome, StopReason, Task
from redraft.core.stopping import max_iterations, target
from redraft.core.trace import PanelGrader, Trace
from redraft.runs.simulate import SimulatedTask, run_to_end
from redraft.runs.row_result import row_result

CHECK, JUDGE = PanelGrader("check", model_free=True), PanelGrader("judge")


def traced(*made, seats=(CHECK,), best=0, reason="patience", believed=(), noise=None):
    """A trace that ended, with answers made of (parent, score, score by the next grader ...); a tuple of scores is one of looks.

    Without a parent an answer is a draft; with the parent "given" it was given, with a parent "=" it is a copy of the one before.
    """
    records = []
    for id, (parent, *scores) in enumerate(made):
        copied, text = parent == "=", f"text {id - 1 if parent == '=' else id}"
        role = "given" if parent == "given" else "generate" if parent is None else "refine"
        records.append(Candidate(id, text, id - 1 if copied else parent if role == "refine" else None, role=role))
        for seat, said in zip(seats, () if copied else scores, strict=not copied):
            looks = said if isinstance(said, tuple) else (said,)
            records += [Feedback(s, candidate=id, grader=seat.name, repeat=n) for n, s in enumerate(looks)]
    interval = (0.0, 1.0) if believed else None
    end = Outcome(best, StopReason(reason), "so it is", dict(believed).get(best), interval, tuple(believed), noise)
    return Trace(Task("q"), tuple(seats), (*records, end))


def kind(*made, **more):
    found = diagnose(traced(*made, **more))
    return None if found is None else str(found.kind)


@pytest.mark.parametrize(
    ("made", "more", "expected"),
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
def test_deterministic_graders_are_taken_at_their_word(made, more, expected):
    """Graders that call no model have no noise: a fall is a fall, however small."""
    assert kind(*made, **more) == expected


@pytest.mark.parametrize(
    ("made", "more", "expected"),
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
        ([(None, (0.6, 0.6, 0.6, 0.6)), (0, (0.8, 0.8, 0.8, 0.8))], {"best": 1, "reason": "gain"}, None),
        ([(None, (0.2, 0.9, 0.1)), (0, (0.9, 0.4, 0.9))], {"best": 1, "reason": "gain"}, "too few repeats"),
    ],
)
def test_noisy_graders_are_not(made, more, expected):
    """A move within the noise of a judge is no move; looks at the same text tell how large that noise is."""
    assert kind(*made, seats=(JUDGE,), **more) == expected


def test_what_is_believed_counts_where_it_is_known():
    """A fall of the observed score that belief does not share is no regression."""
    made = [(None, 1.0), (0, 0.6), (0, 0.6)]
    assert kind(*made, seats=(JUDGE,)) == "regression"
    believed = ((0, 0.7), (1, 0.71), (2, 0.71))
    assert kind(*made, seats=(JUDGE,), believed=believed) == "ceiling"


def test_known_noise_decides():
    """The same scores are apart for a judge that the plan took for steady, and tell too little of one that it did not."""
    made = (None, 0.5), (0, 0.7)
    assert kind(*made, seats=(JUDGE,), best=1, reason="gain", noise=0.0) is None
    assert kind(*made, seats=(JUDGE,), best=1, reason="gain", noise=0.02) is None
    assert kind(*made, seats=(JUDGE,), best=1, reason="gain", noise=0.2) == "too few repeats"


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ([(None, 0.95), (0, 0.95), (0, 0.95)], "2 refinements did not improve on answer 0: the graders give every answer"),
        ([(None, 0.951), (0, 0.949)], "the graders give every answer 0.95"),
        ([(None, 0.95), (None, 0.95)], None),
        ([(None, 0.95), ("=", None)], "did not improve on answer 0"),
    ],
)
def test_a_judge_that_always_says_the_same_is_not_noisy(made, expected):
    """Scores that do not differ do not differ by noise: what is said is that the judge tells no difference, or nothing."""
    found = diagnose(traced(*made, seats=(JUDGE,), reason="gain"))
    assert (found is None) if expected is None else (found.kind is DiagnosisKind.CEILING and expected in found.message)
    assert found is None or ("every answer" in found.message) is (made[-1][0] != "=")


@pytest.mark.parametrize(
    ("seat", "scores", "bad"),
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
def test_a_check_that_nothing_meets_is_named(seat, scores, bad):
    """A must takes a full score; a judge's low opinion is no bad check, nor is what was never measured."""
    made = [(parent, own, 0.5) for parent, own in zip((None, 0, 0), scores, strict=True)]
    found = diagnose(traced(*made, seats=(seat, PanelGrader("other", model_free=True))))
    said = found and found.kind is DiagnosisKind.BAD_CHECK and seat.name in found.message
    assert bool(said) is bad


def test_all_that_nothing_meets_is_named():
    """Two checks that cannot be met together are both said."""
    made = [(None, 0.0, 0.0), (0, 0.0, 0.0), (0, 0.0, 0.0)]
    seats = (PanelGrader("words:5", must=True, model_free=True), PanelGrader("no_commas", must=True, model_free=True))
    assert "words:5 or no_commas" in diagnose(traced(*made, seats=seats)).message


@pytest.mark.parametrize("reason", ["budget", "deadline", "failed", "cancelled"])
def test_nothing_is_said_of_work_that_was_cut_short(reason):
    """What was not finished shows nothing."""
    assert kind((None, 0.5), (0, 0.4), (0, 0.4), reason=reason) is None


def test_nothing_is_said_of_work_that_goes_on_or_came_to_nothing():
    """Without an end, an answer or a grade there is nothing to say."""
    trace = traced((None, 0.5), (0, 0.4), (0, 0.4))
    assert diagnose(Trace(trace.task, trace.panel, trace.records[:-1])) is None
    assert kind((None, None), reason="gain") is None
    nothing = Failure(("candidate", 0), "generate", "ModelError")
    assert diagnose(Trace(Task("q"), (CHECK,), (nothing, Outcome(None, StopReason.FAILED)))) is None


scores = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))


@given(
    st.lists(st.tuples(st.one_of(st.none(), st.just("="), st.integers(0, 5)), scores, scores), min_size=1, max_size=6),
    st.sampled_from(list(StopReason)),
    st.booleans(),
    st.booleans(),
)
def test_whatever_happened_something_or_nothing_is_said(made, reason, noisy, must):
    """Any trace has at most one diagnosis, the same whatever the order of its records."""
    made = [(None if i == 0 or (isinstance(p, int) and p >= i) else p, *told) for i, (p, *told) in enumerate(made)]
    seats = (PanelGrader("a", model_free=not noisy), PanelGrader("b", model_free=True, must=must))
    trace = traced(*made, seats=seats, reason=str(reason))
    found = diagnose(trace)
    assert found is None or found.message
    other = Trace(trace.task, trace.panel, (*reversed(trace.records[:-1]), trace.records[-1]))
    assert diagnose(other) == found


# ---- in worlds whose truth is known


STEADY = {"gain": 0.0, "gain_sd": 0.0, "retention": 1.0, "step_sd": 0.0, "draft_sd": 0.0, "bias_sd": 0.0, "bias_drift": 0.0}
RULES = SelfRefine(target(1.0) | max_iterations(3))
PLANS = {"believing": Adaptive(RULES, min_expected_gain=0.001), "plain": RULES}


def ended(plan, world, looks, tasks=120):
    """What each task truly gained, and its trace."""
    dice = random.Random(7)
    for _ in range(tasks):
        truth = SimulatedTask(world, dice)
        trace = run_to_end(Trace(Task("t"), (PanelGrader("judge", repeats=looks),)), plan, truth)
        yield truth.qualities[trace.best.id] - truth.qualities[0], trace


@pytest.mark.parametrize("looks", [1, 8])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_true_gain_is_not_called_noise_and_none_is_not_called_one(plan, looks):
    """Of tasks that gained .2 none is put down to noise; of those that gained nothing hardly any counts as improved."""
    gained = [trace for gain, trace in ended(plan, Priors(), looks) if gain >= 0.2]
    assert len(gained) > 15
    assert not [trace for trace in gained if (found := diagnose(trace)) and found.kind is DiagnosisKind.NOISE]
    flat = [trace for _, trace in ended(plan, Priors(**STEADY), looks)]
    assert sum(map(has_significant_gain, flat)) <= 0.05 * len(flat)


def test_enough_looks_tell_a_gain_from_none():
    """A steady judge, or many looks, make sure of either."""
    known = Adaptive(RULES, priors=Priors(noise_sd=0.02))
    found = [has_significant_gain(trace) for gain, trace in ended(known, Priors(noise_sd=0.02), 1) if gain >= 0.2]
    assert found
    assert all(found)
    flat = [diagnose(trace) for _, trace in ended(RULES, Priors(**STEADY, noise_sd=0.02), 8)]
    assert sum(told is not None and told.kind is DiagnosisKind.NOISE for told in flat) > len(flat) / 2


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_what_is_counted_of_rows_agrees_with_what_is_said_of_them(plan):
    """No row counts as improved of which the diagnosis says that it cannot be told, or is noise."""
    for _, trace in ended(plan, Priors(), 1):
        came = row_result(trace)
        assert came.improved + came.unsure <= 1
        if came.columns["diagnosis"] in {"noise", "too few repeats", "regression"}:
            assert not came.improved
        if came.unsure:
            assert came.columns["diagnosis"]


# ---- why the highest was not kept


@pytest.mark.parametrize(
    ("made", "more", "why"),
    [
        ([(None, 0.5), (0, 0.8)], {"best": 1}, ""),
        ([(None, 0.5), (0, 0.5)], {}, ""),
        ([(None, 0.5), (0, 0.8)], {"best": 0, "believed": ((0, 0.7), (1, 0.6))}, "its estimated quality is higher"),
        ([(None, 0.5), (0, 0.8)], {"best": 0}, "by the plan's decision"),
        ([(None, None), (0, 0.8)], {"best": 1}, ""),
    ],
)
def test_why_what_was_scored_higher_was_not_kept(made, more, why):
    """A sentence that names both answers, their difference, and the reason; nothing where the highest was kept."""
    said = selection_reason(traced(*made, seats=(JUDGE,), reason="gain", **more))
    assert said.endswith("by the plan's decision") if why == "by the plan's decision" else why in said
    assert bool(said) is bool(why)
    assert not said or said.startswith("answer 1 was scored 0.30 higher than answer 0, which is the best ")


def test_a_constraint_or_a_comparison_is_named_as_the_reason():
    """The constraints that the other breaks; or that the two were compared."""
    seats = (PanelGrader("words:5", must=True, model_free=True), JUDGE)
    assert "the other breaks words:5" in selection_reason(traced((None, 1.0, 0.5), (0, 0.0, 0.8), seats=seats))
    trace = traced((None, 0.5), (0, 0.8), seats=(JUDGE,), reason="gain")
    duel = Comparison((0, 1), grader="tie_break")
    compared = Trace(
        trace.task, (*trace.panel, PanelGrader("tie_break", compares=True)), (*trace.records[:-1], duel, trace.records[-1])
    )
    assert "won the comparison of the two" in selection_reason(compared)
