"""Bare aiohttp: post, read, parse. All other contenders are compared with it."""

from __future__ import annotations

import asyncio

import aiohttp
import orjson
from common import CALLS_A_ROW, PROMPT, arguments, measurement

REFINE = "Improve it. Answer with the improved answer only."


async def main(given):
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(messages):
            body = orjson.dumps({"model": "loopback", "messages": messages})
            async with session.post(
                f"{given.url}/v1/chat/completions", data=body, headers=JSON
            ) as response:
                return orjson.loads(await response.read())["choices"][0]["message"]["content"]

        async def row():
            messages = [{"role": "user", "content": PROMPT}]
            answer = await ask(messages)
            for _ in range(CALLS_A_ROW - 1):
                answer = await ask(
                    [*messages, {"role": "user", "content": f"{answer}\n\n{REFINE}"}]
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


JSON = {"Content-Type": "application/json"}

if __name__ == "__main__":
    asyncio.run(main(arguments()))
