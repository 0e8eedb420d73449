"""The rows of a run with several workers: those to be handed out, and those that each worker has.

This process reads the rows, decides when priors are refitted, and writes the output, as a run in
one process does. Workers receive their rows a few at a time, so that a fast one receives more.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from math import inf
from time import monotonic

from ...plans.quality.lineage import Observations
from ...plans.quality.priors import Priors
from ...plans.quality.result_facts import ResultFacts
from ..dataset import BatchRow, PendingRow
from ..job import MAX_WAITING, BatchJob, RowProcessor
from .shard_protocol import AssignedRow

CHUNK = 64  # rows that are handed out together, at most
AHEAD = 256  # rows that are read before a worker needs them
POLL = 0.25  # seconds between two checks whether the run ends


class RowFeed:
    """The rows of a run that are not finished. `workers`: how many there will be.

    `fill` reads the rows, and saves the results of those that are finished already.
    """

    def __init__(self, job: BatchJob, rows: AsyncGenerator[PendingRow, None]) -> None:
        self.job = job
        self.processor = RowProcessor(job)
        self.workers = 1
        self._assigned = defaultdict[int, dict[int, PendingRow]](dict)  # by worker
        self._rows = rows
        self._ready: deque[PendingRow] = deque()
        self._cut_short: list[tuple[PendingRow, ResultFacts]] = []
        self._seen = 0
        self._is_read = self._has_ended = False  # the reading
        self._change = asyncio.Event()

    async def fill(self) -> None:
        """Read rows to the end, or until the run ends, but not far ahead of the workers."""
        try:
            async for row in self._rows:
                self._seen += 1
                if await self.processor.visit(row):
                    self._ready.append(row.as_unfinished)
                    self._change.set()
                await self.wait_until(self._has_room)
                if self.job.scheduler.reason:
                    return
            self._is_read = True
        finally:
            self._has_ended = True
            self._change.set()

    def _has_room(self) -> bool:
        return len(self._ready) < AHEAD and self.job.output.pending_count < MAX_WAITING

    async def wait_until(self, condition: Callable[[], bool], seconds: float = inf) -> None:
        """Wait until a condition holds, the run ends, or `seconds` are over."""
        end = monotonic() + seconds
        while not (condition() or self.job.scheduler.reason) and (left := end - monotonic()) > 0:
            self._change.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._change.wait(), min(POLL, left))

    async def has_rows(self) -> bool:
        """Wait for the first row that must run, and return whether there is one."""
        await self.wait_until(lambda: bool(self._ready) or self._has_ended)
        return bool(self._ready) and not self.job.scheduler.reason

    async def take(self, k: int, seconds: float) -> list[AssignedRow]:
        """Return the next rows for worker k; none if there are none within some seconds, or the run
        ends.
        """
        await self.wait_until(lambda: bool(self._ready) or self._has_ended, seconds)
        if self.job.scheduler.reason:
            return []
        left = len(self._ready) if self._is_read else max(0, self.job.summary.total - self._seen)
        count = min(CHUNK, len(self._ready), max(1, left // (4 * self.workers)))
        rows = [self._ready.popleft() for _ in range(count)]
        self._assigned[k].update((row.n, row) for row in rows)
        self._change.set()
        return [*map(self._for_worker, rows)]

    def take_again(self, k: int) -> list[AssignedRow]:
        """Return the rows that worker k has not finished, for the process that replaces its own."""
        return [*map(self._for_worker, self._assigned[k].values())]

    def _for_worker(self, row: PendingRow) -> AssignedRow:
        """Return a row as a worker receives it: with its trace, and without the columns that only
        the output needs.
        """
        job, entry = self.job, row.entry
        trace = job.journal.trace(job.config.name, row.id) if row.is_current else None
        bare = BatchRow(entry.n, entry.location, {}, entry.task)
        return AssignedRow(row._replace(entry=bare), trace)

    @property
    def is_empty(self) -> bool:
        """Whether no more rows will be handed out."""
        return bool(self.job.scheduler.reason) or (self._has_ended and not self._ready)

    @property
    def refits(self) -> Mapping[int, Priors | None]:
        """The refits of the priors so far."""
        online = self.job.online_priors
        return online.schedule.refits if online and online.schedule.enabled else {}

    def finish(
        self, k: int, results: Mapping[int, ResultFacts], observations: Mapping[str, Observations]
    ) -> None:
        """Save the results of worker k, which may have been sent before."""
        online = self.job.online_priors
        if online:
            online.observations.update(observations)
        for n, result in results.items():
            row = self._assigned[k].pop(n, None)
            if row is None:
                continue
            if result.status == "open":
                self._cut_short.append((row, result))
            else:
                self.processor.save(row, result, reused=False)
            if online:
                online.row_saved(row)
        if results:
            self._change.set()

    def end(self) -> None:
        """Save the results of rows that were cut short, if the run ends; otherwise they are not
        finished.
        """
        for row, result in self._cut_short:
            if self.job.scheduler.reason:
                self.processor.save(row, result, reused=False)
            else:
                self._ready.append(row)

    async def unfinished_rows(self) -> AsyncGenerator[PendingRow, None]:
        """Yield the rows that no worker has finished, with what the journal has of them now."""
        job, rows = self.job, {row.n: row for row in self._ready}
        for assigned in self._assigned.values():
            rows |= assigned
        self.processor.finished_now = rows.keys()
        for _, row in sorted(rows.items()):
            yield row._replace(info=job.journal.rows_by_id(job.config.name, [row.id]).get(row.id))
        if not self._is_read:
            async for row in self._rows:
                yield row
