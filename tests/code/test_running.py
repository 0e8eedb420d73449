"""Reports of programs that are right, wrong, slow, or end early, by each kind of tests."""

import ast
import asyncio
import builtins
import os
import signal
import time
from importlib import import_module

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from descriptors import open_files
from redraft.answers.python_program import complete_program
from redraft.errors import ConfigError
from redraft.sandbox import Limits, Sandbox
from redraft.sandbox.code import arun_tests, parse_tests, run_tests
from redraft.sandbox.code.loader import load
from redraft.sandbox.code.session import IMPORTED, runner_settings
from require import require_sandbox

pytestmark = pytest.mark.usefixtures("sandbox")
LIMITS = Limits(cpu_seconds=2, wall_seconds=60)


def outcomes(code, tests, entry_point="f", **options):
    report = run_tests(code, parse_tests(tests, entry_point), limits=LIMITS, **options)
    return [(result.ok, result.got, result.error) for result in report.results]


ROWS = [{"input": [n], "output": n + 1} for n in range(4)]


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            "def f(n): return n + 1",
            [(True, "1", ""), (True, "2", ""), (True, "3", ""), (True, "4", "")],
        ),
        (
            "f = lambda n: n + 1",
            [(True, "1", ""), (True, "2", ""), (True, "3", ""), (True, "4", "")],
        ),
        (
            "async def f(n): return n + 1",
            [(True, "1", ""), (True, "2", ""), (True, "3", ""), (True, "4", "")],
        ),
        (
            "class Solution:\n    def f(self, n):\n        return 1 if n == 0 else 10 // (n - 2)",
            [
                (True, "1", ""),
                (False, "-10", ""),
                (False, None, "ZeroDivisionError: integer division or modulo by zero"),
                (False, "10", ""),
            ],
        ),
        (
            "import os\ndef f(n):\n    if n == 1: os._exit(0)\n    return n + 1",
            [
                (True, "1", ""),
                (False, None, "the process exited by itself (exit code 0) before it answered"),
                (True, "3", ""),
                (True, "4", ""),
            ],
        ),
        (
            "def f(n):\n    while n == 1: pass\n    return n + 1",
            [
                (True, "1", ""),
                (False, None, "out of time: more than 2 seconds of CPU time"),
                (True, "3", ""),
                (True, "4", ""),
            ],
        ),
        (
            "def f(n):\n    if n == 2: return object()\n    return n + 1",
            [
                (True, "1", ""),
                (True, "2", ""),
                (
                    False,
                    None,
                    "the value cannot be compared: an object of the class 'object' cannot be passed by value",
                ),
                (True, "4", ""),
            ],
        ),
        (
            "from decimal import Decimal\ndef f(n): return Decimal('sNaN') if n == 3 else n + 1",
            [
                (True, "1", ""),
                (True, "2", ""),
                (True, "3", ""),
                (False, "Decimal('sNaN')", "the value cannot be compared: InvalidOperation"),
            ],
        ),
        (
            "import nothing\ndef f(n): return n + 1",
            [(False, None, "ModuleNotFoundError: No module named 'nothing'")] * 4,
        ),
        ("def g(n): return n + 1", [(False, None, "NameError: name 'f' is not defined")] * 4),
    ],
    ids=[
        "function",
        "lambda",
        "coroutine",
        "method",
        "exit",
        "loop",
        "object",
        "signalling nan",
        "import",
        "name",
    ],
)
def test_each_call_counts_by_itself(code, expected):
    """A call that fails, in whatever way, fails alone; what fails before any call fails all."""
    assert outcomes(code, ROWS) == expected


@pytest.mark.slow
def test_after_two_processes_out_of_time_the_other_tests_do_not_run():
    """A program that loops is stopped twice, not once for each test."""
    started = time.monotonic()
    found = outcomes("def f(n):\n    while True: pass", ROWS * 10)
    assert time.monotonic() - started < 30
    assert [error for _, _, error in found[2:]] == [
        "not run: the tests before it used up the time"
    ] * 38


