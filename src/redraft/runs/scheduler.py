"""Which row starts when, and how a run ends: `Scheduler`. What a row is, and how it is processed,
is up to a `RowHandler`.

**Start.** Each row is an asyncio task. The next row, in the order of the data, starts when three
conditions hold: fewer than `max_rows()` rows are under way, the handler has capacity (output and
budget), and no call waits for a free slot at an endpoint, but for a few that are ready for the next
slots. So calls of rows under way take precedence over new rows. As many rows start in a turn of the
event loop as there are free slots.

**End.** `Scheduler.end(reason)` ends a run early; from then on no row starts.

- After a soft end ("budget", "deadline") rows under way end by themselves, and each remaining row
  is skipped: its best result so far is saved.
- After any other end ("interrupted", "fatal", "outage", "disk") no further call starts. The
  scheduler waits for the calls in flight, or with `now=True` does not, and then cancels the rows
  under way; the next run resumes them from the journal.

The first Ctrl-C calls `end("interrupted")`, the second the same with `now=True`, and so does
cancellation of the task that runs the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ..base.log import error_summary
from ..errors import StoreError
from ..loop.cancellation import cancel_and_wait
from .endpoints import Endpoints
from .progress import BatchProgress

SOFT_ENDS = {"budget", "deadline"}
ROWS_PER_TURN = 32  # that start in one turn of the event loop at most

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


class RowHandler(Protocol[R_contra]):
    """Processes the rows that a scheduler passes to it."""

    async def visit(self, row: R_contra) -> bool:
        """Return whether the row must run. Called once for every row, in order. May wait."""
        ...

    def run(self, row: R_contra) -> Coroutine[Any, Any, None]:
        """Work on a row until it ends, and save its result."""
        ...

    async def skip(self, row: R_contra) -> None:
        """Save the best result so far of a row that does not start, because budget or time is
        exhausted.
        """
        ...

    @property
    def has_capacity(self) -> bool:
        """Whether another row may start, regardless of the endpoints."""
        ...

    async def wait_for_capacity(self) -> None:
        """Wait until `has_capacity` may have changed."""
        ...


@dataclass
class Scheduler(Generic[R]):
    """Starts rows and ends the run. `max_rows()` returns how many rows may be under way now.

    `reason` is why the run ends, "" while it does not. `message` describes it without text of a row
    or of an endpoint, and `detail`, which the rows get that were not tried, with it.
    """

    endpoints: Endpoints
    progress: BatchProgress
    max_rows: Callable[[], int]
    reason: str = ""
    message: str = ""
    detail: str = ""
    _rows: set[asyncio.Task[None]] = field(default_factory=set)
    # set when a row ends, or the run does
    _change: asyncio.Event = field(default_factory=asyncio.Event)
    _free_slots: int = 0  # for which rows start in this turn

    async def run(self, work: Awaitable[None]) -> None:
        """Await `work`, which calls `process`, then wait for the calls in flight. Afterwards no row
        is under way.

        StoreError ends the run with "disk". Cancellation ends it with "interrupted", and is raised
        again.
        """
        try:
            await work
            while self._rows and self.reason in SOFT_ENDS:
                await self.wait()
            if self._rows:
                await self.endpoints.wait_until_quiet()
        except StoreError as error:
            self.end("disk", str(error), now=True)
        except asyncio.CancelledError:
            self.end("interrupted", "", now=True)
            raise
        finally:
            await cancel_and_wait(self._rows)

    async def process(self, rows: AsyncGenerator[R, None], handler: RowHandler[R]) -> None:
        """Start rows in their order until all have ended, or the run ends."""
        async with aclosing(rows):
            async for row in rows:
                if await handler.visit(row):
                    if await self._wait_for_turn(handler):
                        await self._start(handler.run(row))
                    elif self.reason in SOFT_ENDS:
                        await handler.skip(row)
                if self.reason and self.reason not in SOFT_ENDS:
                    return
        while self._rows and not self.reason:
            await self.wait()

    def end(self, reason: str, message: str, detail: str = "", *, now: bool = False) -> None:
        """End the run: start no more rows. `now`: do not wait for the calls in flight.

        The first reason counts, except that any other reason replaces a soft one.
        """
        if not self.reason or (self.reason in SOFT_ENDS and reason not in SOFT_ENDS):
            self.reason, self.message, self.detail, self.progress.state = (
                reason,
                message,
                detail or message,
                "stopping",
            )
        if reason not in SOFT_ENDS:
            self.endpoints.close(now=now)
        self._change.set()

    def replace_end(self, reason: str, message: str) -> None:
        """End the run with this reason, even if it already ends with another."""
        self.reason = self.message = ""
        self.end(reason, message)

    async def wait(self, other: Awaitable[Any] | None = None) -> None:
        """Wait until a row or the run ends, or until `other` is done."""
        self._change.clear()
        if other is None:
            await self._change.wait()
            return
        watch = asyncio.ensure_future(other)
        watch.add_done_callback(self._note_change)
        try:
            await self._change.wait()
        finally:
            watch.remove_done_callback(self._note_change)
            watch.cancel()

    async def wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until a condition holds, the run ends, or `seconds` are over. The condition is
        checked whenever a row ends.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while not (self.reason or condition()) and (left := until - clock()) > 0:
            await self.wait(asyncio.sleep(left))

    async def _wait_for_turn(self, handler: RowHandler[R]) -> bool:
        """Wait until the next row may start, and return True; return False if the run ends
        first.
        """
        while not self.reason:
            if len(self._rows) >= self.max_rows():
                await self.wait()
            elif not handler.has_capacity:
                await self.wait(handler.wait_for_capacity())
            elif self._free_slots:
                return True
            elif (free_slots := self.endpoints.free_slots) > 0:
                self._free_slots = min(free_slots, ROWS_PER_TURN)
            else:
                await self.wait(self.endpoints.wait_for_free_slots())
        return False

    def _note_change(self, _: object) -> None:
        self._change.set()

    async def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a row. After the last of this turn, let their first calls take their slots."""
        row = asyncio.get_running_loop().create_task(work)
        self._rows.add(row)
        row.add_done_callback(self._row_done)
        self.progress.under_way = len(self._rows)
        self._free_slots -= 1
        if not self._free_slots:
            await asyncio.sleep(0)

    def _row_done(self, row: asyncio.Task[None]) -> None:
        self._rows.discard(row)
        self.progress.under_way = len(self._rows)
        self._change.set()
        if not row.cancelled() and (error := row.exception()):
            self.end(
                "disk" if isinstance(error, StoreError) else "fatal",
                error_summary(error),
                str(error),
                now=True,
            )
