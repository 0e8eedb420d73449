"""The gateway's routes as a client of OpenAI sees them, before a scripted model."""

import asyncio
import json
import sqlite3
from contextlib import aclosing, closing

import pytest
from chat_server import ChatServer, is_judging, verdict, writer_and_judge

import vendors
from redraft.gateway.app import MODEL_PATHS
from redraft.gateway.client_exchange import with_pauses
from redraft.gateway.keys import KeyLimits, KeyRing
from redraft.gateway.request_store import RequestStore

from .running import PROMPT, config_for, http_client, openai_client, running


@pytest.fixture
def upstream():
    """Starts a scripted model; each is closed at the end."""
    servers = []

    def start(answer):
        servers.append(ChatServer(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


async def test_refined_answer(upstream, tmp_path):
    """The better of two answers is returned, with its own tokens, all calls beside them, and
    headers that say how it came about.
    """
    server = upstream(writer_and_judge(["first", "second"], [2, 5]))
    async with openai_client(config_for(tmp_path, server.model)) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="refine/fast", messages=PROMPT
        )
        reply = raw.parse()
        assert reply.choices[0].message.content == "second"
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (10, 5)
        assert reply.usage.redraft["calls"] == 4
        assert reply.usage.redraft["cost"] == pytest.approx(4 * (10 * 1 + 5 * 2) / 1e6)
        assert raw.headers["x-redraft-iterations"] == "1"
        assert raw.headers["x-redraft-stop"] == "done"
        assert raw.headers["x-redraft-cost"] == "0.000080000"
        assert (
            client.gateway.store.find(raw.headers["x-redraft-trace-id"]).facts.outcome == "answered"
        )


async def test_stream(upstream, tmp_path):
    """A stream has the role first, only the text of the chosen answer, and the usage last."""
    server = upstream(writer_and_judge(["first", "second"], [2, 5]))
    async with openai_client(config_for(tmp_path, server.model)) as client:
        stream = await client.chat.completions.create(
            model="refine/fast",
            messages=PROMPT,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        == "second"
    )
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == 15


async def test_progress_events(upstream, tmp_path):
    """With `events`, a stream tells each text and each score before the answer."""
    server = upstream(writer_and_judge(["first", "second"], [2, 5]))
    async with openai_client(config_for(tmp_path, server.model)) as client:
        stream = await client.chat.completions.create(
            model="refine/fast",
            messages=PROMPT,
            stream=True,
            extra_body={"redraft": {"events": True}},
        )
        kinds = [chunk.redraft["kind"] async for chunk in stream if not chunk.choices]
    assert kinds == ["candidate", "grade", "candidate", "grade", "stop"]


async def test_passed_request(upstream, tmp_path):
    """`pass/NAME` is one call of the model, with what the client sent."""
    server = upstream(lambda messages, n: "as it is")
    async with openai_client(config_for(tmp_path, server.model)) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="pass/tiny", messages=PROMPT, extra_body={"top_k": 3}
        )
        reply = raw.parse()
        assert reply.choices[0].message.content == "as it is"
        facts = client.gateway.store.find(raw.headers["x-redraft-trace-id"]).facts
    assert (
        server.calls == 1 and server.bodies[0]["top_k"] == 3 and server.bodies[0]["model"] == "tiny"
    )
    assert (facts.outcome, facts.input_tokens, facts.output_tokens) == ("answered", 10, 5)


async def test_parameters_reach_the_writer_alone(upstream, tmp_path):
    """What shapes the answer is passed to the model that writes, and never to the judge."""
    server = upstream(writer_and_judge(["only"], [5]))
    async with openai_client(config_for(tmp_path, server.model)) as client:
        await client.chat.completions.create(
            model="refine/fast",
            messages=PROMPT,
            stop=["END"],
            top_p=0.5,
            temperature=0.25,
            max_tokens=77,
            seed=3,
        )
    sent = {bool(is_judging(body["messages"])): body for body in server.bodies}
    assert {
        name: sent[False][name] for name in ("stop", "top_p", "temperature", "max_tokens", "seed")
    } == {
        "stop": ["END"],
        "top_p": 0.5,
        "temperature": 0.25,
        "max_tokens": 77,
        "seed": 3,
    }
    assert "stop" not in sent[True] and "top_p" not in sent[True]


