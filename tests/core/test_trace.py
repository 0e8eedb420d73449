"""Views of a trace, its JSON form, and the cost of planning."""

import asyncio
import gc
import json
import time
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import World, last

from each_row import each_row
from redraft.errors import StoreError
from redraft.loop.engine import advance
from redraft.loop.records import (
    Candidate,
    Comparison,
    CriterionScore,
    Failure,
    Feedback,
    Outcome,
    StopReason,
)
from redraft.loop.serialize import SCHEMA, record_from_json
from redraft.loop.stopping import max_iterations, patience
from redraft.loop.task import Task
from redraft.loop.trace import Panel, PanelGrader, Trace
from redraft.plans.self_refine import SelfRefine
from redraft.usage import Usage

ONE = (PanelGrader("g"),)


def trace_of(panel, *records):
    trace = Trace(Task("q"), panel)
    for record in records:
        trace += record
    return trace


def scored_trace(*scores, panel=ONE):
    records = []
    for i, score in enumerate(scores):
        records += [
            Candidate(i, f"text {i}", None if i == 0 else 0, role="refine" if i else "generate")
        ]
        records += [Feedback(score, candidate=i, grader="g")]
    return trace_of(panel, *records)


def test_traces_share_no_views_that_can_be_changed():
    """A user's plan may change a list or dict that it gets from a trace: no other trace has it."""
    trace = Trace(Task("q"), Panel(ONE))
    trace.candidates.append("another text")
    trace.header()["panel"][0]["name"] = "another grader"
    assert Trace(Task("q"), trace.panel).candidates == []
    assert (trace + Candidate(0, "a")).candidates == [Candidate(0, "a")]
    assert trace.header()["panel"][0]["name"] == ONE[0].name


def test_best_is_the_earliest_with_the_highest_score():
    """A later candidate must be better, not equal."""
    assert scored_trace(0.4, 0.8, 0.8, 0.2).best.id == 1


def test_must_comes_before_any_score():
    """A candidate that breaks a `must` loses to one that keeps it, whatever the mean."""
    panel = (PanelGrader("g", weight=9.0), PanelGrader("must", must=True))
    trace = trace_of(
        panel,
        Candidate(0, "a"),
        Feedback(1.0, candidate=0, grader="g"),
        Feedback(0.0, candidate=0, grader="must"),
        Candidate(1, "b", 0),
        Feedback(0.1, candidate=1, grader="g"),
        Feedback(1.0, candidate=1, grader="must"),
    )
    assert trace.scores[0] > trace.scores[1]
    assert trace.best.id == 1


def test_graded_candidate_comes_before_ungraded():
    """A candidate without a score loses to one with the lowest score."""
    assert (
        trace_of(
            ONE, Candidate(0, "a"), Feedback(0.0, candidate=0, grader="g"), Candidate(1, "b", 0)
        ).best.id
        == 0
    )
    assert trace_of(ONE, Candidate(0, "a"), Candidate(1, "b", 0)).best.id == 1


def test_missing_part_makes_the_weighted_score_unknown():
    """Weights are not renormalised over the scores that exist."""
    panel = (PanelGrader("a", weight=3.0), PanelGrader("b"))
    half = trace_of(panel, Candidate(0, "x"), Feedback(1.0, candidate=0, grader="a"))
    assert half.scores == {0: None}
    assert (half + Feedback(0.0, candidate=0, grader="b")).scores == {0: 0.75}
    assert (half + Feedback(None, "It cannot tell.", candidate=0, grader="b")).scores == {0: None}


def test_repeats_are_averaged_when_complete():
    """A grader with two repeats has a score when both are there."""
    trace = trace_of(
        (PanelGrader("g", repeats=2),), Candidate(0, "x"), Feedback(0.2, candidate=0, grader="g")
    )
    assert trace.scores == {0: None}
    assert (trace + Feedback(0.6, candidate=0, grader="g", repeat=1)).scores == {
        0: pytest.approx(0.4)
    }


