"""What a protocol must offer, on the side of clients and on the side of models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from ..exchange import GatewayError, Progress
from ..neutral import Event, Json, ProtocolName, Reply, Request, WrittenRequest


class ClientProtocol(Protocol):
    """A protocol that clients speak."""

    name: ProtocolName

    def read_request(self, body: Json) -> Request:
        """Read a request.

        Raises GatewayError 400 that names the field: for a value that is wrong, and for one that
        changes the answer and cannot be honoured in a conversion.
        """
        ...

    def write_reply(
        self, request: Request, reply: Reply, created: int, outcome: Json | None = None
    ) -> dict[str, Any]:
        """Return a whole reply. `created`: Unix time in seconds. `outcome`: what a refinement adds
        (`usage.redraft` and `redraft`); None for a reply that is passed on.
        """
        ...

    def stream_writer(self, request: Request, created: int) -> StreamWriter:
        """Return what writes the stream of a reply."""
        ...

    def error_status(self, error: GatewayError) -> int:
        """Return the HTTP status of an error."""
        ...

    def error_body(self, error: GatewayError) -> dict[str, Any]:
        """Return the reply that describes an error."""
        ...

    def error_event(self, error: GatewayError) -> bytes:
        """Return the event that ends a stream of which nothing but bytes is known."""
        ...


class StreamWriter(Protocol):
    """Writes one stream of server-sent events. Each method returns whole events, b"" for none."""

    def write(self, event: Event) -> bytes:
        """Return what an event of the neutral form is in the protocol."""
        ...

    def keep_alive(self) -> bytes:
        """Return what clients ignore: a comment, or the protocol's own ping."""
        ...

    def progress(self, progress: Progress) -> bytes:
        """Return a step of a refinement: a comment, or a typed event if the request asks for
        `events`.
        """
        ...

    def fail(self, error: GatewayError) -> bytes:
        """Return the error after which the stream ends."""
        ...


class ModelProtocol(Protocol):
    """A protocol that models speak."""

    name: ProtocolName

    def write_request(self, request: Request, model: str) -> WrittenRequest:
        """Return a request for the model of this name.

        Raises GatewayError 400 that names the field for what changes the answer and cannot be
        said.
        """
        ...

    def read_reply(self, data: Json) -> Reply:
        """Read a whole reply. Raises GatewayError 502 if it is no answer."""
        ...

    def stream_reader(self) -> StreamReader:
        """Return what reads the stream of a reply."""
        ...


class StreamReader(Protocol):
    """Reads one stream of server-sent events."""

    def feed(self, part: bytes) -> Iterable[Event]:
        """Return the events in the next bytes. Raises GatewayError 502 for what is no such
        stream.
        """
        ...

    def finish(self) -> Iterable[Event]:
        """Return what is left, with `End` as the last. Raises GatewayError 502 if the stream broke
        off.
        """
        ...
