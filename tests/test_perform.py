"""The performer of steps: nothing of the settings or of a grader's feedback is lost on the way to a
request or a record.
"""

from __future__ import annotations

from dataclasses import fields

import pytest

from redraft import Feedback, Task
from redraft.errors import ConfigError
from redraft.graders.traits import traits_of
from redraft.loop.records import Candidate, CriterionScore, Failure
from redraft.loop.steps import Generate, Grade
from redraft.protocols import Reply, Request
from redraft.session.perform import ModelClient, Roles, StepClient, make_performer
from redraft.usage import Usage


async def test_a_request_has_every_sampling_parameter():
    """Also one that is added later."""
    requests = []

    async def call(request):
        requests.append(request)
        return Reply("ok")

    own = {"messages", "sample_index", "is_generation"}
    values = {each.name: f"its {each.name}" for each in fields(Request) if each.name not in own}
    request = Request((), is_generation=True, **values)
    record = await make_performer(Roles(ModelClient("m", call), request=request))(
        Generate(2, ({"role": "user", "content": "q"},))
    )
    assert (record.text, record.by, record.id) == ("ok", "m", 2)
    assert {name: getattr(requests[0], name) for name in values} == values
    assert (requests[0].sample_index, requests[0].is_generation) == (2, True)


async def test_a_record_has_everything_that_the_grader_said():
    """Only what Redraft knows better is replaced."""
    vote = Failure(("candidate", 0), "grade", "Oops", "it failed")
    values = {
        "score": 0.5,
        "reason": "dull",
        "actions": ("liven it up",),
        "done": True,
        "votes": (vote,),
        "nearness": 0.7,
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    values |= {"criteria": (CriterionScore("wit", 0.2),), "metadata": {"a": 1}}
    said = Feedback(**values, candidate=9, grader="other", repeat=9, by="me")
    default = Feedback()

    class Grader:
        async def grade(self, task, candidate, client):
            return said

    step = Grade("g", Task("q"), Candidate(3, "text"), repeat=1)
    record = await make_performer(Roles(traits={"g": traits_of(Grader())}))(step)
    ours = {
        "candidate": 3,
        "grader": "g",
        "repeat": 1,
        "usage": said.usage,
        "seconds": record.seconds,
    }
    untested = {
        field.name
        for field in fields(Feedback)
        if getattr(said, field.name) == getattr(default, field.name)
    }
    assert untested == {"usage", "seconds"}
    assert {f.name: getattr(record, f.name) for f in fields(Feedback)} == {
        f.name: ours.get(f.name, getattr(said, f.name)) for f in fields(Feedback)
    }


async def test_a_client_with_options_is_of_the_same_step():
    async def answer(_request):
        return Reply("yes", usage=Usage(calls=1, input_tokens=2, output_tokens=1, cost=0.0))

    client = StepClient(ModelClient("model", answer))
    repeat = client.with_options(repeat=1).with_options(repeat=1)
    await repeat("first")
    await client("second")
    assert repeat.repeat == 2
    assert (
        (repeat.usage, repeat.by)
        == (client.usage, client.by)
        == (Usage(calls=2, input_tokens=4, output_tokens=2, cost=0.0), "model")
    )
    repeat.close()
    with pytest.raises(ConfigError, match="after the step had ended"):
        await client("third")
