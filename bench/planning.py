"""Measure the CPU time of planning one step: the noise-aware plan and the plain one, on the same traces.

    python bench/planning.py [--candidates 16] [--traces 300] [--seed 1] [--json FILE]

Each trace has `--candidates` graded candidates, drafts and refinements of random parents. The CPU time is that of choosing the step
after the last grade; views of the trace before it are cached, as in a run.
"""

from __future__ import annotations

import argparse
import gc
import random
from dataclasses import replace
from statistics import median, quantiles
from time import process_time_ns

from redraft.core.records import Candidate, Feedback
from redraft.core.stopping import max_iterations, patience, target
from redraft.core.task import Task
from redraft.core.trace import PanelGrader, Trace
from redraft.plans.adaptive import Adaptive
from redraft.plans.self_refine import SelfRefine
from redraft.quality.posterior import TREE_CACHE
from redraft.usage import Usage
from tables import table, write

GOAL = 1.0
MAX_ATTEMPTS = 1000  # attempts, so that all choices are open
PLAIN = SelfRefine(target(1.0) | patience(MAX_ATTEMPTS) | max_iterations(MAX_ATTEMPTS))
NOISE_AWARE = Adaptive(PLAIN, min_expected_gain=0.0, max_attempts=MAX_ATTEMPTS)
ONE_CALL = Usage(calls=1)
PLANS = {
    "SelfRefine": (PLAIN, False),
    "Adaptive, a family of this shape seen before": (NOISE_AWARE, False),
    "Adaptive, a shape that is new": (NOISE_AWARE, True),
}


def records(chance, n):
    """Return the records of `n` candidates, each graded once in tenths; two in three are refinements of an earlier one."""
    for i in range(n):
        parent = chance.randrange(i) if i and chance.random() < 2 / 3 else None
        role = "generate" if parent is None else "refine"
        yield Candidate(i, f"answer {i}: " + "word " * chance.randrange(50, 300), parent, "model", role, usage=ONE_CALL)
        yield Feedback(chance.randrange(3, 10) / 10, "too long", ("be brief",), candidate=i, grader="judge", usage=ONE_CALL)


def make_trace(chance, n):
    """Return a trace without its last grade, and that grade."""
    *earlier, last = records(chance, n)
    return Trace(Task("Explain it."), (PanelGrader("judge"),), tuple(earlier)), last


def time_plan(plan, before, last):
    """Return the CPU milliseconds to plan the step after the last grade. Views of the previous step are cached."""
    plan(replace(before, records=before.records[:-1]))
    plan(before)
    trace = before + last
    began = process_time_ns()
    steps = plan(trace)
    took = process_time_ns() - began
    if [step.role for step in steps] == ["stop"]:
        raise SystemExit("a plan stopped: there was nothing to measure")
    return took / 1e6


def measure(given):
    """Return the CPU milliseconds of each plan for every trace. The plans take turns."""
    chance, took = random.Random(given.seed), {name: [] for name in PLANS}
    for _ in range(given.traces):
        before, last = make_trace(chance, given.candidates)
        for name, (plan, is_new_shape) in PLANS.items():
            plan(before + last)
            if is_new_shape:
                TREE_CACHE.clear()
            took[name].append(time_plan(plan, before, last))
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--traces", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json")
    given = parser.parse_args()
    gc.disable()
    took = measure(given)
    gc.enable()
    figures = {name: {"median_ms": median(ms), "p90_ms": quantiles(ms, n=10)[-1]} for name, ms in took.items()}
    print(f"planning one step at {given.candidates} candidates, {given.traces} traces; goal: {GOAL:g} ms\n")
    rows = [
        [name, f"{f['median_ms']:.3f}", f"{f['p90_ms']:.3f}", "met" if f["p90_ms"] < GOAL else "missed"]
        for name, f in figures.items()
    ]
    table(["", "CPU ms, median", "p90", "goal"], rows)
    write(given.json, {"candidates": given.candidates, "traces": given.traces, "ways": figures})


if __name__ == "__main__":
    main()