async def test_models(upstream, tmp_path):
    """The models are listed for clients of both vendors; an ID with a slash can be asked for."""
    async with (
        running(config_for(tmp_path, upstream(lambda *_: "x").model)) as (url, _),
        http_client(url) as client,
    ):
        listed = await client.get("/models")
        assert [(each["id"], each["owned_by"], each["type"]) for each in listed.json()["data"]] == [
            ("refine/fast", "redraft", "model"),
            ("pass/tiny", "redraft", "model"),
        ]
        assert "x-redraft" in listed.headers
        assert (await client.get("/models/refine/fast")).json()["id"] == "refine/fast"
        missing = await client.get("/models/refine/none")
        assert missing.status_code == 404 and "refine/fast" in missing.json()["error"]["message"]


async def test_detection_recognises_a_gateway(upstream, tmp_path):
    """Model detection takes a gateway for no model, whichever port it listens on."""
    from redraft.models import find_model

    async with running(config_for(tmp_path, upstream(lambda *_: "x").model)) as (url, _):
        found = await find_model({"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "x"}, servers=())
    assert found.model is None and "gateway" in str(found)


async def test_health_and_figures(upstream, tmp_path):
    """Health and readiness ask no model; the figures count requests; an unknown path is an error in
    the client's form.
    """
    server = upstream(writer_and_judge(["only"], [5]))
    async with (
        running(config_for(tmp_path, server.model)) as (url, gateway),
        http_client(url.removesuffix("/v1")) as client,
    ):
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        assert server.calls == 0
        await client.post("/v1/chat/completions", json={"model": "refine/fast", "messages": PROMPT})
        figures = (await client.get("/metrics")).text
        assert (
            'redraft_gateway_requests_total{model="refine/fast",status="200",wire="chat"} 1.0'
            in figures
        )
        unknown = await client.get("/v1/nothing")
        assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "not_found"
        twice = await client.post("/v1/v1/messages", json={})
        assert "/v1/messages exists" in twice.text and "base URL" in twice.text
        gateway.drain()
        assert (await client.get("/readyz")).status_code == 503
        refused = await client.post(
            "/v1/chat/completions", json={"model": "refine/fast", "messages": PROMPT}
        )
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
async def test_methods_that_a_route_does_not_have(upstream, tmp_path, method):
    """They get 405 with the methods that it has, never a 404."""
    allowed = dict.fromkeys((*MODEL_PATHS, "/v1/messages/count_tokens"), {"POST"})
    allowed |= dict.fromkeys(
        ("/v1/models", "/v1/models/pass/tiny", "/healthz", "/openapi.json"), {"GET", "HEAD"}
    )
    async with running(config_for(tmp_path, upstream(lambda *_: "x").model)) as (url, _):
        async with http_client(url.removesuffix("/v1")) as client:
            for path, methods in allowed.items():
                reply = await client.request(method, path)
                assert (reply.status_code == 405) == (method not in methods), (
                    path,
                    reply.status_code,
                )
                if reply.status_code == 405:
                    assert set(reply.headers["allow"].split(", ")) == methods
                    assert method == "HEAD" or "is not allowed" in reply.json()["error"]["message"]
                else:
                    assert reply.status_code in {200, 400}


async def test_readiness_while_the_store_fails(tmp_path, upstream, monkeypatch):
    """It says that the store fails, and names no file: anyone may ask."""
    monkeypatch.setattr(
        RequestStore, "problem", f"the table of requests {tmp_path} cannot be written"
    )
    async with running(config_for(tmp_path, upstream(writer_and_judge(["only"], [5])).model)) as (
        url,
        _,
    ):
        async with http_client(url.removesuffix("/v1")) as client:
            assert (await client.get("/readyz")).json() == {"status": "ready", "store": "failing"}


def stored_outcomes(folder):
    with closing(sqlite3.connect(folder / "requests.db")) as database:
        return [row[0] for row in database.execute("SELECT outcome FROM requests")]


REFUSED = {
    "no JSON": (b"{", 400, "invalid_json"),
    "no object": (b"[1]", 400, "invalid_request"),
    "no model": ({"messages": PROMPT}, 400, "invalid_request"),
    "unknown model": ({"model": "gpt-4o", "messages": PROMPT}, 404, "model_not_found"),
    "several answers": (
        {"model": "refine/fast", "messages": PROMPT, "n": 2},
        400,
        "invalid_request",
    ),
    "no messages": ({"model": "refine/fast", "messages": []}, 400, "invalid_request"),
    "an empty prompt": (
        {"model": "refine/fast", "messages": [{"role": "user", "content": " "}]},
        400,
        "invalid_request",
    ),
    "a grader with a file": (
        {"model": "refine/fast", "messages": PROMPT, "redraft": {"graders": ["judge:/etc/passwd"]}},
        400,
        "invalid_request",
    ),
    "a grader with a host": (
        {
            "model": "refine/fast",
            "messages": PROMPT,
            "redraft": {"graders": ["reward:http://127.0.0.1:1/classify#m"]},
        },
        400,
        "invalid_request",
    ),
    "a grader that runs code": (
        {"model": "refine/fast", "messages": PROMPT, "redraft": {"graders": ["tests"]}},
        400,
        "invalid_request",
    ),
    "a requirement with a file": (
        {
            "model": "refine/fast",
            "messages": PROMPT,
            "redraft": {"requirements": ["json_schema:/etc/passwd"]},
        },
        400,
        "invalid_request",
    ),
    "an unknown requirement": (
        {"model": "refine/fast", "messages": PROMPT, "redraft": {"requirements": ["wordz:3"]}},
        400,
        "invalid_request",
    ),
}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(("body", "status", "code"), REFUSED.values(), ids=REFUSED)
async def test_refused_before_any_call(upstream, tmp_path, body, status, code):
    """What is wrong is refused with its status and a code, in a stream too, and costs no call."""
    server = upstream(lambda *_: "x")
    async with running(config_for(tmp_path, server.model)) as (url, _), http_client(url) as client:
        for stream in (False, True):
            raw = (
                body if isinstance(body, bytes) else json.dumps({**body, "stream": stream}).encode()
            )
            reply = await client.post("/chat/completions", content=raw)
            assert (reply.status_code, reply.json()["error"]["code"]) == (status, code), reply.text
    assert server.calls == 0


UPSTREAM_ERRORS = {
    "its key is refused": (401, 502, "upstream_authentication", "false"),
    "the prompt is too long": (
        (400, "maximum context length is 10 tokens"),
        400,
        "context_length_exceeded",
        "false",
    ),
    "it is down": (502, 502, "upstream_error", "false"),
    "no such model": (404, 502, "upstream_unavailable", "false"),
}


@pytest.mark.parametrize(
    ("said", "status", "code", "should_retry"), UPSTREAM_ERRORS.values(), ids=UPSTREAM_ERRORS
)
async def test_upstream_errors(upstream, tmp_path, said, status, code, should_retry):
    """An error of the model becomes one of the gateway: never the client's own 401, and no retry
    where that would repeat all.
    """
    server = upstream(lambda *_: said)
    config = config_for(tmp_path, server.model, settings={"retries": 0})
    async with running(config) as (url, _), http_client(url) as client:
        reply = await client.post(
            "/chat/completions", json={"model": "refine/fast", "messages": PROMPT}
        )
        assert (reply.status_code, reply.json()["error"]["code"]) == (status, code), reply.text
        assert reply.headers["x-should-retry"] == should_retry
        async with client.stream(
            "POST",
            "/chat/completions",
            json={"model": "refine/fast", "messages": PROMPT, "stream": True},
        ) as reply:
            text = (await reply.aread()).decode()
    assert reply.status_code == 200 and code in text and "[DONE]" not in text


async def test_rate_limit_of_the_model(upstream, tmp_path):
    """A 429 of the model is the client's 429, with the time to wait."""
    server = upstream(lambda *_: (429, "slow down", {"Retry-After": "7"}))
    async with openai_client(config_for(tmp_path, server.model, settings={"retries": 0})) as client:
        with pytest.raises(vendors.openai.RateLimitError) as caught:
            await client.chat.completions.create(model="refine/fast", messages=PROMPT)
    assert caught.value.response.headers["retry-after"] == "7"


async def test_schema_is_a_hard_constraint(upstream, tmp_path):
    """An answer that breaks the schema of `response_format` is never returned, however it is
    graded.
    """
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    server = upstream(writer_and_judge(['{"n": "one"}', '{"n": 1}'], [5]))
    async with openai_client(config_for(tmp_path, server.model)) as client:
        reply = await client.chat.completions.create(
            model="refine/fast", messages=PROMPT, response_format=form
        )
        assert json.loads(reply.choices[0].message.content) == {"n": 1}
    stubborn = upstream(writer_and_judge(['{"n": "one"}'], [5]))
    async with openai_client(config_for(tmp_path / "other", stubborn.model)) as client:
        with pytest.raises(vendors.openai.InternalServerError) as caught:
            await client.chat.completions.create(
                model="refine/fast", messages=PROMPT, response_format=form
            )
    assert caught.value.code == "schema_not_met"
    assert caught.value.response.headers["x-should-retry"] == "false"


async def test_budget_of_a_profile(upstream, tmp_path):
    """A refinement that its budget ends has an answer; one that could not write any is a 402."""
    from redraft import Budget

    server = upstream(writer_and_judge(["first", "second"], [2, 5]))
    config = config_for(tmp_path, server.model, settings={"budget": Budget(calls=2)})
    async with openai_client(config) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="refine/fast", messages=PROMPT
        )
        assert (
            raw.parse().choices[0].message.content == "first"
            and raw.headers["x-redraft-stop"] == "budget"
        )
    async with openai_client(
        config_for(tmp_path / "b", server.model, settings={"budget": Budget(calls=0)})
    ) as client:
        with pytest.raises(vendors.openai.APIStatusError) as caught:
            await client.chat.completions.create(model="refine/fast", messages=PROMPT)
    assert (
        caught.value.status_code == 402
        and caught.value.response.headers["x-should-retry"] == "false"
    )


async def test_deadline(upstream, tmp_path):
    """At the deadline the best answer so far is returned; without any it is a 504."""
    server = upstream(writer_and_judge(["first", "second"], [2]))
    server.hold(2)
    config = config_for(tmp_path, server.model, settings={"deadline": 1.0})
    async with openai_client(config) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="refine/fast", messages=PROMPT
        )
        assert (
            raw.parse().choices[0].message.content == "first"
            and raw.headers["x-redraft-stop"] == "deadline"
        )
    server.release()
    server.hold(server.calls)
    async with openai_client(
        config_for(tmp_path / "b", server.model, settings={"deadline": 0.3})
    ) as client:
        with pytest.raises(vendors.openai.InternalServerError) as caught:
            await client.chat.completions.create(model="refine/fast", messages=PROMPT)
    assert caught.value.status_code == 504 and caught.value.code == "deadline_exceeded"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("model", ["refine/fast", "pass/tiny"])