def test_unchanged_refinement_has_its_parents_feedback():
    """The same text is not graded again."""
    trace = scored_trace(0.5) + Candidate(1, "text 0", 0, role="refine")
    assert trace.scores == {0: 0.5, 1: 0.5}
    assert trace.best.id == 0


def test_widest_ranking_decides():
    """Without scores, the latest ranking over all candidates names the best."""
    panel = (PanelGrader("r", compares=True),)
    trace = trace_of(
        panel,
        Candidate(0, "a"),
        Comparison((0,), grader="r"),
        Candidate(1, "b", 0),
        Comparison((1, 0), grader="r"),
    )
    assert trace.best.id == 1
    assert trace.score is None


def test_usage_is_the_sum_of_all_calls():
    """Failed calls count; one unknown part makes the sum unknown, not zero."""
    trace = trace_of(
        ONE,
        Candidate(0, "a", by="m", role="generate", usage=Usage(1, 10, 5, cost=0.5)),
        Feedback(
            0.5,
            candidate=0,
            grader="g",
            by="j",
            usage=Usage(2, None, 1, retried_calls=1, cost=0.25),
        ),
        Failure(
            ("candidate", 1), "refine", "ModelError", by="m", usage=Usage(3, 0, 0, retried_calls=2)
        ),
    )
    assert trace.usage == Usage(6, None, 6, 0, 3, 0.75)
    assert set(trace.usage_by) == {("generate", "m"), ("grade", "j"), ("refine", "m")}


def test_failure_counts_in_its_own_run_only():
    """A reopened trace tries failed steps again and drops an outcome that cut it short."""
    trace = (
        scored_trace(0.5)
        + Failure(("candidate", 1), "refine", "ModelError")
        + Outcome(0, StopReason.FAILED)
    )
    assert trace.failures
    assert trace.outcome
    again = trace.for_new_run()
    assert not again.failures
    assert again.outcome is None
    assert (scored_trace(0.5) + Outcome(0, StopReason.TARGET)).for_new_run().outcome


texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)


@given(texts, texts)
def test_any_text_survives_json(one, other):
    """Lone surrogates, NUL and control characters round trip."""
    trace = trace_of(
        ONE,
        Candidate(0, one),
        Feedback(0.5, other, (one,), criteria=(CriterionScore("c", 0.2, other),), grader="g"),
    )
    assert Trace.from_json(trace.to_json()) == trace


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4), st.sampled_from(list(StopReason)))
def test_estimates_survive_json(means, reason):
    """The score, the interval and all estimates round trip."""
    estimates = tuple(enumerate(means))
    trace = scored_trace(*([0.5] * len(means))) + Outcome(
        0, reason, "so it is", means[0], (0.0, 1.0), estimates, means[-1]
    )
    again = Trace.from_json(trace.to_json())
    assert again == trace
    assert again.outcome.interval == (0.0, 1.0)
    assert again.outcome.noise_sd == means[-1]
    assert again.score == means[0]
    assert again.judge_score == 0.5
    assert again.with_estimates.scores == dict(estimates)


@pytest.mark.parametrize("ends", [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0), (0.2, 0.7)])
def test_an_interval_may_be_one_point(ends):
    """An exact score has an interval, too."""
    trace = scored_trace(0.5) + Outcome(0, StopReason.TARGET, "", 0.5, ends)
    assert Trace.from_json(trace.to_json()).outcome.interval == ends


def test_outcome_without_estimates_loads():
    """An outcome of deterministic graders holds only what was observed."""
    trace = scored_trace(0.2, 0.7) + Outcome(1, StopReason.TARGET)
    assert '"interval"' not in trace.to_json()
    again = Trace.from_json(trace.to_json())
    assert (again.score, again.judge_score, again.outcome.interval) == (0.7, 0.7, None)
    assert again.with_estimates.scores == {0: 0.2, 1: 0.7}


