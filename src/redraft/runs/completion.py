"""What a complete run keeps, so that a later start with the same data and settings need not read
its rows again.

The metadata of the run have the figures of its report with a digest of all that decides its output,
and of the output itself. A start that reads the rows first deletes these figures. All rows are read
again if one of them could be redone or listed again: with `retry`, a budget, a limit or a pilot, if
rows cannot be used, and if the summary of the data is not known again (see `saved_summary`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import astuple
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..base.jsontext import to_json
from ..storage.journal import Journal
from .config import STDOUT, BatchConfig
from .dataset import DatasetSummary
from .progress import BatchProgress, Mean
from .report import ReportBuilder
from .saved_summary import file_digest


def completion_digest(
    config: BatchConfig, summary: DatasetSummary, settings_key: str, columns: Iterable[str]
) -> str:
    """Return a digest of all that decides the output, and of the output as it is; "" if the rows
    must be read in any case.

    `columns` are those of the results.
    """
    output = None if config.output is None else Path(config.output)
    is_readable = output is None or (config.output != STDOUT and output.is_file())
    is_whole = config.limit is None and config.pilot is None and not config.options.budget
    if not (summary.digest and is_readable and is_whole) or summary.bad or config.retry:
        return ""
    meaning = [
        summary.digest,
        settings_key,
        config.output,
        config.ordered,
        config.spreadsheet_safe,
        *columns,
    ]
    digest = sha256(to_json(meaning).encode())
    try:
        digest.update(file_digest(output) if output else b"")
    except OSError:
        return ""
    return digest.hexdigest()


def is_complete(progress: BatchProgress) -> bool:
    """Return whether every row is finished."""
    return not (progress.remaining or progress.unfinished or progress.not_started)


def completion_data(digest: str, progress: BatchProgress, builder: ReportBuilder) -> dict[str, Any]:
    """Return what a complete run keeps."""
    first, best = list(astuple(progress.first)), list(astuple(progress.best))
    return {
        "digest": digest,
        "done": progress.done,
        "failed": progress.failed,
        "first": first,
        "best": best,
        **builder.as_data(),
    }


def saved_completion(journal: Journal, run: str) -> Mapping[str, Any] | None:
    """Return what the run has kept; None if that is nothing, or not what the journal has of its
    rows.
    """
    data = journal.metadata(run).get("completion")
    info = journal.run(run) if data else None
    return (
        data
        if data
        and info
        and info.counts == {"open": 0, "done": data.get("done"), "failed": data.get("failed")}
        else None
    )


def restore_completion(data: Mapping[str, Any], progress: BatchProgress) -> ReportBuilder | None:
    """Return the figures of the report, and count all rows as finished before; None for data of
    another form.
    """
    with suppress(TypeError, ValueError, KeyError):
        builder = ReportBuilder.from_data(data)
        (n, first), (m, best) = data["first"], data["best"]
        progress.first, progress.best = Mean(int(n), first), Mean(int(m), best)
        progress.done, progress.failed, progress.reused = (
            data["done"],
            data["failed"],
            data["done"] + data["failed"],
        )
        return builder
    return None
