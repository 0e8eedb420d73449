"""Find out whether one revision is slower than another: run the benchmarks of both in turn; report
ratios with intervals.

    python bench/regress.py REV_A REV_B [--pairs 6] [--only NAME] [--limit 1.05] [--json FILE]

Each revision is checked out into a temporary folder with its own environment, which reuses the
libraries of the environment that runs this script, and runs its own benchmark scripts. The order is
A B B A A B ..., so that a slow machine affects both. A benchmark, or a figure, that one of the
revisions does not have is named and left out. The exit code is 1 if a ratio's interval lies wholly
above the limit, 2 if a benchmark could not be run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import venv
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from math import exp, log, sqrt
from pathlib import Path
from statistics import geometric_mean, stdev
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from tables import table, write

# quantiles of Student's t, for 1 to 10 or more
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
BATCH, TWO_PROCESSES = "redraft batch", "redraft batch --workers 2"  # contenders of batch.py
# modules are compiled once
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}
HEADER = ["", "A", "B", "B / A", "95 % interval", ""]


Figures: TypeAlias = Iterator[tuple[str, float]]  # names and values; less is better


def overhead(data: dict[str, Any]) -> Figures:
    for name in ("redraft, client alone", "redraft, whole loop"):
        yield f"{name}: CPU ms/call", data["results"][name]["cpu_ms_per_call"]


def batch(data: dict[str, Any]) -> Figures:
    for results in data["results"].values():
        yield f"{BATCH}: CPU s/1000", results[BATCH]["cpu_s_per_1000"]
        for name in (BATCH, TWO_PROCESSES):
            if name in results:
                yield f"{name}: wall s/1000", 1000 / results[name]["rows_per_s"]


def planning(data: dict[str, Any]) -> Figures:
    for name, took in data["ways"].items():
        yield f"{name}: CPU ms/step", took["median_ms"]


def scaling(data: dict[str, Any]) -> Figures:
    for name, result in data["results"].items():
        size = max(result["cpu_ms"], key=int)
        yield f"{name}, {size}: CPU ms", result["cpu_ms"][size]


def startup(data: dict[str, Any]) -> Figures:
    for name in ("import redraft", "redraft.refine", "first answer, HTTP client", "redraft --help"):
        if name in data["wall_ms"]:
            yield f"{name}: wall ms", data["wall_ms"][name]


def journal(data: dict[str, Any]) -> Figures:
    yield "journal, a row: us", 1e6 * data["grouped_s_per_row"]
    yield "journal, a trace read: us", 1e6 / data["traces/s"]


def memory(data: dict[str, Any]) -> Figures:
    for size in data["sizes"]:
        yield f"{size['rows']} rows graded: s", size["seconds"]
        yield f"{size['rows']} rows resumed: s", size["again_s"]
        yield f"{size['rows']} rows: peak MB", size["peak_mb"]


@dataclass(frozen=True)
class Benchmark:
    """A script of `bench/`, its options, and how to read its figures."""

    options: tuple[str, ...]
    figures: Callable[[dict[str, Any]], Figures]


BENCHMARKS = {
    "overhead": Benchmark(("--calls", "1024", "--rounds", "1"), overhead),
    "batch": Benchmark(
        ("--rows", "1500", "--rounds", "1", "--only", BATCH, "--only", TWO_PROCESSES), batch
    ),
    "planning": Benchmark(("--traces", "150"), planning),
    "scaling": Benchmark(("--rounds", "1"), scaling),
    "startup": Benchmark(("--runs", "20"), startup),
    "journal": Benchmark(("--rows", "20000"), journal),
    "memory": Benchmark(("--rows", "5000"), memory),
}


def check_out(repository: Path, revision: str, folder: Path) -> Path:
    """Write a revision's files into `folder` and return the interpreter of an environment that
    imports its sources.
    """
    packed = subprocess.run(
        ["git", "-C", str(repository), "archive", revision], check=False, capture_output=True
    )
    if packed.returncode:
        raise SystemExit(f"{revision}: {packed.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        # of our own repository; Python before 3.11.4 has no filters
        archive.extractall(folder / "tree")
    venv.create(folder / "env", with_pip=False, symlinks=os.name != "nt")
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (installed,) = (folder / "env").glob("[Ll]ib/**/site-packages")
    (installed / "revision.pth").write_text(
        "\n".join([str(folder / "tree" / "src"), *libraries]) + "\n"
    )
    return next((folder / "env").glob("[bS]*/python*")).with_name("python")


def script_of(name: str, folder: Path) -> Path:
    """Return the path of a benchmark's script among the files of a revision."""
    return folder / "tree" / "bench" / f"{name}.py"


