"""Looking for a model: what the environment names, then servers on this machine.

It asks nothing but for lists of models, and reports on every place it looked, so that a person who has no model learns
what each would need.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias
from urllib.parse import urlsplit

from ..errors import AuthenticationError, ConfigError, ModelError
from ..protocols import Model
from .endpoint_url import path_hint, redacted_url
from .http_client import RequestTarget, Timeouts, fetch
from .openai_chat import OPENAI_URL, Chat, model_names
from .openai_responses import error_from_status, parse_body, parse_error_body, shorten
from .registry import configured_proxy, connect, key_for, openai_url, server_url

CONNECT_SECONDS = 0.25
LOCAL_TIMEOUTS = Timeouts(connect=CONNECT_SECONDS, idle=1.0, total=1.0)
REMOTE_TIMEOUTS = Timeouts(connect=3.0, idle=5.0, total=5.0)
PREFERRED_MODELS = ("gpt-4o-mini", "gpt-4.1-mini", "gpt-5-mini", "gpt-4.1-nano", "gpt-5-nano", "gpt-4o")
_NO_CHAT = re.compile(
    r"embed|rerank|whisper|tts|audio|speech|transcribe|realtime|dall-e|image|sora|moderation|davinci|babbage|instruct-\d{4}"
    r"|(^|[/_-])(bge|gte|e5|minilm|all-minilm)([/_-]|$)|codex|search|deep-research|computer-use",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A kind of local server, where it is looked for, and what to do to have one."""

    name: str
    url: str
    setup_hint: str


@dataclass(frozen=True, slots=True)
class SearchLocation:
    """One place where a model was looked for: what was found there, or what it would need."""

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
        what = " - ".join(t for t in (listed, self.note) if t)
        return f"{self.where}: {'found' if self.is_available else 'not found'}{f', {what}' if what else ''}"


@dataclass(frozen=True, slots=True)
class DiscoveryResult:
    """The first usable model, or None, and all places that were looked at, in order."""

    model: Model | None
    locations: tuple[SearchLocation, ...]

    def __str__(self) -> str:
        return "\n".join(place.summary for place in self.locations)


def local_servers(env: Mapping[str, str]) -> tuple[LocalServer, ...]:
    return (
        LocalServer("Ollama", server_url("ollama", env), "ollama pull llama3.2"),
        LocalServer("LM Studio", server_url("lmstudio", env), "start its server: lms server start"),
        LocalServer("llama.cpp", server_url("llamacpp", env), "llama-server -m FILE.gguf"),
        LocalServer("vLLM", server_url("vllm", env), "vllm serve NAME"),
    )


async def find_model(
    env: Mapping[str, str] | None = None, *, servers: Sequence[LocalServer] | None = None, search_all: bool = False
) -> DiscoveryResult:
    """Look in order: REDRAFT_MODEL, OPENAI_API_KEY and OPENAI_BASE_URL, then the local servers, all at once.

    It stops at the first place with a model unless told to look `everywhere`. Raises ConfigError when REDRAFT_MODEL
    says something that cannot be.
    """
    env = os.environ if env is None else env
    nearby = local_servers(env) if servers is None else servers
    searches: tuple[Callable[[], Awaitable[_SearchResult]], ...] = (
        lambda: _find_configured(env, check=search_all),
        lambda: _find_hosted(env),
        lambda: _find_local(env, nearby),
    )
    model: Model | None = None
    places: list[SearchLocation] = []
    for search in searches:
        if model is None or search_all:
            seen, usable = await search()
            places += seen
            model = model or usable
    return DiscoveryResult(model, tuple(places))


_SearchResult: TypeAlias = tuple[list[SearchLocation], Model | None]


async def _find_configured(env: Mapping[str, str], *, check: bool) -> _SearchResult:
    """The model that was named. Where people look (`checked`), what is wrong with it is said and not raised."""
    name = env.get("REDRAFT_MODEL", "").strip()
    if not name:
        return [SearchLocation("REDRAFT_MODEL", is_available=False, note="set it to a model, such as ollama:llama3.2")], None
    if check and name.startswith(("http://", "https://")) and "#" not in name:
        seen = await _search_endpoint(
            "REDRAFT_MODEL", name, "is that the address?", LOCAL_TIMEOUTS, key=None, proxy=configured_proxy(name, env)
        )
        return [replace(seen, is_available=False, selected_model=None, note=seen.note or "add the name of one: URL#NAME")], None
    try:
        model = connect(name, env=env)
    except ConfigError as error:
        if not check:
            raise
        return [SearchLocation("REDRAFT_MODEL", is_available=False, note=str(error))], None
    there, note = await _check_endpoint(model) if check and isinstance(model, Chat) else (True, "")
    return [SearchLocation("REDRAFT_MODEL", is_available=there, models=(model.name,), note=note, selected_model=model.name)], model


