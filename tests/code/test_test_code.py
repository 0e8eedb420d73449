"""Test code apart from the program: what it sees of arguments, objects and arrays is what it would
see in one process.

Each row of a table runs twice where that can be: apart from the program, and in one process by
`exec`. The outcome is the same, or the tests give no score and say why.
"""

import pytest

from redraft.sandbox import Sandbox
from redraft.sandbox.code import parse_tests, run_tests

SORT = "def f(a):\n    a.sort()\n    return a[0]"
ARGUMENTS = {  # a program that changes its argument, and assertions that hold in plain Python
    "alone": (SORT, "a = [3, 1]\nr = f(a)\nassert a == [1, 3]"),
    "the other way round": (SORT, "a = [3, 1]\nf(a)\nassert [1, 3] == a"),
    "beside the result": (SORT, "a = [3, 1]\nr = f(a)\nassert r == 1 and a == [1, 3]"),
    "in a call": (SORT, "a = [3, 1]\nf(a)\nassert tuple(a) == (1, 3)\nassert len(a) == 2"),
    "with a call": (SORT, "a = [3, 1]\nf(a)\nassert a == sorted([3, 1])"),
    "with itself": (SORT, "a = [3, 1]\nf(a)\nassert a == sorted(a)"),
    "by another name": (SORT, "a = [3, 1]\nb = a\nf(a)\nassert b == [1, 3]"),
    "after None": ("def f(a):\n    a.sort()", "a = [3, 1]\nassert f(a) is None\nassert a == [1, 3]"),
    "in a check function": (SORT, "def check(candidate):\n    a = [3, 1]\n    assert candidate(a) == 1\n    assert a == [1, 3]"),
    "by keyword": ("def f(*, a):\n    a.append(5)\n    return 1", "a = []\nf(a=a)\nassert a == [5]"),
    "inside a list": ("def f(a):\n    a[0].append(1)\n    return 1", "b = [3]\na = [b]\nf(a)\nassert b == [3, 1]\nassert a == [[3, 1]]"),
    "inside a tuple": ("def f(a):\n    a[0].append(1)\n    return 1", "b = [3]\nf((b, 2))\nassert b == [3, 1]"),
    "one list twice": ("def f(a):\n    a[0][0] = 1\n    return 1", "m = [[0] * 2] * 2\nf(m)\nassert m == [[1, 0], [1, 0]]"),
    "a dictionary": ("def f(a):\n    a['k'] = a.pop('j')\n    return 1", "a = {'j': 2}\nf(a)\nassert a == {'k': 2}"),
    "a set": ("def f(a):\n    a.add(2)\n    return 1", "a = {1}\nf(a)\nassert a == {1, 2}"),
    "bytes": ("def f(a):\n    a.append(2)\n    return 1", "a = bytearray(b'a')\nf(a)\nassert a == b'a\\x02'"),
    "a deque": ("def f(a):\n    a.appendleft(2)\n    return 1", "import collections\na = collections.deque([1])\nf(a)\nassert list(a) == [2, 1]"),
    "itself": ("def f(a):\n    a.append(a)\n    return 1", "a = []\nf(a)\nassert a[0] is a"),
    "one in the other": ("def f(a, b):\n    b['k'] = a\n    return 1", "a = []\nb = {}\nf(a, b)\nassert b['k'] is a"),
    "the same object": ("def f(a):\n    a.append(1)\n    return a", "a = [3]\nassert f(a) is a"),
    "a copy": ("def f(a):\n    return a + [1]", "a = [3]\nr = f(a)\nassert r is not a\nassert r == [3, 1]\nassert a == [3]"),
    "unchanged and the same": ("def f(a):\n    return a", "a = [3]\nr = f(a)\nassert r == a"),
    "a result that is passed on": ("def f(a=None):\n    if a is None:\n        return []\n    a.append(1)\n    return len(a)", "r = f()\nn = f(r)\nassert r == [1]"),
    "unittest": (
        SORT,
        ("import unittest\nclass T(unittest.TestCase):\n    def setUp(self):\n        self.a = [3, 1]\n"
        "    def test_a(self):\n        self.r = f(self.a)\n        self.assertEqual(self.a, [1, 3])\n        self.assertEqual(self.r, 1)"),
    ),
}  # fmt: skip


