"""Call what watches a run while it goes on: the observer, and functions of the user. What these
raise ends nothing: it is noted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, cast

from ..base.error_text import error_text
from ..base.lazy_imports import extension
from ..base.log import log
from ..protocols import AsyncFunction, Observer, R, S

MAX_ERRORS = 10  # that are counted separately: each message may name another row
MAX_LENGTH = 500  # characters of one: it may quote an answer


def observer() -> Observer:
    """Return what records the runs of this process."""
    return cast("Observer", extension("observer"))


@dataclass(frozen=True)
class CallbackErrors:
    """What functions of the user raised that are called while a run goes on.

    `counts` says how often, by a text such as "on_record raised ValueError: no"; `of_all` counts
    those of all tasks of a session.
    """

    counts: Counter[str] = field(default_factory=Counter)
    of_all: Counter[str] = field(default_factory=Counter)

    async def call(self, name: str, function: Callable[[Any], object], argument: Any) -> None:
        """Call the function `name` with the argument, and wait for its result if it is async. What
        it raises is noted.
        """
        try:
            if isawaitable(returned := function(argument)):
                await returned
        except Exception as error:  # noqa: BLE001  (a function of the user)
            self._add(name, error)

    def _add(self, name: str, error: Exception) -> None:
        """Count an error; the first of its kind is logged, by its kind alone: its message may quote
        an answer.
        """
        text = f"{name} raised {error_text(error)}"[:MAX_LENGTH]
        if text not in self.of_all and len(self.of_all) < MAX_ERRORS:
            log.warning("%s raised %s; the run goes on", name, type(error).__name__)
        for counts in (self.counts, self.of_all):
            counts[
                text
                if text in counts or len(counts) < MAX_ERRORS
                else f"{name} raised other errors"
            ] += 1

    @property
    def texts(self) -> tuple[str, ...]:
        """The errors of the task, each once, with their number if there are several."""
        return tuple(f"{text} ({n:,} times)" if n > 1 else text for text, n in self.counts.items())


def observe(
    call: AsyncFunction[S, R], on_start: Callable[[S], Awaitable[object]]
) -> AsyncFunction[S, R]:
    """Wait for `on_start(argument)` before each call."""

    async def call_observed(argument: S) -> R:
        await on_start(argument)
        return await call(argument)

    return call_observed
