"""What a result says of itself, in one line, in notebooks, and as JSON."""

import json

import pytest

from redraft import Judge, Result, ScriptedModel, refine
from redraft.cli.lines import as_object, closing
from redraft.core.priors import Priors
from redraft.core.records import Candidate, Feedback, Outcome, StopReason, Task, Usage
from redraft.core.trace import Seat, Trace

RUBRIC = {"truth": "It is true."}


def result(*scores, best=0, end=None, seat=Seat("judge")):
    """A result of answers with these scores, each refined from the first."""
    records = []
    for id, score in enumerate(scores):
        records.append(Candidate(id, f"text {id}", 0 if id else None, role="refine" if id else "generate", usage=Usage(1, 10, 5)))
        records.append(Feedback(score, candidate=id, grader=seat.grader))
    end = end or Outcome(best, StopReason.GAIN, "nothing more is worth it", 0.71, (0.58, 0.84), ((0, 0.6), (1, 0.71)))
    return Result(Trace(Task("q"), (seat,), (*records, end)))


def test_what_is_believed_stands_beside_what_was_observed():
    """The score with its interval, the observed ones, why it stopped in words, and what there is to say of that."""
    told = result(0.7, 0.8, best=1)
    assert told.summary() == (
        "score 0.71 [0.58, 0.84] (observed 0.80; 0.70 -> 0.80) · stopped: gain (nothing more is worth it) · noise: all answers "
        f"score between 0.70 and 0.80, no further apart than the graders' noise ({Priors().noise_sd:.2f} a look) explains "
        "· calls 2 · tokens 30 · cost 0 USD"
    )
    assert repr(told) == "Result(score=0.71 [0.58, 0.84], stop='gain', value='text 1')"
    assert told.summary() in told.__rich__().plain
    assert "score 0.71 [0.58, 0.84]" in told._repr_html_()
    assert closing(told).startswith("score 0.71 [0.58, 0.84] (observed 0.80; 0.70 → 0.80) · stopped: gain (nothing")


def test_what_is_certain_is_told_as_ever():
    """Graders that compute leave no doubt: one score, and the reason."""
    seat = Seat("words", free=True)
    told = result(0.5, 0.4, 0.4, end=Outcome(0, StopReason.PATIENCE, "2 in a row"), seat=seat)
    assert told.summary() == "score 0.50 (0.50 -> 0.40 -> 0.40) · stopped: patience · calls 3 · tokens 45 · cost 0 USD"
    assert repr(told) == "Result(score=0.50, stop='patience', value='text 0')"
    assert told.diagnosis.kind == "regression"


@pytest.mark.parametrize("end", [None, Outcome(0, StopReason.BUDGET, "used up")])
def test_the_diagnosis_is_in_the_metadata(end):
    """As plain data: a kind and words, or nothing."""
    told = result(0.7, 0.8, end=end)
    found = told.metadata["diagnosis"]
    assert (found and found["kind"]) == (None if end else "noise")
    data = json.loads(json.dumps(as_object(told)))
    assert data["metadata"]["diagnosis"] == found
    assert data["observed"] == 0.7
    assert data["score_interval"] == (None if end else [0.58, 0.84])


def test_a_hostile_check_drives_no_terminal():
    """What a grader is called is somebody's text."""
    seat = Seat("\x1b[31m<b>check</b>", must=True, free=True)
    told = result(0.0, 0.0, 0.0, end=Outcome(0, StopReason.GAIN, "", 0.0, (0.0, 0.1), ((0, 0.0),)), seat=seat)
    assert told.diagnosis.kind == "bad check"
    assert "\x1b" not in told.summary()
    assert "<b>" not in told._repr_html_()


async def test_a_refinement_says_what_became_of_it():
    """What is believed of a lucky grade is less than the grade."""

    async def judge(messages):
        said = {"evidence": "e", "change": "c", "score": 5}
        return json.dumps({"criteria": {"truth": said}, "done": True})

    told = await refine("q", ScriptedModel(["a"]), Judge(RUBRIC), judge=judge)
    low, high = told.score_interval
    assert low < told.score < told.observed == 1.0
    assert low < told.score < high
    assert told.diagnosis.kind == "reached"
    assert "reached" not in told.summary()
