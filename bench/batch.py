"""Measure rows per second, CPU and memory of a batch: bare aiohttp, Redraft, OpenJudge's runner and
Bespoke Curator.

    python bench/batch.py [--rows 5000] [--in-flight 512] [--latency 0.05 --latency 0.5] [--rounds
    3]
                          [--peers DIR] [--only NAME] [--server URL] [--json FILE]

Every contender grades the same rows with one call each, in its own process, one after another, in
several rounds; the endpoint (judge_server.py) is the same for all. Peers need their own
environments: `sh bench/peers.sh DIR` creates them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tables import goal, table, write

HERE = Path(__file__).parent
CPU_GOAL = 5.0  # times the CPU of bare aiohttp
SHARE_GOAL = 0.25  # of the rows/s of bare aiohttp, where the CPU is the limit
SPEED_GOAL = (
    0.97  # of what the server allows or bare aiohttp reaches, where the latency is the limit
)
SLOW = 1.0  # seconds of latency from which it is
TWO_GOAL = 1.7  # times the rows/s of one process, where the CPU is the limit
# modules are compiled once
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}
BARE, OURS, READY = "bare aiohttp", "redraft batch", "redraft batch, all from the start"
TWO, UVLOOP = "redraft batch --workers 2", "redraft batch on uvloop"
PEERS = {
    "openjudge": ("OpenJudge GradingRunner", "batch_openjudge.py"),
    "curator": ("Bespoke Curator", "batch_curator.py"),
}
NOTES = {
    "batch_openjudge.py": (
        "OpenJudge keeps all rows and results in memory and nothing on disk until it has finished."
    ),
    "batch_curator.py": (
        "Curator asks the endpoint once before it begins; its telemetry is off, its token table "
        "is the one that litellm brings along, and its rate limits are set out of the way."
    ),
}
HEADER = [
    "",
    "rows/s",
    "x bare",
    "of allowed",
    "CPU s/1000",
    "x bare",
    "(from - to)",
    "peak MB",
    "most in flight",
    "calls/row",
]


@contextmanager
def server(latency):
    """Run an endpoint for the duration of the block; yield its address."""
    command = [sys.executable, HERE / "judge_server.py", "--latency", str(latency)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate()


def contenders(given):
    """Return what to run: name -> (interpreter, script, further options)."""
    ours = sys.executable
    found = {
        BARE: (ours, "batch_bare.py"),
        OURS: (ours, "batch_redraft.py"),
        READY: (ours, "batch_redraft.py", "--start", given.in_flight),
        TWO: (ours, "batch_redraft.py", "--workers", 2),
    }
    if find_spec("uvloop"):
        found[UVLOOP] = (ours, "batch_redraft.py", "--uvloop")
    for folder, (name, script) in PEERS.items():
        python = Path(given.peers or "", folder, "bin", "python")
        if given.peers and python.exists():
            found[name] = (python.absolute(), script)
    return {
        name: how
        for name, how in found.items()
        if not given.only or name == BARE or name in given.only
    }


def run(how, url, given):
    """Return the figures of one contender. If it fails, report why, and continue with the
    others.
    """
    python, script, *options = how
    with TemporaryDirectory() as folder:
        command = [python, HERE / "contenders" / script, "--url", url, "--folder", folder, *options]
        command += ["--rows", given.rows, "--in-flight", given.in_flight]
        command = [str(part) for part in command]
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=given.patience,
            env=ENVIRONMENT,
        )
    if done.returncode:
        print(f"{script} failed:\n{done.stderr[-3000:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def summary(runs, bare, allowed):
    """Return the medians over the rounds; ratios are computed within each round."""
    ratios = [own["cpu_s"] / base["cpu_s"] for own, base in zip(runs, bare, strict=True)]
    speed = [own["rows"] / own["wall_s"] for own in runs]
    floor = [base["rows"] / base["wall_s"] for base in bare]
    return {
        "rows_per_s": median(speed),
        "speed_ratio": median(own / base for own, base in zip(speed, floor, strict=True)),
        "of_allowed": median(speed) / allowed,
        "cpu_s_per_1000": median(1000 * own["cpu_s"] / own["rows"] for own in runs),
        "cpu_ratio": median(ratios),
        "cpu_ratios": ratios,
        "peak_mb": max(own["rss_mb"] for own in runs),
        "most_in_flight": max(own.get("most_in_flight", 0) for own in runs) or None,
        "calls_per_row": max(own.get("served", 0) / own["rows"] for own in runs) or None,
    }


def row(name, s):
    spread = f"({min(s['cpu_ratios']):.2f} - {max(s['cpu_ratios']):.2f})"
    calls = "-" if s["calls_per_row"] is None else f"{s['calls_per_row']:.3f}"
    speed = [f"{s['rows_per_s']:.0f}", f"{s['speed_ratio']:.2f}", f"{s['of_allowed']:.1%}"]
    cost = [f"{s['cpu_s_per_1000']:.2f}", f"{s['cpu_ratio']:.2f}", spread, f"{s['peak_mb']:.0f}"]
    return [name, *speed, *cost, str(s["most_in_flight"] or "-"), calls]


def measure(url, latency, given):
    """Run every contender in turn, for several rounds. Contenders that failed are left out."""
    field, runs = contenders(given), defaultdict(list)
    for n in range(given.rounds):
        for name, how in field.items():
            print(f"{latency:g} s, round {n + 1} of {given.rounds}: {name} ...", file=sys.stderr)
            runs[name].append(run(how, url, given))
    allowed = given.in_flight / latency
    whole = {name: own for name, own in runs.items() if all(own)}
    return {name: summary(own, whole[BARE], allowed) for name, own in whole.items()}


def show(latency, results, given):
    print(
        f"\n{given.rows} rows, one call each, up to {given.in_flight} in flight, answered after "
        f"{1000 * latency:g} ms:"
    )
    print(f"the server allows {given.in_flight / latency:.0f} rows/s; {given.rounds} rounds\n")
    table(HEADER, [row(name, s) for name, s in results.items()])
    print()
    show_goals(latency, results)


def show_goals(latency, results):
    """Print the goals for the contenders that were measured."""
    if ours := results.get(OURS):
        goal(
            f"{OURS}, CPU within {CPU_GOAL:g}x of bare aiohttp",
            f"{ours['cpu_ratio']:.2f}x",
            met=ours["cpu_ratio"] <= CPU_GOAL,
        )
        if latency >= SLOW:
            share = max(ours["of_allowed"], ours["speed_ratio"])
            goal(
                f"{OURS}, {SPEED_GOAL:.0%} of what the server or bare aiohttp allows",
                f"{share:.0%}",
                met=share >= SPEED_GOAL,
            )
            return
        goal(
            f"{OURS}, {SHARE_GOAL:.0%} of the rows/s of bare aiohttp",
            f"{ours['speed_ratio']:.0%}",
            met=ours["speed_ratio"] >= SHARE_GOAL,
        )
        if two := results.get(TWO):
            gain = two["rows_per_s"] / ours["rows_per_s"]
            goal(
                f"{TWO}, {TWO_GOAL:g}x the rows/s of one process",
                f"{gain:.2f}x",
                met=gain >= TWO_GOAL,
            )


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--rows", type=int, default=5000, help="rows of each contender in each round"
    )
    parser.add_argument("--in-flight", type=int, default=512)
    parser.add_argument(
        "--latency",
        type=float,
        action="append",
        help="seconds until an answer arrives (repeatable)",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--peers", metavar="DIR", help="folder with the environments that bench/peers.sh created"
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help="only this contender and bare aiohttp (repeatable)",
    )
    parser.add_argument(
        "--server",
        metavar="URL",
        help="an endpoint of your own (without /v1); set its latency with --latency",
    )
    parser.add_argument(
        "--patience", type=float, default=900, help="maximum seconds for one contender"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    given = parser.parse_args()
    given.latency = given.latency or [0.05]
    if min(given.rows, given.in_flight, given.rounds) < 1 or min(given.latency) <= 0:
        parser.error("--rows, --in-flight and --rounds must be at least 1, --latency more than 0")
    return given


def main():
    given = arguments()
    results = {}
    for latency in given.latency:
        if given.server:
            results[latency] = measure(given.server.rstrip("/"), latency, given)
        else:
            with server(latency) as url:
                results[latency] = measure(url, latency, given)
        show(latency, results[latency], given)
    field = {script: name for name, (_, script, *_) in contenders(given).items()}
    for script in field.keys() & NOTES.keys():
        print(f"note: {NOTES[script]}")
    missing = [name for name, _ in PEERS.values() if name not in field.values() and not given.only]
    if missing:
        print(
            f"not measured: {', '.join(missing)}. `sh bench/peers.sh DIR`, then --peers DIR, adds "
            "them."
        )
    write(
        given.json,
        {
            "rows": given.rows,
            "in_flight": given.in_flight,
            "rounds": given.rounds,
            "results": results,
        },
    )


if __name__ == "__main__":
    main()
