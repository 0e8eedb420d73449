"""The grader `speed`: time beside a reference solution, measured outside of the sandbox."""

import asyncio
import json
import time

import pytest

from redraft import Candidate, Task
from redraft.code import parse_tests
from redraft.code.timing import compare_speed
from redraft.errors import ConfigError
from redraft.graders.registry import grader_from_spec
from redraft.sandbox import Limits, Sandbox

pytestmark = pytest.mark.usefixtures("sandbox")

LOOP = "def total(n):\n    return sum(range(n))\n"
TESTS = [{"input": [n], "output": n * (n - 1) // 2} for n in (100_000, 300_000)]
SLOW = "def total(n):\n    return sum(range(n)) + sum(range(n)) + sum(range(n)) + sum(range(n)) - 3 * sum(range(n))\n"
FORMULA = "def total(n):\n    return n * (n - 1) // 2\n"


async def run_speed(code, reference=LOOP, spec="speed:rounds=3", tests=TESTS, **fields):
    grader = grader_from_spec(spec)
    task = Task("Sum the numbers below n.", reference=reference, tests=json.dumps(tests), **fields)
    grader.check_task(task)
    return await grader.grade(task, Candidate(0, code), None)


@pytest.mark.parametrize(
    ("code", "spec", "lowest", "highest"),
    [
        (LOOP, "speed:rounds=3", 0.5, 1),
        (FORMULA, "speed:rounds=3", 1, 1),
        (FORMULA, "speed:rounds=3,goal=3", 1, 1),
        (LOOP, "speed:rounds=3,goal=2", 0.25, 0.8),
        (f"Like this:\n```python\n{SLOW}```", "speed:rounds=3", 0.05, 0.7),
        (
            "import time\nclock = time.perf_counter\ntime.perf_counter = time.process_time = lambda: 0\n"
            + SLOW,
            "speed",
            0.05,
            0.7,
        ),
    ],
)
@pytest.mark.slow(but_each=2)
async def test_the_score_is_the_ratio_of_times(code, spec, lowest, highest):
    """A program that changes the clock changes its own clock only. The bounds are wide, since other
    tests load the machine.
    """
    feedback = await run_speed(code, spec=spec)
    assert lowest <= feedback.score <= highest, feedback
    assert bool(feedback.actions) is (feedback.score < 1)
    assert feedback.metadata["ratio"] > 0 and feedback.metadata["sandbox"] == Sandbox().tier


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def total(n):\n    return 0\n", "it fails test 1"),
        ("def total(n):\n    return True\n", "it fails test 1"),
        ("def other(n):\n    return 0\n", "name 'total' is not defined"),
        ("", "name 'total' is not defined"),
        ("def total(n:\n", "SyntaxError"),
        ("import os\nos._exit(0)\n", "exited by itself (exit code 0)"),
        (LOOP + "raise SystemExit\n", "SystemExit"),
        ("def total(n):\n    while True:\n        pass\n", "out of time"),
    ],
)
async def test_wrong_code_is_not_fast(code, says):
    """It scores 0, whatever it takes."""
    feedback = await run_speed(
        code, spec="speed:cpu_seconds=0.5", metadata={"entry_point": "total"}
    )
    assert (feedback.score, feedback.done) == (0, False)
    assert (
        feedback.reason.startswith("speed counts for right answers only: ")
        and says in feedback.reason
    )


async def test_a_cache_does_not_help_the_next_round():
    """Each run is a new process, which cannot keep anything."""
    code = "import functools\n@functools.cache\ndef total(n):\n    return sum(range(n)) + 3 * sum(range(n)) - 3 * sum(range(n))\n"
    assert (await run_speed(code)).score < 0.7


async def test_only_visible_tests_are_run():
    """A hidden test decides nothing, not even through its time."""
    hidden = {"input": [7], "output": "wrong", "hidden": True}
    assert (await run_speed(LOOP, tests=[*TESTS, hidden])).score > 0


@pytest.mark.parametrize(
    ("reference", "tests", "says"),
    [
        (
            "def total(n):\n    return 0\n",
            TESTS,
            "the reference solution cannot be timed: it fails test 1",
        ),
        (
            LOOP,
            "def check(candidate):\n    for n in range(3):\n        assert candidate(n) == sum(range(n))\n",
            "no inputs",
        ),
        (LOOP, [{"input": [1], "output": 0, "hidden": True}], "no inputs"),
    ],
)
async def test_without_a_comparison_the_score_is_unknown(reference, tests, says):
    """It is not the fault of the code."""
    if isinstance(tests, str):
        task = Task("q", reference=reference, tests=tests)
        feedback = await grader_from_spec("speed").grade(task, Candidate(0, LOOP), None)
    else:
        feedback = await run_speed(LOOP, reference, tests=tests)
    assert feedback.score is None and says in feedback.reason


@pytest.mark.slow
async def test_programs_with_standard_input():
    """Each input is a run of its own."""
    tests = [{"stdin": str(n), "stdout": str(n * (n - 1) // 2)} for n in (200_000, 400_000)]
    fast, slow = (
        "print(sum(range(int(input()))))",
        "n = int(input())\nprint(sum(sum((i,)) for i in range(n)))",
    )
    fast_score, slow_score = [
        (await run_speed(code, fast, tests=tests)).score for code in (fast, slow)
    ]
    assert 0 < slow_score < 0.6 and slow_score < fast_score
    assert (
        "it fails the test with the input '200000'"
        in (await run_speed("print(1)", fast, tests=tests)).reason
    )
    assert (
        await run_speed(
            f"{fast}\nimport os, sys; sys.stdout.flush(); os._exit(1)", fast, tests=tests
        )
    ).score == 0


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("speed:goal=0", "goal must be a number > 0"),
        ("speed:rounds=0", "rounds must be a whole number from 1 to 100"),
    ],
)
def test_wrong_options_are_named(spec, says):
    """With what is allowed."""
    with pytest.raises(ConfigError, match=says):
        grader_from_spec(spec)


@pytest.mark.parametrize("field", ["reference", "tests"])
async def test_it_needs_a_reference_and_tests(field):
    """The missing field is named."""
    fields = {"reference": LOOP, "tests": json.dumps(TESTS), field: None}
    with pytest.raises(ConfigError, match=field):
        await grader_from_spec("speed").grade(Task("q", **fields), Candidate(0, LOOP), None)


def test_the_cpu_time_of_a_process(tmp_path):
    """It grows while the process computes, not while it waits, and is unknown after its end."""
    runner = tmp_path / "runner.py"
    runner.write_text(
        "def main(settings, channel):\n    while (n := channel.receive()) is not None:\n        channel.send(sum(range(n)))\n"
    )
    with Sandbox().start(runner, None) as process:
        process.request(1)
        before = process.cpu_seconds()
        time.sleep(0.1)
        assert process.cpu_seconds() - before < 0.02
        process.request(5_000_000)
        assert process.cpu_seconds() - before > 0.03
        process.wait()
        assert process.cpu_seconds() is None


async def test_cancelling_ends_the_programs():
    """At once, not when their time is over."""
    endless = "def total(n):\n    while True:\n        pass\n"
    limits = Limits(cpu_seconds=60, wall_seconds=120)
    task = asyncio.create_task(
        compare_speed(endless, endless, parse_tests(TESTS, "total"), limits=limits)
    )
    await asyncio.sleep(0.5)
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < 20
