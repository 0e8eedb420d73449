"""Check whether any text can block a check, a repair, a computed grader or the event loop.

    python bench/hostile_text.py [--share 1.0] [--seed 0] [--only TEXT] [--json FILE]

Every operation (`hostile.py`: each requirement's check and repairs, each computed grader) reads
every hostile text in four shapes, at 64 Ki and 256 Ki characters, in a worker whose CPU time is
limited. The slowest texts of each operation then have 1 Mi characters. Passed is an exponent of at
most 1.3 in the length, or *unknown* at the limit. Then the operation runs as in a refinement, on
its slowest texts, with a length just short enough for no thread, with one for this process and with
1 Mi characters, beside a task that ticks: no tick may be 50 ms late. A failure is measured up to
four times more, since other programs may have caused it, and the best counts. The exit code is 1 if
a goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.table import Table

from hostile import ATOMS, SHAPES, Operation, cpu_seconds, hostile, operations
from redraft.errors import ComputeLimitError, RedraftError
from redraft.requirements.spec import AT_ONCE
from redraft.workers.pool import IN_PROCESS, run

SMALL, LARGE, HUGE = 2**16, 2**18, 2**20
EXPONENT, GAP = 1.3, 0.050
TRIFLE = 0.050  # seconds of CPU time: below that a clock's steps are a large part
SLOWEST = 2  # texts of each operation that are tried at full length
TRIES = 5
TOGETHER = 2  # measurements in worker processes


@dataclass
class OperationFigures:
    """The figures of one operation."""

    operation: Operation
    # at LARGE; infinite: unknown at the limit
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    exponents: dict[tuple[str, str], float] = field(default_factory=dict)
    full: float = 0.0  # CPU seconds at HUGE
    gap: float = 0.0  # longest delay of the event loop, in seconds

    @property
    def slowest(self) -> list[tuple[str, str]]:
        return sorted(self.seconds, key=self.seconds.__getitem__, reverse=True)[:SLOWEST]

    @property
    def exponent(self) -> float:
        return max(self.exponents.values(), default=0.0)

    @property
    def passed(self) -> bool:
        return self.exponent <= EXPONENT and self.gap <= GAP


async def seconds_of(operation: Operation, text: tuple[str, str], size: int) -> float:
    """Return CPU seconds; infinite if the limit was reached."""
    try:
        return await run(
            cpu_seconds,
            operation.kind,
            operation.spec,
            *text,
            size,
            failure_text=str(operation),
            text_length=size,
        )
    except ComputeLimitError:
        return math.inf


async def measure_growth(found: OperationFigures, text: tuple[str, str]) -> None:
    """Measure how the time of an operation grows with the length of a text."""
    for _ in range(TRIES):
        large = await seconds_of(found.operation, text, LARGE)
        found.seconds[text] = min(large, found.seconds.get(text, math.inf))
        if large < TRIFLE or large == math.inf:
            found.exponents.pop(text, None)
            return
        small = await seconds_of(found.operation, text, SMALL)
        exponent = math.log(large / max(small, 1e-3)) / math.log(LARGE / SMALL)
        found.exponents[text] = min(exponent, found.exponents.get(text, math.inf))
        if exponent <= EXPONENT:
            return


async def blocked_time(operation: Operation, text: str) -> float:
    """Return the longest delay of the event loop while an operation runs as in a refinement."""
    gap, done = 0.0, False

    async def tick() -> None:
        nonlocal gap
        while not done:
            begun = perf_counter()
            await asyncio.sleep(0.001)
            gap = max(gap, perf_counter() - begun - 0.001)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    # unknown, or an invalid reference: only the event loop matters here
    with suppress(RedraftError, RuntimeError):
        await operation.run(text)
    done = True
    await ticking
    return gap


async def measure_delay(found: OperationFigures) -> None:
    """Measure the longest time for which an operation blocks the event loop."""
    for (atom, shape), size in product(
        found.slowest, (AT_ONCE * 9 // 10, IN_PROCESS * 9 // 10, HUGE)
    ):
        text, best = hostile(atom, shape, size), math.inf
        for _ in range(TRIES):
            best = min(best, await blocked_time(found.operation, text))
            if best <= GAP:
                break
        found.gap = max(found.gap, best)


async def measure(chosen: list[Operation], share: float, seed: int) -> list[OperationFigures]:
    """Measure all operations, each with a share of the texts."""
    draw = random.Random(seed)
    found = [OperationFigures(operation) for operation in chosen]
    pairs = [
        (one, text) for one in found for text in product(ATOMS, SHAPES) if draw.random() < share
    ]
    places = asyncio.Semaphore(TOGETHER)

    async def one_of(one: OperationFigures, text: tuple[str, str]) -> None:
        async with places:
            await measure_growth(one, text)

    await asyncio.gather(*(one_of(*pair) for pair in pairs))
    for one in found:
        for text in one.slowest:
            one.full = max(one.full, await seconds_of(one.operation, text, HUGE))
        await measure_delay(one)
    return found


def show(found: list[OperationFigures]) -> None:
    table = Table(
        title="hostile texts: growth of CPU time, and how long the event loop was blocked"
    )
    for name in ("operation", "slowest text", "exponent", "s at 1 Mi", "blocked ms", ""):
        table.add_column(name, justify="left" if name in ("operation", "slowest text") else "right")
    for one in found:
        text = " ".join(filter(None, one.slowest[0])) if one.slowest else "-"
        at_full = "unknown" if one.full == math.inf else f"{one.full:.2f}"
        operation = str(one.operation)
        verdict = "" if one.passed else "MISSED"
        table.add_row(
            operation[:48], text, f"{one.exponent:.2f}", at_full, f"{1000 * one.gap:.0f}", verdict
        )
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--share", type=float, default=1.0, help="share of the texts, chosen by the seed"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only operations whose name contains TEXT"
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    chosen = [operation for operation in operations() if given.only in str(operation)]
    found = asyncio.run(measure(chosen, given.share, given.seed))
    show(found)
    missed = [one for one in found if not one.passed]
    for one in missed:
        worst = {
            " ".join(text): round(exponent, 2)
            for text, exponent in one.exponents.items()
            if exponent > EXPONENT
        }
        print(f"missed: {one.operation}: {worst}, blocked {1000 * one.gap:.0f} ms")
    print(
        f"{len(found)} operations, {sum(len(one.seconds) for one in found)} texts, {len(missed)} "
        "missed"
    )
    if given.json:
        rows = [
            {
                "operation": str(o.operation),
                "exponent": o.exponent,
                "full": o.full,
                "blocked": o.gap,
            }
            for o in found
        ]
        given.json.write_text(json.dumps(rows, indent=1))
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
