"""How a request over HTTP can fail below the level of models. `http_client` makes a ModelError of
each.
"""

from __future__ import annotations


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
