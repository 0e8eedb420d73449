"""The work behind `pass/NAME`: a request goes to a model as it is, and its reply comes back as it
is.

If the client speaks the protocol of the model, only the model's name in the request is changed, and
the reply is that of the model, without a chunk of usage that the client did not ask for. Otherwise
the request is read into the neutral form and written in the protocol of the model, and so is the
reply on its way back (see `protocols`). What the other protocol cannot say is left out, which a
header tells; what would change the answer is refused with a 400 that names it.

Nothing is sent again after a failure. What a server has never understood is sent in another form:
without `stream_options`, or as chat completions instead of responses. The model's name in a reply
is the one that the model states, not the client's `pass/NAME`. The client's key is not sent to a
model, and the gateway's key not to a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any, Self

from ..base.jsontext import dumps, loads
from ..base.masking import (
    MASK,
    NO_SECRETS,
    Mask,
    secrets_in_proxy,
    secrets_in_url,
    without_cause,
)
from ..base.text import shorten
from ..base.threads import run_in_thread_if_large
from ..errors import ConfigError, ModelError
from ..models.chat_replies import json_type_name
from ..models.endpoint_url import (
    check_proxy,
    clean_key,
    join_url,
    parse_base_url,
    with_version,
)
from ..models.http_client import REFUSED_USAGE, HttpExchange, RequestTarget, Timeouts
from ..models.pricing import Price, price_of
from ..models.registry import configured_proxy
from ..models.server_errors import ErrorBody, answer_error, parse_error_body, stated_error
from ..usage import Usage, current_ledger
from .config import ServedModel
from .exchange import GatewayError
from .forwarded_calls import reply_fields
from .neutral import Event, ProtocolName, Request
from .protocols.protocol import ClientProtocol
from .protocols.registry import CLIENTS, MODELS
from .protocols.streams import EventReader, EventWriter
from .stream_usage import StreamEnds, UsageRemover, cache_surcharge, token_counts
from .token_estimate import estimated_tokens
from .upstream_errors import error_from_failure, error_from_reply, unreadable_reply

if TYPE_CHECKING:
    from ..models.http_sessions import Response

PATHS: Mapping[str, str] = {
    "chat": "/chat/completions",
    "responses": "/responses",
    "messages": "/messages",
}
COUNT_PATH = "/messages/count_tokens"
ANTHROPIC_VERSION = "2023-06-01"
# of a client, to a model that speaks Anthropic's protocol
FORWARDED_HEADERS = ("anthropic-beta", "anthropic-version")
RETURNED_HEADERS = ("request-id", "x-request-id")  # of a model
MAX_IDLE_SECONDS = 300.0
ROOM_SECONDS = (
    20.0  # for which a request waits while this process has no room for another connection
)
# for a server to end the body after the last event; then the connection is closed instead of kept
END_SECONDS = 0.25
MAX_REPLY_BYTES = 32 * 2**20
MAX_STREAM_BYTES = 64 * 2**20
EVENT_STREAM = "text/event-stream"
UNKNOWN_PATH = frozenset({404, 405, 501})
ANSWER_FIELDS = ("choices", "content", "output")


class ForwardedReply:
    """The reply of a model to a request that was passed on. Iterate over it once, for its bytes.

    `usage` is known once the last part is returned; it stays None if the reply breaks off or is
    closed before. `failure` is the error with which a stream ended: its last event told it.
    `ignored`: the fields of the request that the model did not get. Closing the reply (`aclose`)
    closes the connection to the model, which then stops its work. `fields`: what it says besides
    its text (see `reply_fields`), known when `usage` is.
    """

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        usage: Usage | None = None,
        response: Response | None = None,
        ignored: tuple[str, ...] = (),
    ) -> None:
        self.status = 200
        self.headers = dict(headers)
        self.ignored = ignored
        self.is_stream = response is not None
        self.usage = usage
        self.fields: Mapping[str, Any] = {}
        self.failure: GatewayError | None = None
        self._parts, self._response = parts, response

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts

    def raise_failure(self) -> None:
        """Raise the error with which a stream ended, if it did, once."""
        failure, self.failure = self.failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # which keeps this frame

    def release(self) -> None:
        """Leave the connection to who reads the end of the body; closing the reply no longer closes
        it.
        """
        self._response = None

    async def aclose(self) -> None:
        """Close the connection to the model, if it is still open."""
        if self._response is not None:
            self._response.close()
        await self._parts.aclose()


class Upstream:
    """A model behind the gateway: where its requests go, with which key, and what it has refused so
    far.
    """

    def __init__(self, model: ServedModel, env: Mapping[str, str]) -> None:
        self.model = model
        base, key_in_url = parse_base_url(with_version(model.url))
        self._base, self._key = base, clean_key(_key_of(model, env) or key_in_url)
        self._proxy = configured_proxy(model.url, env)
        check_proxy(self._proxy, model.url)
        self.base_url, self.host = base._replace(query="").geturl(), base.netloc
        found = (self._key, *secrets_in_url(model.url), *secrets_in_proxy(self._proxy))
        self.secrets = set(filter(None, found))
        self.mask = Mask(self.secrets) if self.secrets else NO_SECRETS
        self._key_bytes = self._key.encode() if self._key and self.mask else None
        self._headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            **self._key_headers(),
        }
        self.timeouts = Timeouts(
            idle=min(model.timeout, MAX_IDLE_SECONDS), total=model.timeout, room=ROOM_SECONDS
        )
        self.price = Price(*model.prices) if model.prices else price_of(model.model, self.base_url)
        self.unknown_paths: set[str] = set()
        self.reports_usage_in_streams = True
        self.longest_answer = 0  # in tokens, as far as it is known
        self._endings: set[asyncio.Task[None]] = set()

    def _key_headers(self) -> dict[str, str]:
        if self.model.kind == "anthropic":
            return {"anthropic-version": ANTHROPIC_VERSION} | (
                {"x-api-key": self._key} if self._key else {}
            )
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    @property
    def is_openai(self) -> bool:
        """Whether this is OpenAI itself, which has a name of its own for `max_tokens`."""
        return self._base.hostname == "api.openai.com"

    def protocol(self, client: ProtocolName) -> ProtocolName:
        """Return the protocol in which a client of this protocol is served."""
        if self.model.kind == "anthropic":
            return "messages"
        is_known = client == "responses" and PATHS["responses"] not in self.unknown_paths
        return "responses" if is_known else "chat"

    def exchange(
        self,
        path: str,
        headers: Mapping[str, str],
        *,
        stream: bool = False,
        query: str = "",
        content_type: str = "application/json",
    ) -> HttpExchange:
        """Return a new request to a path below the base URL, with the headers of the client that
        may be passed on.

        It is a call of the ledger that is open.
        """
        target = self.target(path, headers, query, content_type)
        # a new connection, cheap without TLS
        ledger, is_new = (current_ledger(), stream and self._base.scheme == "http")
        exchange = HttpExchange(target, stream=is_new, entry=ledger.new_entry() if ledger else None)
        exchange.cap = MAX_STREAM_BYTES if stream else MAX_REPLY_BYTES
        return exchange

    def target(
        self,
        path: str,
        headers: Mapping[str, str] = {},
        query: str = "",
        content_type: str = "application/json",
    ) -> RequestTarget:
        """Return where requests to a path below the base URL go, with the headers of the client
        that may be passed on.
        """
        extra = (
            {name: headers[name] for name in FORWARDED_HEADERS if name in headers}
            if self.model.kind == "anthropic"
            else {}
        )
        return RequestTarget(
            join_url(self._base, path, query),
            self._headers | extra | {"Content-Type": content_type},
            self.timeouts,
            self._proxy,
        )

    def end_in_background(self, response: Response) -> None:
        """Read the end of a body whose last event has arrived, so that its connection can be used
        again, for END_SECONDS at most.

        The model's server then sees that its client has read everything.
        """
        task = asyncio.create_task(_read_end(response))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def aclose(self) -> None:
        """Close the connections on which nothing but the end of a body is read."""
        for task in self._endings:
            task.cancel()
        if self._endings:
            await asyncio.wait(self._endings)

    def without_key(self, part: bytes) -> bytes:
        """Return a part of a reply without the key, which a server may echo."""
        return part.replace(self._key_bytes, MASK.encode()) if self._key_bytes else part

    def usage(self, reported: Any) -> Usage:
        """Return the usage of a call with its cost, from the usage object of a reply."""
        usage = Usage(1, *token_counts(reported), cost=None)
        self.longest_answer = max(self.longest_answer, usage.output_tokens or 0)
        cost = self.price.cost(usage) if self.price else None
        if cost is not None and self.price:
            cost += cache_surcharge(reported) * self.price.input / 1e6
        return usage.with_cost(cost)

    def without_secrets(self, error: GatewayError) -> GatewayError:
        """Return the error for a reply that cannot be read, without the key, which a server may
        echo.
        """
        return GatewayError(error.status, error.code, self.mask(error.message), cause=error.cause)

    def failure(self, exchange: HttpExchange, error: Exception) -> GatewayError:
        """Return the error for a request without a reply."""
        failure = error if isinstance(error, ModelError) else exchange.to_model_error(error)
        return without_cause(error_from_failure(self.model.name, failure, self.mask(str(failure))))


async def _read_end(response: Response) -> None:
    try:
        with suppress(OSError):
            async with asyncio.timeout(END_SECONDS):
                while await response.read_part():
                    pass
    finally:
        response.close()


def _key_of(model: ServedModel, env: Mapping[str, str]) -> str | None:
    if model.key_env is None:
        return None
    if not env.get(model.key_env):
        raise ConfigError(
            f"the key of the model {model.name!r} is missing: set the environment variable "
            f"{model.key_env}"
        )
    return env[model.key_env]


class PassThrough:
    """Passes requests on to the models of a gateway. Raises ConfigError if the key of one is
    missing.
    """

    def __init__(self, models: Mapping[str, ServedModel], env: Mapping[str, str]) -> None:
        self._upstreams = {model: Upstream(model, env) for model in models.values()}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for upstream in self._upstreams.values():
            await upstream.aclose()

    def upstream(self, model: ServedModel) -> Upstream:
        """Return what is known of a model's server."""
        return self._upstreams[model]

    async def forward(
        self,
        model: ServedModel,
        client: ProtocolName,
        body: Mapping[str, Any],
        *,
        headers: Mapping[str, str] = {},
        size: int = 0,
    ) -> ForwardedReply:
        """Send the request of a client that speaks `client` to a model, and return the reply once
        its headers have arrived.

        `headers`: those of the client, in lower case; only FORWARDED_HEADERS are sent on. `size`:
        the bytes of the request; a large one is converted in a thread. A field `redraft` is not
        sent on. The body is encoded again, so that no model reads a repeated key otherwise than the
        gateway did.

        The ledger that is open has the usage of each request to the model: none of one that was not
        sent or was refused, and an unknown one until its reply has been read.

        Raises:
            GatewayError: The model refused the request, cannot be reached, or sent something else
                than an answer; or its protocol cannot say what changes the answer.
        """
        upstream = self.upstream(model)
        protocol = upstream.protocol(client)
        body = {name: value for name, value in body.items() if name != "redraft"}
        translation = await run_in_thread_if_large(
            size if client != protocol else 0, translation_of, client, protocol, body
        )
        try:
            return await _forward_as(upstream, translation, headers)
        except GatewayError as error:
            if error.code != UNKNOWN_PATH_CODE:
                raise
        upstream.unknown_paths.add(PATHS[protocol])
        return await self.forward(model, client, body, headers=headers, size=size)

    async def count_tokens(
        self,
        model: ServedModel,
        body: Mapping[str, Any],
        *,
        headers: Mapping[str, str] = {},
        size: int = 0,
    ) -> dict[str, Any]:
        """Return {"input_tokens": N} for a request in Anthropic's form: counted by the model's
        server, else estimated.

        The estimate is too high rather than too low (see `token_estimate`). `size`: the bytes of
        the request. Raises GatewayError as `forward` does.
        """
        upstream = self.upstream(model)
        if COUNT_PATH not in upstream.unknown_paths:
            sent = {
                name: value for name, value in body.items() if name not in {"redraft", "stream"}
            } | {"model": model.model}
            exchange = upstream.exchange(COUNT_PATH, headers)
            status, reply_headers, content = await read_all(upstream, exchange, sent)
            if status not in UNKNOWN_PATH or model.kind == "anthropic":
                return _token_count(upstream, status, reply_headers, content)
            upstream.unknown_paths.add(COUNT_PATH)
        return await run_in_thread_if_large(size, _estimate, body)


