"""Deadlines of blocks of code, as `asyncio.timeout` has them, with one timer for all blocks of an
event loop.

A timer for each request costs more than the rest of its deadline, and hardly any is ever needed.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from math import inf
from typing import Self


class Deadlines:
    """The deadlines of the running event loop. Its timer is set for the first of them, or an
    earlier one whose block has ended.

    The timer outlives the block for which it is set, so it has a context of its own: a context
    keeps what the block works on.
    """

    __slots__ = ("_loop", "_next", "_timer", "open")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.open: set[Deadline] = set()
        self._next = inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, deadline: Deadline, seconds: float) -> None:
        """Let a deadline end so many seconds from now."""
        deadline.when = when = self._loop.time() + seconds
        self.open.add(deadline)
        if when < self._next:
            self._set_timer(when)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next, self._timer = (
            when,
            self._loop.call_at(when, self._end_blocks, context=Context()),
        )

    def _end_blocks(self) -> None:
        now = self._loop.time()
        for deadline in [d for d in self.open if d.when <= now]:
            self.open.discard(deadline)
            deadline.end_block()
        self._next, self._timer = inf, None
        if self.open:
            self._set_timer(min(d.when for d in self.open))


class Deadline:
    """A context manager that ends its block with TimeoutError after some seconds. Like
    `asyncio.timeout`, it cancels the task.
    """

    __slots__ = ("_cancelling", "_deadlines", "_is_over", "_seconds", "_task", "when")

    def __init__(self, deadlines: Deadlines, seconds: float) -> None:
        self._deadlines, self._seconds = deadlines, seconds
        self._is_over = False
        self.when = inf

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._deadlines.add(self, self._seconds)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._deadlines.open.discard(self)
        if (
            self._is_over
            and self._task.uncancel() <= self._cancelling
            and isinstance(error, asyncio.CancelledError)
        ):
            raise TimeoutError from error

    def reschedule(self, seconds: float) -> None:
        """End the block so many seconds from now, unless the deadline has passed."""
        if not self._is_over:
            self._deadlines.add(self, seconds)

    def end_block(self) -> None:
        """Cancel the task, which is in the block."""
        self._is_over = True
        self._task.cancel()
