"""Views of a trace, its JSON, and what planning costs."""

import asyncio
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import World, last

from redraft.core.engine import advance
from redraft.plans.self_refine import SelfRefine
from redraft.core.serialize import SCHEMA
from redraft.core.records import Candidate, Comparison, CriterionScore, Failure, Feedback, Outcome, StopReason, Task
from redraft.usage import Usage
from redraft.core.stopping import max_iterations, patience
from redraft.core.trace import PanelGrader, Trace
from redraft.errors import StoreError

ONE = (PanelGrader("g"),)


def grown(panel, *records):
    trace = Trace(Task("q"), panel)
    for record in records:
        trace += record
    return trace


def scored(*scores, panel=ONE):
    records = []
    for i, score in enumerate(scores):
        records += [Candidate(i, f"text {i}", None if i == 0 else 0, role="refine" if i else "generate")]
        records += [Feedback(score, candidate=i, grader="g")]
    return grown(panel, *records)


def test_the_best_is_the_highest_and_the_earliest_of_equals():
    """A later candidate must be better, not as good."""
    assert scored(0.4, 0.8, 0.8, 0.2).best.id == 1


def test_a_must_that_is_kept_comes_before_any_score():
    """A broken must loses to a kept one, whatever the mean."""
    panel = (PanelGrader("g", weight=9.0), PanelGrader("must", must=True))
    trace = grown(
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


def test_what_was_not_graded_is_not_returned_while_something_graded_exists():
    """A candidate without a score loses to one with the lowest."""
    assert grown(ONE, Candidate(0, "a"), Feedback(0.0, candidate=0, grader="g"), Candidate(1, "b", 0)).best.id == 0
    assert grown(ONE, Candidate(0, "a"), Candidate(1, "b", 0)).best.id == 1


def test_scores_are_weighted_and_a_missing_part_makes_them_unknown():
    """Weights are never renormalised over what happens to be there."""
    panel = (PanelGrader("a", weight=3.0), PanelGrader("b"))
    half = grown(panel, Candidate(0, "x"), Feedback(1.0, candidate=0, grader="a"))
    assert half.scores == {0: None}
    assert (half + Feedback(0.0, candidate=0, grader="b")).scores == {0: 0.75}
    assert (half + Feedback(None, candidate=0, grader="b")).scores == {0: None}


def test_repeated_looks_count_by_their_mean_once_all_are_in():
    """A grader with two looks has a score when both are there."""
    trace = grown((PanelGrader("g", repeats=2),), Candidate(0, "x"), Feedback(0.2, candidate=0, grader="g"))
    assert trace.scores == {0: None}
    assert (trace + Feedback(0.6, candidate=0, grader="g", repeat=1)).scores == {0: pytest.approx(0.4)}


def test_an_unchanged_refinement_has_its_parents_feedback():
    """The same text is not graded again."""
    trace = scored(0.5) + Candidate(1, "text 0", 0, role="refine")
    assert trace.scores == {0: 0.5, 1: 0.5}
    assert trace.best.id == 0


def test_rankers_decide_by_the_widest_ranking():
    """Where nobody scores, the latest ranking over all candidates names the best."""
    panel = (PanelGrader("r", compares=True),)
    trace = grown(panel, Candidate(0, "a"), Comparison((0,), grader="r"), Candidate(1, "b", 0), Comparison((1, 0), grader="r"))
    assert trace.best.id == 1
    assert trace.score is None


def test_usage_is_summed_over_everything_and_unknown_stays_unknown():
    """Failed calls count; a part that is not known makes the sum unknown, not zero."""
    trace = grown(
        ONE,
        Candidate(0, "a", by="m", role="generate", usage=Usage(1, 10, 5, cost=0.5)),
        Feedback(0.5, candidate=0, grader="g", by="j", usage=Usage(2, None, 1, retried_calls=1, cost=0.25)),
        Failure(("candidate", 1), "refine", "ModelError", by="m", usage=Usage(3, 0, 0, retried_calls=2)),
    )
    assert trace.usage == Usage(6, None, 6, 0, 3, 0.75)
    assert set(trace.usage_by) == {("generate", "m"), ("grade", "j"), ("refine", "m")}


def test_a_failure_counts_in_its_own_run_only():
    """Reopened, a trace lacks again what failed, and an outcome that cut it short is forgotten."""
    trace = scored(0.5) + Failure(("candidate", 1), "refine", "ModelError") + Outcome(0, StopReason.FAILED)
    assert trace.failures
    assert trace.outcome
    again = trace.for_new_run()
    assert not again.failures
    assert again.outcome is None
    assert (scored(0.5) + Outcome(0, StopReason.TARGET)).for_new_run().outcome


texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)