def test_the_traceback_is_that_of_the_program():
    """Only lines of the program are shown, from its source, the innermost last."""
    code = "def g(n):\n    return 1 / n\n\ndef f(n):\n    return g(n)  # calls g"
    report = run_tests(code, parse_tests(ROWS[:1], "f"))
    assert report.results[0].traceback.splitlines() == [
        "line 5, in f: return g(n)  # calls g",
        "line 2, in g: return 1 / n",
    ]


def test_hidden_tests_are_reported_and_never_count():
    """The score is that of the visible tests, whatever the hidden ones give."""
    tests = [
        {**ROWS[0], "weight": 3},
        ROWS[1],
        {**ROWS[2], "hidden": True},
        {**ROWS[3], "hidden": True},
    ]
    report = run_tests("def f(n): return {0: 1, 2: 3}.get(n)", parse_tests(tests, "f"))
    assert (report.score, report.passed, len(report.results)) == (0.75, 1, 2)
    assert (report.hidden_passed, report.hidden_total) == (1, 2)
    only_hidden = run_tests("def f(n): return n + 1", parse_tests({"hidden": ROWS}, "f"))
    assert (only_hidden.score, only_hidden.hidden_passed) == (None, 4)


@settings(max_examples=8)
@given(
    st.lists(
        st.tuples(st.booleans(), st.floats(0.001, 1000), st.booleans()), min_size=1, max_size=6
    )
)
def test_the_score_is_the_share_by_weight(rows):
    """From 0 to 1, and 1 only if every visible test passes."""
    tests = [
        {"input": [n], "output": ok, "weight": weight, "hidden": hidden}
        for n, (ok, weight, hidden) in enumerate(rows)
    ]
    report = run_tests("def f(n): return True", parse_tests(tests, "f"))
    visible = [(ok, weight) for ok, weight, hidden in rows if not hidden]
    if not visible:
        assert report.score is None
    else:
        share = sum(weight for ok, weight in visible if ok) / sum(weight for _, weight in visible)
        assert report.score == pytest.approx(share)
        assert (report.score == 1) == all(ok for ok, _ in visible)


def test_a_checker_judges_values_and_outputs():
    """A comparison of the author's gets built-in values; only True passes."""
    tests = [{"input": [12], "output": None}]
    factors = lambda args, _, got: isinstance(got, list) and got[0] * got[1] == args[0]
    assert outcomes("def f(n): return (3, 4)", tests, checker=factors) == [(False, "(3, 4)", "")]
    assert outcomes("def f(n): return [3, 4]", tests, checker=factors) == [(True, "[3, 4]", "")]
    assert outcomes("def f(n): return None", tests, checker=lambda args, _, got: len(got)) == [
        (False, "None", "the checker raised TypeError")
    ]
    runs = [{"stdin": "5", "stdout": ""}]
    assert outcomes("print(7)", runs, checker=lambda stdin, _, out: int(out) > int(stdin)) == [
        (True, "'7\\n'", "")
    ]
    assert outcomes("print(7)", runs, checker=lambda *_: "yes") == [(False, "'7\\n'", "")]


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    ("code", "ok", "error"),
    [
        ("print(sum(map(int, input().split())))", True, ""),
        (
            "import sys\nprint(sum(int(w) for line in sys.stdin for w in line.split()))\nsys.exit()",
            True,
            "",
        ),
        ("print(sum(map(int, open(0).read().split())))\nexit(0)", True, ""),
        (
            "import os\nos.write(1, b'%d' % sum(map(int, os.read(0, 99).split())))\nos._exit(0)",
            True,
            "",
        ),
        ("def main():\n    print(3)\nif __name__ == '__main__':\n    main()", True, ""),
        ("print(3)\nraise SystemExit(1)", False, "SystemExit: 1"),
        ("print(3)\n1 / 0", False, "ZeroDivisionError: division by zero"),
        (
            "print(3)\nimport os\nos._exit(1)",
            False,
            "the process exited by itself (exit code 1) before it answered",
        ),
        ("print(3)\ninput(); input()", False, "EOFError: EOF when reading a line"),
        ("print(3)\nwhile True: pass", False, "out of time: more than 2 seconds of CPU time"),
        ("print(3)\nwhile True: print(' ' * 10 ** 6)", False, "it printed too much"),
        ("import sys\nprint(3, file=sys.stderr)", False, ""),
        ("print(4)", False, ""),
        ("print(3", False, "SyntaxError: '(' was never closed (<solution>, line 1)"),
    ],
)
def test_programs_with_input_and_output(code, ok, error):
    """A program reads its input in any way, may end itself with exit code 0, and must print what is
    expected.
    """
    [(passed, _, found)] = outcomes(code, [{"stdin": "1 2\n", "stdout": "3\n"}])
    assert (passed, found) == (ok, error)


