"""What is said of work that has ended: tables of traces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.core.diagnosis import Kind, diagnosed
from redraft.core.records import Candidate, Failure, Feedback, Outcome, StopReason, Task
from redraft.core.trace import Seat, Trace

CHECK, JUDGE = Seat("check", free=True), Seat("judge")


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
            records += [Feedback(s, candidate=id, grader=seat.grader, look=n) for n, s in enumerate(looks)]
    interval = (0.0, 1.0) if believed else None
    end = Outcome(best, StopReason(reason), "so it is", dict(believed).get(best), interval, tuple(believed), noise)
    return Trace(Task("q"), tuple(seats), (*records, end))


def kind(*made, **more):
    found = diagnosed(traced(*made, **more))
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
        ([(None, 0.6), (0, 0.7)], {"best": 1, "reason": "gain"}, "noise"),
        ([(None, 0.6), (0, 0.5), (0, 0.5)], {}, "noise"),
        ([(None, 0.3), (0, 0.8)], {"best": 1, "reason": "gain"}, None),
        ([(None, 0.3), (0, 0.9), (1, 0.8)], {"best": 1}, "ceiling"),
        ([(None, 0.9), (0, 0.3), (0, 0.3)], {}, "regression"),
        ([(None, 0.9)], {"reason": "gain"}, None),
        ([(None, None), (0, 0.9)], {"best": 1, "reason": "gain"}, None),
        ([(None, (0.6, 0.6, 0.6, 0.6)), (0, (0.8, 0.8, 0.8, 0.8))], {"best": 1, "reason": "gain"}, None),
        ([(None, (0.2, 0.9, 0.1)), (0, (0.9, 0.4, 0.9))], {"best": 1, "reason": "gain"}, "noise"),
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
    """The same scores are apart for a judge that the plan took for steady, and alike for one that it did not."""
    made = (None, 0.5), (0, 0.7)
    assert kind(*made, seats=(JUDGE,), best=1, reason="gain", noise=0.0) is None
    assert kind(*made, seats=(JUDGE,), best=1, reason="gain", noise=0.02) is None
    assert kind(*made, seats=(JUDGE,), best=1, reason="gain", noise=0.2) == "noise"


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ([(None, 0.95), (0, 0.95), (0, 0.95)], "2 refinements did not improve on answer 0: the graders tell no difference"),
        ([(None, 0.951), (0, 0.949)], "they give every answer 0.95"),
        ([(None, 0.95), (None, 0.95)], None),
        ([(None, 0.95), ("=", None)], "did not improve on answer 0"),
    ],
)
def test_a_judge_that_always_says_the_same_is_not_noisy(made, expected):
    """Scores that do not differ do not differ by noise: what is said is that the judge tells no difference, or nothing."""
    found = diagnosed(traced(*made, seats=(JUDGE,), reason="gain"))
    assert (found is None) if expected is None else (found.kind is Kind.CEILING and expected in found.words)
    assert found is None or ("no difference" in found.words) is (made[-1][0] != "=")


@pytest.mark.parametrize(
    ("seat", "scores", "bad"),
    [
        (Seat("words:5", must=True, free=True), (0.0, 0.0, 0.0), True),
        (Seat("words:5", must=True, free=True), (0.0, 1.0, 0.0), False),
        (Seat("safe", must=True), (0.8, 0.6, 0.8), True),
        (Seat("half", free=True, editable=True), (0.5, 0.5, 0.5), True),
        (Seat("overlap", free=True), (0.2, 0.2, 0.2), False),
        (Seat("overlap", free=True), (0.0, 0.0, 0.0), True),
        (Seat("opinion"), (0.0, 0.0, 0.0), False),
        (Seat("words:5", must=True, free=True), (None, None, None), False),
        (Seat("words:5", must=True, free=True), (None, None, 0.0), False),
    ],
)
def test_a_check_that_nothing_meets_is_named(seat, scores, bad):
    """A must takes a full score; a judge's low opinion is no bad check, nor is what was never measured."""
    made = [(parent, own, 0.5) for parent, own in zip((None, 0, 0), scores, strict=True)]
    found = diagnosed(traced(*made, seats=(seat, Seat("other", free=True))))
    said = found and found.kind is Kind.BAD_CHECK and seat.grader in found.words
    assert bool(said) is bad


def test_all_that_nothing_meets_is_named():
    """Two checks that cannot be met together are both said."""
    made = [(None, 0.0, 0.0), (0, 0.0, 0.0), (0, 0.0, 0.0)]
    seats = (Seat("words:5", must=True, free=True), Seat("no_commas", must=True, free=True))
    assert "words:5 or no_commas" in diagnosed(traced(*made, seats=seats)).words


@pytest.mark.parametrize("reason", ["budget", "deadline", "failed", "cancelled"])
def test_nothing_is_said_of_work_that_was_cut_short(reason):
    """What was not finished shows nothing."""
    assert kind((None, 0.5), (0, 0.4), (0, 0.4), reason=reason) is None


def test_nothing_is_said_of_work_that_goes_on_or_came_to_nothing():
    """Without an end, an answer or a grade there is nothing to say."""
    trace = traced((None, 0.5), (0, 0.4), (0, 0.4))
    assert diagnosed(Trace(trace.task, trace.panel, trace.records[:-1])) is None
    assert kind((None, None), reason="gain") is None
    nothing = Failure(("candidate", 0), "generate", "ModelError")
    assert diagnosed(Trace(Task("q"), (CHECK,), (nothing, Outcome(None, StopReason.FAILED)))) is None


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
    seats = (Seat("a", free=not noisy), Seat("b", free=True, must=must))
    trace = traced(*made, seats=seats, reason=str(reason))
    found = diagnosed(trace)
    assert found is None or found.words
    other = Trace(trace.task, trace.panel, (*reversed(trace.records[:-1]), trace.records[-1]))
    assert diagnosed(other) == found
