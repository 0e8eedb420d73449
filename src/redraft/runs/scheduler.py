"""Which row starts when, and how a run ends.

Rows are tasks of one event loop. A row starts only while no call waits for its turn at any endpoint, so rows under way come
first and finished work grows steadily. What a row is, how it is worked on and where its result goes is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ..core.cancellation import cancel_and_wait
from ..errors import StoreError
from .endpoints import Endpoints
from .progress import BatchProgress

SOFT_ENDS = {"budget", "deadline"}  # rows under way end by themselves, and those that are left are marked as not started

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


class RowHandler(Protocol[R_contra]):
    """What is done with rows."""

    async def visit(self, row: R_contra) -> bool:
        """Take note of a row in its turn; return whether it is to be run. May wait."""
        ...

    async def run(self, row: R_contra) -> None:
        """Work on a row until it ends, and save its result."""
        ...

    def skip(self, row: R_contra) -> None:
        """Save what there is of a row that is not started, because budget or time is exhausted."""
        ...

    @property
    def has_capacity(self) -> bool:
        """Whether anything but the endpoints lets another row start."""
        ...

    async def wait_for_capacity(self) -> None:
        """Wait until `has_capacity` may have changed."""
        ...


@dataclass
class Scheduler(Generic[R]):
    """Starts rows and ends the run. `max_rows()` is the most rows under way at a time, as it is now.

    `reason` says what ended the run ("" while nothing has): "budget", "deadline", "interrupted", "fatal", "outage" or "disk".
    """

    endpoints: Endpoints
    progress: BatchProgress
    max_rows: Callable[[], int]
    reason: str = ""
    message: str = ""
    _rows: set[asyncio.Task[None]] = field(default_factory=set)
    _event: asyncio.Event = field(default_factory=asyncio.Event)  # a row has ended, or the run

    async def run(self, work: Awaitable[None]) -> None:
        """Do the work, then wait for calls in flight; no row is under way afterwards.

        StoreError ends the run as "disk". Cancellation ends it as "interrupted", and is raised again.
        """
        async with AsyncExitStack() as at_the_end:
            at_the_end.push_async_callback(self._cancel_rows)
            try:
                await work
                await self._drain()
            except StoreError as error:
                self.end("disk", str(error), now=True)
            except asyncio.CancelledError:
                self.end("interrupted", "", now=True)
                raise

    async def process(self, rows: AsyncGenerator[R, None], handler: RowHandler[R]) -> None:
        """Run rows in their order until all have ended, or something ends the run."""
        async with aclosing(rows):
            async for row in rows:
                if await handler.visit(row):
                    if await self._room(handler):
                        self._start(handler.run(row))
                        await asyncio.sleep(0)  # its first call takes its place before the next row looks for one
                    elif self.reason in SOFT_ENDS:
                        handler.skip(row)
                if self.reason and self.reason not in SOFT_ENDS:
                    return
        while self._rows and not self.reason:
            await self.wait()

    def end(self, reason: str, message: str, *, now: bool = False) -> None:
        """Start no more rows. After a soft end rows under way end by themselves; after any other no further call is made.

        `now`: calls in flight are not waited for, either. A soft end may be followed by another one, which counts then.
        """
        if not self.reason or (self.reason in SOFT_ENDS and reason not in SOFT_ENDS):
            self.reason, self.message, self.progress.state = reason, message, "stopping"
        if reason not in SOFT_ENDS:
            self.endpoints.close(now=now)
        self._event.set()

    def replace_end(self, reason: str, message: str) -> None:
        """End the run for this reason, even if something else has ended it already."""
        self.reason = self.message = ""
        self.end(reason, message)

    async def wait(self, also: Awaitable[Any] | None = None) -> None:
        """Wait until a row or the run ends, or until `also` is done."""
        self._event.clear()
        waits = [asyncio.ensure_future(self._event.wait()), *([asyncio.ensure_future(also)] if also else [])]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until a condition holds that rows may bring about, the run ends, or the time is over."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while not (self.reason or condition()) and (left := until - clock()) > 0:
            await self.wait(asyncio.sleep(left))

    async def _room(self, handler: RowHandler[R]) -> bool:
        """Wait until a row may start; return False if the run ends first."""
        while not self.reason:
            if len(self._rows) >= self.max_rows():
                await self.wait()
            elif not handler.has_capacity:
                await self.wait(handler.wait_for_capacity())
            elif not self.endpoints.room:
                await self.wait(self.endpoints.wait_for_room())
            else:
                return True
        return False

    def _start(self, work: Any) -> None:
        row = asyncio.ensure_future(work)
        self._rows.add(row)
        row.add_done_callback(self._row_done)
        self.progress.under_way = len(self._rows)

    def _row_done(self, row: asyncio.Task[None]) -> None:
        self._rows.discard(row)
        self.progress.under_way = len(self._rows)
        self._event.set()
        if not row.cancelled() and (error := row.exception()):
            self.end("disk" if isinstance(error, StoreError) else "fatal", str(error) or type(error).__name__, now=True)

    async def _drain(self) -> None:
        """Wait for calls in flight; after a soft end, for the rows under way."""
        while self._rows and self.reason in SOFT_ENDS:
            await self.wait()
        if self._rows:
            await self.endpoints.wait_until_quiet()

    async def _cancel_rows(self) -> None:
        """Cancel the rows under way; all that is known of them is saved."""
        await cancel_and_wait(self._rows)
