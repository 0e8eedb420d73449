"""What the program defines and test code touches: what is a value is judged as in one process; what
needs an object of the program has no score, and says why.
"""

import sys
from types import ModuleType

import pytest

from redraft.sandbox import Limits
from redraft.sandbox.code import parse_tests, run_tests

PROGRAM = """
import collections, contextlib, enum, functools, math
LIMIT = 5
NAME = "abc"
RATE = 0.5
NAMES = ["a", "b"]
TABLE = {"a": 1}
KINDS = {1, 2}
NOTHING = None
SEEN = []
def see(x): SEEN.append(x)
class Color(enum.Enum):
    RED = 1
class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2
class Point:
    ORIGIN = 0
    KEYS = {"x": 1}
    def __init__(self, x, y=0): self.x, self.y = x, y
    def __eq__(self, o): return isinstance(o, Point) and (self.x, self.y) == (o.x, o.y)
    def __hash__(self): return hash((self.x, self.y))
    def __len__(self): return 2
    def __iter__(self): return iter((self.x, self.y))
    def __add__(self, o): return Point(self.x + o.x, self.y + o.y)
    def __repr__(self): return f"Point({self.x}, {self.y})"
    @staticmethod
    def double(n): return 2 * n
    @classmethod
    def dimensions(cls): return len(cls.__init__.__code__.co_varnames) - 1
Pair = collections.namedtuple("Pair", "x y")
class Stack(list):
    def peek(self): return self[-1]
class MyError(Exception):
    def __init__(self, message, code=0):
        super().__init__(message)
        self.code = code
class BaseErr(ValueError): pass
class DerivedErr(BaseErr): pass
def fail(x): raise MyError("bad", 7)
def derive(x): raise DerivedErr("bad")
def key(x): return {}[x]
def open_file(name): raise FileNotFoundError(2, "No such file", name)
def gen(n):
    for i in range(n): yield i
class Cents(int):
    def __eq__(self, o): return True
    __hash__ = int.__hash__
def cents(n): return Cents(n)
def twice(f):
    @functools.wraps(f)
    def g(*a): return 2 * f(*a)
    return g
@twice
def deco(x): return x
deco.calls = 0
def origin(): return Point(0, 0)
def width(p): return p.x
def level(): return Level.LOW
def count(text): return collections.Counter(text)
def adder(n): return lambda m: n + m
@contextlib.contextmanager
def opened(): yield 3
class Solution:
    def __init__(self): self.total, self.seen = 0, []
    def add(self, n):
        self.total += n
        self.seen.append(n)
        return self.total
def same(items): return items
"""
TRUE = [
    "LIMIT == 5",
    "LIMIT + 1 == 6",
    "LIMIT != 4",
    "range(LIMIT) == range(5)",
    "isinstance(LIMIT, int)",
    'NAME == "abc"',
    'NAME.upper() == "ABC"',
    "RATE == 0.5",
    'NAMES == ["a", "b"]',
    '"a" in NAMES and len(NAMES) == 2',
    'TABLE["a"] == 1',
    "KINDS == {1, 2}",
    "NOTHING is None",
    "see(1) is None and SEEN == [1]",
    "Level.LOW == 1",
    "Level.LOW < Level.HIGH",
    "level() == 1",
    "Point.double(4) == 8",
    "Point.dimensions() == 2",
    "Point.ORIGIN == 0",
    'Point.KEYS["x"] == 1',
    "Pair(1, 2) == (1, 2)",
    "Pair(1, 2).x == 1",
    'Pair(1, 2)._asdict() == {"x": 1, "y": 2}',
    "Pair(1, 2) == Pair(1, 2)",
    "Pair(1, 2)[0] == 1 and len(Pair(1, 2)) == 2",
    "isinstance(Pair(1, 2), tuple)",
    "str(Pair(1, 2)) == 'Pair(x=1, y=2)'",
    "list(gen(3)) == [0, 1, 2]",
    "next(gen(3)) == 0",
    "deco(3) == 6",
    "deco.calls == 0",
    "cents(3) == 3",
    "count('aab') == {'a': 2, 'b': 1}",
    "math.floor(1.5) == 1",
    "callable(origin)",
    "(s := Solution()).add(1) == 1 and s.add(2) == 3 and s.total == 3 and s.seen == [1, 2]",
    "Solution().add(1) == 1",
    "same([Level.LOW]) == [1]",
]
FALSE = [
    "LIMIT == 4",
    "'c' in NAMES",
    "Level.LOW == 2",
    "Point.double(4) == 9",
    "Pair(1, 2).x == 2",
    "Pair(1, 2) == (1, 3)",
    "NOWHERE == 1",
    "(s := Solution()).add(1) == 1 and s.add(2) == 2",
]
NO_VALUES = [  # an object where a value is asked for
    "origin() == 0",
    "origin() in [0, 1]",
    "len(origin()) == 3",
    "list(origin()) == [0, 1]",
    "origin() + 1 == 1",
    "3 < origin()",
    "origin().count(0) == 3",
    "origin() is None",
    "abs(origin()) < 1",
    "f'{origin() == 1}' == 'True'",
]
NEEDS = {  # what holds in one process, and what the reason says
    "Point(1) == Point(1)": "make an object of its class 'Point'",
    "Point(3).x == 3": "make an object of its class 'Point'",
    "Stack([1, 2]).peek() == 2": "make an object of its class 'Stack'",
    "Color(1).value == 1": "make an object of its class 'Color'",
    "Color.RED.name == 'RED'": "use name of an object of its class 'Color'",
    "[each.value for each in Color] == [1]": "use Color as a collection",
    "Level.LOW.name == 'LOW'": "object of the class 'Level' as a built-in value",
    "level().name == 'LOW'": "object of the class 'Level' as a built-in value",
    "count('aab').most_common(1) == [('a', 2)]": "object of the class 'Counter' as a built-in value",
    "origin().x == 0": "use x of an object of its class 'Point'",
    "origin() == origin()": "use __eq__ of an object of its class 'Point'",
    "len([origin() + origin()]) == 1": "use __add__ of an object of its class 'Point'",
    "str(origin()) == 'Point(0, 0)'": "use __str__ of an object of its class 'Point'",
    "repr(origin()) == 'Point(0, 0)'": "use __repr__ of an object of its class 'Point'",
    "width(origin()) == 0": "pass an object of the program to it",
    "list(map(int, [adder(1)(2)])) == [3]": "use __call__ of an object of its class 'function'",
    "origin() is not None": "gets an object of its class 'Point'",
    "callable(adder(1))": "gets an object of its class 'function'",
    "deco.__name__ == 'deco'": "reads __name__ of the candidate's deco",
}
NEEDS_LONGER = {
    "an attribute of an exception": (
        "import pytest\ndef test_a():\n    with pytest.raises(MyError) as caught:\n        fail(1)\n    assert caught.value.code == 7",
        "read code of its exception 'MyError'",
    ),
    "a context": (
        "def test_a():\n    with opened() as n:\n        assert n == 3",
        "use __enter__ of an object of its class '_GeneratorContextManager'",
    ),
    "an attribute that is set": (
        "def test_a():\n    s = Solution()\n    s.total = 5\n    assert s.add(1) == 6",
        "set total of an object of its class 'Solution'",
    ),
    "an attribute of a function that is set": (
        "def test_a():\n    deco.calls = 5\n    assert deco(1) == 2",
        "set calls of deco",
    ),
    "in a fixture": (
        "import pytest\n@pytest.fixture\ndef p():\n    return origin()\ndef test_a(p):\n    assert p is p and deco(1) == 2",
        "gets an object of its class 'Point'",
    ),
}
LONGER = {
    "text and arguments of an exception": "try:\n    fail(1)\n    got = None\nexcept MyError as error:\n    got = (str(error), error.args)\nassert got == ('bad', ('bad',))",
    "raises": "import pytest\ndef test_a():\n    with pytest.raises(MyError, match='bad'):\n        fail(1)",
    "raises a base": "import pytest\ndef test_a():\n    for kind in (ValueError, BaseErr, DerivedErr):\n        with pytest.raises(kind):\n            derive(1)",
    "a text of KeyError": "import pytest\ndef test_a():\n    with pytest.raises(KeyError) as caught:\n        key('a')\n    assert str(caught.value) == \"'a'\" and caught.value.args == ('a',)",
    "attributes of a built-in exception": "import pytest\ndef test_a():\n    with pytest.raises(OSError, match='No such file') as caught:\n        open_file('x')\n    assert caught.value.errno == 2 and type(caught.value).__name__ == 'FileNotFoundError'",
    "a constant that is changed": "def test_a():\n    NAMES.append('c')\n    assert NAMES == ['a', 'b', 'c']",
    "an object of Solution in setUp": "import unittest\nclass T(unittest.TestCase):\n    def setUp(self):\n        self.s = Solution()\n    def test_a(self):\n        self.s.add(2)\n        self.assertEqual(self.s.add(1), 3)",
    "a module": "import solution\nassert solution.LIMIT == 5 and solution.deco(1) == 2 and solution.Solution().add(1) == 1",
}


