"""Models: what turns messages into text. Whatever is heavy loads when it is first used."""

from __future__ import annotations

from .discovery import DiscoveryResult, SearchLocation, find_model
from .functions import CallableModel
from .http_client import Timeouts
from .openai_chat import Chat
from .pricing import Price, price_of
from .registry import connect
from .scripted import ScriptedModel

__all__ = [
    "CallableModel",
    "Chat",
    "DiscoveryResult",
    "Price",
    "ScriptedModel",
    "SearchLocation",
    "Timeouts",
    "connect",
    "find_model",
    "price_of",
]
