"""The protocols that clients and models speak, by their names."""

from __future__ import annotations

from collections.abc import Mapping

from ..neutral import ProtocolName
from .chat import ChatProtocol
from .messages import MessagesProtocol
from .protocol import ClientProtocol, ModelProtocol
from .responses_replies import ResponsesProtocol

CLIENTS: Mapping[ProtocolName, ClientProtocol] = {
    "chat": ChatProtocol(),
    "responses": ResponsesProtocol(),
    "messages": MessagesProtocol(),
}
MODELS: Mapping[ProtocolName, ModelProtocol] = {
    "chat": ChatProtocol(),
    "messages": MessagesProtocol(),
}
"""Those in which a request of another protocol is written."""
