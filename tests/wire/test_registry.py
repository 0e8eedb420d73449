"""From a model's name to the model, and to which host a key is sent."""

from __future__ import annotations

import pickle
import re

import pytest

from each_row import each_row
from redraft.errors import ConfigError, ModelError
from redraft.models import Chat, ScriptedModel, connect
from redraft.models.model_names import PREFIX_BY_PROVIDER, PREFIXES, canonical_name, split_names

from . import fault_server as fs

CANARY = "sk-canary-0123456789"

ADDRESSES = {
    "openai:gpt-4o": ({"OPENAI_API_KEY": "k"}, "https://api.openai.com/v1", "gpt-4o"),
    "openai:llama": (
        {"OPENAI_BASE_URL": "http://10.0.0.1:8000/v1/"},
        "http://10.0.0.1:8000/v1",
        "llama",
    ),
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
def test_names_resolve_to_endpoint_and_model(spec):
    """Each form of a name gives an endpoint and the model's name there."""
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
        ("http://box:port/v1#x", "its port 'port' must be a number from 1 to 65535"),
        ("openai:gpt-4o", "set OPENAI_API_KEY"),
    ],
)
def test_unknown_name_is_an_error(spec, words):
    """The error suggests the nearest form and lists all prefixes."""
    with pytest.raises(ConfigError) as caught:
        connect(spec, env={})
    assert words in str(caught.value)


LITELLM = {
    "ollama/llama3": "ollama:llama3",
    "ollama_chat/llama3:8b": "ollama:llama3:8b",
    "openai/gpt-4o": "openai:gpt-4o",
    "azure/my-deployment": "azure:my-deployment",
    "anthropic/claude-sonnet-4-5": "anthropic:claude-sonnet-4-5",
    "gemini/gemini-2.5-pro": "google:gemini-2.5-pro",
    "vertex_ai/gemini-2.5-pro": "google-cloud:gemini-2.5-pro",
    "groq/llama-3.3-70b": "groq:llama-3.3-70b",
    "openrouter/meta-llama/llama-3:free": "openrouter:meta-llama/llama-3:free",
    "together_ai/org/model": "together:org/model",
    "mistral/mistral-large": "mistral:mistral-large",
    "bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0": "bedrock:anthropic.claude-3-5-sonnet-20240620-v1:0",
    "bedrock/converse/us.amazon.nova-pro-v1:0": "bedrock:us.amazon.nova-pro-v1:0",
    "hosted_vllm/org/model": "vllm:org/model",
    "lm_studio/qwen/qwen3": "lmstudio:qwen/qwen3",
    "xai/grok-4": "xai:grok-4",
}


@each_row("name", LITELLM)
def test_names_of_litellm_have_a_name_here(name):
    """Each becomes the name with the prefix of this package, and that stays as it is."""
    assert canonical_name(name) == LITELLM[name]
    assert canonical_name(LITELLM[name]) == LITELLM[name]


@each_row(
    "name",
    [
        *ADDRESSES,
        "openrouter:org/model",
        "gateway/openai:gpt-4o",
        "local:a/b.gguf",
        "http://h/v1#ollama/x",
    ],
)
def test_names_with_a_slash_stay_as_they_are(name):
    """A slash in the name of a model is no prefix."""
    assert canonical_name(name) == name