def test_long_inputs_and_outputs_pass_whole():
    """More than a pipe holds goes in and comes out."""
    text = "x" * 500_000
    assert outcomes("print(input())", [{"stdin": text, "stdout": text, "compare": "exact"}])[0][0]


CHECK = """
import random

def helper(v):
    return v * 2

def check(candidate):
    random.seed(0)
    for _ in range(3):
        n = random.randrange(100)
        assert candidate(n) == helper(n)
    found = candidate([3, 1])
    assert found == [3, 1, 3, 1], "a list"
    values = [2, 1]
    candidate(values, sort=True)
    assert values == [1, 2]
    try:
        candidate(None)
        assert False, "it must refuse None"
    except TypeError:
        pass
    assert list(candidate("generate")) == [0, 1]
"""
DOUBLE = """
def f(v, sort=False):
    if sort:
        v.sort()
        return
    if v == "generate":
        return (n for n in range(2))
    return v * 2
"""


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    ("code", "passed"),
    [
        (DOUBLE, [1, 1, 1, 1, 1]),
        (DOUBLE.replace("v.sort()", "v = sorted(v)"), [1, 1, 0, 1, 1]),
        (DOUBLE.replace("return v * 2", "return v * 2 if v else 0"), [1, 1, 1, 0, 1]),
        (DOUBLE.replace("(n for n in range(2))", "range(3)"), [1, 1, 1, 1, 0]),
        ("def f(v, sort=False): return 0", [0, 0, 0, 0, 0]),
    ],
)
def test_test_code_sees_the_program_by_value(code, passed):
    """Helpers, loops, changed arguments, exceptions and generators work across the border; each
    statement counts.
    """
    assert [ok for ok, _, _ in outcomes(code, CHECK)] == list(map(bool, passed))


STACK_TESTS = """
import pytest
from solution import EmptyError, clear, pop, push, size

@pytest.fixture
def full():
    clear()
    push([1])
    yield [1]
    clear()

@pytest.mark.parametrize("value", [1, "a", None])
def test_push_and_pop(full, value):
    push(value)
    assert size() == 2
    assert pop() == value

class TestErrors:
    def test_empty(self):
        with pytest.raises(EmptyError, match="nothing"):
            pop()

    def test_size(self):
        assert size() == pytest.approx(0.0)
"""
STACK = """
values = []
class EmptyError(Exception):
    pass
def push(value):
    values.append(value)
def pop():
    if not values:
        raise EmptyError("nothing to pop")
    return values.pop()
def size():
    return len(values)
def clear():
    values.clear()
"""


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
def test_a_file_for_pytest_runs_apart_from_the_program(tier):
    """Fixtures, parameters, test classes, and expected exceptions of the program.

    In a sandbox that lets nothing be written, pytest gets the file from memory.
    """
    chosen = require_sandbox(tier)
    tests = parse_tests(STACK_TESTS)
    names = [f"test_push_and_pop[{value}]" for value in (1, "a", None)] + [
        "TestErrors::test_empty",
        "TestErrors::test_size",
    ]
    right = run_tests(STACK, tests, sandbox=chosen)
    assert (right.method, right.score, [result.call for result in right.results]) == (
        "driver",
        1.0,
        names,
    )
    wrong = run_tests(
        STACK.replace("values.pop()", "values.pop(0)").replace('EmptyError("', 'KeyError("'),
        tests,
        sandbox=chosen,
    )
    assert [result.ok for result in wrong.results] == [False, False, False, False, True]


