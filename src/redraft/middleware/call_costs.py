"""What a model call may cost: tokens of the prompt and of the answer, and their price.

Only the endpoint knows its tokenizer and its chat template. A prompt is therefore estimated twice:

- The upper bound is one token per byte, which holds for every tokenizer that works on bytes and for every script.
- The likely number is the highest ratio of tokens to bytes that the endpoint has reported, with a margin. Only reports of
  prompts and answers at least half as large count; before there is one, the likely number is the upper bound.

Amounts are kept by limit: calls, input tokens, output tokens, tokens and USD.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any, NamedTuple, Protocol, TypeAlias

from ..core.task import Message, message_text
from ..protocols import Request
from ..text import utf8_size
from ..usage import Usage

LIMITS = ("calls", "input_tokens", "output_tokens", "tokens", "usd")
MILLION = 1_000_000

CHARS_PER_TOKEN = 3  # rough estimate, used where no limit depends on it
DEFAULT_OUTPUT_TOKENS = 1024  # rough estimate of the tokens of an answer, likewise

TEMPLATE_TOKENS = 16  # tokens that a chat template adds to each message, and once more to the prompt
DEFAULT_SYSTEM_TOKENS = 64  # tokens of a default system message; not counted once the endpoint has reported a prompt
IMAGE_TOKENS = 2048  # likely tokens of an image, until the endpoint reports more
MAX_IMAGE_TOKENS = 16_384  # the most tokens of an image that the documentation of a provider or a server states, but for:
IMAGE_TOKENS_OF: Mapping[str, int] = {
    "gpt-4o-mini": 48_169,  # 2,833 and 5,667 for each of 8 tiles
    "gpt-4o": 1_445,  # 85 and 170 for each of 8 tiles
    "gpt-4.1": 1_445,
    "gpt-4.1-mini": 2_489,  # 1.62 for each of 1,536 patches
    "gpt-4.1-nano": 3_779,  # 2.46 for each
    "claude-": 4_784,  # at the highest resolution
}
"""The most tokens of an image, by how the name of a model begins."""
SAFETY_MARGIN = 1.25  # factor on the highest reported ratio: the next text may have a higher one
MAX_REPORTS = 32  # reports that are remembered for each kind of text
DEFAULT_MAX_TOKENS = 8192  # max_tokens of an answer if the request sets none
EXPECTED_TEXT_TOKENS = 1024  # expected tokens of a text, before the first answer
EXPECTED_SCHEMA_TOKENS = 512  # expected tokens of an answer that follows a schema, before the first one
MIN_ANSWER_TOKENS = 256  # the least tokens expected of any answer

Amounts: TypeAlias = Mapping[str, float]
ZERO_AMOUNTS: Amounts = dict.fromkeys(LIMITS, 0.0)


def add_amounts(one: Amounts, other: Amounts) -> dict[str, float]:
    return {name: one[name] + other[name] for name in LIMITS}


def subtract_amounts(one: Amounts, other: Amounts) -> dict[str, float]:
    return {name: one[name] - other[name] for name in LIMITS}


# ---- sizes of prompts


class PromptSize(NamedTuple):
    """What a prompt holds: bytes of ASCII and of other characters in UTF-8, messages, images, and bytes of the schema.

    The schema is separate because only some endpoints add it to the prompt.
    """

    ascii: int = 0
    non_ascii: int = 0
    messages: int = 0
    images: int = 0
    schema: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of the texts, without the schema."""
        return self.ascii + self.non_ascii

    def plus(self, other: PromptSize) -> PromptSize:
        """Return the sum of both sizes."""
        return PromptSize(
            self.ascii + other.ascii,
            self.non_ascii + other.non_ascii,
            self.messages + other.messages,
            self.images + other.images,
            self.schema + other.schema,
        )


def schema_size(schema: Mapping[str, Any]) -> int:
    """Return the bytes of a schema, about as it is added to a prompt."""
    return len(str(schema))


def request_size(request: Request, count: Callable[[Mapping[str, Any]], int] = schema_size) -> PromptSize:
    """Return the size of what a request sends, its tools and its schema included, whose size `count` returns."""
    size = messages_size(request.messages, 0 if request.schema is None else count(request.schema))
    return size.plus(text_size(json_text(request.tools))) if request.tools else size


