"""Requests that go to a path of a model's server as they are, on the side of that server.

Nothing is converted. Of an answer no more is read than its usage, and whether it is one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..base.text import shorten
from ..errors import ModelError, ModelUnavailableError
from ..models.http_client import REFUSED_USAGE, HttpExchange
from ..models.server_errors import ErrorBody, parse_error_body
from ..usage import Usage
from .exchange import GatewayError
from .forwarded_calls import reply_fields
from .neutral import ProtocolName
from .passing import (
    UNKNOWN_PATH,
    ForwardedReply,
    Upstream,
    forward_stream,
    headers_of_reply,
    read_all,
    reply_json,
    response_of,
    single_part,
    translation_of,
)
from .stream_usage import StreamEnds
from .upstream_errors import error_from_reply, unreadable_reply

if TYPE_CHECKING:
    from ..models.http_sessions import Response

PARSED_BYTES = 2 * 2**20
"""The largest answer that is parsed. Of a larger one, which holds embeddings, the usage is looked
for at its beginning and its end: to read millions of numbers would hold the event loop.
"""
MAX_ANSWER_BYTES = 64 * 2**20  # 2,048 embeddings of 3,072 numbers have 34 MB in base64
MAX_FILE_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class Answers:
    """What the answers of an endpoint have: the field `field`; `has_text`: a text of the model, so
    that there may be streams of them; `is_free`: no cost.
    """

    protocol: ProtocolName
    field: str
    has_text: bool
    is_free: bool = False


async def forward_plain(
    upstream: Upstream,
    path: str,
    answers: Answers,
    body: Mapping[str, Any],
    headers: Mapping[str, str],
) -> ForwardedReply:
    """Send a request to a path below the base URL of a model, and return the reply. Raises
    GatewayError.
    """
    sent = {
        **{name: value for name, value in body.items() if name != "redraft"},
        "model": upstream.model.model,
    }
    if answers.has_text and sent.get("stream"):
        same = translation_of(answers.protocol, answers.protocol, sent)
        return await forward_stream(upstream, same, sent, headers, path)
    exchange = upstream.exchange(path, headers)
    exchange.cap = MAX_ANSWER_BYTES
    status, of_model, content = await read_all(upstream, exchange, sent)
    if status >= 300:
        exchange.entry.settle(REFUSED_USAGE)
        raise _refusal(upstream, path, status, of_model, content)
    said = _summary(upstream, answers, content)
    usage = exchange.entry.settle(_usage(upstream, answers, said.get("usage")))
    head = headers_of_reply("application/json", of_model)
    reply = ForwardedReply(single_part(upstream.without_key(content)), head, usage)
    reply.fields = reply_fields(said)
    return reply


def _refusal(
    upstream: Upstream, path: str, status: int, headers: Mapping[str, str], content: bytes
) -> GatewayError:
    """Return the error for a reply that is no success."""
    body, name = parse_error_body(content), upstream.model.name
    if status in UNKNOWN_PATH and "model_not_found" not in body.codes:
        quoted = f": {upstream.mask(body.text)}" if body.text else ""
        message = f"the server of the model {name!r} has no {path} (status {status}){quoted}"
        return GatewayError(
            404, "not_found", message, should_retry=False, cause=ModelUnavailableError.__name__
        )
    return error_from_reply(name, status, body, headers, upstream.mask)


def _usage(upstream: Upstream, answers: Answers, reported: Any) -> Usage:
    """Return the usage of an answer, given its usage object."""
    if answers.is_free:
        return Usage(1, 0, 0, cost=0.0)
    if reported and isinstance(reported, dict) and not answers.has_text:
        reported = {**reported, "completion_tokens": 0}
    return upstream.usage(reported)


def _summary(upstream: Upstream, answers: Answers, content: bytes) -> Mapping[str, Any]:
    """Return what an answer says of itself. Raises GatewayError for what is none."""
    if len(content) > PARSED_BYTES:
        ends = StreamEnds(answers.protocol)
        ends.add(content)
        return ends.summary()
    name, data = upstream.model.name, reply_json(upstream, content)
    if not isinstance(data, dict) or not isinstance(data.get(answers.field), list | int):
        text = upstream.mask(ErrorBody(data).text)
        raise unreadable_reply(name, f"sent no {answers.field!r}{f': {text}' if text else ''}")
    return data


# ---- what the provider has stored


@dataclass(frozen=True, slots=True)
class RawRequest:
    """A request that nobody reads: `content` of the type `content_type` to a path below the base
    URL.
    """

    method: str
    path: str
    query: str = ""
    content: bytes | None = None
    content_type: str = "application/json"


async def forward_raw(
    upstream: Upstream, request: RawRequest, headers: Mapping[str, str]
) -> ForwardedReply:
    """Send a request, and return the reply, whose body is passed on as it arrives. Raises
    GatewayError.
    """
    exchange = upstream.exchange(
        request.path,
        headers,
        stream=True,
        query=request.query,
        content_type=request.content_type,
    )
    exchange.cap = MAX_FILE_BYTES

    def refusal_of(response: Response, content: bytes) -> GatewayError:
        name, body = upstream.model.name, parse_error_body(content)
        return error_from_reply(name, response.status, body, response.headers, upstream.mask)

    sending = exchange.open(request.method, request.content)
    response = await response_of(
        upstream, exchange, sending, lambda response: response.status < 300, refusal_of
    )
    kind = shorten(response.headers.get("content-type", "application/octet-stream"), 200)
    head = headers_of_reply(kind, response.headers)
    return ForwardedReply(_parts(upstream, exchange, response), head, response=response)


async def _parts(
    upstream: Upstream, exchange: HttpExchange, response: Response
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes for the client. Raises GatewayError if they break off."""
    failure = None
    try:
        async with aclosing(exchange.iter_body(response)) as body:
            async for part in body:
                yield upstream.without_key(part)
    except (OSError, ModelError) as error:
        failure = upstream.failure(exchange, error)
    finally:
        response.close()
    if failure is not None:
        try:
            raise failure
        finally:
            del failure
