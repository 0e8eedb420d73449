"""The client of every endpoint that speaks OpenAI's chat protocol.

One `complete` is one HTTP call. It knows nothing of retries, limits, budgets, caches or of what a model does not
take: those are wrapped around it. What it raises is a ModelError with all that such a wrapper needs to know.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from io import BytesIO
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import orjson

from .. import checks
from ..contracts import FORMATS, Reply, Request
from ..core.errors import ConfigError, ModelError, ModelUnavailableError
from ..ledger import current_entry
from .reading import Events, Pieces, Said, Spoken, parsed, read_pace, read_refusal, read_reply, refused, shorten
from .wire import CAP, REFUSED, Route, Timeouts, exchange, fetch

__all__ = ["Chat", "Timeouts"]

OPENAI = "https://api.openai.com/v1"
_SECRET_NAME = re.compile(r"key|token|auth|secret|cookie|password", re.IGNORECASE)


class Chat:
    """A model behind an OpenAI-compatible URL.

    `key` is sent as bearer token, to this URL and nowhere else, and shown nowhere; it may also stand in the URL as
    `http://:KEY@host/v1`. `extra_body` is merged into every request; None in it takes a parameter out. With `stream`
    the answer is fetched in parts, so that a stalled one is noticed by `timeouts.idle`. `proxy` is a URL, or "env" to
    use what HTTP_PROXY, HTTPS_PROXY and NO_PROXY say; without it there is none.
    """

    formats = FORMATS

    def __init__(
        self,
        name: str,
        base_url: str = OPENAI,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        stream: bool = False,
        timeouts: Timeouts = Timeouts(),
        proxy: str | None = None,
    ) -> None:
        checks.text("the name of a model", name)
        checks.text("base_url", base_url)
        for what, secret in (("key", key), ("proxy", proxy)):
            if not (secret is None or isinstance(secret, str)):  # never shown
                raise ConfigError(f"{what} must be text or None, got {type(secret).__name__}")
        for what, given in (("headers", headers), ("extra_body", extra_body)):
            if not (given is None or isinstance(given, Mapping)):
                raise ConfigError(f"{what} must be a mapping or None, got {type(given).__name__}")
        at, in_url = endpoint(base_url)
        self.name = name
        self.base_url = at._replace(query="").geturl()
        self.host = at.netloc
        self._key = clean_key(key or in_url)
        self._extra = dict(extra_body or {})
        self._streams = stream
        self._secrets = _secrets(self._key, headers, proxy, at.query)
        self._is_openai = at.hostname == urlsplit(OPENAI).hostname
        url = at._replace(path=f"{at.path}/chat/completions").geturl()
        self.route = Route(url, _headers(self._key, headers), timeouts, proxy)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.base_url!r})"

    @property
    def timeouts(self) -> Timeouts:
        """The limits that it keeps to by itself."""
        return self.route.timeouts

    @property
    def has_key(self) -> bool:
        return self._key is not None

    @property
    def identity(self) -> str:
        """Endpoint, model and extra parameters; never the key."""
        extra = orjson.dumps(self._extra, option=orjson.OPT_SORT_KEYS).decode() if self._extra else ""
        return f"{self.base_url}#{self.name}{extra}"

    async def complete(self, request: Request) -> Reply:
        """One call, one answer."""
        if self._streams:
            return await self._last(request)
        sent = _sendable(self.body(request))
        try:
            status, headers, body = await fetch(self.route, "POST", sent, entry=current_entry())
            return self.read(status, headers, body)
        except ModelError as error:
            raise self.told(error) from None

    async def stream(self, request: Request) -> AsyncGenerator[str | Reply, None]:
        """The answer's text as it comes, and the whole Reply as the last item.

        A leading `<think>` block is held back; the Reply's text is the authority on what is answer and what thought.
        """
        try:
            async with aclosing(self._streamed(request)) as pieces:
                async for piece in pieces:
                    yield piece
        except ModelError as error:
            raise self.told(error) from None

    async def models(self) -> list[str]:
        """The names of the models this endpoint says it serves."""
        url = self.route.url.replace("/chat/completions", "/models")
        route = replace(self.route, url=url)
        try:
            status, headers, body = await fetch(route)
            if status >= 300:
                raise self.refusal(status, headers, read_refusal(body))
            return model_names(parsed(body, headers.get("Content-Type", ""))) or []
        except ModelError as error:
            raise self.told(error) from None

    async def _last(self, request: Request) -> Reply:
        async with aclosing(self.stream(request)) as pieces:
            *_, reply = [piece async for piece in pieces]
        assert isinstance(reply, Reply)
        return reply

    async def _streamed(self, request: Request) -> AsyncGenerator[str | Reply, None]:
        asked = self.body(request, stream=True, stream_options={"include_usage": True})
        entry = current_entry()
        async with exchange(self.route, "POST", _sendable(asked), stream=True, entry=entry) as (under_way, response):
            if response.status != 200 or not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                under_way.cap = CAP
                body = b"".join([part async for part in under_way.parts(response)])
                reply = self.read(response.status, response.headers, body)
                yield reply.text
                yield reply
                return
            async with aclosing(under_way.parts(response)) as parts, aclosing(_deltas(parts)) as deltas:
                async for delta in deltas:
                    yield _paced(delta, response.headers) if isinstance(delta, Reply) else delta

    def body(self, request: Request, **more: Any) -> dict[str, Any]:
        """The body of the call, as an object."""
        if self._is_openai:
            schema = unbounded(request.schema) if request.schema else None
            request = replace(request, schema=schema, unsupported=request.unsupported | {"max_tokens"})
        return without_none(request_body(self.name, request, **more) | self._extra)

    def read(self, status: int, headers: Mapping[str, str], body: bytes) -> Reply:
        """The reply in an answer. Raises ModelError for one that is none."""
        if 200 <= status < 300:
            return _paced(read_reply(parsed(body, headers.get("Content-Type", ""))), headers)
        raise self.refusal(status, headers, read_refusal(body))

    def refusal(self, status: int, headers: Mapping[str, str], said: Said) -> ModelError:
        """The error that a status of 300 and more stands for."""
        if status < 400:
            to = endpoint_shown(headers.get("Location", ""))
            why = "redirects are not followed, so that a key stays where it belongs"
            return ModelUnavailableError(f"status {status} sends us to {to}: {why}", status=status, usage=REFUSED)
        error = refused(status, said, headers)
        if status in {404, 405}:
            error.args = (f"{error}{path_hint(self.base_url)}",)
        return error

    def told(self, error: ModelError) -> ModelError:
        """The error with the model and the host in front, and no secret in it, whoever put it there."""
        error.args = (hidden(f"{self.name} at {self.host}: {error}", self._secrets),)
        return error


def _paced(reply: Reply, headers: Mapping[str, str]) -> Reply:
    """The reply with what the headers say of rate limits."""
    pace = read_pace(headers)
    return replace(reply, pace=pace) if pace else reply


async def _deltas(parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[str | Reply, None]:
    """The texts in a stream of events, and the Reply they make."""
    events, pieces, spoken = Events(), Pieces(), Spoken()
    async for part in parts:
        found = events.feed(part)
        for text in _texts(found, pieces, spoken):
            yield text
        if any(data.strip() == b"[DONE]" for _, data in found):
            break
    else:
        for text in _texts(events.end(), pieces, spoken):
            yield text
    reply = pieces.reply()
    if rest := spoken.rest():
        yield rest
    yield reply


def _texts(found: list[tuple[str, bytes]], pieces: Pieces, spoken: Spoken) -> list[str]:
    texts = []
    for name, data in found:
        if data.strip() == b"[DONE]":
            break
        event = parsed(data)
        texts.append(spoken.add(pieces.add({"error": event} if name == "error" else event)))
    return [text for text in texts if text]


def request_body(name: str, request: Request, **more: Any) -> dict[str, Any]:
    """What the protocol sends for a request; None for what is not said."""
    limit = "max_completion_tokens" if "max_tokens" in request.unsupported else "max_tokens"
    asked = {
        "model": name,
        "messages": [dict(m) for m in request.messages],
        "temperature": request.temperature,
        limit: request.max_tokens,
        "seed": request.seed,
        "response_format": response_format(request),
        **more,
    }
    return {key: value for key, value in asked.items() if key not in request.unsupported}


def response_format(request: Request) -> dict[str, Any] | None:
    """How the protocol asks for the request's format."""
    if request.format == "text":
        return None
    if request.format == "json_object" or request.schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": request.schema, "strict": True}}


