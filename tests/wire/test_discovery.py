"""Finding a model: the environment first, then servers on this machine."""

from __future__ import annotations

import pytest

from redraft.errors import ConfigError
from redraft.models import Chat, Timeouts, discovery, find_model
from redraft.models.discovery import LocalServer, choose_model

from . import fault_server as fs

KEY = "sk-canary-0123456789"
PATIENT = Timeouts(connect=60, idle=60, total=60)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine is no reason to miss a server."""
    for name, value in (
        ("CONNECT_SECONDS", 60),
        ("LOCAL_TIMEOUTS", PATIENT),
        ("REMOTE_TIMEOUTS", PATIENT),
    ):
        monkeypatch.setattr(discovery, name, value)


@pytest.fixture
def closed_address(closed_url):
    """An address without a listener."""
    return LocalServer("Nobody", closed_url, "start it with `nobody`")


def at(server, name="Some"):
    return LocalServer(name, server.url, "pull a model")


async def test_no_model_found(closed_address):
    """Every searched location says what it lacks and how to get it."""
    found = await find_model({}, servers=[closed_address])
    assert found.model is None
    lines = str(found).splitlines()
    assert lines[0].startswith("REDRAFT_MODEL: not found, set it to a model")
    assert lines[1] == "https://api.openai.com/v1: not found, set OPENAI_API_KEY"
    assert lines[2] == f"Nobody ({closed_address.url}): not found, start it with `nobody`"


async def test_redraft_model_comes_first(faults):
    """REDRAFT_MODEL wins, and no other location is contacted."""
    env = {"REDRAFT_MODEL": "ollama:llama3.2", "OPENAI_BASE_URL": faults.url, "OPENAI_API_KEY": KEY}
    found = await find_model(env, servers=[at(faults)])
    assert (found.model.name, found.model.base_url) == ("llama3.2", "http://127.0.0.1:11434/v1")
    assert len(found.locations) == 1
    assert not faults.requests


async def test_invalid_redraft_model_is_an_error():
    """Discovery does not fall back to another model."""
    with pytest.raises(ConfigError, match="did you mean"):
        await find_model({"REDRAFT_MODEL": "gpt-4o"}, servers=[])


async def test_configured_endpoint_is_listed_with_its_key(faults):
    """OPENAI_BASE_URL is asked for its models with OPENAI_API_KEY, and a small known model is
    preferred.
    """
    faults.says(fs.models("text-embedding-3-small", "gpt-4o", "gpt-4o-mini"))
    found = await find_model({"OPENAI_BASE_URL": faults.url, "OPENAI_API_KEY": KEY}, servers=[])
    assert (found.model.name, found.model.base_url) == ("gpt-4o-mini", faults.url)
    assert found.model.has_key
    assert faults.requests[0].path == "/v1/models"
    assert faults.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in f"{found} {found!r}"


async def test_openai_without_a_model_list():
    """OpenAI's own endpoint is usable with a small known model if it cannot be listed."""
    found = await find_model({"OPENAI_API_KEY": KEY}, servers=[])
    assert (found.model.name, found.model.host) == ("gpt-4o-mini", "api.openai.com")


async def test_rejected_key_is_reported(faults):
    """The endpoint is not used, and the key is not shown."""
    faults.says(fs.error(401, f"wrong key {KEY}"))
    found = await find_model({"OPENAI_BASE_URL": faults.url, "OPENAI_API_KEY": KEY}, servers=[])
    assert found.model is None
    assert "status 401: wrong key ***" in str(found)


def escaped(text):
    return "".join(f"\\u{ord(c):04x}" for c in text).encode()


ECHOES = {
    "an error": lambda key: fs.error(401, f"wrong key {key}"),
    "other JSON": lambda key: fs.http({"got": key}),
    "other JSON, escaped": lambda key: fs.http(b'{"got": "' + escaped(key) + b'"}'),
    "a text": lambda key: fs.http({"data": f"key {key}"}),
    "a page": lambda key: fs.http(f"<html>{key}</html>".encode(), content_type="text/html"),
    "a redirect": lambda key: fs.http(b"", 302, Location=f"http://elsewhere.example/?key={key}"),
}


