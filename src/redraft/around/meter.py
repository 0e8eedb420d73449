"""Money, tokens and calls: reserved before a call, settled after it, so that calls in flight cannot overshoot together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import isfinite
from typing import Protocol

from ..contracts import Call, Reply, Request
from ..core.errors import BudgetExhaustedError, ConfigError, ModelError
from ..core.records import NOTHING, Usage, text_of

CHARS_PER_TOKEN = 3  # a cautious estimate: English has about 4, other scripts fewer
OUTPUT_GUESS = 1024  # tokens reserved for an answer when max_tokens is not set
LIMITS = ("calls", "input_tokens", "output_tokens", "tokens", "usd")


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent: `calls` (retries count), `input_tokens`, `output_tokens`, `tokens` (both), `usd`. None: no limit.

    Raises ConfigError for a negative, infinite or NaN limit.
    """

    calls: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    tokens: int | None = None
    usd: float | None = None

    def __post_init__(self) -> None:
        for name in LIMITS:
            given = getattr(self, name)
            kinds = int | float if name == "usd" else int
            if given is not None and (isinstance(given, bool) or not isinstance(given, kinds) or not isfinite(given) or given < 0):
                raise ConfigError(f"budget: {name} must be a number >= 0 or None, got {given!r}")


class Rate(Protocol):
    """What a model's tokens cost."""

    def cost(self, usage: Usage) -> float | None: ...


class Purse:
    """A budget being spent: what is settled, and what is reserved for calls under way.

    `on_change` is called after each change. `over`: a call was refused that the whole budget would have allowed.
    """

    def __init__(self, budget: Budget | None = None, on_change: Callable[[], object] | None = None) -> None:
        self.budget = budget or Budget()
        self.on_change = on_change
        self.over = False
        self.spent: dict[str, float] = dict.fromkeys(LIMITS, 0.0)
        self.reserved: dict[str, float] = dict.fromkeys(LIMITS, 0.0)
        self._settled = asyncio.Event()

    @property
    def taken(self) -> dict[str, float]:
        """What is settled and what is reserved, together."""
        return {name: self.spent[name] + self.reserved[name] for name in LIMITS}

    def lacking(self, need: Mapping[str, float], *, reserved: bool) -> str | None:
        """The first limit that `need` would break, or None."""
        for name in LIMITS:
            most = getattr(self.budget, name)
            taken = self.spent[name] + (self.reserved[name] if reserved else 0.0)
            if most is not None and need[name] > 0 and taken + need[name] > most + 1e-12:
                return name
        return None

    def allow(self, budget: Budget) -> None:
        """Change the budget. Whoever waits looks again."""
        self.budget = budget
        self._settled.set()

    async def reserve(self, need: Mapping[str, float]) -> None:
        """Set `need` aside. Waits while calls under way may yet turn out cheaper; raises BudgetExhaustedError when not."""
        while self.lacking(need, reserved=True):
            self.check(need)
            self._settled.clear()
            await self._settled.wait()
        for name in LIMITS:
            self.reserved[name] += need[name]
        self._changed()

    def check(self, need: Mapping[str, float]) -> None:
        """Raise BudgetExhaustedError where `need` is more than can ever be left."""
        if what := self.lacking(need, reserved=False):
            self.over |= need[what] <= getattr(self.budget, what)
            raise BudgetExhaustedError(self._complaint(what, need), what=what)

    def settle(self, need: Mapping[str, float], used: Mapping[str, float | None]) -> None:
        """Replace what was reserved by what was used; what is not known to be less counts as reserved."""
        for name in LIMITS:
            self.reserved[name] -= need[name]
            known = used[name]
            self.spent[name] += need[name] if known is None else known
        self._settled.set()
        self._changed()

    def _changed(self) -> None:
        if self.on_change:
            self.on_change()

    def _complaint(self, what: str, need: Mapping[str, float]) -> str:
        most = getattr(self.budget, what)
        unit = {"usd": "USD", "calls": "calls"}.get(what, what.replace("_", " "))
        unit = unit.removesuffix("s") if most == 1 else unit
        return f"the budget of {most:g} {unit} is used up: {self.spent[what]:g} spent, the next call may take {need[what]:g}"


def priced(call: Call, rate: Rate | None) -> Call:
    """Put on the usage what a call cost in USD (None: the price is unknown), and that this is what the answer took."""

    async def told(request: Request) -> Reply:
        if (going := _GOING.get()) is not None:
            going.append(request)
        try:
            reply = await call(request)
        except ModelError as error:
            error.usage = _priced(error.usage, rate)
            raise
        used = _priced(reply.usage, rate)
        return replace(reply, usage=replace(used, answer_tokens=used.tokens, answer_cost=used.cost))

    return told


def meter(call: Call, purse: Purse, rate: Rate | None = None) -> Call:
    """Reserve before and settle after each call, by estimate at this rate.

    It stands around `priced`, which says what a call cost, and by which it is known that a call that was cancelled had not
    gone out yet.
    """

    async def metered(request: Request) -> Reply:
        need = estimate(request, rate)
        await purse.reserve(need)
        used: Usage | None = None
        going: list[Request] = []
        token = _GOING.set(going)
        try:
            reply = await call(request)
            used = reply.usage
            return reply
        except ModelError as error:
            used = error.usage
            raise
        except asyncio.CancelledError:
            used = None if going else NOTHING
            raise
        finally:
            _GOING.reset(token)
            purse.settle(need, _amounts(used))

    return metered


_GOING: ContextVar[list[Request] | None] = ContextVar("going", default=None)


def estimate(request: Request, rate: Rate | None) -> dict[str, float]:
    """What a call may take: its prompt's length in tokens, and `max_tokens` of output."""
    chars = sum(len(text_of(m)) for m in request.messages)
    read, written = chars // CHARS_PER_TOKEN + 1, request.max_tokens or OUTPUT_GUESS
    usd = rate.cost(Usage(1, read, written)) if rate else None
    return {"calls": 1, "input_tokens": read, "output_tokens": written, "tokens": read + written, "usd": usd or 0.0}


def _priced(usage: Usage, rate: Rate | None) -> Usage:
    return replace(usage, cost=rate.cost(usage)) if rate and usage.cost is None else usage


def _amounts(usage: Usage | None) -> dict[str, float | None]:
    """A usage by limit; None where it is unknown."""
    if usage is None:
        return {**dict.fromkeys(LIMITS), "calls": 1}
    read, written = usage.input_tokens, usage.output_tokens
    return {"calls": usage.calls, "input_tokens": read, "output_tokens": written, "tokens": usage.tokens, "usd": usage.cost}
