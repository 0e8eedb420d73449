"""The ledger of what was sent: every call to a model is entered once, when it is made, and settled when it is known what it took.

Whoever counts opens a `Ledger` around the work; whatever happens to a call on its way back, its entry stays. A call that was
cancelled, timed out or lost is never settled: it counts, and what it took is unknown. Only the wire knows when a request really
leaves; a model that watches it says so (`Entry.watch`, `Entry.leave`), for any other model a call that was begun was sent.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from dataclasses import replace
from typing import Self

from .core.records import NOTHING, Usage


class Entry:
    """One call to a model. `requests` is how many left for it; None where nobody watches: then it counts as one."""

    __slots__ = ("_settled", "requests")

    def __init__(self) -> None:
        self.requests: int | None = None
        self._settled: Usage | None = None

    def watch(self) -> None:
        """From now on requests are counted as they leave: none has."""
        self.requests = self.requests or 0

    def leave(self) -> None:
        """Count a request that leaves."""
        self.requests = (self.requests or 0) + 1

    def settle(self, usage: Usage) -> Usage:
        """Enter what the call took, as far as that is known. It is never fewer calls than requests that left."""
        least = (0 if usage.cached_calls else 1) if self.requests is None else self.requests
        if usage.calls < least:
            usage += unknown_usage(least - usage.calls)
        self._settled = usage
        return usage

    @property
    def usage(self) -> Usage:
        """What it took; unknown while that is not settled, and nothing where no request has left."""
        if self._settled is not None:
            return self._settled
        return NOTHING if self.requests == 0 else unknown_usage(self.requests or 1)


def unknown_usage(calls: int = 1) -> Usage:
    """So many calls of which nothing is known but that they were sent."""
    return Usage(calls, input_tokens=None, output_tokens=None, cost=None)


class Ledger:
    """The calls that were made while it was open, in this task and in those it started.

    One that is opened `within` another hands its entries on to that.
    """

    __slots__ = ("_answer", "_token", "entries", "within")

    def __init__(self, within: Ledger | None = None) -> None:
        self.entries: list[Entry] = []
        self.within = within
        self._answer: Usage | None = None
        self._token: Token[Ledger | None] | None = None

    def __enter__(self) -> Self:
        self._token = _OPEN.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _OPEN.reset(self._token)

    def enter(self) -> Entry:
        """A new entry, here and in all ledgers around this one."""
        entry, ledger = Entry(), self
        ledger.entries.append(entry)
        while ledger.within is not None:
            ledger = ledger.within
            ledger.entries.append(entry)
        return entry

    def answer(self, usage: Usage) -> None:
        """Note the usage of the answer that came of all these calls: what of it was cached, and what the answer itself took."""
        self._answer = usage

    @property
    def sent(self) -> Usage:
        """What all its calls took."""
        return sum((entry.usage for entry in self.entries), NOTHING)

    @property
    def usage(self) -> Usage:
        """The same for one question: every call after the first was a retry; with what was noted of the answer."""
        answer, sent = self._answer, self.sent
        if answer and (not self.entries or (len(self.entries) == 1 and answer.calls == sent.calls)):
            return answer  # of a cache, or of the one call there was
        known = replace(sent.of_one_answer(), answer_tokens=0, answer_cost=0.0)
        if answer is None:
            return known
        return replace(known, cached_calls=answer.cached_calls, answer_tokens=answer.answer_tokens, answer_cost=answer.answer_cost)


_OPEN: ContextVar[Ledger | None] = ContextVar("ledger", default=None)


def open_ledger() -> Ledger | None:
    """The ledger that is open here."""
    return _OPEN.get()


def current_entry() -> Entry:
    """The entry of the call that is under way here; one of its own where nobody counts."""
    ledger = _OPEN.get()
    return ledger.entries[-1] if ledger is not None and ledger.entries else Entry()
