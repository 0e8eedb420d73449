"""The summary of a data set as an earlier start of the run has found it, so that unchanged files
need not be checked again.

The metadata of the run have it with a digest of all that decides it: the bytes of the files, what
their columns mean, and the version of Redraft. It is not kept for data that are not only files, for
data with duplicate IDs, which need an index of them, and for requirements in the data: which ones
there are depends on what is installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import astuple, fields, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..base.jsontext import to_json
from ..errors import StoreError
from ..storage.journal import Journal
from .dataset import BatchDataset, DatasetSummary

BYTES_PER_READ = 2**20
VERSION = str(sys.modules[__name__.partition(".")[0]].__version__)


def summarize(
    dataset: BatchDataset, journal: Path, run: str, on_progress: Callable[[int], object]
) -> DatasetSummary:
    """Return the summary of a data set: the saved one, if it is that of the same files, else that
    of a first pass over them.

    Calls `on_progress` as `BatchDataset.summarize` does, and raises what it raises.
    """
    is_known_again = dataset.source.is_files and not dataset.shape.columns.requirements
    states = _file_states(dataset) if is_known_again else None
    digest = dataset_digest(dataset, partial(on_progress, 0)) if states else ""
    if digest and (saved := _saved_summary(journal, run, digest)):
        on_progress(saved.total)
        return saved
    summary = dataset.summarize(on_progress)
    return (
        replace(summary, digest=digest)
        if states == _file_states(dataset) and not summary.duplicates
        else summary
    )


def dataset_digest(dataset: BatchDataset, on_read: Callable[[], object]) -> str:
    """Return a digest of all that decides the summary of a data set of files; "" if a file cannot
    be read.
    """
    source, shape = dataset.source, dataset.shape
    meaning = [
        *astuple(shape.columns),
        shape.input_column,
        dataset.on_duplicate,
        dataset.limit,
        *dataset.columns,
    ]
    digest = sha256(to_json([VERSION, source.name, *map(str, source.paths), *meaning]).encode())
    try:
        for path in source.paths:
            digest.update(file_digest(path, on_read))
    except OSError:
        return ""
    return digest.hexdigest()


def file_digest(path: Path, on_read: Callable[[], object] = int) -> bytes:
    """Return the SHA-256 of a file. Raises OSError."""
    digest = sha256()
    with path.open("rb", buffering=0) as file:
        for piece in iter(partial(file.read, BYTES_PER_READ), b""):
            digest.update(piece)
            on_read()
    return digest.digest()


def summary_data(summary: DatasetSummary) -> dict[str, Any] | None:
    """Return what the metadata of the run keep of a summary; None if it is not known again."""
    return {name: getattr(summary, name) for name in SAVED_FIELDS} if summary.digest else None


MAX_COUNT = 2**63
SAVED_FIELDS = tuple(f.name for f in fields(DatasetSummary) if f.name != "duplicates")


def _saved_summary(journal: Path, run: str, digest: str) -> DatasetSummary | None:
    """Return the summary in the journal; None if there is none with this digest."""
    if not journal.exists():
        return None
    # the run itself reports it
    with suppress(StoreError), closing(Journal(journal, create=False, read_only=True)) as opened:
        data = opened.metadata(run).get("dataset")
        if isinstance(data, Mapping) and data.keys() == {*SAVED_FIELDS}:
            numbers = {name: value for name, value in data.items() if name != "digest"}
            is_valid = all(type(n) is int and 0 <= n < MAX_COUNT for n in numbers.values())
            if data["digest"] == digest and is_valid and numbers["total"]:
                return DatasetSummary(**numbers, digest=digest)
    return None


def _file_states(dataset: BatchDataset) -> list[tuple[int, int, int]] | None:
    """Return what shows that a file has changed since; None if there is no such file any more."""
    try:
        states = [os.stat(path) for path in dataset.source.paths]  # noqa: PTH116
    except OSError:
        return None
    return [(state.st_ino, state.st_size, state.st_mtime_ns) for state in states]
