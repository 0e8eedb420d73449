"""Kill a batch with `kill -9` at random moments, many times, and count what is lost or paid for
twice.

    python bench/kill.py [--rows 2000] [--kills 200] [--seed 0] [--latency 0.03] [--in-flight 32]
                         [--server URL] [--json FILE] [-- OPTIONS]

An undisturbed run first; then the same on a fresh journal, killed and started again by the same
command until it has ended. The endpoint (tests/runs/logging_server.py) logs every request and
answer. The exit code is 1 when anything was lost, doubled, out of order or different, or if a call
was repeated although its answer was, or must have been, in the journal (`tests/runs/killing.py`
says when). OPTIONS go to `redraft batch`.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from tables import table, write

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from runs.killing import ForeignServer, killed_run, serving


def figure_rows(figures):
    """Return the figures as text, each with its required value."""
    return [
        ["rows", figures.rows, ""],
        ["kills", figures.kills, ""],
        ["rows lost", figures.lost, "0"],
        ["rows duplicated", figures.duplicated, "0"],
        ["rows in order", _yes(figures.in_order), "yes"],
        ["output equal to the undisturbed run's", _yes(figures.equal), "yes"],
        ["calls", figures.calls or "-", ""],
        ["most in flight", figures.most_in_flight or "-", ""],
        ["calls asked again", figures.again if figures.calls else "-", ""],
        [
            "... whose answers must have been in the journal",
            figures.needless if figures.calls else "-",
            "0",
        ],
        ["seconds", f"{figures.seconds:.0f}", ""],
    ]


def _yes(holds):
    return "yes" if holds else "NO"


def all_met(figures):
    """Return whether all figures have their required values."""
    wrong = figures.lost + figures.duplicated + figures.needless
    return not wrong and figures.in_order and figures.equal


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments of the kills")
    parser.add_argument(
        "--in-flight",
        type=int,
        default=32,
        help="maximum calls in flight; few, so that answers are read at once",
    )
    parser.add_argument(
        "--latency",
        type=float,
        default=0.03,
        help="seconds until an answer arrives, plus or minus half",
    )
    parser.add_argument(
        "--server",
        metavar="URL",
        help="an endpoint of your own (without /v1) that gives equal answers to equal requests",
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    parser.add_argument(
        "options", nargs="*", metavar="OPTIONS", help="after --: options of `redraft batch`"
    )
    return parser.parse_args()


def main():
    given = arguments()
    options = [
        "--initial-in-flight",
        given.in_flight,
        "--max-in-flight",
        given.in_flight,
        *given.options,
    ]
    with TemporaryDirectory() as folder:
        server = (
            nullcontext(ForeignServer(given.server))
            if given.server
            else serving("logging_server.py", "--latency", given.latency, log=f"{folder}/log")
        )
        with server as at:
            say = lambda text: print(text, file=sys.stderr)  # noqa: E731
            figures = killed_run(
                Path(folder), given.rows, given.kills, at, seed=given.seed, options=options, say=say
            )
    table(["", "found", "must be"], [[str(cell) for cell in line] for line in figure_rows(figures)])
    write(given.json, figures.as_data())
    sys.exit(not all_met(figures))


if __name__ == "__main__":
    main()
