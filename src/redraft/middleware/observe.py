"""Tell somebody what begins and how it ended."""

from __future__ import annotations

from collections.abc import Callable

from .wrapper import AsyncFunction, R, S


def observe(
    call: AsyncFunction[S, R],
    *,
    on_start: Callable[[S], object] | None = None,
    on_end: Callable[[S, R | BaseException], object] | None = None,
) -> AsyncFunction[S, R]:
    """Call `begun(asked)` before and `ended(asked, result or error)` after; what they return is ignored."""

    async def call_observed(asked: S) -> R:
        if on_start:
            on_start(asked)
        try:
            result = await call(asked)
        except BaseException as error:
            if on_end:
                on_end(asked, error)
            raise
        if on_end:
            on_end(asked, result)
        return result

    return call_observed
