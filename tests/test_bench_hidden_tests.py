"""Reported scores of programs and their hidden tests, on records small enough to know the result."""

import importlib
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench"
# tasks, and the half that each of them belongs to
HALVES = {
    "HumanEval/4": 0,
    "HumanEval/1": 1,
    "HumanEval/10": 1,
    "mbpp_4": 0,
    "mbpp_11": 0,
    "mbpp_23": 1,
}
TOPICS = list(HALVES)


@pytest.fixture
def bench(monkeypatch):
    """The module, imported from its folder."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("hidden_tests")


def row(topic, *passed):
    """A recorded chain of programs: how many of four generated tests each of them passed."""
    tests = [f"assert f({i}) == {i}" for i in range(4)]
    steps = [
        {
            "solution": f"def f(x): return {i}",
            "self_test_feedback": "\n".join(
                ["Tested passed:", *tests[:good], "Tests failed:", *tests[good:]]
            ),
        }
        for i, good in enumerate(passed)
    ]
    return {"id": f"run|{topic}", "task_id": topic, "steps": steps}


def outcomes(rows, *results):
    """The same results of the official tests for the programs of every row."""
    return {
        (each["task_id"], step["solution"]): result
        for each in rows
        for step, result in zip(each["steps"], results, strict=True)
    }


def test_the_score_of_own_tests_is_compared_with_the_official_ones(bench):
    """A program that passes its own four tests and half of the official ones scores 0.5 too
    high.
    """
    rows = [row(topic, 1, 4) for topic in TOPICS]
    found = bench.compare_scores(rows, outcomes(rows, [True] * 2, [True, False]))[bench.OWN]
    reported = found["rules"]["as reported"]
    assert (found["tasks"], found["hidden share"], found["solved"]) == (6, 0.5, 0.0)
    assert (reported["score"], reported["- share"]["mean"], reported["- solved"]["mean"]) == (
        1.0,
        0.5,
        1.0,
    )
    assert found["levels"] == {"all": 0.5}


def test_rules_are_measured_on_the_other_half_of_the_tasks(bench):
    """With equal halves, the hidden share by level is right for both."""
    rows = [row(topic, 1, 4) for topic in TOPICS]
    found = bench.compare_scores(rows, outcomes(rows, [True] * 2, [True, False]))[bench.OWN]
    assert found["rules"]["by level"]["error"] == 0.0
    assert found["rules"]["beta-binomial"]["error"] < 0.01 < found["rules"]["as reported"]["error"]


def test_a_rule_knows_nothing_of_the_half_that_it_is_applied_to(bench):
    """What is measured where all hidden tests pass is applied where none does."""
    known = {side: bench.graded_program("", [True], [bool(side)]) for side in (0, 1)}
    answers = [bench.Answer(topic, known[side], 1.0) for topic, side in HALVES.items()]
    assert [bench.half(each) for each in answers] == [*HALVES.values()]
    assert bench.estimates(answers)["by level"] == [1.0 - side for side in HALVES.values()]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_visible_and_hidden_tests_are_different_ones(bench, count):
    """Of four official tests, as many as asked are visible and the others hidden."""
    rows = [row("t", 0)]
    program = bench.split_chain(rows[0], outcomes(rows, [True, True, True, False]), count, 1)
    text = program.texts[0]
    assert (text.total, text.passed + text.truth * (4 - count)) == (count, pytest.approx(3))


def test_programs_that_did_not_run_are_left_out(bench):
    """A chain counts only if the official results of all its programs are known."""
    rows = [row(topic, 4, 4) for topic in TOPICS]
    results = outcomes(rows, [True, True], [True, True])
    del results["mbpp_4", "def f(x): return 1"]
    assert bench.compare_scores(rows, results)[bench.OWN]["tasks"] == 5
    assert bench.compare_scores(rows, {}) == {}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(("second", "met"), [([True, True], True), ([False, True], False)])
def test_the_report_says_whether_the_goal_is_met(bench, capsys, second, met):
    """A mean difference to the hidden share of more than 0.05 misses the goal."""
    rows = [row(topic, 0, 4) for topic in TOPICS]
    figures = bench.compare_scores(rows, outcomes(rows, [False, False], second))
    assert bench.report(figures) is met
    own = [line for line in capsys.readouterr().out.splitlines() if f"goal: {bench.OWN}" in line]
    assert [line.endswith("met") for line in own] == [met, met]
