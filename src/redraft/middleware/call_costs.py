"""What a model call may cost: tokens of the prompt and of the answer, and their price.

Only the endpoint knows its tokenizer and its chat template. What a prompt may take is therefore
estimated by its own counts:

- Texts are of five kinds: what the assistant wrote, and other characters by their bytes in UTF-8:
  ASCII, most alphabets (2), Chinese, Japanese, Korean and others (3), and emoji and rare characters
  (4). For each kind counts the highest ratio of tokens to bytes that the endpoint has reported of
  prompts, with a margin that is larger after few reports.
- Before there is a report for a kind, ASCII has one token per byte, which holds for every tokenizer
  that works on bytes. Other characters have a quarter more: some tokenizers take them apart before
  they count. That is the most for a kind, unless the endpoint is seen to count more.
- An endpoint that counts more tokens in an answer than `max_tokens` allows gets a lower
  `max_tokens` for what is reserved.

Amounts are kept by limit: calls, input tokens, output tokens, tokens and USD.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from operator import add
from typing import Any, NamedTuple, Protocol, TypeAlias

from ..base.text import utf8_size
from ..loop.task import Message, message_text
from ..protocols import Request
from ..usage import Usage

LIMITS = ("calls", "input_tokens", "output_tokens", "tokens", "usd")
MILLION = 1_000_000

CHARS_PER_TOKEN = 3  # rough estimate, used where no limit depends on it
DEFAULT_OUTPUT_TOKENS = 1024  # rough estimate of the tokens of an answer, likewise

# tokens that a chat template adds to each message, and once more to the prompt
TEMPLATE_TOKENS = 16
# tokens of a default system message; not counted once the endpoint has reported a prompt
DEFAULT_SYSTEM_TOKENS = 64
# tokens of most large images: so many are expected at least, whatever smaller ones had
LARGE_IMAGE_TOKENS = 2048
# the most tokens of an image that the documentation of a provider or a server states, but for:
MAX_IMAGE_TOKENS = 16_384
IMAGE_TOKENS_OF: Mapping[str, int] = {
    "gpt-4o-mini": 48_169,  # 2,833 and 5,667 for each of 8 tiles
    "gpt-4o": 1_445,  # 85 and 170 for each of 8 tiles
    "gpt-4.1": 1_445,
    "gpt-4.1-mini": 2_489,  # 1.62 for each of 1,536 patches
    "gpt-4.1-nano": 3_779,  # 2.46 for each
    "claude-": 4_784,  # at the highest resolution
}
"""The most tokens of an image, by how the name of a model begins."""
# factor on the highest reported ratio: the next text may have a higher one
MARGIN, FEW_MARGIN = (1.25, 2)
FEW_REPORTS = 8  # up to so many reports count as few
# bytes of a prompt whose ratio says something about longer ones: its template is a small part of it
LONG = 200
# tokens for each of max_tokens that an endpoint may count and still be taken to honour it
MAX_OVERRUN = 1.25
OTHERS_PER_BYTE = 1.25  # tokens of a byte that is not ASCII, at most
# what is reserved for each of max_tokens until an endpoint has cut off an answer
FIRST_OVERRUN = 1.05
MAX_REPORTS = 32  # reports that are remembered for each kind of text
DEFAULT_MAX_TOKENS = 8192  # max_tokens of an answer if the request sets none
EXPECTED_TEXT_TOKENS = 1024  # expected tokens of a text, before the first answer
# expected tokens of an answer that follows a schema, before the first one
EXPECTED_SCHEMA_TOKENS = 512
MIN_ANSWER_TOKENS = 256  # the least tokens expected of any answer

Amounts: TypeAlias = Mapping[str, float]
ZERO_AMOUNTS: Amounts = dict.fromkeys(LIMITS, 0.0)


def add_amounts(one: Amounts, other: Amounts) -> dict[str, float]:
    return {name: one[name] + other[name] for name in LIMITS}


def subtract_amounts(one: Amounts, other: Amounts) -> dict[str, float]:
    return {name: one[name] - other[name] for name in LIMITS}


# ---- sizes of prompts


class PromptSize(NamedTuple):
    """What a prompt holds: bytes of characters by their length in UTF-8, messages, images, and
    bytes of the schema.

    `written` are the bytes of all characters in messages of the assistant. The schema is separate
    because only some endpoints add it to the prompt.
    """

    ascii: int = 0
    of_two: int = 0
    of_three: int = 0
    of_four: int = 0
    written: int = 0
    messages: int = 0
    images: int = 0
    schema: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of the texts, without the schema."""
        return self.ascii + self.of_two + self.of_three + self.of_four + self.written

    def plus(self, other: PromptSize) -> PromptSize:
        """Return the sum of both sizes."""
        return PromptSize(*map(add, self, other))


