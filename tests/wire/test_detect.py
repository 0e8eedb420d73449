"""Looking for a model: the environment first, then servers on this machine."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import pytest

from redraft.errors import ConfigError
from redraft.models import Chat, find_model
from redraft.models.discovery import LocalServer, choose_model

from . import fault_server as fs

KEY = "sk-canary-0123456789"


@pytest.fixture
def nowhere():
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        return LocalServer("Nobody", f"http://127.0.0.1:{gone.getsockname()[1]}/v1", "start it with `nobody`")


def at(server, name="Some"):
    return LocalServer(name, server.url, "pull a model")


async def test_nothing_found_says_what_each_place_needs(nowhere):
    """With no model anywhere, every place that was looked at says what it lacks, and how to have it."""
    found = await find_model({}, servers=[nowhere])
    assert found.model is None
    lines = str(found).splitlines()
    assert lines[0].startswith("REDRAFT_MODEL: not found, set it to a model")
    assert lines[1] == "https://api.openai.com/v1: not found, set OPENAI_API_KEY"
    assert lines[2] == f"Nobody ({nowhere.url}): not found, start it with `nobody`"


async def test_redraft_model_comes_first(faults):
    """REDRAFT_MODEL wins, and nothing else is asked."""
    env = {"REDRAFT_MODEL": "ollama:llama3.2", "OPENAI_BASE_URL": faults.url, "OPENAI_API_KEY": KEY}
    found = await find_model(env, servers=[at(faults)])
    assert (found.model.name, found.model.base_url) == ("llama3.2", "http://127.0.0.1:11434/v1")
    assert len(found.locations) == 1
    assert not faults.requests


async def test_redraft_model_that_says_nothing():
    """A REDRAFT_MODEL that cannot be is an error, not a reason to take something else."""
    with pytest.raises(ConfigError, match="did you mean"):
        await find_model({"REDRAFT_MODEL": "gpt-4o"}, servers=[])


async def test_the_configured_endpoint_is_asked_with_its_key(faults):
    """OPENAI_BASE_URL is asked for its models with OPENAI_API_KEY, and a small known one is preferred."""
    faults.says(fs.models("text-embedding-3-small", "gpt-4o", "gpt-4o-mini"))
    found = await find_model({"OPENAI_BASE_URL": faults.url, "OPENAI_API_KEY": KEY}, servers=[])
    assert (found.model.name, found.model.base_url) == ("gpt-4o-mini", faults.url)
    assert found.model.has_key
    assert faults.requests[0].path == "/v1/models"
    assert faults.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in f"{found} {found!r}"


async def test_openai_without_its_list():
    """OpenAI's own endpoint is usable though its list cannot be had: a small known model is taken."""
    found = await find_model({"OPENAI_API_KEY": KEY}, servers=[])
    assert (found.model.name, found.model.host) == ("gpt-4o-mini", "api.openai.com")


async def test_a_refused_key_is_told(faults):
    """An endpoint that refuses the key is not used, and the key is not shown."""
    faults.says(fs.error(401, f"wrong key {KEY}"))
    found = await find_model({"OPENAI_BASE_URL": faults.url, "OPENAI_API_KEY": KEY}, servers=[])
    assert found.model is None
    assert "status 401: wrong key ***" in str(found)


async def test_a_local_server_is_found(real, faults, nowhere, ask):
    """The first server with a model that chats is taken, in the order of the list; it gets no foreign key."""
    faults.says(fs.models("nomic-embed-text", "llama3.2", "qwen3"), fs.models("llama3.2"), fs.good())
    found = await find_model({}, servers=[nowhere, at(faults, "A"), at(faults, "B")])
    assert isinstance(found.model, Chat)
    assert found.model.name == "llama3.2"
    assert [p.is_available for p in found.locations[2:]] == [False, True, True]
    assert (await found.model.complete(ask())).text == "fine"
    assert all("authorization" not in sent.headers for sent in faults.requests)


