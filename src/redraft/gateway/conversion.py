"""Conversions between the protocols of clients and of models: requests, whole replies and streams.

A `Conversion` belongs to one request. What the model's protocol cannot say is refused when it is
made, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from .chat_to_messages import messages_body
from .exchange import WireName
from .messages_to_chat import chat_body, shows_thinking
from .reply_streams import ChatReplyStream, MessagesReplyStream
from .request_fields import object_of
from .responses_over_chat import ResponsesReplyStream, chat_body_of, responses_reply
from .responses_wire import ResponsesWire
from .whole_replies import chat_reply, messages_reply


class StreamConverter(Protocol):
    """Converts a stream as it arrives."""

    def feed(self, part: bytes) -> bytes:
        """Add bytes of the model, and return those for the client. Raises GatewayError for what is
        no such stream.
        """
        ...

    def finish(self) -> bytes:
        """Return the end. Raises GatewayError if the stream broke off."""
        ...


class Conversion(Protocol):
    """A request of a client in the protocol of a model, and the way back for its reply."""

    client: WireName
    upstream: WireName
    body: Mapping[str, Any]
    is_needed: bool

    def reply(self, data: Mapping[str, Any], created: int) -> dict[str, Any]:
        """Return a whole reply in the client's form. `created`: Unix time in seconds. Raises
        GatewayError if it is no answer.
        """
        ...

    def stream(self, created: int) -> StreamConverter | None:
        """Return what converts a stream; None if it stays as it is."""
        ...


class SameProtocol:
    """A client and a model that speak the same protocol."""

    is_needed = False

    def __init__(self, wire: WireName, body: Mapping[str, Any]) -> None:
        self.client: WireName = wire
        self.upstream: WireName = wire
        self.body = body

    def reply(self, data: Mapping[str, Any], created: int) -> dict[str, Any]:
        return dict(data)

    def stream(self, created: int) -> StreamConverter | None:
        return None


class MessagesOverChat:
    """A client of Anthropic's protocol and a model of OpenAI's."""

    client: WireName = "messages"
    upstream: WireName = "chat"
    is_needed = True

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body: Mapping[str, Any] = chat_body(body)
        self._shows_thinking = shows_thinking(body)

    def reply(self, data: Mapping[str, Any], created: int) -> dict[str, Any]:
        return messages_reply(data, shows_thinking=self._shows_thinking)

    def stream(self, created: int) -> StreamConverter | None:
        return MessagesReplyStream(shows_thinking=self._shows_thinking)


class ChatOverMessages:
    """A client of OpenAI's protocol and a model of Anthropic's."""

    client: WireName = "chat"
    upstream: WireName = "messages"
    is_needed = True

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body: Mapping[str, Any] = messages_body(body)
        self._includes_usage = (
            object_of("stream_options", body.get("stream_options")).get("include_usage") is True
        )

    def reply(self, data: Mapping[str, Any], created: int) -> dict[str, Any]:
        return chat_reply(data, created)

    def stream(self, created: int) -> StreamConverter | None:
        return ChatReplyStream(created, includes_usage=self._includes_usage)


class ResponsesOverChat:
    """A client of OpenAI's responses and a model that only knows chat completions."""

    client: WireName = "responses"
    upstream: WireName = "chat"
    is_needed = True

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._request = ResponsesWire().parse(body)
        self.body: Mapping[str, Any] = chat_body_of(self._request)

    def reply(self, data: Mapping[str, Any], created: int) -> dict[str, Any]:
        return responses_reply(self._request, data, created)

    def stream(self, created: int) -> StreamConverter | None:
        return ResponsesReplyStream(self._request, created)


class TwoConversions:
    """A conversion after another one: `outer` is on the side of the client, `inner` on that of the
    model.
    """

    is_needed = True

    def __init__(self, outer: Conversion, inner: Conversion) -> None:
        self._outer, self._inner = outer, inner
        self.client: WireName = outer.client
        self.upstream: WireName = inner.upstream
        self.body = inner.body

    def reply(self, data: Mapping[str, Any], created: int) -> dict[str, Any]:
        return self._outer.reply(self._inner.reply(data, created), created)

    def stream(self, created: int) -> StreamConverter | None:
        outer, inner = self._outer.stream(created), self._inner.stream(created)
        assert outer is not None
        assert inner is not None
        return TwoStreamConverters(outer, inner)


class TwoStreamConverters:
    """Converts a stream twice."""

    def __init__(self, outer: StreamConverter, inner: StreamConverter) -> None:
        self._outer, self._inner = outer, inner

    def feed(self, part: bytes) -> bytes:
        return self._outer.feed(self._inner.feed(part))

    def finish(self) -> bytes:
        return self._outer.feed(self._inner.finish()) + self._outer.finish()


def conversion_between(client: WireName, upstream: WireName, body: Mapping[str, Any]) -> Conversion:
    """Return the conversion for a request. Raises GatewayError 400 naming the field that the
    model's protocol cannot say.
    """
    match client, upstream:
        case "messages", "chat":
            return MessagesOverChat(body)
        case "chat", "messages":
            return ChatOverMessages(body)
        case "responses", "chat":
            return ResponsesOverChat(body)
        case "responses", "messages":
            outer = ResponsesOverChat(body)
            return TwoConversions(outer, ChatOverMessages(outer.body))
    return SameProtocol(client, body)
