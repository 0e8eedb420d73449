"""Tools whose input is a text, where a protocol has functions alone: a function with the one
argument `input`, which is exact in both directions.
"""

from __future__ import annotations

from ...base.jsontext import strict_loads
from ..neutral import Json

TEXT_TOOL_SCHEMA: Json = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def text_of_input(arguments: str) -> str:
    """Return the input of a tool from the arguments of its function. What the model wrote instead
    of them is the input itself.
    """
    try:
        value = strict_loads(arguments)
    except ValueError:
        return arguments
    given = value.get("input") if isinstance(value, dict) else None
    return given if isinstance(given, str) else arguments
