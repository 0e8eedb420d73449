"""A pilot: the job that runs a sample of the rows, and its report with a forecast for the
others.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace

from ..plans.quality.result_facts import ResultFacts
from .config import BatchConfig
from .dataset import PendingRow
from .forecast import PilotRow, make_forecast, stratified_sample, trace_seconds
from .job import BatchJob, RowSource
from .report import BatchReport
from .row_result import NOT_STARTED

CONCURRENCY = (
    "pilot_concurrency"  # key in the metadata of a run: calls at the same time in the pilot
)


@dataclass
class PilotRows:
    """The rows of a sample, and no others. `ids` has those that were yielded."""

    rows: RowSource
    sample: frozenset[int]
    ids: dict[int, str] = field(default_factory=dict)

    async def read(self, *, reject: bool = True) -> AsyncGenerator[PendingRow, None]:
        """Yield the rows of the sample, in the order of the data."""
        async for row in self.rows.read(reject=reject):
            if row.n in self.sample:
                self.ids[row.n] = row.id
                yield row


def pilot_config(config: BatchConfig) -> BatchConfig:
    """Return the configuration of a pilot: it writes no output, and learns no priors, for which it
    would wait for rows between.
    """
    return replace(config, output=None, spreadsheet_safe=False, learn=False)


def choose_pilot(job: BatchJob, size: int) -> None:
    """Let a job process only a sample of its rows. Reads all rows once."""
    rows = job.dataset.rows(job.summary.duplicates, lambda _: None)
    sample = stratified_sample(rows, size, job.summary.total)
    job.rows = PilotRows(job.rows, sample)
    job.progress.total = len(sample)


def with_forecast(report: BatchReport, job: BatchJob) -> BatchReport:
    """Return the report of a pilot with the forecast. It has none if the pilot ended early."""
    if report.stop or not isinstance(job.rows, PilotRows) or not job.rows.ids:
        return report
    ids, name = list(job.rows.ids.values()), job.config.name
    infos = job.journal.rows_by_id(name, ids)
    sampled = []
    for id in ids:
        result = (infos[id].facts if id in infos else None) or ResultFacts("open", NOT_STARTED)
        seconds = trace_seconds(job.journal.trace(name, id))
        sampled.append(PilotRow(result.calls, result.tokens, result.cost, seconds))
    forecast = make_forecast(
        sampled,
        job.summary.total - len(ids),
        concurrency=_concurrency(job, report, sampled),
        limit=job.session.options.max_in_flight,
        uplift=report.scores.uplift,
        interval=report.scores.uplift_interval,
    )
    return replace(report, forecast=forecast)


def _concurrency(job: BatchJob, report: BatchReport, sampled: list[PilotRow]) -> float | None:
    """Return how many calls ran at the same time in the pilot, also if an earlier process ran it;
    None if unknown.
    """
    run = job.journal.run(job.config.name)
    saved = run.metadata.get(CONCURRENCY) if run else None
    busy = sum(row.seconds or 0.0 for row in sampled)
    if not report.rows.reused and report.seconds > 0 and busy > 0:
        saved = busy / report.seconds
        job.note(**{CONCURRENCY: saved})
    return float(saved) if isinstance(saved, int | float) else None
