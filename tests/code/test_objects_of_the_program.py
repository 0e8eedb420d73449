"""What the program defines and test code touches: each assertion is judged as in one process, or it
is unknown with a reason.
"""

import sys
from types import ModuleType

import pytest

from redraft.code import parse_tests, run_tests
from redraft.sandbox import Limits

PROGRAM = """
import enum, dataclasses, collections, functools
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
    BLUE = 2
class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2
class Point:
    ORIGIN = 0
    KEYS = {"x": 1}
    def __init__(self, x, y=0): self.x, self.y = x, y
    def __eq__(self, o): return isinstance(o, Point) and (self.x, self.y) == (o.x, o.y)
    def __hash__(self): return hash((self.x, self.y))
    def __lt__(self, o): return self.x < o.x
    def __len__(self): return 2
    def __iter__(self): return iter((self.x, self.y))
    def __getitem__(self, n): return (self.x, self.y)[n]
    def __contains__(self, v): return v in (self.x, self.y)
    def __add__(self, o): return Point(self.x + o.x, self.y + o.y)
    def __mul__(self, k): return Point(self.x * k, self.y * k)
    def __rmul__(self, k): return self * k
    def __neg__(self): return Point(-self.x, -self.y)
    def __repr__(self): return f"Point({self.x}, {self.y})"
    @property
    def norm(self): return abs(self.x) + abs(self.y)
    @classmethod
    def of(cls, pair): return cls(*pair)
    @staticmethod
    def double(n): return 2 * n
    def moved(self, n): return Point(self.x + n, self.y)
class Money:
    def __init__(self, n): self.n = n
    def __eq__(self, o): return self.n == (o.n if isinstance(o, Money) else o)
class Plain:
    def __init__(self, n): self.n = n
@dataclasses.dataclass(order=True)
class Data:
    a: int
    b: list = dataclasses.field(default_factory=list)
@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
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
def origin(): return Point(0, 0)
class Node:
    def __init__(self, v, next=None): self.v, self.next = v, next
def chain(n): return Node(n, Node(n + 1))
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
    "Color.RED == Color.RED",
    "Color.RED is Color.RED",
    "Color.RED != Color.BLUE",
    "Color.RED.value == 1",
    'Color.RED.name == "RED"',
    "Color(1) == Color.RED",
    'Color["RED"] is Color.RED',
    '[c.name for c in Color] == ["RED", "BLUE"]',
    "len(Color) == 2",
    "Color.RED in Color",
    "Level.LOW == 1",
    "Level.LOW < Level.HIGH",
    'Level.LOW.name == "LOW"',
    "Point(1) == Point(1)",
    "Point(1) != Point(2)",
    "not (Point(1) == Point(2))",
    "not (Point(1) != Point(1))",
    "Point(1) < Point(2)",
    "Point(2) > Point(1)",
    "sorted([Point(2), Point(1)]) == [Point(1), Point(2)]",
    "len(Point(1)) == 2",
    "list(Point(1)) == [1, 0]",
    "tuple(Point(1)) == (1, 0)",
    "Point(1)[0] == 1",
    "1 in Point(1)",
    "3 not in Point(1)",
    "Point(1) + Point(2) == Point(3)",
    "Point(1) * 3 == Point(3)",
    "3 * Point(1) == Point(3)",
    "(Point(1) + Point(1)) * 3 == Point(6)",
    "-Point(1) == Point(-1)",
    'repr(Point(1)) == "Point(1, 0)"',
    'str(Point(1)) == "Point(1, 0)"',
    'f"{Point(1)}" == "Point(1, 0)"',
    "Point(1, -2).norm == 3",
    "Point.of((1, 2)) == Point(1, 2)",
    "Point.double(4) == 8",
    "Point.ORIGIN == 0",
    'Point.KEYS["x"] == 1',
    "Point(1).moved(2) == Point(3)",
    "Point.moved(Point(1), 2) == Point(3)",
    "origin() == Point(0, 0)",
    "Point(1) in [Point(2), Point(1)]",
    "[Point(1)] == [Point(1)]",
    '{"a": Point(1)} == {"a": Point(1)}',
    "Point(1) in {Point(1)}",
    "len({Point(1), Point(1)}) == 1",
    "{Point(1): 5}[Point(1)] == 5",
    "hash(Point(1)) == hash(Point(1))",
    "Money(3) == Money(3)",
    "Plain(1) != Plain(1)",
    "Plain(1) != 1",
    "Plain(1).n == 1",
    "Data(1) == Data(1)",
    "Data(1) != Data(2)",
    "Data(1) < Data(2)",
    "Data(1, [2]).b == [2]",
    'repr(Data(1)) == "Data(a=1, b=[])"',
    "Frozen(1) == Frozen(1) and hash(Frozen(1)) == hash(Frozen(1))",
    "Frozen(1) in {Frozen(1)}",
    "Pair(1, 2) == (1, 2)",
    "Pair(1, 2).x == 1",
    'Pair(1, 2)._asdict() == {"x": 1, "y": 2}',
    "Pair(1, 2) == Pair(1, 2)",
    "Stack([1, 2]).peek() == 2",
    "len(Stack([1, 2])) == 2",
    "list(gen(3)) == [0, 1, 2]",
    "next(gen(3)) == 0",
    "deco(3) == 6",
    'type(Point(1)).__name__ == "Point"',
    "chain(1).next.v == 2",
    "chain(1).next.next is None",
    "chain(1) is not chain(1)",
    "Level.HIGH.value == 2",
    "cents(3) == 3",
    "Pair(1, 2)[0] == 1 and len(Pair(1, 2)) == 2",
    "isinstance(Pair(1, 2), tuple)",
    "str(Pair(1, 2)) == 'Pair(x=1, y=2)'",
]
FALSE = [
    "3 < Point(1)",
    "LIMIT == 4",
    "'c' in NAMES",
    "Color.RED == Color.BLUE",
    "Color.RED is Color.BLUE",
    "Color(2) == Color.RED",
    "Level.LOW == 2",
    "Level.LOW.name == 'HIGH'",
    "Point(1) == Point(2)",
    "Point(1) != Point(1)",
    "Point(2) < Point(1)",
    "len(Point(1)) == 3",
    "list(Point(1)) == [1, 1]",
    "3 in Point(1)",
    "Point(1) + Point(2) == Point(4)",
    "Point(1) * 3 == Point(4)",
    "repr(Point(1)) == 'Point(1, 1)'",
    "Point.of((1, 2)) == Point(2, 1)",
    "Point.double(4) == 9",
    "[Point(1)] == [Point(2)]",
    "Point(3) in {Point(1)}",
    "Plain(1) == Plain(1)",
    "Data(1) == Data(2)",
    "Frozen(2) in {Frozen(1)}",
    "Pair(1, 2).x == 2",
    "Pair(1, 2) == (1, 3)",
    "Stack([1, 2]).peek() == 1",
    "chain(1).next.v == 3",
    "Point(1) is Point(1)",
    "Point(1).nothing == 1",
    "NOWHERE == 1",
]
UNKNOWN = [
    "Point(1) == 1",
    "Point(1) != 1",
    "Money(3) == 3",
    "Money(3) != 4",
    "Stack([1, 2]) == [1, 2]",
    "Cents(3) == 4",
    "Point(1).moved(1) * 2 == Point(4)",
]
LONGER = {
    "attributes of an exception": "try:\n    fail(1)\n    got = None\nexcept MyError as error:\n    got = (str(error), error.code, error.args)\nassert got == ('bad', 7, ('bad',))",
    "raises": "import pytest\ndef test_a():\n    with pytest.raises(MyError, match='bad') as caught:\n        fail(1)\n    assert caught.value.code == 7",
    "raises a base": "import pytest\ndef test_a():\n    for kind in (ValueError, BaseErr, DerivedErr):\n        with pytest.raises(kind):\n            derive(1)",
    "a text of KeyError": "import pytest\ndef test_a():\n    with pytest.raises(KeyError) as caught:\n        key('a')\n    assert str(caught.value) == \"'a'\"",
    "a constant that is changed": "def test_a():\n    NAMES.append('c')\n    assert NAMES == ['a', 'b', 'c']",
    "attributes": "def test_a():\n    p = Point(1)\n    p.x = 5\n    assert p == Point(5)\n    del p.y\n    assert not hasattr(p, 'y')",
    "in place": "def test_a():\n    p = Point(1)\n    p += Point(2)\n    assert p == Point(3)",
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(Point(1), Point(1))\n        self.assertNotEqual(Point(1), Point(2))\n        self.assertIn(Point(1), [Point(1)])",
    "a module": "import solution\nassert solution.LIMIT == 5 and solution.Point(1) == solution.Point(1)",
}


def names_of_program():
    names = {}
    exec(PROGRAM, names)
    return {name: value for name, value in names.items() if not name.startswith("__")}


NAMES = [
    name
    for name in names_of_program()
    if name not in ("enum", "dataclasses", "collections", "functools")
]
IMPORT = f"from solution import {', '.join(NAMES)}\nready = True\n"


def holds(assertion):
    """Return whether an assertion holds in one process."""
    try:
        return bool(eval(assertion, names_of_program()))
    except Exception:
        return False


@pytest.mark.parametrize(
    ("assertions", "expected"), [(TRUE, True), (FALSE, False)], ids=["true", "false"]
)
def test_what_the_program_defines_is_judged_as_in_one_process(assertions, expected, sandbox):
    """Constants, enumerations, classes with special methods, data classes, named tuples, decorators
    and generators.
    """
    assert [each for each in assertions if holds(each) is not expected] == []
    source = IMPORT + "\n".join(f"assert {each}" for each in assertions)
    report = run_tests(
        PROGRAM, parse_tests(source), sandbox=sandbox, limits=Limits(wall_seconds=250)
    )
    assert report.method == "driver" and len(report.results) == len(assertions), report.problem
    assert [
        (result.call, result.error) for result in report.results if result.ok is not expected
    ] == []


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("assertion", UNKNOWN)
def test_no_comparison_of_the_program_says_whether_a_value_is_right(assertion, sandbox):
    """Its class would get the expected value, and decide; that is unknown, whatever it would
    say.
    """
    report = run_tests(PROGRAM, parse_tests(f"{IMPORT}assert {assertion}"), sandbox=sandbox)
    assert report.score is None and "of the program's class" in report.problem


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("name", LONGER)
def test_longer_tests_are_judged_as_in_one_process(name, sandbox, monkeypatch):
    """Exceptions with attributes and bases, attributes that are set, and constants that are
    changed.
    """
    source = LONGER[name] if name == "a module" else f"{IMPORT}{LONGER[name]}"
    module = ModuleType("solution")
    vars(module).update(names_of_program())
    monkeypatch.setitem(sys.modules, "solution", module)
    names = {"__name__": "tests"}
    exec(source, names)
    for test in [names.get("test_a"), names["T"]("test_a").debug if "T" in names else None]:
        if test:
            test()
    report = run_tests(PROGRAM, parse_tests(source), sandbox=sandbox)
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
"""
EXPECTED = 7_391_846_205


@pytest.mark.parametrize(
    "balance",
    ["self", "Account(1)", "type('Account', (Account, int), {})()", "type('X', (Account,), {})(1)"],
)
@pytest.mark.parametrize(
    "assertion",
    [
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
    ],
)
@pytest.mark.slow(but_each=5)
def test_no_object_of_a_class_that_the_tests_name_stands_for_a_value(balance, assertion, sandbox):
    """It says yes to every operator, and passes nothing."""
    lines = assertion.format(b="account.balance()", e=EXPECTED)
    tests = parse_tests(
        f"from solution import Account\naccount = Account(5)\nother = Account(6)\nassert {lines}"
    )
    report = run_tests(YES.format(balance=balance), tests, sandbox=sandbox)
    assert report.score in (0, None) and not report.passed