def names_of_program():
    names = {}
    exec(PROGRAM, names)
    return {name: value for name, value in names.items() if not name.startswith("__")}


def holds(assertion):
    """Return whether an assertion holds in one process."""
    try:
        return bool(eval(assertion, names_of_program()))
    except Exception:
        return False


def run(source, sandbox, **options):
    limits = Limits(wall_seconds=250)
    return run_tests(PROGRAM, parse_tests(source), sandbox=sandbox, limits=limits, **options)


def code_of(assertions):
    return "ready = True\n" + "\n".join(f"assert {each}" for each in assertions)


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    ("assertions", "expected"),
    [(TRUE, True), (FALSE, False), (NO_VALUES, False)],
    ids=["true", "false", "no values"],
)
def test_what_is_a_value_is_judged_as_in_one_process(assertions, expected, sandbox):
    """Constants, functions, static methods, named tuples, generators, and methods of
    `Solution()`.
    """
    assert [each for each in assertions if holds(each) is not expected] == []
    report = run(code_of(assertions), sandbox)
    assert report.method == "driver" and len(report.results) == len(assertions), report.problem
    found = [(result.call, result.error) for result in report.results if result.ok is not expected]
    assert found == []


def check_that_it_is_unknown(source, reason, sandbox):
    report = run(source, sandbox)
    assert (report.score, report.results, report.method) == (None, (), "in_process: forgeable")
    assert reason in report.problem and "trust_in_process=True" in report.problem


