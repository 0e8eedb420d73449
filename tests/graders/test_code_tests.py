"""The grader `tests`: code is run, and what fails becomes what to change."""

import json

import pytest

import redraft
from redraft import Task
from redraft.errors import ConfigError
from redraft.graders.registry import grader_from_spec
from redraft.loop.records import Candidate
from redraft.sandbox import Sandbox
from redraft.sandbox.graders.code_tests import CodeTests

pytestmark = pytest.mark.usefixtures("sandbox")

ROWS = [
    {"input": [0], "output": 0},
    {"input": [1], "output": 1},
    {"input": [10], "output": 55},
    {"input": [20], "output": 6765, "hidden": True},
]
TESTS = json.dumps({"entry_point": "fib", "tests": ROWS})
RECURSIVE = "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)"


async def grade(answer, tests=TESTS, grader=CodeTests(), prompt="Write fib(n).", **task):
    task = Task(prompt, tests=tests, **task)
    grader.check_task(task)
    return await grader.grade(task, Candidate(0, answer), None)


@pytest.mark.parametrize(
    ("answer", "score", "actions"),
    [
        (f"Here it is:\n\n```python\n{RECURSIVE}\n```\nIt is slow.", 1.0, ()),
        ("def fib(n):\n    return n", 2 / 3, ("fib(10): it returns 10, expected 55",)),
        (
            "def fib(n):\n    return 1 // n",
            1 / 3,
            (
                "fib(0): ZeroDivisionError: integer division or modulo by zero, expected 0 (line 2, in fib: return 1 // n)",
                "fib(10): it returns 0, expected 55",
            ),
        ),
        (
            "I cannot do that.",
            0.0,
            (
                "the program: SyntaxError: invalid syntax (<solution>, line 1) (line 1: I cannot do that.)",
            ),
        ),
        ("", 0.0, ("the program: there is no code",)),
    ],
)
async def test_scores_and_actions(answer, score, actions):
    """The score is the share that passes; the feedback says which call fails, what was expected and
    what came.
    """
    feedback = await grade(answer)
    assert feedback.score == pytest.approx(score)
    assert feedback.actions[: len(actions)] == actions
    assert feedback.done is (None if score == 1 else False)
    assert all("6765" not in action for action in feedback.actions)