async def test_disconnect_cancels_the_work(faults, tmp_path, model, stream):
    """When the client leaves, the call in flight at the model is cancelled within a second."""
    called, closed = asyncio.Event(), asyncio.Event()

    async def hang(writer):
        writer.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
        called.set()
        while not writer.transport.is_closing():
            writer.write(b".")
            await asyncio.sleep(0.02)
        closed.set()

    faults.says(hang)
    async with (
        running(config_for(tmp_path, f"{faults.url}#tiny")) as (url, gateway),
        http_client(url) as client,
    ):
        request = asyncio.create_task(
            client.post(
                "/chat/completions", json={"model": model, "messages": PROMPT, "stream": stream}
            )
        )
        async with asyncio.timeout(60):
            await called.wait()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        async with asyncio.timeout(60):
            await gateway.admission.wait_until_idle()
            await closed.wait()
        await gateway.store.wait_for_commit()
    assert stored_outcomes(tmp_path) == ["cancelled"]


async def test_keys(upstream, tmp_path):
    """A key opens its own profiles, within its budget; without a key nothing is answered."""
    server = upstream(writer_and_judge(["only"], [5]))
    with KeyRing(tmp_path) as ring:
        _, secret = ring.add("app", KeyLimits(calls_per_day=100), ("refine/*",))
        _, poor = ring.add("poor", KeyLimits(calls_per_day=1))
    async with running(config_for(tmp_path, server.model)) as (url, _), http_client(url) as client:

        async def ask(model, key=None):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            return await client.post(
                "/chat/completions", json={"model": model, "messages": PROMPT}, headers=headers
            )

        replies = [
            await ask("refine/fast"),
            await ask("refine/fast", "rd-wrong"),
            await ask("pass/tiny", secret),
        ]
        assert [reply.status_code for reply in replies] == [401, 401, 403]
        assert server.calls == 0
        assert (await ask("refine/fast", secret)).status_code == 200
        refused = await ask("refine/fast", poor)
        assert refused.status_code == 402 and refused.headers["x-should-retry"] == "false"
        listed = await client.get("/models", headers={"x-api-key": secret})
        assert [each["id"] for each in listed.json()["data"]] == ["refine/fast"]