def _estimate(body: Mapping[str, Any]) -> dict[str, Any]:
    CLIENTS["messages"].read_request({"max_tokens": 1, **body})
    return {"input_tokens": estimated_tokens(body)}


UNKNOWN_PATH_CODE = "unknown_path"


@dataclass(frozen=True, slots=True)
class Translation:
    """A request of a client in the protocol of a model, and the way back for its reply.

    `upstream` is the protocol of the model. `request` is the neutral form; None where both speak
    the same protocol, so that the body goes on as it is. `ignored`: the fields of the client that
    are not sent.
    """

    client: ClientProtocol
    upstream: ProtocolName
    body: Mapping[str, Any]
    request: Request | None = None
    ignored: tuple[str, ...] = ()

    def reply(self, content: bytes, data: Mapping[str, Any]) -> bytes:
        """Return a whole reply for the client, given that of the model with its JSON. Raises
        GatewayError 502 if it is no answer.
        """
        if self.request is None:
            return content
        reply = MODELS[self.upstream].read_reply(data)
        return dumps(self.client.write_reply(self.request, reply, int(time())))

    def stream(self) -> StreamTranslator | None:
        """Return what translates a stream; None if it stays as it is."""
        if self.request is None:
            return None
        writer = self.client.stream_writer(self.request, int(time()))
        return StreamTranslator(MODELS[self.upstream].stream_reader(), writer)


