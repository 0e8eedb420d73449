"""What a complete run keeps, so that a later start with the same data and settings need not read
its rows again.

The metadata of the run have its report with a digest of all that decides its output, and of the
output itself. Before a start reads the rows, it deletes both. All rows are read
again if one of them could be redone or listed again: with `retry`, a budget, a limit or a pilot, if
rows cannot be used, and if the summary of the data is not known again (see `saved_summary`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..base.jsontext import to_json
from ..errors import StoreError
from ..storage.journal import Journal
from .config import STDOUT, BatchConfig
from .dataset import DatasetSummary
from .progress import BatchProgress
from .report import BatchReport
from .saved_summary import file_digest


def completion_digest(
    config: BatchConfig, summary: DatasetSummary, settings_key: str, columns: Iterable[str]
) -> str:
    """Return a digest of all that decides the output, and of the output as it is; "" if the rows
    must be read in any case.

    `columns` are those of the results.
    """
    if not summary.digest or summary.bad or not is_whole(config):
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
        if config.output is not None:
            digest.update(file_digest(Path(config.output)))
    except OSError:
        return ""
    return digest.hexdigest()


def is_whole(config: BatchConfig) -> bool:
    """Return whether a run takes all rows, redoes none, and has an output that can be read, or
    none.
    """
    is_limited = config.limit is not None or config.pilot is not None or config.options.budget
    is_readable = config.output is None or Path(config.output).is_file()
    return is_readable and config.output != STDOUT and not (is_limited or config.retry)


def is_complete(progress: BatchProgress) -> bool:
    """Return whether every row is finished."""
    return not (progress.remaining or progress.unfinished or progress.not_started)


def completion_data(digest: str, report: BatchReport) -> dict[str, Any]:
    """Return what a complete run keeps."""
    return {"digest": digest, "report": report.as_data()}


def saved_completion(journal: Journal, run: str) -> tuple[str, BatchReport] | None:
    """Return the digest and the report that the run has kept; None if there are none, or if the
    journal has other rows by now.
    """
    data = journal.metadata(run).get("completion")
    info = journal.run(run) if data else None
    if not (data and info):
        return None
    with suppress(StoreError, KeyError):
        report = BatchReport.from_data(data["report"])
        counts = {"open": 0, "done": report.rows.done, "failed": report.rows.failed}
        return (data["digest"], report) if info.counts == counts else None
    return None


def count_as_finished(progress: BatchProgress, report: BatchReport) -> None:
    """Count all rows of a complete run as finished before."""
    rows, scores = report.rows, report.scores
    progress.done, progress.failed, progress.reused = rows.done, rows.failed, rows.in_output
    progress.first.add(scores.initial)
    progress.best.add(scores.best)


def reuse_report(report: BatchReport, earlier: BatchReport) -> BatchReport:
    """Return the report of a start that has found the run complete, with the figures of the rows
    from the report of the complete run.
    """
    rows = replace(earlier.rows, reused=earlier.rows.in_output)
    return replace(report, rows=rows, scores=earlier.scores)
