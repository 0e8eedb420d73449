"""HTTP, and what can go wrong with it: one session per event loop, deadlines, a cap on what is read.

It knows nothing of models: not what is asked, not what an answer should look like. It raises a ModelError for what
the network did, and hands over whatever status came. Redirects are not followed, cookies not kept, and no proxy is
used that was not configured, so that what goes out goes to the host it was meant for and to no other. What comes in is
masked before anybody reads it: a server may echo the key it was sent.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from ..errors import BadResponseError, ModelError, ModelTimeoutError, ModelUnavailableError
from ..ledger import LedgerEntry, unknown_usage
from ..masking import NO_SECRETS, Mask, without_cause
from ..usage import NO_USAGE, Usage

if TYPE_CHECKING:
    import aiohttp

MAX_BODY_BYTES = 8 * 1024 * 1024
"""The most bytes of a decoded body that are read, of a line or event in a stream, and of the text in it. A stream is mostly
wrapping: all of it together may be eight times as long."""

REFUSED_USAGE = Usage(calls=1)
"""A call for which nothing was bought: the server refused it."""

UNKNOWN_USAGE = unknown_usage()
"""A call that may have been answered and billed, whatever reached us of it."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to connect, until the first byte of the body, between two parts of it, and for all together.

    `first_byte` None: only `total` bounds it. A model that does not stream sends nothing before it has finished.
    """

    connect: float = 10.0
    first_byte: float | None = None
    idle: float = 60.0
    total: float = 600.0


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """Where a request goes and how long it may take. `proxy` is a URL, "env" for what the environment says, or None.

    `mask` knows the secrets that go with it.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeouts: Timeouts = Timeouts()
    proxy: str | None = field(default=None, repr=False)
    mask: Mask = field(default=NO_SECRETS, repr=False)


T = TypeVar("T")
RequestBody: TypeAlias = bytes | BytesIO | None
HttpResponse: TypeAlias = tuple[int, Mapping[str, str], bytes]


class LoopLocal(Generic[T]):
    """One of something for each event loop, closed when its loop shuts down: nobody has to remember it.

    It is kept in an asynchronous generator that was started on the loop; those a loop closes before it ends
    (`asyncio.run` sees to that).
    """

    def __init__(self, make: Callable[[], T], close: Callable[[T], Awaitable[Any]]) -> None:
        self._make, self._close = make, close
        self._values: dict[asyncio.AbstractEventLoop, tuple[T, AsyncGenerator[T, None]]] = {}

    async def get(self) -> T:
        loop = asyncio.get_running_loop()
        if loop not in self._values:
            keeper = self._hold_open(loop)
            self._values[loop] = (await anext(keeper), keeper)
        return self._values[loop][0]

    async def _hold_open(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[T, None]:
        made = self._make()
        try:
            yield made
        finally:
            self._values.pop(loop, None)
            await self._close(made)


def _new_session(*, single_use: bool = False) -> aiohttp.ClientSession:
    """Idle connections are left before the 5 s after which many servers hang up: a call sent then would be lost."""
    import aiohttp

    keeping: dict[str, Any] = {"force_close": True} if single_use else {"keepalive_timeout": 4.0}
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, **keeping),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
    )


shared_session = LoopLocal(_new_session, lambda opened: opened.close())
"""The one session of each event loop. Its connections are shared by all clients and not limited in number."""

stream_session = LoopLocal(lambda: _new_session(single_use=True), lambda opened: opened.close())
"""The same for streams, with a connection each: llama.cpp hangs up after one without saying so beforehand."""


