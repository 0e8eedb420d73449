"""The client of every endpoint that speaks OpenAI's chat protocol.

One `complete` is one HTTP call. It knows nothing of retries, limits, budgets, caches or of what a model does not
take: those are wrapped around it. What it raises is a ModelError with all that such a wrapper needs to know.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import orjson

from .. import checks
from ..core.records import ToolCall
from ..errors import ConfigError, ModelError
from ..jsontext import replace_lone_surrogates
from ..ledger import current_entry
from ..masking import (
    Mask,
    MaskedStream,
    answer_mask,
    secrets_in_fields,
    secrets_in_headers,
    secrets_in_proxy,
    secrets_in_url,
    without_cause,
    without_secret_fields,
)
from ..protocols import FORMATS, Reply, Request
from .endpoint_url import (
    CHAT_PATH,
    check_proxy,
    clean_key,
    join_url,
    parse_base_url,
    path_hint,
    query_fingerprint,
    redirect_error,
    warn_plain_http,
)
from .http_client import MAX_BODY_BYTES, RequestTarget, Timeouts, fetch, masked_headers, open_exchange
from .openai_responses import error_from_status, parse_body, parse_error_body, read_reply
from .rate_limit_headers import parse_rate_limits
from .sse import SSEParser, StreamAssembler, VisibleText

__all__ = ["Chat", "Timeouts"]

OPENAI_URL = "https://api.openai.com/v1"
MISSING_KEY_HINT = (
    " (no key was sent: give one in the address, http://:KEY@HOST/v1#NAME; one given so is not kept with a run, so give it again)"
)


class ExtraBodyTools:
    """The tools that a model's own parameters (`extra_body`) offer to requests that write, in the form of a task's tools."""

    _extra: dict[str, Any]

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools, with those of OpenAI's earlier parameter `functions` in the present form."""
        tools, functions = self._extra.get("tools"), self._extra.get("functions")
        if isinstance(tools, list | tuple) and tools:
            return tuple(tools)
        return tuple({"type": "function", "function": f} for f in functions) if isinstance(functions, list | tuple) else ()

    @property
    def tool_choice(self) -> Any:
        """Which of them the model must call; None leaves it to the model."""
        earlier = self._extra.get("function_call")
        return self._extra.get("tool_choice") or (
            {"type": "function", "function": earlier} if isinstance(earlier, Mapping) else earlier
        )


