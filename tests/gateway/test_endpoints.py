"""The endpoints besides conversations: embeddings, moderations, completions, counts of tokens; with
the SDK of OpenAI to a real llama.cpp server, and to servers that answer as a provider does.
"""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from fault_server import cut, error, http, send_and_close, sse
from hypothesis import given
from hypothesis import strategies as st

import vendors
from redraft.gateway.config import GatewayLimits, Retention, ServedModel
from redraft.gateway.endpoints import ENDPOINTS, count_of_texts, is_text_or_tokens
from redraft.gateway.keys import KeyLimits, KeyRing
from redraft.gateway.plain_passing import PARSED_BYTES

from .running import config_for, http_client, openai_client, running, wait_until_recorded

KEY = "sk-canary-4711-0815"
EMBEDDINGS = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}],
    "model": "text-embedding-4",
    "usage": {"prompt_tokens": 8, "total_tokens": 8},
}
MODERATIONS = {
    "id": "modr-1",
    "model": "omni-moderation-latest",
    "results": [{"flagged": True, "categories": {"violence": True}, "category_scores": {}}],
}
COMPLETION = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1,
    "model": "tiny",
    "choices": [{"index": 0, "text": " and so on", "finish_reason": "stop", "logprobs": None}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9},
}
COUNT = {"object": "response.input_tokens", "input_tokens": 11}
COMPACTION = {
    "id": "resp_1",
    "object": "response.compaction",
    "created_at": 1,
    "output": [{"id": "cmp_1", "type": "compaction", "encrypted_content": "x"}],
    "usage": {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9},
}
REQUESTS = {
    "/embeddings": ({"input": "say it"}, EMBEDDINGS, (8, 0)),
    "/moderations": ({"input": "say it"}, MODERATIONS, (None, None)),
    "/completions": ({"prompt": "say it", "max_tokens": 10}, COMPLETION, (5, 4)),
    "/responses/input_tokens": ({"input": "say it"}, COUNT, (0, 0)),
    "/responses/compact": ({"input": "say it"}, COMPACTION, (7, 2)),
}
"""For each endpoint: a request, an answer, and the input and output tokens that are recorded."""
PATHS = tuple(REQUESTS)
STREAM = (
    {"choices": [{"index": 0, "text": " and", "finish_reason": None}]},
    {"choices": [{"index": 0, "text": " so on", "finish_reason": "stop"}]},
)
USAGE = {"choices": [], "usage": COMPLETION["usage"]}


@asynccontextmanager
async def serving(tmp_path, faults):
    """Serve a gateway before a server of faults; yields an HTTP client of it and the gateway."""
    config = config_for(tmp_path, faults.url)
    async with running(config) as (url, gateway), http_client(url) as client:
        yield client, gateway


def test_every_endpoint_is_tested():
    assert {f"/v1{path}" for path in REQUESTS} == set(ENDPOINTS)


# ---- a real server


async def test_a_real_server_completes_texts(plain_server, tmp_path):
    """The SDK of OpenAI gets completions, whole and streamed, with the usage if it asks for it."""
    async with openai_client(config_for(tmp_path, plain_server)) as client:
        create = client.completions.create
        whole = await create(model="pass/tiny", prompt="the answer", max_tokens=5)
        assert whole.object == "text_completion"
        assert 0 < whole.usage.completion_tokens <= 5
        both = await create(model="pass/tiny", prompt=["the", "a"], max_tokens=3)
        assert sorted(choice.index for choice in both.choices) == [0, 1]
        for options in (None, {"include_usage": True}):
            stream = await create(
                model="pass/tiny", prompt="it", max_tokens=5, stream=True, stream_options=options
            )
            chunks = [chunk async for chunk in stream]
            assert any(chunk.choices and chunk.choices[0].text for chunk in chunks)
            assert not options or any(chunk.usage for chunk in chunks)


async def test_a_real_server_without_embeddings(plain_server, tmp_path):
    """What the model's server does not offer is an error that says so, and no fault of ours."""
    async with openai_client(config_for(tmp_path, plain_server)) as client:
        with pytest.raises(vendors.openai.APIStatusError) as caught:
            await client.embeddings.create(model="pass/tiny", input="hello")
        assert caught.value.status_code in {400, 404, 501, 502}
        with pytest.raises(vendors.openai.NotFoundError, match="has no /moderations"):
            await client.moderations.create(model="pass/tiny", input="hello")


