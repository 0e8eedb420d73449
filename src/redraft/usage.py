"""What model calls consumed, and the ledger that counts them.

An unknown part makes a sum unknown: None is never read as 0. A call is entered in the ledger once,
when it is made, and settled when its usage is known. Code that counts usage opens a `CallLedger`
around the work; an entry stays, whatever happens to its call. A call that was cancelled, timed out
or lost is never settled: it counts, with unknown usage. Only the HTTP client knows when a request
is really sent; it reports that with `LedgerEntry.start_counting` and `count_request`. For any other
model, a call that was started counts as sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self


def add_optional(a: float | None, b: float | None) -> Any:
    """Return the sum; None if a part is unknown."""
    return None if a is None or b is None else a + b


@dataclass(frozen=True, slots=True)
class Usage:
    """What model calls consumed. An unknown value is None, never 0, and a sum with an unknown part
    is None.

    Attributes:
        calls: Number of model calls made, failed and repeated ones included.
        input_tokens: Tokens that models read.
        output_tokens: Tokens that models wrote.
        cached_calls: Calls that were answered from a cache. They cost nothing and are not counted
            in `calls`.
        retried_calls: How many of `calls` were retries or repeated questions.
        cost: Cost in USD.
        answer_tokens: Tokens of the answers when they were made: without failed attempts, with
            cached answers.
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
        return Usage(
            self.calls + other.calls,
            add_optional(self.input_tokens, other.input_tokens),
            add_optional(self.output_tokens, other.output_tokens),
            self.cached_calls + other.cached_calls,
            self.retried_calls + other.retried_calls,
            add_optional(self.cost, other.cost),
            add_optional(self.answer_tokens, other.answer_tokens),
            add_optional(self.answer_cost, other.answer_cost),
        )

    @property
    def tokens(self) -> int | None:
        """Input and output tokens together."""
        both: int | None = add_optional(self.input_tokens, self.output_tokens)
        return both

    @property
    def totals(self) -> dict[str, Any]:
        """The calls, tokens and cost, as reports have them."""
        return {"calls": self.calls, "tokens": self.tokens, "cost": self.cost}

    @property
    def cached_cost(self) -> float | None:
        """Cost in USD, when they were made, of the answers from a cache; unknown if other calls of
        the same sum were repeated.
        """
        if not self.cached_calls:
            return 0.0
        if self.answer_cost is None or self.cost is None or self.retried_calls:
            return None
        return max(0.0, self.answer_cost - self.cost)

    def with_cost(self, cost: float | None) -> Usage:
        """Return the usage with another cost."""
        return replace(self, cost=cost)

    def as_answer(self, cost: float | None) -> Usage:
        """Return the usage with this cost, and with its tokens and its cost as those of the
        answer.
        """
        return replace(self, cost=cost, answer_tokens=self.tokens, answer_cost=cost)

    def as_single_answer(self) -> Usage:
        """Return the usage with every call after the first counted as a retry: all were made for
        one answer.
        """
        return replace(self, retried_calls=max(self.calls - 1, 0))


NO_USAGE = Usage()


def unknown_usage(calls: int = 1) -> Usage:
    """Return the usage of calls of which only the number is known."""
    return Usage(calls, input_tokens=None, output_tokens=None, cost=None)


@dataclass(eq=False)
class LedgerEntry:
    """One call to a model. `requests` is how many requests were sent for it; None if that is not
    reported: it counts as one.
    """

    requests: int | None = field(default=None, init=False)
    _settled_usage: Usage | None = field(default=None, init=False)

    def start_counting(self) -> None:
        """Count requests as they are sent, from 0."""
        self.requests = self.requests or 0

    def count_request(self) -> None:
        """Count one request that is sent."""
        self.requests = (self.requests or 0) + 1

    def settle(self, usage: Usage) -> Usage:
        """Enter the usage of the call, as far as it is known; it has at least as many calls as
        requests were sent.
        """
        minimum = (0 if usage.cached_calls else 1) if self.requests is None else self.requests
        if usage.calls < minimum:
            usage += unknown_usage(minimum - usage.calls)
        self._settled_usage = usage
        return usage

    def settle_answer(self, usage: Usage, cost: float | None) -> Usage:
        """Enter the usage and the cost of a call that was answered."""
        whole = self.settle(usage)
        self._settled_usage = answer = whole.as_answer(cost if whole is usage else None)
        return answer

    @property
    def usage(self) -> Usage:
        """The usage; unknown until it is settled, and nothing if no request was sent."""
        if self._settled_usage is not None:
            return self._settled_usage
        return NO_USAGE if self.requests == 0 else unknown_usage(self.requests or 1)


@dataclass(eq=False)
class CallLedger:
    """The calls made while it is open, in this asyncio task and those it starts.

    `reserve_again` reserves another attempt of the call that is about to be made, given the usage
    of the last one. It is for an inner wrapper that repeats the call, which takes it out: it does
    not concern the calls that a model makes in answering.
    """

    entries: list[LedgerEntry] = field(default_factory=list, init=False)
    reserve_again: Callable[[Usage], Any] | None = field(default=None, init=False)
    _answer_usage: Usage | None = field(default=None, init=False)
    _token: Token[CallLedger | None] | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        self._token = _CURRENT.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _CURRENT.reset(self._token)

    def new_entry(self) -> LedgerEntry:
        """Add an entry."""
        entry = LedgerEntry()
        self.entries.append(entry)
        return entry

    def record_answer(self, usage: Usage) -> None:
        """Record the usage of the answer that these calls led to."""
        self._answer_usage = usage

    @property
    def total_usage(self) -> Usage:
        """The usage of all calls."""
        return sum_usage(self.entries)

    @property
    def usage(self) -> Usage:
        """The usage as that of one question: every call after the first is a retry, and the
        answer's usage is added.
        """
        answer, entries = self._answer_usage, self.entries
        if answer and (
            not entries or (len(entries) == 1 and answer.calls == entries[0].usage.calls)
        ):
            return answer  # from the cache, or from the only call
        known = replace(self.total_usage.as_single_answer(), answer_tokens=0, answer_cost=0.0)
        if answer is None:
            return known
        return replace(
            known,
            cached_calls=answer.cached_calls,
            answer_tokens=answer.answer_tokens,
            answer_cost=answer.answer_cost,
        )


class HasUsage(Protocol):
    """A call, the calls of a question, or a record."""

    @property
    def usage(self) -> Usage: ...


def sum_usage(items: Iterable[HasUsage]) -> Usage:
    """Return the usage of all items."""
    return sum((item.usage for item in items), NO_USAGE)


_CURRENT: ContextVar[CallLedger | None] = ContextVar("ledger", default=None)


def current_ledger() -> CallLedger | None:
    """Return the open ledger; None if there is none."""
    return _CURRENT.get()


def current_entry() -> LedgerEntry:
    """Return the entry of the running call; a new one if no ledger is open."""
    ledger = _CURRENT.get()
    return ledger.entries[-1] if ledger is not None and ledger.entries else LedgerEntry()
