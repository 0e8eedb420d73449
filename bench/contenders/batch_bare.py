"""Bare aiohttp: read the rows, post, parse the verdict, write a line in order of arrival. The
minimum for any contender.
"""

from __future__ import annotations

import asyncio

import aiohttp
import orjson
from rows import INSTRUCTION, arguments, files, measurement

JSON = {"Content-Type": "application/json"}


async def main(given):
    url = f"{given.url}/v1/chat/completions"
    warm, rows = files(given)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def judge(row):
            text = f"{INSTRUCTION}\n\n{row['query']}\n\n{row['response']}"
            body = orjson.dumps(
                {
                    "model": "loopback",
                    "temperature": 0,
                    "messages": [{"role": "user", "content": text}],
                }
            )
            async with session.post(url, data=body, headers=JSON) as response:
                answer = orjson.loads(await response.read())
            return orjson.loads(answer["choices"][0]["message"]["content"])["score"] / 5

        async def batch(source, output):
            with source.open("rb") as lines, output.open("wb") as out:

                async def worker():
                    for line in lines:
                        row = orjson.loads(line)
                        out.write(orjson.dumps({**row, "score": await judge(row)}) + b"\n")

                await asyncio.gather(*(worker() for _ in range(given.in_flight)))

        await batch(warm, given.folder / "warm.out")
        with measurement(given.url, given.rows):
            await batch(rows, given.folder / "rows.out")


if __name__ == "__main__":
    asyncio.run(main(arguments()))
