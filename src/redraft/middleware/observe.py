"""Call functions before and after each call."""

from __future__ import annotations

from collections.abc import Callable

from ..protocols import AsyncFunction, R, S


def observe(
    call: AsyncFunction[S, R],
    *,
    on_start: Callable[[S], object] | None = None,
    on_end: Callable[[S, R | BaseException], object] | None = None,
) -> AsyncFunction[S, R]:
    """Call `on_start(argument)` before each call and `on_end(argument, result or error)` after it; their results are ignored."""

    async def call_observed(argument: S) -> R:
        if on_start:
            on_start(argument)
        try:
            result = await call(argument)
        except BaseException as error:
            if on_end:
                on_end(argument, error)
            raise
        if on_end:
            on_end(argument, result)
        return result

    return call_observed