def unbounded(schema: Any) -> Any:
    """A schema without bounds on the length of texts, which OpenAI's strict mode refuses."""
    if isinstance(schema, Mapping):
        return {k: unbounded(v) for k, v in schema.items() if k not in {"minLength", "maxLength"}}
    return [unbounded(v) for v in schema] if isinstance(schema, list) else schema


def model_names(data: Any) -> list[str] | None:
    """The names in a model list; None when it is no model list."""
    entries = data.get("data") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not all(isinstance(e, dict) and isinstance(e.get("id"), str) for e in entries):
        return None
    return [entry["id"] for entry in entries]


# ---- addresses and keys


def endpoint(base_url: str) -> tuple[SplitResult, str | None]:
    """A base URL without its user info, and the key that stood there. Raises ConfigError for what is no such URL."""
    try:
        parts = urlsplit(base_url.strip())
        host, _ = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError:
        raise ConfigError("a base URL is http(s)://host:port/v1: this one cannot be read") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise ConfigError(f"a base URL is http(s)://host:port/v1, got {endpoint_shown(base_url)!r}")
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2].lower(), path=path, fragment="")
    return bare, unquote(parts.password or parts.username or "") or None


def endpoint_shown(url: str) -> str:
    """A URL as it may be shown: no user info, no query."""
    scheme, slashes, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    shown = f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}" if slashes else url.rpartition("@")[2]
    return shorten(re.split(r"[?#]", shown)[0], 200)