# ---- what is sent, returned and recorded


async def test_the_sdk_reads_each_answer(faults, tmp_path):
    """The SDK of OpenAI has typed objects of all endpoints, also embeddings in base64."""
    packed = {**EMBEDDINGS["data"][0], "embedding": "AAAAPwAAgL8="}
    faults.says(
        http(EMBEDDINGS | {"data": [packed]}),
        http(MODERATIONS),
        http(COMPLETION),
        http(COUNT),
        http(COMPACTION),
    )
    async with openai_client(config_for(tmp_path, faults.url)) as client:
        embedded = await client.embeddings.create(model="pass/tiny", input=["say it"])
        assert embedded.data[0].embedding == [0.5, -1.0]
        assert (await client.moderations.create(model="pass/tiny", input="x")).results[0].flagged
        completed = await client.completions.create(model="pass/tiny", prompt="x")
        assert completed.choices[0].text == " and so on"
        counted = await client.responses.input_tokens.count(model="pass/tiny", input="x")
        assert counted.input_tokens == 11
        compacted = await client.responses.compact(model="pass/tiny", input="x")
        assert compacted.output[0].type == "compaction"
    assert faults.requests[0].body == {
        "model": "tiny",
        "input": ["say it"],
        "encoding_format": "base64",
    }


@pytest.mark.parametrize("path", PATHS)
async def test_only_the_name_of_the_model_is_changed(path, faults, tmp_path):
    """A request arrives as it was sent, its answer as the model wrote it, and both are recorded."""
    body, answer, tokens = REQUESTS[path]
    extra = {"unknown": {"a": [True, None, "ü😀"]}, "user": "u-1"}
    answer = {**answer, "x_private": [1.5, None]}
    faults.says(http(answer, x_request_id="up-7"))
    config = replace(config_for(tmp_path, faults.url), passed_retention=Retention("full"))
    async with running(config) as (url, gateway), http_client(url) as client:
        sent = {"model": "pass/tiny", **body, **extra}
        reply = await client.post(path, json={**sent, "redraft": {"events": True}})
        assert (reply.status_code, reply.json()) == (200, answer)
        assert reply.headers["x-request-id"] == "up-7"
        stored = gateway.store.find(reply.headers["x-redraft-trace-id"])
        await wait_until_recorded(gateway)
        figures = gateway.metrics.text()
    assert faults.requests[0].path == f"/v1{path}"
    assert faults.requests[0].body == {**sent, "model": "tiny"}
    name = ENDPOINTS[f"/v1{path}"].name
    facts = stored.facts
    assert (facts.model, facts.wire, facts.outcome) == ("pass/tiny", name, "answered")
    assert (facts.input_tokens, facts.output_tokens) == tokens
    known = None not in tokens
    cost = (
        0.0
        if path.endswith("input_tokens")
        else tokens[0] * 1e-6 + tokens[1] * 2e-6
        if known
        else None
    )
    assert facts.cost == (None if cost is None else pytest.approx(cost))
    assert json.loads(stored.trace.best.text) == answer
    assert (
        f'redraft_gateway_requests_total{{model="pass/tiny",status="200",wire="{name}"}} 1.0'
        in figures
    )


