"""Async functions and methods of a program, in the usual forms of tests of them."""

import pytest

from redraft.sandbox import Limits
from redraft.sandbox.code import parse_tests, run_tests

pytestmark = pytest.mark.usefixtures("sandbox")
LIMITS = Limits(cpu_seconds=2, wall_seconds=20)

ECHO = """
import asyncio

async def f(n):
    await asyncio.sleep(0)
    return n
"""
NUMBERS = """
async def f(n):
    for i in range(n):
        yield i
"""
SORT = """
async def f(a):
    a.sort()
"""
FAIL = """
async def f(n):
    raise ValueError('bad')
"""
LOGGED = """
log = []
async def f(n):
    log.append(n)
    return n

def seen():
    return log
"""
RIGHT = {
    "cancelled after it has begun": (LOGGED, "import asyncio\nasync def test_a():\n    t = asyncio.ensure_future(f(1))\n    await asyncio.sleep(0)\n    t.cancel()\n    await asyncio.sleep(0)\n    await asyncio.sleep(0)\n    assert seen() == [1]"),
    "a list of asserts": (ECHO, ["assert asyncio.run(f(1)) == 1"]),
    "asyncio.run": (ECHO, ["import asyncio\nassert asyncio.run(f(1)) == 1", "assert asyncio.run(f(2)) == 2"]),
    "await alone": (ECHO, ["assert await f(1) == 1", "assert await f(2) == 2"]),
    "check(candidate)": (ECHO, "import asyncio\ndef check(candidate):\n    assert asyncio.run(candidate(1)) == 1"),
    "async check, which is called": (ECHO, "import asyncio\nasync def check(candidate):\n    assert await candidate(1) == 1\nasyncio.run(check(f))"),
    "async check": (ECHO, "async def check(candidate):\n    assert await candidate(1) == 1\n    assert await candidate(2) == 2"),
    "gather": (ECHO, "import asyncio\nasync def main():\n    return await asyncio.gather(f(1), f(2))\nassert asyncio.run(main()) == [1, 2]"),
    "asserts in a coroutine": (ECHO, "import asyncio\nasync def main():\n    assert await f(1) == 1\n    r = await f(2)\n    assert r == 2\nasyncio.run(main())"),
    "an event loop": (ECHO, "import asyncio\nloop = asyncio.new_event_loop()\nassert loop.run_until_complete(f(1)) == 1"),
    "TaskGroup": (ECHO, "import asyncio\nasync def main():\n    async with asyncio.TaskGroup() as g:\n        t = [g.create_task(f(n)) for n in range(3)]\n    return [x.result() for x in t]\nassert asyncio.run(main()) == [0, 1, 2]"),
    "create_task": (ECHO, "import asyncio\nasync def main():\n    t = asyncio.create_task(f(1))\n    await asyncio.sleep(0)\n    return await t\nassert asyncio.run(main()) == 1"),
    "wait_for": (ECHO, "import asyncio\nasync def main():\n    return await asyncio.wait_for(f(1), timeout=5)\nassert asyncio.run(main()) == 1"),
    "as_completed": (ECHO, "import asyncio\nasync def main():\n    return sorted([await c for c in asyncio.as_completed([f(2), f(1)])])\nassert asyncio.run(main()) == [1, 2]"),
    "IsolatedAsyncioTestCase": (ECHO, "import unittest\nclass T(unittest.IsolatedAsyncioTestCase):\n    async def asyncSetUp(self):\n        self.x = await f(3)\n    async def test_a(self):\n        self.assertEqual(await f(1), 1)\n        self.assertEqual(self.x, 3)"),
    "an async test function": (ECHO, "async def test_f():\n    assert await f(1) == 1"),
    "pytest.mark.asyncio": (ECHO, "import pytest\nfrom solution import f\n@pytest.mark.asyncio\nasync def test_f():\n    assert await f(1) == 1"),
    "pytestmark": (ECHO, "import pytest\npytestmark = pytest.mark.asyncio\n@pytest.mark.parametrize('n', [1, 2])\nasync def test_f(n):\n    assert await f(n) == n"),
    "no mark": (ECHO, "import pytest\nasync def test_f():\n    assert await f(1) == 1"),
    "pytest.mark.anyio": (ECHO, "import pytest\n@pytest.mark.anyio\nasync def test_f(anyio_backend):\n    assert await f(1) == 1"),
    "a class of tests": (ECHO, "import pytest\nclass TestF:\n    @pytest.mark.asyncio\n    async def test_f(self):\n        assert await f(1) == 1"),
    "the fixture event_loop": (ECHO, "import pytest\ndef test_f(event_loop):\n    assert event_loop.run_until_complete(f(1)) == 1"),
    "async fixtures": (ECHO, "import pytest_asyncio, pytest\n@pytest_asyncio.fixture\nasync def one():\n    return await f(1)\n@pytest_asyncio.fixture(loop_scope='function')\nasync def two():\n    yield await f(2)\n@pytest.mark.asyncio\nasync def test_f(one, two):\n    assert (one, two) == (1, 2)"),
    "an async generator": (NUMBERS, "import asyncio\nasync def main():\n    return [x async for x in f(3)]\nassert asyncio.run(main()) == [0, 1, 2]"),
    "an endless loop that is left": (NUMBERS, "import asyncio\nasync def main():\n    out = []\n    async for x in f(10):\n        if x == 3: break\n        out.append(x)\n    assert out == [0, 1, 2]\nasyncio.run(main())"),
    "a generator as a call": (NUMBERS, [{"input": [3], "output": [0, 1, 2]}]),
    "anext": (NUMBERS, "import asyncio\nasync def main():\n    g = f(3)\n    assert await anext(g) == 0\n    assert await g.__anext__() == 1\n    await g.aclose()\nasyncio.run(main())"),
    "an argument that is changed": (SORT, "import asyncio\ndef test_a():\n    a = [2, 1]\n    asyncio.run(f(a))\n    assert a == [1, 2]"),
    "pytest.raises": (FAIL, "import asyncio, pytest\ndef test_a():\n    with pytest.raises(ValueError, match='bad'):\n        asyncio.run(f(1))"),
    "try": (FAIL, "import asyncio\nasync def main():\n    try:\n        await f(1)\n        assert False\n    except ValueError as e:\n        assert str(e) == 'bad'\nasyncio.run(main())"),
    "return_exceptions": (FAIL, "import asyncio\nasync def main():\n    r = await asyncio.gather(f(1), f(2), return_exceptions=True)\n    assert all(isinstance(x, ValueError) for x in r)\nasyncio.run(main())"),
    "a call": (ECHO, [{"input": [1], "output": 1}]),
    "a method of Solution": ("class Solution:\n    async def f(self, n):\n        return n\n", "import asyncio\ndef check(candidate):\n    assert asyncio.run(candidate(1)) == 1\ncheck(Solution().f)"),
}  # fmt: skip
WRONG = {
    "another value": "async def f(n):\n    return 7",
    "no async function": "def f(n):\n    return n",
    "an exception": "async def f(n):\n    raise KeyError",
    "an end": "async def f(n):\n    raise SystemExit(0)",
    "the end of the process": "import os\nasync def f(n):\n    os._exit(0)",
    "the end of a loop": "async def f(n):\n    raise StopAsyncIteration",
    "cancelled": "import asyncio\nasync def f(n):\n    raise asyncio.CancelledError",
    "an object that is equal to all": "class A:\n    def __eq__(s, o): return True\n    __hash__ = None\nasync def f(n): return A()",
    "an awaitable that is equal to all": (
        "class A:\n    def __await__(s): return iter(())\n    def __eq__(s, o): return True\ndef f(n): return A()"
    ),
    "a coroutine of its own": (
        "class A:\n    def send(s, v): raise StopIteration(1)\n    def __await__(s): return s\n    __iter__ = __await__\n"
        "    def __next__(s): raise StopIteration('1')\ndef f(n): return A()"
    ),
    "a loop that has no end": "import asyncio\nasync def f(n):\n    await asyncio.Event().wait()",
}
FORMS = (
    "asyncio.run",
    "asserts in a coroutine",
    "IsolatedAsyncioTestCase",
    "pytest.mark.asyncio",
    "await alone",
    "check(candidate)",
)