def path_hint(base_url: str, end: str = "chat/completions") -> str:
    """What to say where a server has not what was asked for: the path, and the address to try where that lacks a version."""
    path = urlsplit(base_url).path
    asked = f" (asked for {path}/{end})"
    if re.search(r"/v[0-9]", path):
        return asked
    return f"{asked}; OpenAI-compatible servers mostly answer under /v1: try {endpoint_shown(base_url).rstrip('/')}/v1"


def clean_key(key: str | None) -> str | None:
    """A key without the white space that files leave around it. Raises ConfigError for what no header can carry."""
    key = (key or "").strip()
    if not key.isascii() or not key.isprintable():
        raise ConfigError("the API key has characters in it that no key has (it is not shown here)")
    return key or None


def hidden(text: str, secrets: Iterable[str | None]) -> str:
    """The text with stars in place of secrets."""
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return text


def _headers(key: str | None, given: Mapping[str, str] | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip", "User-Agent": "redraft"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    if not all(f"{name}{value}".isprintable() for name, value in (given or {}).items()):
        raise ConfigError("a header has characters in it that no header has (it is not shown here)")
    return headers | dict(given or {})


def _secrets(key: str | None, headers: Mapping[str, str] | None, proxy: str | None, query: str) -> list[str]:
    """All that must not appear in a message, longest first."""
    found = {key or "", (urlsplit(proxy).password or "") if proxy else ""}
    found |= {value for name, value in (headers or {}).items() if _SECRET_NAME.search(name)}
    found |= {value for name, value in parse_qsl(query) if _SECRET_NAME.search(name)}
    found |= {value.rpartition(" ")[2] for value in found}
    return sorted((s for s in found if len(s) > 3), key=len, reverse=True)


# ---- bodies


def without_none(body: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in body.items() if v is not None}


def _sendable(asked: Mapping[str, Any]) -> bytes | BytesIO:
    """The body as bytes (as a file when large: aiohttp would complain)."""
    try:
        body = _dumped(asked)
    except TypeError as error:
        raise ConfigError(f"the request cannot be written as JSON: {error}") from None
    return body if len(body) < 2**20 else BytesIO(body)


def _dumped(asked: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(asked)
    except TypeError:
        return orjson.dumps(mended(asked))


def mended(value: Any) -> Any:
    """The value with half surrogate pairs, which are no characters, replaced by U+FFFD and whole ones joined."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {mended(k): mended(v) for k, v in value.items()}
    return [mended(v) for v in value] if isinstance(value, list | tuple) else value
