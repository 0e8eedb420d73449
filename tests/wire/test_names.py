"""From names to models, and where keys go: to the host they belong to, and nowhere else."""

from __future__ import annotations

import pickle

import pytest

from redraft.errors import ConfigError, ModelError
from redraft.models import Chat, ScriptedModel, connect

from . import fault_server as fs

CANARY = "sk-canary-0123456789"

ADDRESSES = {
    "openai:gpt-4o": ({"OPENAI_API_KEY": "k"}, "https://api.openai.com/v1", "gpt-4o"),
    "openai:llama": ({"OPENAI_BASE_URL": "http://10.0.0.1:8000/v1/"}, "http://10.0.0.1:8000/v1", "llama"),
    "ollama:llama3.2:1b": ({}, "http://127.0.0.1:11434/v1", "llama3.2:1b"),
    "ollama:a": ({"OLLAMA_HOST": "0.0.0.0"}, "http://127.0.0.1:11434/v1", "a"),
    "ollama:b": ({"OLLAMA_HOST": "box:9999"}, "http://box:9999/v1", "b"),
    "ollama:c": ({"OLLAMA_HOST": "https://box.example/"}, "https://box.example:443/v1", "c"),
    "ollama:d": ({"OLLAMA_HOST": ":7777"}, "http://127.0.0.1:7777/v1", "d"),
    "lmstudio:qwen/qwen3": ({}, "http://127.0.0.1:1234/v1", "qwen/qwen3"),
    "llamacpp:any": ({}, "http://127.0.0.1:8080/v1", "any"),
    "vllm:meta/llama": ({}, "http://127.0.0.1:8000/v1", "meta/llama"),
    "http://box:8000/v1#org/name": ({}, "http://box:8000/v1", "org/name"),
    "http://box:8000#name": ({}, "http://box:8000/v1", "name"),
    "https://:secret@box/api/v1/#name": ({}, "https://box/api/v1", "name"),
    "http://[::1]:8000/v1#name": ({}, "http://[::1]:8000/v1", "name"),
}


@pytest.mark.parametrize("spec", ADDRESSES)
def test_names_have_their_address(spec):
    """Each form of a name leads to an endpoint and a model's name there."""
    env, url, name = ADDRESSES[spec]
    model = connect(spec, env=env)
    assert isinstance(model, Chat)
    assert (model.base_url, model.name) == (url, name)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("gpt-4o", "did you mean 'openai:gpt-4o'"),
        ("opnai:gpt-4o", "did you mean 'openai:gpt-4o'"),
        ("olama:x", "did you mean 'ollama:x'"),
        ("antropic:claude", "did you mean 'anthropic:claude'"),
        ("some/file.gguf", "did you mean 'local:some/file.gguf'"),
        ("zzz:x", "the prefixes are openai:, ollama:"),
        ("", "is empty"),
        ("openai:", "did you mean 'openai:NAME'"),
        ("http://box:8000/v1", "write http://box:8000/v1#NAME"),
        ("http:///v1#x", "a base URL is"),
        ("http://box:port/v1#x", "cannot be read"),
        ("openai:gpt-4o", "set OPENAI_API_KEY"),
    ],
)
def test_a_name_that_says_nothing(spec, words):
    """An unknown name is told with the nearest known form and all prefixes."""
    with pytest.raises(ConfigError) as caught:
        connect(spec, env={})
    assert words in str(caught.value)


@pytest.mark.parametrize("model", [None, 5, object(), ["openai:x"]])
def test_what_is_no_model(model):
    """What is neither name nor model nor function is shown as what it is."""
    with pytest.raises(ConfigError, match="a model is a name"):
        connect(model)


def test_a_model_stays_what_it_is():
    """A Model is given back as it is."""
    model = ScriptedModel([])
    assert connect(model) is model


async def _sent_key(model, server, ask) -> str | None:
    server.says(fs.good())
    await model.complete(ask())
    return server.requests[-1].headers.get("authorization")


async def test_the_key_goes_where_it_belongs(faults, ask):
    """OPENAI_API_KEY is sent to OPENAI_BASE_URL's origin, under whatever name that is called."""
    env = {"OPENAI_API_KEY": CANARY, "OPENAI_BASE_URL": faults.url}
    for spec in ("openai:m", f"{faults.url}#m", f"http://{faults.host}/other#m"):
        assert await _sent_key(connect(spec, env=env), faults, ask) == f"Bearer {CANARY}"


async def test_the_key_goes_nowhere_else(faults, ask):
    """No other host, port or scheme is sent OPENAI_API_KEY, with or without OPENAI_BASE_URL."""
    elsewhere = [{}, {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}, {"OPENAI_BASE_URL": faults.url.replace("http:", "https:")}]
    for place in elsewhere:
        env = {"OPENAI_API_KEY": CANARY} | place
        for model in (
            connect(f"{faults.url}#m", env=env),
            connect("ollama:m", env=env | {"OLLAMA_HOST": faults.host}),
            connect("vllm:m", env=env, base_url=faults.url),
            connect("ollama:m", env=env, base_url=faults.url),
        ):
            assert await _sent_key(model, faults, ask) is None
    with pytest.raises(ConfigError):
        connect("openai:m", env={"OPENAI_BASE_URL": ""})
    assert CANARY.encode() not in b"".join(str(r.headers).encode() + r.raw for r in faults.requests)


