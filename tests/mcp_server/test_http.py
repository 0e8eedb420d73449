"""The tools over HTTP, most in a process of their own: keys, budgets, hosts, cancellation."""

import asyncio
import subprocess
import threading
from contextlib import suppress
from http.client import HTTPConnection
from types import SimpleNamespace
from urllib.parse import urlsplit

import aiohttp
import anyio
import httpx
import pytest
from chat_server import writer_and_judge

from in_process import run_in_process
from redraft import Budget
from redraft.gateway.keys import Caller, KeyLimits, KeyRing

from .conftest import PROGRAM, http_client, http_server, http_server_inside

GRADE = {"response": "One, two", "requirements": ["no_commas"]}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
HEADERS = {"accept": "application/json, text/event-stream"}


def add_key(folder, name="agent", limits=KeyLimits(), profiles=()):
    with KeyRing(folder) as ring:
        return ring.add(name, limits, profiles)[1]


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_tools_work_over_http(tmp_path, serve, mode):
    """Without keys it is open to this machine; refining reports progress in both forms of the
    protocol.
    """
    server, heard = serve(writer_and_judge(["Good."], [5])), []

    async def hear(progress, total, message):
        heard.append(message)

    async with http_server_inside(tmp_path, server.model) as url:
        async with http_client(url, mode=mode) as client:
            assert len((await client.list_tools()).tools) == 4
            result = await client.call_tool("refine", {"prompt": "Say it"}, progress_callback=hear)
            assert result.structured_content["answer"] == "Good."
            assert heard[-1].startswith("judge: 1.00"), heard
            assert (await client.call_tool("grade", GRADE)).structured_content["broken"] == [
                "no_commas"
            ]


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_cancellation_over_http(tmp_path, silent_model, mode):
    """When the client cancels, the call to the model ends at once."""
    async with http_server_inside(tmp_path, silent_model.model) as url:
        async with http_client(url, mode=mode) as client:
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "refine", {"prompt": "Say it"})
                assert await asyncio.to_thread(silent_model.arrived.wait, 60)
                group.cancel_scope.cancel()
            assert await asyncio.to_thread(silent_model.left.wait, 60)
            assert not (await client.call_tool("grade", GRADE)).is_error


@pytest.mark.slow
async def test_once_there_is_a_key_each_request_needs_one(tmp_path):
    """A missing or wrong key is a 401; a session cannot be continued with the key of somebody else;
    a revoked key ends it.
    """
    key, other = add_key(tmp_path), add_key(tmp_path, "other")
    with (
        http_server("--folder", tmp_path, "--model", "none") as url,
        httpx.Client(timeout=60) as http,
    ):
        for headers in ({}, {"authorization": "Bearer rd-wrong"}):
            assert (
                http.post(url, json=INITIALIZE, headers={**HEADERS, **headers}).status_code == 401
            )
        own = {**HEADERS, "authorization": f"Bearer {key}"}
        session = http.post(url, json=INITIALIZE, headers=own).headers["mcp-session-id"]
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        assert (
            http.post(url, json=listing, headers={**own, "mcp-session-id": session}).status_code
            == 200
        )
        foreign = {**HEADERS, "x-api-key": other, "mcp-session-id": session}
        assert http.post(url, json=listing, headers=foreign).status_code == 404
        with KeyRing(tmp_path) as ring:
            ring.revoke("agent")
        await asyncio.sleep(0.6)  # servers look for changed keys four times a second
        assert (
            http.post(url, json=listing, headers={**own, "mcp-session-id": session}).status_code
            == 401
        )
        assert http.get(url.replace("/mcp", "/healthz")).text == "ok"


@pytest.fixture(scope="module")
def open_server(tmp_path_factory):
    """The URL of a server without keys and without a model, which has two names."""
    with http_server(
        "--folder",
        tmp_path_factory.mktemp("open"),
        "--model",
        "none",
        "--allow-host",
        "agents.example",
    ) as url:
        yield url


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"origin": "https://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"host": "agents.example"}, 200),
    ],
)
def test_pages_and_foreign_names_reach_nothing(open_server, headers, status):
    """The Host header must name the server, and no page of a browser may call it."""
    reply = httpx.post(open_server, json=INITIALIZE, headers={**HEADERS, **headers})
    assert reply.status_code == status
    assert ("; --allow-host allows others" in reply.text) == (status == 421)
    assert "configuration" not in reply.text


