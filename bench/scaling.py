"""Measure how the CPU time of a whole loop grows with its candidates, its graders and the length of
its texts.

    python bench/scaling.py [--rounds 5] [--only NAME] [--json FILE]

Every loop runs in this process, with models and graders that answer at once, so that all CPU time
is Redraft's.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from itertools import count, repeat
from math import log
from statistics import median
from time import process_time

import redraft
from redraft import Judge, ScriptedModel, SelfRefine
from redraft.graders import FunctionGrader
from redraft.loop.stopping import max_iterations
from redraft.plans import best_of
from tables import table, write

GOAL = 1.1
CANDIDATES, GRADERS, KILOBYTES = (1, 4, 16, 64), (1, 2, 4, 8, 16), (2, 16, 128, 1024)
MIN_SECONDS = 0.1  # of loops that are measured together
WORDS = (
    "the quick brown fox jumps over the lazy dog while nobody looks at it, and then it sleeps a "
    "little. "
)
VERDICT = (
    '{"reason": "too long", "criteria": {"clear": {"evidence": "", "change": "be brief", '
    '"score": 3}}, "done": false}'
)


def text(kilobytes):
    """Return a text of so many KB."""
    return (WORDS * (1 + 1024 * kilobytes // len(WORDS)))[: 1024 * kilobytes]


def answers(kilobytes):
    """Yield different texts without end."""
    body = text(kilobytes)[16:]
    return (f"Version {n:<8}{body}" for n in count())


def graders(n, score=lambda _text: 0.5):
    """Return functions that score every answer below the target. Their scores arrive one by one, as
    those of a model do.
    """
    turn = asyncio.Lock()

    async def grade(text):
        async with turn:
            await asyncio.sleep(0)
        return redraft.Feedback(score(text), "too long", ("be brief",))

    return [FunctionGrader(grade, f"grader {i}") for i in range(n)]


def version_score(text):
    """Return a score that rises with every version."""
    return int(text[8:16]) / 100


def refine(plan, kilobytes, graders, judge=None):
    """Return the coroutine of a loop. Every answer is different."""
    return redraft.refine(
        text(kilobytes), ScriptedModel(answers(kilobytes)), graders, judge, plan=plan, editor=False
    )


def refinements(candidates, n_graders=1, kilobytes=1):
    """Return a loop that writes a draft and refines it in vain until there are so many
    candidates.
    """
    return refine(SelfRefine(max_iterations(candidates - 1)), kilobytes, graders(n_graders))


def improvements(candidates):
    """Return a loop in which every refinement is better than the answer before it."""
    return refine(SelfRefine(max_iterations(candidates - 1)), 1, graders(1, version_score))


def drafts(candidates, n_graders=1):
    """Return a loop that writes so many drafts at once, and keeps the best."""
    return refine(best_of(candidates), 1, graders(n_graders))


def judged(kilobytes):
    """Return a loop that writes a draft and three refinements, which a model judges."""
    judge = Judge({"clear": "It is clear."})
    return refine(SelfRefine(max_iterations(3)), kilobytes, judge, ScriptedModel(repeat(VERDICT)))


LOOPS = {  # what grows, its sizes, and the loop of a size
    "refinements that help": ("candidate", CANDIDATES, improvements),
    "refinements in vain": ("candidate", CANDIDATES, refinements),
    "drafts at once": ("candidate", CANDIDATES, drafts),
    "drafts at once, 16 graders": ("candidate", CANDIDATES, lambda n: drafts(n, 16)),
    "graders, 4 candidates": ("grader", GRADERS, lambda n: refinements(4, n)),
    "graders, 16 drafts": ("grader", GRADERS, lambda n: drafts(16, n)),
    "text, 4 candidates": ("KB", KILOBYTES, lambda n: refinements(4, 1, n)),
    "text, 4 candidates, judged": ("KB", KILOBYTES, judged),
}


def cpu_ms(loop, size):
    """Return the CPU milliseconds of a loop of this size, the mean over as many as take
    `MIN_SECONDS`.
    """
    began, n = process_time(), 0
    while (took := process_time() - began) < MIN_SECONDS:
        result = asyncio.run(loop(size))
        n += 1
        if not result.value.startswith("Version") or result.score is None:
            raise SystemExit(f"a loop returned no graded answer: {result!r:.300}")
    return 1000 * took / n


def measure(names, rounds):
    """Return the median CPU milliseconds by name and size. All of them take turns, after one that
    is not counted.
    """
    took = {(name, size): [] for name in names for size in LOOPS[name][1]}
    for n in range(rounds + 1):
        print(f"round {n} of {rounds} ...", file=sys.stderr)
        for (name, size), times in took.items():
            gc.collect()
            times.append(cpu_ms(LOOPS[name][2], size))
    return {name: {size: median(took[name, size][1:]) for size in LOOPS[name][1]} for name in names}


def exponent(cost_by_size):
    """Return how the cost grows with the size at its upper end: p in c + k * size^p, from the
    largest three sizes.

    These are equally far apart in their logarithm, so the constant cost c cancels out in the
    differences. It is 0 if the cost does not grow with the size.
    """
    (a, b, c), (cost_a, cost_b, cost_c) = zip(*sorted(cost_by_size.items())[-3:], strict=True)
    if not cost_a < cost_b < cost_c:
        return 0.0
    return log((cost_c - cost_b) / (cost_b - cost_a)) / log((c - b) / (b - a))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", metavar="NAME", help="measure the loops whose name contains NAME")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    given = parser.parse_args()
    given.names = [name for name in LOOPS if (given.only or "") in name]
    if not given.names or given.rounds < 1:
        parser.error(
            f"--rounds must be at least 1, and --only a part of one of: {', '.join(LOOPS)}"
        )
    return given


def main():
    given = arguments()
    costs = measure(given.names, given.rounds)
    results = {name: {"cpu_ms": cost, "exponent": exponent(cost)} for name, cost in costs.items()}

    print(f"CPU ms of a loop, medians of {given.rounds} rounds\n")
    for name, result in results.items():
        unit, sizes, _ = LOOPS[name]
        table([name, *map(str, sizes), "exponent"], rows_of(unit, result))
        print()
    missed = [name for name, result in results.items() if result["exponent"] > GOAL]
    print(
        f"goal: exponents of at most {GOAL:g}: "
        f"{'missed by ' + ', '.join(missed) if missed else 'met'}"
    )
    write(given.json, {"rounds": given.rounds, "goal": GOAL, "results": results})
    sys.exit(bool(missed))


def rows_of(unit, result):
    """Return the rows of a table: the cost of the loop, and that of a unit."""
    loop = [f"{ms:.2f}" for ms in result["cpu_ms"].values()]
    each = [f"{ms / size:.3f}" for size, ms in result["cpu_ms"].items()]
    return [["a loop", *loop, f"{result['exponent']:.2f}"], [f"a {unit}", *each, ""]]


if __name__ == "__main__":
    main()
