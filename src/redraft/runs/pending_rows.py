"""The rows of a run in order, each with what the journal knows of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import NamedTuple

from ..core.records import StopReason
from ..storage.journal import Journal, RowInfo
from ..tables.readers import BadRow
from .allocation import DecisionLog
from .dataset import BatchDataset, BatchRow, DatasetSummary
from .row_key import RowKeys, row_key
from .row_result import RowResult

CHUNK = 64  # rows that are read at a time


class PendingRow(NamedTuple):
    """A row, the key of its result with the key's parts, and the journal's note of it."""

    entry: BatchRow
    key: str
    parts: dict[str, str]
    note: RowInfo | None

    @property
    def n(self) -> int:
        return self.entry.n

    @property
    def id(self) -> str:
        return self.entry.id

    @property
    def is_current(self) -> bool:
        """Whether the journal has the row as it is now, with the settings as they are now."""
        return self.note is not None and self.note.key == self.key

    @property
    def result(self) -> RowResult | None:
        """Its result so far."""
        if self.note is None or self.note.result is None or not self.is_current:
            return None
        return RowResult.from_data(self.note.status, self.note.result)

    @property
    def stopped_for_value(self) -> bool:
        """Whether it is finished because no further step was worth the price."""
        return self.result is not None and self.result.status == "done" and self.result.columns["stop"] == StopReason.GAIN

    @property
    def decisions(self) -> DecisionLog | None:
        """The decisions of an earlier run on it, if it shared a budget then."""
        data = self.note.result.get("decisions") if self.note and self.note.result and self.is_current else None
        return DecisionLog.from_data(data) if data else None

    @property
    def as_unfinished(self) -> PendingRow:
        """The same row as unfinished, if only the price had stopped it."""
        return self._replace(note=replace(self.note, status="open")) if self.note and self.stopped_for_value else self


@dataclass
class DatasetRows:
    """The rows of a data set. `before_chunk` is called before each chunk of them is read, `reject` with every unusable row."""

    dataset: BatchDataset
    summary: DatasetSummary
    keys: RowKeys
    journal: Journal
    run: str
    reject: Callable[[BadRow], None]
    before_chunk: Callable[[], None]

    async def read(self, *, reject: bool = True) -> AsyncGenerator[PendingRow, None]:
        """Yield all rows in order. `reject=False` leaves the list of unusable rows alone."""
        entries = takewhile(self._is_counted, self.dataset.rows(self.summary.duplicates, self.reject if reject else _ignore))
        while chunk := await asyncio.to_thread(list, islice(entries, CHUNK)):
            self.before_chunk()
            await self.journal.wait_for_commit()  # if no row is left to do, reading must not run ahead of writing
            known = self.journal.rows_by_id(self.run, [entry.id for entry in chunk])
            self.journal.mark_seen(self.run, list(known))
            for entry in chunk:
                parts = self.keys.parts(entry.task)
                yield PendingRow(entry, row_key(parts), parts, known.get(entry.id))

    def _is_counted(self, entry: BatchRow) -> bool:
        """Rows that were added during the run are left to the next one, which checks them first."""
        return entry.n < self.summary.total


def _ignore(bad: BadRow) -> None:
    """Another pass over the data reports this row."""
