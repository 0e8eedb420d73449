"""Models: what turns messages into text. Whatever is heavy loads when it is first used."""

from __future__ import annotations

from .callable import CallableModel
from .chat import Chat
from .detect import Found, Place, find
from .names import connect
from .prices import Price, price_of
from .scripted import ScriptedModel
from .wire import Timeouts

__all__ = ["CallableModel", "Chat", "Found", "Place", "Price", "ScriptedModel", "Timeouts", "connect", "find", "price_of"]
