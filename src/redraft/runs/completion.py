"""What a complete run keeps, so that a later start with the same data and settings need not read its rows again.

The metadata of the run have the figures of its report with a digest of all that decides its output, and of the output itself. A
start that reads the rows deletes them first. All rows are read again if one of them could be redone or listed anew: with
`retry`, a budget, a limit or a pilot, if rows cannot be used, and if the summary of the data is not known again (see
`saved_summary`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import astuple
from hashlib import sha256
from pathlib import Path
from typing import cast

from ..jsontext import to_json
from ..storage.journal import CompletionData, Journal
from .config import STDOUT, BatchConfig
from .dataset import DatasetSummary
from .progress import BatchProgress, Mean
from .report import ReportBuilder
from .saved_summary import file_digest


def completion_digest(config: BatchConfig, summary: DatasetSummary, settings_key: str, columns: Iterable[str]) -> str:
    """Return a digest of all that decides the output, and of the output as it is; "" if the rows must be read in any case.

    `columns` are those of the results.
    """
    output = None if config.output is None else Path(config.output)
    is_kept = output is None or (config.output != STDOUT and output.is_file())
    is_whole = config.limit is None and config.pilot is None and not config.options.budget
    if not (summary.digest and is_kept and is_whole) or summary.bad or config.retry:
        return ""
    meaning = [summary.digest, settings_key, config.output, config.ordered, config.spreadsheet_safe, *columns]
    digest = sha256(to_json(meaning).encode())
    try:
        digest.update(file_digest(output) if output else b"")
    except OSError:
        return ""
    return digest.hexdigest()


def completion_data(current_digest: Callable[[], str], progress: BatchProgress, builder: ReportBuilder) -> CompletionData | None:
    """Return what a run keeps; None if a row is not finished, or the rows must be read in any case."""
    if progress.remaining or progress.unfinished or progress.not_started or not (digest := current_digest()):
        return None
    first, best = list(astuple(progress.first)), list(astuple(progress.best))
    figures = {"done": progress.done, "failed": progress.failed, "first": first, "best": best, **builder.as_data()}
    return cast("CompletionData", {"digest": digest, **figures})


def saved_completion(journal: Journal, run: str) -> CompletionData | None:
    """Return what the run has kept; None if that is nothing, or not what the journal has of its rows."""
    data: CompletionData | None = journal.metadata(run).get("completion")
    info = journal.run(run) if data else None
    return data if data and info and info.counts == {"open": 0, "done": data["done"], "failed": data["failed"]} else None


def restore(data: CompletionData, progress: BatchProgress) -> ReportBuilder | None:
    """Return the figures of the report, and count all rows as finished before; None for data of another form."""
    with suppress(TypeError, ValueError, KeyError):
        builder = ReportBuilder.from_data(data)
        (n, first), (m, best) = data["first"], data["best"]
        progress.first, progress.best = Mean(int(n), first), Mean(int(m), best)
        progress.done, progress.failed, progress.reused = data["done"], data["failed"], data["done"] + data["failed"]
        return builder
    return None
