"""An estimate of how many tokens a request has, for models whose server cannot count them.

It is meant to be too high rather than too low, because its readers decide with it whether a request
fits a context. Tokenizers make about one token of four bytes of English, of three bytes of code and
of Chinese, and of two bytes of numbers or base64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base.jsontext import dumps

BYTES_PER_TOKEN = 2.5
TOKENS_PER_MESSAGE = 8  # role and separators
TOKENS_PER_IMAGE = 1600  # of the largest size to which common models reduce an image
TOKENS_PER_DOCUMENT_BYTE = 0.1  # of a PDF in base64: some 3,000 tokens for a page of 30 kB
_COUNTED = ("messages", "system", "tools", "tool_choice", "output_config")


def estimated_tokens(body: Mapping[str, Any]) -> int:
    """Return an estimate of the input tokens of a request in Anthropic's form."""
    messages = body.get("messages")
    count = TOKENS_PER_MESSAGE * (1 + (len(messages) if isinstance(messages, list) else 0))
    return int(count + sum(_tokens(body.get(name)) for name in _COUNTED)) + 1


def _tokens(value: Any) -> float:
    """Return an estimate for a value, in which an image or a document has no text."""
    if isinstance(value, list):
        return sum(map(_tokens, value))
    if not isinstance(value, Mapping):
        return 0 if value is None else len(dumps(value)) / BYTES_PER_TOKEN
    match value.get("type"):
        case "image":
            return TOKENS_PER_IMAGE
        case "document":
            return TOKENS_PER_IMAGE + len(dumps(dict(value))) * TOKENS_PER_DOCUMENT_BYTE
    return sum(len(str(name)) / BYTES_PER_TOKEN + _tokens(inner) for name, inner in value.items())