def run(name: str, folder: Path, python: Path) -> dict[str, float]:
    """Return the figures of one run of a benchmark, by name. Raises RuntimeError if it fails."""
    benchmark, output = BENCHMARKS[name], folder / "figures.json"
    output.unlink(missing_ok=True)
    command = [str(python), str(script_of(name, folder)), *benchmark.options, "--json", str(output)]
    ended = subprocess.run(
        command, cwd=folder / "tree", env=ENVIRONMENT, check=False, capture_output=True, text=True
    )
    if not output.exists():
        raise RuntimeError(
            f"{name}.py wrote no figures (exit code {ended.returncode}):\n{ended.stderr[-2000:]}"
        )
    return dict(benchmark.figures(json.loads(output.read_text())))


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the geometric mean: Student's t of the logarithms, which few
    pairs make wide.
    """
    freedom = len(ratios) - 1
    error = stdev(map(log, ratios)) / sqrt(len(ratios))
    factor = exp(error * T_975[min(freedom, len(T_975)) - 1])
    return geometric_mean(ratios) / factor, geometric_mean(ratios) * factor


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
    parser.add_argument(
        "revisions", nargs=2, metavar="REV", help="git revisions; the first is the baseline"
    )
    parser.add_argument(
        "--pairs", type=int, default=6, help="runs of each benchmark for each revision (at least 2)"
    )
    parser.add_argument(
        "--only", action="append", choices=BENCHMARKS, help="only this benchmark (repeatable)"
    )
    parser.add_argument(
        "--limit", type=float, default=1.05, help="highest ratio that does not count as slower"
    )
    parser.add_argument(
        "--repository", type=Path, default=Path(__file__).parent.parent, help=argparse.SUPPRESS
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    given = parser.parse_args()
    if given.pairs < 2 or given.limit <= 0:
        parser.error("--pairs must be at least 2, --limit more than 0")
    return given


def in_both(given: argparse.Namespace, places: list[tuple[Path, Path]]) -> list[str]:
    """Return the names of the benchmarks to run; print those that one of the revisions does not
    have.
    """
    names = given.only or list(BENCHMARKS)
    missing = {
        name: revision
        for name in names
        for revision, (folder, _) in zip(given.revisions, places, strict=True)
        if not script_of(name, folder).exists()
    }
    for name, revision in missing.items():
        print(f"not compared: {revision} has no bench/{name}.py")
    return [name for name in names if name not in missing]


def measure(
    given: argparse.Namespace, places: list[tuple[Path, Path]]
) -> dict[str, list[list[float]]]:
    """Return the figures by name: one value for each pair, for A and for B."""
    figures: dict[str, list[list[float]]] = defaultdict(lambda: [[], []])
    names = in_both(given, places)
    for pair in range(given.pairs):
        order = (0, 1) if pair % 2 == 0 else (1, 0)
        for benchmark in names:
            for which in order:
                print(
                    f"pair {pair + 1} of {given.pairs}: {benchmark}, {given.revisions[which]} ...",
                    file=sys.stderr,
                )
                for name, value in run(benchmark, *places[which]).items():
                    figures[name][which].append(value)
    return figures


def main() -> int:
    given = arguments()
    with TemporaryDirectory() as temporary:
        folders = [Path(temporary, name) for name in "AB"]
        for folder in folders:
            folder.mkdir()
        places = [
            (folder, check_out(given.repository, rev, folder))
            for folder, rev in zip(folders, given.revisions, strict=True)
        ]
        try:
            figures = measure(given, places)
        except (RuntimeError, KeyError) as error:
            print(f"a benchmark could not be run: {error}", file=sys.stderr)
            return 2
    missing = [name for name, (a, b) in figures.items() if len(a) != len(b)]
    results = {
        name: compare(a, b, given.limit) for name, (a, b) in figures.items() if name not in missing
    }

    print(
        f"A: {given.revisions[0]}, B: {given.revisions[1]}; {given.pairs} pairs, in the order A B "
        f"B A; limit {given.limit:g}\n"
    )
    rows = [
        [
            name,
            f"{r['a']:.4g}",
            f"{r['b']:.4g}",
            f"{r['ratio']:.3f}",
            f"{r['low']:.3f} - {r['high']:.3f}",
            "slower" * r["slower"],
        ]
        for name, r in results.items()
    ]
    table(HEADER, rows)
    for name in missing:
        print(f"not compared: only one of the two revisions has the figure {name!r}")
    write(
        given.json,
        {
            "revisions": given.revisions,
            "pairs": given.pairs,
            "limit": given.limit,
            "results": results,
        },
    )
    return 1 if any(r["slower"] for r in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
