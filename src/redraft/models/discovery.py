"""Find a model: the one that the environment names, then servers on this machine.

Only lists of models are requested. Every location that was searched is reported, with what it would
need to provide a model.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias
from urllib.parse import urlsplit

from ..base.text import shorten
from ..errors import AuthenticationError, ConfigError, ModelError
from ..protocols import Model
from .chat_replies import parse_body
from .endpoint_url import path_hint, redacted_url, with_version
from .http_client import Timeouts, fetch
from .http_requests import port_of
from .model_names import split_names
from .openai_chat import OPENAI_URL, Chat, model_names
from .registry import configured_proxy, connect, connect_endpoint, openai_url, server_url

CONNECT_SECONDS = 0.25
LOCAL_TIMEOUTS = Timeouts(connect=CONNECT_SECONDS, idle=1.0, total=1.0)
REMOTE_TIMEOUTS = Timeouts(connect=3.0, idle=5.0, total=5.0)
PREFERRED_MODELS = (
    "gpt-4o-mini",
    "gpt-4.1-mini",
    "gpt-5-mini",
    "gpt-4.1-nano",
    "gpt-5-nano",
    "gpt-4o",
)
_NO_CHAT = re.compile(
    r"embed|rerank|whisper|tts|audio|speech|transcribe|realtime|dall-e|image|sora|moderation|davinci|babbage|instruct-\d{4}"
    r"|(^|[/_-])(bge|gte|e5|minilm|all-minilm)([/_-]|$)|codex|search|deep-research|computer-use",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A kind of local server, its base URL, and how to start one."""

    name: str
    url: str
    setup_hint: str


@dataclass(frozen=True, slots=True)
class SearchLocation:
    """One location that was searched for a model: the models found there, or what it would need."""

    where: str
    is_available: bool
    models: tuple[str, ...] = ()
    note: str = ""
    selected_model: str | None = None

    @property
    def summary(self) -> str:
        listed = ", ".join(shorten(name, 80) for name in self.models[:8]) + (
            f" and {len(self.models) - 8} more" if len(self.models) > 8 else ""
        )
        details = " - ".join(filter(None, (listed, self.note)))
        return f"{self.where}: {'found' if self.is_available else 'not found'}{f', {details}' if details else ''}"  # noqa: E501


@dataclass(frozen=True, slots=True)
class DiscoveryResult:
    """The first usable model, or None, and all locations that were searched, in order."""

    model: Model | None
    locations: tuple[SearchLocation, ...]

    def __str__(self) -> str:
        return "\n".join(location.summary for location in self.locations)


def local_servers(env: Mapping[str, str]) -> tuple[LocalServer, ...]:
    return (
        LocalServer("Ollama", server_url("ollama", env), "ollama pull llama3.2"),
        LocalServer("LM Studio", server_url("lmstudio", env), "start its server: lms server start"),
        LocalServer("llama.cpp", server_url("llamacpp", env), "llama-server -m FILE.gguf"),
        LocalServer("vLLM", server_url("vllm", env), "vllm serve NAME"),
    )


async def find_model(
    env: Mapping[str, str] | None = None,
    *,
    servers: Sequence[LocalServer] | None = None,
    search_all: bool = False,
) -> DiscoveryResult:
    """Search for a model: REDRAFT_MODEL, then OPENAI_API_KEY and OPENAI_BASE_URL, then all local
    servers at once.

    The search stops at the first location with a model, unless `search_all` is true. Raises
    ConfigError if REDRAFT_MODEL, OPENAI_BASE_URL or OLLAMA_HOST is invalid; with `search_all` the
    result says so, and the search goes on.
    """
    env = os.environ if env is None else env
    searches: tuple[tuple[str, Callable[[], Awaitable[_SearchResult]]], ...] = (
        ("REDRAFT_MODEL", lambda: _find_configured(env, check=search_all)),
        ("OPENAI_BASE_URL", lambda: _find_hosted(env)),
        ("OLLAMA_HOST", lambda: _find_local(env, servers, check=search_all)),
    )
    model: Model | None = None
    locations: list[SearchLocation] = []
    for variable, search in searches:
        if model is None or search_all:
            try:
                searched, usable = await search()
            except ConfigError as error:
                if not search_all:
                    raise
                searched, usable = [_fault(variable, error)], None
            locations += searched
            model = model or usable
    return DiscoveryResult(model, tuple(locations))


async def search_address(url: str, env: Mapping[str, str] | None = None) -> DiscoveryResult:
    """Ask the server at an address for its models. A name after the address is ignored. Raises
    ConfigError if it is no address.
    """
    env = os.environ if env is None else env
    url = with_version(url.partition("#")[0])
    location = await _search_endpoint(
        redacted_url(url), url, "is that the address?", REMOTE_TIMEOUTS, env
    )
    model = connect_endpoint(location.selected_model, url, env) if location.selected_model else None
    return DiscoveryResult(model, (location,))


def _fault(variable: str, error: ConfigError) -> SearchLocation:
    """Return what is wrong with the value of a variable, as a location."""
    return SearchLocation(
        variable, is_available=False, note=str(error).removeprefix(f"{variable}: ")
    )


_SearchResult: TypeAlias = tuple[list[SearchLocation], Model | None]


