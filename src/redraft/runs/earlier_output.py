"""The rows that stand in the output when a run begins: which of them are no part of the run, and
which results it replaces.

Rows are told apart by their IDs. A row of another source counts as another row if its task differs,
though it has the same ID.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ..base.jsontext import escape_surrogates, strict_loads, text_to_json
from ..base.text import pluralize
from ..errors import ConfigError
from ..storage.journal import Journal
from ..tables.readers import BadRow, iter_rows
from ..tables.row_values import MISSING, value_at
from ..tables.text_format import UTF8
from ..tables.writers import result_column_names
from .config import STDOUT, BatchConfig
from .dataset import BatchDataset, BatchRow, DatasetSummary, IdIndex
from .row_key import RowKeys, row_key

CHUNK = 256  # rows that are looked up in the journal at a time
WRITTEN = "written"  # key in the metadata of a run: the state of its output when it was last closed
_QUOTED = re.compile(r'"(?:[^"\\]|\\["\\/bfnrt])*"')  # a JSON text


@dataclass(frozen=True, slots=True)
class EarlierOutput:
    """What a run does to the rows in its output.

    Attributes:
        rows: The number of rows in it.
        lost: Those that are no part of the run.
        unsaved: Those of `lost` that its journal does not have.
        redone: Rows whose results the run replaces, because their data or the settings have
            changed.
    """

    rows: int = 0
    lost: int = 0
    unsaved: int = 0
    redone: int = 0


def output_file(config: BatchConfig) -> Path | None:
    """Return the file that the run writes; None for a pilot, and for stdout, a pipe or no
    output.
    """
    if config.output in {None, STDOUT} or config.pilot is not None:
        return None
    path = Path(str(config.output))
    return None if path.exists() and not path.is_file() else path


def written_state(
    config: BatchConfig, summary: DatasetSummary, keys: RowKeys
) -> dict[str, Any] | None:
    """Return what shows later that the output is as this run has left it; None if nothing can."""
    path = output_file(config)
    if path is None or not summary.digest or not path.exists():
        return None
    state = path.stat()
    return {
        "data": summary.digest,
        "settings": keys.shared,
        "file": [state.st_size, state.st_mtime_ns],
    }


def _refusal(config: BatchConfig, dataset: BatchDataset, found: EarlierOutput, source: Any) -> str:
    """Return why the run is refused: what stands in the output, what the run would leave, and what
    to do.
    """
    run = (
        "this run"
        if source in {None, dataset.source.name}
        else f"this run of {dataset.source.name}"
    )
    left = f"{found.rows - found.lost:,}" if found.lost < found.rows else "none of them"
    message = (
        f"output {config.output!r} has "
        f"{pluralize(found.rows, 'row')}{f' of {source}' if source else ''}; {run} would leave "
        f"{left}"
    )
    unsaved = (
        f", and {found.unsaved:,} {'is' if found.unsaved == 1 else 'are'} saved nowhere else"
        if found.unsaved
        else ""
    )
    saved = "; the earlier command brings them back in the same way, without a new call"
    saved = saved if found.unsaved < found.lost else ""
    return (
        f"{message}{unsaved}. Name another output, or replace the rows with overwrite "
        f"(--overwrite){saved}"
    )


def _notice(config: BatchConfig, found: EarlierOutput) -> str:
    """Return what the run does to its output, and what restores that; "" if no row is left out and
    no result replaced.
    """
    leaves_out = [f"leaves out {pluralize(found.lost, 'row')}"] if found.lost else []
    replaces = (
        [f"replaces {pluralize(found.redone, 'result')}, because settings or rows have changed"]
        if found.redone
        else []
    )
    if not (leaves_out or replaces):
        return ""
    again = ", with overwrite (--overwrite)," if found.lost else ""
    restores = f"; the earlier command{again} restores what it has written without a new call"
    unsaved = f"; saved nowhere else: {pluralize(found.unsaved, 'row')}" if found.unsaved else ""
    what = f"in {config.output!r} this run {' and '.join([*leaves_out, *replaces])}"
    return f"{what}{unsaved}{restores if found.unsaved < found.lost + found.redone else ''}"


@dataclass
class OutputCheck:
    """Compares the rows in the output with those of a run. `check_stop` is called now and then, and
    may raise anything.
    """

    config: BatchConfig
    dataset: BatchDataset
    summary: DatasetSummary
    keys: RowKeys
    journal: Journal
    check_stop: Callable[[], None]

    def __post_init__(self) -> None:
        self._metadata = self.journal.metadata(self.config.name)
        source = self._metadata.get("source")
        own = result_column_names(("id",), self.dataset.columns)["id"]
        self._id_column = self.dataset.shape.columns.id or own
        self._is_other_source = source is not None and not _is_same_file(
            str(source), self.dataset.source.name
        )

    def notice(self) -> str:
        """Return what is to be said about the results that the run replaces; "" if there are none.

        Raises ConfigError, without `overwrite`, if rows in the output are no part of the run.
        """
        config, path = self.config, output_file(self.config)
        if path is None or not path.exists() or not path.stat().st_size:
            return ""
        if (written := self._metadata.get(WRITTEN)) and written == written_state(
            config, self.summary, self.keys
        ):
            return ""
        found = self.effect_on(path)
        if found.lost and not config.overwrite:
            raise ConfigError(_refusal(config, self.dataset, found, self._metadata.get("source")))
        return _notice(config, found)

    def effect_on(self, path: Path) -> EarlierOutput:
        """Return what the run does to the rows in a file."""
        ids = IdIndex()
        rows, bad = self._index(path, ids)
        redone = other = 0
        entries = islice(
            self.dataset.rows(self.summary.duplicates, lambda _: None), self.summary.total
        )
        while chunk := list(islice(entries, CHUNK)):
            self.check_stop()
            present = [entry for entry in chunk if ids.take(self._id_of(entry))]
            changed, others = self._count_changes(present)
            redone, other = redone + changed, other + others
        missing = bad + sum(n for _, n in ids.rest())
        unsaved = bad + self._count_unsaved(ids)
        return EarlierOutput(rows + bad, missing + other, unsaved, redone)

    def _index(self, path: Path, ids: IdIndex) -> tuple[int, int]:
        """Add the IDs of the rows in a file; return the numbers of rows that can and cannot be
        read, but for a torn last line.
        """
        rows, bad, last = 0, 0, False

        def reject(_: BadRow) -> None:
            nonlocal bad, last
            bad, last = bad + 1, True

        try:
            for row in iter_rows(path, reject, encoding=UTF8):
                id = _id_in(row.values, self._id_column)
                ids.add(_comparable(id), text_to_json(id))
                rows, last = rows + 1, False
        except ConfigError:  # no file that a run has written
            bad, last = bad + 1, False
        return rows, bad - last

    def _id_of(self, entry: BatchRow) -> str:
        """Return the ID that the output has for a row, in the form in which IDs are compared."""
        return _comparable(
            _id_in(entry.values, self._id_column) if self.dataset.shape.columns.id else entry.id
        )

    def _count_changes(self, entries: Sequence[BatchRow]) -> tuple[int, int]:
        """Return how many rows the run redoes, and how many only share their ID with a row of
        another source.
        """
        redone = other = 0
        infos = self.journal.rows_by_id(
            self.config.name, [entry.id for entry in entries], key_parts=self._is_other_source
        )
        for entry in entries:
            info = infos.get(entry.id)
            parts = self.keys.parts(entry.task)
            if info is None or info.key == row_key(parts):
                continue
            if self._is_other_source and _task_parts(info.key_parts) != _task_parts(parts):
                other += 1
            elif info.result is not None:
                redone += 1
        return redone, other

    def _count_unsaved(self, ids: IdIndex) -> int:
        """Return how many of the rows that are left are not in the journal."""
        unsaved, rest = 0, ((json.loads(id), n) for id, n in ids.rest())
        while chunk := dict(islice(rest, CHUNK)):
            known = self.journal.rows_by_id(self.config.name, list(chunk), key_parts=False)
            unsaved += sum(n for id, n in chunk.items() if id not in known)
        return unsaved


def _is_same_file(name: str, other: str) -> bool:
    """Return whether two names of sources mean the same."""
    return name == other or Path(name).resolve() == Path(other).resolve()


def _comparable(id: str) -> str:
    """Return an ID such that its forms in all formats are equal: a table may have 1 as 1.0, or a
    text as JSON.
    """
    return str(
        escape_surrogates(strict_loads(id) if _QUOTED.fullmatch(id) else id.removesuffix(".0"))
    )


def _task_parts(parts: Mapping[str, str]) -> dict[str, str]:
    """Return the parts of a row's key that describe its task, without metadata, which count only
    for some graders.
    """
    return {name: value for name, value in parts.items() if name not in {"settings", "metadata"}}


def _id_in(values: Mapping[str, Any], column: str) -> str:
    """Return the ID in a row as text; "" if there is none. In CSV an object that holds it is JSON
    in a text.
    """
    value = value_at(values, column)
    outer = column.partition(".")[0]
    if value is MISSING and isinstance(text := values.get(outer), str):
        try:
            value = value_at({outer: strict_loads(text)}, column)
        except ValueError:
            return ""
    return "" if value is MISSING or value is None else str(value)