@pytest.mark.slow
async def test_a_large_answer_is_not_parsed(faults, tmp_path):
    """Its usage is found at its end or its beginning, and it arrives whole."""
    numbers = [0.123456789] * (PARSED_BYTES // 8)
    last = EMBEDDINGS | {"data": [{"index": 0, "embedding": numbers}]}
    last["usage"] = last.pop("usage")
    first = {"usage": EMBEDDINGS["usage"], **{k: v for k, v in last.items() if k != "usage"}}
    faults.says(http(last), http(first))
    async with serving(tmp_path, faults) as (client, gateway):
        for answer in (last, first):
            reply = await client.post("/embeddings", json={"model": "pass/tiny", "input": "x"})
            assert reply.content == json.dumps(answer).encode()
            facts = gateway.store.find(reply.headers["x-redraft-trace-id"]).facts
            assert (facts.input_tokens, facts.output_tokens) == (8, 0)


@pytest.mark.parametrize("asks", [False, True])
async def test_a_stream_of_completions(faults, tmp_path, asks):
    """It is passed on as it is, without the usage that the client did not ask for, which is
    recorded.
    """
    faults.says(send_and_close(sse(*STREAM, USAGE)))
    body = {"model": "pass/tiny", "prompt": "say it", "stream": True}
    options = {"stream_options": {"include_usage": True}} if asks else {}
    async with serving(tmp_path, faults) as (client, gateway):
        reply = await client.post("/completions", json={**body, **options})
        facts = gateway.store.find(reply.headers["x-redraft-trace-id"]).facts
    assert faults.requests[0].path == "/v1/completions"
    assert (b"completion_tokens" in reply.content) == asks
    assert reply.content.endswith(b"data: [DONE]\n\n")
    assert (facts.input_tokens, facts.output_tokens) == (5, 4)


async def test_a_stream_of_completions_that_breaks_off(faults, tmp_path):
    """The client reads an error and no end, and the usage stays unknown."""
    faults.says(send_and_close(sse(STREAM[0], done=False)))
    async with serving(tmp_path, faults) as (client, gateway):
        body = {"model": "pass/tiny", "prompt": "say it", "stream": True}
        reply = await client.post("/completions", json=body)
        facts = gateway.store.find(reply.headers["x-redraft-trace-id"]).facts
    assert b"[DONE]" not in reply.content
    assert b'"error"' in reply.content.rpartition(b"data:")[2]
    assert (facts.outcome, facts.output_tokens) == ("failed", None)


# ---- errors


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("model", "status", "message"),
    [
        ("refine/fast", 400, "use 'pass/tiny'"),
        ("pass/claude", 400, "speaks the protocol of Anthropic"),
        ("pass/none", 404, "there is no model"),
        (None, 400, "model is missing"),
        (7, 400, "model must be a name"),
    ],
)
async def test_models_that_have_no_such_endpoint(faults, tmp_path, path, model, status, message):
    """The error says which model to use instead; nothing is sent."""
    config = config_for(tmp_path, faults.url)
    claude = ServedModel("claude", faults.url, "claude", "anthropic")
    config = replace(config, models={**config.models, "claude": claude})
    async with running(config) as (url, _), http_client(url) as client:
        reply = await client.post(path, json={"model": model, **REQUESTS[path][0]})
    assert reply.status_code == status
    assert message in reply.json()["error"]["message"]
    assert reply.json()["error"]["param"] == "model"
    assert not faults.requests


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("field", ["api_base", "models", "provider", "Model"])
async def test_fields_that_choose_the_model(faults, tmp_path, path, field):
    """They are refused as everywhere."""
    async with serving(tmp_path, faults) as (client, _):
        body = {"model": "pass/tiny", **REQUESTS[path][0], field: "x"}
        reply = await client.post(path, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)
    assert not faults.requests


@pytest.mark.slow(but_each=8)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (error(400, "bad input", code="bad_value"), 400, "bad_value"),
        (error(404, "no model", code="model_not_found"), 404, "model_not_found"),
        (error(401, f"wrong key {KEY}"), 502, "upstream_authentication"),
        (error(429, "slow down"), 429, "upstream_rate_limit"),
        (error(500, "broken"), 502, "upstream_error"),
        (http(b"not found", 404, "text/plain"), 404, "not_found"),
        (http(b"", 302, Location="http://elsewhere/"), 502, "upstream_redirect"),
        (http(b"<html>hi</html>", content_type="text/html"), 502, "upstream_error"),
        (http({"error": {"message": "no memory"}}), 502, "upstream_error"),
        (http([]), 502, "upstream_error"),
        (cut(http({"data": [1, 2]}), 60), 502, "upstream_unavailable"),
    ],
)
async def test_errors_of_the_model(faults, tmp_path, path, answer, status, code):
    """They are told in OpenAI's form, without the key or the address of the model."""
    faults.says(answer)
    config = config_for(tmp_path, faults.url)
    models = {"tiny": replace(config.models["tiny"], key_env="KEY")}
    async with (
        running(replace(config, models=models), {"KEY": KEY}) as (url, _),
        http_client(url) as client,
    ):
        reply = await client.post(path, json={"model": "pass/tiny", **REQUESTS[path][0]})
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert "4711" not in reply.text
    assert faults.host not in reply.text
    assert faults.requests[0].headers["authorization"] == f"Bearer {KEY}"