class HttpExchange:
    """One request and its response, under way. `phase` says what is waited for; `entry` is told when the request leaves."""

    def __init__(self, target: RequestTarget, *, stream: bool = False, entry: LedgerEntry | None = None) -> None:
        self.target, self.stream = target, stream
        self.is_sent = False
        self._entry = entry
        if entry:
            entry.start_counting()
        self.cap = 8 * MAX_BODY_BYTES if stream else MAX_BODY_BYTES
        self.phase = "an answer"
        self._start = monotonic()

    async def open(self, method: str, body: RequestBody) -> aiohttp.ClientResponse:
        """Sends the request, and returns when the head of the response has come."""
        async with asyncio.timeout(self._remaining_seconds(self.target.timeouts.first_byte)):
            return await self._send(method, body)

    async def iter_body(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        """The decoded body as it comes in, up to the cap."""
        decode, limit = self._body_decoder(response), self._remaining_seconds(self.target.timeouts.first_byte)
        while True:
            async with asyncio.timeout(limit):
                raw = await response.content.readany()
            if not raw:
                break
            part = decode(raw)
            self.phase = "the rest of the answer"
            limit = self._part_timeout()
            yield part
        decode(b"")

    async def read_all(self, method: str, body: RequestBody) -> HttpResponse:
        """Sends the request and reads all of the response, under one timer that is moved on as parts come in."""
        loop, parts = asyncio.get_running_loop(), []
        async with asyncio.timeout(self._remaining_seconds(self.target.timeouts.first_byte)) as timer:
            response = await self._send(method, body)
            try:
                decode, content = self._body_decoder(response), response.content
                while raw := await content.readany():
                    parts.append(decode(raw))
                    if not content.at_eof():
                        self.phase = "the rest of the answer"
                        timer.reschedule(loop.time() + self._part_timeout())
                decode(b"")
            finally:
                response.close()
        body = self.target.mask.mask_bytes(parts[0] if len(parts) == 1 else b"".join(parts))
        return response.status, masked_headers(response.headers, self.target.mask), body

    async def _send(self, method: str, body: RequestBody) -> aiohttp.ClientResponse:
        from .http_payload import make_payload

        http = await (stream_session if self.stream else shared_session).get()
        return await http.request(
            method,
            self.target.url,
            data=None if body is None else make_payload(body, self._mark_sent),
            headers=self.target.headers,
            allow_redirects=False,
            timeout=_connect_timeout(self.target.timeouts.connect),
            proxy=proxy_for(self.target.proxy, self.target.url),
        )

    def _mark_sent(self) -> None:
        if self._entry and not self.is_sent:
            self._entry.count_request()
        self.is_sent = True

    def _body_decoder(self, response: aiohttp.ClientResponse) -> Callable[[bytes], bytes]:
        """What decodes the parts of a body, in order, and refuses those over the cap; b"" says that all has come."""
        decode, size = _decoder(response, self.cap), 0

        def decode_part(raw: bytes) -> bytes:
            nonlocal size
            part: bytes = decode(raw)
            size += len(part)
            if size > self.cap:
                raise too_large_error(self.cap)
            return part

        return decode_part

    def _part_timeout(self) -> float:
        """How many seconds the next part may take."""
        return min(self.target.timeouts.idle, self._remaining_seconds(None))

    def _remaining_seconds(self, first_byte: float | None) -> float:
        passed = monotonic() - self._start
        limits = [self.target.timeouts.total] if first_byte is None else [self.target.timeouts.total, first_byte]
        return min(limits) - passed

    def to_model_error(self, error: Exception) -> ModelError:
        """The typed error for what the network did."""
        failure = self._timeout_error(error) if isinstance(error, TimeoutError) else _network_error(error, self.target.mask)
        if not self.is_sent:
            failure.usage = NO_USAGE
        return failure

    def _timeout_error(self, error: TimeoutError) -> ModelError:
        import aiohttp

        seconds = monotonic() - self._start
        if isinstance(error, aiohttp.ServerTimeoutError):
            return ModelTimeoutError(f"no connection within {seconds:.3g} s")
        return ModelTimeoutError(f"still waiting for {self.phase} after {seconds:.3g} s", usage=UNKNOWN_USAGE)


_CONNECT_TIMEOUTS: dict[float, aiohttp.ClientTimeout] = {}


def _connect_timeout(seconds: float) -> aiohttp.ClientTimeout:
    """Bounds the way to the server only: all other limits are ours. (Made once for each number of seconds.)"""
    if seconds not in _CONNECT_TIMEOUTS:
        import aiohttp

        _CONNECT_TIMEOUTS[seconds] = aiohttp.ClientTimeout(total=None, connect=seconds, ceil_threshold=60)
    return _CONNECT_TIMEOUTS[seconds]


def proxy_for(proxy: str | None, url: str) -> str | None:
    """The proxy that requests to a URL go through: the one that is configured, with "env" the one of the environment."""
    if proxy != "env":
        return proxy
    from urllib.parse import urlsplit
    from urllib.request import getproxies, proxy_bypass

    to = urlsplit(url)
    return None if proxy_bypass(to.hostname or "") else getproxies().get(to.scheme)


def masked_headers(headers: Mapping[str, str], mask: Mask) -> Mapping[str, str]:
    """The headers of a response without the secrets that its server echoes in them."""
    if not mask or all(mask(value) is value for value in headers.values()):
        return headers
    from multidict import CIMultiDict

    return CIMultiDict((name, mask(value)) for name, value in headers.items())


def too_large_error(cap: int = MAX_BODY_BYTES) -> ModelError:
    """The error for an answer of more bytes than are read."""
    return BadResponseError(f"the answer is larger than {cap // (1024 * 1024)} MiB", usage=UNKNOWN_USAGE)


class _Decompressor:
    """Decodes gzip or deflate part by part, never into more than the cap; b"" says that all has come.

    One part never becomes more than `CAP`, or a small share of a cap far larger: what unpacks to so much is a bomb.
    """

    def __init__(self, cap: int) -> None:
        self._cap = self._remaining = cap
        self._has_input = False
        self._inflate = zlib.decompressobj(wbits=47)

    def __call__(self, raw: bytes) -> bytes:
        if not raw:
            return self._finish()
        self._has_input = True
        most = min(self._remaining, max(MAX_BODY_BYTES, self._cap // 64))
        try:
            part = self._inflate.decompress(raw, most + 1)
        except zlib.error as error:
            raise _garbled_error(f"a compressed body that cannot be unpacked ({error})") from None
        if len(part) > most:
            raise too_large_error(self._cap if most == self._remaining else most)
        self._remaining -= len(part)
        return part

    def _finish(self) -> bytes:
        if self._has_input and not self._inflate.eof:
            raise _garbled_error("a compressed body that was cut off")
        return b""


def _garbled_error(description: str) -> ModelError:
    return BadResponseError(f"sent {description}", retryable=True, usage=UNKNOWN_USAGE)


def _decoder(response: aiohttp.ClientResponse, cap: int) -> Any:
    """What turns the parts of a body, as they came, into decoded ones. (Not aiohttp's: it has no cap in every version.)"""
    coding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if coding in {"gzip", "x-gzip", "deflate"}:
        return _Decompressor(cap)
    if coding in {"", "identity"}:
        return bytes
    raise BadResponseError(f"sent a body in the encoding {coding[:20]!r}, which was not asked for", usage=UNKNOWN_USAGE)


def _network_error(error: Exception, mask: Mask) -> ModelError:
    import aiohttp

    what = error_reason(error, mask)
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return ModelUnavailableError(f"no safe (TLS) connection: {what}")
        case aiohttp.ClientConnectorError():
            return ModelUnavailableError(f"cannot be reached: {what}", retryable=True)
        case aiohttp.ClientHttpProxyError():
            return ModelUnavailableError(f"the proxy refused: {what}", status=error.status)
        case aiohttp.ClientResponseError():
            return BadResponseError(f"what came is not HTTP: {what}", retryable=True, usage=UNKNOWN_USAGE)
        case aiohttp.InvalidURL():
            return ModelUnavailableError("its address is not valid")
    return ModelUnavailableError(f"the connection broke: {what}", retryable=True, usage=UNKNOWN_USAGE)


def error_reason(error: BaseException, mask: Mask = NO_SECRETS) -> str:
    """An error of the operating system or of a library in one short line, masked."""
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    text = getattr(inner, "strerror", None) or getattr(inner, "message", None) or str(inner) or type(inner).__name__
    return " ".join(mask(str(text)).split())[:200]


@asynccontextmanager
async def open_exchange(
    target: RequestTarget, method: str = "GET", body: RequestBody = None, *, stream: bool = False, entry: LedgerEntry | None = None
) -> AsyncIterator[tuple[HttpExchange, aiohttp.ClientResponse]]:
    """The exchange and its response; whatever the network does to them is a ModelError. `entry` is told when it leaves."""
    import aiohttp

    under_way = HttpExchange(target, stream=stream, entry=entry)
    response = failure = None
    try:
        response = await under_way.open(method, body)
        yield under_way, response
    except (aiohttp.ClientError, OSError) as error:
        failure = under_way.to_model_error(error)
    finally:
        if response is not None:
            response.close()
    if failure is not None:
        raise without_cause(failure)


async def fetch(
    target: RequestTarget, method: str = "GET", body: RequestBody = None, *, entry: LedgerEntry | None = None
) -> HttpResponse:
    """Status, headers and whole decoded body of what the server sent; whatever the network does is a ModelError.

    `entry` is told when the request leaves.
    """
    import aiohttp

    under_way = HttpExchange(target, entry=entry)
    try:
        return await under_way.read_all(method, body)
    except (aiohttp.ClientError, OSError) as error:
        failure = under_way.to_model_error(error)
    raise without_cause(failure)
