"""From what a person calls a model to the model: "openai:NAME", "ollama:NAME", "http://host/v1#NAME", "local:FILE".

A key is only ever handed to the host it belongs to: OPENAI_API_KEY to the origin of OPENAI_BASE_URL (without that, to
api.openai.com), and a key that stands in a URL to that URL.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

from ..contracts import Model
from ..core.errors import ConfigError
from .callable import CallableModel
from .chat import OPENAI, Chat
from .endpoint_url import endpoint, endpoint_shown, is_nearby, model_shown, with_version

LOCAL_SERVERS = {
    "ollama": "http://127.0.0.1:11434",
    "lmstudio": "http://127.0.0.1:1234",
    "llamacpp": "http://127.0.0.1:8080",
    "vllm": "http://127.0.0.1:8000",
}
VENDORS = (
    "alibaba",
    "anthropic",
    "azure",
    "bedrock",
    "cerebras",
    "cohere",
    "deepseek",
    "fireworks",
    "gateway/anthropic",
    "gateway/bedrock",
    "gateway/google",
    "gateway/groq",
    "gateway/openai",
    "gemini",
    "github",
    "google",
    "google-cloud",
    "google-gla",
    "google-vertex",
    "grok",
    "groq",
    "heroku",
    "huggingface",
    "litellm",
    "meta",
    "mistral",
    "moonshotai",
    "nebius",
    "openai-responses",
    "openrouter",
    "ovhcloud",
    "sambanova",
    "together",
    "vercel",
    "xai",
    "zai",
)
PREFIXES = ("openai:", *(f"{name}:" for name in LOCAL_SERVERS), "local:", "http://", "https://", *(f"{v}:" for v in VENDORS))


def connect(model: Any, *, env: Mapping[str, str] | None = None, **options: Any) -> Model:
    """A Model from its name, from a function `(messages) -> text`, or as it is. `options` go to whatever is made.

    What is made of a name goes through the proxy of REDRAFT_PROXY, unless `proxy` is among the options.
    Raises ConfigError for a name that says nothing, before anything is sent.
    """
    if isinstance(model, str):
        return _named(model.strip(), os.environ if env is None else env, options)
    if isinstance(model, Model):
        return model
    if callable(model):
        return CallableModel(model, **options)
    raise ConfigError(f"a model is a name, a Model or a function of messages, got {model!r}")


def _named(spec: str, env: Mapping[str, str], options: dict[str, Any]) -> Model:
    prefix, colon, name = spec.partition(":")
    if not colon or not name:
        raise _unknown(spec)
    if prefix == "local":
        from .local import LocalModel

        return LocalModel(name, **options)
    if name.startswith("//"):
        return _at_url(spec, env, options)
    if "://" in name:
        raise _address_after(prefix, name)
    if prefix == "openai":
        return _openai(name, env, options)
    if prefix in LOCAL_SERVERS:
        return _chat(name, server_url(prefix, env), env, options)
    if prefix in VENDORS:
        from .providers import ProviderModel

        return ProviderModel(spec, **{"proxy": env.get("REDRAFT_PROXY", "").strip() or None} | options)
    raise _unknown(spec)


def proxy_to(url: str, env: Mapping[str, str]) -> str | None:
    """The proxy of REDRAFT_PROXY, which may be "env"; None for a host on this machine or on a private network."""
    return None if is_nearby(endpoint(url)[0].hostname or "") else env.get("REDRAFT_PROXY", "").strip() or None


def _address_after(prefix: str, name: str) -> ConfigError:
    """The error for `ollama:http://host/v1#NAME`."""
    address, _, named = model_shown(name).partition("#")
    return ConfigError(
        f"after {prefix}: stands the name of a model, not an address, got {address!r}: write {address}#{named or 'NAME'}"
        + (", or set OLLAMA_HOST" if prefix == "ollama" else "")
    )


def _at_url(spec: str, env: Mapping[str, str], options: dict[str, Any]) -> Model:
    url, _, name = spec.partition("#")
    endpoint(url)
    if "?" in name:
        shown = endpoint_shown(url)
        raise ConfigError(f"the query of an address stands before the name of the model: {shown}?QUERY#NAME")
    if not name:
        shown = endpoint_shown(url)
        raise ConfigError(f"{shown} names a server, not a model: write {shown}#NAME (`redraft models` lists the names)")
    return _chat(name, with_version(url), env, options)


def _openai(name: str, env: Mapping[str, str], options: dict[str, Any]) -> Model:
    model = _chat(name, openai_url(env), env, options)
    if not model.has_key and model.base_url.startswith(OPENAI):
        raise ConfigError(f"openai:{name} needs a key: set OPENAI_API_KEY")
    return model


def _chat(name: str, url: str, env: Mapping[str, str], options: dict[str, Any]) -> Chat:
    url = options.get("base_url", url)
    return Chat(name, **{"base_url": url, "key": key_for(url, env), "proxy": proxy_to(url, env)} | options)


def openai_url(env: Mapping[str, str]) -> str:
    """Where "openai:" models are."""
    return env.get("OPENAI_BASE_URL", "").strip() or OPENAI


def key_for(url: str, env: Mapping[str, str]) -> str | None:
    """The key in the URL itself, or OPENAI_API_KEY where it belongs; None for every other host."""
    _, in_url = endpoint(url)
    return in_url or (env.get("OPENAI_API_KEY") if _origin(url) == _origin(openai_url(env)) else None)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    at, _ = endpoint(url)
    return at.scheme, at.hostname, at.port or {"http": 80, "https": 443}[at.scheme]


def server_url(server: str, env: Mapping[str, str]) -> str:
    """The base URL of a kind of local server. Ollama's may be moved by OLLAMA_HOST, which knows many forms."""
    given = env.get("OLLAMA_HOST", "").strip() if server == "ollama" else ""
    if not given:
        return f"{LOCAL_SERVERS[server]}/v1"
    at = urlsplit(given if "://" in given else f"http://{given}")
    host = "127.0.0.1" if at.hostname in {None, "0.0.0.0"} else at.hostname  # noqa: S104
    host = f"[{host}]" if ":" in str(host) else host
    port = at.port or {"http": 11434, "https": 443}.get(at.scheme, 11434)
    return f"{at.scheme}://{host}:{port}{at.path.rstrip('/')}/v1"


def _unknown(spec: str) -> ConfigError:
    shown = endpoint_shown(spec)
    prefix, colon, name = shown.partition(":")
    if not colon:
        near = f"local:{shown}" if shown.endswith(".gguf") else f"openai:{shown}"
    else:
        close = get_close_matches(f"{prefix}:", PREFIXES, n=1, cutoff=0.6)
        near = f"{close[0]}{name.lstrip('/') or 'NAME'}" if close else ""
    hint = f" (did you mean {near!r}?)" if near and shown else ""
    return ConfigError(f"the model {shown!r} does not begin with a known prefix{hint}; known are {' '.join(PREFIXES)}")
