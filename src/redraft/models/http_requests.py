"""A request over HTTP, below the level of models: what it needs before it can be sent, and how it
can fail.

It needs a server, and headers that begin no other line and do not change where the body ends.
`http_client` makes a ModelError of each failure. OpenSSL names the place in its source, and does
not say that a file of certificates does not exist: `tls_error_text` says what to do.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit


class HttpError(OSError):
    """A request failed: the connection broke, or what is more precisely said by a subclass."""


class InvalidRequestError(HttpError):
    """The request cannot be sent: its URL names no server, or a header contains a line end."""


class UnreachableError(HttpError):
    """No connection to the server."""


class ConnectTimeoutError(HttpError, TimeoutError):
    """No connection in time."""


class NoRoomError(HttpError):
    """This process cannot open a connection now, because it is short of descriptors, memory or
    ports.
    """


class TLSError(HttpError):
    """No secure connection: the certificate is not trusted, or the server has no TLS."""


class ProxyError(HttpError):
    """The proxy opens no tunnel to the server."""

    def __init__(self, status: int) -> None:
        super().__init__(
            f"status {status}{' (its user or password is missing or wrong)' if status == 407 else ''}"  # noqa: E501
        )
        self.status = status


class ProtocolError(HttpError):
    """The server sent something else than a response of HTTP/1.1."""


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
    """Return the port of a URL, or the default of its scheme. Raises ValueError for port 0, and
    KeyError for a scheme that is not HTTP.
    """
    default = {"http": 80, "https": 443}[parts.scheme]
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


# ---- failures

NOT_TRUSTED = frozenset({2, 18, 19, 20, 21})
"""OpenSSL's numbers (X509_V_ERR_...) for a certificate whose authority is not known here."""


OTHER_HOST = frozenset({62, 64})
"""OpenSSL's numbers for the name and for the address of another host."""

NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})
"""OpenSSL's reasons if what arrives is not TLS, such as a response over plain HTTP."""


def tls_error_text(error: ssl.SSLError) -> str:
    """Return what is wrong with a server's TLS, in words that say what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_error_text(
            getattr(error, "verify_code", 0), getattr(error, "verify_message", "") or str(error)
        )
    reason = getattr(error, "reason", None)  # which errors lack that Python code has raised
    if reason in NO_TLS:
        return (
            "the server speaks no TLS at this port; if it speaks plain HTTP, its address begins "
            "with http://"
        )
    return reason.lower().replace("_", " ") if reason else error.strerror or str(error)


def _certificate_error_text(code: int, message: str) -> str:
    if code in NOT_TRUSTED:
        return f"its certificate is not trusted ({message}): {_advice_on_authorities()}"
    if code in OTHER_HOST:  # "Hostname mismatch, certificate is not valid for 'example.com'."
        return (
            f"its {message.partition(', ')[2].rstrip('.') or 'certificate is for another host'}: "
            "does the address have its name?"
        )
    return f"its {message if message.startswith('certificate') else f'certificate is refused: {message}'}"  # noqa: E501


def _advice_on_authorities() -> str:
    """Return how to have a certificate trusted, or why SSL_CERT_FILE or SSL_CERT_DIR does not do
    that.
    """
    file, folders = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file:
        try:
            ssl.create_default_context(cafile=file)
        except ssl.SSLError:
            return "the file that SSL_CERT_FILE names has no certificates in PEM form"
        except OSError as error:
            return f"the file that SSL_CERT_FILE names cannot be read: {error.strerror}"
    if folders and not any(map(os.path.isdir, folders.split(os.pathsep))):
        return "the folder that SSL_CERT_DIR names does not exist"
    if file:
        return "add the certificate of its authority to the file that SSL_CERT_FILE names"
    return "set SSL_CERT_FILE to a file with the certificate of its authority, in PEM form"