async def test_a_real_server(real):
    """llama.cpp is found when it has its key; without, it is told that it wants one."""
    without = await find_model({}, servers=[LocalServer("llama.cpp", real.url, "")])
    assert without.model is None
    assert "it wants a key" in without.locations[2].summary
    found = await find_model({"OPENAI_BASE_URL": real.url, "OPENAI_API_KEY": real.key}, servers=[])
    assert found.model.name in found.locations[1].models


NO_SERVERS = {
    "page": (fs.http(b"<html>hello</html>", content_type="text/html"), "web page"),
    "other JSON": (fs.http({"hello": 1}), "not a model server"),
    "null": (fs.http(None), "not a model server"),
    "odd list": (fs.http({"data": [1, 2]}), "not a model server"),
    "404": (fs.http(b"", 404), "status 404"),
    "401": (fs.error(401, "no key"), "wants a key"),
    "redirect": (fs.http(b"", 302, Location="http://elsewhere.example/"), "302"),
    "not HTTP": (fs.closing(b"220 mail ready\r\n\r\n"), "not HTTP"),
    "our gateway": (fs.models("llama3.2", owned_by="redraft"), "own gateway"),
    "our gateway's header": (fs.models("llama3.2", x_redraft="0.1"), "own gateway"),
    "no models": (fs.models(), "no chat model: pull a model"),
    "only embeddings": (fs.models("text-embedding-nomic", "bge-m3"), "no chat model"),
    "silence": (fs.silence, "waiting for an answer"),
    "drip": (fs.drip(fs.models("llama3.2"), 0.05), "still waiting"),
}


@pytest.mark.parametrize("name", NO_SERVERS)
async def test_what_is_no_model_server(faults, name):
    """Whatever else listens there is not taken for a model server, and does not hold up the search."""
    does, words = NO_SERVERS[name]
    start = asyncio.get_running_loop().time()
    found = await find_model({}, servers=[at(faults.says(does))])
    assert found.model is None
    assert words in found.locations[-1].summary
    assert asyncio.get_running_loop().time() - start < 2.0


async def test_looking_everywhere(faults):
    """For a listing, all places are looked at, whatever is found first."""
    faults.says(fs.models("llama3.2\x1b[31m"))
    env = {"REDRAFT_MODEL": "vllm:x", "OPENAI_BASE_URL": faults.url}
    found = await find_model(env, servers=[at(faults)], search_all=True)
    assert found.model.name == "x"
    assert [p.is_available for p in found.locations] == [False, True, True]  # nobody answers where vLLM would
    assert all(line.isprintable() for line in str(found).splitlines())


def test_choosing():
    """Small known models first, else the first that chats; none that embeds, draws, speaks or listens."""
    assert choose_model(["gpt-4o", "gpt-4o-mini"]) == "gpt-4o-mini"
    assert choose_model(["whisper-1", "dall-e-3", "tts-1", "mistral-small", "zephyr"]) == "mistral-small"
    assert choose_model(["nomic-embed-text:latest", "BAAI/bge-m3", "all-minilm", "gpt-4o-realtime-preview"]) is None
    assert choose_model([]) is None


def test_looking_where_nobody_is_costs_no_import(nowhere):
    """Where nobody listens, the HTTP library is not even imported."""
    code = (
        "import asyncio, sys; from redraft.models.discovery import LocalServer, find_model; "
        f"print((asyncio.run(find_model({{}}, servers=[LocalServer('x', {nowhere.url!r}, '')])).model, 'aiohttp' in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "(None, False)"


async def test_a_named_model_is_met_where_people_look(faults):
    """`redraft models` contacts it: an address without a name, one that does not answer, nonsense are told of, not raised."""

    async def place(name):
        return (await find_model({"REDRAFT_MODEL": name}, servers=(), search_all=True)).locations[0]

    assert not (await place("http://127.0.0.1:9/v1#x")).is_available
    assert "nonsense" in (await place("nonsense")).note
    assert not (await place("nonsense")).is_available
    faults.says(fs.models("other"))
    seen = await place(f"{faults.url}#x")
    assert seen.is_available
    assert "other" in seen.note
    faults.says(fs.models("other"))
    seen = await place(faults.url)
    assert (seen.is_available, seen.models) == (False, ("other",))