@pytest.mark.slow(but_each=36)
@pytest.mark.parametrize("name", RIGHT)
def test_right_programs_pass(name):
    """What is awaited is run where the program is, and its value, its exception or its items come
    back.
    """
    code, tests = RIGHT[name]
    report = run_tests(code, parse_tests(tests), limits=LIMITS)
    assert report.score == 1, (report.problem, report.results)


@pytest.mark.slow(but_each=72)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "a loop that has no end" else name
        for name in WRONG
    ],
)
def test_wrong_programs_fail(name, form):
    """No end, exception or object that comes instead of a value is taken for it."""
    limits = Limits(cpu_seconds=1, wall_seconds=3)
    report = run_tests(WRONG[name], parse_tests(RIGHT[form][1]), limits=limits)
    assert report.score == 0, (report.problem, report.results)
    assert report.passed == 0


def test_what_is_awaited_together_runs_together():
    """Two calls that wait for one another end; each alone would not."""
    code = """
import asyncio
barrier = None
async def f(n):
    global barrier
    barrier = barrier or asyncio.Barrier(2)
    await barrier.wait()
    return n
"""
    tests = "import asyncio\nasync def main():\n    return await asyncio.gather(f(1), f(2))\nassert asyncio.run(main()) == [1, 2]"
    assert run_tests(code, parse_tests(tests), limits=LIMITS).score == 1


