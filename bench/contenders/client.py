"""Redraft's chat client alone: the same calls, without the loop."""

from __future__ import annotations

import asyncio

from common import CALLS_A_ROW, PROMPT, arguments, measurement

from redraft.models.openai_chat import Chat
from redraft.protocols import Request

REFINE = "Improve it. Answer with the improved answer only."


async def main(given):
    chat = Chat("loopback", f"{given.url}/v1")

    async def row():
        prompt = {"role": "user", "content": PROMPT}
        reply = await chat.complete(Request((prompt,)))
        for _ in range(CALLS_A_ROW - 1):
            reply = await chat.complete(
                Request((prompt, {"role": "user", "content": f"{reply.text}\n\n{REFINE}"}))
            )

    async def rows(n):
        left = iter(range(n))

        async def worker():
            for _ in left:
                await row()

        await asyncio.gather(*(worker() for _ in range(given.in_flight)))

    await rows(given.in_flight)
    with measurement(given.url, given.calls):
        await rows(given.calls // CALLS_A_ROW)


if __name__ == "__main__":
    asyncio.run(main(arguments()))