def run_in_one_process(code, tests):
    """Return whether tests hold in one process, as `exec` has it."""
    names = {}
    exec(f"{code}\n{tests}", names)
    if "check" in names:
        names["check"](names["f"])
    return True


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.slow(but_each=15)
def test_changed_arguments_are_seen(name, sandbox):
    """An assertion that is about an argument sees what the call made of it, whatever the call
    returned.
    """
    code, source = ARGUMENTS[name]
    assert run_in_one_process(code, source)
    report = run_tests(code, parse_tests(source, "f"), sandbox=sandbox)
    assert (report.method, report.score) == ("driver", 1), report
    changes = code.replace("a.", "list(a).").replace("a[0].", "list(a[0]).")
    if name in ("alone", "in a call", "by another name", "after None", "inside a list", "unittest"):
        assert run_tests(changes, parse_tests(source, "f"), sandbox=sandbox).score < 1


@pytest.mark.slow(but_each=8)
@pytest.mark.parametrize(
    "source",
    [
        "a = [3, 1]\nassert f(a) == sorted(a)",
        "a = [3, 1]\nr = f(a)\nn = len(r)\nassert n == len(a)",
        "a = [3, 1]\nr = f(a)\nfor x, y in zip(r, sorted(a), strict=True):\n    assert x == y\nassert len(r) == len(a)",
        "def verify(a, out):\n    assert len(out) == len(a) and out == sorted(a)\na = [1]\nverify(a, f(a))",
        "a = [3, 1]\nr = f(a)\nassert r is not a\nassert r == sorted(a)",
        "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        a = [3, 1]\n        r = f(a)\n        self.assertEqual(r, sorted(a))",
    ],
)
def test_an_argument_that_says_what_is_right_stays_as_it_was(source, sandbox):
    """A program that empties it passes nothing by that."""
    tests = parse_tests(source, "f")
    assert run_tests("def f(a): return sorted(a)", tests, sandbox=sandbox).score == 1
    assert run_tests("def f(a):\n    a.clear()\n    return []", tests, sandbox=sandbox).score < 1


def test_objects_of_the_test_code_cannot_be_passed(sandbox):
    """That is unknown, with a reason, and no verdict."""
    tests = parse_tests(
        "class C:\n    x = 1\ndef test_a():\n    c = C()\n    f(c)\n    assert c.x == 5", "f"
    )
    report = run_tests("def f(c):\n    c.x = 5\n    return 1", tests, sandbox=sandbox)
    assert (
        report.score is None
        and "an object of the class 'C' cannot be passed by value" in report.problem
    )


def test_a_claim_to_be_something_is_no_value(sandbox):
    """A program that says yes to every question passes no assertion about a value by that."""
    code = (
        "class Any:\n    def __getattr__(s, n): return lambda *a: True\n"
        "for n in 'call iter next len contains getitem int float index abs bool bytes complex round reversed'.split():\n"
        "    setattr(Any, f'__{n}__', lambda *a: 1)\n"
        "import collections.abc\nfor n in ('Sequence', 'Mapping', 'Set'):\n    getattr(collections.abc, n).register(Any)\ndef f(x): return Any()"
    )
    source = (
        "import collections.abc as c\nimport math\nx = f(1)\nassert isinstance(x, c.Sequence) and len(x) == 1\nassert isinstance(x, c.Mapping) and x[0] == 1\n"
        "assert isinstance(x, c.Set) and 3 in x\nassert abs(x) == 1\nassert list(x) == [1]\nassert int(x) == 1\nassert math.isclose(x, 1)\nassert x == 1"
    )
    assert run_tests(code, parse_tests(source, "f"), sandbox=sandbox).passed == 0


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    ("code", "score"),
    [("def f(): pass", 1), ("f = 3", 0), ("g = 3", 0), ("class f: pass", 1)],
    ids=["function", "number", "nothing", "class"],
)
def test_whether_a_name_is_callable_is_asked(code, score, sandbox):
    """A name that the test code imports need not be a function."""
    assert (
        run_tests(
            code, parse_tests("import solution\nassert callable(solution.f)"), sandbox=sandbox
        ).score
        == score
    )


@pytest.mark.parametrize(
    "kind",
    ["collections.Counter", "types.GeneratorType", "(list, collections.OrderedDict)", "enum.Enum"],
)
def test_classes_that_are_lost_on_the_way_are_unknown(kind):
    """Values arrive as their built-in bases, so that whether they are of such a class is not
    judged.
    """
    source = f"import collections, enum, types\nassert isinstance(f(1), {kind})"
    tests = parse_tests(source, "f")
    assert tests.kind == "in_process" and "passed as their built-in base classes" in tests.why


