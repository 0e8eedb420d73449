"""Measure the CPU time of planning one step: the noise-aware plan and the plain one, on the same
traces.

    python bench/planning.py [--candidates 16] [--traces 300] [--seed 1] [--json FILE]

Each trace has `--candidates` graded candidates, drafts and refinements of random parents. The CPU
time is that of choosing the step after the last grade. The judge scores in tenths; `yes or no` and
`saturating` are other judges: one that says 0 or 1, and one that gives a third of the texts the
highest score.
"""

from __future__ import annotations

import argparse
import gc
import random
from dataclasses import replace
from statistics import median, quantiles
from time import process_time_ns

from redraft.loop.records import Candidate, Feedback
from redraft.loop.stopping import max_iterations, patience, target
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.adaptive import Adaptive
from redraft.plans.quality.filtering import FILTER_CACHE
from redraft.plans.quality.tree import TREE_CACHE
from redraft.plans.self_refine import SelfRefine
from redraft.usage import Usage
from tables import table, write

GOAL = 0.3
MAX_ATTEMPTS = 1000  # attempts, so that all choices are open
PLAIN = SelfRefine(target(1.0) | patience(MAX_ATTEMPTS) | max_iterations(MAX_ATTEMPTS))
NOISE_AWARE = Adaptive(PLAIN, min_expected_gain=0.0, max_attempts=MAX_ATTEMPTS)
ONE_CALL = Usage(calls=1)
TENTHS = PanelGrader("judge"), [k / 10 for k in range(3, 10)]
YES_OR_NO = PanelGrader("judge", score_step=1.0), [0.0, 1.0]
SATURATING = PanelGrader("judge"), [*(k / 10 for k in range(4, 10)), 1.0, 1.0, 1.0]
WAYS = {  # plan, whether the shape is new, judge and its scores
    "SelfRefine": (PLAIN, False, TENTHS),
    "Adaptive, a family of this shape seen before": (NOISE_AWARE, False, TENTHS),
    "Adaptive, a shape that is new": (NOISE_AWARE, True, TENTHS),
    "Adaptive, yes or no": (NOISE_AWARE, False, YES_OR_NO),
    "Adaptive, yes or no, a shape that is new": (NOISE_AWARE, True, YES_OR_NO),
    "Adaptive, saturating": (NOISE_AWARE, False, SATURATING),
    "Adaptive, saturating, a shape that is new": (NOISE_AWARE, True, SATURATING),
}


def records(chance, n, scores):
    """Return the records of `n` candidates, each graded once; two in three are refinements of an
    earlier one.
    """
    for i in range(n):
        parent = chance.randrange(i) if i and chance.random() < 2 / 3 else None
        role = "generate" if parent is None else "refine"
        yield Candidate(
            i,
            f"answer {i}: " + "word " * chance.randrange(50, 300),
            parent,
            "model",
            role,
            usage=ONE_CALL,
        )
        yield Feedback(
            chance.choice(scores),
            "too long",
            ("be brief",),
            candidate=i,
            grader="judge",
            usage=ONE_CALL,
        )


def make_trace(chance, n, judge, scores):
    """Return a trace without its last grade, and that grade."""
    *earlier, last = records(chance, n, scores)
    return Trace(Task("Explain it."), (judge,), tuple(earlier)), last


def time_plan(plan, before, last):
    """Return the CPU milliseconds to plan the step after the last grade. Views of the previous step
    are cached.
    """
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
    """Return the CPU milliseconds of each way for every trace. The ways take turns; the traces
    differ only in their scores.
    """
    took = {name: [] for name in WAYS}
    for n in range(given.traces):
        for name, (plan, is_new_shape, judge) in WAYS.items():
            before, last = make_trace(random.Random(f"{given.seed} {n}"), given.candidates, *judge)
            plan(before + last)
            if is_new_shape:
                TREE_CACHE.clear()
                FILTER_CACHE.clear()
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
    figures = {
        name: {"median_ms": median(ms), "p90_ms": quantiles(ms, n=10)[-1]}
        for name, ms in took.items()
    }
    print(
        f"planning one step at {given.candidates} candidates, {given.traces} traces; goal: "
        f"{GOAL:g} ms\n"
    )
    rows = [
        [
            name,
            f"{f['median_ms']:.3f}",
            f"{f['p90_ms']:.3f}",
            "met" if f["median_ms"] <= GOAL else "missed",
        ]
        for name, f in figures.items()
    ]
    table(["", "CPU ms, median", "p90", "goal"], rows)
    write(given.json, {"candidates": given.candidates, "traces": given.traces, "ways": figures})


if __name__ == "__main__":
    main()
