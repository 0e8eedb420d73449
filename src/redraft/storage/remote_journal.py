"""The journal of a run as its workers in other processes see it: they read the file, and the
process of the run writes to it.

A `RemoteJournal` collects writes in transactions like any journal, and sends each to that process
in place of committing it. So the file has one writer, and what a worker takes as committed is in
the journal of the run, whatever becomes of the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .journal import Journal
from .transaction import TransactionData

UPDATE_RUN = "metadata"  # in place of a statement


class RemoteJournal(Journal):
    """A journal whose transactions `commit` sends to the process of the run; it returns when they
    are committed there.

    Metadata of the run are merged there with those of other workers; only those named in `shared`
    are sent.
    """

    is_remote = True

    def __init__(
        self, path: Path, commit: Callable[[TransactionData], None], shared: Iterable[str]
    ) -> None:
        super().__init__(path, read_only=True)
        self._shared = frozenset(shared)
        self._write_through(lambda transaction: commit(transaction.data))

    def update_run(self, name: str, **metadata: Any) -> None:
        """Merge keys into the metadata of the run here, and into those of the journal if they are
        shared.
        """
        run = self._runs[name]
        self._runs[name] = replace(run, metadata={**run.metadata, **metadata})
        if shared := {key: value for key, value in metadata.items() if key in self._shared}:
            self.writer.execute(UPDATE_RUN, shared, at_once=True)


def without_metadata(sent: TransactionData) -> tuple[TransactionData, Mapping[str, Any]]:
    """Return what a `RemoteJournal` has sent, without the changed metadata of the run, and
    those.
    """
    statements, rows, replies = sent
    metadata: dict[str, Any] = {}
    for sql, values in statements:
        if sql == UPDATE_RUN:
            metadata |= values[0]
    return (
        [statement for statement in statements if statement[0] != UPDATE_RUN],
        rows,
        replies,
    ), metadata
