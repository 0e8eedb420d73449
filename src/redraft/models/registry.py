"""From what a person calls a model to the model: "openai:NAME", "ollama:NAME", "http://host/v1#NAME", "local:FILE".

A key is only ever handed to the host it belongs to: OPENAI_API_KEY to the origin of OPENAI_BASE_URL (without that, to
api.openai.com), and a key that stands in a URL to that URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from .. import checks
from ..errors import ConfigError
from ..protocols import Model
from .endpoint_url import is_private_host, parse_base_url, redacted_model_name, redacted_url, with_version
from .functions import CallableModel
from .openai_chat import OPENAI_URL, Chat

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
    """Return the model that a name means.

    A model that is made from a name uses the proxy in REDRAFT_PROXY, unless `proxy` is among the options. Nothing is sent.

    Args:
        model: A name such as "openai:gpt-4o-mini", a URL such as "http://127.0.0.1:8080/v1#NAME", a function
            `(messages) -> str`, sync or async, or a `Model`, which is returned as it is.
        env: Environment in which keys are looked up. None means that of the process.
        **options: Passed to the client that is made, such as `headers` or `extra_body`.

    Returns:
        A model, ready to be used as `model` or `judge`.

    Raises:
        ConfigError: The name means nothing, or its key is missing.
    """
    checks.mapping("env", env, '{"OPENAI_API_KEY": "..."}')
    if isinstance(model, type):
        raise ConfigError(f"a model is an instance: write {model.__name__}(...), not the class")
    if isinstance(model, str):
        return _model_from_name(model.strip(), os.environ if env is None else env, options)
    if isinstance(model, Model):
        return model
    if callable(model):
        return CallableModel(model, **options)
    raise ConfigError(f"a model is a name, a Model or a function of messages, got {checks.format_value(model)}")


def _model_from_name(spec: str, env: Mapping[str, str], options: dict[str, Any]) -> Model:
    prefix, colon, name = spec.partition(":")
    if not colon or not name.strip():
        raise ConfigError(_unknown_model_message(spec))
    name = name.strip()
    if prefix == "local":
        from .llama_cpp import LocalModel

        return LocalModel(name, **options)
    if name.startswith("//") and prefix.lower() in {"http", "https"}:
        return _model_at_url(spec, env, options)
    if "://" in name and f"{prefix}:" in PREFIXES:
        raise _address_after_prefix_error(prefix, name)
    if prefix == "openai":
        return _openai_model(name, env, options)
    if prefix in LOCAL_SERVERS:
        return _chat_model(name, server_url(prefix, env), env, options)
    if prefix in VENDORS:
        from .pydantic_ai import ProviderModel

        with_proxy: dict[str, Any] = {"proxy": env.get("REDRAFT_PROXY", "").strip() or None}
        return ProviderModel(spec, **with_proxy | options)
    raise ConfigError(_unknown_model_message(spec))


def configured_proxy(url: str, env: Mapping[str, str]) -> str | None:
    """The proxy of REDRAFT_PROXY, which may be "env"; None for a host on this machine or on a private network."""
    return None if is_private_host(parse_base_url(url)[0].hostname or "") else env.get("REDRAFT_PROXY", "").strip() or None


def _address_after_prefix_error(prefix: str, name: str) -> ConfigError:
    """The error for `ollama:http://host/v1#NAME`."""
    address, _, named = redacted_model_name(name).partition("#")
    return ConfigError(
        f"after {prefix}: comes the name of a model, not an address, got {address!r}: write {address}#{named or 'NAME'}"
        + (", or set OLLAMA_HOST" if prefix == "ollama" else "")
    )


def _model_at_url(spec: str, env: Mapping[str, str], options: dict[str, Any]) -> Model:
    url, _, name = spec.partition("#")
    parse_base_url(url)
    if "?" in name:
        shown = redacted_url(url)
        raise ConfigError(f"the query of an address comes before the name of the model: {shown}?QUERY#NAME")
    if not name:
        shown = redacted_url(url)
        raise ConfigError(f"{shown} names a server, not a model: write {shown}#NAME (`redraft models` lists the names)")
    return _chat_model(name, with_version(url), env, options)


def _openai_model(name: str, env: Mapping[str, str], options: dict[str, Any]) -> Model:
    model = _chat_model(name, openai_url(env), env, options)
    if not model.has_key and model.base_url.startswith(OPENAI_URL):
        raise ConfigError(f"openai:{name} needs a key: set OPENAI_API_KEY")
    return model


def _chat_model(name: str, url: str, env: Mapping[str, str], options: dict[str, Any]) -> Chat:
    url = options.get("base_url", url)
    return Chat(name, **{"base_url": url, "key": key_for(url, env), "proxy": configured_proxy(url, env)} | options)


def openai_url(env: Mapping[str, str]) -> str:
    """Where "openai:" models are."""
    return env.get("OPENAI_BASE_URL", "").strip() or OPENAI_URL


def key_for(url: str, env: Mapping[str, str]) -> str | None:
    """The key in the URL itself, or OPENAI_API_KEY where it belongs; None for every other host."""
    _, in_url = parse_base_url(url)
    return in_url or (env.get("OPENAI_API_KEY") if _origin(url) == _origin(openai_url(env)) else None)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    at, _ = parse_base_url(url)
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


EXAMPLES = "openai:gpt-4o-mini, ollama:llama3.2, http://127.0.0.1:8080/v1#NAME or local:FILE.gguf"
VENDOR_BY_NAME_PREFIX = {  # how names of models begin, and whose they are
    "gpt": "openai",
    "chatgpt-": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "claude": "anthropic",
    "gemini": "google",
    "grok": "xai",
    "mistral": "mistral",
    "deepseek": "deepseek",
    "command": "cohere",
    "llama": "ollama",
    "qwen": "ollama",
    "gemma": "ollama",
    "phi": "ollama",
}
_HOST = re.compile(r"(localhost|[\w.-]+:[0-9]{2,5}|\[[0-9a-fA-F:]+\](:[0-9]{1,5})?|[\w-]+(\.[\w-]+)*\.(com|org|net|io|ai))(/.*)?")
_BROKEN_URL = re.compile(r"h\w{1,3}p(?P<safe>s?)(:|;|/)+(?P<rest>[^/].*)", re.IGNORECASE)


def _unknown_model_message(spec: str) -> str:
    """The words for a name of a model that says nothing: the spelling that was probably meant first, then what there is."""
    if not spec:
        return f"the name of a model is empty, got ''; it is such as {EXAMPLES}"
    shown = redacted_url(spec) or spec
    meant = _suggested_name(shown)
    _, _, named = redacted_model_name(f"://{spec}").partition("#")
    if named and "@" not in named:  # (what stands before an @ may be a password)
        meant = meant.replace("#NAME", f"#{named}")
    hint = f"did you mean {meant!r}? " if meant else ""
    prefix, colon, _ = shown.partition(":")
    wrong = "does not begin with a known prefix"
    if f"{prefix}:" in PREFIXES:
        wrong = "names no model after the colon" if colon else "is a prefix without the name of a model"
    if shown.endswith(".gguf"):
        wrong = "is a file: one begins with local:"
    return (
        f"the model {shown!r} {wrong}{'; ' + hint if hint else '. '}A name is such as {EXAMPLES}; the prefixes are "
        f"{', '.join(PREFIXES[:7])} and those of {len(VENDORS)} vendors, such as anthropic: (`redraft models` shows what is here)"
    )


def _suggested_name(spec: str) -> str:
    """The name that was probably meant; "" where nothing is like it."""
    prefix, colon, name = spec.partition(":")
    if spec.startswith("#") or prefix.lower() == "none":  # (`--model none`, which is no name of a model)
        return ""
    if spec.endswith(".gguf"):
        return f"local:{name.strip() if prefix.lower() == 'local' else spec}"
    if f"{prefix}:" in PREFIXES:
        return f"{prefix}:{'//127.0.0.1:8080/v1#NAME' if prefix.startswith('http') else 'NAME'}"
    if broken := _BROKEN_URL.fullmatch(spec):
        return f"http{broken['safe'].lower()}://{_with_model_placeholder(broken['rest'])}"
    if _HOST.fullmatch(spec):
        scheme = "http" if ":" in spec or spec.startswith("localhost") else "https"
        return f"{scheme}://{_with_model_placeholder(spec)}"
    if not colon:
        vendor, slash, name = spec.partition("/")
        if slash:
            return f"{known}{name or 'NAME'}" if (known := _nearest_prefix(vendor)) else ""
        return f"{_vendor_of(spec) or 'ollama'}:{spec}"
    if maker := _vendor_of(spec):  # (names in Ollama have a tag after a colon)
        return f"{maker}:{spec if maker == 'ollama' else name.strip() or 'NAME'}"
    known = _nearest_prefix(prefix)
    return f"{known}{name.lstrip('/').strip() or 'NAME'}" if known else ""


def _vendor_of(name: str) -> str:
    """Whose models are called so; "" where nobody's are known to be."""
    return next((maker for start, maker in VENDOR_BY_NAME_PREFIX.items() if name.casefold().startswith(start)), "")


def _nearest_prefix(word: str) -> str:
    """The known prefix that a word is most like; "" where none is."""
    near = checks.closest_names(word.strip(), [prefix.rstrip(":") for prefix in PREFIXES if "//" not in prefix], 1)
    return f"{near[0]}:" if near else ""


def _with_model_placeholder(address: str) -> str:
    """An address without its scheme, with the path and the name that a model takes."""
    host, _, path = address.partition("/")
    return f"{host}/{path.rstrip('/') or 'v1'}#NAME"