async def test_a_key_in_the_url(faults, ask):
    """A key in the URL's user info is sent as bearer token to that URL and shown nowhere."""
    model = connect(f"http://:{CANARY}@{faults.host}/v1#m", env={"OPENAI_API_KEY": "sk-other"})
    assert await _sent_key(model, faults, ask) == f"Bearer {CANARY}"
    assert CANARY not in f"{model!r} {model} {model.identity} {model.base_url} {model.host} {model.name}"


async def test_an_explicit_key_wins(faults, ask):
    """A key given in code is the one that is sent."""
    model = connect(f"{faults.url}#m", env={"OPENAI_API_KEY": "sk-other", "OPENAI_BASE_URL": faults.url}, key=CANARY)
    assert await _sent_key(model, faults, ask) == f"Bearer {CANARY}"


async def test_a_key_in_the_query(faults, ask):
    """A query of the base URL is sent with every call, and shown nowhere."""
    model = connect(f"{faults.url}?api-version=1&key={CANARY}#m", env={})
    faults.says(fs.error(400, f"odd key {CANARY}"))
    with pytest.raises(ModelError) as caught:
        await model.complete(ask())
    assert faults.requests[0].path == f"/v1/chat/completions?api-version=1&key={CANARY}"
    assert CANARY not in f"{caught.value} {model!r} {model.identity} {model.base_url}"


async def test_a_redirect_takes_no_key_along(faults, ask):
    """A redirect is not followed: the host it points at hears nothing."""
    async with fs.FaultServer() as other:
        faults.says(fs.http(b"", 308, Location=other.url))
        with pytest.raises(ModelError, match="redirects are not followed"):
            await Chat("m", faults.url, key=CANARY).complete(ask())
        assert not other.requests


async def test_errors_never_show_the_key(faults, ask):
    """Whatever a server echoes, and whatever breaks, the key is not in the message."""
    answers = [
        fs.error(401, f"Incorrect API key provided: {CANARY}"),
        fs.error(500, f"bad header Bearer {CANARY}"),
        fs.http(b"", 302, Location=f"https://elsewhere.example/?key={CANARY}"),
        fs.http(f"<html>{CANARY}</html>".encode(), 200, "text/html"),
        fs.http({"error": {"message": CANARY}}),
        fs.http({CANARY: 1}),
        fs.good("", CANARY),
        fs.good(None, refusal=CANARY),
        fs.cut(fs.good(), 0, reset=True),
    ]
    for answer in answers:
        for options in ({"key": CANARY}, {"headers": {"api-key": CANARY}}, {"headers": {"Authorization": f"Token {CANARY}"}}):
            with pytest.raises(ModelError) as caught:
                await Chat("m", faults.says(answer).url, **options).complete(ask())
            assert CANARY not in f"{caught.value} {caught.value!r} {caught.value.__cause__} {vars(caught.value)}"


@pytest.mark.parametrize("spec", ["http://:{}@/v1#m", "ftp://:{}@box/v1#m", "http://:{}@box/v1", "htp://:{}@box/v1#m"])
def test_mistakes_in_a_url_never_show_the_key(spec):
    """Nor is it in what is said of a URL that cannot be used."""
    with pytest.raises(ConfigError) as caught:
        connect(spec.format(CANARY), env={})
    assert CANARY not in str(caught.value)


def test_a_key_no_header_can_carry():
    """A key with a line break inside is refused without being shown; white space around it is taken off."""
    with pytest.raises(ConfigError) as caught:
        Chat("m", key=f"{CANARY}\r\nX-Evil: 1")
    assert CANARY not in str(caught.value)
    assert Chat("m", key=f" {CANARY}\n").has_key


def test_identity_is_endpoint_model_and_parameters():
    """The cache tells endpoints, models and parameters apart, but not keys."""
    one = Chat("m", "http://box/v1", key="a", extra_body={"b": 1, "a": 2})
    assert one.identity == Chat("m", "http://box/v1/", key="b", extra_body={"a": 2, "b": 1}).identity
    others = [Chat("n", "http://box/v1"), Chat("m", "http://box/v2"), Chat("m", "http://box/v1")]
    assert len({one.identity, *(o.identity for o in others)}) == 4


def test_a_client_can_travel():
    """A client can be pickled to another process."""
    assert pickle.loads(pickle.dumps(Chat("m", "http://box/v1", key="a"))).identity == "http://box/v1#m"


def test_vendors_are_known_to_pydantic_ai():
    """Every vendor's prefix is one that pydantic-ai knows (an earlier name of it counts)."""
    from pydantic_ai.providers import infer_provider_class
    from redraft.models.registry import VENDORS
    from redraft.models.pydantic_ai import VENDOR_ALIASES

    for vendor in VENDORS:
        try:
            infer_provider_class(VENDOR_ALIASES.get(vendor, vendor))
        except ImportError:
            pass


def test_openai_is_sent_no_bounds_that_its_strict_mode_refuses():
    """maxLength stays in for servers that keep it and is left out for the one that refuses it."""
    from redraft.models.openai_chat import without_length_bounds

    schema = {"properties": {"a": {"type": "string", "maxLength": 5}, "b": {"enum": [1, 2]}}, "required": ["a"]}
    assert without_length_bounds(schema) == {"properties": {"a": {"type": "string"}, "b": {"enum": [1, 2]}}, "required": ["a"]}