NUMPY = "import numpy as np\n"
ARRAY_REASON = (
    "an array of NumPy (numpy.ndarray), which == compares item by item: return a list (.tolist())"
)


@pytest.fixture
def with_numpy(sandbox):
    pytest.importorskip("numpy", reason="no numpy")
    return Sandbox(packages=["numpy"])


SCALARS = {
    "np.int64(3)": "3",
    "np.float32(0.5)": "0.5",
    "np.bool_(True)": "True",
    "np.str_('a')": "'a'",
    "np.complex64(1j)": "1j",
    "np.array(7)": "7",
    "[np.int8(1), (np.uint8(2),)]": "[1, (2,)]",
    "{np.int64(1): np.float64(2)}": "{1: 2}",
}


def test_scalars_of_numpy_are_numbers(with_numpy):
    """In calls, asserts and test code."""
    code = f"{NUMPY}def f(n): return [{', '.join(SCALARS)}][n]"
    asserts = [f"assert f({n}) == {expected}" for n, expected in enumerate(SCALARS.values())]
    for tests, kind in ((asserts, "calls"), (["x = 1", *asserts], "driver")):
        report = run_tests(code, parse_tests(tests), sandbox=with_numpy)
        assert (report.method, report.failures, report.passed) == (kind, (), len(SCALARS))


def test_arrays_of_numpy_beside_json_are_lists(with_numpy):
    """A list is what JSON can say of an array; a checker gets lists, too."""
    code = f"{NUMPY}def f(n): return np.arange(4).reshape(2, 2) * n"
    tests = parse_tests(
        [{"input": [1], "output": [[0, 1], [2, 3]]}, {"input": [0], "output": [[0, 0], [0, 1]]}],
        "f",
    )
    assert [result.ok for result in run_tests(code, tests, sandbox=with_numpy).results] == [
        True,
        False,
    ]
    given = []
    run_tests(code, tests, sandbox=with_numpy, checker=lambda _, __, got: given.append(got) or True)
    assert given == [[[0, 1], [2, 3]], [[0, 0], [0, 0]]]


def test_an_array_in_an_assert_fails_with_a_reason(with_numpy):
    """As in plain Python, where == of an array has no truth value; the reason says what to
    return.
    """
    code = f"{NUMPY}def f(n): return [np.array([1, 2]), [np.array([1, 2])], {{'a': np.zeros(3)}}, np.datetime64('2020-01-01')][n]"
    tests = parse_tests([f"assert f({n}) == [1, 2]" for n in range(4)])
    *arrays, date = run_tests(code, tests, sandbox=with_numpy).results
    assert [result.ok for result in (*arrays, date)] == [False] * 4
    assert all(ARRAY_REASON in result.error for result in arrays)
    assert "'datetime64'" in date.error and "datetime64[D]" in date.error


def test_arrays_are_arrays_in_test_code(with_numpy):
    """As arguments and as values; what is wrong in plain Python is wrong here."""
    right = [
        "np.array_equal(f(np.array([3, 1])), np.array([6, 2]))",
        "f(np.array([3, 1])).tolist() == [6, 2] and f(np.array([1])).dtype == np.int64",
        "isinstance(f(np.array([3, 1])), np.ndarray) and isinstance(f(np.int64(3)), np.integer)",
        "(f(np.ones((2, 2))) == 2).all() and f(np.ones((2, 2))).shape == (2, 2)",
    ]
    wrong = ["np.allclose(f(np.array([3, 1])), [6, 2.5])", "f(np.array([3, 1])) == [6, 2]"]
    tests = parse_tests(
        NUMPY + "\n".join(f"assert {assertion}" for assertion in (*right, *wrong)), "f"
    )
    report = run_tests("def f(a): return a * 2", tests, sandbox=with_numpy)
    assert (report.method, [result.ok for result in report.results]) == (
        "driver",
        [True] * 4 + [False] * 2,
    )


def test_an_array_that_is_changed_is_seen(with_numpy):
    """As lists are."""
    tests = parse_tests(
        f"{NUMPY}a = np.array([3, 1])\nassert f(a) == 4\nassert a.tolist() == [1, 3]", "f"
    )
    assert (
        run_tests("def f(a):\n    a.sort()\n    return a.sum()", tests, sandbox=with_numpy).score
        == 1
    )
