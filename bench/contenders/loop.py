"""Redraft's whole loop: `refine_many` with a function that gives a constant score below the
target.
"""

from __future__ import annotations

import asyncio

from common import CALLS_A_ROW, PROMPT, arguments, measurement

import redraft
from redraft.models.openai_chat import Chat


async def middling(_text):
    return 0.5


async def main(given):
    chat = Chat("loopback", f"{given.url}/v1")

    async def rows(n):
        return await redraft.refine_many(
            [PROMPT] * n,
            chat,
            middling,
            max_iterations=CALLS_A_ROW - 1,
            patience=CALLS_A_ROW,
            editor=False,
            max_in_flight=given.in_flight,
        )

    await rows(given.in_flight)
    with measurement(given.url, given.calls):
        results = await rows(given.calls // CALLS_A_ROW)
    assert all(
        result.trace.iterations == CALLS_A_ROW - 1 and result.score == 0.5 for result in results
    )


if __name__ == "__main__":
    asyncio.run(main(arguments()))
