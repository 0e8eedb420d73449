"""Connect models: a name, a function or a client becomes a `Model`.

A key is sent only to the host it belongs to: OPENAI_API_KEY to the origin of OPENAI_BASE_URL (by
default api.openai.com), the key in a URL to that URL, the argument `api_key` to `base_url` or the
host of the name, and a vendor's key to that vendor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ..base import checks
from ..base.parameters import check_parameters
from ..errors import ConfigError
from ..protocols import Model
from .client_packages import (
    is_client_object,
    is_client_with_name,
    is_langchain_object,
    is_pydantic_ai_model,
)
from .endpoint_url import (
    is_private_host,
    parse_base_url,
    redacted_model_name,
    redacted_url,
    with_version,
)
from .functions import CallableModel
from .http_requests import port_of
from .model_names import (
    LOCAL_SERVERS,
    PREFIXES,
    VENDORS,
    canonical_name,
    unknown_model_message,
)
from .openai_chat import OPENAI_URL, Chat


def connect(
    model: Any,
    /,
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    env: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    **options: Any,
) -> Model:
    """Return the model with a name. Nothing is sent.

    A model made from a name uses the proxy in REDRAFT_PROXY, unless `proxy` is among the options.

    Args:
        model: A name such as "openai:gpt-4o-mini", a URL such as "http://127.0.0.1:8080/v1#NAME", a
            function `(messages) -> str`, sync or async, or a `Model`, which is returned as it is.
            Also a chat model of LangChain, a model of pydantic-ai, or a client of the openai
            package: `connect(client, model="gpt-4o-mini")` or `(client, "gpt-4o-mini")`.
        api_key: The key for the model with this name, instead of that in the environment. It is
            sent to `base_url`, or to the host of the name, and to no other.
        base_url: The address of an OpenAI-compatible server with a model of this name, such as
            "https://host/v1"; for a vendor such as "anthropic:NAME", the address of its API. Keys
            of the environment are not sent to it unless they belong to it.
        env: Environment in which keys are looked up. None means the process's.
        params: Parameters that the model with this name needs in every call of a run, whatever its
            role, such as `{"enable_thinking": False}`; the parameters of the call win.
        **options: Passed to the client that is made, such as `headers` or `extra_body`.

    Returns:
        A model to pass as `model` or `judge`.

    Raises:
        ConfigError: The name is unknown, its key is missing, or an argument does not go with it.
    """
    checks.mapping("env", env, '{"OPENAI_API_KEY": "..."}')
    if isinstance(model, type):
        raise ConfigError(f"a model is an instance: write {model.__name__}(...), not the class")
    access = _access(api_key, base_url)
    if "api_key" in access and "key" in options:
        raise ConfigError("api_key: there is a key already; give one of them")
    if isinstance(model, str):
        environment = os.environ if env is None else env
        named = _model_from_name(model.strip(), environment, access, options)
        if params is not None:
            check_parameters("params", params)
            named.params = params  # type: ignore[attr-defined]
        return named
    if params is not None:
        raise ConfigError(
            "params: only the name of a model takes them; for an object, give model_params or "
            "judge_params"
        )
    if access:
        raise ConfigError(
            f"{' and '.join(access)}: only the name of a model takes them; an object has its own "
            "key and address"
        )
    return _model_from_object(model, options)


def _model_from_object(model: Any, options: dict[str, Any]) -> Model:
    """Return the model for what is no name. Raises ConfigError."""
    if is_client_with_name(model):
        model, options = model[0], {"model": model[1]} | options
    elif isinstance(model, list | tuple):
        raise ConfigError(
            "one model is expected here, got a list: only the model that writes can be several, "
            "tried in order"
        )
    if is_client_object(model):
        return _model_of_client(model, options)
    if isinstance(model, Model):
        return model
    if callable(model):
        return CallableModel(model, **options)
    shown = [*model] if isinstance(model, Mapping) else model  # values of a mapping may be secret
    raise ConfigError(
        "a model is a name, a Model or a function of messages; a chat model of LangChain, a "
        "model of pydantic-ai, or a client of the openai package with the name of a model, "
        f"(client, NAME), got {checks.format_value(shown)}"
    )


def _model_of_client(client: Any, options: Mapping[str, Any]) -> Model:
    """Return the model for a client or a model of another package. Raises ConfigError."""
    if is_pydantic_ai_model(client):
        from .pydantic_ai import ProviderModel

        return ProviderModel(client, **options)
    if is_langchain_object(client):
        from .langchain import LangChainModel

        return LangChainModel(client, **options)
    from .openai_client import ClientModel

    return ClientModel(client, **options)


def alternative_models(model: Any) -> Sequence[Any]:
    """Return the models in a list, which are tried in order; a single model alone; nothing for
    None. Raises ConfigError.
    """
    if model is None:
        return ()
    if not isinstance(model, list | tuple) or is_client_with_name(model):
        return (model,)
    if not model:
        raise ConfigError(
            "model: the list of models is empty, got []: name one or more, the first to be tried "
            "first"
        )
    return model


def _access(api_key: str | None, base_url: str | None) -> dict[str, str]:
    """Return the arguments that are given. Raises ConfigError, which shows no key."""
    for name, value in (("api_key", api_key), ("base_url", base_url)):
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{name} must be text or None, got {type(value).__name__}")
        if value is not None and not value.strip():
            raise ConfigError(f"{name} is blank: leave it out, or give one")
    return {
        name: value.strip()
        for name, value in (("api_key", api_key), ("base_url", base_url))
        if value is not None
    }


def _model_from_name(
    spec: str, env: Mapping[str, str], access: Mapping[str, str], options: dict[str, Any]
) -> Model:
    prefix = spec.partition(":")[0]
    if "base_url" in access and prefix.lower() not in {"http", "https", "local", *VENDORS}:
        own_name = spec.partition(":")[2] if prefix in {"openai", *LOCAL_SERVERS} else spec
        return _model_at_base_url(own_name.strip(), env, access, options)
    prefix, colon, name = canonical_name(spec).partition(":")
    if not colon or not name.strip():
        raise ConfigError(unknown_model_message(spec))
    name = name.strip()
    if prefix == "local":
        return _local_model(name, access, options)
    if "api_key" in access and prefix not in VENDORS:
        options = {"key": access["api_key"]} | options
    if name.startswith("//") and prefix.lower() in {"http", "https"}:
        return _model_at_url(spec, env, access, options)
    if f"{prefix}:" not in PREFIXES:
        raise ConfigError(unknown_model_message(spec))
    if "://" in name:
        raise _address_after_prefix_error(prefix, name)
    if prefix in VENDORS:
        return _vendor_model(prefix, name, env, access, options)
    if prefix == "openai":
        return _openai_model(name, env, options)
    return connect_endpoint(name, server_url(prefix, env), env, **options)


def _local_model(name: str, access: Mapping[str, str], options: Mapping[str, Any]) -> Model:
    from .llama_cpp import LocalModel

    if access:
        raise ConfigError(
            f"{' and '.join(access)}: a model in a local file takes none: leave it out"
        )
    return LocalModel(name, **options)


def _vendor_model(
    vendor: str,
    name: str,
    env: Mapping[str, str],
    access: Mapping[str, str],
    options: Mapping[str, Any],
) -> Model:
    from .pydantic_ai import ProviderModel

    if "base_url" in access and "api_key" not in access:
        raise ConfigError(
            f"base_url: give api_key, too: the key of {vendor} in the environment is sent to "
            "its own host only"
        )
    proxy = env.get("REDRAFT_PROXY", "").strip() or None
    return ProviderModel(f"{vendor}:{name}", **{"proxy": proxy, **access, **options})


def configured_proxy(url: str, env: Mapping[str, str]) -> str | None:
    """Return the proxy in REDRAFT_PROXY, which may be "env"; None for a host on this machine or on
    a private network.
    """
    return (
        None
        if is_private_host(parse_base_url(url)[0].hostname or "")
        else env.get("REDRAFT_PROXY", "").strip() or None
    )


def _address_after_prefix_error(prefix: str, name: str) -> ConfigError:
    """Return the error for `ollama:http://host/v1#NAME`."""
    address, _, named = redacted_model_name(name).partition("#")
    return ConfigError(
        (
            f"{prefix}: takes the name of a model, not an address, got {address!r}: write "
            f"{address}#{named or 'NAME'}"
        )
        + (", or set OLLAMA_HOST" if prefix == "ollama" else "")
    )


def _model_at_url(
    spec: str, env: Mapping[str, str], access: Mapping[str, str], options: dict[str, Any]
) -> Model:
    if "base_url" in access:
        raise ConfigError("base_url: the name is an address already; give one of them")
    url, _, name = spec.partition("#")
    parse_base_url(url)
    shown = redacted_url(url)
    if "?" in name:
        raise ConfigError(
            f"the query of an address comes before the name of the model: {shown}?QUERY#NAME"
        )
    if not name:
        raise ConfigError(
            f"{shown} names a server, not a model: write {shown}#NAME (`redraft models {shown}` "
            "lists the names)"
        )
    if "key" in options and parse_base_url(url)[1]:
        raise ConfigError(f"api_key: the address {shown} has a key already; give one of them")
    return connect_endpoint(name, with_version(url), env, **options)


def _model_at_base_url(
    name: str, env: Mapping[str, str], access: Mapping[str, str], options: dict[str, Any]
) -> Model:
    """Return the model with a name at the address in `access`. Raises ConfigError."""
    url = access["base_url"]
    if "#" in url:
        raise ConfigError(
            f"base_url: {redacted_url(url)} is followed by the name of a model; give that as the "
            "model alone"
        )
    if not name:
        raise ConfigError("the name of the model is missing beside base_url")
    if "api_key" in access:
        if parse_base_url(url)[1]:
            raise ConfigError("api_key: base_url has a key already; give one of them")
        options = {"key": access["api_key"]} | options
    return connect_endpoint(name, with_version(url), env, **options)


def _openai_model(name: str, env: Mapping[str, str], options: dict[str, Any]) -> Model:
    model = connect_endpoint(name, openai_url(env), env, **options)
    if not model.has_key and model.base_url.startswith(OPENAI_URL):
        raise ConfigError(f"openai:{name} needs a key: set OPENAI_API_KEY")
    return model


def connect_endpoint(name: str, url: str, env: Mapping[str, str], **options: Any) -> Chat:
    """Return the model with a name at a base URL, with the key and the proxy that the environment
    has for it.
    """
    url = options.get("base_url", url)
    return Chat(
        name,
        **{"base_url": url, "key": key_for(url, env), "proxy": configured_proxy(url, env)}
        | options,
    )


def openai_url(env: Mapping[str, str]) -> str:
    """Return the base URL of "openai:" models. Raises ConfigError if that in OPENAI_BASE_URL is
    none.
    """
    return _named_in("OPENAI_BASE_URL", env.get("OPENAI_BASE_URL", "").strip() or OPENAI_URL)


def _named_in(variable: str, url: str) -> str:
    """Return the base URL that a variable of the environment names. Raises ConfigError, with the
    variable, if it is none.
    """
    try:
        parse_base_url(url)
    except ConfigError as error:
        raise ConfigError(f"{variable}: {error}") from None
    return url


def key_for(url: str, env: Mapping[str, str]) -> str | None:
    """Return the key in the URL, or OPENAI_API_KEY if the URL has its origin; None for other
    hosts.
    """
    _, key = parse_base_url(url)
    return key or (env.get("OPENAI_API_KEY") if _has_openai_origin(url, env) else None)


def _has_openai_origin(url: str, env: Mapping[str, str]) -> bool:
    try:
        return _origin(url) == _origin(openai_url(env))
    except ConfigError:  # (OPENAI_BASE_URL is no URL: no server has its origin)
        return False


def _origin(url: str) -> tuple[str, str | None, int]:
    base, _ = parse_base_url(url)
    return base.scheme, base.hostname, port_of(base)


def server_url(server: str, env: Mapping[str, str]) -> str:
    """Return the base URL of a local server. OLLAMA_HOST, in any form that Ollama accepts, changes
    Ollama's.
    """
    ollama_host = env.get("OLLAMA_HOST", "").strip() if server == "ollama" else ""
    if not ollama_host:
        return f"{LOCAL_SERVERS[server]}/v1"
    url = ollama_host if "://" in ollama_host else f"http://{ollama_host}"
    try:
        parts = urlsplit(url)
        named_port = parts.port
    except ValueError:
        raise ConfigError(
            f"OLLAMA_HOST is HOST[:PORT] or http(s)://HOST[:PORT], got {redacted_url(url)!r}"
        ) from None
    host = "127.0.0.1" if parts.hostname in {None, "0.0.0.0"} else parts.hostname  # noqa: S104
    host = f"[{host}]" if ":" in str(host) else host
    port = {"https": 443}.get(parts.scheme, 11434) if named_port is None else named_port
    return _named_in("OLLAMA_HOST", f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}/v1")