WAITING = """
import asyncio
async def f(n):
    await asyncio.sleep(0.1)
    return n
async def both(coroutines):
    return await asyncio.gather(*coroutines)
class Later:
    def __await__(self):
        yield from []
        return 5
def later():
    return Later()
"""


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("import asyncio\nasync def g(): return 1\nassert asyncio.run(f(g())) == [1]", "an object that the program cannot get by value"),
        ("import asyncio\nasync def main():\n    assert await both([f(1), f(2)]) == [1, 2]\nasyncio.run(main())", "by value"),
        ("import asyncio\nasync def main():\n    assert await Later() == 5\nasyncio.run(main())", "make an object of its class 'Later'"),
        ("import asyncio\nasync def main():\n    assert await later() == 5\nasyncio.run(main())", "gets an object of its class 'Later'"),
        ("import asyncio\nasync def main():\n    async with later() as n:\n        assert n == 5\nasyncio.run(main())", "use __aenter__ of an object of its class 'Later'"),
        ("import asyncio\nasync def main():\n    await f(asyncio.Event())\n    assert True\nasyncio.run(main())", "by value"),
        ("import asyncio\ndef test_f():\n    assert asyncio.iscoroutinefunction(f)", "inspects the candidate"),
        (
            ("import asyncio\ndef test_f():\n    try:\n        asyncio.run(asyncio.wait_for(f(1), 0.01))\n        assert False\n"
            "    except TimeoutError:\n        pass"),
            "limit its time",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_known_has_no_score(tests, reason):
    """And the reason says what the tests do that does not reach the program."""
    report = run_tests(WAITING, parse_tests(tests), limits=LIMITS)
    assert report.score is None
    assert reason in report.problem


@pytest.mark.slow
def test_a_task_that_goes_on_while_the_tests_wait():
    """The program's event loop runs only while it is awaited, so such tests pass or say nothing."""
    code = """
import asyncio
count = 0
async def work():
    global count
    while True:
        count += 1
        await asyncio.sleep(0.001)
async def start():
    global task
    task = asyncio.create_task(work())
async def value():
    return count
"""
    tests = "import asyncio\nasync def main():\n    await start()\n    await asyncio.sleep(0.1)\n    assert await value() > {}\nasyncio.run(main())"
    assert run_tests(code, parse_tests(tests.format(-1)), limits=LIMITS).score == 1
    report = run_tests(code, parse_tests(tests.format(5)), limits=LIMITS)
    assert (report.score, "tasks of the program" in report.problem) == (None, True)


def test_the_feedback_names_what_was_awaited():
    """The call, and what it gave."""
    report = run_tests(
        "async def f(n):\n    return 7", parse_tests(RIGHT["asyncio.run"][1]), limits=LIMITS
    )
    assert report.results[0].got.endswith("await returned 7")