async def test_methods_and_bodies(faults, tmp_path):
    """Only POST is allowed, and a body must be an object that is not too large."""
    config = replace(config_for(tmp_path, faults.url), limits=GatewayLimits(max_body=1000))
    async with running(config) as (url, _), http_client(url) as client:
        wrong = await client.get("/embeddings")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert (await client.post("/embeddings", content=b"[]")).status_code == 400
        large = {"model": "pass/tiny", "input": "x" * 2000}
        assert (await client.post("/embeddings", json=large)).status_code == 413
    assert not faults.requests


# ---- keys and budgets


def add_key(folder, name="anna", profiles=(), **limits):
    """Add a key and return the headers of its requests."""
    with KeyRing(folder) as ring:
        return {"authorization": f"Bearer {ring.add(name, KeyLimits(**limits), profiles)[1]}"}


@pytest.mark.parametrize("path", PATHS)
async def test_keys(faults, tmp_path, path):
    """A key is needed, may use the models of its list, and sends no more than its rate allows."""
    faults.says(http(REQUESTS[path][1]))
    other = add_key(tmp_path, "other", ("pass/gpt-*",))
    slow = add_key(tmp_path, "slow", ("pass/t*",), requests_per_minute=1)
    body = {"model": "pass/tiny", **REQUESTS[path][0]}
    async with serving(tmp_path, faults) as (client, _):
        statuses = [
            (await client.post(path, json=body, headers=headers)).status_code
            for headers in ({}, other, slow, slow)
        ]
    assert statuses == [401, 403, 200, 429]
    assert len(faults.requests) == 1


@pytest.mark.parametrize("path", PATHS)
async def test_a_budget_is_charged(faults, tmp_path, path):
    """What the tokens cost is charged; of an unknown usage what was reserved, which is at least the
    price of a token for each byte.
    """
    body, answer, tokens = REQUESTS[path]
    faults.says(http(answer))
    headers = add_key(tmp_path, usd_per_day=1.0)
    sent = json.dumps({"model": "pass/tiny", **body}).encode()
    async with serving(tmp_path, faults) as (client, _):
        reply = await client.post(path, content=sent, headers=headers)
        assert reply.status_code == 200
    with KeyRing(tmp_path) as ring:
        spending = ring.spending("day", ring.stored_keys()[0])
    expected = len(sent) * 1000 if None in tokens else tokens[0] * 1000 + tokens[1] * 2000
    assert (spending.spent, spending.reserved, spending.calls) == (expected, 0, 1)


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    ("prompt", "fields", "tokens"),
    [
        ("one text", {}, 10),
        (["one", "two", "three"], {}, 30),
        ([1, 2, 3], {}, 10),
        ([[1, 2], [3]], {}, 20),
        (["one", "two"], {"n": 3}, 60),
        (["one", "two"], {"n": 2, "best_of": 5}, 100),
        ([], {}, 10),
    ],
)
async def test_what_completions_may_cost_is_reserved(faults, tmp_path, prompt, fields, tokens):
    """Each text of a prompt is answered as often as the request says: a key that has not so much
    left is refused before anything is sent.
    """
    body = {"model": "pass/tiny", "prompt": prompt, "max_tokens": 10, **fields}
    sent = json.dumps(body).encode()
    cost = (len(sent) * 1.0 + tokens * 2.0) / 1e6
    poor = add_key(tmp_path, "poor", usd_per_day=cost - 1e-9)
    rich = add_key(tmp_path, "rich", usd_per_day=cost)
    faults.says(http(COMPLETION))
    async with serving(tmp_path, faults) as (client, _):
        refused = await client.post("/completions", content=sent, headers=poor)
        allowed = await client.post("/completions", content=sent, headers=rich)
    assert (refused.status_code, refused.json()["error"]["code"]) == (402, "budget_exhausted")
    assert allowed.status_code == 200
    assert len(faults.requests) == 1


