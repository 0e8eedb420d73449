"""What it costs to plan one step: the plan that weighs beside the plain one, on the same traces.

    python bench/planning.py [--candidates 16] [--traces 300] [--seed 1] [--json FILE]

Each trace holds so many graded candidates, drafts and refinements of random parents; CPU time is taken while a plan decides what
comes after the last grade, when what it needs of the trace before that is known already, as in a run.
"""

from __future__ import annotations

import argparse
import gc
import random
from dataclasses import replace
from statistics import median, quantiles
from time import process_time_ns

from redraft.core.records import Candidate, Feedback, Task
from redraft.core.stopping import max_iterations, patience, target
from redraft.core.trace import PanelGrader, Trace
from redraft.plans.adaptive import Adaptive
from redraft.plans.self_refine import SelfRefine
from redraft.quality.posterior import TREE_CACHE
from redraft.usage import Usage
from tables import table, write

GOAL = 1.0
MANY = 1000  # attempts: all choices are open
RULES = SelfRefine(target(1.0) | patience(MANY) | max_iterations(MANY))
WEIGHING = Adaptive(RULES, min_expected_gain=0.0, max_attempts=MANY)
ONCE = Usage(calls=1)
WAYS = {
    "SelfRefine": (RULES, False),
    "Adaptive, a family of this shape seen before": (WEIGHING, False),
    "Adaptive, a shape that is new": (WEIGHING, True),
}


def records(chance, n):
    """A run of `n` candidates, each graded once in tenths; two in three come from an earlier one."""
    for i in range(n):
        parent = chance.randrange(i) if i and chance.random() < 2 / 3 else None
        role = "generate" if parent is None else "refine"
        yield Candidate(i, f"answer {i}: " + "word " * chance.randrange(50, 300), parent, "model", role, usage=ONCE)
        yield Feedback(chance.randrange(3, 10) / 10, "too long", ("be brief",), candidate=i, grader="judge", usage=ONCE)


def begun(chance, n):
    """A trace but for its last grade, and that grade."""
    *earlier, last = records(chance, n)
    return Trace(Task("Explain it."), (PanelGrader("judge"),), tuple(earlier)), last


def planned(plan, before, last):
    """Milliseconds of CPU time to plan what follows the last grade. What a run knows from the step before, this one knows too."""
    plan(replace(before, records=before.records[:-1]))
    plan(before)
    trace = before + last
    began = process_time_ns()
    steps = plan(trace)
    took = process_time_ns() - began
    if [step.role for step in steps] == ["stop"]:
        raise SystemExit("a plan stopped: there was nothing to measure")
    return took / 1e6


def measured(given):
    """CPU milliseconds of every way, trace by trace, all ways in turn."""
    chance, took = random.Random(given.seed), {way: [] for way in WAYS}
    for _ in range(given.traces):
        before, last = begun(chance, given.candidates)
        for way, (plan, cold) in WAYS.items():
            plan(before + last)
            if cold:
                TREE_CACHE.clear()
            took[way].append(planned(plan, before, last))
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--traces", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json")
    given = parser.parse_args()
    gc.disable()
    took = measured(given)
    gc.enable()
    figures = {way: {"median_ms": median(ms), "p90_ms": quantiles(ms, n=10)[-1]} for way, ms in took.items()}
    print(f"planning one step at {given.candidates} candidates, {given.traces} traces; goal: {GOAL:g} ms\n")
    rows = [
        [way, f"{f['median_ms']:.3f}", f"{f['p90_ms']:.3f}", "met" if f["p90_ms"] < GOAL else "missed"]
        for way, f in figures.items()
    ]
    table(["", "CPU ms, median", "p90", "goal"], rows)
    write(given.json, {"candidates": given.candidates, "traces": given.traces, "ways": figures})


if __name__ == "__main__":
    main()
