"""The client for endpoints that speak OpenAI's chat protocol.

One `complete` is one HTTP request. Retries, limits, budgets, caches and adaptation to what a model
accepts are middleware. A failure is a ModelError with all that the middleware needs to know.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from math import inf
from time import perf_counter
from typing import Any, TypeVar
from urllib.parse import urlsplit

import orjson

from ..base import checks
from ..base.jsontext import replace_lone_surrogates
from ..base.masking import (
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
from ..base.parameters import merge_parameters
from ..errors import ConfigError, ContentFilterError, ModelError
from ..loop.records import ToolCall
from ..protocols import FORMATS, Reply, Request
from ..usage import NO_USAGE, current_entry
from .chat_replies import parse_body, read_reply
from .endpoint_url import (
    CHAT_PATH,
    check_proxy,
    clean_key,
    join_url,
    parse_base_url,
    path_hint,
    query_fingerprint,
    redirect_error,
    unused_proxy,
    warn_plain_http,
)
from .http_client import (
    MAX_BODY_BYTES,
    RequestTarget,
    Timeouts,
    fetch,
    open_exchange,
)
from .reasoning import VisibleText
from .server_errors import error_from_status, parse_error_body, stated_error
from .sse import SSEParser, StreamAssembler
from .waits import parse_rate_limits

__all__ = ["Chat", "Timeouts"]

T = TypeVar("T")

OPENAI_URL = "https://api.openai.com/v1"
MISSING_KEY_HINT = (
    " (no key was sent: give one in the address, http://:KEY@HOST/v1#NAME; it is not stored with "
    "a run, so give it each time)"
)


class ExtraBodyTools:
    """The tools in a model's own parameters (`extra_body`), which are offered to requests that
    write a text.
    """

    _extra: dict[str, Any]

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools in the form of a task's tools; OpenAI's earlier parameter `functions` is
        converted.
        """
        tools, functions = self._extra.get("tools"), self._extra.get("functions")
        if isinstance(tools, list | tuple) and tools:
            return tuple(tools)
        return (
            tuple({"type": "function", "function": f} for f in functions)
            if isinstance(functions, list | tuple)
            else ()
        )

    @property
    def tool_choice(self) -> Any:
        """Which of them the model must call; None: the model decides."""
        earlier = self._extra.get("function_call")
        return self._extra.get("tool_choice") or (
            {"type": "function", "function": earlier} if isinstance(earlier, Mapping) else earlier
        )