@each_row(
    "fields",
    [
        {"reason": "boredom"},
        {"score": 1.5},
        {"score": "0.5"},
        {"interval": [0.1]},
        {"interval": [0.1, 0.2, 0.3]},
        {"interval": [0.1, 7]},
        {"interval": "high"},
        {"interval": [0.9, 0.1]},
        {"interval": []},
        {"interval": 0},
        {"believed": [0.5]},
        {"believed": [[0, "0.5"]]},
        {"believed": 7},
        {"believed": [[[1], 0.5]]},
        {"believed": [["0", 0.5]]},
        {"believed": [[True, 0.5]]},
        {"believed": [[0, None]]},
        {"best": [[1]]},
        {"best": "0"},
        {"noise": "much"},
        {"noise": 2},
    ],
)
def test_invalid_outcome_is_rejected(fields):
    """An outcome with a field of the wrong type is an error."""
    text = json.dumps({"kind": "outcome", "best": 0, "reason": "target", **fields})
    head = scored_trace(0.5).to_json().removesuffix("]}")
    with pytest.raises(StoreError, match="Outcome"):
        Trace.from_json(f"{head}, {text}]}}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("[]", "JSON object"),
        ("{}", "no Redraft trace"),
        ('{"redraft": 99, "task": {}}', "schema 99"),
        ('{"redraft": 2, "task": {"nonsense": 1}}', "not a Task"),
        ('{"redraft": 2, "task": {"messages": "q"}, "records": [{"kind": "alien"}]}', "known kind"),
        (
            '{"redraft": 2, "task": {"messages": "q"}, "records": [{"kind": "feedback", "score": 7}]}',
            "in [0, 1]",
        ),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_foreign_traces_are_rejected_with_a_reason(text, says):
    """A file that is no trace, or has another version, raises a StoreError that says so."""
    with pytest.raises(StoreError) as caught:
        Trace.from_json(text)
    assert says in str(caught.value)


def test_trace_contains_the_schema_version():
    """A trace says which schema it uses."""
    assert json.loads(scored_trace(0.5).to_json())["redraft"] == SCHEMA


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -0.1, 1.1, "0.5", True, [0.5]])
def test_invalid_score_is_an_error(score):
    """A score out of range is never clamped or set to zero."""
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        Feedback(score)


def test_planning_200_candidates_takes_under_a_second():
    """All plans of a run that grows to 200 candidates together take less than a second of CPU
    time.
    """
    spent = 0.0
    plan = SelfRefine(max_iterations(199) | patience(1000))

    def measure(trace):
        nonlocal spent
        begun = time.process_time()
        steps = plan(trace)
        spent += time.process_time() - begun
        return steps

    trace = asyncio.run(last(advance(Trace(Task("q"), ONE), measure, World(1, jitter=False))))
    assert len(trace.candidates) == 200
    assert spent < 1


def test_trace_is_freed_without_the_garbage_collector():
    trace = (
        Trace(Task("q"), (PanelGrader("length"),))
        + Candidate(0, "a")
        + Feedback(0.5, candidate=0, grader="length")
    )
    trace += Outcome(0, StopReason.MAX_ITERATIONS)
    assert (trace.score, trace.with_estimates.score) == (0.5, 0.5)
    gone = weakref.ref(trace)
    gc.disable()
    try:
        del trace
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "forecast", ["no", 0.7, [0.7, 0.5], [1e400, 0, 1], [None, 0, 1], [-1, 0, 1]]
)
def test_a_wrong_forecast_of_an_earlier_version_is_refused(forecast):
    """It was a mean in [0, 1] and the ends of its interval; such a one is in the note."""
    line = json.dumps({"kind": "outcome", "best": 0, "reason": "budget", "forecast": forecast})
    with pytest.raises(StoreError, match="forecast"):
        record_from_json(line)
    earlier = record_from_json(line.replace(json.dumps(forecast), "[0.725, 0.5, 1]"))
    assert earlier.note == "no judge graded the answer; it was expected to score 0.72"
