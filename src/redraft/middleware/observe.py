"""Call functions of the user before and after each call. What they raise ends nothing: it is noted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from typing import Any

from ..error_text import error_text
from ..errors import error_name
from ..protocols import AsyncFunction, R, S


@dataclass(frozen=True)
class CallbackErrors:
    """What functions of the user raised that are called while a run goes on; `of_all` are the errors of all tasks of a session.

    They are counted by kind, such as "on_record raised ValueError", with the text of the first: that of each may be another.
    """

    of_all: CallbackErrors | None = None
    _counts: Counter[str] = field(default_factory=Counter, init=False)
    _first: dict[str, str] = field(default_factory=dict, init=False)

    async def call(self, name: str, function: Callable[[Any], object], argument: Any) -> None:
        """Call the function `name` with the argument, and wait for its result if it is async. What it raises is noted."""
        try:
            if isawaitable(returned := function(argument)):
                await returned
        except Exception as error:  # noqa: BLE001  (a function of the user)
            self.add(f"{name} raised {error_name(error)}", f"{name} raised {error_text(error)}")

    def add(self, kind: str, text: str) -> None:
        """Count an error; the first of its kind is logged without its text, which may quote an answer."""
        self._counts[kind] += 1
        self._first.setdefault(kind, text)
        if self.of_all:
            self.of_all.add(kind, text)
        elif self._counts[kind] == 1:
            from ..log import log

            log.warning("%s; the run goes on", kind)

    @property
    def texts(self) -> tuple[str, ...]:
        """The first error of each kind, with their number if there are several."""
        return tuple(f"{text} ({n:,} times)" if (n := self._counts[kind]) > 1 else text for kind, text in self._first.items())


def observe(
    call: AsyncFunction[S, R],
    *,
    on_start: Callable[[S], object] | None = None,
    on_end: Callable[[S, R | BaseException], object] | None = None,
) -> AsyncFunction[S, R]:
    """Call `on_start(argument)` before each call and `on_end(argument, result or error)` after it; async ones are awaited.

    Their results are ignored, and what they raise is logged.
    """
    errors = CallbackErrors()

    async def call_observed(argument: S) -> R:
        if on_start:
            await errors.call("on_start", on_start, argument)
        try:
            result = await call(argument)
        except BaseException as error:
            if on_end:
                await errors.call("on_end", partial(on_end, argument), error)
            raise
        if on_end:
            await errors.call("on_end", partial(on_end, argument), result)
        return result

    return call_observed
