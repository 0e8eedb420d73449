"""Measure the CPU time per model call on the caller's side: bare aiohttp, Redraft's client and
loop, and two other loops.

    python bench/overhead.py [--calls 2048] [--in-flight 64] [--rounds 3] [--peers DIR] [--json
    FILE]

All of them make the same number of calls to one endpoint on the loopback (bench/server.py), each in
a process of its own, one after another, in several rounds. Peers need their own environments: `sh
bench/peers.sh DIR` creates them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from tables import goal, table, write

HERE = Path(__file__).parent
BARE, CLIENT, LOOP = "bare aiohttp", "redraft, client alone", "redraft, whole loop"
OURS = {BARE: "bare.py", CLIENT: "client.py", LOOP: "loop.py"}
GOALS = {LOOP: 2.6}  # times the CPU of bare aiohttp
PEERS = {
    "executionkit": ("executionkit refine_loop", "executionkit_refine.py"),
    "executionkit-httpx": ("executionkit[httpx] refine_loop", "executionkit_refine.py"),
    "dspy": ("DSPy Refine", "dspy_refine.py"),
}
NOTES = {
    "executionkit_refine.py": (
        "executionkit 0.4.0 raises TypeError: super(type, obj) on Python 3.11 when its loop "
        "returns; it ran with executionkit.types.PatternResult.__class_getitem__ = "
        "classmethod(lambda cls, _: cls)."
    ),
    "dspy_refine.py": (
        "DSPy asks the model for advice between attempts: seven calls for four attempts. Compare "
        "per call."
    ),
}
HEADER = ["", "CPU ms/call", "x bare", "(from - to)", "calls", "most in flight", "calls/s"]


@contextmanager
def server():
    """Run an endpoint for the duration of the block; yield its address."""
    process = subprocess.Popen(
        [sys.executable, HERE / "server.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate()


def contenders(peers):
    """Return what to run: name -> (interpreter, script)."""
    found = {name: (sys.executable, script) for name, script in OURS.items()}
    for folder, (name, script) in PEERS.items():
        python = Path(peers or "", folder, "bin", "python")
        if peers and python.exists():
            found[name] = (python.absolute(), script)
    return found


def run(python, script, url, given):
    """Return the figures of one contender. End the benchmark if the server's count of calls differs
    from the contender's.
    """
    command = [
        python,
        HERE / "contenders" / script,
        "--url",
        url,
        "--calls",
        given.calls,
        "--in-flight",
        given.in_flight,
    ]
    done = subprocess.run(
        [str(part) for part in command], check=False, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{script} failed:\n{done.stderr[-3000:]}")
    figures = json.loads(done.stdout.splitlines()[-1])
    if figures["served"] != figures["calls"]:
        sys.exit(f"{script}: {figures['calls']} calls announced, {figures['served']} served")
    return figures


def summary(runs, bare):
    """Return the medians over the rounds; ratios are computed within each round."""
    ratios = [cpu(own) / cpu(base) for own, base in zip(runs, bare, strict=True)]
    return {
        "cpu_ms_per_call": 1000 * median(map(cpu, runs)),
        "ratio": median(ratios),
        "ratios": ratios,
        "calls": runs[0]["calls"],
        "most_in_flight": max(r["most_in_flight"] for r in runs),
        "calls_per_s": median(r["calls"] / r["wall_s"] for r in runs),
    }


def cpu(run):
    return run["cpu_s"] / run["calls"]


def row(name, s):
    spread = f"({min(s['ratios']):.2f} - {max(s['ratios']):.2f})"
    shown = [
        f"{s['cpu_ms_per_call']:.3f}",
        f"{s['ratio']:.2f}",
        spread,
        s["calls"],
        s["most_in_flight"],
        f"{s['calls_per_s']:.0f}",
    ]
    return [name, *map(str, shown)]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--calls",
        type=int,
        default=2048,
        help="calls of each contender in each round (a multiple of 4)",
    )
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--peers", metavar="DIR", help="folder with the environments that bench/peers.sh created"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    given = parser.parse_args()
    if given.calls < 4 or given.calls % 4 or given.in_flight < 1 or given.rounds < 1:
        parser.error("--calls must be a multiple of 4, --in-flight and --rounds at least 1")
    return given


def main():
    given = arguments()
    field = contenders(given.peers)
    runs = defaultdict(list)
    with server() as url:
        for n in range(given.rounds):
            for name, (python, script) in field.items():
                print(f"round {n + 1} of {given.rounds}: {name} ...", file=sys.stderr)
                runs[name].append(run(python, script, url, given))
    results = {name: summary(own, runs[BARE]) for name, own in runs.items()}

    print(
        f"{given.calls} calls, up to {given.in_flight} in flight, 4 KB asked, 2 KB answered after "
        f"50 ms; {given.rounds} rounds\n"
    )
    table(HEADER, [row(name, s) for name, s in results.items()])
    print()
    for name, most in GOALS.items():
        ratio = results[name]["ratio"]
        goal(f"{name}, within {most:g}x of bare aiohttp", f"{ratio:.2f}x", met=ratio <= most)
    for note in dict.fromkeys(NOTES[script] for _, script in field.values() if script in NOTES):
        print(f"note: {note}")
    missing = [name for name, _ in PEERS.values() if name not in field]
    if missing:
        print(
            f"not measured: {', '.join(missing)}. `sh bench/peers.sh DIR`, then --peers DIR, adds "
            "them."
        )
    settings = {
        "calls": given.calls,
        "in_flight": given.in_flight,
        "rounds": given.rounds,
        "goals": GOALS,
    }
    write(given.json, {**settings, "results": results})


if __name__ == "__main__":
    main()
