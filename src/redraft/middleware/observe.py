"""Tell somebody what begins and how it ended."""

from __future__ import annotations

from collections.abc import Callable

from .wrapper import Doing, R, S


def observe(
    call: Doing[S, R],
    *,
    begun: Callable[[S], object] | None = None,
    ended: Callable[[S, R | BaseException], object] | None = None,
) -> Doing[S, R]:
    """Call `begun(asked)` before and `ended(asked, result or error)` after; what they return is ignored."""

    async def observed(asked: S) -> R:
        if begun:
            begun(asked)
        try:
            result = await call(asked)
        except BaseException as error:
            if ended:
                ended(asked, error)
            raise
        if ended:
            ended(asked, result)
        return result

    return observed
