"""HTTP requests: connections shared per event loop, timeouts, a cap on the size of responses, and
typed errors.

This module knows nothing about models. It raises a ModelError for a failure of the network, and
returns a response with any status. Redirects are not followed, cookies are not stored, and no proxy
is used that was not configured, so that a request reaches only the host it is meant for. Secrets
are masked in every response, because a server may echo the key it received.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar
from urllib.parse import urlsplit

from ..base.masking import NO_SECRETS, Mask, without_cause
from ..errors import (
    BadResponseError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    ShortageError,
)
from ..middleware.observe import observer
from ..usage import NO_USAGE, LedgerEntry, Usage, unknown_usage
from .http_requests import (
    ConnectTimeoutError,
    HttpError,
    HttpRequest,
    InvalidRequestError,
    NoRoomError,
    ProtocolError,
    ProxyError,
    TLSError,
    UnreachableError,
    without_framing,
)

if TYPE_CHECKING:
    from .http_sessions import HttpSession, Response

MAX_BODY_BYTES = 8 * 1024 * 1024
"""The largest decoded body, line or event of a stream, and text of a stream, in bytes. The whole
stream, which is mostly JSON around the text, may be eight times as long.
"""

REFUSED_USAGE = Usage(calls=1)
"""The usage of a call that the server refused: no tokens."""

UNKNOWN_USAGE = unknown_usage()
"""The usage of a call that may have been answered and billed."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of a request, in seconds.

    Attributes:
        connect: To connect.
        first_byte: Until the first byte of the body. None: only `total` bounds it; a model that
            does not stream sends nothing before it has finished.
        idle: Between two parts of the body.
        total: For the whole request.
        room: Before all this, until this process has room for another connection.
    """

    connect: float = 10.0
    first_byte: float | None = None
    idle: float = 60.0
    total: float = 600.0
    room: float = 60.0


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """Where a request goes and how long it may take.

    `proxy` is a URL, "env" for the proxy of the environment, or None. `mask` masks the secrets that
    are sent.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeouts: Timeouts = Timeouts()
    proxy: str | None = field(default=None, repr=False)
    mask: Mask = field(default=NO_SECRETS, repr=False)


T = TypeVar("T")
HttpResponse: TypeAlias = tuple[int, Mapping[str, str], bytes]