def messages_size(messages: Iterable[Message], schema: int = 0) -> PromptSize:
    """Return the size of chat messages, with a schema of this size."""
    ascii_bytes = other_bytes = count = images = 0
    for message in messages:
        count += 1
        text = message_text(message)
        if text.isascii():
            ascii_bytes += len(text)
        else:
            size = text_size(text)
            ascii_bytes, other_bytes = ascii_bytes + size.ascii, other_bytes + size.non_ascii
        if tool_calls := message.get("tool_calls") or message.get("function_call"):
            size = text_size(json_text(tool_calls))
            ascii_bytes, other_bytes = ascii_bytes + size.ascii, other_bytes + size.non_ascii
        content = message["content"]
        if not isinstance(content, str) and isinstance(content, list | tuple):
            images += sum(not (isinstance(part, Mapping) and "text" in part) for part in content)
    return PromptSize(ascii_bytes, other_bytes, count, images, schema)


def text_size(text: str) -> PromptSize:
    """Return the size of a text."""
    if text.isascii():
        return PromptSize(len(text))
    ascii_bytes = len(text.encode("ascii", "ignore"))
    return PromptSize(ascii_bytes, utf8_size(text) - ascii_bytes)


def json_text(value: Any) -> str:
    """Return tools or tool calls as JSON, about as a chat template writes them into a prompt."""
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)
    except (ValueError, RecursionError):
        return repr(value)


# ---- tokens


def max_image_tokens(model: str) -> int:
    """Return the most tokens that an image can have for a model of this name."""
    name = "/" + model.lower().replace(":", "/")  # ("openai/gpt-4o", "ft:gpt-4o:...")
    known = max((start for start in IMAGE_TOKENS_OF if f"/{start}" in name), key=len, default="")
    return IMAGE_TOKENS_OF.get(known, MAX_IMAGE_TOKENS)


class TokenRate:
    """The reported tokens per byte of one kind of text, by the size of the prompts.

    The ratio of a short prompt is mostly that of its template, and says little of a long one. A text is therefore estimated
    by the highest ratio among the prompts that were at least half its size.
    """

    def __init__(self) -> None:
        self._reports: list[tuple[int, float]] = []  # (bytes, tokens per byte): larger sizes, lower ratios

    def record(self, new_bytes: int, new_ratio: float) -> None:
        """Record the tokens per byte of a text, those of the chat template included."""
        for count, ratio in self._reports:
            if count >= new_bytes and ratio >= new_ratio:
                return
        others = [(count, ratio) for count, ratio in self._reports if count > new_bytes or ratio > new_ratio]
        self._reports = sorted([*others, (new_bytes, new_ratio)])[-MAX_REPORTS:]

    def tokens(self, size_bytes: int) -> float:
        """Return the likely tokens of a text; one per byte if no prompt of half its size was reported."""
        ratio = next((ratio for count, ratio in self._reports if 2 * count >= size_bytes), 1.0)
        return size_bytes * min(1.0, SAFETY_MARGIN * ratio)


