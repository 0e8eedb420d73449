"""What a protocol must offer, on the side of clients and on the side of models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ..exchange import GatewayError
from ..neutral import Json, ProtocolName, Reply, Request, WrittenRequest
from .streams import EventReader, EventWriter


class ReplyWriter(Protocol):
    """Writes a whole reply."""

    def __call__(
        self, request: Request, reply: Reply, created: int, outcome: Json | None = None
    ) -> dict[str, Any]:
        """Return a whole reply. `created`: Unix time in seconds. `outcome`: what a refinement adds
        (`usage.redraft` and `redraft`); None for a reply that is passed on.
        """
        ...


@dataclass(frozen=True, slots=True)
class ClientProtocol:
    """A protocol that clients speak.

    - `read_request` reads the body of a request. It raises GatewayError 400 that names the field:
      for a value that is wrong, and for one that changes the answer and cannot be honoured in a
      conversion.
    - `write_reply` writes a whole reply, `stream_writer` a stream that was begun at a Unix time in
      seconds.
    - `error_status` is the HTTP status of an error, `error_body` the reply that describes it, and
      `error_event` ends a stream of which nothing but bytes is known.
    """

    name: ProtocolName
    read_request: Callable[[Json], Request]
    write_reply: ReplyWriter
    stream_writer: Callable[[Request, int], EventWriter]
    error_status: Callable[[GatewayError], int]
    error_body: Callable[[GatewayError], dict[str, Any]]
    error_event: Callable[[GatewayError], bytes]


@dataclass(frozen=True, slots=True)
class ModelProtocol:
    """A protocol that models speak.

    - `write_request` writes a request for the model of a name. It raises GatewayError 400 that
      names the field for what changes the answer and cannot be said.
    - `read_reply` reads a whole reply, and raises GatewayError 502 if it is no answer;
      `stream_reader` reads a stream.
    """

    name: ProtocolName
    write_request: Callable[[Request, str], WrittenRequest]
    read_reply: Callable[[Json], Reply]
    stream_reader: Callable[[], EventReader]