@pytest.mark.parametrize("key", [KEY, "pw12"], ids=["a key", "a short key"])
@pytest.mark.parametrize("what", ECHOES)
async def test_what_an_endpoint_says_is_shown_without_its_key(faults, what, key):
    faults.says(ECHOES[what](key))
    env = {"OPENAI_BASE_URL": faults.url, "OPENAI_API_KEY": key}
    found = await find_model(env, servers=[])
    assert found.model is None
    assert key not in str(found)


async def test_local_server_is_found(real, faults, closed_address, ask):
    """The first server in the list with a chat model is used, and no other server's key is sent to
    it.
    """
    faults.says(
        fs.models("nomic-embed-text", "llama3.2", "qwen3"), fs.models("llama3.2"), fs.good()
    )
    found = await find_model({}, servers=[closed_address, at(faults, "A"), at(faults, "B")])
    assert isinstance(found.model, Chat)
    assert found.model.name == "llama3.2"
    assert [p.is_available for p in found.locations[2:]] == [False, True, True]
    assert (await found.model.complete(ask())).text == "fine"
    assert all("authorization" not in sent.headers for sent in faults.requests)


async def test_real_server(real):
    """llama.cpp is found with its key, and without a key the location says that one is needed."""
    without = await find_model({}, servers=[LocalServer("llama.cpp", real.url, "")])
    assert without.model is None
    assert "it requires a key" in without.locations[2].summary
    found = await find_model({"OPENAI_BASE_URL": real.url, "OPENAI_API_KEY": real.key}, servers=[])
    assert found.model.name in found.locations[1].models


NO_SERVERS = {
    "page": (fs.http(b"<html>hello</html>", content_type="text/html"), "web page"),
    "other JSON": (fs.http({"hello": 1}), "not a model server"),
    "null": (fs.http(None), "not a model server"),
    "odd list": (fs.http({"data": [1, 2]}), "not a model server"),
    "404": (fs.http(b"", 404), "status 404"),
    "401": (fs.error(401, "no key"), "requires a key"),
    "redirect": (fs.http(b"", 302, Location="http://elsewhere.example/"), "302"),
    "not HTTP": (fs.send_and_close(b"220 mail ready\r\n\r\n"), "not HTTP"),
    "our gateway": (fs.models("llama3.2", owned_by="redraft"), "own gateway"),
    "our gateway's header": (fs.models("llama3.2", x_redraft="0.1"), "own gateway"),
    "no models": (fs.models(), "no chat model: pull a model"),
    "only embeddings": (fs.models("text-embedding-nomic", "bge-m3"), "no chat model"),
    "silence": (fs.silence, "waiting for an answer"),
    "drip": (fs.drip(fs.models("llama3.2"), 0.05), "still waiting"),
}


@pytest.mark.parametrize("name", NO_SERVERS)
async def test_other_servers_are_ignored(faults, monkeypatch, name):
    """A server of another kind is not used and does not delay the search."""
    does, words = NO_SERVERS[name]
    if name in ("silence", "drip"):
        monkeypatch.setattr(discovery, "LOCAL_TIMEOUTS", Timeouts(connect=60, idle=1.0, total=1.0))
    found = await find_model({}, servers=[at(faults.says(does))])
    assert found.model is None
    assert words in found.locations[-1].summary


async def test_listing_searches_every_location(faults):
    """For a listing all locations are searched, whatever is found first."""
    faults.says(fs.models("llama3.2\x1b[31m"))
    env = {"REDRAFT_MODEL": "vllm:x", "OPENAI_BASE_URL": faults.url}
    found = await find_model(env, servers=[at(faults)], search_all=True)
    assert found.model.name == "x"
    # no server answers at vLLM's port
    assert [p.is_available for p in found.locations] == [False, True, True]
    assert all(line.isprintable() for line in str(found).splitlines())


def test_choice_of_a_model():
    """Small known models come first, then the first that chats; embedding, image and speech models
    are skipped.
    """
    assert choose_model(["gpt-4o", "gpt-4o-mini"]) == "gpt-4o-mini"
    assert (
        choose_model(["whisper-1", "dall-e-3", "tts-1", "mistral-small", "zephyr"])
        == "mistral-small"
    )
    assert (
        choose_model(
            ["nomic-embed-text:latest", "BAAI/bge-m3", "all-minilm", "gpt-4o-realtime-preview"]
        )
        is None
    )
    assert choose_model([]) is None


async def test_named_model_is_listed(faults):
    """`redraft models` contacts it and reports a missing name, a silent server or nonsense without
    raising.
    """

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