@pytest.mark.parametrize("model", ["refine/fast", "pass/tiny"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_answer_is_replayed(upstream, tmp_path, model, stream):
    """A request that was answered is not run again under its idempotency key: the reply is the
    same, also of a stream.
    """
    server = upstream(writer_and_judge(["only"], [5]))
    async with running(config_for(tmp_path, server.model)) as (url, _), http_client(url) as client:
        body = {"model": model, "messages": PROMPT, "stream": stream and model != "pass/tiny"}
        replies = [
            await client.post("/chat/completions", json=body, headers={"idempotency-key": "k1"})
            for _ in range(3)
        ]
        calls = server.calls
        await client.post("/chat/completions", json=body, headers={"idempotency-key": "k2"})
    assert {reply.status_code for reply in replies} == {200} and "only" in replies[0].text
    assert len({reply.headers["x-redraft-trace-id"] for reply in replies}) == 1
    assert calls == (1 if model == "pass/tiny" else 2) and server.calls == 2 * calls


async def test_idempotency_key_joins_the_run(upstream, tmp_path):
    """Two requests with one idempotency key are one run; with another body the key is refused."""
    server = upstream(writer_and_judge(["only"], [5]))
    arrived = server.hold(0)
    async with running(config_for(tmp_path, server.model)) as (url, _), http_client(url) as client:
        body, headers = {"model": "refine/fast", "messages": PROMPT}, {"idempotency-key": "k1"}
        requests = [
            asyncio.create_task(client.post("/chat/completions", json=body, headers=headers))
            for _ in range(2)
        ]
        await asyncio.to_thread(arrived.wait, 60)
        other = await client.post("/chat/completions", json={**body, "seed": 1}, headers=headers)
        assert other.status_code == 422
        server.release()
        replies = await asyncio.gather(*requests)
        again = await client.post("/chat/completions", json=body, headers=headers)
    assert len({reply.headers["x-redraft-trace-id"] for reply in (*replies, again)}) == 1
    assert server.calls == 2


async def test_side_requests_are_passed_on(upstream, tmp_path):
    """A request that is a text of `pass_through` is answered once, ungraded; `refine = "none"` does
    that to all.
    """
    server = upstream(lambda messages, n: "a title")
    config = config_for(tmp_path, server.model, pass_through=("Generate a title",))
    title = [{"role": "user", "content": "Generate a title"}]
    async with openai_client(config) as client:
        reply = await client.chat.completions.create(
            model="refine/fast", messages=title, extra_body={"redraft": {}}
        )
        assert reply.choices[0].message.content == "a title"
    async with openai_client(config_for(tmp_path / "b", server.model, refine="none")) as client:
        await client.chat.completions.create(model="refine/fast", messages=PROMPT)
    assert server.calls == 2 and not any("redraft" in body for body in server.bodies)


async def test_store_false_keeps_no_text(upstream, tmp_path):
    """With `store: false` nothing of the request's content is kept, whatever the profile keeps."""
    from redraft.gateway.config import Retention

    server = upstream(writer_and_judge(["only"], [5]))
    async with openai_client(
        config_for(tmp_path, server.model, retention=Retention("full"))
    ) as client:
        traces = []
        for store in (True, False):
            raw = await client.chat.completions.with_raw_response.create(
                model="refine/fast", messages=PROMPT, store=store
            )
            await client.gateway.store.wait_for_commit()
            traces.append(client.gateway.store.find(raw.headers["x-redraft-trace-id"]).trace)
    assert traces[0].task.messages[0]["content"] == "Say it well." and traces[1] is None


TOOLS = [
    {
        "type": "function",
        "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
    }
]
CALL = {
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    ],
}


async def test_a_tool_call_is_not_rewritten(upstream, tmp_path):
    """A turn that calls tools comes back as the model wrote it, for one call; the final text is
    refined without calling tools.
    """

    def answer(messages, n):
        if is_judging(messages):
            return verdict(2) if "second" not in str(messages) else verdict(5)
        return (
            {1: CALL, 3: "first"}.get(len(messages), "second")
            if messages[-1]["role"] != "tool"
            else "first"
        )

    server = upstream(answer)
    async with openai_client(config_for(tmp_path, server.model)) as client:
        reply = await client.chat.completions.create(
            model="refine/fast", messages=PROMPT, tools=TOOLS
        )
        assert reply.choices[0].finish_reason == "tool_calls" and server.calls == 1
        message = reply.choices[0].message
        assert (message.tool_calls[0].id, message.tool_calls[0].function.name) == ("c1", "look_up")
        history = [
            *PROMPT,
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ]
        final = await client.chat.completions.create(
            model="refine/fast", messages=history, tools=TOOLS
        )
    assert final.choices[0].message.content == "second" and final.choices[0].finish_reason == "stop"
    writing = [body for body in server.bodies[1:] if not is_judging(body["messages"])]
    assert [body.get("tool_choice") for body in writing] == [None, "none"] and all(
        body["tools"] for body in writing
    )


async def test_reload(upstream, tmp_path):
    """Another configuration counts for the requests to come; a request at work keeps the one that
    it began with.
    """
    server = upstream(writer_and_judge(["only"], [5]))
    arrived = server.hold(0)
    config = config_for(tmp_path, server.model)
    async with running(config) as (url, gateway), http_client(url) as client:
        body = {"model": "refine/fast", "messages": PROMPT}
        first = asyncio.create_task(client.post("/chat/completions", json=body))
        await asyncio.to_thread(arrived.wait, 60)
        from dataclasses import replace

        renamed = {"slow": replace(config.profiles["fast"], name="slow")}
        await gateway.reload(replace(config, profiles=renamed))
        assert (await client.post("/chat/completions", json=body)).status_code == 404
        server.release()
        assert (await first).status_code == 200
        assert (
            await client.post("/chat/completions", json={**body, "model": "refine/slow"})
        ).status_code == 200


async def test_pauses():
    """Nothing for a while is None; one task produces and closes the items, also if their reader
    leaves early.
    """
    tasks, closed = [], []

    async def produce(count):
        try:
            for n in range(1, count):
                tasks.append(asyncio.current_task())
                await asyncio.sleep(0.05 if n == 2 else 0)
                yield n
            raise ValueError("end")
        finally:
            closed.append(asyncio.current_task())

    seen = []
    with pytest.raises(ValueError, match="end"):
        async for item in with_pauses(produce(4), 0.02):
            seen.append(item)
    assert [item for item in seen if item] == [1, 2, 3] and None in seen
    async with aclosing(with_pauses(produce(9), 1.0)) as items:
        assert await anext(items) == 1
    assert len(closed) == 2 and {*closed} == {*tasks} and asyncio.current_task() not in closed
