"""Rows that are worked on in this process."""

from __future__ import annotations

from ..job import BatchJob, RowProcessor


class LocalExecutor:
    """Works on all rows in the event loop of the run."""

    has_one_price = True

    async def work(self, job: BatchJob) -> None:
        """Work on all rows until they have ended, or the run has."""
        await job.scan_stopped_rows()
        await job.scheduler.process(job.rows.read(), RowProcessor(job))