def test_prefixes_of_litellm_lead_to_known_ones():
    """Every target is a prefix of this package, and both spellings are the same model."""
    assert {f"{prefix}:" for prefix in PREFIX_BY_PROVIDER.values()} <= set(PREFIXES)
    assert connect("ollama/a", env={}).identity == connect("ollama:a", env={}).identity


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("perplexity/sonar", "https://HOST/v1#sonar"),
        ("litellm_proxy/tiny", "https://HOST/v1#tiny"),
        ("litellm:tiny", "does not begin with a known prefix"),
        ("vertex_ai/claude-sonnet-4", "only Gemini"),
        ("openai/gpt-oss-20b", "vllm:openai/gpt-oss-20b or ollama:gpt-oss:20b"),
        ("Qwen/Qwen3-8B", "does not begin with a known prefix"),
        ("ollama/", "ollama:NAME"),
    ],
)
def test_ambiguous_and_unknown_names_of_litellm_are_errors(name, words):
    """The error says what to write."""
    with pytest.raises(ConfigError) as caught:
        connect(name, env={"OPENAI_API_KEY": "k"})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("openai:a", ["openai:a"]),
        ("openai:a, ollama:b", ["openai:a", "ollama:b"]),
        ("http://h/v1#a,b,https://g/v1#c", ["http://h/v1#a,b", "https://g/v1#c"]),
        ("ollama/a,openrouter/b/c", ["ollama/a", "openrouter/b/c"]),
        ("local:a,b.gguf", ["local:a,b.gguf"]),
    ],
)
def test_names_separated_by_commas(text, names):
    """A comma without a prefix after it is a part of a name."""
    assert split_names(text) == names


@pytest.mark.parametrize("model", [None, 5, object()])
def test_non_model_is_rejected(model):
    """The error shows a value that is no name, model or function."""
    with pytest.raises(ConfigError, match="a model is a name"):
        connect(model)


def test_model_object_is_returned_unchanged():
    """Resolving a Model returns the same object."""
    model = ScriptedModel([])
    assert connect(model) is model


async def _sent_key(model, server, ask) -> str | None:
    server.says(fs.good())
    await model.complete(ask())
    return server.requests[-1].headers.get("authorization")


async def test_key_is_sent_to_its_origin(faults, ask):
    """OPENAI_API_KEY is sent to OPENAI_BASE_URL's origin, whatever name leads there."""
    env = {"OPENAI_API_KEY": CANARY, "OPENAI_BASE_URL": faults.url}
    for spec in ("openai:m", f"{faults.url}#m", f"http://{faults.host}/other#m"):
        assert await _sent_key(connect(spec, env=env), faults, ask) == f"Bearer {CANARY}"


