"""How far the reported score of a program is from the share of hidden tests that it passes.

The programs are recorded chains of refinements. The plan of `refine` for graders that compute sees
the visible tests, and returns one program of each chain with a score. Visible are the tests that
the model wrote itself, and hidden the official ones; or visible are some of the official tests,
chosen at random, and hidden the others.

Besides the reported score, which is the share of visible tests that pass, two other estimates of
the hidden share are computed. What they need to know is measured on one half of the tasks and
applied to the other half, and vice versa:

- *beta-binomial*: (passed + a) / (total + a + b), with the a and b of the least squared error;
- *by level*: the mean hidden share of the programs that pass all, some or none of the visible
  tests.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from math import sqrt
from random import Random
from statistics import fmean

from replay import Chain, RecordedText, half, mean, plan_for, replay_result, test_counts
from tables import goal, table

GOAL = 0.05  # largest mean difference between the reported score and the hidden share
SPLITS = 10  # random choices of visible tests, for each chain
OWN = "the model's own tests"
VISIBLE = {
    OWN: None,
    "one official test": lambda count: min(1, count),
    "half of the official tests": lambda count: count // 2,
}
PRIORS = [0.0, *(0.01 * 2**i for i in range(12))]  # values of a and b that are tried


@dataclass(frozen=True)
class GradedProgram(RecordedText):
    """A program that passes `passed` of `total` visible tests.

    `seen` and `truth` are the shares of visible and hidden tests that it passes; `solved` says
    whether it passes all hidden ones.
    """

    passed: int
    total: int
    solved: bool


@dataclass(frozen=True)
class Answer:
    """The program that was returned for a chain about a task, and the score that was reported."""

    topic: str
    program: GradedProgram
    score: float


def graded_program(text, visible, hidden):
    """Return a program with the results of its visible and hidden tests, which are booleans."""
    return GradedProgram(
        text, fmean(visible), fmean(hidden), sum(visible), len(visible), all(hidden)
    )


def own_test_chain(row, results):
    """Return a recorded chain whose visible tests are those that the model wrote."""
    programs = []
    for step in row["steps"]:
        passed, failed = test_counts(step["self_test_feedback"])
        visible = [True] * passed + [False] * failed
        hidden = results[row["task_id"], step["solution"]]
        programs.append(graded_program(step["solution"], visible, hidden))
    return Chain(row["task_id"], row["task_id"], tuple(programs))


def split_chain(row, results, count, seed):
    """Return a recorded chain with `count` of the official tests visible."""
    recorded = [
        (step["solution"], results[row["task_id"], step["solution"]]) for step in row["steps"]
    ]
    order = list(range(len(recorded[0][1])))
    Random(f"{row['id']} {seed}").shuffle(order)
    visible, hidden = order[:count], order[count:]
    programs = [
        graded_program(text, [passed[i] for i in visible], [passed[i] for i in hidden])
        for text, passed in recorded
    ]
    return Chain(row["task_id"], row["task_id"], tuple(programs))


def chains(rows, results, visible_count):
    """Yield the recorded chains whose programs all ran, with visible and hidden tests.

    `visible_count` returns how many of so many official tests are visible; None: the visible tests
    are the model's own.
    """
    for row in rows:
        ran = [results.get((row["task_id"], step["solution"])) for step in row["steps"]]
        if not all(ran):
            continue
        if visible_count is None:
            if all(sum(test_counts(step["self_test_feedback"])) for step in row["steps"]):
                yield own_test_chain(row, results)
        elif 0 < (count := visible_count(len(ran[0]))) < len(ran[0]):
            for seed in range(SPLITS):
                yield split_chain(row, results, count, seed)


def answers(rows, results, visible_count):
    """Return what the plan for graders that compute returns for each chain."""
    ends = [
        (chain, replay_result(chain, plan_for(chain, noise_aware=False)))
        for chain in chains(rows, results, visible_count)
    ]
    return [Answer(chain.topic, end.answer, end.score) for chain, end in ends]


# --- estimates of the hidden share
# ----------------------------------------------------------------------------


def beta_binomial(known):
    """Return the estimate whose prior has the least squared error on known answers."""

    def estimate(program, a, b):
        return (program.passed + a) / (program.total + a + b)

    def error(prior):
        return sum((estimate(each.program, *prior) - each.program.truth) ** 2 for each in known)

    best = min(product(PRIORS, PRIORS), key=error)
    return lambda program: estimate(program, *best)


def by_level(known):
    """Return the estimate that is the mean hidden share of known answers of the same level."""
    truths = defaultdict(list)
    for each in known:
        truths[level(each.program)].append(each.program.truth)
    means = {name: fmean(values) for name, values in truths.items()}
    return lambda program: means.get(level(program), program.seen)


def level(program):
    return {0: "none", program.total: "all"}.get(program.passed, "some")


def estimates(given):
    """Return the estimates of the hidden shares of answers, by the name of the rule."""
    found = {"as reported": [each.score for each in given]}
    for name, measure in (("beta-binomial", beta_binomial), ("by level", by_level)):
        rules = [measure([each for each in given if half(each) != side]) for side in (0, 1)]
        found[name] = [rules[half(each)](each.program) for each in given]
    return found


# --- figures
# ----------------------------------------------------------------------------


def compute_figures(given):
    """Return the figures of each rule; answers for the same task count as dependent."""
    topics = [each.topic for each in given]
    shares = [each.program.truth for each in given]
    verdicts = [float(each.program.solved) for each in given]

    def difference(values, truths):
        return mean([a - b for a, b in zip(values, truths, strict=True)], topics)

    return {
        "tasks": len(set(topics)),
        "hidden share": fmean(shares),
        "solved": fmean(verdicts),
        "levels": {
            name: fmean(each.program.truth for each in given if level(each.program) == name)
            for name in sorted({level(each.program) for each in given})
        },
        "rules": {
            name: {
                "score": fmean(values),
                "- share": difference(values, shares),
                "- solved": difference(values, verdicts),
                "error": sqrt(fmean((a - b) ** 2 for a, b in zip(values, shares, strict=True))),
            }
            for name, values in estimates(given).items()
        },
    }


def compare_scores(rows, results):
    """Return the figures by visible tests and benchmark. `results`: whether each official test
    passes, by task and program.
    """
    figures = {}
    for visible, visible_count in VISIBLE.items():
        given = answers(rows, results, visible_count)
        for benchmark in ("", "HumanEval", "MBPP"):
            some = [each for each in given if not benchmark or benchmark_of(each) == benchmark]
            if len({half(each) for each in some}) == 2:
                figures[", ".join(filter(None, [visible, benchmark]))] = compute_figures(some)
    return figures


def benchmark_of(answer):
    return "HumanEval" if answer.topic.startswith("HumanEval") else "MBPP"


def report(figures):
    """Print the figures and the goals. Return whether the scores are within GOAL of the shares."""
    if not figures:
        return True
    print()
    table(
        ["visible", "tasks", "score", "- hidden share", "- all hidden pass", "error"],
        [line for name, each in figures.items() for line in lines(name, each)],
    )
    met = [report_goals(name, each) for name, each in figures.items() if name in VISIBLE]
    return all(met)


def report_goals(name, figures):
    """Print the goals of all benchmarks together. Return whether that for the share is met."""
    levels = ", ".join(f"{level} {share:.3f}" for level, share in figures["levels"].items())
    print(f"{name}: hidden share by visible tests that pass: {levels}")
    reported, is_within = figures["rules"]["as reported"], {}
    for truth, label in (("- share", "hidden share"), ("- solved", "all hidden pass")):
        is_within[truth] = abs(reported[truth]["mean"]) <= GOAL
        what = f"{name}, score - {label} within {GOAL}"
        goal(what, shown(reported[truth]), met=is_within[truth])
    return is_within["- share"]


def lines(name, figures):
    yield [name, str(figures["tasks"]), "", "", "", ""]
    for rule, each in figures["rules"].items():
        yield [
            f"  {rule}",
            "",
            f"{each['score']:.3f}",
            shown(each["- share"]),
            shown(each["- solved"]),
            f"{each['error']:.3f}",
        ]


def shown(value):
    return f"{value['mean']:+.3f} ±{value['se']:.3f}"
