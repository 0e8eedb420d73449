"""Interrupt work at random moments, in every way that asyncio and Ctrl-C offer, and count what was
suppressed, left open or lost.

The server, the ways of interruption and the checks are those of tests/cancelling.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from cancelling import WAYS, Point, Server, points


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--points", type=int, default=500, help="number of interruptions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    server, tried, calls, missed, began = (
        Server(),
        Counter(),
        Counter(),
        Counter(),
        time.monotonic(),
    )
    with TemporaryDirectory() as folder:
        for way, seed in points(given.points, given.seed):
            point = Point(way, seed, server, Path(folder))
            misses = point.run()
            tried[way] += 1
            calls[way] += point.case.asked
            missed[way] += bool(misses)
            for miss in misses:
                print(f"  {miss}", file=sys.stderr)
    print(
        f"{sum(tried.values())} points in {time.monotonic() - began:.0f} s, calls as the server "
        "counted them\n"
    )
    print(f"{'':42}{'points':>8}{'calls':>8}{'missed':>8}")
    for way, words in WAYS.items():
        print(f"{words:42}{tried[way]:8}{calls[way]:8}{missed[way]:8}")
    print(f"{'all':42}{sum(tried.values()):8}{sum(calls.values()):8}{sum(missed.values()):8}")
    if given.json:
        given.json.write_text(json.dumps({"points": tried, "calls": calls, "missed": missed}))
    return 1 if sum(missed.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