async def test_key_is_sent_nowhere_else(faults, ask):
    """No other host, port or scheme receives OPENAI_API_KEY, with or without OPENAI_BASE_URL."""
    elsewhere = [
        {},
        {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"},
        {"OPENAI_BASE_URL": faults.url.replace("http:", "https:")},
    ]
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


async def test_key_in_the_url_is_sent_as_bearer_token(faults, ask):
    """A key in the user info goes to that URL only and is shown nowhere."""
    model = connect(f"http://:{CANARY}@{faults.host}/v1#m", env={"OPENAI_API_KEY": "sk-other"})
    assert await _sent_key(model, faults, ask) == f"Bearer {CANARY}"
    assert (
        CANARY
        not in f"{model!r} {model} {model.identity} {model.base_url} {model.host} {model.name}"
    )


async def test_explicit_key_wins(faults, ask):
    """A key given in code is the one that is sent."""
    model = connect(
        f"{faults.url}#m",
        env={"OPENAI_API_KEY": "sk-other", "OPENAI_BASE_URL": faults.url},
        key=CANARY,
    )
    assert await _sent_key(model, faults, ask) == f"Bearer {CANARY}"


async def test_query_is_sent_with_every_call(faults, ask):
    """The query of the base URL is shown nowhere."""
    model = connect(f"{faults.url}?api-version=1&key={CANARY}#m", env={})
    faults.says(fs.error(400, f"odd key {CANARY}"))
    with pytest.raises(ModelError) as caught:
        await model.complete(ask())
    assert faults.requests[0].path == f"/v1/chat/completions?api-version=1&key={CANARY}"
    assert CANARY not in f"{caught.value} {model!r} {model.identity} {model.base_url}"


async def test_redirect_receives_no_key(faults, ask):
    """A redirect is not followed, so its target receives nothing."""
    async with fs.FaultServer() as other:
        faults.says(fs.http(b"", 308, Location=other.url))
        with pytest.raises(ModelError, match="redirects are not followed"):
            await Chat("m", faults.url, key=CANARY).complete(ask())
        assert not other.requests


async def test_errors_never_show_the_key(faults, ask):
    """The message has no key, whatever the server echoes and whatever fails."""
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
        for options in (
            {"key": CANARY},
            {"headers": {"api-key": CANARY}},
            {"headers": {"Authorization": f"Token {CANARY}"}},
        ):
            with pytest.raises(ModelError) as caught:
                await Chat("m", faults.says(answer).url, **options).complete(ask())
            assert (
                CANARY
                not in f"{caught.value} {caught.value!r} {caught.value.__cause__} {vars(caught.value)}"
            )


@pytest.mark.parametrize(
    "spec", ["http://:{}@/v1#m", "ftp://:{}@box/v1#m", "http://:{}@box/v1", "htp://:{}@box/v1#m"]
)
def test_mistakes_in_a_url_never_show_the_key(spec):
    """The error for an unusable URL has no key."""
    with pytest.raises(ConfigError) as caught:
        connect(spec.format(CANARY), env={})
    assert CANARY not in str(caught.value)


def test_key_with_a_line_break_is_rejected():
    """The error does not show it, and white space around a key is removed."""
    with pytest.raises(ConfigError) as caught:
        Chat("m", key=f"{CANARY}\r\nX-Evil: 1")
    assert CANARY not in str(caught.value)
    assert Chat("m", key=f" {CANARY}\n").has_key


def test_identity_is_endpoint_model_and_parameters():
    """A cache distinguishes endpoints, models and parameters, but not keys."""
    one = Chat("m", "http://box/v1", key="a", extra_body={"b": 1, "a": 2})
    assert (
        one.identity == Chat("m", "http://box/v1/", key="b", extra_body={"a": 2, "b": 1}).identity
    )
    others = [Chat("n", "http://box/v1"), Chat("m", "http://box/v2"), Chat("m", "http://box/v1")]
    assert len({one.identity, *(o.identity for o in others)}) == 4


def test_client_can_be_pickled():
    """A client works in another process."""
    assert (
        pickle.loads(pickle.dumps(Chat("m", "http://box/v1", key="a"))).identity
        == "http://box/v1#m"
    )


@pytest.mark.slow
def test_vendors_are_known_to_pydantic_ai():
    """pydantic-ai knows every vendor's prefix, possibly under an earlier name; for some it asks for
    a further package.
    """
    from pydantic_ai.providers import infer_provider_class

    from redraft.models.model_names import VENDORS
    from redraft.models.pydantic_ai import VENDOR_ALIASES

    known = {}
    for vendor in VENDORS:
        try:
            known[vendor] = infer_provider_class(VENDOR_ALIASES.get(vendor, vendor)).__name__
        except ImportError as error:
            known[vendor] = re.match(r"Please install the `(.+?)` package", str(error))[1]
    assert {
        "anthropic": "AnthropicProvider",
        "openrouter": "OpenRouterProvider",
        "deepseek": "DeepSeekProvider",
    }.items() <= known.items()


def test_openai_strict_schema_has_no_bounds():
    """maxLength is sent to servers that enforce it and left out for OpenAI."""
    from redraft.models.openai_chat import without_length_bounds

    schema = {
        "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"enum": [1, 2]}},
        "required": ["a"],
    }
    assert without_length_bounds(schema) == {
        "properties": {"a": {"type": "string"}, "b": {"enum": [1, 2]}},
        "required": ["a"],
    }


ENV = {"OPENAI_API_KEY": "sk-of-openai", "ANTHROPIC_API_KEY": "sk-of-anthropic"}
ACCESS = {  # arguments of `connect`, and the name, the base URL and the key that is sent there
    "name at an address": (
        ("gpt", {"base_url": "{url}", "api_key": "sk-mine"}),
        ("gpt", "sk-mine"),
    ),
    "prefix at an address": (
        ("openai:gpt", {"base_url": "{url}", "api_key": "sk-mine"}),
        ("gpt", "sk-mine"),
    ),
    "tag": (("qwen3:8b", {"base_url": "{url}"}), ("qwen3:8b", None)),
    "slash": (("meta/llama-3", {"base_url": "{url}"}), ("meta/llama-3", None)),
    "no path": (("gpt", {"base_url": "{root}", "api_key": " sk-mine\n"}), ("gpt", "sk-mine")),
    "key of an address": (("{url}#gpt", {"api_key": "sk-mine"}), ("gpt", "sk-mine")),
    "key in the address": (("gpt", {"base_url": "{with_key}"}), ("gpt", "sk-in-url")),
    "other host's key stays": (("openai:gpt", {"base_url": "{url}"}), ("gpt", None)),
}


@pytest.mark.parametrize(("given", "expected"), ACCESS.values(), ids=ACCESS)
async def test_a_key_is_sent_to_the_address_it_is_given_for(faults, ask, given, expected):
    """A key of the environment is not sent to an address that it does not belong to."""
    faults.says(fs.good("fine"))
    places = {
        "url": faults.url,
        "root": f"http://{faults.host}",
        "with_key": f"http://:sk-in-url@{faults.host}/v1",
    }
    name, options = (
        given[0].format(**places),
        {key: value.format(**places) for key, value in given[1].items()},
    )
    model = connect(name, env=ENV, **options)
    await model.complete(ask())
    (request,) = faults.requests
    key = request.headers.get("authorization")
    assert (model.name, key and key.removeprefix("Bearer "), request.path) == (
        *expected,
        "/v1/chat/completions",
    )
    assert "sk-" not in repr(model) + model.identity


def test_a_vendor_takes_a_key():
    """It replaces the one of the environment; an address needs a key of its own."""
    assert "sk-mine" not in repr(connect("anthropic:claude-x", api_key="sk-mine"))
    with pytest.raises(ConfigError, match="give api_key, too"):
        connect("anthropic:claude-x", base_url="http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="takes no api_key and base_url"):
        connect("openrouter:x/y", api_key="sk-mine", base_url="http://127.0.0.1:9")


NOT_TOGETHER = {
    "two addresses": ("http://h/v1#m", {"base_url": "http://h/v1"}, "an address already"),
    "two names": ("m", {"base_url": "http://h/v1#other"}, "give that as the model alone"),
    "key and api_key": (
        "m",
        {"base_url": "http://h/v1", "api_key": "sk-a", "key": "sk-b"},
        "give one of them",
    ),
    "two keys": ("http://:sk-a@h/v1#m", {"api_key": "sk-b"}, "has a key already"),
    "two keys beside a name": (
        "m",
        {"base_url": "http://:sk-a@h/v1", "api_key": "sk-b"},
        "has a key already",
    ),
    "file": ("local:m.gguf", {"api_key": "sk-b"}, "local file"),
    "function": (print, {"api_key": "sk-b"}, "only the name of a model"),
    "no name": ("openai:", {"base_url": "http://h/v1"}, "name of the model is missing"),
    "blank key": ("m", {"base_url": "http://h/v1", "api_key": " "}, "api_key is blank"),
    "no text": ("m", {"base_url": "http://h/v1", "api_key": 5}, "api_key must be text"),
    "no address": ("m", {"base_url": "ftp://h"}, "base URL"),
    "no name of a server": ("m", {"api_key": "sk-b"}, "known prefix"),
}


@pytest.mark.parametrize(("name", "options", "says"), NOT_TOGETHER.values(), ids=NOT_TOGETHER)
def test_arguments_of_access_that_do_not_go_together_are_named(name, options, says):
    """The message shows no key."""
    with pytest.raises(ConfigError, match=says) as caught:
        connect(name, env=ENV, **options)
    assert "sk-" not in str(caught.value)
