"""Where a request over HTTP goes, and its head: text in, bytes out, no network.

A URL is sent as it is written, with what a URL cannot contain percent-encoded. A header cannot
begin another line or change where the body ends.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit

from .http_errors import InvalidRequestError

_URL_CHARACTERS = "!#$%&'()*+,/:;=?@[]~"  # not encoded again
_FRAMING = ("content-length", "transfer-encoding", "connection")
_CONTROL_CHARACTERS = bytes({*range(32), 127} - {9})
_NOT_IN_HOSTS = frozenset({*map(chr, range(33)), *"<>\\^`{|}", "\x7f"})
# IDNA 2003, which Python has, and IDNA 2008 differ
_AMBIGUOUS = frozenset("\u00df\u03c2\u200c\u200d")


class Endpoint(NamedTuple):
    """A server, or a proxy."""

    host: str
    port: int
    is_tls: bool

    @property
    def authority(self) -> str:
        """Host and port as in a URL."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def certificate_name(self) -> str:
        """The name in the certificate, which has no dot at its end."""
        return self.host.removesuffix(".")


class Origin(NamedTuple):
    """What a connection leads to: a server, directly or through a proxy (with the value of its
    Proxy-Authorization).
    """

    server: Endpoint
    proxy: Endpoint | None = None
    authorization: str | None = None


class Route(NamedTuple):
    """Where requests for a URL go, and what they ask for there."""

    origin: Origin
    host: str
    target: str


@lru_cache(maxsize=256)
def find_route(url: str, proxy: str | None = None) -> Route:
    """Return the route to a URL. Raises InvalidRequestError."""
    server, parts = _split(url, "its URL")
    host = server.authority.removesuffix(f":{_default_port(parts.scheme)}")
    try:
        path = quote(f"{parts.path or '/'}{parts.query and '?'}{parts.query}", safe=_URL_CHARACTERS)
    except UnicodeEncodeError:
        raise InvalidRequestError("its URL is no text") from None
    if proxy is None:
        return Route(Origin(server), host, path)
    proxy_server, proxy_parts = _split(proxy, "the URL of its proxy")
    origin = Origin(server, proxy_server, _basic_authorization(proxy_parts))
    return Route(origin, host, path if server.is_tls else f"http://{host}{path}")


def _split(url: str, name: str) -> tuple[Endpoint, SplitResult]:
    """Return the server of a URL, and its parts."""
    try:
        parts = urlsplit(url)
        host = ascii_host(parts.hostname or "")
        return Endpoint(host, port_of(parts), parts.scheme == "https"), parts
    except (KeyError, ValueError):
        raise InvalidRequestError(f"{name} names no server") from None


def port_of(parts: SplitResult) -> int:
    """Return the port of a URL, or that of its scheme. Raises ValueError for port 0, and KeyError
    for a scheme that is not HTTP.
    """
    default = _default_port(parts.scheme)
    if parts.port == 0:
        raise ValueError(parts.port)
    return parts.port or default


def ascii_host(host: str) -> str:
    """Return the name of a server as DNS and certificates have it. Raises ValueError, or
    InvalidRequestError if it is ambiguous.
    """
    if not host or not _NOT_IN_HOSTS.isdisjoint(host):
        raise ValueError(host)
    if not _AMBIGUOUS.isdisjoint(host):
        raise InvalidRequestError(
            "the name of its server means different hosts to different programs: write it as "
            "xn--..."
        )
    return host.encode(
        "idna"
    ).decode()  # raises UnicodeError, a ValueError, for labels that are empty or too long


def _default_port(scheme: str) -> int:
    return {"http": 80, "https": 443}[scheme]


def _basic_authorization(parts: SplitResult) -> str | None:
    if parts.username is None:
        return None
    return (
        "Basic "
        + b64encode(f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()).decode()
    )


def request_head(
    method: str, route: Route, headers: Mapping[str, str], body_bytes: int, *, is_last: bool = False
) -> bytes:
    """Return the head of a request. Raises InvalidRequestError if a header contains a line end.

    `is_last`: the connection is closed after it.
    """
    fields = {
        "host": ("Host", route.host),
        "accept": ("Accept", "*/*"),
        "user-agent": ("User-Agent", "redraft"),
    }
    for name, value in headers.items():
        fields[name.lower()] = name, value
    for name in _FRAMING:
        fields.pop(name, None)
    if body_bytes or method != "GET":
        fields["content-length"] = "Content-Length", str(body_bytes)
    if is_last:
        fields["connection"] = "Connection", "close"
    if route.origin.authorization and not route.origin.server.is_tls:
        fields["proxy-authorization"] = "Proxy-Authorization", route.origin.authorization
    return encode_head(f"{method} {route.target}", dict(fields.values()))


def encode_head(request_line: str, headers: Mapping[str, str]) -> bytes:
    """Return the head of a request. Raises InvalidRequestError if a header would begin another
    line.
    """
    lines = [
        f"{request_line} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers.items()),
        "\r\n",
    ]
    try:
        head = "\r\n".join(lines).encode()
    except UnicodeEncodeError:
        raise InvalidRequestError("one of its headers is no text") from None
    if len(head) - len(head.translate(None, _CONTROL_CHARACTERS)) != 2 * len(lines):
        raise InvalidRequestError(
            "one of its headers contains a line end or another control character"
        )
    return head