@given(texts, texts)
def test_any_text_survives_json(one, other):
    """Lone surrogates, NUL and control characters come back as they were."""
    trace = grown(ONE, Candidate(0, one), Feedback(0.5, other, (one,), criteria=(CriterionScore("c", 0.2, other),), grader="g"))
    assert Trace.from_json(trace.to_json()) == trace


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4), st.sampled_from(list(StopReason)))
def test_what_was_believed_survives_json(means, reason):
    """The score, the interval and what was believed of all come back as they were."""
    believed = tuple(enumerate(means))
    trace = scored(*([0.5] * len(means))) + Outcome(0, reason, "so it is", means[0], (0.0, 1.0), believed, means[-1])
    again = Trace.from_json(trace.to_json())
    assert again == trace
    assert again.outcome.interval == (0.0, 1.0)
    assert again.outcome.noise_sd == means[-1]
    assert again.score == means[0]
    assert again.judge_score == 0.5
    assert again.with_estimates.scores == dict(believed)


def test_an_end_without_belief_loads_as_ever():
    """Traces of before, and of deterministic graders, hold what was observed and nothing else."""
    trace = scored(0.2, 0.7) + Outcome(1, StopReason.TARGET)
    assert '"interval"' not in trace.to_json()
    again = Trace.from_json(trace.to_json())
    assert (again.score, again.judge_score, again.outcome.interval) == (0.7, 0.7, None)
    assert again.with_estimates.scores == {0: 0.2, 1: 0.7}


@pytest.mark.parametrize(
    "told",
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
def test_an_end_that_is_none_is_refused(told):
    """Nothing foreign is taken for a score."""
    line = json.dumps({"kind": "outcome", "best": 0, "reason": "target", **told})
    head = scored(0.5).to_json().removesuffix("]}")
    with pytest.raises(StoreError, match="Outcome"):
        Trace.from_json(f"{head}, {line}]}}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("[]", "JSON object"),
        ("{}", "no Redraft trace"),
        ('{"redraft": 99, "task": {}}', "schema 99"),
        ('{"redraft": 2, "task": {"nonsense": 1}}', "not a Task"),
        ('{"redraft": 2, "task": {"messages": "q"}, "records": [{"kind": "alien"}]}', "known kind"),
        ('{"redraft": 2, "task": {"messages": "q"}, "records": [{"kind": "feedback", "score": 7}]}', "in [0, 1]"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_foreign_traces_are_refused_with_a_reason(text, says):
    """What is no trace, or not of this version, is a StoreError that says so."""
    with pytest.raises(StoreError) as caught:
        Trace.from_json(text)
    assert says in str(caught.value)


def test_the_schema_version_stands_inside():
    """A trace says which schema it is of."""
    assert json.loads(scored(0.5).to_json())["redraft"] == SCHEMA


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -0.1, 1.1, "0.5", True, [0.5]])
def test_a_score_that_is_none_is_an_error(score):
    """Never clamped, never zero."""
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        Feedback(score)


def test_two_hundred_candidates_plan_in_under_a_second():
    """Planning stays cheap: all plans of a run that grows to 200 candidates, in CPU time of this process."""
    spent = 0.0
    plan = SelfRefine(max_iterations(199) | patience(1000))

    def timed(trace):
        nonlocal spent
        begun = time.process_time()
        steps = plan(trace)
        spent += time.process_time() - begun
        return steps

    trace = asyncio.run(last(advance(Trace(Task("q"), ONE), timed, World(1, jitter=False))))
    assert len(trace.candidates) == 200
    assert spent < 1
