"""The arguments of calls, which all protocols but one write as a text of JSON.

A tool whose input is a text is, where a protocol has functions alone, a function with the one
argument `input`, which is exact in both directions.
"""

from __future__ import annotations

from typing import Any

from ...base.jsontext import loads, text_in
from ..neutral import Json

TEXT_TOOL_SCHEMA: Json = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def arguments_in(text: str) -> dict[str, Any] | None:
    """Return the arguments in a text, {} for none; None if they are no JSON object."""
    try:
        value = loads(text.encode(errors="replace")) if text.strip() else {}
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def text_of_input(arguments: str) -> str:
    """Return the input of a tool from the arguments of its function. What the model wrote instead
    of them is the input itself.
    """
    given = arguments_in(arguments) or {}
    return text_in(given, "input") if isinstance(given.get("input"), str) else arguments