@pytest.mark.slow
async def test_a_budget_of_a_key_is_kept(tmp_path, serve):
    """Calls are counted by what they used; once the rest is not enough, the tool says so, and no
    call is made.
    """
    server = serve(writer_and_judge(["Good."], [5]))
    with KeyRing(tmp_path) as ring:
        stored, key = ring.add("agent", KeyLimits(calls_per_day=6))
    with http_server("--folder", tmp_path, "--model", server.model, "--budget-calls", "4") as url:
        async with http_client(url, key) as client:
            first = await client.call_tool("refine", {"prompt": "Say it"})
            used = first.structured_content["usage"]["calls"]
            assert used == server.calls <= 4
            results = [await client.call_tool("refine", {"prompt": "Say it"}) for _ in range(3)]
            refused = [result for result in results if result.is_error]
            assert refused
            assert "may make 6 calls a day" in refused[-1].content[0].text
            assert server.calls <= 6
    with KeyRing(tmp_path) as ring:
        assert ring.spending("day", stored).calls == server.calls


@pytest.mark.parametrize("limits", [{"usd_per_day": 1.0}, {"usd_per_month": 1.0}])
def test_a_key_with_a_limit_in_usd_needs_calls_of_bounded_cost(limits):
    """Without --budget-usd a call may cost anything, so it is refused; a limit of calls alone needs
    none.
    """
    from redraft.mcp_server.http import CallRefusedError, _check_key

    unbounded, bounded = (
        SimpleNamespace(settings=each) for each in ({}, {"budget": Budget(usd=0.1)})
    )
    with pytest.raises(CallRefusedError, match="--budget-usd"):
        _check_key(Caller("1", "agent", limits=KeyLimits(**limits)), unbounded)
    _check_key(Caller("1", "agent", limits=KeyLimits(**limits)), bounded)
    _check_key(Caller("1", "agent", limits=KeyLimits(calls_per_month=6)), unbounded)


@pytest.mark.slow
async def test_a_key_for_models_of_the_gateway_calls_no_tool(tmp_path):
    """A restricted key may list the tools, and gets an error from each."""
    key = add_key(tmp_path, profiles=("refine/fast",))
    with http_server("--folder", tmp_path, "--model", "none") as url:
        async with http_client(url, key) as client:
            result = await client.call_tool("grade", GRADE)
    assert result.is_error
    assert "is for refine/fast" in result.content[0].text


@pytest.mark.slow
def test_a_public_address_without_a_key_is_refused(tmp_path):
    done = run_in_process(
        [
            "mcp",
            "--http",
            "--port",
            "0",
            "--host",
            "0.0.0.0",
            "--folder",
            str(tmp_path),
            "--model",
            "none",
        ]
    )
    assert done.returncode == 2
    assert "no API key is needed: add one" in done.err


@pytest.mark.slow
def test_a_public_address_for_everyone(tmp_path):
    """With --insecure."""
    with http_server(
        "--host", "0.0.0.0", "--insecure", "--folder", tmp_path, "--model", "none"
    ) as url:
        assert httpx.post(url, json=INITIALIZE, headers=HEADERS).status_code == 200


@pytest.mark.slow
async def test_a_large_body_is_refused(open_server):
    """More than the limit is not read, whether it says its length or not."""

    async def parts():
        for _ in range(200):
            yield b" " * 2**16

    # if the server has closed the connection before the rest was sent
    with suppress(aiohttp.ClientConnectionError):
        async with (
            aiohttp.ClientSession() as http,
            http.post(open_server, data=parts(), headers=HEADERS) as reply,
        ):
            assert reply.status == 413
    connection = HTTPConnection(urlsplit(open_server).netloc, timeout=60)
    connection.putrequest("POST", "/mcp")
    connection.putheader("Content-Length", str(9 * 2**20))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def post_and_ignore(url, request, headers):
    with suppress(httpx.HTTPError):
        httpx.post(url, json=request, headers=headers, timeout=60)


@pytest.mark.slow
async def test_the_end_of_the_server_cancels_what_is_not_finished(tmp_path, silent_model):
    """SIGTERM closes the connection to the model, and the process ends with 0, as `http_server`
    asserts.
    """
    with http_server("--folder", tmp_path, "--model", silent_model.model) as url:
        call = {"name": "refine", "arguments": {"prompt": "Say it"}}
        session = httpx.post(url, json=INITIALIZE, headers=HEADERS).headers["mcp-session-id"]
        request = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
        threading.Thread(
            target=post_and_ignore, args=(url, request, {**HEADERS, "mcp-session-id": session})
        ).start()
        assert await asyncio.to_thread(silent_model.arrived.wait, 60)
    assert await asyncio.to_thread(silent_model.left.wait, 60)


@pytest.mark.slow
def test_one_server_for_a_folder(tmp_path):
    """A second one would not know what the first has reserved of the budgets."""
    with http_server("--folder", tmp_path, "--model", "none"):
        command = [
            *PROGRAM,
            "mcp",
            "--http",
            "--port",
            "0",
            "--folder",
            str(tmp_path),
            "--model",
            "none",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "redraft mcp" in done.stderr
