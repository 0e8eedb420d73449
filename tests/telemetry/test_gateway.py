"""The gateway's requests as spans: from the client's trace to the header that the model's server
gets.
"""

import asyncio

import fault_server as fs
import pytest
from fault_server import FaultServer
from opentelemetry.trace import SpanKind, StatusCode

import vendors
from gateway.running import PROMPT, config_for, http_client, openai_client, running

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
async def faults():
    async with FaultServer() as server:
        yield server


def tree(memory):
    by_id = {span.context.span_id: span.name for span in memory.spans}
    return [
        (span.name, by_id.get(span.parent.span_id) if span.parent else None)
        for span in memory.spans
    ]


async def test_refined_request(memory, faults, tmp_path):
    """A refinement belongs to the request, the request to the client's trace, and the model's
    server is told of it.
    """
    faults.says(fs.good("a fine answer"))
    config = config_for(tmp_path, f"{faults.url}#tiny", graders=["words:2-9"])
    async with openai_client(config) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="refine/fast", messages=PROMPT, extra_headers={"traceparent": TRACEPARENT}
        )
    assert tree(memory) == [
        ("POST /v1/chat/completions", None),
        ("invoke_workflow refine", "POST /v1/chat/completions"),
        ("generate", "invoke_workflow refine"),
        ("chat tiny", "generate"),
        ("grade words:2-9", "invoke_workflow refine"),
    ]
    assert {f"{span.context.trace_id:032x}" for span in memory.spans} == {TRACEPARENT.split("-")[1]}
    request, call = memory.one("POST"), memory.one("chat")
    assert request.attributes["redraft.trace_id"] == raw.headers["x-redraft-trace-id"]
    assert f"{call.context.span_id:016x}" in faults.requests[-1].headers["traceparent"]
    assert "Say it well" not in memory.text and "a fine answer" not in memory.text


@pytest.mark.parametrize("stream", [False, True])
async def test_passed_request(memory, faults, tmp_path, stream):
    """A request that is passed on is a call below the request, with the tokens of the model's
    reply.
    """
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    events = fs.sse(fs.chunk("fine"), fs.chunk(finish="stop"), {"choices": [], "usage": usage})
    faults.says(fs.send_and_close(events) if stream else fs.good("fine"))
    async with openai_client(config_for(tmp_path, f"{faults.url}#tiny")) as client:
        reply = await client.chat.completions.create(
            model="pass/tiny", messages=PROMPT, stream=stream
        )
        if stream:
            async for _ in reply:
                pass
    assert tree(memory) == [
        ("POST /v1/chat/completions", None),
        ("chat tiny", "POST /v1/chat/completions"),
    ]
    call = memory.one("chat")
    assert (call.kind, call.status.status_code) == (SpanKind.CLIENT, StatusCode.UNSET)
    assert (
        call.attributes["gen_ai.usage.input_tokens"],
        call.attributes["gen_ai.usage.output_tokens"],
    ) == (7, 3)
    assert call.attributes["server.port"] == faults.port
    assert f"{call.context.span_id:016x}" in faults.requests[-1].headers["traceparent"]


async def test_errors(memory, faults, tmp_path):
    """A model that refuses its key is the gateway's error; a wrong request is none."""
    faults.says(fs.error(401, "SECRETIVE message"))
    async with openai_client(config_for(tmp_path, f"{faults.url}#tiny")) as client:
        with pytest.raises(vendors.openai.APIStatusError):
            await client.chat.completions.create(model="pass/tiny", messages=PROMPT)
        with pytest.raises(vendors.openai.NotFoundError):
            await client.chat.completions.create(model="pass/none", messages=PROMPT)
    refused, wrong = memory.named("POST")
    assert (refused.attributes["http.response.status_code"], refused.attributes["error.type"]) == (
        502,
        "502",
    )
    assert (
        wrong.attributes["http.response.status_code"] == 404
        and "error.type" not in wrong.attributes
    )
    assert memory.one("chat").status.status_code is StatusCode.ERROR
    assert "SECRETIVE" not in memory.text


async def test_health_checks_are_no_spans(memory, faults, tmp_path):
    """What a monitor asks every second is not recorded."""
    async with (
        running(config_for(tmp_path, f"{faults.url}#tiny")) as (url, _),
        http_client(url.removesuffix("/v1")) as client,
    ):
        for path in ("/healthz", "/readyz", "/metrics"):
            await client.get(path)
    assert memory.spans == []


async def test_client_that_goes_away(memory, faults, tmp_path):
    """When the client closes the connection, all spans end."""
    faults.says(fs.silence)
    async with openai_client(
        config_for(tmp_path, f"{faults.url}#tiny", graders=["words:2-9"])
    ) as client:
        request = asyncio.create_task(
            client.chat.completions.create(model="refine/fast", messages=PROMPT)
        )
        while not faults.requests:
            await asyncio.sleep(0.001)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        async with asyncio.timeout(60):
            while not memory.named("POST"):
                await asyncio.sleep(0.001)
    assert {
        memory.one(name).attributes["error.type"] for name in ("chat", "generate", "invoke")
    } == {"CancelledError"}
