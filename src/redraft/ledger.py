"""The ledger of what was sent: every call to a model is entered once, when it is made, and settled when it is known what it took.

Whoever counts opens a `Ledger` around the work; whatever happens to a call on its way back, its entry stays. A call that was
cancelled, timed out or lost is never settled: it counts, and what it took is unknown. Only the wire knows when a request really
leaves; a model that watches it says so (`Entry.watch`, `Entry.leave`), for any other model a call that was begun was sent.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from dataclasses import replace
from typing import Self

from .core.records import NO_USAGE, Usage


class LedgerEntry:
    """One call to a model. `requests` is how many left for it; None where nobody watches: then it counts as one."""

    __slots__ = ("_settled_usage", "requests")

    def __init__(self) -> None:
        self.requests: int | None = None
        self._settled_usage: Usage | None = None

    def start_counting(self) -> None:
        """From now on requests are counted as they leave: none has."""
        self.requests = self.requests or 0

    def count_request(self) -> None:
        """Count a request that leaves."""
        self.requests = (self.requests or 0) + 1

    def settle(self, usage: Usage) -> Usage:
        """Enter what the call took, as far as that is known. It is never fewer calls than requests that left."""
        least = (0 if usage.cached_calls else 1) if self.requests is None else self.requests
        if usage.calls < least:
            usage += unknown_usage(least - usage.calls)
        self._settled_usage = usage
        return usage

    @property
    def usage(self) -> Usage:
        """What it took; unknown while that is not settled, and nothing where no request has left."""
        if self._settled_usage is not None:
            return self._settled_usage
        return NO_USAGE if self.requests == 0 else unknown_usage(self.requests or 1)


def unknown_usage(calls: int = 1) -> Usage:
    """So many calls of which nothing is known but that they were sent."""
    return Usage(calls, input_tokens=None, output_tokens=None, cost=None)


class CallLedger:
    """The calls that were made while it was open, in this task and in those it started.

    One that is opened `within` another hands its entries on to that.
    """

    __slots__ = ("_answer_usage", "_token", "entries", "outer")

    def __init__(self, outer: CallLedger | None = None) -> None:
        self.entries: list[LedgerEntry] = []
        self.outer = outer
        self._answer_usage: Usage | None = None
        self._token: Token[CallLedger | None] | None = None

    def __enter__(self) -> Self:
        self._token = _CURRENT.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _CURRENT.reset(self._token)

    def new_entry(self) -> LedgerEntry:
        """A new entry, here and in all ledgers around this one."""
        entry, ledger = LedgerEntry(), self
        ledger.entries.append(entry)
        while ledger.outer is not None:
            ledger = ledger.outer
            ledger.entries.append(entry)
        return entry

    def record_answer(self, usage: Usage) -> None:
        """Note the usage of the answer that came of all these calls: what of it was cached, and what the answer itself took."""
        self._answer_usage = usage

    @property
    def total_usage(self) -> Usage:
        """What all its calls took."""
        return sum((entry.usage for entry in self.entries), NO_USAGE)

    @property
    def usage(self) -> Usage:
        """The same for one question: every call after the first was a retry; with what was noted of the answer."""
        answer, sent = self._answer_usage, self.total_usage
        if answer and (not self.entries or (len(self.entries) == 1 and answer.calls == sent.calls)):
            return answer  # of a cache, or of the one call there was
        known = replace(sent.as_single_answer(), answer_tokens=0, answer_cost=0.0)
        if answer is None:
            return known
        return replace(known, cached_calls=answer.cached_calls, answer_tokens=answer.answer_tokens, answer_cost=answer.answer_cost)


_CURRENT: ContextVar[CallLedger | None] = ContextVar("ledger", default=None)


def current_ledger() -> CallLedger | None:
    """The ledger that is open here."""
    return _CURRENT.get()


def current_entry() -> LedgerEntry:
    """The entry of the call that is under way here; one of its own where nobody counts."""
    ledger = _CURRENT.get()
    return ledger.entries[-1] if ledger is not None and ledger.entries else LedgerEntry()