class Chat(ExtraBodyTools):
    """A model behind an OpenAI-compatible URL.

    `key` is sent as bearer token, to this URL and nowhere else, and shown nowhere; it may also stand in the URL as
    `http://:KEY@host/v1`. `extra_body` is merged into every request; None in it takes a parameter out. What it says of tools goes
    into requests that write only, never into those of judges. With `stream`
    the answer is fetched in parts, so that a stalled one is noticed by `timeouts.idle`. `proxy` is a URL, or "env" to
    use what HTTP_PROXY, HTTPS_PROXY and NO_PROXY say; without it there is none.
    """

    formats = FORMATS

    def __init__(
        self,
        name: str,
        base_url: str = OPENAI_URL,
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
        check_proxy(proxy)
        at, in_url = parse_base_url(base_url)
        self.name = name
        self.base_url = at._replace(query="").geturl()
        self.host = at.netloc
        self._key = clean_key(key or in_url)
        self._extra = dict(extra_body or {})
        self._use_stream = stream
        self._is_openai = at.hostname == urlsplit(OPENAI_URL).hostname
        sent = _secrets(self._key, headers or {}, base_url) | set(secrets_in_fields(self._extra))
        secrets = sent | set(secrets_in_proxy(proxy))
        self._mask = Mask(secrets)
        self._base = at
        self.target = RequestTarget(join_url(at, CHAT_PATH), _headers(self._key, headers), timeouts, proxy, answer_mask(secrets))
        if sent:
            warn_plain_http(at)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.base_url!r})"

    @property
    def timeouts(self) -> Timeouts:
        """The limits that it keeps to by itself."""
        return self.target.timeouts

    @property
    def has_key(self) -> bool:
        return self._key is not None

    @property
    def identity(self) -> str:
        """Endpoint, model and extra parameters; never the key. Of a query it holds a short hash, without what is secret in it."""
        extra = orjson.dumps(without_secret_fields(self._extra), option=orjson.OPT_SORT_KEYS).decode() if self._extra else ""
        return f"{self.base_url}{query_fingerprint(self._base)}#{self.name}{extra}"

    async def complete(self, request: Request) -> Reply:
        """One call, one answer."""
        if self._use_stream:
            return await self._complete_by_stream(request)
        sent = _encode_body(self.request_body(request))
        try:
            status, headers, body = await fetch(self.target, "POST", sent, entry=current_entry())
            return self.parse_response(status, headers, body)
        except ModelError as error:
            raise self.with_context(error) from None

    async def stream(self, request: Request) -> AsyncGenerator[str | Reply, None]:
        """The answer's text as it comes, and the whole Reply as the last item.

        A leading `<think>` block is held back; the Reply's text is the authority on what is answer and what thought.
        """
        try:
            async with aclosing(self._stream_response(request)) as pieces:
                async for piece in pieces:
                    yield piece
        except ModelError as error:
            raise self.with_context(error) from None

    async def list_models(self) -> list[str]:
        """The names of the models this endpoint says it serves."""
        route = self.target_for("/models")
        try:
            status, headers, body = await fetch(route)
            if status >= 300:
                raise self.error_from_response(status, headers, body)
            return model_names(parse_body(body, headers.get("Content-Type", ""))) or []
        except ModelError as error:
            raise self.with_context(error) from None

    async def _complete_by_stream(self, request: Request) -> Reply:
        async with aclosing(self.stream(request)) as pieces:
            *_, reply = [piece async for piece in pieces]
        assert isinstance(reply, Reply)
        return reply

    async def _stream_response(self, request: Request) -> AsyncGenerator[str | Reply, None]:
        asked = self.request_body(request, stream=True, stream_options={"include_usage": True})
        entry = current_entry()
        async with open_exchange(self.target, "POST", _encode_body(asked), stream=True, entry=entry) as (under_way, response):
            if response.status != 200 or not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                under_way.cap = MAX_BODY_BYTES
                body = self.target.mask.mask_bytes(b"".join([part async for part in under_way.iter_body(response)]))
                reply = self.parse_response(response.status, masked_headers(response.headers, self.target.mask), body)
                if reply.text:
                    yield reply.text
                yield reply
                return
            async with aclosing(under_way.iter_body(response)) as parts, aclosing(_iter_deltas(parts, self.target.mask)) as deltas:
                async for delta in deltas:
                    yield _with_rate_limits(delta, response.headers) if isinstance(delta, Reply) else delta

    def target_for(self, path: str, query: str = "") -> RequestTarget:
        """The route to another path below the base URL, with the same headers, limits and secrets."""
        return replace(self.target, url=join_url(self._base, path, query))

    def request_body(self, request: Request, **parameters: Any) -> dict[str, Any]:
        """The body of the call, as an object."""
        if self._is_openai:
            schema = without_length_bounds(request.schema) if request.schema else None
            request = replace(request, schema=schema, unsupported_parameters=request.unsupported_parameters | {"max_tokens"})
        return without_none(request_body(self.name, request, **parameters) | extra_parameters(request, self._extra))

    def parse_response(self, status: int, headers: Mapping[str, str], body: bytes) -> Reply:
        """The reply in an answer. Raises ModelError for one that is none."""
        if 200 <= status < 300:
            return _with_rate_limits(
                masked_reply(read_reply(parse_body(body, headers.get("Content-Type", ""))), self.target.mask), headers
            )
        raise self.error_from_response(status, headers, body)

    def error_from_response(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        """The error that a status of 300 and more stands for."""
        if status < 400:
            return redirect_error(status, headers.get("Location", ""))
        error = error_from_status(status, parse_error_body(self._mask.mask_bytes(body)), headers)
        if status in {404, 405}:
            error.args = (f"{error}{path_hint(self.target.url)}",)
        return error

    def with_context(self, error: ModelError) -> ModelError:
        """The error with the model and the host in front, and no secret in it or behind it, whoever put it there."""
        unkeyed = "" if error.status != 401 or self.has_key or self._mask else MISSING_KEY_HINT
        error.args = (f"{self.name} at {self.host}: {error}{unkeyed}",)
        return self.mask_error(error)

    def mask_error(self, error: ModelError) -> ModelError:
        """The error without the secrets of this endpoint, and without what it was raised from."""
        error.args = (self._mask(str(error)),)
        return without_cause(error)


def _with_rate_limits(reply: Reply, headers: Mapping[str, str]) -> Reply:
    """The reply with what the headers say of rate limits."""
    pace = parse_rate_limits(headers)
    return replace(reply, rate_limit_status=pace) if pace else reply


async def _iter_deltas(parts: AsyncGenerator[bytes, None], mask: Mask) -> AsyncGenerator[str | Reply, None]:
    """The texts in a stream of events, and the Reply they make; both masked, for a secret may be spread over many events."""
    events, pieces, spoken, masked = SSEParser(), StreamAssembler(), VisibleText(), MaskedStream(mask)
    async for part in parts:
        found = [(name, mask.mask_bytes(data)) for name, data in events.feed(part)]
        for text in _visible_texts(found, pieces, spoken):
            if shown := masked.feed(text):
                yield shown
        if any(data.strip() == b"[DONE]" for _, data in found):
            break
    else:
        for text in _visible_texts([(name, mask.mask_bytes(data)) for name, data in events.finish()], pieces, spoken):
            yield masked.feed(text)
    reply = pieces.reply()
    if rest := masked.feed(spoken.flush()) + masked.flush():
        yield rest
    yield masked_reply(reply, mask)


def masked_reply(reply: Reply, mask: Mask) -> Reply:
    """The reply without secrets that were spread over the parts of a stream, or escaped; arguments of tools stay JSON."""
    if not mask:
        return reply
    calls = (ToolCall(mask(c.name), _masked_arguments(c.arguments, mask), mask(c.id)) for c in reply.tool_calls)
    return replace(
        reply,
        text=mask(reply.text),
        finish_reason=reply.finish_reason and mask(reply.finish_reason),
        reasoning=reply.reasoning and mask(reply.reasoning),
        tool_calls=tuple(calls),
    )


def _masked_arguments(arguments: str, mask: Mask) -> str:
    return mask.mask_bytes(arguments.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def _visible_texts(events: list[tuple[str, bytes]], assembler: StreamAssembler, visible: VisibleText) -> list[str]:
    texts = []
    for name, data in events:
        if data.strip() == b"[DONE]":
            break
        event = parse_body(data)
        texts.append(visible.add(assembler.add({"error": event} if name == "error" else event)))
    return [text for text in texts if text]


def request_body(name: str, request: Request, **parameters: Any) -> dict[str, Any]:
    """What the protocol sends for a request; None for what is not said."""
    limit = "max_completion_tokens" if "max_tokens" in request.unsupported_parameters else "max_tokens"
    asked = {
        "model": name,
        "messages": [dict(m) for m in request.messages],
        "temperature": request.temperature,
        limit: request.max_tokens,
        "seed": request.seed,
        "response_format": response_format(request),
        "tools": list(request.tools) or None,
        "tool_choice": request.tool_choice,
        **parameters,
    }
    return {key: value for key, value in asked.items() if key not in request.unsupported_parameters}


TOOL_OFFER_PARAMETERS = ("tools", "tool_choice", "functions", "function_call")
TOOL_PARAMETERS = (*TOOL_OFFER_PARAMETERS, "parallel_tool_calls")
"""The parameters of the protocol that are about tools; `functions` and `function_call` are OpenAI's earlier form."""


def extra_parameters(request: Request, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a model's own parameters that a request gets. What is about tools only where it writes; its own tools come first."""
    left_out = (
        TOOL_OFFER_PARAMETERS if request.is_generation and request.tools else () if request.is_generation else TOOL_PARAMETERS
    )
    return {name: value for name, value in extra.items() if name not in left_out}


def response_format(request: Request) -> dict[str, Any] | None:
    """How the protocol asks for the request's format."""
    if request.format == "text":
        return None
    if request.format == "json_object" or request.schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": request.schema, "strict": True}}


def without_length_bounds(schema: Any) -> Any:
    """A schema without bounds on the length of texts, which OpenAI's strict mode refuses."""
    if isinstance(schema, Mapping):
        return {k: without_length_bounds(v) for k, v in schema.items() if k not in {"minLength", "maxLength"}}
    return [without_length_bounds(v) for v in schema] if isinstance(schema, list) else schema


def model_names(data: Any) -> list[str] | None:
    """The names in a model list; None when it is no model list."""
    entries = data.get("data") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not all(isinstance(e, dict) and isinstance(e.get("id"), str) for e in entries):
        return None
    return [entry["id"] for entry in entries]


# ---- keys


def _headers(key: str | None, extra: Mapping[str, str] | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip", "User-Agent": "redraft"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    if not all(f"{name}{value}".isprintable() for name, value in (extra or {}).items()):
        raise ConfigError("a header has characters in it that no header has (it is not shown here)")
    return headers | dict(extra or {})


def _secrets(key: str | None, headers: Mapping[str, str], base_url: str) -> set[str]:
    """What is sent with every request and must not appear in anything that is shown or kept."""
    found = {key or "", *secrets_in_headers(headers), *secrets_in_url(base_url)}
    return found - {""}


# ---- bodies


def without_none(body: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in body.items() if v is not None}


def _encode_body(payload: Mapping[str, Any]) -> bytes | BytesIO:
    """The body as bytes (as a file when large: aiohttp would complain)."""
    try:
        body = _dump_json(payload)
    except TypeError as error:
        raise ConfigError(f"the request cannot be written as JSON: {error}") from None
    return body if len(body) < 2**20 else BytesIO(body)


def _dump_json(payload: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(payload)
    except TypeError:
        return orjson.dumps(replace_lone_surrogates(payload))