async def _check_endpoint(model: Chat) -> tuple[bool, str]:
    """Whether the endpoint of a named model answers, and what is to be said of it."""
    try:
        async with asyncio.timeout(REMOTE_TIMEOUTS.total):
            names = await model.list_models()
    except TimeoutError:
        return False, f"{model.host} does not answer"
    except ModelError as error:
        return False, str(error)
    return True, "" if model.name in names or not names else f"{model.host} does not list it, but {', '.join(names[:5])}"


async def _find_hosted(env: Mapping[str, str]) -> _SearchResult:
    url = openai_url(env)
    where = redacted_url(url)
    if not env.get("OPENAI_API_KEY") and not env.get("OPENAI_BASE_URL"):
        return [SearchLocation(where, is_available=False, note="set OPENAI_API_KEY")], None
    if url == OPENAI_URL and not env.get("OPENAI_API_KEY"):
        return [SearchLocation(where, is_available=False, note="set OPENAI_API_KEY")], None
    needs, proxy = "set OPENAI_BASE_URL to an endpoint that answers", configured_proxy(url, env)
    place = await _search_endpoint(where, url, needs, REMOTE_TIMEOUTS, key=key_for(url, env), proxy=proxy)
    if not place.selected_model and url == OPENAI_URL and not place.note.startswith("status 4"):
        place = SearchLocation(
            where, is_available=True, models=PREFERRED_MODELS[:1], note=place.note, selected_model=PREFERRED_MODELS[0]
        )
    return [place], connect(f"openai:{place.selected_model}", env=env) if place.selected_model else None


async def _find_local(env: Mapping[str, str], servers: Sequence[LocalServer]) -> _SearchResult:
    places = await asyncio.gather(*(_check_server(server, env) for server in servers))
    for server, place in zip(servers, places, strict=True):
        if place.selected_model:
            return places, Chat(place.selected_model, server.url, key=key_for(server.url, env))
    return places, None


async def _check_server(server: LocalServer, env: Mapping[str, str]) -> SearchLocation:
    where = f"{server.name} ({redacted_url(server.url)})"
    if not await _is_listening(server.url):
        return SearchLocation(where, is_available=False, note=server.setup_hint)
    return await _search_endpoint(where, server.url, server.setup_hint, LOCAL_TIMEOUTS, key=key_for(server.url, env))


async def _is_listening(url: str) -> bool:
    """Whether anybody answers there at all. (Asked first, for it costs nothing to import.)"""
    at = urlsplit(url)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(at.hostname, at.port or {"http": 80}.get(at.scheme, 443))
    except OSError:
        return False
    writer.close()
    return True


async def _search_endpoint(
    where: str, url: str, setup_hint: str, timeouts: Timeouts, *, key: str | None, proxy: str | None = None
) -> SearchLocation:
    """The place with the models that the endpoint lists, or with what is wrong with it."""
    try:
        names, ours = await _fetch_model_names(url, timeouts, key, proxy)
    except AuthenticationError as error:
        return SearchLocation(where, is_available=False, note=f"{error}; it wants a key (http://:KEY@host:port/v1#NAME)")
    except ModelError as error:
        return SearchLocation(where, is_available=False, note=f"{error}; {setup_hint}")
    if ours:
        return SearchLocation(where, is_available=False, note="this is Redraft's own gateway, no model")
    chosen = choose_model(names)
    return SearchLocation(
        where,
        is_available=chosen is not None,
        models=tuple(names),
        note="" if chosen else f"no chat model: {setup_hint}",
        selected_model=chosen,
    )


async def _fetch_model_names(url: str, timeouts: Timeouts, key: str | None, proxy: str | None) -> tuple[list[str], bool]:
    asked = Chat("-", url, key=key, timeouts=timeouts, proxy=proxy)
    try:
        return await _request_model_list(asked.target_for("/models"))
    except ModelError as error:
        raise asked.mask_error(error) from None


async def _request_model_list(target: RequestTarget) -> tuple[list[str], bool]:
    status, came_with, body = await fetch(target)
    if status != 200:
        error = error_from_status(status, parse_error_body(body))
        if status in {404, 405}:
            error.args = (f"{error}{path_hint(target.url, '/models')}",)
        raise error
    data = parse_body(body, came_with.get("Content-Type", ""))
    names = model_names(data)
    if names is None:
        raise ModelError(f"the server there is not a model server ({shorten(repr(data), 60)})")
    return names, "x-redraft" in came_with or any(entry.get("owned_by") == "redraft" for entry in data["data"])


def choose_model(names: Sequence[str]) -> str | None:
    """A small well-known model where there is one, else the first that chats."""
    chatting = [name for name in names if not _NO_CHAT.search(name)]
    return next((name for name in PREFERRED_MODELS if name in chatting), chatting[0] if chatting else None)