def translation_of(
    client: ProtocolName, upstream: ProtocolName, body: Mapping[str, Any]
) -> Translation:
    """Return a request for a model. Raises GatewayError 400 naming the field that changes the
    answer and cannot be said.
    """
    if client == upstream:
        return Translation(CLIENTS[client], upstream, body)
    request = CLIENTS[client].read_request(body)
    written = MODELS[upstream].write_request(request, request.model)
    return Translation(CLIENTS[client], upstream, written.body, request, written.ignored)


class StreamTranslator:
    """Translates a stream as it arrives."""

    def __init__(self, reader: EventReader, writer: EventWriter) -> None:
        self._reader, self._writer = reader, writer
        self._unsent: list[bytes] = []

    def feed(self, part: bytes) -> bytes:
        """Add bytes of the model, and return those for the client. Raises GatewayError for what is
        no such stream.
        """
        return self._write_events(self._reader.feed(part))

    def finish(self) -> bytes:
        """Return the end. Raises GatewayError if the stream broke off."""
        return self._write_events(self._reader.finish())

    def fail(self, error: GatewayError) -> bytes:
        """Return what came before the error in the same part, and the error, after which the stream
        ends.
        """
        return b"".join([*self._unsent, self._writer.fail(error)])

    def _write_events(self, events: Iterable[Event]) -> bytes:
        for event in events:
            self._unsent.append(self._writer.write(event))
        written = b"".join(self._unsent)
        self._unsent.clear()
        return written