@pytest.mark.slow(but_each=12)
@pytest.mark.parametrize("assertion", NEEDS)
def test_what_needs_an_object_has_no_score_and_says_why(assertion, sandbox):
    """It holds in one process, and is neither right nor wrong apart from it."""
    assert holds(assertion)
    check_that_it_is_unknown(code_of([assertion]), NEEDS[assertion], sandbox)


@pytest.mark.slow(but_each=5)
@pytest.mark.parametrize("name", NEEDS_LONGER)
def test_longer_tests_that_need_an_object(name, sandbox):
    """Exceptions, contexts, attributes that are set, and fixtures."""
    check_that_it_is_unknown(*NEEDS_LONGER[name], sandbox)


@pytest.mark.slow
def test_beside_the_program_they_are_judged_and_labelled(sandbox):
    """With `trust_in_process`; tests that need values alone run apart even then."""
    report = run(code_of([*NEEDS, "Point(1) == Point(2)"]), sandbox, trust_in_process=True)
    assert report.method == "in_process: forgeable"
    assert [result.ok for result in report.results] == [True] * len(NEEDS) + [False]
    files = [source for source, _ in NEEDS_LONGER.values()]
    for source in (files[0], files[-1]):
        trusted = run(source, sandbox, trust_in_process=True)
        assert (trusted.score, trusted.method) == (1, "in_process: forgeable")
    assert run(code_of(["deco(1) == 2"]), sandbox, trust_in_process=True).method == "driver"


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("name", LONGER)
def test_longer_tests_are_judged_as_in_one_process(name, sandbox, monkeypatch):
    """Exceptions with their texts, arguments and bases, constants that are changed, and
    fixtures.
    """
    source = LONGER[name]
    module = ModuleType("solution")
    vars(module).update(names_of_program())
    monkeypatch.setitem(sys.modules, "solution", module)
    names = {**names_of_program(), "__name__": "tests"}
    exec(source, names)
    if "test_a" in names:
        names["test_a"]()
    if "T" in names:
        names["T"]("test_a").debug()
        test = names["T"]("test_a")
        test.setUp()
        test.test_a()
    report = run(source, sandbox)
    assert (report.method, report.score) == ("driver", 1), report


