"""What clients are told of a refinement: a view of the form of all results, which does not say
where models are.
"""

import json

import pytest

from redraft import ScriptedModel, refine_sync
from redraft.errors import ModelUnavailableError
from redraft.gateway.outcome import (
    RefinementOutcome,
    SpentUsage,
    outcome_headers,
    outcome_of,
    without_hosts,
)


def length(text):
    return len(text) / 10


def as_json(value):
    return json.loads(json.dumps(value))


def test_it_has_the_form_of_all_results():
    """A name means what it means in `Result.to_dict`, and texts of the answer are not in it."""
    result = refine_sync("q", ScriptedModel(["abc", "abcdef"]), length, max_iterations=1)
    outcome, whole = as_json(outcome_of(result.trace, "req-1")), as_json(result.to_dict())
    assert (outcome["schema"], outcome["trace_id"], outcome["reason"]) == (2, "req-1", "")
    assert (outcome["score"], outcome["initial_score"], outcome["iterations"]) == (0.6, 0.3, 1)
    shared = outcome.keys() - {"trace_id", "reason", "usage"}
    assert {name: whole[name] for name in shared} == {name: outcome[name] for name in shared}
    assert outcome["usage"] == {name: whole["usage"][name] for name in SpentUsage.__annotations__}
    assert outcome.keys() == RefinementOutcome.__annotations__.keys()
    assert "abcdef" not in json.dumps(outcome)


def test_an_answer_without_a_score_says_why():
    """The reason is there, and the host of the judge is not."""
    host = "10.1.2.3:8080"

    def judge(text):
        raise ModelUnavailableError(f"judge at {host}: cannot be reached ('10.1.2.3', 8080)")

    result = refine_sync("q", ScriptedModel(["abc"]), judge, max_iterations=0)
    outcome = outcome_of(result.trace, "req-1", [host])
    assert outcome["score"] is None and outcome["status"] == "failed"
    assert "judge: cannot be reached" in outcome["reason"]
    assert "10.1.2.3" not in json.dumps(outcome)
    headers = outcome_headers(outcome)
    assert "x-redraft-score" not in headers and headers["x-redraft-stop"] == outcome["stop"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("m at api.corp:443: busy", "m: busy"),
        ("m at api.corp: busy", "m: busy"),
        ("Cannot connect to host api.corp:443 ssl", "Cannot connect to its host ssl"),
        ("Connect call failed ('::1', 9, 0, 0)", "Connect call failed"),
        ("the meeting is at noon: see f('a', 1)", "the meeting is at noon: see f('a', 1)"),
    ],
)
def test_hosts_are_left_out(text, told):
    """Of a message that says where a model is, the rest stays; other texts stay as they are."""
    assert without_hosts(text, ["api.corp:443"]) == told