STDIO = [{"stdin": "4\n", "stdout": "leap\n"}]
CALLS = [{"input": [3], "output": 6}, {"input": [4], "output": 24}]
WORDING = {
    "printed": ("print('no')", STDIO, ("the input '4\\n': it prints 'no\\n', expected 'leap\\n'",)),
    "no syntax": ("def f(n:\n  return", CALLS, ("the program: SyntaxError: '(' was never closed (<solution>, line 1) (line 1: def f(n:)",)),
    "no function": ("x = 1", CALLS, ("the program: there is no function to call: name it (entry_point)",)),
    "a huge int": ("def f(n): return 10 ** 5000", CALLS[:1], ("f(3): it returns <int of about 5,001 digits>, expected 6",)),
    "a huge int in a list": ("def f(n): return [10 ** 5000]", CALLS[:1], ("f(3): it returns [<int of about 5,001 digits>], expected 6",)),
    "recursion": (
        "def f(n):\n    return n * f(n - 1)",
        CALLS,
        (
            ("f(3): RecursionError: maximum recursion depth exceeded, expected 6 (line 2, in f: return n * f(n - 1));"
            " 1 other test fails in the same way"),
        ),
    ),
    "two errors": (
        "def f(n):\n    if n == 3:\n        raise ValueError(n)\n    raise KeyError(n)",
        CALLS,
        (
            "f(3): ValueError: 3, expected 6 (line 3, in f: raise ValueError(n))",
            "f(4): KeyError: 4, expected 24 (line 4, in f: raise KeyError(n))",
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("code", "tests", "actions"), WORDING.values(), ids=WORDING)
async def test_actions_say_once_what_is_wrong_and_where(code, tests, actions):
    """A program prints and a function returns; an error that several tests show is told once, with
    its line.
    """
    assert (await grade(code, json.dumps(tests))).actions == actions


async def test_the_record_says_how_it_was_measured():
    """The metadata has the method, the tier, the counts, the time and the memory, and never what
    hidden tests hold.
    """
    feedback = await grade(RECURSIVE)
    figures = dict(feedback.metadata)
    assert figures.pop("seconds") > 0
    assert figures.pop("memory_bytes") > 10**6
    assert figures == {
        "method": "calls",
        "sandbox": Sandbox().tier,
        "passed": 3,
        "total": 3,
        "hidden_passed": 1,
        "hidden_total": 1,
    }


async def test_expected_values_can_be_kept_back():
    """With `show_expected=False`, no prompt tells the writer what a test expects."""
    feedback = await grade("def fib(n):\n    return -1", grader=CodeTests(show_expected=False))
    assert feedback.actions == tuple(f"fib({n}): it returns -1" for n in (0, 1, 10))


async def test_many_failures_are_counted_and_not_listed():
    """A prompt holds a few failures, each on one line and short."""
    rows = [{"input": ["x" * 5000, n], "output": n} for n in range(30)]
    feedback = await grade(
        "def fib(a, b):\n    raise ValueError(f'{b}' + 'y\\n' * 9999)",
        json.dumps(rows),
        metadata={"entry_point": "fib"},
    )
    assert len(feedback.actions) == 6
    assert feedback.actions[-1] == "Correct the others that fail, too: 30 tests in all."
    assert all("\n" not in action and len(action) < 1500 for action in feedback.actions)


HUMANEVAL = 'from typing import List\n\ndef fib(n: int) -> List[int]:\n    """Return n."""\n'


@pytest.mark.parametrize("metadata", [{}, {"code_prefix": HUMANEVAL}])
@pytest.mark.parametrize(
    "answer",
    ["    x: List = [n]\n    return x", "```python\ndef fib(n) -> List[int]:\n    return [n]\n```"],
)
async def test_a_completion_continues_the_prompt(metadata, answer):
    """In the manner of HumanEval, the prompt or `code_prefix` begins the program."""
    tests = "def check(candidate):\n    assert candidate(3) == [3]\n\ncheck(fib)"
    prompt = "Complete the function." if metadata else HUMANEVAL
    assert (await grade(answer, tests, prompt=prompt, metadata=metadata)).score == 1


async def test_tests_beside_the_program_need_consent():
    """Without it there is no score, and the reason says what to do."""
    tests = "def test_a():\n    assert isinstance(fib(1), Fib)"
    code = "class Fib(int): pass\ndef fib(n): return Fib(n)"
    refused = await grade(code, tests)
    trusted = await grade(code, tests, CodeTests(trust_in_process=True))
    assert refused.score is None
    assert "trust_in_process=True" in refused.reason
    assert (trusted.score, trusted.metadata["method"]) == (1.0, "in_process: forgeable")


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CodeTests(cpu_seconds=0), "cpu_seconds must be"),
        (lambda: CodeTests(memory_mb="1 GB"), "memory_mb must be a whole number"),
        (lambda: CodeTests(memory_mb=16), "memory_mb must be a whole number"),
        (lambda: CodeTests(trust_in_process="yes"), "trust_in_process must be True or False"),
        (lambda: CodeTests(checker="exact"), "checker must be a function"),
        (lambda: CodeTests(sandbox="jail"), "sandbox must be one of"),
        (lambda: CodeTests(packages=["no_such_package_here"]), "no_such_package_here"),
        (lambda: grader_from_spec("tests:seconds=3"), "'seconds=3' is not an option"),
        (
            lambda: grader_from_spec("tests:checker=foo"),
            "checker cannot be given in a name: use CodeTests",
        ),
        (
            lambda: grader_from_spec("tests:cpu_seconds=3,checker=foo"),
            "checker cannot be given in a name",
        ),
        (
            lambda: grader_from_spec("tests:chekcer=foo"),
            "is not an option; there are: (?!.*checker=)",
        ),
        (lambda: redraft.grade_sync(Task("q", "def f(): pass"), "tests"), "needs.*tests"),
        (
            lambda: redraft.grade_sync(Task("q", "def f(): pass", tests="It must work."), "tests"),
            "neither JSON nor Python",
        ),
    ],
)
def test_invalid_settings_and_tasks(make, message):
    """What cannot be run is said before anything runs, with the argument and its value."""
    with pytest.raises(ConfigError, match=message):
        make()


def test_options_on_the_command_line():
    """The settings are options of the name."""
    grader = grader_from_spec(
        "tests:cpu_seconds=5,memory_mb=128,packages=rapidfuzz,show_expected=false"
    )
    assert (grader.cpu_seconds, grader.memory_mb, grader.packages, grader.show_expected) == (
        5.0,
        128,
        ("rapidfuzz",),
        False,
    )