async def _forward_as(
    upstream: Upstream, translation: Translation, headers: Mapping[str, str]
) -> ForwardedReply:
    """Send a request in the form that the model understands."""
    sent: dict[str, Any] = {**translation.body, "model": upstream.model.model}
    if upstream.is_openai and translation.request is not None and "max_tokens" in sent:
        sent["max_completion_tokens"] = sent.pop("max_tokens")
    if not sent.get("stream"):
        return await _forward_whole(upstream, translation, sent, headers)
    return await forward_stream(upstream, translation, sent, headers)


# ---- replies that are read as a whole


async def _forward_whole(
    upstream: Upstream,
    translation: Translation,
    sent: Mapping[str, Any],
    headers: Mapping[str, str],
) -> ForwardedReply:
    exchange = upstream.exchange(PATHS[translation.upstream], headers)
    status, reply_headers, content = await read_all(upstream, exchange, sent)
    if status >= 300:
        exchange.entry.settle(REFUSED_USAGE)
        raise _refusal(upstream, translation, status, reply_headers, content)
    size = len(content)
    data = await run_in_thread_if_large(size, _answer, upstream, content)
    usage = exchange.entry.settle(upstream.usage(data.get("usage")))
    try:
        written = await run_in_thread_if_large(
            size if translation.request else 0, translation.reply, content, data
        )
        content = upstream.without_key(written)
    except GatewayError as error:
        raise upstream.without_secrets(error) from None
    head = headers_of_reply("application/json", reply_headers)
    reply = ForwardedReply(single_part(content), head, usage, ignored=translation.ignored)
    reply.fields = reply_fields(data)
    return reply


