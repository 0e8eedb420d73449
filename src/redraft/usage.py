"""What model calls consumed. An unknown part makes a sum unknown: None is never read as 0."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


def _add_optional(a: float | None, b: float | None) -> Any:
    return None if a is None or b is None else a + b


@dataclass(frozen=True, slots=True)
class Usage:
    """What calls consumed. What is unknown is None, never 0, and a sum with an unknown part is unknown.

    Attributes:
        calls: Number of model calls made, failed and repeated ones included.
        input_tokens: Tokens that models read.
        output_tokens: Tokens that models wrote.
        cached_calls: Calls that were answered from a cache. They cost nothing and are not in `calls`.
        retried_calls: How many of `calls` were retries or repeated questions.
        cost: Cost in USD.
        answer_tokens: Tokens of the answers when they were made: without failed attempts, with cached answers.
        answer_cost: Cost of the same in USD.
    """

    calls: int = 0
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cached_calls: int = 0
    retried_calls: int = 0
    cost: float | None = 0.0
    answer_tokens: int | None = 0
    answer_cost: float | None = 0.0

    def __add__(self, other: Usage) -> Usage:
        if other is NO_USAGE or self is NO_USAGE:
            return self if other is NO_USAGE else other
        return Usage(
            self.calls + other.calls,
            _add_optional(self.input_tokens, other.input_tokens),
            _add_optional(self.output_tokens, other.output_tokens),
            self.cached_calls + other.cached_calls,
            self.retried_calls + other.retried_calls,
            _add_optional(self.cost, other.cost),
            _add_optional(self.answer_tokens, other.answer_tokens),
            _add_optional(self.answer_cost, other.answer_cost),
        )

    @property
    def tokens(self) -> int | None:
        """Input and output tokens together."""
        both: int | None = _add_optional(self.input_tokens, self.output_tokens)
        return both

    def as_single_answer(self) -> Usage:
        """Return the usage with every call after the first counted as a retry: all were made for one answer."""
        return replace(self, retried_calls=max(self.calls - 1, 0))


NO_USAGE = Usage()