IMAGE = {"type": "image_url", "image_url": {"url": "https://images.example/large.png"}}


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/embeddings", {"input": [IMAGE]}, "input"),
        ("/embeddings", {"input": {"image": "x"}}, "input"),
        ("/embeddings", {"input": [[1, "x"]]}, "input"),
        ("/completions", {"prompt": {"prompt_string": "x", "multimodal_data": ["x"]}}, "prompt"),
        ("/completions", {"prompt": "x", "service_tier": "priority"}, "service_tier"),
        ("/completions", {"prompt": "x", "max_tokens": "10"}, "max_tokens"),
        (
            "/moderations",
            {"input": [{"type": "file", "file": {"file_id": "f"}}]},
            "input[0].file.file_id",
        ),
        ("/moderations", {"input": [{"type": "video_url", "video_url": "x"}]}, "input[0]"),
        ("/responses/compact", {"previous_response_id": "resp_1"}, "previous_response_id"),
    ],
)
async def test_what_costs_an_unknown_amount(faults, tmp_path, path, fields, param):
    """A key with a limit in USD cannot send it, another one can."""
    faults.says(http(REQUESTS[path][1]))
    limited, free = add_key(tmp_path, "limited", usd_per_day=1.0), add_key(tmp_path, "free")
    body = {"model": "pass/tiny", **fields}
    async with serving(tmp_path, faults) as (client, _):
        refused = await client.post(path, json=body, headers=limited)
        allowed = await client.post(path, json=body, headers=free)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert allowed.status_code == 200


async def test_an_image_to_moderate_is_reserved(faults, tmp_path):
    """It has at most the tokens that the model's table states."""
    faults.says(http(MODERATIONS))
    headers = add_key(tmp_path, usd_per_day=0.001)
    body = {"model": "pass/tiny", "input": [{"type": "text", "text": "x"}, IMAGE]}
    statuses = []
    for tokens in (1_000_000, 10):
        config = config_for(tmp_path, faults.url)
        models = {"tiny": replace(config.models["tiny"], image_tokens=tokens)}
        async with (
            running(replace(config, models=models)) as (url, _),
            http_client(url) as client,
        ):
            statuses.append(
                (await client.post("/moderations", json=body, headers=headers)).status_code
            )
    assert statuses == [402, 200]


texts = st.text(max_size=5)
tokens = st.lists(st.integers(0, 9), min_size=1, max_size=3)


@given(st.one_of(texts, tokens, st.lists(texts, min_size=1), st.lists(tokens, min_size=1)))
def test_texts_and_tokens(prompt):
    """A prompt is a text, a list of tokens, or a list of either; each of the list is one text."""
    assert is_text_or_tokens(prompt)
    is_list = isinstance(prompt, list) and not isinstance(prompt[0], int)
    assert count_of_texts(prompt) == (len(prompt) if is_list else 1)


@given(st.dictionaries(texts, texts) | st.none() | st.floats() | st.lists(st.none(), min_size=1))
def test_what_is_no_text(value):
    assert not is_text_or_tokens(value)


async def test_a_client_that_leaves_ends_the_work(tmp_path):
    """The connection to the model is closed, and the request recorded as cancelled."""
    received, closed = asyncio.Event(), asyncio.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"}")
        received.set()
        while await reader.read(1000):
            pass
        closed.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with running(config_for(tmp_path, url)) as (own, gateway), http_client(own) as client:
            body = {"model": "pass/tiny", "input": "x"}
            task = asyncio.create_task(client.post("/embeddings", json=body))
            async with asyncio.timeout(60):
                await received.wait()
                task.cancel()
                await closed.wait()
                await gateway.admission.wait_until_idle()
            await wait_until_recorded(gateway)
            figures = gateway.metrics.text()
    assert 'model="pass/tiny",status="499",wire="embeddings"' in figures