async def _find_configured(env: Mapping[str, str], *, check: bool) -> _SearchResult:
    """Return the model in REDRAFT_MODEL. With `check`, its endpoint is asked. Raises
    ConfigError.
    """
    name = env.get("REDRAFT_MODEL", "").strip()
    if not name:
        return [
            SearchLocation(
                "REDRAFT_MODEL",
                is_available=False,
                note="set it to a model, such as ollama:llama3.2",
            )
        ], None
    if check and name.startswith(("http://", "https://")) and "#" not in name:
        location = await _search_endpoint(
            "REDRAFT_MODEL", name, "is that the address?", LOCAL_TIMEOUTS, env
        )
        note = location.note or "add the name of one: URL#NAME"
        return [replace(location, is_available=False, selected_model=None, note=note)], None
    model = connect(names if len(names := split_names(name)) > 1 else name, env=env)
    is_available, note = (
        await _check_endpoint(model) if check and isinstance(model, Chat) else (True, "")
    )
    location = SearchLocation(
        "REDRAFT_MODEL", is_available, models=(model.name,), note=note, selected_model=model.name
    )
    return [location], model


async def _check_endpoint(model: Chat) -> tuple[bool, str]:
    """Return whether the endpoint of a model answers, and a note on it."""
    try:
        async with asyncio.timeout(REMOTE_TIMEOUTS.total):
            names = await model.list_models()
    except TimeoutError:
        return False, f"{model.host} does not answer"
    except ModelError as error:
        return False, str(error)
    return (
        True,
        ""
        if model.name in names or not names
        else f"{model.host} does not list it, but {', '.join(names[:5])}",
    )


async def _find_hosted(env: Mapping[str, str]) -> _SearchResult:
    url = openai_url(env)
    where = redacted_url(url)
    if not env.get("OPENAI_API_KEY") and (url == OPENAI_URL or not env.get("OPENAI_BASE_URL")):
        return [SearchLocation(where, is_available=False, note="set OPENAI_API_KEY")], None
    location = await _search_endpoint(
        where, url, "set OPENAI_BASE_URL to an endpoint that answers", REMOTE_TIMEOUTS, env
    )
    if (
        not location.selected_model
        and url == OPENAI_URL
        and not location.note.startswith("status 4")
    ):
        location = SearchLocation(
            where,
            is_available=True,
            models=PREFERRED_MODELS[:1],
            note=location.note,
            selected_model=PREFERRED_MODELS[0],
        )
    return [location], connect(
        f"openai:{location.selected_model}", env=env
    ) if location.selected_model else None


async def _find_local(
    env: Mapping[str, str], servers: Sequence[LocalServer] | None, *, check: bool
) -> _SearchResult:
    """Return the first model of the servers on this machine. With `check`, a fault in OLLAMA_HOST
    is reported instead of raised.
    """
    faults: list[SearchLocation] = []
    if servers is None:
        try:
            servers = local_servers(env)
        except ConfigError as error:
            if not check:
                raise
            faults, servers = [_fault("OLLAMA_HOST", error)], local_servers({})[1:]
    locations = await asyncio.gather(*(_check_server(server, env) for server in servers))
    for server, location in zip(servers, locations, strict=True):
        if location.selected_model:
            return [*faults, *locations], connect_endpoint(location.selected_model, server.url, env)
    return [*faults, *locations], None


async def _check_server(server: LocalServer, env: Mapping[str, str]) -> SearchLocation:
    where = f"{server.name} ({redacted_url(server.url)})"
    if configured_proxy(server.url, env):
        return await _search_endpoint(where, server.url, server.setup_hint, REMOTE_TIMEOUTS, env)
    if not await _is_listening(server.url):
        return SearchLocation(where, is_available=False, note=server.setup_hint)
    return await _search_endpoint(where, server.url, server.setup_hint, LOCAL_TIMEOUTS, env)


async def _is_listening(url: str) -> bool:
    """Whether a server listens at a URL. (Checked first: where none does, the note is how to start
    one, and no error.)
    """
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, port_of(parts))
    except OSError:
        return False
    writer.close()
    return True


async def _search_endpoint(
    where: str, url: str, setup_hint: str, timeouts: Timeouts, env: Mapping[str, str]
) -> SearchLocation:
    """Return the location with the models that the endpoint lists, or with a note on what is
    wrong.
    """
    try:
        names, is_redraft = await _fetch_model_names(url, timeouts, env)
    except AuthenticationError as error:
        return SearchLocation(
            where,
            is_available=False,
            note=f"{error}; it requires a key (http://:KEY@host:port/v1#NAME)",
        )
    except ModelError as error:
        return SearchLocation(where, is_available=False, note=f"{error}; {setup_hint}")
    if is_redraft:
        return SearchLocation(
            where, is_available=False, note="this is Redraft's own gateway, no model"
        )
    selected = choose_model(names)
    return SearchLocation(
        where,
        is_available=selected is not None,
        models=tuple(names),
        note="" if selected else f"no chat model: {setup_hint}",
        selected_model=selected,
    )


async def _fetch_model_names(
    url: str, timeouts: Timeouts, env: Mapping[str, str]
) -> tuple[list[str], bool]:
    """Return the names that an endpoint lists, and whether it is a gateway of Redraft. Raises
    ModelError.
    """
    client = connect_endpoint("-", url, env, timeouts=timeouts)
    target = client.target_for("/models")
    try:
        status, headers, body = await fetch(target)
        if status >= 300:
            hint = path_hint(target.url, "/models")
            raise client.error_from_response(status, headers, body, hint=hint)
        data = parse_body(body, headers.get("content-type", ""))
        if (names := model_names(data)) is None:
            raise ModelError(f"the server there is not a model server ({shorten(repr(data), 60)})")
    except ModelError as error:
        raise client.with_proxy_hint(error) from None
    return names, "x-redraft" in headers or any(
        entry.get("owned_by") == "redraft" for entry in data["data"]
    )


def choose_model(names: Sequence[str]) -> str | None:
    """Return a small well-known model if there is one, else the first chat model; None if there is
    none.
    """
    chat_models = [name for name in names if not _NO_CHAT.search(name)]
    return next(
        (name for name in PREFERRED_MODELS if name in chat_models),
        chat_models[0] if chat_models else None,
    )
