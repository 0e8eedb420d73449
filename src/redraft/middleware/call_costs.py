"""What a model call costs: the price of its tokens, and estimates of what a call needs before it is made.

An estimate has two figures for the prompt, an upper bound and a likely size, and the price of each token of the answer.
Amounts are kept by limit: calls, input tokens, output tokens, tokens and USD.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Protocol, TypeAlias

from ..core.records import message_text
from ..protocols import Request
from ..usage import Usage
from .token_counts import MIN_ANSWER_TOKENS, PromptSize, TokenEstimator

CHARS_PER_TOKEN = 3  # a rough estimate of the tokens of a text, where no limit depends on it
DEFAULT_OUTPUT_TOKENS = 1024  # and of an answer
LIMITS = ("calls", "input_tokens", "output_tokens", "tokens", "usd")
ZERO_AMOUNTS: Mapping[str, float] = dict.fromkeys(LIMITS, 0.0)
MILLION = 1_000_000

Amounts: TypeAlias = Mapping[str, float]


class Pricing(Protocol):
    """What a model's tokens cost."""

    def cost(self, usage: Usage) -> float | None: ...


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """What calls take, by limit: for their prompts `bound` at most and `estimate()` likely, and `per_token` of the answer.

    The answer gets `least` tokens or the call is not made; `expected` tokens are enough for most answers, `most` is all
    that it may have.
    """

    upper_bound: Amounts
    estimate_prompts: Callable[[], Amounts]
    per_token: Amounts
    min_answer_tokens: int = 0
    expected_answer_tokens: int = 0
    max_answer_tokens: float = inf

    @property
    def likely(self) -> Amounts:
        """What the prompts are likely to take at most."""
        return self.estimate_prompts()

    @property
    def minimum(self) -> dict[str, float]:
        """What they take at the very least."""
        return self.amounts(self.likely, self.min_answer_tokens)

    def plus(self, other: CostEstimate) -> CostEstimate:
        """Both together, with the answer of this one."""
        each = add_amounts(self.per_token, other.per_token)
        likely = partial(add_amounts, self.likely, other.likely)
        return CostEstimate(
            add_amounts(self.upper_bound, other.upper_bound),
            likely,
            each,
            self.min_answer_tokens,
            self.expected_answer_tokens,
            self.max_answer_tokens,
        )

    def amounts(self, prompts: Amounts, tokens: float) -> dict[str, float]:
        """What they take with so many tokens in the answer."""
        return {name: prompts[name] + (each * tokens if (each := self.per_token[name]) else 0.0) for name in LIMITS}


class CostEstimator:
    """What the calls of a model need, by what it has counted so far, at a rate (None: USD do not count)."""

    def __init__(self, pricing: Pricing | None = None) -> None:
        self.token_estimator = TokenEstimator()
        self._input_price, self._output_price = (
            (pricing.cost(usage) or 0.0) / MILLION if pricing else 0.0 for usage in (Usage(1, MILLION, 0), Usage(1, 0, MILLION))
        )
        self._per_token = {**ZERO_AMOUNTS, "output_tokens": 1.0, "tokens": 1.0, "usd": self._output_price}

    def request_cost(
        self, request: Request, size: PromptSize, min_tokens: int, max_tokens_cap: int | None = None, prompt_tokens: float = inf
    ) -> CostEstimate:
        """What a request needs. `room`: the `max_tokens` that it gets at most where it has none. `prompt`: the tokens of its
        prompt, by a better estimate.
        """
        tokens, schema = self.token_estimator, request.schema is not None
        most = request.max_tokens or max_tokens_cap or tokens.default_max_tokens
        least = min(most, max(min_tokens, tokens.longest_answers.get(True, MIN_ANSWER_TOKENS)) if schema else min_tokens)
        expected = min(most, max(least, tokens.expected_answer_tokens(schema=schema)))

        def likely_amounts() -> Amounts:
            return self._prompt_amounts(min(prompt_tokens, tokens.likely_tokens(size)))

        return CostEstimate(self._prompt_amounts(tokens.upper_bound(size)), likely_amounts, self._per_token, least, expected, most)

    def grade_cost(self, size: PromptSize, max_answer_tokens: int | None, shown_per_token: float) -> CostEstimate:
        """What a call needs that grades a text, beside a prompt of this size: `shown` tokens for each token of the text.

        Its answer has at most `most` tokens, to a schema; None: it is free text.
        """
        answer = min(max_answer_tokens or inf, self.token_estimator.expected_answer_tokens(schema=max_answer_tokens is not None))
        bound, likely = (
            {name: amount + answer * self._per_token[name] for name, amount in self._prompt_amounts(tokens).items()}
            for tokens in (self.token_estimator.upper_bound(size), self.token_estimator.likely_tokens(size))
        )
        return CostEstimate(
            bound,
            lambda: likely,
            {
                **ZERO_AMOUNTS,
                "input_tokens": shown_per_token,
                "tokens": shown_per_token,
                "usd": shown_per_token * self._input_price,
            },
        )

    def _prompt_amounts(self, tokens: float) -> dict[str, float]:
        return {"calls": 1, "input_tokens": tokens, "output_tokens": 0.0, "tokens": tokens, "usd": tokens * self._input_price}


def estimate_usage(request: Request, pricing: Pricing | None) -> dict[str, float]:
    """What a call takes, roughly: its prompt's length in tokens, and `max_tokens` of output where the caller set them."""
    asked = request.original or request
    chars = sum(len(message_text(m)) for m in asked.messages)
    read, written = chars // CHARS_PER_TOKEN + 1, asked.max_tokens or DEFAULT_OUTPUT_TOKENS
    usd = pricing.cost(Usage(1, read, written)) if pricing else None
    return {"calls": 1, "input_tokens": read, "output_tokens": written, "tokens": read + written, "usd": usd or 0.0}


def add_amounts(one: Amounts, other: Amounts) -> dict[str, float]:
    return {name: one[name] + other[name] for name in LIMITS}