def test_constants_are_as_after_the_last_call(sandbox):
    """What the test code itself puts into one does not reach the program, so that what comes then
    is unknown.
    """
    code = "SEEN = []\ndef f(x):\n    SEEN.append(x)\n    return len(SEEN)"
    seen = parse_tests(
        "from solution import SEEN, f\ndef test_a():\n    f(5)\n    assert SEEN == [5]"
    )
    assert run_tests(code, seen, sandbox=sandbox).score == 1
    changed = parse_tests(
        "from solution import SEEN, f\ndef test_a():\n    SEEN.clear()\n    SEEN.append(1)\n    assert f(5) == 2"
    )
    report = run_tests(code, changed, sandbox=sandbox)
    assert report.score is None and "they change SEEN of the program" in report.problem


@pytest.mark.parametrize(
    "code",
    ["def f(:", "LIMIT = 4", "raise ValueError", "import os\nos._exit(0)", "", "LIMIT = lambda: 5"],
)
def test_a_constant_that_is_missing_or_wrong_fails(code, sandbox):
    """Also where the test code calls nothing."""
    tests = parse_tests(
        "from solution import LIMIT\ndef test_a():\n    assert LIMIT == 5\n    assert LIMIT + 1 == 6"
    )
    assert run_tests(code, tests, sandbox=sandbox).score == 0


def test_a_name_that_is_missing_fails_where_it_is_used(sandbox):
    """As in one process, the other tests of a file count."""
    tests = (
        "import pytest\ndef test_a():\n    assert f(1) == 1\ndef test_b():\n    assert g(1) == 1"
    )
    report = run_tests("def f(n): return n", parse_tests(tests), sandbox=sandbox)
    assert [(result.ok, result.error) for result in report.results] == [
        (True, ""),
        (False, "NameError: name 'g' is not defined"),
    ]


YES = """
class Account:
    def __init__(self, n): pass
    def balance(self): return {balance}
    def __getattr__(self, name): return self
for name in 'eq lt le gt ge contains bool and or iadd'.split():
    setattr(Account, f'__{{name}}__', lambda *a: True)
for name in 'sub rsub add radd mul mod neg abs float int index round len hash'.split():
    setattr(Account, f'__{{name}}__', lambda *a: 0)
Account.__ne__ = lambda *a: False
def balance(): return Account(5).balance()
"""
EXPECTED = 7_391_846_205


@pytest.mark.parametrize(
    "balance",
    ["self", "Account(1)", "type('Account', (Account, int), {})()", "type('X', (Account,), {})(1)"],
)
@pytest.mark.slow(but_each=4)
def test_no_object_stands_for_a_value(balance, sandbox):
    """It says yes to every operator, and passes nothing."""
    assertions = [
        "{b} == {e}",
        "not {b} != {e}",
        "{e} == {b}",
        "{e} in [{b}]",
        "abs({b} - {e}) < 1e-9",
        "abs({e} - {b}) < 1e-9",
        "{e} <= {b}",
        "{b} + 0 == {e}",
        "{b}.real == {e}",
        "sorted([{b}, {e}]) == [{e}, {e}]",
        "{{{e}: 1}}.get({b}) == 1",
    ]
    lines = [each.format(b="balance()", e=EXPECTED) for each in assertions]
    report = run_tests(YES.format(balance=balance), parse_tests(code_of(lines)), sandbox=sandbox)
    assert (report.score, report.passed, len(report.results)) == (0, 0, len(lines))
    made = code_of([f"Account(5).balance() == {EXPECTED}"])
    assert run_tests(YES.format(balance=balance), parse_tests(made), sandbox=sandbox).score is None
