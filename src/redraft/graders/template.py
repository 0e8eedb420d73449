"""A user's own prompt with named fields. Only the fields listed are replaced; every other brace stays as written.

There is no attribute access, no format specification and no code: `str.format` on a foreign template reaches both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..core.errors import ConfigError

FIELDS = {
    "query": "task",
    "task": "task",
    "response": "answer",
    "answer": "answer",
    "context": "context",
    "reference": "reference",
    "tests": "tests",
}
PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.\[\]!:]*)\}")
REQUIRED = ("response", "answer")


class Template:
    """A template; raises ConfigError for a field that does not exist, or when the answer does not occur in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        found = PLACEHOLDER.findall(text)
        for name in found:
            if name not in FIELDS:
                raise ConfigError(f"the template has no field {{{name}}}; there are {', '.join(f'{{{f}}}' for f in FIELDS)}")
        if not any(name in REQUIRED for name in found):
            raise ConfigError("the template must show the answer: put {response} where it belongs")

    def fill(self, texts: Mapping[str, str]) -> str:
        """The text with every field replaced; what the task does not have is "(none)"."""
        return PLACEHOLDER.sub(lambda m: texts.get(FIELDS[m[1]], "(none)"), self.text)