class Chat(ExtraBodyTools):
    """A model behind an OpenAI-compatible URL.

    Args:
        name: Name of the model.
        base_url: Base URL, such as "http://127.0.0.1:8080/v1". It may contain the key:
            `http://:KEY@host/v1`.
        key: Sent to this URL only, as bearer token, and never shown.
        headers: Headers to add to every request.
        extra_body: Parameters to add to the body of every request; None removes a parameter. Tools
            in it are offered to requests that write a text, not to judges.
        stream: Receive answers in parts, so that `timeouts.idle` applies to a stalled one.
        timeouts: Timeouts of each request.
        proxy: A URL, or "env" for HTTP_PROXY, HTTPS_PROXY and NO_PROXY. None: no proxy.

    Raises:
        ConfigError: An argument is invalid.
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
        arguments: tuple[tuple[str, object, type, str], ...] = (
            ("key", key, str, "text"),
            ("proxy", proxy, str, "text"),
            ("headers", headers, Mapping, "a mapping"),
            ("extra_body", extra_body, Mapping, "a mapping"),
        )
        for parameter, value, kind, expected in arguments:
            if not (value is None or isinstance(value, kind)):  # (the value is never shown)
                raise ConfigError(
                    f"{parameter} must be {expected} or None, got {type(value).__name__}"
                )
        base, key_in_url = parse_base_url(base_url)
        check_proxy(proxy, base_url)
        self.name = name
        self.base_url = base._replace(query="").geturl()
        self.host = base.netloc
        key = clean_key(key or key_in_url)
        self.has_key = key is not None
        self.timeouts = timeouts
        self._extra = dict(extra_body or {})
        self._use_stream = stream
        self._is_openai = base.hostname == urlsplit(OPENAI_URL).hostname
        sent_secrets = {
            key or "",
            *secrets_in_headers(headers or {}),
            *secrets_in_url(base_url),
        } - {""}
        sent_secrets |= set(secrets_in_fields(self._extra))
        secrets = sent_secrets | set(secrets_in_proxy(proxy))
        self._mask = Mask(secrets)
        self._base = base
        self.target = RequestTarget(
            join_url(base, CHAT_PATH),
            _headers(key, headers),
            timeouts,
            proxy,
            answer_mask(secrets),
        )
        if sent_secrets:
            warn_plain_http(base)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.base_url!r})"

    @property
    def identity(self) -> str:
        """Endpoint, model and extra parameters, without secrets. The query is a short hash."""
        extra = (
            orjson.dumps(without_secret_fields(self._extra), option=orjson.OPT_SORT_KEYS).decode()
            if self._extra
            else ""
        )
        return f"{self.base_url}{query_fingerprint(self._base)}#{self.name}{extra}"

    async def complete(self, request: Request) -> Reply:
        """Send a request and return the reply. Raises ModelError."""
        if self._use_stream:
            return await self._complete_by_stream(request)
        encoded = dump_request(self.request_body(request))
        try:
            status, headers, body = await fetch(self.target, "POST", encoded, entry=current_entry())
            return self.parse_response(status, headers, body)
        except ModelError as error:
            raise self.with_context(error) from None

    async def stream(self, request: Request) -> AsyncGenerator[str | Reply, None]:
        """Yield the text of the answer as it arrives, and the whole Reply as the last item. Raises
        ModelError.

        Reasoning in the text is held back, in the form of any model family. Text before the end of
        a block that the chat template began has been shown when that end arrives; then the whole
        answer follows. The Reply has the answer alone.
        """
        try:
            async with aclosing(self._stream_response(request)) as deltas:
                async for delta in deltas:
                    yield delta
        except ModelError as error:
            raise self.with_context(error) from None

    async def list_models(self) -> list[str]:
        """Return the names of the models that the endpoint lists. Raises ModelError."""
        try:
            status, headers, body = await fetch(self.target_for("/models"))
            if status >= 300:
                raise self.error_from_response(status, headers, body)
            return model_names(parse_body(body, headers.get("content-type", ""))) or []
        except ModelError as error:
            raise self.with_context(error) from None

    async def post(self, path: str, body: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """Send a body as JSON to another path below the base URL; return what `read` makes of the
        response. Raises ModelError.
        """
        target = self.target_for(path)
        try:
            status, headers, content = await fetch(
                target, "POST", dump_request(body), entry=current_entry()
            )
            if not 200 <= status < 300:
                raise self.error_from_response(
                    status, headers, content, hint=f" (asked for {urlsplit(target.url).path})"
                )
            return read(parse_body(content, headers.get("content-type", "")))
        except ModelError as error:
            raise self.with_context(error) from None

    async def _complete_by_stream(self, request: Request) -> Reply:
        async with aclosing(self.stream(request)) as deltas:
            *_, reply = [delta async for delta in deltas]
        assert isinstance(reply, Reply)
        return reply

    async def _stream_response(self, request: Request) -> AsyncGenerator[str | Reply, None]:
        body = dump_request(
            self.request_body(request, stream=True, stream_options={"include_usage": True})
        )
        entry, started = current_entry(), perf_counter()
        async with open_exchange(self.target, "POST", body, stream=True, entry=entry) as (
            exchange,
            response,
        ):
            if response.status != 200 or not response.headers.get("content-type", "").startswith(
                "text/event-stream"
            ):
                exchange.cap = MAX_BODY_BYTES
                reply = self.parse_response(*await exchange.read_rest(response))
                if reply.text:
                    yield reply.text
                yield reply
                return
            async with (
                aclosing(exchange.iter_body(response)) as parts,
                aclosing(_iter_deltas(parts, self.target.mask, started)) as deltas,
            ):
                async for delta in deltas:
                    yield (
                        _with_rate_limits(delta, response.headers)
                        if isinstance(delta, Reply)
                        else delta
                    )

    def target_for(self, path: str, query: str = "") -> RequestTarget:
        """Return the target for another path below the base URL, with the same headers, timeouts
        and secrets.
        """
        return replace(self.target, url=join_url(self._base, path, query))

    def request_body(self, request: Request, **parameters: Any) -> dict[str, Any]:
        """Return the body of a request as an object."""
        if self._is_openai:
            schema = without_length_bounds(request.schema) if request.schema else None
            request = replace(
                request,
                schema=schema,
                unsupported_parameters=request.unsupported_parameters | {"max_tokens"},
            )
        return complete_body(request_body(self.name, request, **parameters), request, self._extra)

    def parse_response(self, status: int, headers: Mapping[str, str], body: bytes) -> Reply:
        """Return the reply in a response. Raises ModelError if it is none."""
        if not 200 <= status < 300:
            raise self.error_from_response(status, headers, body)
        # some servers stream whether asked or not
        if body[:64].lstrip().startswith(b"data:"):
            reply = _reply_in_events(body)
        else:
            reply = read_reply(parse_body(body, headers.get("content-type", "")))
        return _with_rate_limits(masked_reply(reply, self.target.mask), headers)

    def error_from_response(
        self, status: int, headers: Mapping[str, str], body: bytes, *, hint: str = ""
    ) -> ModelError:
        """Return the error for a status of 300 or more; `hint` replaces what is added to the
        message of a 404.
        """
        if status < 400:
            return redirect_error(status, headers.get("location", ""))
        error = error_from_status(status, parse_error_body(self._mask.mask_bytes(body)), headers)
        if status in {404, 405}:
            error.args = (f"{error}{hint or path_hint(self.target.url)}",)
        return error

    def with_context(self, error: ModelError) -> ModelError:
        """Add the model and the host to an error, and remove secrets from it and its cause."""
        hint = "" if error.status != 401 or self.has_key or self._mask else MISSING_KEY_HINT
        error.args = (f"{self.name} at {self.host}: {error}{hint}",)
        return self.with_proxy_hint(error)

    def with_proxy_hint(self, error: ModelError) -> ModelError:
        """Add a proxy that is not used to an error without a connection, and remove secrets from it
        and its cause.
        """
        is_connected = not error.retryable or error.status is not None or error.usage != NO_USAGE
        variable = "" if is_connected or self.target.proxy else unused_proxy(self.target.url)
        hint = f" (the proxy in {variable} is used only with REDRAFT_PROXY=env)" if variable else ""
        error.args = (self._mask(f"{error}{hint}"),)
        if isinstance(error, ContentFilterError):
            error.refusal = self._mask(error.refusal)
        return without_cause(error)


def _with_rate_limits(reply: Reply, headers: Mapping[str, str]) -> Reply:
    """Add the rate limits in the headers to a reply."""
    rate_limits = parse_rate_limits(headers)
    return replace(reply, rate_limit_status=rate_limits) if rate_limits else reply


async def _iter_deltas(
    parts: AsyncGenerator[bytes, None], mask: Mask, started: float
) -> AsyncGenerator[str | Reply, None]:
    """Yield the texts in a stream of events, and then the whole Reply. Both are masked: a secret
    may span several events. `started`: when the request was sent, as `perf_counter` says it.
    """
    parser, assembler, visible, masked = (
        SSEParser(),
        StreamAssembler(),
        VisibleText(),
        MaskedStream(mask),
    )
    first_chunk_seconds = inf
    async for part in parts:
        first_chunk_seconds = min(first_chunk_seconds, perf_counter() - started)
        events = [(name, mask.mask_bytes(data)) for name, data in parser.feed(part)]
        for text in _visible_texts(events, assembler, visible):
            if masked_text := masked.feed(text):
                yield masked_text
        if any(data.strip() == b"[DONE]" for _, data in events):
            break
    else:
        for text in _visible_texts(
            [(name, mask.mask_bytes(data)) for name, data in parser.finish()], assembler, visible
        ):
            yield masked.feed(text)
    reply = replace(masked_reply(assembler.reply(), mask), first_chunk_seconds=first_chunk_seconds)
    if rest := masked.feed(visible.flush()) + masked.flush():
        yield rest
    elif reply.text and not visible.has_shown:  # (it was in the reasoning)
        yield reply.text
    yield reply


def masked_reply(reply: Reply, mask: Mask) -> Reply:
    """Mask secrets that were escaped or spread over a stream; the arguments of tool calls stay
    valid JSON.
    """
    if not mask:
        return reply
    calls = (
        ToolCall(mask(c.name), _masked_arguments(c.arguments, mask), mask(c.id))
        for c in reply.tool_calls
    )
    tokens = "".join(token.token for token in reply.token_logprobs)
    return replace(
        reply,
        text=mask(reply.text),
        finish_reason=reply.finish_reason and mask(reply.finish_reason),
        response_id=mask(reply.response_id),
        response_model=mask(reply.response_model),
        reasoning=reply.reasoning and mask(reply.reasoning),
        tool_calls=tuple(calls),
        token_logprobs=reply.token_logprobs if mask(tokens) == tokens else (),
    )


def _masked_arguments(arguments: str, mask: Mask) -> str:
    return mask.mask_bytes(arguments.encode("utf-8", "surrogatepass")).decode(
        "utf-8", "surrogatepass"
    )


def _reply_in_events(body: bytes) -> Reply:
    """Return the reply in the events of a whole stream."""
    parser, assembler = SSEParser(), StreamAssembler()
    _visible_texts([*parser.feed(body), *parser.finish()], assembler, VisibleText())
    return assembler.reply()


def _visible_texts(
    events: list[tuple[str, bytes]], assembler: StreamAssembler, visible: VisibleText
) -> list[str]:
    texts = []
    for name, data in events:
        if data.strip() == b"[DONE]":
            break
        event = parse_body(data)
        is_bare_error = name == "error" and not stated_error(event)
        texts.append(visible.add(assembler.add({"error": event} if is_bare_error else event)))
    return [text for text in texts if text]


def request_body(name: str, request: Request, **parameters: Any) -> dict[str, Any]:
    """Return the parameters that the protocol sends for a request; None for those that are not
    set.
    """
    top_logprobs = None if "logprobs" in request.unsupported_parameters else request.top_logprobs
    max_tokens = (
        "max_completion_tokens" if "max_tokens" in request.unsupported_parameters else "max_tokens"
    )
    body = {
        "model": name,
        "messages": [dict(m) for m in request.messages],
        "temperature": request.temperature,
        max_tokens: request.max_tokens,
        "seed": request.seed,
        "response_format": response_format(request),
        "tools": list(request.tools) or None,
        "tool_choice": request.tool_choice,
        "logprobs": True if top_logprobs else None,
        "top_logprobs": top_logprobs,
        **parameters,
    }
    for parameter in request.unsupported_parameters:
        body.pop(parameter, None)
    return body


def complete_body(
    body: dict[str, Any], request: Request, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a body with the parameters of a model and of the request, which win; what is None
    is left out.
    """
    own = extra_parameters(request, extra) if extra else {}
    return without_none(body | (merge_parameters(own, request.params) if request.params else own))


