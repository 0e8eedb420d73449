"""What a request over HTTP needs before it can be sent: a server, and headers that begin no other
line and do not change where the body ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

from .http_errors import InvalidRequestError

_FRAMING = frozenset({"content-length", "transfer-encoding", "connection"})
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_NOT_IN_HOSTS = frozenset({*map(chr, range(33)), *"<>\\^`{|}", "\x7f"})
# IDNA 2003, which Python has, and IDNA 2008 differ
_AMBIGUOUS = frozenset("\u00df\u03c2\u200c\u200d")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request that can be sent. `proxy` is a URL. Raises InvalidRequestError."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None
    proxy: str | None
    connect_seconds: float

    def __post_init__(self) -> None:
        check_server(self.url, "its URL")
        if self.proxy:
            check_server(self.proxy, "the URL of its proxy")
        check_headers(self.headers)

    @property
    def is_tls(self) -> bool:
        """Whether its server or its proxy has a certificate."""
        return "https:" in {self.url[:6].lower(), (self.proxy or "")[:6].lower()}


@lru_cache(maxsize=256)
def check_server(url: str, name: str) -> None:
    """Raise InvalidRequestError if a URL names no server; `name` says whose URL it is."""
    try:
        parts = urlsplit(url)
        ascii_host(parts.hostname or "")
        port_of(parts)
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


def without_framing(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers without those that say where the body ends."""
    return {name: str(value) for name, value in headers.items() if name.lower() not in _FRAMING}


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise InvalidRequestError if a header would begin another line, or is no text."""
    text = "".join((*headers, *headers.values()))
    if _CONTROL_CHARACTERS.search(text):
        raise InvalidRequestError(
            "one of its headers contains a line end or another control character"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError("one of its headers is no text") from None
