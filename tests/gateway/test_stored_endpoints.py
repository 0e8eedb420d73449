"""Files, batches and stored responses, with both SDKs: only for the client whose own model it is."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
import uvicorn
from fault_server import cut, http
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import vendors
from redraft.errors import ConfigError
from redraft.gateway.config import GatewayConfig, GatewayLimits, ServedModel, parse_config
from redraft.gateway.keys import KeyLimits, KeyRing
from redraft.gateway.server import bind_socket, url_of
from redraft.gateway.stored_endpoints import STORED_PATHS, find_stored_path

from .running import http_client, running

KEY = "sk-canary-4711-0815"
LINES = b'{"custom_id": "a", "result": {"type": "succeeded"}}\n'
FILE = {
    "id": "file-1",
    "object": "file",
    "type": "file",
    "bytes": 3,
    "created_at": 1,
    "filename": "a.jsonl",
    "purpose": "batch",
    "status": "processed",
}
BATCH = {
    "id": "batch_1",
    "object": "batch",
    "type": "message_batch",
    "endpoint": "/v1/chat/completions",
    "input_file_id": "file-1",
    "completion_window": "24h",
    "status": "completed",
    "created_at": 1,
}
RESPONSE = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": []}


@dataclass
class Provider:
    """A provider that stores things; `requests`: (method, path, query, content type, body, headers)."""

    url: str = ""
    requests: list = field(default_factory=list)

    async def answer(self, request):
        headers, path = request.headers, request.url.path
        body = await request.body()
        self.requests.append(
            (request.method, path, request.url.query, headers.get("content-type"), body, headers)
        )
        if path.endswith(("/content", "/results")):
            return Response(LINES * 1000, media_type="application/x-jsonl")
        if path.endswith("/missing"):
            error = {"message": f"no such file for {KEY}", "type": "invalid_request_error"}
            return JSONResponse({"error": error}, 404)
        kind = path.split("/")[2 if "messages" not in path else 3]
        results = f"{self.url}/messages/batches/batch_1/results"
        item = {
            "files": FILE,
            "batches": {**BATCH, **({"results_url": results} if "messages" in path else {})},
            "responses": RESPONSE,
        }[kind]
        if request.method == "DELETE":
            return JSONResponse({**item, "deleted": True})
        is_list = request.method == "GET" and path.endswith((f"/{kind}", "/input_items"))
        lists = {"object": "list", "data": [item], "has_more": False}
        return JSONResponse(lists if is_list else item)


@asynccontextmanager
async def provider():
    """Run a provider; yields it."""
    each = Provider()
    app = Starlette(
        routes=[Route("/v1/{path:path}", each.answer, methods=["GET", "POST", "DELETE"])]
    )
    with bind_socket("127.0.0.1", 0) as listener:
        each.url = url_of(listener)
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield each
        finally:
            server.should_exit = True
            await serving


def add_key(folder, name, profiles=(), **limits):
    """Add a key and return its secret."""
    with KeyRing(folder) as ring:
        return ring.add(name, KeyLimits(**limits), profiles)[1]


def config_of(folder, url, **owners):
    """Return the configuration of a gateway with models of the given owners, each with a key of its
    own; those whose names begin with "claude" speak Anthropic's protocol.
    """
    models = {
        name: ServedModel(
            name,
            url,
            f"{name}-real",
            "anthropic" if name.startswith("claude") else "openai",
            f"KEY_{name.upper()}",
            owner=owner,
        )
        for name, owner in owners.items()
    }
    return GatewayConfig(folder, models, port=0)


def keys_of(config):
    """Return the environment with the keys of the models."""
    return {model.key_env: KEY for model in config.models.values()}


def bearer(key):
    return {"authorization": f"Bearer {key}"}


async def test_the_sdk_of_openai(tmp_path):
    """Files and batches are created, listed, read and deleted as with OpenAI itself; a stored
    response, too.
    """
    anna = add_key(tmp_path, "anna")
    async with provider() as upstream:
        config = config_of(tmp_path, upstream.url, mine="anna", claude="anna")
        async with running(config, keys_of(config)) as (url, _):
            client = vendors.AsyncOpenAI(base_url=url, api_key=anna, max_retries=0)
            async with client:
                sent = await client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
                assert sent.id == "file-1"
                assert [file.id async for file in await client.files.list(limit=2)] == ["file-1"]
                assert (await client.files.retrieve("file-1")).filename == "a.jsonl"
                content = await client.files.content("file-1")
                assert content.content == LINES * 1000
                assert (await client.files.delete("file-1")).deleted
                batch = await client.batches.create(
                    completion_window="24h", endpoint="/v1/chat/completions", input_file_id="file-1"
                )
                assert (await client.batches.retrieve(batch.id)).status == "completed"
                assert [each.id async for each in await client.batches.list()] == ["batch_1"]
                await client.batches.cancel("batch_1")
                assert (await client.responses.retrieve("resp_1")).id == "resp_1"
                await client.responses.input_items.list("resp_1")
                await client.responses.cancel("resp_1")
                await client.responses.delete("resp_1")
                with pytest.raises(vendors.openai.NotFoundError, match="no such file") as caught:
                    await client.files.retrieve("missing")
                assert "4711" not in str(caught.value)
    method, path, _, kind, body, headers = upstream.requests[0]
    assert (method, path) == ("POST", "/v1/files")
    assert kind.startswith("multipart/form-data; boundary=") and b"a.jsonl" in body
    assert headers["authorization"] == f"Bearer {KEY}"
    assert upstream.requests[1][:3] == ("GET", "/v1/files", "limit=2")
    assert json.loads(upstream.requests[5][4])["input_file_id"] == "file-1"


async def test_the_sdk_of_anthropic(tmp_path):
    """Batches of messages, whose results are read through the gateway, and files."""
    anna = add_key(tmp_path, "anna")
    async with provider() as upstream:
        config = config_of(tmp_path, upstream.url, mine="anna", claude="anna")
        async with running(config, keys_of(config)) as (url, _):
            client = vendors.AsyncAnthropic(
                base_url=url.removesuffix("/v1"), api_key=anna, max_retries=0
            )
            async with client:
                batch = await client.messages.batches.create(
                    requests=[
                        {
                            "custom_id": "a",
                            "params": {
                                "model": "claude-real",
                                "max_tokens": 5,
                                "messages": [{"role": "user", "content": "x"}],
                            },
                        }
                    ]
                )
                assert batch.results_url == "/v1/messages/batches/batch_1/results"
                listed = [each async for each in await client.messages.batches.list()]
                assert [each.results_url for each in listed] == [batch.results_url]
                results = await client.messages.batches.results("batch_1")
                assert [each.custom_id async for each in results][:2] == ["a", "a"]
                await client.messages.batches.cancel("batch_1")
                await client.messages.batches.delete("batch_1")
                assert (await client.beta.files.retrieve_metadata("file-1")).id == "file-1"
    assert json.loads(upstream.requests[0][4])["requests"][0]["params"]["model"] == "claude-real"
    assert all(headers["x-api-key"] == KEY for *_, headers in upstream.requests)


CONCRETE = [
    (method, each.pattern.pattern.replace("[A-Za-z0-9_-]{1,200}", "x1"))
    for each in STORED_PATHS
    for method in each.methods
]


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize(("method", "path"), CONCRETE)
async def test_nothing_is_there_without_a_model_of_ones_own(tmp_path, faults, method, path):
    """Nor for another key, one with a budget, or without a key. The message says what the operator
    may set.
    """
    anna, ben = add_key(tmp_path, "anna"), add_key(tmp_path, "ben")
    rich = add_key(tmp_path, "rich", usd_per_month=100.0)
    counted = add_key(tmp_path, "counted", calls_per_day=5)
    config = config_of(
        tmp_path, faults.url, shared=None, m1="anna", claude="anna", m2="rich", claude2="rich"
    )
    more = config_of(tmp_path, faults.url, m3="counted", claude3="counted")
    config = replace(config, models={**config.models, **more.models})
    expected = {
        (ben, None): (404, "no_own_model"),
        (ben, "pass/m1"): (403, "no_own_model"),
        (ben, "pass/shared"): (403, "no_own_model"),
        (anna, "pass/none"): (403, "no_own_model"),
        (rich, None): (403, "key_has_budget"),
        (counted, None): (403, "key_has_budget"),
        ("rd-wrong", None): (401, "invalid_api_key"),
    }
    async with (
        running(config, keys_of(config)) as (url, _),
        http_client(url.removesuffix("/v1")) as client,
    ):
        for (key, model), (status, code) in expected.items():
            named = {"x-redraft-model": model} if model else {}
            reply = await client.request(method, path, headers={**bearer(key), **named})
            error = reply.json()["error"]
            assert reply.status_code == status, (key, model)
            if "messages" not in path:
                assert error["code"] == code
            if code == "no_own_model":
                assert "owner = " in error["message"] and "[models.NAME]" in error["message"]
    assert not faults.requests


async def test_which_model_a_request_is_for(tmp_path, faults):
    """The only one of the client, by the protocol of its SDK; of several, that which a header
    names.
    """
    anna = add_key(tmp_path, "anna")
    faults.says(http(FILE))
    config = config_of(tmp_path, faults.url, one="anna", two="anna", claude="anna")
    env = {"KEY_ONE": "sk-one", "KEY_TWO": "sk-two", "KEY_CLAUDE": "sk-claude"}
    async with running(config, env) as (url, gateway), http_client(url) as client:
        unclear = await client.get("/files", headers=bearer(anna))
        assert unclear.status_code == 400
        assert (
            "x-redraft-model with one of pass/one, pass/two" in unclear.json()["error"]["message"]
        )
        named = {**bearer(anna), "x-redraft-model": "pass/two"}
        reply = await client.get("/files", headers=named)
        assert reply.status_code == 200
        facts = gateway.store.find(reply.headers["x-redraft-trace-id"]).facts
        assert (facts.model, facts.wire, facts.calls) == ("pass/two", "files", 0)
        await client.get("/files", headers={**bearer(anna), "anthropic-version": "2023-06-01"})
    sent = [request.headers for request in faults.requests]
    assert [sent[0].get("authorization"), sent[1].get("x-api-key")] == [
        "Bearer sk-two",
        "sk-claude",
    ]


async def test_a_model_with_an_owner_is_for_that_key_alone(tmp_path, faults):
    """Other keys neither see nor use it: by an ID they could read what is stored there."""
    anna, ben = add_key(tmp_path, "anna"), add_key(tmp_path, "ben")
    config = config_of(tmp_path, faults.url, mine="anna", shared=None)
    async with running(config, keys_of(config)) as (url, _), http_client(url) as client:
        seen = [
            [
                each["id"]
                for each in (await client.get("/models", headers=bearer(key))).json()["data"]
            ]
            for key in (anna, ben)
        ]
        assert seen == [["pass/mine", "pass/shared"], ["pass/shared"]]
        body = {"model": "pass/mine", "messages": [{"role": "user", "content": "x"}]}
        for path in ("/chat/completions", "/embeddings"):
            reply = await client.post(path, json=body, headers=bearer(ben))
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, "model_not_allowed")
        missing = await client.post("/chat/completions", json={"model": "x"}, headers=bearer(ben))
        assert "pass/mine" not in missing.json()["error"]["message"]
    assert not faults.requests


async def test_a_file_that_breaks_off(tmp_path, faults):
    """Its reader notices, since the reply has no end."""
    anna = add_key(tmp_path, "anna")
    whole = http(LINES * 1000, content_type="application/x-jsonl")
    faults.says(cut(whole, 20_000))
    config = config_of(tmp_path, faults.url, mine="anna")
    async with running(config, keys_of(config)) as (url, _), http_client(url) as client:
        with pytest.raises(Exception, match="(?i)peer|incomplete|closed"):
            await client.get("/files/file-1/content", headers=bearer(anna))


async def test_uploads_are_bounded(tmp_path, faults):
    anna = add_key(tmp_path, "anna")
    config = config_of(tmp_path, faults.url, mine="anna")
    config = replace(config, limits=GatewayLimits(max_body=1000))
    async with running(config, keys_of(config)) as (url, _), http_client(url) as client:
        reply = await client.post("/files", content=b"x" * 2000, headers=bearer(anna))
        assert reply.status_code == 413
        reply = await client.get("/files", params={"after": "x" * 2001}, headers=bearer(anna))
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "query")
        reply = await client.put("/files", headers=bearer(anna))
        assert (reply.status_code, reply.headers["allow"]) == (405, "GET, POST")
    assert not faults.requests


@pytest.mark.parametrize(
    "path",
    [
        "/v1/files/../models",
        "/v1/files/a/../b",
        "/v1/files/a b",
        "/v1/files/",
        "/v1/files/a/content/b",
        "/v1/files/ä",
        "/v1/files/a\n",
        f"/v1/files/{'x' * 201}",
        "/v1/batches/a/results",
        "/v1/responses",
        "/v1/messages",
    ],
)
def test_other_paths(path):
    """No ID leads to another path of the model's server."""
    assert find_stored_path(path) is None


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"a": {"owner": "anna"}, "b": {}}, "models.a.owner: models.b uses the key in KEY"),
        ({"b": {}, "a": {"owner": "anna"}}, "models.a.owner: models.b uses the key in KEY"),
        ({"a": {"owner": "anna"}, "b": {"owner": "ben"}}, "uses the key in KEY"),
        ({"a": {"owner": " "}}, "models.a.owner"),
        ({"a": {"owner": 7}}, "models.a.owner"),
    ],
)
def test_a_key_of_a_provider_has_one_owner(tmp_path, tables, message):
    """Else the models of others would read and list what is stored for one."""
    base = {"url": "http://127.0.0.1:9/v1", "key-env": "KEY"}
    config = {"models": {name: {**base, **table} for name, table in tables.items()}}
    with pytest.raises(ConfigError, match=message):
        parse_config(config, tmp_path, {"KEY": "x"})


def test_models_of_one_owner_may_share_a_key(tmp_path):
    base = {"url": "http://127.0.0.1:9/v1", "key-env": "KEY", "owner": "anna"}
    config = parse_config({"models": {"a": base, "b": base}}, tmp_path, {"KEY": "x"})
    assert [model.owner for model in config.models.values()] == ["anna", "anna"]