ENDLESS = """
class TestAll:
    def test_a(self):
        assert f(1) == 1
    def test_b(self):
        assert sum(range(f(2))) == 1
    def test_c(self):
        assert f(3) == 3
"""
SKIPPING = """
import unittest
class T(unittest.TestCase):
    def test_a(self):
        self.assertEqual(f(1), 1)
    def test_b(self):
        if f(0) is None:
            self.skipTest("not implemented")
        self.assertEqual(f(0), 2)
    @unittest.skip("always")
    def test_c(self):
        self.fail()
class WithSetUp(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        f(-1)
    def test_d(self):
        self.assertTrue(True)
"""
HELPER = """
def same(got, expected):
    assert got == expected
def check(candidate):
    same(candidate(1), 1)
    for n in candidate([]) or []:
        assert n == 1
    candidate(-1)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tests", "code", "passed"),
    [
        (ENDLESS, "def f(n): return n if n == 1 else 10 ** 12", [True, False, False]),
        (SKIPPING, "def f(n): return n or None", [True, False, True]),
        (SKIPPING, "def f(n): return 1 if n == 1 else 2 if n == 0 else 1 / 0", [True, True, False]),
        (HELPER, "def f(n): return n", [True, False]),
        (HELPER, "def f(n): return [1] if n == [] else 1 / (n + 1)", [False, True, False]),
        (HELPER, "def f(n): return [1] if n == [] else 1 // (n + 1) or n", [True, True, False]),
        (HELPER, "def f(n): return [1] if n == [] else n", [True, True]),
    ],
)
def test_no_test_disappears(tests, code, passed):
    """What the program makes the test code skip, leave out or never reach counts as failed; what
    its author skips does not.
    """
    assert [ok for ok, _, _ in outcomes(code, tests)] == passed


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    ("tests", "problem"),
    [
        ("limit = 1 / 0\nassert f(1) == sorted([limit])", "ZeroDivisionError"),
        ("x = [1]\nassert x == [1]", "they do not call the program"),
        (
            "import nothing_of_that_name.inner as n\nimport json.nothing\nassert sorted(f(1)) == [1]",
            "ModuleNotFoundError",
        ),
    ],
)
def test_tests_that_fail_by_themselves_give_no_score(tests, problem):
    """What says nothing about the program is unknown, not wrong."""
    report = run_tests("def f(n): return [n]", parse_tests(tests))
    assert report.score is None
    assert problem in report.problem


def test_a_forked_copy_runs_tests_of_its_own():
    """A copy of a process that has run tests has none of its threads, and starts new ones."""
    tests = parse_tests(ROWS, "f")

    async def run_on_all_threads():
        return await asyncio.gather(
            *[arun_tests("def f(n): return n + 1", tests) for _ in range(os.cpu_count() or 1)]
        )

    asyncio.run(run_on_all_threads())
    pid = os.fork()
    if pid == 0:
        signal.alarm(120)
        os._exit(0 if all(report.ok for report in asyncio.run(run_on_all_threads())) else 1)
    assert os.waitpid(pid, 0)[1] == 0


async def test_cancelling_kills_the_program():
    """A cancelled call does not wait for the program's limits."""
    tests = parse_tests(ROWS, "f")
    task = asyncio.create_task(
        arun_tests("import time\ndef f(n): time.sleep(60)", tests, limits=Limits(wall_seconds=60))
    )
    await asyncio.sleep(0.5)
    task.cancel()
    started = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await task
    report = await asyncio.wait_for(arun_tests("def f(n): return n + 1", tests), 20)
    assert report.ok
    assert time.monotonic() - started < 20


PREFIX = 'from typing import List\n\ndef helper(n):\n    return n + 1\n\ndef f(n: int) -> List[int]:\n    """Return it."""\n'


