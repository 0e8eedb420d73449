"""Wait where this machine is short of something: descriptors, memory, processes or threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from weakref import WeakKeyDictionary

from ..base.descriptors import is_shortage
from ..base.error_text import error_text
from ..errors import ModelError, ShortageError
from ..protocols import AsyncFunction, R, S

SHORTAGE_PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 20.0)
"""Seconds before each further try."""


class _Retries:
    """The steps of an event loop that try again, one at a time. `failures`: how many found no room
    in the end.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.failures = 0


_retries: WeakKeyDictionary[asyncio.AbstractEventLoop, _Retries] = WeakKeyDictionary()
_is_retrying: ContextVar[bool] = ContextVar("is_retrying", default=False)


def wait_for_room(
    perform: AsyncFunction[S, R], before_retry: Callable[[S], Awaitable[object]]
) -> AsyncFunction[S, R]:
    """Perform a step again, after `before_retry`, while this machine is short of something that it
    needs.

    The steps of an event loop try again one at a time, or each would take what another needs. Calls
    that a step has made are made again then. Raises ShortageError after the last pause. (A call
    waits by itself: see `models.http_client`.)
    """

    async def perform_with_room(step: S) -> R:
        try:
            return await perform(step)
        except Exception as error:
            if not _is_worth_a_wait(error):
                raise
        if _is_retrying.get():  # within a grader that refines: its step has the lock
            return await try_again(step, SHORTAGE_PAUSES)
        retries = _retries.setdefault(asyncio.get_running_loop(), _Retries())
        failures = retries.failures
        async with retries.lock:
            token = _is_retrying.set(True)
            try:  # once, if another found no room meanwhile
                return await try_again(
                    step, SHORTAGE_PAUSES if retries.failures == failures else (0.0,)
                )
            except ShortageError:
                retries.failures += 1
                raise
            finally:
                _is_retrying.reset(token)

    async def try_again(step: S, pauses: Iterable[float]) -> R:
        shortage: Exception | None = None
        for pause in pauses:
            await before_retry(step)
            await asyncio.sleep(pause)
            try:
                return await perform(step)
            except Exception as error:
                if not _is_worth_a_wait(error):
                    raise
                shortage = error
        raise ShortageError(error_text(shortage) if shortage else "") from shortage

    return perform_with_room


def _is_worth_a_wait(error: Exception) -> bool:
    """Whether an error says that this machine is short of something, and no call has waited for
    it.
    """
    return is_shortage(error) and not isinstance(error, ModelError)
