"""Anthropic's messages: what clients and models of this protocol send and receive."""

from __future__ import annotations

from typing import Any

from ..exchange import GatewayError
from ..neutral import Json, ProtocolName, Reply, Request, WrittenRequest
from .messages_replies import error_body, error_event, error_status, read_reply, write_reply
from .messages_requests import read_request, write_request
from .messages_streams import MessagesStreamReader, MessagesStreamWriter


class MessagesProtocol:
    """Anthropic's messages (`POST /v1/messages`), on the side of clients and on the side of
    models.
    """

    name: ProtocolName = "messages"

    def read_request(self, body: Json) -> Request:
        return read_request(body)

    def write_request(self, request: Request, model: str) -> WrittenRequest:
        return write_request(request, model)

    def read_reply(self, data: Json) -> Reply:
        return read_reply(data)

    def write_reply(
        self, request: Request, reply: Reply, created: int, outcome: Json | None = None
    ) -> dict[str, Any]:
        return write_reply(request, reply, created, outcome)

    def stream_reader(self) -> MessagesStreamReader:
        return MessagesStreamReader()

    def stream_writer(self, request: Request, created: int) -> MessagesStreamWriter:
        return MessagesStreamWriter(request, created)

    def error_status(self, error: GatewayError) -> int:
        return error_status(error)

    def error_body(self, error: GatewayError) -> dict[str, Any]:
        return error_body(error)

    def error_event(self, error: GatewayError) -> bytes:
        return error_event(error)