TOOL_OFFER_PARAMETERS = ("tools", "tool_choice", "functions", "function_call")
TOOL_PARAMETERS = (*TOOL_OFFER_PARAMETERS, "parallel_tool_calls")
"""The parameters for tools; `functions` and `function_call` are OpenAI's earlier form."""


def extra_parameters(request: Request, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's own parameters for a request. Tools are for requests that write a text and
    have no tools themselves.
    """
    omitted: tuple[str, ...] = ()
    if not request.is_generation:
        omitted = TOOL_PARAMETERS
    elif request.tools:
        omitted = TOOL_OFFER_PARAMETERS
    return {name: value for name, value in extra.items() if name not in omitted}


def response_format(request: Request) -> dict[str, Any] | None:
    """Return the parameter that asks for the request's format."""
    if request.format == "text":
        return None
    if request.format == "json_object" or request.schema is None:
        return {"type": "json_object"}
    return {
        "type": "json_schema",
        "json_schema": {
            "name": "answer",
            "schema": request.schema,
            "strict": is_strict_schema(request.schema),
        },
    }


NOT_STRICT = frozenset(
    (
        "allOf",
        "oneOf",
        "not",
        "if",
        "patternProperties",
        "dependentSchemas",
        "dependentRequired",
        "prefixItems",
    )
)


def is_strict_schema(schema: Any) -> bool:
    """Return whether a schema is one for strict mode: its objects are closed, and require all of
    their properties.

    An endpoint follows another schema only as far as it can; in strict mode it would refuse it.
    """
    if isinstance(schema, list | tuple):
        return all(map(is_strict_schema, schema))
    if not isinstance(schema, Mapping):
        return True
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        is_closed = schema.get("additionalProperties") is False and sorted(
            schema.get("required", ())
        ) == sorted(properties)
    else:
        is_closed, properties = schema.get("type") != "object", {}
    rest = [
        value
        for key, value in schema.items()
        if key not in {"properties", "required", "enum", "const"}
    ]
    return (
        is_closed
        and NOT_STRICT.isdisjoint(schema)
        and all(map(is_strict_schema, [*properties.values(), *rest]))
    )


def without_length_bounds(schema: Any) -> Any:
    """Return a schema without bounds on the length of texts, which OpenAI's strict mode refuses."""
    if isinstance(schema, Mapping):
        return {
            k: without_length_bounds(v)
            for k, v in schema.items()
            if k not in {"minLength", "maxLength"}
        }
    return [without_length_bounds(v) for v in schema] if isinstance(schema, list) else schema


def model_names(data: Any) -> list[str] | None:
    """Return the names in a model list; None if it is no model list."""
    entries = data.get("data") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not all(
        isinstance(e, dict) and isinstance(e.get("id"), str) for e in entries
    ):
        return None
    return [entry["id"] for entry in entries]


# ---- headers


def _headers(key: str | None, extra: Mapping[str, str] | None) -> dict[str, str]:
    headers = {
        "Content-Type": "application/json",
        "Accept-Encoding": "gzip",
        "User-Agent": "redraft",
    }
    if key:
        headers["Authorization"] = f"Bearer {key}"
    if not all(f"{name}{value}".isprintable() for name, value in (extra or {}).items()):
        raise ConfigError(
            "a header has characters that a header cannot contain (it is not shown here)"
        )
    return headers | dict(extra or {})


# ---- bodies


def without_none(body: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in body.items() if v is not None}


def dump_request(payload: Mapping[str, Any]) -> bytes:
    """Return a request as JSON. Raises ConfigError if it contains other values."""
    try:
        return orjson.dumps(payload)
    except TypeError:
        pass
    try:
        return orjson.dumps(replace_lone_surrogates(payload))
    except TypeError as error:
        raise ConfigError(f"the request cannot be written as JSON: {error}") from None
