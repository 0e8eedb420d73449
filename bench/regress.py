"""Find out whether one revision is slower than another: run the benchmarks of both in turn; report ratios with intervals.

    python bench/regress.py REV_A REV_B [--pairs 6] [--only NAME] [--limit 1.05] [--json FILE]

Each revision is checked out into a temporary folder with its own environment, which reuses the libraries of the environment that
runs this script, and runs its own benchmark scripts. The order is A B B A A B ..., so that a slow machine affects both.
The exit code is 1 if a ratio's interval lies wholly above the limit, 2 if a benchmark could not be run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tarfile
import venv
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from math import exp, fsum, log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tables import table, write

RESAMPLES = 10_000
HEADER = ["", "A", "B", "B / A", "95 % interval", ""]


def overhead(data: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name in ("redraft, client alone", "redraft, whole loop"):
        yield f"{name}: CPU ms/call", data["results"][name]["cpu_ms_per_call"]


def batch(data: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for results in data["results"].values():
        yield "redraft batch: CPU s/1000", results["redraft batch"]["cpu_s_per_1000"]


def planning(data: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, took in data["ways"].items():
        yield f"{name}: CPU ms/step", took["median_ms"]


def startup(data: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name in ("import redraft", "redraft.refine", "redraft --help"):
        yield f"{name}: wall ms", data["wall_ms"][name]


@dataclass(frozen=True)
class Benchmark:
    """A script of `bench/`, its options, and how to read its figures."""

    options: tuple[str, ...]
    figures: Callable[[dict[str, Any]], Iterator[tuple[str, float]]]


BENCHMARKS = {
    "overhead": Benchmark(("--calls", "1024", "--rounds", "1"), overhead),
    "batch": Benchmark(("--rows", "1500", "--rounds", "1", "--only", "redraft batch"), batch),
    "planning": Benchmark(("--traces", "150"), planning),
    "startup": Benchmark(("--runs", "20"), startup),
}


def check_out(repository: Path, revision: str, folder: Path) -> Path:
    """Write a revision's files into `folder` and return the interpreter of an environment that imports its sources."""
    packed = subprocess.run(["git", "-C", str(repository), "archive", revision], check=False, capture_output=True)
    if packed.returncode:
        raise SystemExit(f"{revision}: {packed.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(folder / "tree", filter="data")
    venv.create(folder / "env", with_pip=False, symlinks=os.name != "nt")
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (installed,) = (folder / "env").glob("[Ll]ib/**/site-packages")
    (installed / "revision.pth").write_text("\n".join([str(folder / "tree" / "src"), *libraries]) + "\n")
    return next((folder / "env").glob("[bS]*/python*")).with_name("python")


def run(name: str, folder: Path, python: Path) -> dict[str, float]:
    """Return the figures of one run of a benchmark, by name. Raises RuntimeError if it fails."""
    benchmark, output = BENCHMARKS[name], folder / "figures.json"
    output.unlink(missing_ok=True)
    script = folder / "tree" / "bench" / f"{name}.py"
    command = [str(python), str(script), *benchmark.options, "--json", str(output)]
    ended = subprocess.run(command, cwd=folder / "tree", check=False, capture_output=True, text=True)
    if not output.exists():
        raise RuntimeError(f"{name}.py wrote no figures (exit code {ended.returncode}):\n{ended.stderr[-2000:]}")
    return dict(benchmark.figures(json.loads(output.read_text())))


def geometric_mean(values: list[float]) -> float:
    return exp(fsum(map(log, values)) / len(values))


def interval(ratios: list[float], seed: int = 1) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the geometric mean, by pairs."""
    chance = random.Random(seed)
    means = sorted(geometric_mean(chance.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return means[round(0.025 * (RESAMPLES - 1))], means[round(0.975 * (RESAMPLES - 1))]


def compare(a: list[float], b: list[float], limit: float) -> dict[str, Any]:
    """The ratio of one figure; `a` and `b` have one value for each pair of runs."""
    ratios = [own / base for base, own in zip(a, b, strict=True)]
    low, high = interval(ratios)
    return {
        "a": geometric_mean(a),
        "b": geometric_mean(b),
        "ratio": geometric_mean(ratios),
        "low": low,
        "high": high,
        "ratios": ratios,
        "slower": low > limit,
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("revisions", nargs=2, metavar="REV", help="git revisions; the first is the baseline")
    parser.add_argument("--pairs", type=int, default=6, help="runs of each benchmark for each revision (at least 2)")
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="only this benchmark (repeatable)")
    parser.add_argument("--limit", type=float, default=1.05, help="highest ratio that does not count as slower")
    parser.add_argument("--repository", type=Path, default=Path(__file__).parent.parent, help=argparse.SUPPRESS)
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    given = parser.parse_args()
    if given.pairs < 2 or given.limit <= 0:
        parser.error("--pairs must be at least 2, --limit more than 0")
    return given


def measure(given: argparse.Namespace, places: list[tuple[Path, Path]]) -> dict[str, list[list[float]]]:
    """Return the figures by name: one value for each pair, for A and for B."""
    figures: dict[str, list[list[float]]] = defaultdict(lambda: [[], []])
    for pair in range(given.pairs):
        order = (0, 1) if pair % 2 == 0 else (1, 0)
        for benchmark in given.only or BENCHMARKS:
            for which in order:
                print(f"pair {pair + 1} of {given.pairs}: {benchmark}, {given.revisions[which]} ...", file=sys.stderr)
                for name, value in run(benchmark, *places[which]).items():
                    figures[name][which].append(value)
    return figures


def main() -> int:
    given = arguments()
    with TemporaryDirectory() as temporary:
        folders = [Path(temporary, name) for name in "AB"]
        for folder in folders:
            folder.mkdir()
        places = [(folder, check_out(given.repository, rev, folder)) for folder, rev in zip(folders, given.revisions, strict=True)]
        try:
            figures = measure(given, places)
        except (RuntimeError, KeyError) as error:
            print(f"a benchmark could not be run: {error}", file=sys.stderr)
            return 2
    missing = [name for name, (a, b) in figures.items() if len(a) != len(b)]
    results = {name: compare(a, b, given.limit) for name, (a, b) in figures.items() if name not in missing}

    print(f"A: {given.revisions[0]}, B: {given.revisions[1]}; {given.pairs} pairs, in the order A B B A; limit {given.limit:g}\n")
    rows = [
        [name, f"{r['a']:.4g}", f"{r['b']:.4g}", f"{r['ratio']:.3f}", f"{r['low']:.3f} - {r['high']:.3f}", "slower" * r["slower"]]
        for name, r in results.items()
    ]
    table(HEADER, rows)
    for name in missing:
        print(f"not compared: only one of the two revisions has the figure {name!r}")
    write(given.json, {"revisions": given.revisions, "pairs": given.pairs, "limit": given.limit, "results": results})
    return 1 if any(r["slower"] for r in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