@pytest.mark.parametrize(
    ("code", "prefix", "works"),
    [
        ("    m = helper(n)\n    return [m]", PREFIX, True),
        ("m = helper(n)\n    return [m]", PREFIX, True),
        ("m = helper(n)\nreturn [m]", PREFIX, True),
        ("    return other(n)\n\ndef other(n):\n    return [helper(n)]", PREFIX, True),
        ("def f(n: int) -> List[int]:\n    return [helper(n)]", PREFIX, True),
        ("def f(n):\n    return [n + 1]", "Write a function.", True),
        ("def f(n):\n    return [n + 1]", "", True),
        ("    return [helper(n)]", "Write a function.", False),
        ("def g(n):\n    return [helper(n)]", PREFIX, False),
    ],
)
def test_completions(code, prefix, works):
    """A body continues the function that the task begins, and a whole function may use what the
    task defines before it.
    """
    program = complete_program(code, prefix, "f")
    assert run_tests(program, parse_tests([{"input": [1], "output": [2]}], "f")).ok is works


def test_packages_are_named():
    """A program imports the standard library, and what the task's author names."""
    code = "import rapidfuzz\ndef f(n): return n"
    tests = parse_tests([{"input": [1], "output": 1}], "f")
    assert not run_tests(code, tests).ok
    assert run_tests(code, tests, sandbox=Sandbox(packages=["rapidfuzz"])).ok
    with pytest.raises(ConfigError, match="no_such_package"):
        Sandbox(packages=["no_such_package"])


def test_an_interpreter_of_another_version_gets_the_source():
    """Compiled modules are of one version of Python; the same modules come as source, too."""
    packed = runner_settings("candidate")["modules"]["values"]
    loaded = [
        load("values_of_the_test", each)
        for each in (packed, {**packed, "magic": "00"}, {**packed, "code": "", "magic": "00"})
    ]
    assert [module.decode(module.encode((1, {2}))) for module in loaded] == [(1, {2})] * 3


@pytest.mark.parametrize("main", IMPORTED)
def test_what_a_module_in_a_sandbox_imports_goes_with_it(main):
    """Each module that is sent imports, of this package, only modules that are sent before it."""
    sent = list(runner_settings(main)["modules"].items())
    for n, (_, packed) in enumerate(sent):
        imported = {
            node.module
            for node in ast.walk(ast.parse(packed["source"]))
            if isinstance(node, ast.ImportFrom) and node.level
        }
        assert imported <= {name for name, _ in sent[:n]}


def test_modules_of_a_sandbox_change_nothing_where_they_are_imported():
    """Editors and type checkers import the runners as any other module."""
    before = callable
    import_module("redraft.sandbox.code.driver_runner")
    assert builtins.callable is before


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no /proc")
async def test_cancelling_at_any_time_leaves_nothing_open():
    """A call may be cancelled while its process starts; its descriptors are closed, too."""
    tests = parse_tests([{"input": [1], "output": 1}], "f")
    assert (await arun_tests("def f(x): return x", tests)).score == 1
    before = open_files()
    for delay in range(20):
        task = asyncio.create_task(arun_tests("import time\ntime.sleep(20)", tests))
        await asyncio.sleep(delay / 400)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    deadline = time.monotonic() + 60
    while (left := open_files() - before) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert left == set()


@pytest.mark.parametrize(
    ("code", "score", "error"),
    [
        ("add = lambda a, b: a + b", 1, ""),
        (
            "def add(a, b):\n    return _sum([a, b])\n\ndef _sum(items):\n    return sum(items)",
            1,
            "",
        ),
        (
            "class Solution:\n    def __init__(self): pass\n    def add(self, a, b):\n        return a + b",
            1,
            "",
        ),
        (
            "class Solution:\n    def f(self): pass\n    def g(self): pass",
            0,
            "there is no function to call",
        ),
        ("x = 3", 0, "there is no function to call"),
        ("def add(a, b)\n    return a + b", 0, "SyntaxError: expected ':'"),
        ("I cannot do that.", 0, "SyntaxError: invalid syntax"),
        ("x = 1 / 0", 0, "ZeroDivisionError"),
    ],
)
def test_calls_that_name_no_function(code, score, error):
    """The function is found in the program; if there is none, an error of the program is named
    first.
    """
    report = run_tests(code, parse_tests([{"input": [1, 2], "output": 3}]))
    assert report.score == score and report.results[0].error.startswith(error)
