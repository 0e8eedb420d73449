"""An output validator of pydantic-ai."""

import logging

import pytest

import vendors
from redraft.errors import ConfigError, GradingError

from .answers import FAILS, GOOD, QUICK, SHORT, six_words


def agent_of(answers, **arguments):
    """An agent whose model gives these answers, one after the other, and the requests it got."""
    from redraft.adapters.pydantic_ai import output_validator

    requests, left = [], [*answers]

    def respond(messages, info):
        requests.append(messages)
        return vendors.ModelResponse(parts=[vendors.TextPart(left.pop(0))])

    agent = vendors.Agent(vendors.FunctionModel(respond), retries={"output": 2})
    agent.output_validator(output_validator(six_words, **QUICK, **arguments))
    return agent, requests


@pytest.mark.slow
async def test_an_answer_below_the_target_is_sent_back():
    agent, requests = agent_of([SHORT, GOOD])
    assert (await agent.run("Say hello.")).output == GOOD
    assert "2 words; write six words" in str(requests[1][-1])


@pytest.mark.slow
async def test_the_last_answer_passes(caplog):
    """pydantic-ai would lose it, and with it the whole run."""
    agent, requests = agent_of([SHORT] * 3)
    with caplog.at_level(logging.WARNING, "redraft"):
        assert (await agent.run("Say hello.")).output == SHORT
    assert len(requests) == 3
    assert "passes with score 0, below 0.9" in caplog.text


async def test_an_unknown_score_is_an_error_or_what_the_user_named():
    agent, _ = agent_of([FAILS])
    with pytest.raises(GradingError, match="the score is unknown"):
        await agent.run("Say hello.")
    agent, _ = agent_of([FAILS], unknown=1.0)
    assert (await agent.run("Say hello.")).output == FAILS
    agent, _ = agent_of([FAILS, GOOD], unknown=0.0)
    assert (await agent.run("Say hello.")).output == GOOD
    with pytest.raises(ConfigError, match="unknown must be the finite number"):
        agent_of([FAILS], unknown="pass")


async def test_an_object_is_graded_as_json():
    from pydantic import BaseModel

    from redraft.adapters.pydantic_ai import output_validator

    class City(BaseModel):
        name: str

    graded = []
    agent = vendors.Agent(vendors.TestModel(custom_output_args={"name": "Oslo"}), output_type=City)
    agent.output_validator(output_validator(lambda text: graded.append(text) or True))
    assert (await agent.run("Where?")).output == City(name="Oslo")
    assert graded == ['{"name": "Oslo"}']