class LoopLocal(Generic[T]):
    """One value for each event loop, closed when the loop shuts down.

    The value is held by an asynchronous generator that is started on the loop; `asyncio.run` closes
    those when it ends.
    """

    def __init__(self, make: Callable[[], T], close: Callable[[T], Awaitable[Any]]) -> None:
        self._make, self._close = make, close
        self._values: dict[asyncio.AbstractEventLoop, tuple[T, AsyncGenerator[T, None]]] = {}

    async def get(self) -> T:
        """Return the value of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._values:
            holder = self._hold_open(loop)
            self._values[loop] = await anext(holder), holder
        return self._values[loop][0]

    async def _hold_open(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[T, None]:
        value = self._make()
        try:
            yield value
        finally:
            self._values.pop(loop, None)
            await self._close(value)


KEEP_SECONDS = 4.0
"""How long an idle connection is kept: many servers close one after 5 s, and a request that is sent
at that moment is lost.
"""


def _new_session(keep_seconds: float) -> HttpSession:
    from .http_sessions import HttpSession

    return HttpSession(keep_seconds)


shared_sessions = LoopLocal(lambda: _new_session(KEEP_SECONDS), lambda session: session.close())
"""The session of each event loop, which all clients share."""

stream_sessions = LoopLocal(lambda: _new_session(0), lambda session: session.close())
"""The same for streams, with one connection each: llama.cpp closes the connection after a stream
without announcing it.
"""


class HttpExchange:
    """One request and its response. The ledger `entry` counts the request when it is sent."""

    def __init__(
        self, target: RequestTarget, *, stream: bool = False, entry: LedgerEntry | None = None
    ) -> None:
        self.target, self.stream = target, stream
        self.is_sent = False
        self.entry = entry or LedgerEntry()
        self.entry.start_counting()
        self.cap = 8 * MAX_BODY_BYTES if stream else MAX_BODY_BYTES
        self.phase = "an answer"
        self._proxy = target.proxy and proxy_for(target.proxy, target.url)
        self._start = monotonic()

    async def open(self, method: str, body: bytes | None) -> Response:
        """Send the request, and return when the headers of the response have arrived. A wait for
        room in this process costs the request none of its time.
        """
        timeouts = self.target.timeouts
        headers = without_framing(observer().outgoing_headers(self.target.headers))
        request = HttpRequest(method, self.target.url, headers, body, self._proxy, timeouts.connect)
        if body is not None:  # (which shows when the connection is open)
            self.phase = "a connection"
        session = await (stream_sessions if self.stream else shared_sessions).get()
        room_until = self._start + timeouts.room
        while True:
            try:
                async with asyncio.timeout(self._remaining_seconds(timeouts.first_byte)):
                    response = await session.request(request, self._mark_sent)
            except NoRoomError as error:
                if monotonic() >= room_until:
                    raise
                await session.wait_for_room(error)
                self._start = monotonic()
            else:
                break
        if body is not None and not self.is_sent:
            response.close()
            raise HttpError("the server answered before it was asked")
        return response

    async def iter_body(self, response: Response) -> AsyncGenerator[bytes, None]:
        """Yield the decoded body as it arrives, up to the cap."""
        decode = _body_decoder(response, self.cap)
        limit = self._remaining_seconds(self.target.timeouts.first_byte)
        while not response.is_complete:
            async with asyncio.timeout(None if response.has_arrived else limit):
                raw = await response.read_part()
            part = decode(raw)
            self.phase = "the rest of the answer"
            limit = min(self.target.timeouts.idle, self._remaining_seconds(None))
            if part:
                yield part
        decode(b"")

    async def read_all(self, method: str, body: bytes | None) -> HttpResponse:
        """Send the request and read the whole response."""
        response = await self.open(method, body)
        try:
            return await self.read_rest(response)
        finally:
            response.close()

    async def read_rest(self, response: Response) -> HttpResponse:
        """Return a response with its whole body, masked."""
        content = b"".join([part async for part in self.iter_body(response)])
        mask = self.target.mask
        return response.status, masked_headers(response.headers, mask), mask.mask_bytes(content)

    def _mark_sent(self) -> None:
        if not self.is_sent:
            self.entry.count_request()
        self.is_sent = True
        self.phase = "an answer"

    def _remaining_seconds(self, first_byte: float | None) -> float:
        total = self.target.timeouts.total
        return (total if first_byte is None else min(total, first_byte)) - (
            monotonic() - self._start
        )

    def to_model_error(self, error: Exception) -> ModelError:
        """Return the typed error for a failure of the network."""
        proxy = urlsplit(self._proxy or "").netloc.rpartition("@")[2]
        via = f" through the proxy {proxy}" if proxy else ""
        failure = (
            self._timeout_error(error, via)
            if isinstance(error, TimeoutError)
            else _network_error(error, self.target.mask, via)
        )
        if not isinstance(error, ProtocolError | ProxyError):  # which quote what was received
            failure.reason = str(failure)
        if not self.is_sent:
            failure.usage = NO_USAGE
        return failure

    def _timeout_error(self, error: TimeoutError, via: str) -> ModelError:
        seconds = monotonic() - self._start
        if isinstance(error, ConnectTimeoutError) or self.phase == "a connection":
            return ModelTimeoutError(f"no connection{via} within {seconds:.3g} s")
        return ModelTimeoutError(
            f"still waiting for {self.phase} after {seconds:.3g} s", usage=UNKNOWN_USAGE
        )


def proxy_for(proxy: str | None, url: str) -> str | None:
    """Return the proxy for requests to a URL: the configured one, or the environment's if it is
    "env".
    """
    if proxy != "env":
        return proxy
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def masked_headers(headers: Mapping[str, str], mask: Mask) -> Mapping[str, str]:
    """Return the headers of a response, in lower case, with secrets that the server echoes
    masked.
    """
    if not mask or mask(together := "\n".join(headers.values())) is together:
        return headers
    return {name.lower(): mask(value) for name, value in headers.items()}


def too_large_error(cap: int = MAX_BODY_BYTES) -> ModelError:
    """Return the error for a response that is larger than the cap."""
    return BadResponseError(
        f"the answer is larger than {cap // (1024 * 1024)} MiB", usage=UNKNOWN_USAGE
    )


class _BodyDecoder:
    """Decodes a body part by part, up to the cap, with gzip or deflate if it is compressed; b""
    marks the end.

    One part may become at most MAX_BODY_BYTES, or a small share of a much larger cap: more is a
    decompression bomb.
    """

    def __init__(self, cap: int, *, is_compressed: bool) -> None:
        self._cap = self._remaining = cap
        self._has_input = False
        self._inflate = zlib.decompressobj(wbits=47) if is_compressed else None

    def __call__(self, raw: bytes) -> bytes:
        part, most = raw, self._remaining
        if self._inflate:
            most = min(most, max(MAX_BODY_BYTES, self._cap // 64))
            part = self._decompress(self._inflate, raw, most + 1)
        if len(part) > most:
            raise too_large_error(self._cap if most == self._remaining else most)
        self._remaining -= len(part)
        return part

    def _decompress(self, inflate: zlib._Decompress, raw: bytes, most: int) -> bytes:
        if not raw and self._has_input and not inflate.eof:
            raise malformed_response("sent a compressed body that was cut off")
        self._has_input |= raw != b""
        try:
            return inflate.decompress(raw, most)
        except zlib.error as error:
            raise malformed_response(
                f"sent a compressed body that cannot be unpacked ({error})"
            ) from None


def malformed_response(message: str, *, retryable: bool = True) -> BadResponseError:
    """Return the error for a response that is no answer of a model."""
    error = BadResponseError(message, retryable=retryable, usage=UNKNOWN_USAGE)
    error.malformed = True
    return error


def _body_decoder(response: Response, cap: int) -> _BodyDecoder:
    coding = response.headers.get("content-encoding", "").strip().lower()
    if coding not in {"gzip", "x-gzip", "deflate", "identity", ""}:
        raise BadResponseError(
            f"sent a body in the encoding {coding[:20]!r}, which was not asked for",
            usage=UNKNOWN_USAGE,
        )
    return _BodyDecoder(cap, is_compressed=coding not in {"identity", ""})


def _network_error(error: Exception, mask: Mask, via: str) -> ModelError:
    """Return the typed error. `via` is "" or the proxy, such as " through the proxy
    10.0.0.1:3128".
    """
    reason = " ".join(mask(str(error) or type(error).__name__).split())[:200]
    match error:
        case TLSError():
            return ModelUnavailableError(f"no secure (TLS) connection{via}: {reason}")
        case NoRoomError():
            return ShortageError(f"no room for another connection{via}: {reason}")
        case UnreachableError():
            return ModelUnavailableError(f"cannot be reached{via}: {reason}", retryable=True)
        case ProxyError():
            return ModelUnavailableError(
                f"no connection{via}: it refused with {reason}", status=error.status
            )
        case ProtocolError():
            return malformed_response(f"the response{via} is not HTTP: {reason}")
        case InvalidRequestError():
            return ModelUnavailableError(f"the request cannot be sent: {reason}")
    return ModelUnavailableError(
        f"the connection{via} broke: {reason}", retryable=True, usage=UNKNOWN_USAGE
    )


@asynccontextmanager
async def open_exchange(
    target: RequestTarget,
    method: str = "GET",
    body: bytes | None = None,
    *,
    stream: bool = False,
    entry: LedgerEntry | None = None,
) -> AsyncIterator[tuple[HttpExchange, Response]]:
    """Open a request, and yield it with its response. Raises ModelError for a failure of the
    network.
    """
    exchange = HttpExchange(target, stream=stream, entry=entry)
    response = failure = None
    try:
        response = await exchange.open(method, body)
        yield exchange, response
    except OSError as error:
        failure = exchange.to_model_error(error)
    finally:
        if response is not None:
            response.close()
    if failure is not None:
        try:
            raise without_cause(failure)
        finally:
            del failure  # which keeps this frame


async def fetch(
    target: RequestTarget,
    method: str = "GET",
    body: bytes | None = None,
    *,
    entry: LedgerEntry | None = None,
) -> HttpResponse:
    """Return the status, the headers and the whole decoded body. Raises ModelError for a failure of
    the network.
    """
    async with open_exchange(target, method, body, entry=entry) as (exchange, response):
        return await exchange.read_rest(response)
