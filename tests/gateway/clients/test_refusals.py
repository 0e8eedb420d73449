"""Errors, retries, disconnects and deadlines, as clients and the model behind the gateway notice
them.
"""

import asyncio
import time

import pytest

import vendors

from .gateway_process import serving
from .scripted_upstream import NEVER, ScriptedUpstream

HELLO = [{"role": "user", "content": "Say hello."}]
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
NOTICE_SECONDS = 60


def sdk_for(gateway, key="unused", **settings):
    return vendors.openai.OpenAI(base_url=gateway.url, api_key=key, **settings)


def claude_for(gateway, key="unused", **settings):
    return vendors.anthropic.Anthropic(base_url=gateway.root, api_key=key, **settings)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A gateway that wants keys; its model answers at once."""
    upstream = ScriptedUpstream(lambda body: "An answer of at least six words.")
    models = f'[models.scripted]\nurl = "{upstream.url}"\nmodel = "scripted"\nprices = [1.0, 1.0]\n'
    profiles = '[profiles.fast]\nmodel = "scripted"\ngraders = ["words:6-"]\n'
    with serving(
        tmp_path_factory.mktemp("guarded"), models, profiles, require_keys=True
    ) as gateway:
        yield gateway
    upstream.close()


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("model", ["refine/fast", "pass/scripted"])
def test_a_wrong_key_is_refused(guarded, model):
    """Both SDKs raise their own errors for a key that does not exist."""
    with pytest.raises(vendors.openai.AuthenticationError), sdk_for(guarded, "rd-unknown") as sdk:
        sdk.chat.completions.create(model=model, messages=HELLO)
    with (
        pytest.raises(vendors.anthropic.AuthenticationError),
        claude_for(guarded, "rd-unknown") as sdk,
    ):
        sdk.messages.create(model=model, messages=HELLO, max_tokens=8)


@pytest.mark.slow
def test_an_exhausted_budget_is_asked_for_once(guarded):
    """A client that may retry ten times sends one request when its budget is used up, in both
    protocols.
    """
    key = guarded.add_key("poor", "--calls-per-day", "1")
    with sdk_for(guarded, key, max_retries=10) as sdk:
        sdk.chat.completions.create(model="pass/scripted", messages=HELLO)
        before = guarded.count_requests(CHAT, 0)
        with pytest.raises(vendors.openai.APIStatusError) as caught:
            sdk.chat.completions.create(model="refine/fast", messages=HELLO)
    assert caught.value.status_code == 402
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert guarded.count_requests(CHAT, before + 1) - before == 1
    before = guarded.count_requests(MESSAGES, 0)
    with (
        claude_for(guarded, key, max_retries=10) as sdk,
        pytest.raises(vendors.anthropic.APIStatusError) as caught,
    ):
        sdk.messages.create(model="refine/fast", messages=HELLO, max_tokens=8)
    assert caught.value.status_code == 402
    assert guarded.count_requests(MESSAGES, before + 1) - before == 1


@pytest.mark.slow
def test_a_key_is_for_its_profiles(guarded):
    """A key that may use one profile gets 403 for others."""
    key = guarded.add_key("narrow", "--profile", "refine/fast")
    with sdk_for(guarded, key) as sdk:
        assert sdk.chat.completions.create(model="refine/fast", messages=HELLO).choices
        with pytest.raises(vendors.openai.PermissionDeniedError):
            sdk.chat.completions.create(model="pass/scripted", messages=HELLO)


@pytest.mark.parametrize("model", ["refine/fast", "pass/scripted"])
@pytest.mark.parametrize(
    ("upstream_status", "statuses"),
    [(401, {502}), (403, {502}), (429, {429, 503}), (500, {500, 502, 503}), (503, {502, 503})],
)
def test_errors_of_the_model(scripted, model, upstream_status, statuses):
    """An error of the model is not mistaken for one of the client."""
    scripted.upstream.reset(lambda body: (upstream_status, "no", {"Retry-After": "1"}))
    with (
        sdk_for(scripted.gateway, max_retries=0) as sdk,
        pytest.raises(vendors.openai.APIStatusError) as caught,
    ):
        sdk.chat.completions.create(model=model, messages=HELLO)
    assert caught.value.status_code in statuses
    assert len(scripted.upstream.bodies) == 1


@pytest.mark.parametrize("status", [429, 500])
def test_a_refinement_that_failed_is_not_repeated_by_the_client(scripted, status):
    """A client that may retry sends one request if that would run everything again."""
    answers = iter(["Too short."])
    scripted.upstream.reset(lambda body: next(answers, (status, "no", {"Retry-After": "0"})))
    before = scripted.gateway.count_requests(CHAT, 0)
    with sdk_for(scripted.gateway, max_retries=10) as sdk:
        try:
            text = (
                sdk.chat.completions.create(model="refine/fast", messages=HELLO)
                .choices[0]
                .message.content
            )
            assert text == "Too short."  # the best so far
        except vendors.openai.APIStatusError as error:
            assert error.response.headers["x-should-retry"] == "false"
    assert scripted.gateway.count_requests(CHAT, before + 1) - before == 1
    assert len(scripted.upstream.bodies) == 2


@pytest.mark.parametrize("model", ["refine/fast", "pass/scripted"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_leaves_ends_the_work_of_the_model(scripted, model, is_stream):
    """The model notices within a second that nobody waits any more."""
    scripted.upstream.reset(lambda body: NEVER)
    async with vendors.openai.AsyncOpenAI(
        base_url=scripted.gateway.url, api_key="unused", max_retries=0
    ) as sdk:

        async def read():
            reply = await sdk.chat.completions.create(model=model, messages=HELLO, stream=is_stream)
            async for _ in reply:
                pass

        reading = asyncio.create_task(read())
        assert await asyncio.to_thread(scripted.upstream.arrived.wait, 60)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert await asyncio.to_thread(scripted.upstream.left.wait, NOTICE_SECONDS)


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_deadline_returns_the_best_so_far(scripted, is_stream):
    """A refinement whose time is over returns the best answer, and the model is asked no
    further.
    """
    answers = iter(["Too short."])
    scripted.upstream.reset(lambda body: next(answers, NEVER))
    with sdk_for(scripted.gateway, max_retries=0) as sdk:
        began = time.monotonic()
        reply = sdk.chat.completions.create(model="refine/slow", messages=HELLO, stream=is_stream)
        pieces = (
            [chunk.choices[0].delta.content or "" for chunk in reply if chunk.choices]
            if is_stream
            else []
        )
        text = "".join(pieces) or reply.choices[0].message.content
    assert text == "Too short."
    assert time.monotonic() - began < 60
    assert scripted.upstream.left.wait(NOTICE_SECONDS)


@pytest.mark.slow
def test_a_deadline_without_an_answer(scripted):
    """Without any answer in time the client gets 504, once."""
    scripted.upstream.reset(lambda body: NEVER)
    before = scripted.gateway.count_requests(CHAT, 0)
    with (
        sdk_for(scripted.gateway, max_retries=5) as sdk,
        pytest.raises(vendors.openai.APIStatusError) as caught,
    ):
        sdk.chat.completions.create(model="refine/slow", messages=HELLO)
    assert caught.value.status_code == 504
    assert scripted.gateway.count_requests(CHAT, before + 1) - before == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("model", ["refine/fast", "pass/scripted"])
def test_every_request_can_be_shown(scripted, model, is_stream):
    """`redraft show` finds a request by the id in its headers, with its texts if these are kept."""
    scripted.upstream.reset(lambda body: "An answer of at least six words.")
    with sdk_for(scripted.gateway) as sdk:
        raw = sdk.chat.completions.with_raw_response.create(
            model=model, messages=HELLO, stream=is_stream
        )
        if is_stream:
            list(raw.parse())
    scripted.gateway.count_requests(CHAT)
    done = scripted.gateway.redraft(
        "show", raw.headers["x-redraft-trace-id"], "--folder", str(scripted.gateway.folder)
    )
    assert done.returncode == 0, done.stderr
    assert "Say hello." in done.stdout
    assert "answer" in done.stdout
