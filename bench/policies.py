"""Compare policies in simulated worlds: true quality of the answer, number of calls, and error of
the reported score.

    python bench/policies.py [WORLDS.toml] [--worlds A,B] [--policies X] [--calls N,M] [--seed N]
    [--tasks N] [--json FILE]

Redraft's plans are those of the package, carried out in a simulated world
(bench/simulation/players.py). The loops of other tools are re-implemented in
bench/simulation/rivals.py, the stopping rules of papers in bench/simulation/stopping.py. Every
policy gets the same tasks. Each model call (a draft, a refinement, a grade, a piece of advice)
counts 1.
"""

from __future__ import annotations

import argparse
import os
import time
from fnmatch import fnmatchcase
from pathlib import Path

from simulation.catalogue import all_names
from simulation.figures import Figure
from simulation.games import play_all
from simulation.goals import goals
from simulation.ranks import Across, overall_goals
from simulation.report import figures_of, show, write_docs
from simulation.tables import COLUMNS, as_they_come, at_each, cells
from simulation.worlds import BadWorldError, read
from tables import table, write

HERE = Path(__file__).parent
TASKS = 250
MOST_CALLS = 50

EXAMPLES = """
examples:
  python bench/policies.py                        all worlds of bench/worlds.toml, all policies
  python bench/policies.py mine.toml --tasks 100  worlds of your own, roughly
  python bench/policies.py --docs docs            and rewrite docs/frontier.svg and the tables in docs/adaptive.md
  python bench/policies.py --worlds poison --policies "Adaptive*" --calls 7
                                                  what this package's plan makes of seven calls a task in one world
  python bench/policies.py --worlds noisy,tests --policies "best of N" --policies "DSPy*"
                                                  every setting of two rivals in two worlds
"""  # noqa: E501


def show_all(points, given, priors):
    """Print all tables of a whole run, and write the documentation if asked to; return the
    figures.
    """
    found = {world: figures_of(policies) for world, policies in points.items()}
    reached = [*goals(points, given.worlds, priors), *overall_goals(points)]
    across = Across.from_points(points)
    show(found, across, reached)
    if given.docs:
        Path(given.docs).mkdir(parents=True, exist_ok=True)
        write_docs(given.docs, points, found, across, given.tasks)
    return {"worlds": found, **across.to_dict(), "goals": reached}


def show_part(points, calls):
    """Print a table for each world and number of calls, or with every setting if there are none;
    return the figures.
    """
    found = {}
    for world, policies in points.items():
        lines = {f"at {n:g} calls": at_each(policies, n) for n in calls} or {
            "every setting": as_they_come(policies)
        }
        for what, mixes in lines.items():
            rows = {name: mix.summary() for name, mix in mixes}
            found.setdefault(world, {})[what] = rows
            print(f"\n{world}\n")
            table([what, *COLUMNS], [[name, *cells(row)] for name, row in rows.items()])
    return {"worlds": found}


def plain(value):
    """Return figures as plain data."""
    if isinstance(value, Figure):
        return {"value": value.value, "error": value.error}
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list) else value


def whole(text):
    number = int(text)
    if not 2 <= number <= 100_000:
        raise argparse.ArgumentTypeError(f"must be a whole number from 2 to 100000, got {text}")
    return number


def call_numbers(text):
    numbers = [int(part) for part in text.split(",")]
    if not all(1 <= number <= MOST_CALLS for number in numbers):
        raise argparse.ArgumentTypeError(
            f"must be whole numbers from 1 to {MOST_CALLS}, separated by commas, got {text}"
        )
    return numbers


def arguments(words=None):
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "file",
        nargs="?",
        default=HERE / "worlds.toml",
        metavar="WORLDS.toml",
        help="the worlds (default: bench/worlds.toml)",
    )
    parser.add_argument("--worlds", metavar="A,B", help="only these worlds of the file")
    parser.add_argument(
        "--policies",
        metavar="X",
        action="append",
        help='only policies whose name matches, such as "Adaptive*"; may be repeated',
    )
    parser.add_argument(
        "--calls",
        metavar="N,M",
        type=call_numbers,
        default=(),
        help="only what policies make of so many calls a task",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="the same seed gives the same figures (0)"
    )
    parser.add_argument("--tasks", type=whole, default=TASKS, help=f"tasks in each world ({TASKS})")
    parser.add_argument("--json", metavar="FILE", help="write all figures to FILE")
    parser.add_argument(
        "--docs",
        metavar="FOLDER",
        help="write frontier.svg and the tables in adaptive.md in FOLDER",
    )
    given = parser.parse_args(words)
    try:
        given.worlds = choose(read(given.file), given.worlds)
    except BadWorldError as error:
        parser.error(str(error))
    for pattern in given.policies or ():
        if not any(fnmatchcase(name, pattern) for name in all_names()):
            parser.error(
                f"--policies: no policy matches {pattern!r:.60}; there are {'; '.join(all_names())}"
            )
    if given.docs and (given.policies or given.calls):
        parser.error("--docs needs all policies: it cannot be combined with --policies or --calls")
    return given


def choose(worlds, names):
    """Return the worlds with these names, separated by commas; None: all. Raises BadWorldError."""
    by_name = {world.name: world for world in worlds}
    wanted = by_name if names is None else [name.strip() for name in names.split(",")]
    if unknown := [name for name in wanted if name not in by_name]:
        raise BadWorldError(
            f"--worlds: there is no world {unknown[0]!r:.40}; there are {', '.join(by_name)}"
        )
    return [by_name[name] for name in wanted]


def chooser(patterns):
    """Return a function that says whether a policy is to be played."""
    return lambda name: not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def main():
    given, began = arguments(), time.perf_counter()
    points, priors = play_all(
        given.worlds, given.seed, given.tasks, chooser(given.policies), given.calls
    )
    shown = (
        show_part(points, given.calls)
        if given.policies or given.calls
        else show_all(points, given, priors)
    )
    spent = os.times()
    cpu = spent.user + spent.children_user
    print(
        f"\n{given.tasks} tasks a world, {time.perf_counter() - began:.0f} seconds, {cpu:.0f} of "
        "CPU"
    )
    write(given.json, plain({"seed": given.seed, "tasks": given.tasks, "priors": priors, **shown}))


if __name__ == "__main__":
    main()