FIRST_BYTES = {
    2: bytes(range(0xC2, 0xE0)),
    3: bytes(range(0xE0, 0xF0)),
    4: bytes(range(0xF0, 0xF5)),
}
"""The first bytes of characters in UTF-8, by the length of the character."""


def request_size(request: Request) -> PromptSize:
    """Return the size of what a request sends, its tools and its schema included."""
    size = messages_size(request.messages)
    if request.schema is not None:
        size = size.plus(PromptSize(schema=utf8_size(str(request.schema))))
    return size.plus(text_size(json_text(request.tools))) if request.tools else size


def messages_size(messages: Iterable[Message]) -> PromptSize:
    """Return the size of chat messages."""
    size = PromptSize()
    for message in messages:
        text, content = message_text(message), message["content"]
        parts = content if isinstance(content, list | tuple) else ()
        images = sum(not (isinstance(part, Mapping) and "text" in part) for part in parts)
        size = size.plus(PromptSize(messages=1, images=images))
        is_written = message["role"] == "assistant"
        size = size.plus(PromptSize(written=utf8_size(text)) if is_written else text_size(text))
        if tool_calls := message.get("tool_calls") or message.get("function_call"):
            size = size.plus(text_size(json_text(tool_calls)))
    return size


def text_size(text: str) -> PromptSize:
    """Return the size of a text."""
    if text.isascii():
        return PromptSize(len(text))
    data = text.encode("utf-8", "surrogatepass")
    of_two, of_three, of_four = (
        length * (len(data) - len(data.translate(None, first_bytes)))
        for length, first_bytes in FIRST_BYTES.items()
    )
    return PromptSize(len(data) - of_two - of_three - of_four, of_two, of_three, of_four)


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


def _kinds(size: PromptSize) -> tuple[int, int, int, int, int]:
    """Return the bytes of each kind of text; a schema is ASCII."""
    return size.ascii + size.schema, size.of_two, size.of_three, size.of_four, size.written


class TokenRates:
    """The reported tokens per byte of one kind of text, by the size of the prompts.

    The ratio of a short prompt is mostly its template's, and says little of a long one. A
    text is therefore estimated by the highest ratio among those that were not short, or at least
    half its size.
    """

    def __init__(self) -> None:
        self._reports: list[
            tuple[int, float]
        ] = []  # (bytes, tokens per byte): larger sizes, lower ratios
        self._count = 0

    def record(self, size_bytes: int, ratio: float) -> None:
        """Record the tokens per byte of a text, in a prompt together with the chat template's."""
        self._count += 1
        self._reports = _highest([*self._reports, (size_bytes, ratio)])

    def ratio(self, size_bytes: int) -> float:
        """Return the highest ratio of texts that were not short, or of at least half a size; 0 if
        there is none.
        """
        return next(
            (ratio for count, ratio in self._reports if 2 * count >= min(size_bytes, 2 * LONG)), 0.0
        )

    def tokens(self, size_bytes: int, per_byte: float) -> float:
        """Return the most tokens that a text is likely to have: `per_byte` of them if there is no
        report for its size.
        """
        margin = FEW_MARGIN if self._count < FEW_REPORTS else MARGIN
        return size_bytes * (min(per_byte, margin * self.ratio(size_bytes)) or per_byte)


