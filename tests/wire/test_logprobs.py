"""Log-probabilities of a real llama.cpp server, and endpoints that refuse to give them."""

import pytest

from redraft import Candidate, Judge, Task
from redraft.errors import AuthenticationError, ModelError
from redraft.middleware.adapt import EndpointCapabilities, adapt
from redraft.models.openai_chat import Chat
from redraft.protocols import Reply
from redraft.session.perform import ModelClient, StepClient

JUDGE = Judge({"truth": "It is true."}, scoring="expectation")


def client(call):
    return StepClient(ModelClient("judge", adapt(call, EndpointCapabilities().for_model("m"))))


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_score_is_the_expectation_of_a_real_server(digit_server, stream):
    """The written score is what the grammar allows; the expectation lies between the scores that
    are likely there.
    """
    url, _, name = digit_server.partition("#")
    replies = []

    async def call(request):
        replies.append(await Chat(name, url, stream=stream).complete(request))
        return replies[-1]

    feedback = await JUDGE.grade(Task("q"), Candidate(0, "an answer"), client(call))
    assert feedback.metadata["scoring"] == "expectation"
    assert 0.5 <= feedback.metadata["covered"] <= 1
    assert 0.2 < feedback.score < 1
    assert (
        "".join(token.token for token in replies[0].token_logprobs).strip()
        == replies[0].text.strip()
    )


@pytest.mark.slow
async def test_an_improbable_score_is_taken_as_written(plain_server):
    """Random weights find no digit likely: the score counts as written, and the feedback says
    why.
    """
    url, _, name = plain_server.partition("#")
    feedback = await JUDGE.grade(
        Task("q"), Candidate(0, "an answer"), client(Chat(name, url).complete)
    )
    assert feedback.metadata["scoring"] == "written"
    assert "of the probability is on scores" in feedback.reason


VERDICT = '{"reason": "Fine.", "criteria": {"truth": {"evidence": "", "change": "c", "score": 4}}, "done": false}'


@pytest.mark.parametrize(
    "error",
    [
        ModelError("status 400: logprobs is not supported with this model", status=400),
        ModelError("status 400: top_logprobs must be at most 5", status=400),
        ModelError("status 422: extra inputs are not permitted: top_logprobs", status=422),
        AuthenticationError(
            "status 403: You are not allowed to request logprobs from this model", status=403
        ),
    ],
)
async def test_an_endpoint_that_refuses_is_asked_without(error):
    """It is asked once more, and from then on at once; the feedback says that the score is as
    written.
    """
    asked = []

    async def call(request):
        asked.append("logprobs" not in request.unsupported_parameters)
        if asked[-1]:
            raise error
        return Reply(VERDICT)

    ask = client(call)
    for _ in range(2):
        feedback = await JUDGE.grade(Task("q"), Candidate(0, "an answer"), ask)
    assert asked == [True, False, False]
    assert feedback.score == 0.8
    assert feedback.metadata["scoring"] == "written"


def test_the_parameters_are_sent_together_or_not_at_all():
    """They are left out where they are not asked for, and where they were refused."""
    from dataclasses import replace

    from redraft.models.openai_chat import request_body
    from redraft.protocols import Request

    plain = Request(({"role": "user", "content": "q"},))
    wanted = replace(plain, top_logprobs=20)
    assert (request_body("m", wanted)["logprobs"], request_body("m", wanted)["top_logprobs"]) == (
        True,
        20,
    )
    for request in (plain, replace(wanted, unsupported_parameters=frozenset({"logprobs"}))):
        assert (
            request_body("m", request).get("logprobs")
            is request_body("m", request).get("top_logprobs")
            is None
        )