async def single_part(content: bytes) -> AsyncGenerator[bytes, None]:
    """Yield a body that is there as a whole."""
    yield content


async def read_all(
    upstream: Upstream, exchange: HttpExchange, body: Any
) -> tuple[int, Mapping[str, str], bytes]:
    """Send a request and return the whole response. Raises GatewayError."""
    try:
        return await exchange.read_all("POST", dumps(body))
    except (OSError, ModelError) as error:
        failure = upstream.failure(exchange, error)
    try:
        raise failure
    finally:
        del failure  # else it and this frame keep each other in memory


def reply_json(upstream: Upstream, content: bytes) -> object:
    """Return the JSON of a reply. Raises GatewayError for anything else."""
    try:
        return loads(content)
    except ValueError:
        shown = upstream.mask(shorten(content[:400].decode("utf-8", "replace"), 100))
        problem = f"sent something else than JSON: {shown!r}"
        raise unreadable_reply(upstream.model.name, problem) from None


def _answer(upstream: Upstream, content: bytes) -> dict[str, Any]:
    """Return the JSON of an answer. Raises GatewayError for anything else, as for an error with
    status 200.
    """
    name, data = upstream.model.name, reply_json(upstream, content)
    if not isinstance(data, dict):
        raise unreadable_reply(name, f"sent {json_type_name(data)} instead of an answer")
    if stated := stated_error(data):
        failure = answer_error(f"the model {name!r} sent no answer", stated)
        raise error_from_failure(name, failure, upstream.mask(str(failure)))
    if not any(isinstance(data.get(field), list) for field in ANSWER_FIELDS) or _lacks_choices(
        data
    ):
        text = (
            upstream.mask(ErrorBody(data).text)
            or f"an object with {shorten(', '.join(data), 100) or 'nothing'}"
        )
        raise unreadable_reply(name, f"sent no answer: {text}")
    return data


def _lacks_choices(data: Mapping[str, Any]) -> bool:
    """Whether a chat completion has no choice."""
    choices = data.get("choices")
    return isinstance(choices, list) and not (choices and isinstance(choices[0], dict))


