"""The errors of streams that have begun, as each protocol writes them."""

from __future__ import annotations

from .anthropic_wire import MessagesWire
from .chat_wire import error_object, event
from .exchange import GatewayError, WireName


def error_event(wire: WireName, error: GatewayError) -> bytes:
    """Return the event with which a stream ends that broke off."""
    match wire:
        case "messages":
            return event(MessagesWire().error_body(error), "error")
        case "responses":
            described = error_object(error)
            fields = {
                "code": error.code,
                "message": error.message,
                "param": error.param,
                "error": described,
            }
            return event({"type": "error", "sequence_number": 0, **fields}, "error")
    return event({"error": error_object(error)})
