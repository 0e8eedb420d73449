"""executionkit's `refine_loop`, with a constant score below the target.

0.4.0 raises `TypeError: super(type, obj)` on Python 3.11 and 3.12.1 when its loop returns, because
`PatternResult[str]` is called on a slotted generic. Its `__class_getitem__` is replaced here, which
is not part of what is measured.
"""

from __future__ import annotations

import asyncio

import executionkit.types
from common import CALLS_A_ROW, PROMPT, arguments, measurement
from executionkit import Provider, refine_loop

executionkit.types.PatternResult.__class_getitem__ = classmethod(lambda cls, _: cls)


async def middling(_text, _provider):
    return 0.5


async def main(given):
    places = asyncio.Semaphore(given.in_flight)
    async with Provider(f"{given.url}/v1", "loopback") as provider:

        async def row():
            async with places:
                done = await refine_loop(
                    provider,
                    PROMPT,
                    evaluator=middling,
                    max_iterations=CALLS_A_ROW - 1,
                    patience=CALLS_A_ROW,
                )
            assert done.iterations == CALLS_A_ROW - 1

        await asyncio.gather(*(row() for _ in range(given.in_flight)))
        with measurement(given.url, given.calls):
            await asyncio.gather(*(row() for _ in range(given.calls // CALLS_A_ROW)))


if __name__ == "__main__":
    asyncio.run(main(arguments()))
