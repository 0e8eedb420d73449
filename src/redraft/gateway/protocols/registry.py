"""The protocols that clients and models speak, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

from ..neutral import ProtocolName
from . import (
    chat_replies,
    chat_requests,
    chat_streams,
    messages_replies,
    messages_requests,
    messages_streams,
    responses_replies,
    responses_requests,
)
from .protocol import ClientProtocol, ModelProtocol

CLIENTS: Mapping[ProtocolName, ClientProtocol] = {
    "chat": ClientProtocol(
        "chat",
        chat_requests.read_request,
        chat_replies.write_reply,
        chat_streams.ChatStreamWriter,
        attrgetter("status"),
        chat_replies.error_body,
        chat_replies.error_event,
    ),
    "responses": ClientProtocol(
        "responses",
        responses_requests.read_request,
        responses_replies.write_reply,
        responses_replies.ResponseStream,
        attrgetter("status"),
        chat_replies.error_body,
        responses_replies.error_event,
    ),
    "messages": ClientProtocol(
        "messages",
        messages_requests.read_request,
        messages_replies.write_reply,
        messages_streams.MessagesStreamWriter,
        messages_replies.error_status,
        messages_replies.error_body,
        messages_replies.error_event,
    ),
}
MODELS: Mapping[ProtocolName, ModelProtocol] = {
    "chat": ModelProtocol(
        "chat",
        chat_requests.write_request,
        chat_replies.read_reply,
        chat_streams.ChatStreamReader,
    ),
    "messages": ModelProtocol(
        "messages",
        messages_requests.write_request,
        messages_replies.read_reply,
        messages_streams.MessagesStreamReader,
    ),
}
"""Those in which a request of another protocol is written."""
