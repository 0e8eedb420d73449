"""How many tokens a request takes: bounded by its bytes, estimated from the endpoint's own counts.

Nobody but the endpoint knows its tokenizer and its chat template. A tokenizer that works on bytes makes at most one token of
each, whatever the script; that bound is used wherever it fits. Where it does not fit, the estimate counts: the highest ratio of
tokens to bytes that the endpoint has reported so far, with a margin.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, NamedTuple

from ..core.records import Message, message_text
from ..protocols import Request
from ..text import utf8_size
from ..usage import Usage

TEMPLATE_TOKENS = 16  # tokens that a chat template adds to each message, and once more to the whole
DEFAULT_SYSTEM_TOKENS = (
    64  # tokens that it may add of itself (a default system message), before the endpoint has reported what a prompt took
)
ASCII_RATE, OTHER_RATE = 0.45, 0.75  # tokens of a byte before the endpoint has reported any: of ASCII, and of all else
SAFETY_MARGIN = 1.25  # on the highest ratio reported: the next text may have a higher one
MIN_LEARNING_BYTES = 256  # bytes; the ratio of a shorter text is mostly that of the template
IMAGE_TOKENS = 2048  # tokens of an image before the endpoint has reported more
DEFAULT_MAX_TOKENS = 8192  # tokens an answer may have where nobody limits it
EXPECTED_TEXT_TOKENS, EXPECTED_SCHEMA_TOKENS, MIN_ANSWER_TOKENS = (
    1024,
    512,
    256,
)  # tokens to expect of a text, and of an answer to a schema; and at least, of both


class PromptSize(NamedTuple):
    """What a prompt holds: bytes of ASCII and of other characters in UTF-8, messages, parts that are no text, bytes of a schema
    (which some endpoints add to the prompt).
    """

    ascii: int = 0
    non_ascii: int = 0
    messages: int = 0
    images: int = 0
    schema: int = 0

    @property
    def bytes(self) -> int:
        return self.ascii + self.non_ascii

    def plus(self, other: PromptSize) -> PromptSize:
        """Both together."""
        return PromptSize(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass
class TokenEstimator:
    """Estimates the tokens of one model at one endpoint, and learns from what it reports.

    `longest` is the longest answer so far, by whether it followed a schema. `ceiling` is the highest `max_tokens` that the
    endpoint takes, once it has refused one.
    """

    ascii_rate: float = ASCII_RATE
    other_rate: float = OTHER_RATE
    image_tokens: float = IMAGE_TOKENS
    template_tokens: int = TEMPLATE_TOKENS
    longest_answers: dict[bool, int] = field(default_factory=dict)
    max_tokens_limit: int | None = None
    _has_reports: bool = False
    _max_rates: dict[bool, float] = field(default_factory=dict)  # tokens of a byte, by whether the text is ASCII

    def upper_bound(self, size: PromptSize) -> int:
        """The most tokens that a prompt can be."""
        return size.bytes + size.schema + self._overhead(size) + (0 if self._has_reports else DEFAULT_SYSTEM_TOKENS)

    def likely_tokens(self, size: PromptSize) -> int:
        """What a prompt is likely to be at most."""
        texts = (size.ascii + size.schema) * self.ascii_rate + size.non_ascii * self.other_rate
        return min(self.upper_bound(size), ceil(texts) + self._overhead(size))

    def expected_answer_tokens(self, *, schema: bool) -> int:
        """Tokens that an answer may be expected to have at most."""
        longest = self.longest_answers.get(schema)
        return (
            (EXPECTED_SCHEMA_TOKENS if schema else EXPECTED_TEXT_TOKENS)
            if longest is None
            else max(MIN_ANSWER_TOKENS, 3 * longest // 2)
        )

    @property
    def default_max_tokens(self) -> int:
        """Tokens an answer may have where the request does not limit it."""
        room = max(DEFAULT_MAX_TOKENS, 2 * self.longest_answers.get(False, 0))
        return room if self.max_tokens_limit is None else min(room, self.max_tokens_limit)

    def update(self, size: PromptSize, usage: Usage, *, schema: bool) -> None:
        """Take note of what the endpoint reports of a call. What it does not report teaches nothing, nor does a refusal."""
        if usage.output_tokens:
            self.longest_answers[schema] = max(self.longest_answers.get(schema, 0), usage.output_tokens)
        if not usage.input_tokens:
            return
        self._has_reports = True
        if (excess := usage.input_tokens - self.upper_bound(size)) > 0:
            self._correct(size, excess)
        if size.bytes >= MIN_LEARNING_BYTES and not size.images:
            self._learn_rate(size, usage.input_tokens)

    def _overhead(self, size: PromptSize) -> int:
        return self.template_tokens * (size.messages + 1) + ceil(self.image_tokens * size.images)

    def _correct(self, size: PromptSize, excess: int) -> None:
        """The bound was too low: images or the template take more than was thought."""
        if size.images:
            self.image_tokens += excess / size.images
        else:
            self.template_tokens += ceil(excess / (size.messages + 1))

    def _learn_rate(self, size: PromptSize, tokens: int) -> None:
        """Raise or set the rate of the kind of text that a prompt mostly is."""
        if 5 * size.non_ascii >= size.bytes and 5 * size.ascii >= size.bytes:
            return  # of both kinds: it is not known which took how many
        plain = size.non_ascii < size.ascii
        highest = self._max_rates[plain] = max(self._max_rates.get(plain, 0.0), tokens / size.bytes)
        if plain:
            self.ascii_rate = SAFETY_MARGIN * highest
        else:
            self.other_rate = SAFETY_MARGIN * highest


def request_size(request: Request) -> PromptSize:
    """The size of what a request sends, its schema and its tools included."""
    size = messages_size(request.messages)
    if request.tools:
        size = size.plus(text_size(json_text(request.tools)))
    return size if request.schema is None else size._replace(schema=len(str(request.schema)))


def messages_size(messages: Iterable[Message]) -> PromptSize:
    """The size of chat messages."""
    plain = other = count = images = 0
    for message in messages:
        text = text_size(message_text(message))
        plain, other, count = plain + text.ascii, other + text.non_ascii, count + 1
        if calls := message.get("tool_calls") or message.get("function_call"):
            text = text_size(json_text(calls))
            plain, other = plain + text.ascii, other + text.non_ascii
        if not isinstance(message["content"], str | None):
            images += _image_count(message)
    return PromptSize(plain, other, count, images)


def json_text(value: Any) -> str:
    """Tools, or calls of them, as JSON: about as a chat template writes them into a prompt."""
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)
    except (ValueError, RecursionError):
        return repr(value)


def text_size(text: str) -> PromptSize:
    """The size of a text."""
    if text.isascii():
        return PromptSize(len(text))
    plain = len(text.encode("ascii", "ignore"))
    return PromptSize(plain, utf8_size(text) - plain)


def _image_count(message: Mapping[str, Any]) -> int:
    content = message["content"]
    parts = content if isinstance(content, list | tuple) else ()
    return sum(not (isinstance(part, Mapping) and "text" in part) for part in parts)
