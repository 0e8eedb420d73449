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
from .endpoint_url import endpoint_shown, path_hint
from .http_client import Route, Timeouts, fetch
from .openai_chat import OPENAI, Chat, model_names
from .openai_responses import parsed, read_refusal, refused, shorten
from .registry import connect, key_for, openai_url, proxy_to, server_url

CONNECT_SECONDS = 0.25
NEAR = Timeouts(connect=CONNECT_SECONDS, idle=1.0, total=1.0)
FAR = Timeouts(connect=3.0, idle=5.0, total=5.0)
PREFERRED = ("gpt-4o-mini", "gpt-4.1-mini", "gpt-5-mini", "gpt-4.1-nano", "gpt-5-nano", "gpt-4o")
_NO_CHAT = re.compile(
    r"embed|rerank|whisper|tts|audio|speech|transcribe|realtime|dall-e|image|sora|moderation|davinci|babbage|instruct-\d{4}"
    r"|(^|[/_-])(bge|gte|e5|minilm|all-minilm)([/_-]|$)|codex|search|deep-research|computer-use",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Server:
    """A kind of local server, where it is looked for, and what to do to have one."""

    name: str
    url: str
    needs: str


@dataclass(frozen=True, slots=True)
class Place:
    """One place where a model was looked for: what was found there, or what it would need."""

    where: str
    found: bool
    names: tuple[str, ...] = ()
    note: str = ""
    chosen: str | None = None

    @property
    def line(self) -> str:
        listed = ", ".join(shorten(name, 80) for name in self.names[:8]) + (
            f" and {len(self.names) - 8} more" if len(self.names) > 8 else ""
        )
        what = " - ".join(t for t in (listed, self.note) if t)
        return f"{self.where}: {'found' if self.found else 'not found'}{f', {what}' if what else ''}"


@dataclass(frozen=True, slots=True)
class Found:
    """The first usable model, or None, and all places that were looked at, in order."""

    model: Model | None
    places: tuple[Place, ...]

    def __str__(self) -> str:
        return "\n".join(place.line for place in self.places)


def local_servers(env: Mapping[str, str]) -> tuple[Server, ...]:
    return (
        Server("Ollama", server_url("ollama", env), "ollama pull llama3.2"),
        Server("LM Studio", server_url("lmstudio", env), "start its server: lms server start"),
        Server("llama.cpp", server_url("llamacpp", env), "llama-server -m FILE.gguf"),
        Server("vLLM", server_url("vllm", env), "vllm serve NAME"),
    )


async def find(env: Mapping[str, str] | None = None, *, servers: Sequence[Server] | None = None, everywhere: bool = False) -> Found:
    """Look in order: REDRAFT_MODEL, OPENAI_API_KEY and OPENAI_BASE_URL, then the local servers, all at once.

    It stops at the first place with a model unless told to look `everywhere`. Raises ConfigError when REDRAFT_MODEL
    says something that cannot be.
    """
    env = os.environ if env is None else env
    nearby = local_servers(env) if servers is None else servers
    searches: tuple[Callable[[], Awaitable[_Seen]], ...] = (
        lambda: _named(env, checked=everywhere),
        lambda: _hosted(env),
        lambda: _nearby(env, nearby),
    )
    model: Model | None = None
    places: list[Place] = []
    for search in searches:
        if model is None or everywhere:
            seen, usable = await search()
            places += seen
            model = model or usable
    return Found(model, tuple(places))


_Seen: TypeAlias = tuple[list[Place], Model | None]


async def _named(env: Mapping[str, str], *, checked: bool) -> _Seen:
    """The model that was named. Where people look (`checked`), what is wrong with it is said and not raised."""
    name = env.get("REDRAFT_MODEL", "").strip()
    if not name:
        return [Place("REDRAFT_MODEL", found=False, note="set it to a model, such as ollama:llama3.2")], None
    if checked and name.startswith(("http://", "https://")) and "#" not in name:
        seen = await _asked("REDRAFT_MODEL", name, "is that the address?", NEAR, key=None, proxy=proxy_to(name, env))
        return [replace(seen, found=False, chosen=None, note=seen.note or "add the name of one: URL#NAME")], None
    try:
        model = connect(name, env=env)
    except ConfigError as error:
        if not checked:
            raise
        return [Place("REDRAFT_MODEL", found=False, note=str(error))], None
    there, note = await _met(model) if checked and isinstance(model, Chat) else (True, "")
    return [Place("REDRAFT_MODEL", found=there, names=(model.name,), note=note, chosen=model.name)], model


async def _met(model: Chat) -> tuple[bool, str]:
    """Whether the endpoint of a named model answers, and what is to be said of it."""
    try:
        async with asyncio.timeout(FAR.total):
            names = await model.models()
    except TimeoutError:
        return False, f"{model.host} does not answer"
    except ModelError as error:
        return False, str(error)
    return True, "" if model.name in names or not names else f"{model.host} does not list it, but {', '.join(names[:5])}"


async def _hosted(env: Mapping[str, str]) -> _Seen:
    url = openai_url(env)
    where = endpoint_shown(url)
    if not env.get("OPENAI_API_KEY") and not env.get("OPENAI_BASE_URL"):
        return [Place(where, found=False, note="set OPENAI_API_KEY")], None
    if url == OPENAI and not env.get("OPENAI_API_KEY"):
        return [Place(where, found=False, note="set OPENAI_API_KEY")], None
    needs, proxy = "set OPENAI_BASE_URL to an endpoint that answers", proxy_to(url, env)
    place = await _asked(where, url, needs, FAR, key=key_for(url, env), proxy=proxy)
    if not place.chosen and url == OPENAI and not place.note.startswith("status 4"):
        place = Place(where, found=True, names=PREFERRED[:1], note=place.note, chosen=PREFERRED[0])
    return [place], connect(f"openai:{place.chosen}", env=env) if place.chosen else None


async def _nearby(env: Mapping[str, str], servers: Sequence[Server]) -> _Seen:
    places = await asyncio.gather(*(_near(server, env) for server in servers))
    for server, place in zip(servers, places, strict=True):
        if place.chosen:
            return places, Chat(place.chosen, server.url, key=key_for(server.url, env))
    return places, None


async def _near(server: Server, env: Mapping[str, str]) -> Place:
    where = f"{server.name} ({endpoint_shown(server.url)})"
    if not await _listening(server.url):
        return Place(where, found=False, note=server.needs)
    return await _asked(where, server.url, server.needs, NEAR, key=key_for(server.url, env))


async def _listening(url: str) -> bool:
    """Whether anybody answers there at all. (Asked first, for it costs nothing to import.)"""
    at = urlsplit(url)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(at.hostname, at.port or {"http": 80}.get(at.scheme, 443))
    except OSError:
        return False
    writer.close()
    return True


async def _asked(where: str, url: str, needs: str, timeouts: Timeouts, *, key: str | None, proxy: str | None = None) -> Place:
    """The place with the models that the endpoint lists, or with what is wrong with it."""
    try:
        names, ours = await _listed(url, timeouts, key, proxy)
    except AuthenticationError as error:
        return Place(where, found=False, note=f"{error}; it wants a key (http://:KEY@host:port/v1#NAME)")
    except ModelError as error:
        return Place(where, found=False, note=f"{error}; {needs}")
    if ours:
        return Place(where, found=False, note="this is Redraft's own gateway, no model")
    chosen = choose(names)
    return Place(
        where, found=chosen is not None, names=tuple(names), note="" if chosen else f"no chat model: {needs}", chosen=chosen
    )


async def _listed(url: str, timeouts: Timeouts, key: str | None, proxy: str | None) -> tuple[list[str], bool]:
    asked = Chat("-", url, key=key, timeouts=timeouts, proxy=proxy)
    try:
        return await _read_list(asked.route_to("/models"))
    except ModelError as error:
        raise asked.masked(error) from None


async def _read_list(route: Route) -> tuple[list[str], bool]:
    status, came_with, body = await fetch(route)
    if status != 200:
        error = refused(status, read_refusal(body))
        if status in {404, 405}:
            error.args = (f"{error}{path_hint(route.url, '/models')}",)
        raise error
    data = parsed(body, came_with.get("Content-Type", ""))
    names = model_names(data)
    if names is None:
        raise ModelError(f"what answers there is no model server ({shorten(repr(data), 60)})")
    return names, "x-redraft" in came_with or any(entry.get("owned_by") == "redraft" for entry in data["data"])


def choose(names: Sequence[str]) -> str | None:
    """A small well-known model where there is one, else the first that chats."""
    chatting = [name for name in names if not _NO_CHAT.search(name)]
    return next((name for name in PREFERRED if name in chatting), chatting[0] if chatting else None)
