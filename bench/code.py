"""Run recorded solutions of programming tasks against their tests, and compare the verdicts with
the recorded ones.

    python bench/code.py FOLDER [--limit N] [--threads N] [--sandbox TIER] [--json FILE]

FOLDER holds tasks.jsonl.gz (task_id, prompt, entry_point, test), solutions.jsonl.gz (task_id,
solution, verdict) and traces.jsonl.gz (task_id, steps with solution and verdict, final_solution,
final_verdict). It states how the tests are run, the share of verdicts that agree, each
disagreement, and the programs per second; then, by the official tests of the programs in
traces.jsonl.gz, how far the reported score is from the share of hidden tests that pass (see
`hidden_tests`). The exit code is 1 if that is more than 0.05 on average.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import hidden_tests
from redraft.answers.python_program import complete_program
from redraft.sandbox import Limits, Sandbox
from redraft.sandbox.code import TestReport, Tests, parse_tests, run_tests
from tables import table, write

GOAL_PER_SECOND = 25.0
LIMITS = Limits(cpu_seconds=5)


@dataclass(frozen=True)
class Recorded:
    """A recorded solution and its verdict: passed, failed or timeout."""

    id: str
    task_id: str
    solution: str
    verdict: str


@dataclass(frozen=True)
class Problem:
    """A programming task."""

    prompt: str
    entry_point: str
    tests: Tests


def read(folder, name):
    with gzip.open(folder / name, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_problems(folder):
    """Return the tasks by ID."""
    rows = read(folder, "tasks.jsonl.gz")
    return {
        row["task_id"]: Problem(
            row["prompt"], row["entry_point"], parse_tests(row["test"], row["entry_point"])
        )
        for row in rows
    }


def read_solutions(folder):
    """Yield all recorded solutions: those of single runs, and of each step and the end of
    refinements.
    """
    for row in read(folder, "solutions.jsonl.gz"):
        yield Recorded(row["id"], row["task_id"], row["solution"], row["verdict"])
    for row in read(folder, "traces.jsonl.gz"):
        for step in row["steps"]:
            yield Recorded(
                f"{row['id']} step {step['step']}",
                row["task_id"],
                step["solution"],
                step["verdict"],
            )
        yield Recorded(
            f"{row['id']} final", row["task_id"], row["final_solution"], row["final_verdict"]
        )


def program_of(recorded, problem):
    return complete_program(recorded.solution or "", problem.prompt, problem.entry_point)


def run_all(recorded, problems, sandbox, threads) -> tuple[list[TestReport], float]:
    """Return the report of each solution, and the seconds that all took."""

    def run(each):
        problem = problems[each.task_id]
        return run_tests(program_of(each, problem), problem.tests, sandbox=sandbox, limits=LIMITS)

    sandbox.tier  # noqa: B018  (probes)
    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        reports = list(pool.map(run, recorded))
    return reports, time.perf_counter() - started


def verdict_of(report):
    """Return passed, failed or unknown."""
    return "unknown" if report.score is None else "passed" if report.ok else "failed"


def disagreements(recorded, reports):
    """Yield what each verdict that differs from the recorded one is, with the first failing
    test.
    """
    for each, report in zip(recorded, reports, strict=True):
        ours, theirs = verdict_of(report), "passed" if each.verdict == "passed" else "failed"
        if ours != theirs:
            first = next(iter(report.failures), None)
            why = (
                f"{first.shown_name}: {first.error or first.got}, expected {first.expected}"
                if first
                else report.problem
            )
            yield {"id": each.id, "recorded": each.verdict, "here": ours, "why": why}


def verdict_rows(figures):
    """Return the rows of the table about verdicts."""
    methods = ", ".join(f"{count} by {kind}" for kind, count in figures["tasks_by_method"].items())
    return [
        ["tasks", f"{figures['tasks']:,}", methods],
        ["programs run", f"{figures['programs']:,}", f"sandbox: {figures['sandbox']}"],
        ["verdicts as recorded", f"{figures['agree']:,}", f"{figures['agreement']:.1%}"],
        [
            "programs per second",
            f"{figures['programs_per_second']:.1f}",
            f"goal {GOAL_PER_SECOND:g} on two cores",
        ],
    ]


def passed_tests(recorded, reports):
    """Return whether each test passes, by task and solution; those without a score are left out."""
    return {
        (each.task_id, each.solution): [result.ok for result in report.results]
        for each, report in zip(recorded, reports, strict=True)
        if report.score is not None
    }


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, help="run only so many solutions")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--sandbox", default="auto")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main():
    given = parse_arguments()
    problems = read_problems(given.folder)
    recorded = list(read_solutions(given.folder))[: given.limit]
    sandbox = Sandbox(given.sandbox)
    reports, seconds = run_all(recorded, problems, sandbox, given.threads)
    differing = list(disagreements(recorded, reports))
    scores = hidden_tests.compare_scores(
        read(given.folder, "traces.jsonl.gz"), passed_tests(recorded, reports)
    )
    figures = {
        "sandbox": sandbox.tier,
        "tasks": len(problems),
        "tasks_by_method": dict(Counter(problem.tests.kind for problem in problems.values())),
        "programs": len(recorded),
        "agree": len(recorded) - len(differing),
        "agreement": (len(recorded) - len(differing)) / len(recorded),
        "seconds": seconds,
        "programs_per_second": len(recorded) / seconds,
        "disagreements": differing,
        "scores": scores,
    }
    table(["", "", ""], verdict_rows(figures))
    for each in differing:
        print(f"{each['id']}: recorded {each['recorded']}, here {each['here']} ({each['why']})")
    met = hidden_tests.report(scores)
    write(given.json, figures)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