def _token_count(
    upstream: Upstream, status: int, headers: Mapping[str, str], content: bytes
) -> dict[str, Any]:
    if status >= 300:
        raise error_from_reply(
            upstream.model.name, status, parse_error_body(content), headers, upstream.mask
        )
    try:
        count = loads(content)["input_tokens"]
    except (ValueError, KeyError, TypeError):
        count = None
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise unreadable_reply(upstream.model.name, "sent no number of tokens")
    return {"input_tokens": count}


def _refusal(
    upstream: Upstream,
    translation: Translation,
    status: int,
    headers: Mapping[str, str],
    content: bytes,
) -> GatewayError:
    """Return the error for a reply that is no success."""
    body = parse_error_body(content)
    if (
        status in UNKNOWN_PATH
        and translation.upstream == "responses"
        and "model_not_found" not in body.codes
    ):
        return GatewayError(status, UNKNOWN_PATH_CODE, "the server has no such path")
    return error_from_reply(upstream.model.name, status, body, headers, upstream.mask)


def headers_of_reply(content_type: str, of_model: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a reply: its content type, and the model's own IDs of the request."""
    ids = {name: shorten(of_model[name], 200) for name in RETURNED_HEADERS if name in of_model}
    return {
        "content-type": content_type,
        **{name: value for name, value in ids.items() if value.isascii()},
    }


# ---- streams


async def forward_stream(
    upstream: Upstream,
    translation: Translation,
    sent: Mapping[str, Any],
    headers: Mapping[str, str],
    path: str = "",
) -> ForwardedReply:
    """Send a request for a stream to a path (by default that of the model's protocol), and return
    its reply. Raises GatewayError.
    """
    asked, unchanged = sent.get("stream_options"), sent
    converter: StreamTranslator | UsageRemover | None = translation.stream()
    asks_for_usage = (
        translation.upstream == "chat"
        and upstream.reports_usage_in_streams
        and not _includes_usage(asked)
    )
    if asks_for_usage:
        options = {**(asked if isinstance(asked, dict) else {}), "include_usage": True}
        sent = {**sent, "stream_options": options}
        converter = converter or UsageRemover()
    own_path = path or PATHS[translation.upstream]
    try:
        exchange, response = await _open(upstream, own_path, translation, sent, headers)
    except GatewayError as error:
        is_refused = error.status in {400, 422} and "stream_options" in error.message
        if not (asks_for_usage and is_refused):
            raise
        upstream.reports_usage_in_streams = False
        return await forward_stream(upstream, translation, unchanged, headers, path)
    return StreamReading(upstream, translation, converter, exchange, response).reply


def _includes_usage(options: Any) -> bool:
    return isinstance(options, dict) and options.get("include_usage") is True


async def _open(
    upstream: Upstream,
    path: str,
    translation: Translation,
    sent: Mapping[str, Any],
    headers: Mapping[str, str],
) -> tuple[HttpExchange, Response]:
    """Send a request for a stream, and return its response once the headers have arrived. Raises
    GatewayError.
    """
    exchange = upstream.exchange(path, headers, stream=True)

    def refusal_of(response: Response, content: bytes) -> GatewayError:
        if response.status >= 300:
            exchange.entry.settle(REFUSED_USAGE)
            return _refusal(upstream, translation, response.status, response.headers, content)
        kind = shorten(response.headers.get("content-type", "nothing"), 60)
        text = upstream.mask(parse_error_body(content).text)
        problem = f"sent {kind!r} instead of a stream{f': {text}' if text else ''}"
        return unreadable_reply(upstream.model.name, problem)

    sending = exchange.open("POST", dumps(sent))
    return exchange, await response_of(upstream, exchange, sending, _is_stream, refusal_of)


def _is_stream(response: Response) -> bool:
    kind = response.headers.get("content-type", "").lower()
    return response.status == 200 and kind.startswith(EVENT_STREAM)


async def response_of(
    upstream: Upstream,
    exchange: HttpExchange,
    sending: Awaitable[Response],
    is_wanted: Callable[[Response], bool],
    refusal_of: Callable[[Response, bytes], GatewayError],
) -> Response:
    """Return the response to a request once its headers have arrived, to be closed by the caller.
    Raises GatewayError; `refusal_of` says what another one than is wanted means.
    """
    response = None
    try:
        response = await sending
        if is_wanted(response):
            opened, response = response, None
            return opened
        content = b"".join([part async for part in exchange.iter_body(response)])
        failure = refusal_of(response, content)
    except (OSError, ModelError) as error:
        failure = upstream.failure(exchange, error)
    finally:
        if response is not None:
            response.close()
    try:
        raise failure
    finally:
        del failure  # else it and this frame keep each other in memory


class StreamReading:
    """Reads the stream of a model, and passes it on as it arrives. A stream that breaks off ends
    with an error event.

    It ends with the last event of the protocol, even if the model leaves the connection open. The
    part with that event is the last one, and `reply` has the usage or the failure before it is
    yielded: once the client has that part, nothing is left to wait for.
    """

    def __init__(
        self,
        upstream: Upstream,
        translation: Translation,
        converter: StreamTranslator | UsageRemover | None,
        exchange: HttpExchange,
        response: Response,
    ) -> None:
        self._upstream, self._client, self._converter = upstream, translation.client, converter
        self._exchange, self._response = exchange, response
        self._ends = StreamEnds(translation.upstream)
        ignored = translation.ignored
        headers = headers_of_reply(f"{EVENT_STREAM}; charset=utf-8", response.headers)
        self.reply = ForwardedReply(self._parts(), headers, response=response, ignored=ignored)

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes for the client."""
        part, failure = b"", None
        try:
            async with aclosing(self._exchange.iter_body(self._response)) as body:
                async for received in body:
                    part = self._convert(self._upstream.without_key(received))
                    if self._ends.is_finished:
                        break
                    if part:
                        yield part
                        part = b""
            part += self._finish()
        except GatewayError as error:
            failure = self._upstream.without_secrets(error)
            # an end of the stream would be read as an empty answer
            part = part if self._ends.has_answer else b""
        except (OSError, ModelError) as error:
            failure = self._upstream.failure(self._exchange, error)
        finally:
            self._release()
        if failure is not None:
            self.reply.failure = failure
            part += self._failure_event(failure)
            del failure  # which keeps this frame
        if part:
            yield part

    def _failure_event(self, error: GatewayError) -> bytes:
        """Return the error with which the stream of the client ends."""
        if isinstance(self._converter, StreamTranslator):
            return self._converter.fail(error)
        return self._client.error_event(error)

    def _release(self) -> None:
        """Close the connection; if only the end of the body is missing, read that first, which the
        client does not wait for.
        """
        if self._ends.is_finished and not self._response.is_complete:
            self.reply.release()
            self._upstream.end_in_background(self._response)
        else:
            self._response.close()

    def _convert(self, part: bytes) -> bytes:
        self._ends.add(part)
        return self._converter.feed(part) if self._converter else part

    def _finish(self) -> bytes:
        """Return the end of the stream and note its usage. Raises GatewayError if the model's
        stream broke off.
        """
        if not self._ends.is_whole:
            raise unreadable_reply(self._upstream.model.name, "sent a stream that broke off")
        if not (self._ends.has_answer or self._ends.has_error):
            raise unreadable_reply(self._upstream.model.name, "sent a stream without an answer")
        rest = self._converter.finish() if self._converter else b""
        said = self._ends.summary()
        self.reply.fields = reply_fields(said)
        self.reply.usage = self._exchange.entry.settle(self._upstream.usage(said["usage"]))
        if self._ends.has_error:
            self.reply.failure = unreadable_reply(
                self._upstream.model.name, "sent an error in its stream"
            )
        return rest
