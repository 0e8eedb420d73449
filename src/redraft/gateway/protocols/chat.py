"""OpenAI's chat completions: what clients and models of this protocol send and receive."""

from __future__ import annotations

from typing import Any

from ..exchange import GatewayError
from ..neutral import Json, ProtocolName, Reply, Request, WrittenRequest
from .chat_replies import error_body, error_event, read_reply, write_reply
from .chat_requests import read_request, write_request
from .chat_streams import ChatStreamReader, ChatStreamWriter


class ChatProtocol:
    """The protocol of `POST /v1/chat/completions`."""

    name: ProtocolName = "chat"

    def read_request(self, body: Json) -> Request:
        """Read a request. Raises GatewayError 400 that names the field."""
        return read_request(body)

    def write_reply(
        self, request: Request, reply: Reply, created: int, outcome: Json | None = None
    ) -> dict[str, Any]:
        """Return a whole reply. `created`: Unix time in seconds."""
        return write_reply(request, reply, created, outcome)

    def stream_writer(self, request: Request, created: int) -> ChatStreamWriter:
        """Return what writes the stream of a reply."""
        return ChatStreamWriter(request, created)

    def error_status(self, error: GatewayError) -> int:
        """Return the HTTP status of an error."""
        return error.status

    def error_body(self, error: GatewayError) -> dict[str, Any]:
        """Return the reply that describes an error."""
        return error_body(error)

    def error_event(self, error: GatewayError) -> bytes:
        """Return the event that ends a stream."""
        return error_event(error)

    def write_request(self, request: Request, model: str) -> WrittenRequest:
        """Return a request for the model of this name."""
        return write_request(request, model)

    def read_reply(self, data: Json) -> Reply:
        """Read a whole reply. Raises GatewayError 502 if it is no answer."""
        return read_reply(data)

    def stream_reader(self) -> ChatStreamReader:
        """Return what reads the stream of a reply."""
        return ChatStreamReader()
