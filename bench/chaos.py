"""Run a batch against an endpoint with many kinds of faults, and count how its rows ended.

    python bench/chaos.py [--rows 2000] [--share 0.16] [--seed 0] [--latency 0.05] [--timeout 3]
    [--server URL] [--json FILE]

The endpoint (tests/runs/chaos_server.py) injects seventeen kinds of faults. The exit code is 1 when
a row is missing, has neither a result nor an error, or the run does not end.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from tables import table, write

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from runs.killing import ForeignServer, batch, run, serving, write_rows


def measure(folder, server, given):
    """Return the figures of one run."""
    source, output, began = (
        write_rows(folder / "rows.jsonl", given.rows),
        folder / "out.jsonl",
        time.monotonic(),
    )
    ended = run(
        batch(source, output, server.model, "--timeout", given.timeout), within=given.patience
    )
    rows = list(map(json.loads, output.read_text().splitlines()))
    errors = [row["error"] for row in rows if row["error"]]
    return {
        "exit_code": ended.code,
        "rows": given.rows,
        "written": len({row["id"] for row in rows}),
        "with_result": sum(row["best_score"] is not None for row in rows),
        "errors": dict(Counter(str(error).partition(":")[0] for error in errors)),
        "neither": sum(row["best_score"] is None and not row["error"] for row in rows),
        "injected": {}
        if given.server
        else {k: n for k, n in sorted(server.counts().items()) if k not in "BEX"},
        "seconds": time.monotonic() - began,
    }


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--share", type=float, default=0.16, help="share of requests with a fault")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults")
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--timeout", type=float, default=3.0, help="timeout of a call, in seconds")
    parser.add_argument(
        "--patience", type=float, default=3600.0, help="maximum seconds for the run"
    )
    parser.add_argument("--server", metavar="URL", help="an endpoint of your own (without /v1)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    return parser.parse_args()


def main():
    given = arguments()
    options = ("--share", given.share, "--seed", given.seed, "--latency", given.latency)
    with TemporaryDirectory() as folder:
        server = (
            nullcontext(ForeignServer(given.server))
            if given.server
            else serving("chaos_server.py", *options)
        )
        with server as at:
            found = measure(Path(folder), at, given)
    lines = {name: value for name, value in found.items() if not isinstance(value, dict)} | {
        "seconds": round(found["seconds"])
    }
    lines |= {
        f"{kind}: {name}": n for kind in ("errors", "injected") for name, n in found[kind].items()
    }
    table(["", "found"], [[name, str(value)] for name, value in lines.items()])
    write(given.json, found)
    sys.exit(found["neither"] > 0 or found["written"] != found["rows"])


if __name__ == "__main__":
    main()
