"""Comparing graders on the same labels, and the drift of a judge."""

import random
from math import sqrt
from types import SimpleNamespace

import pytest

import redraft
from redraft.errors import ConfigError, GradingError
from redraft.loop.task import Task
from redraft.usage import Usage
from redraft.validation import (
    GraderComparison,
    LabelledCase,
    compare_graders_sync,
    judge_drift,
    paired_difference,
)
from redraft.validation.cases import Verdict
from redraft.validation.grader_comparison import compare_verdicts


def score_cases(n, rng):
    return [
        LabelledCase(
            str(i), "score", Task(f"Task {i}"), (f"{rng.random():.3f}",), label=rng.random()
        )
        for i in range(n)
    ]


def scored(cases, noise, rng):
    return [Verdict(case.id, (min(1, max(0, case.label + rng.gauss(0, noise))),)) for case in cases]


def test_the_less_noisy_grader_is_better():
    """The concordances are shares of pairs in the same order, and the interval is wholly above
    0.
    """
    rng = random.Random(0)
    cases = score_cases(80, rng)
    first, second = scored(cases, 0.4, rng), scored(cases, 0.05, rng)
    found = compare_verdicts(cases, first, second)
    pairs = [(i, j) for i in range(80) for j in range(i) if cases[i].label != cases[j].label]
    right = sum(
        (cases[i].label > cases[j].label) == (first[i].scores[0] > first[j].scores[0])
        for i, j in pairs
    )
    ties = sum(first[i].scores == first[j].scores for i, j in pairs)
    wrong_ties = sum(
        first[i].scores == first[j].scores and not cases[i].label > cases[j].label for i, j in pairs
    )  # a tie is counted as right above if people prefer the second
    assert found.measure == "concordance"
    assert found.difference.mean_a == pytest.approx((right - wrong_ties + ties / 2) / len(pairs))
    assert found.verdict == "better"
    assert compare_verdicts(cases, second, first).verdict == "worse"


@pytest.mark.slow
def test_equally_good_graders_are_rarely_told_apart():
    """In at most 5 % of 100 worlds, also for concordance, whose pairs are not independent."""
    rng, alarms = random.Random(1), 0
    for _ in range(100):
        cases = score_cases(40, rng)
        alarms += (
            compare_verdicts(cases, scored(cases, 0.3, rng), scored(cases, 0.3, rng)).verdict
            != "undecided"
        )
    assert alarms <= 0.05 * 100 + 3 * sqrt(0.05 * 0.95 * 100)


PAIR = {"kind": "pair", "task": Task("t"), "responses": ("a", "b")}


@pytest.mark.parametrize(
    ("cases", "first", "second", "means"),
    [
        (
            [LabelledCase(str(n), "pass", Task(str(n)), ("x",), label=n % 2) for n in range(4)],
            [Verdict(str(n), passed=True) for n in range(4)],
            [Verdict(str(n), (0.9 * (n % 2),)) for n in range(3)]
            + [Verdict("3", reason="unreadable")],
            (0.5, 0.75),
        ),
        (
            [
                LabelledCase("0", ranks=(0, 1), **PAIR),
                LabelledCase("1", ranks=(0, 0), **PAIR),
                LabelledCase("2", ranks=(1, 0), **PAIR),
            ],
            [Verdict(str(n), ranks=(0, 1)) for n in range(3)],
            [Verdict("0", ranks=(0, 0)), Verdict("1", ranks=(0, 1)), Verdict("2", ranks=(1, 0))],
            (0.5, 0.75),  # people's tie is left out, the grader's tie counts half
        ),
        (
            [LabelledCase("0", "ranking", Task("t"), ("a", "b", "c"), ranks=(0, 1, 2))],
            [Verdict("0", ranks=(2, 1, 0))],
            [Verdict("0", ranks=(0, 1, 2))],
            (-1.0, 1.0),
        ),
    ],
)
def test_agreement_by_kind_of_label(cases, first, second, means):
    """Right answers, preferences and rank correlations are averaged over cases."""
    found = compare_verdicts(cases, first, second).difference
    assert (found.mean_a, found.mean_b) == pytest.approx(means)


@pytest.mark.slow
def test_graders_judge_the_same_cases(tmp_path):
    """From rows and graders to the verdict; both validations are in the result."""
    rng = random.Random(2)
    rows = [
        {"prompt": f"Task {n}", "response": f"{label:.3f}", "label": label}
        for n in range(60)
        if (label := rng.random())
    ]
    noise = random.Random(4)

    def exact(text: str) -> float:
        return float(text)

    def noisy(text: str) -> float:
        return min(1, max(0, float(text) + noise.gauss(0, 0.5)))

    found = compare_graders_sync(rows, noisy, exact, cards_dir=tmp_path)
    assert found.verdict == "better"
    assert found.difference.mean_b == pytest.approx(1, abs=0.002)  # three digits give a few ties
    assert found.second.measures["Spearman"].value == pytest.approx(1, abs=0.002)
    assert redraft.validation.compare_graders.__doc__


def test_the_usage_is_that_of_both_graders():
    """Verdicts without a validation took nothing."""
    difference = paired_difference([0, 1], [1, 1])
    results = [SimpleNamespace(usage=Usage(calls=n)) for n in (2, 3)]
    assert GraderComparison("accuracy", difference, *results).usage.calls == 5
    assert GraderComparison("accuracy", difference).usage.calls == 0


def test_graders_without_a_common_case_are_not_compared():
    """Nothing is known then."""
    cases = score_cases(4, random.Random(0))
    with pytest.raises(GradingError, match="no case was judged by both graders"):
        compare_verdicts(cases, [Verdict("0", (0.5,))], [Verdict("1", (0.5,))])


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.0, "stable"), (0.1, "drifted"), (-0.1, "drifted")]
)
def test_drift_of_a_judge(shift, verdict):
    """A shift beyond the margin is drift; scores that moved within it are stable."""
    rng = random.Random(6)
    before = [rng.random() for _ in range(300)]
    after = [x + shift + rng.gauss(0, 0.05) for x in before]
    found = judge_drift(before, after, before)
    assert found.verdict == verdict
    assert found.shift.value == pytest.approx(shift, abs=0.01)
    assert found.error_change.value > 0
    assert judge_drift(before[:2], [x + 0.05 for x in before[:2]]).verdict == "undecided"
    with pytest.raises(ConfigError, match="labels and before must be equally long, got 1 and 2"):
        judge_drift([0.1, 0.2], [0.1, 0.2], [1])