def _highest(reports: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the reports of sizes and ratios without those that another exceeds in both, by
    size.
    """
    kept: list[tuple[int, float]] = []
    for size, ratio in sorted(reports, reverse=True):
        if not kept or ratio > kept[-1][1]:
            kept.append((size, ratio))
    return kept[:MAX_REPORTS][::-1]


@dataclass
class TokenEstimator:
    """Estimates the tokens of one model at one endpoint, and learns from what the endpoint reports.

    Attributes:
        max_image_tokens: The most tokens of an image, as documented.
        image_tokens: The most tokens of an image: at first as documented, then by what the endpoint
            has reported.
        template_tokens: Tokens that the chat template adds to each message.
        tokens_per_byte: The most tokens of a byte of ASCII: 1, unless the endpoint has reported
            more.
        longest_answers: Tokens of the longest answer so far, by whether it followed the schema of a
            judge.
        max_tokens_limit: The highest `max_tokens` that the endpoint accepts, once it has refused
            one.
    """

    max_image_tokens: int = MAX_IMAGE_TOKENS
    image_tokens: float = field(init=False)
    template_tokens: int = TEMPLATE_TOKENS
    tokens_per_byte: float = 1.0
    longest_answers: dict[bool, int] = field(default_factory=dict)
    max_tokens_limit: int | None = None
    _largest_image: float = 0.0
    _overrun: float | None = None
    _has_reports: bool = False
    _rates: tuple[TokenRates, ...] = field(
        default_factory=lambda: tuple(TokenRates() for _ in _kinds(PromptSize()))
    )

    def __post_init__(self) -> None:
        self.image_tokens = self.max_image_tokens

    def tokens(self, size: PromptSize) -> int:
        """Return the most tokens that a prompt may have, by what the endpoint has reported."""
        most = (self.tokens_per_byte, *(max(OTHERS_PER_BYTE, self.tokens_per_byte),) * 4)
        texts = sum(map(TokenRates.tokens, self._rates, _kinds(size), most))
        return (
            ceil(texts) + self._overhead(size) + (0 if self._has_reports else DEFAULT_SYSTEM_TOKENS)
        )

    @property
    def overrun(self) -> float:
        """The tokens of an answer that the endpoint counts for each of its `max_tokens`, at
        most.
        """
        return FIRST_OVERRUN if self._overrun is None else self._overrun

    def expected_answer_tokens(self, *, schema: bool) -> int:
        """Return the number of tokens that is enough for most answers."""
        longest = self.longest_answers.get(schema)
        if longest is None:
            return EXPECTED_SCHEMA_TOKENS if schema else EXPECTED_TEXT_TOKENS
        return max(MIN_ANSWER_TOKENS, 3 * longest // 2)

    def default_max_tokens(self, *, schema: bool) -> int:
        """Return the `max_tokens` of an answer if the request sets none."""
        default = max(DEFAULT_MAX_TOKENS, 2 * self.longest_answers.get(schema, 0))
        return default if self.max_tokens_limit is None else min(default, self.max_tokens_limit)

    def update(self, size: PromptSize, usage: Usage, *, schema: bool) -> None:
        """Learn from the usage that the endpoint reports for one call; unknown numbers, and those
        of refusals, are ignored.

        The tokens of its answer say nothing of prompts, not even of one with this answer: a model
        writes what its tokenizer has words for, and what was written in few tokens may be read in
        many.
        """
        if usage.output_tokens:
            self.longest_answers[schema] = max(
                self.longest_answers.get(schema, 0), usage.output_tokens
            )
        if not usage.input_tokens or not size.messages:
            return
        self._has_reports = True
        if size.images:
            self._note_image(usage.input_tokens / size.images)
        excess = usage.input_tokens - (size.bytes + size.schema) - self._overhead(size)
        # of its template or of its tokenizer: prompts may be longer, or have more messages
        if excess > 0 and not size.images:
            self.template_tokens += ceil(excess / (size.messages + 1))
            if excess < size.bytes:
                self.tokens_per_byte = max(self.tokens_per_byte, 1 + excess / size.bytes)
        self._record_prompt(size, usage.input_tokens)

    def _record_prompt(self, size: PromptSize, tokens: int) -> None:
        """Record the tokens per byte of a prompt: of the kind that most of it is, else as a bound
        for each of its kinds.
        """
        if size.images or not size.bytes:
            return
        for rates, count in zip(self._rates, _kinds(size), strict=True):
            if 5 * count > 4 * size.bytes:
                rates.record(size.bytes + size.schema, tokens / size.bytes)
            elif 5 * count > size.bytes and not rates.ratio(count):
                rates.record(count, tokens / count)

    def note_overrun(self, tokens: int, max_tokens: int) -> None:
        """Learn how many tokens the endpoint counts in an answer that is cut off; an answer that
        ignores `max_tokens` is not one.
        """
        if max_tokens <= tokens <= MAX_OVERRUN * max_tokens:
            self._overrun = max(self._overrun or 1.0, tokens / max_tokens)

    def _note_image(self, tokens: float) -> None:
        """Learn the tokens of an image from the tokens of a prompt, its text included."""
        self._largest_image = max(self._largest_image, tokens)
        likely = max(LARGE_IMAGE_TOKENS, FEW_MARGIN * self._largest_image)
        self.image_tokens = max(self._largest_image, min(self.max_image_tokens, likely))

    def _overhead(self, size: PromptSize) -> int:
        return self.template_tokens * (size.messages + 1) + ceil(self.image_tokens * size.images)


# ---- costs


class Pricing(Protocol):
    """What a model's tokens cost."""

    def cost(self, usage: Usage) -> float | None: ...


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """What one call or several may take, by limit.

    Attributes:
        prompts: The most that the prompts may take.
        per_token: What each token of the answer takes.
        min_answer_tokens: With fewer tokens for the answer, the call is not made.
        expected_answer_tokens: Tokens that are enough for most answers.
        max_answer_tokens: The most tokens that the answer may have.
    """

    prompts: Amounts
    per_token: Amounts
    min_answer_tokens: int = 0
    expected_answer_tokens: int = 0
    max_answer_tokens: float = inf

    @property
    def minimum(self) -> dict[str, float]:
        """The least for which the calls can be made."""
        return self.amounts(self.min_answer_tokens)

    def plus(self, other: CostEstimate) -> CostEstimate:
        """Return the sum of both, with the answer of this one."""
        return CostEstimate(
            add_amounts(self.prompts, other.prompts),
            add_amounts(self.per_token, other.per_token),
            self.min_answer_tokens,
            self.expected_answer_tokens,
            self.max_answer_tokens,
        )

    def amounts(self, tokens: float) -> dict[str, float]:
        """Return the amounts with this many tokens in the answer."""
        return {
            name: self.prompts[name] + (each * tokens if (each := self.per_token[name]) else 0.0)
            for name in LIMITS
        }


class CostEstimator:
    """Estimates what the calls of one model may cost. Without `pricing`, USD are not counted.
    `model`: its name, for images.

    `writes_text` is False for a model that returns numbers: its answers have no tokens.
    """

    def __init__(
        self, pricing: Pricing | None = None, model: str = "", *, writes_text: bool = True
    ) -> None:
        self._writes_text = writes_text
        self.token_estimator = TokenEstimator(max_image_tokens(model))
        self._input_price, self._output_price = (
            (pricing.cost(usage) or 0.0) / MILLION if pricing else 0.0
            for usage in (Usage(1, MILLION, 0), Usage(1, 0, MILLION))
        )
        self._unknown_usd = None if pricing else 0.0

    def _per_token(self, overrun: float) -> dict[str, float]:
        """Return what each token of `max_tokens` may take, of which the endpoint counts `overrun`
        for each.
        """
        return {
            **ZERO_AMOUNTS,
            "output_tokens": overrun,
            "tokens": overrun,
            "usd": overrun * self._output_price,
        }

    def request_cost(
        self,
        request: Request,
        size: PromptSize,
        *,
        min_tokens: int,
        max_tokens_cap: int | None,
        prompt_tokens: float,
        is_limited: bool,
    ) -> CostEstimate:
        """Return what a request may cost.

        `max_tokens_cap` bounds its answer if it has no `max_tokens`; `prompt_tokens` is a second
        estimate of its prompt, which counts if it is lower. Unless the budget `is_limited`, an
        endpoint is taken to keep to `max_tokens`.
        """
        tokens = self.token_estimator
        least, expected, most = self._answer_tokens(request, min_tokens, max_tokens_cap)
        prompts = self._prompt_amounts(min(prompt_tokens, tokens.tokens(size)))
        each = self._per_token(tokens.overrun if is_limited else 1.0)
        return CostEstimate(prompts, each, least, expected, most)

    def _answer_tokens(
        self, request: Request, min_tokens: int, max_tokens_cap: int | None
    ) -> tuple[int, int, int]:
        """Return the least, the expected and the most tokens of an answer."""
        if not self._writes_text:
            return 1, 1, 1
        tokens, schema = self.token_estimator, request.is_judgement
        most = request.max_tokens or max_tokens_cap or tokens.default_max_tokens(schema=schema)
        least = min(
            most,
            max(min_tokens, tokens.longest_answers.get(True, MIN_ANSWER_TOKENS))
            if schema
            else min_tokens,
        )
        return least, min(most, max(least, tokens.expected_answer_tokens(schema=schema))), most

    def grade_cost(
        self,
        size: PromptSize,
        max_answer_tokens: int | None,
        shown_per_token: float,
        *,
        schema: bool,
    ) -> CostEstimate:
        """Return what a call that grades a text may cost; `per_token` of the result is for each
        token of that text.

        `size` is the prompt without the text, and `shown_per_token` the tokens of the prompt for
        each token of the text. The answer has at most `max_answer_tokens` (None: no limit);
        `schema`: it follows one, and is no free text.
        """
        tokens = self.token_estimator
        answer = min(max_answer_tokens or inf, tokens.expected_answer_tokens(schema=schema))
        answer = answer if self._writes_text else 1
        each = self._per_token(tokens.overrun)
        prompts = {
            name: amount + answer * each[name]
            for name, amount in self._prompt_amounts(tokens.tokens(size)).items()
        }
        shown = {
            "input_tokens": shown_per_token,
            "tokens": shown_per_token,
            "usd": shown_per_token * self._input_price,
        }
        return CostEstimate(prompts, {**ZERO_AMOUNTS, **shown})

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
        return {
            "calls": 1,
            "input_tokens": tokens,
            "output_tokens": 0.0,
            "tokens": tokens,
            "usd": tokens * self._input_price,
        }


def rough_tokens(request: Request) -> int:
    """Return a rough estimate of a call's tokens: its prompt's length, and its `max_tokens` if it
    sets one.
    """
    original = request.original or request
    chars = sum(len(message_text(message)) for message in original.messages)
    return chars // CHARS_PER_TOKEN + 1 + (original.max_tokens or DEFAULT_OUTPUT_TOKENS)