@dataclass
class TokenEstimator:
    """Estimates the tokens of one model at one endpoint, and learns from what the endpoint reports.

    Attributes:
        image_tokens: Likely tokens of an image.
        max_image_tokens: The most tokens of an image.
        template_tokens: Tokens that the chat template adds to each message.
        longest_answers: Tokens of the longest answer so far, by whether it followed the schema of a judge.
        max_tokens_limit: The highest `max_tokens` that the endpoint accepts, once it has refused one.
    """

    image_tokens: float = IMAGE_TOKENS
    max_image_tokens: int = MAX_IMAGE_TOKENS
    template_tokens: int = TEMPLATE_TOKENS
    longest_answers: dict[bool, int] = field(default_factory=dict)
    max_tokens_limit: int | None = None
    _has_reports: bool = False
    _ascii_rate: TokenRate = field(default_factory=TokenRate)
    _other_rate: TokenRate = field(default_factory=TokenRate)

    def upper_bound(self, size: PromptSize) -> int:
        """Return the most tokens that a prompt can have."""
        return self._most_tokens(size, max(self.image_tokens, self.max_image_tokens))

    def likely_tokens(self, size: PromptSize) -> int:
        """Return the most tokens that a prompt is likely to have."""
        texts = self._ascii_rate.tokens(size.ascii + size.schema) + self._other_rate.tokens(size.non_ascii)
        return min(self.upper_bound(size), ceil(texts) + self._overhead(size, self.image_tokens))

    def expected_answer_tokens(self, *, schema: bool) -> int:
        """Return the number of tokens that is enough for most answers."""
        longest = self.longest_answers.get(schema)
        if longest is None:
            return EXPECTED_SCHEMA_TOKENS if schema else EXPECTED_TEXT_TOKENS
        return max(MIN_ANSWER_TOKENS, 3 * longest // 2)

    @property
    def default_max_tokens(self) -> int:
        """The `max_tokens` of an answer if the request sets none."""
        default = max(DEFAULT_MAX_TOKENS, 2 * self.longest_answers.get(False, 0))
        return default if self.max_tokens_limit is None else min(default, self.max_tokens_limit)

    def update(self, size: PromptSize, usage: Usage, answer: PromptSize = PromptSize(), *, schema: bool) -> None:
        """Learn from the usage that the endpoint reports for one call; unknown numbers, and those of refusals, are ignored.

        Its answer counts too: what a model writes is mostly part of the next prompt.
        """
        if usage.output_tokens:
            self.longest_answers[schema] = max(self.longest_answers.get(schema, 0), usage.output_tokens)
            self._record_ratio(answer, usage.output_tokens)
        if not usage.input_tokens:
            return
        self._has_reports = True
        if (excess := usage.input_tokens - self._most_tokens(size, self.image_tokens)) > 0:
            if size.images:
                self.image_tokens += excess / size.images
            else:
                self.template_tokens += ceil(excess / (size.messages + 1))
        self._record_ratio(size, usage.input_tokens)

    def _record_ratio(self, size: PromptSize, tokens: int) -> None:
        """Record the tokens per byte of a text that is mostly of one kind; of others the shares are unknown."""
        if size.images or not size.bytes:
            return
        if 5 * size.non_ascii < size.bytes:
            self._ascii_rate.record(size.bytes + size.schema, tokens / size.bytes)
        elif 5 * size.ascii < size.bytes:
            self._other_rate.record(size.bytes + size.schema, tokens / size.bytes)

    def _most_tokens(self, size: PromptSize, image_tokens: float) -> int:
        """Return the most tokens of a prompt whose images have so many each."""
        return size.bytes + size.schema + self._overhead(size, image_tokens) + (0 if self._has_reports else DEFAULT_SYSTEM_TOKENS)

    def _overhead(self, size: PromptSize, image_tokens: float) -> int:
        return self.template_tokens * (size.messages + 1) + ceil(image_tokens * size.images)


# ---- costs


class Pricing(Protocol):
    """What a model's tokens cost."""

    def cost(self, usage: Usage) -> float | None: ...


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """What one call or several may take, by limit.

    Attributes:
        upper_bound: The most that the prompts can take.
        likely: The most that the prompts are likely to take.
        per_token: What each token of the answer takes.
        min_answer_tokens: With fewer tokens for the answer, the call is not made.
        expected_answer_tokens: Tokens that are enough for most answers.
        max_answer_tokens: The most tokens that the answer may have.
    """

    upper_bound: Amounts
    likely: Amounts
    per_token: Amounts
    min_answer_tokens: int = 0
    expected_answer_tokens: int = 0
    max_answer_tokens: float = inf

    @property
    def minimum(self) -> dict[str, float]:
        """The least for which the calls can be made."""
        return self.amounts(self.likely, self.min_answer_tokens)

    @property
    def expected_amounts(self) -> dict[str, float]:
        """The most that the prompts can take, with an answer of the expected length."""
        return self.amounts(self.upper_bound, self.expected_answer_tokens)

    def plus(self, other: CostEstimate) -> CostEstimate:
        """Return the sum of both, with the answer of this one."""
        return CostEstimate(
            add_amounts(self.upper_bound, other.upper_bound),
            add_amounts(self.likely, other.likely),
            add_amounts(self.per_token, other.per_token),
            self.min_answer_tokens,
            self.expected_answer_tokens,
            self.max_answer_tokens,
        )

    def amounts(self, prompts: Amounts, tokens: float) -> dict[str, float]:
        """Return the amounts with this many tokens in the answer."""
        return {name: prompts[name] + (each * tokens if (each := self.per_token[name]) else 0.0) for name in LIMITS}


class CostEstimator:
    """Estimates what the calls of one model may cost. Without `pricing`, USD are not counted. `model`: its name, for images."""

    def __init__(self, pricing: Pricing | None = None, model: str = "") -> None:
        most = max_image_tokens(model)
        self.token_estimator = TokenEstimator(min(IMAGE_TOKENS, most), most)
        self._input_price, self._output_price = (
            (pricing.cost(usage) or 0.0) / MILLION if pricing else 0.0 for usage in (Usage(1, MILLION, 0), Usage(1, 0, MILLION))
        )
        self._last_schema: tuple[Mapping[str, Any] | None, int] = (None, 0)
        self._unknown_usd = None if pricing else 0.0
        self._per_token = {**ZERO_AMOUNTS, "output_tokens": 1.0, "tokens": 1.0, "usd": self._output_price}

    def schema_size(self, schema: Mapping[str, Any]) -> int:
        """Return the size of a schema, counted once for all requests of a judge, which share it."""
        if schema is not self._last_schema[0]:
            self._last_schema = schema, schema_size(schema)
        return self._last_schema[1]

    def request_cost(
        self, request: Request, size: PromptSize, min_tokens: int, max_tokens_cap: int | None = None, prompt_tokens: float = inf
    ) -> CostEstimate:
        """Return what a request may cost.

        `max_tokens_cap` bounds its answer if it has no `max_tokens`; `prompt_tokens` is a second estimate of its prompt, which
        counts if it is lower.
        """
        tokens = self.token_estimator
        least, expected, most = self._answer_tokens(request, min_tokens, max_tokens_cap)
        upper_bound = self._prompt_amounts(tokens.upper_bound(size))
        likely = self._prompt_amounts(min(prompt_tokens, tokens.likely_tokens(size)))
        return CostEstimate(upper_bound, likely, self._per_token, least, expected, most)

    def expected_amounts(self, request: Request, size: PromptSize, max_tokens_cap: int | None) -> dict[str, float]:
        """Return the most that the prompt of a request can take, with an answer of the expected length."""
        _, answer, _ = self._answer_tokens(request, 0, max_tokens_cap)
        prompt = self.token_estimator.upper_bound(size)
        usd = prompt * self._input_price + answer * self._output_price
        return {"calls": 1, "input_tokens": prompt, "output_tokens": answer, "tokens": prompt + answer, "usd": usd}

    def _answer_tokens(self, request: Request, min_tokens: int, max_tokens_cap: int | None) -> tuple[int, int, int]:
        """Return the least, the expected and the most tokens of an answer."""
        tokens, schema = self.token_estimator, request.is_judgement
        most = request.max_tokens or max_tokens_cap or tokens.default_max_tokens
        least = min(most, max(min_tokens, tokens.longest_answers.get(True, MIN_ANSWER_TOKENS)) if schema else min_tokens)
        return least, min(most, max(least, tokens.expected_answer_tokens(schema=schema))), most

    def grade_cost(self, size: PromptSize, max_answer_tokens: int | None, shown_per_token: float) -> CostEstimate:
        """Return what a call that grades a text may cost; `per_token` of the result is for each token of that text.

        `size` is the prompt without the text, and `shown_per_token` the tokens of the prompt for each token of the text. The
        answer follows a schema and has at most `max_answer_tokens`; None: it is free text.
        """
        tokens = self.token_estimator
        answer = min(max_answer_tokens or inf, tokens.expected_answer_tokens(schema=max_answer_tokens is not None))
        upper_bound, likely = (
            {name: amount + answer * self._per_token[name] for name, amount in self._prompt_amounts(prompt).items()}
            for prompt in (tokens.upper_bound(size), tokens.likely_tokens(size))
        )
        shown = {"input_tokens": shown_per_token, "tokens": shown_per_token, "usd": shown_per_token * self._input_price}
        return CostEstimate(upper_bound, likely, {**ZERO_AMOUNTS, **shown})

    def amounts_of(self, usage: Usage | None) -> dict[str, float | None]:
        """Return what a call used, by limit; None for what is unknown."""
        if usage is None:
            return {**dict.fromkeys(LIMITS), "calls": 1, "usd": self._unknown_usd}
        return {
            "calls": usage.calls,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "tokens": usage.tokens,
            "usd": self._unknown_usd if usage.cost is None else usage.cost,
        }

    def _prompt_amounts(self, tokens: float) -> dict[str, float]:
        return {"calls": 1, "input_tokens": tokens, "output_tokens": 0.0, "tokens": tokens, "usd": tokens * self._input_price}


def rough_tokens(request: Request) -> int:
    """Return a rough estimate of a call's tokens: its prompt's length, and its `max_tokens` if it sets one."""
    original = request.original or request
    chars = sum(len(message_text(message)) for message in original.messages)
    return chars // CHARS_PER_TOKEN + 1 + (original.max_tokens or DEFAULT_OUTPUT_TOKENS)
