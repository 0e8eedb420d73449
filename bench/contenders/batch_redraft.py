"""Redraft's batch engine in mode grade, with journal, cache, endpoint limiter, budget, report and
ordered output.
"""

from __future__ import annotations

import asyncio

from rows import arguments, files, measurement

from redraft.base.sync import uvloop_factory
from redraft.runs import EndpointLimits
from redraft.runs import batch as refine_all


async def main(given):
    model = f"{given.url}/v1#loopback"
    limits = EndpointLimits(initial_in_flight=given.start or 16)

    async def batch(source, output):
        report = await refine_all(
            source,
            output,
            judge=model,
            mode="grade",
            limits=limits,
            max_in_flight=given.in_flight,
            workers=given.workers,
        )
        assert not report.rows.failed, report.rows.errors

    warm, rows = files(given)
    await batch(warm, given.folder / "warm.out.jsonl")
    with measurement(given.url, given.rows):
        await batch(rows, given.folder / "rows.out.jsonl")


if __name__ == "__main__":
    given = arguments()
    with asyncio.Runner(loop_factory=uvloop_factory() if given.uvloop else None) as runner:
        runner.run(main(given))
