"""All protocols through one gateway, before a real llama.cpp server that speaks both, and many
requests at once.
"""

import asyncio
from dataclasses import replace

import pytest
from chat_server import ChatServer, writer_and_judge
from fault_server import http

import vendors
from redraft.gateway.config import GatewayConfig, GatewayLimits, Profile, ServedModel

from .running import PROMPT, config_for, http_client, running


@pytest.fixture(params=["openai", "anthropic"])
def config(request, plain_server, tmp_path):
    """A gateway before a model of each kind."""
    url, _, name = plain_server.partition("#")
    profile = Profile("fast", "tiny", graders=["words:1-500"], settings={"max_tokens": 30})
    return GatewayConfig(
        tmp_path, {"tiny": ServedModel("tiny", url, name, request.param)}, {"fast": profile}, port=0
    )


@pytest.mark.parametrize("model", ["refine/fast", "pass/tiny"])
async def test_anthropic_client(config, model):
    """Its messages and streams work before either kind of model; tokens are counted; errors are in
    its form.
    """
    async with (
        running(config) as (url, _),
        vendors.AsyncAnthropic(
            base_url=url.removesuffix("/v1"), api_key="x", max_retries=0
        ) as client,
    ):
        reply = await client.messages.create(
            model=model, max_tokens=20, messages=PROMPT, system="Be good."
        )
        assert (
            reply.content[0].text.strip()
            and reply.usage.output_tokens > 0
            and reply.stop_reason in {"end_turn", "max_tokens"}
        )
        async with client.messages.stream(model=model, max_tokens=20, messages=PROMPT) as stream:
            text = "".join([part async for part in stream.text_stream])
            assert (await stream.get_final_message()).content[0].text == text != ""
        assert (await client.messages.count_tokens(model=model, messages=PROMPT)).input_tokens > 0
        with pytest.raises(Exception, match="there is no model") as caught:
            await client.messages.create(model="refine/none", max_tokens=20, messages=PROMPT)
    assert (
        caught.value.status_code == 404 and caught.value.body["error"]["type"] == "not_found_error"
    )


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("model", ["refine/fast", "pass/tiny"])
async def test_openai_client(config, model):
    """Chat completions and responses work before either kind of model, as a whole and as a
    stream.
    """
    async with (
        running(config) as (url, _),
        vendors.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client,
    ):
        chat = await client.chat.completions.create(model=model, messages=PROMPT, max_tokens=20)
        assert chat.choices[0].message.content.strip() and chat.usage.completion_tokens > 0
        stream = await client.chat.completions.create(
            model=model, messages=PROMPT, max_tokens=20, stream=True
        )
        assert "".join(
            [c.choices[0].delta.content or "" async for c in stream if c.choices]
        ).strip()
        response = await client.responses.create(
            model=model, input="Say it well.", max_output_tokens=20
        )
        assert response.output_text.strip()
        events = [
            event.type
            async for event in await client.responses.create(
                model=model, input="Say it.", max_output_tokens=20, stream=True
            )
        ]
        assert events[0] == "response.created" and events[-1] in {
            "response.completed",
            "response.incomplete",
        }


async def test_headers_of_anthropics_protocol(tmp_path, faults):
    """Requests and counts of tokens that are passed on keep the client's beta features, and not its
    key.
    """
    text = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "fine"}],
        "stop_reason": "end_turn",
    }
    faults.says(
        http({**text, "usage": {"input_tokens": 5, "output_tokens": 3}}), http({"input_tokens": 5})
    )
    models = {"claude": ServedModel("claude", faults.url, "claude", "anthropic")}
    headers = {"anthropic-beta": "interleaved-thinking-2025-05-14"}
    async with running(GatewayConfig(tmp_path, models, {}, port=0)) as (url, _):
        client = vendors.AsyncAnthropic(
            base_url=url.removesuffix("/v1"), api_key="own", max_retries=0, default_headers=headers
        )
        async with client:
            await client.messages.create(model="pass/claude", max_tokens=20, messages=PROMPT)
            await client.messages.count_tokens(model="pass/claude", messages=PROMPT)
    assert [request.path for request in faults.requests] == [
        "/v1/messages",
        "/v1/messages/count_tokens",
    ]
    for request in faults.requests:
        assert request.headers.items() >= headers.items()
        assert "x-api-key" not in request.headers


@pytest.mark.slow
@pytest.mark.parametrize("model", ["refine/fast", "pass/tiny"])
async def test_many_requests_at_once(tmp_path, model):
    """More requests than are at work at once wait for their turn; all are answered and nothing is
    left behind.
    """
    server = ChatServer(writer_and_judge(["only"], [5]))
    config = replace(
        config_for(tmp_path, server.model), limits=GatewayLimits(max_concurrent=20, max_queue=200)
    )
    try:
        async with running(config) as (url, gateway), http_client(url) as client:
            await client.post("/chat/completions", json={"model": model, "messages": PROMPT})
            # the gateway's own tasks may begin later than this; requests would leave 150
            before = len(asyncio.all_tasks()) + 5
            body = {"model": model, "messages": PROMPT}
            replies = await asyncio.gather(
                *(client.post("/chat/completions", json=body) for _ in range(150))
            )
            assert {reply.status_code for reply in replies} == {200}
            assert (gateway.admission.active, gateway.admission.waiting) == (0, 0)
            async with asyncio.timeout(60):
                while len(asyncio.all_tasks()) > before:
                    await asyncio.sleep(0.01)
    finally:
        server.close()


async def test_full_queue(tmp_path):
    """A request that finds no place in the queue is refused at once, with the time to wait."""
    server = ChatServer(writer_and_judge(["only"], [5]))
    arrived = server.hold(0)
    config = replace(
        config_for(tmp_path, server.model), limits=GatewayLimits(max_concurrent=1, max_queue=0)
    )
    try:
        async with running(config) as (url, _), http_client(url) as client:
            body = {"model": "refine/fast", "messages": PROMPT}
            first = asyncio.create_task(client.post("/chat/completions", json=body))
            await asyncio.to_thread(arrived.wait, 60)
            refused = await client.post("/chat/completions", json={**body, "stream": True})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            anthropic = await client.post("/messages", json={**body, "max_tokens": 9})
            assert (
                anthropic.status_code == 529
                and anthropic.json()["error"]["type"] == "overloaded_error"
            )
            server.release()
            assert (await first).status_code == 200
    finally:
        server.close()
