"""Programs that try to pass tests that they fail: none does, whether the tests are calls, code, or
input and output.
"""

import re

import pytest

from redraft.sandbox import Limits
from redraft.sandbox.code import parse_tests, run_tests

LIMITS = Limits(cpu_seconds=1, wall_seconds=3, memory_bytes=256 * 2**20)
EXPECTED = 7_391_846_205  # f(x) must return it plus x; no program below knows it
CALLS = [{"input": [x], "output": EXPECTED + x} for x in (1, 2)]
CODE = f"""
import math

def check(candidate):
    for x in (1, 2):
        assert candidate(x) == {EXPECTED} + x
    assert math.isclose(abs(candidate(1) - {EXPECTED + 1}), 0)
    assert {EXPECTED + 1} in [candidate(1)]
    assert all(map(lambda x: candidate(x) == {EXPECTED} + x, [1, 2]))
    got = candidate(1)
    assert got and not got != {EXPECTED + 1}
    assert sorted([candidate(1), {EXPECTED + 1}]) == [{EXPECTED + 1}, {EXPECTED + 1}]
"""
UNITTEST = f"""
import unittest
from solution import f

class TestF(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(f(1), {EXPECTED + 1})
    def test_almost_equal(self):
        self.assertAlmostEqual(f(1), {EXPECTED + 1})
    def test_in(self):
        self.assertIn({EXPECTED + 1}, [f(1)])
"""

ATTACKS = {
    # ends
    "empty": "",
    "only comments": "# f(1) == 2\n'''done'''\npass",
    "os._exit": "import os\nos._exit(0)",
    "sys.exit": "import sys\nsys.exit(0)",
    "exit in the call": "def f(x):\n    raise SystemExit(0)",
    "_exit in the call": "import os\ndef f(x):\n    os._exit(0)",
    "KeyboardInterrupt": "def f(x):\n    raise KeyboardInterrupt",
    "GeneratorExit": "def f(x):\n    raise GeneratorExit",
    "StopIteration": "def f(x):\n    raise StopIteration({0})",
    "an exception of its own": "class Passed(BaseException): pass\ndef f(x):\n    raise Passed",
    "AssertionError": "def f(x):\n    raise AssertionError('passed')",
    "no function": "def g(x):\n    return 1",
    "syntax": "def f(x)\n    return 1",
    "atexit": "import atexit, os\natexit.register(lambda: os._exit(0))\nraise SystemExit(0)",
    "signal": "import os, signal\ndef f(x):\n    os.kill(os.getpid(), signal.SIGTERM)",
    "abort": "import os\ndef f(x):\n    os.abort()",
    "segmentation fault": "import ctypes\ndef f(x):\n    ctypes.string_at(0)",
    # values that say yes to everything
    "__eq__": "class Yes:\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n    __hash__ = None\ndef f(x): return Yes()",
    "every operator": (
        "class Yes:\n"
        "    def __getattr__(s, n): return s\n"
        "for n in 'eq lt le gt ge contains bool'.split():\n    setattr(Yes, f'__{n}__', lambda *a: True)\n"
        "for n in 'sub rsub add radd abs neg float int index round len hash'.split():\n    setattr(Yes, f'__{n}__', lambda *a: 0)\n"
        "setattr(Yes, '__ne__', lambda *a: False)\n"
        "def f(x): return Yes()"
    ),
    "subclass of int": "class I(int):\n    def __eq__(s, o): return True\n    def __hash__(s): return hash(o)\n    __sub__ = __rsub__ = lambda s, o: 0\ndef f(x): return I(0)",
    "subclass of str": "class S(str):\n    def __eq__(s, o): return True\n    __hash__ = str.__hash__\ndef f(x): return S('yes')",
    "subclass of list": "class L(list):\n    def __eq__(s, o): return True\n    def __contains__(s, o): return True\ndef f(x): return L()",
    "metaclass": "class M(type):\n    def __eq__(c, o): return True\n    __hash__ = type.__hash__\nclass C(metaclass=M): pass\ndef f(x): return C",
    "__class__": "class C:\n    __class__ = property(lambda s: int)\n    def __eq__(s, o): return True\n    def __int__(s): raise SystemExit\ndef f(x): return C()",
    "nan": "def f(x): return float('nan')",
    "nan in a list": "def f(x): return [float('nan')]",
    "mock.ANY": "from unittest.mock import ANY\ndef f(x): return ANY",
    "generator": "def f(x):\n    yield True",
    "coroutine": "class Yes:\n    def __eq__(s, o): return True\n    __hash__ = None\nasync def f(x): return Yes()",
    "awaitable": "class Yes:\n    def __await__(s): return iter(())\n    def __eq__(s, o): return True\n    __hash__ = None\ndef f(x): return Yes()",
    "async generator": "async def f(x):\n    yield True",
    "named tuple": (
        "from collections import namedtuple\n"
        "class Yes(namedtuple('Yes', 'index count')):\n    def __eq__(s, o): return True\n    __hash__ = None\n"
        "def f(x): return Yes(lambda *a: True, lambda *a: True)"
    ),
    "named tuple with strange names": (
        "class T(tuple):\n    _fields = ('__eq__', 'x=print(1)')\n    def __eq__(s, o): return True\n    __hash__ = None\n"
        "T.__name__ = 'int'\ndef f(x): return T((1, 2))"
    ),
    "endless generator": "import itertools\ndef f(x): return itertools.count()",
    "hostile repr": "class R:\n    def __repr__(s): return '7391846206'\n    def __str__(s): raise SystemExit\ndef f(x): return R()",
    "hostile exception": "class E(Exception):\n    def __str__(s): raise SystemExit\n    __name__ = 'ValueError'\ndef f(x): raise E",
    "an exception with a false class": "ValueError = type('AssertionError', (ValueError,), {'__str__': lambda s: 1})\ndef f(x): raise ValueError",
    # the interpreter
    "patched builtins": "import builtins\nfor n in 'all any sorted abs isinstance len print type id'.split():\n    setattr(builtins, n, lambda *a, **k: True)\ndef f(x): return True",
    "patched json and codecs": "import json, sys\njson.dumps = json.loads = lambda *a, **k: '{\"ok\": true}'\nfor m in list(sys.modules.values()):\n    for n in ('encode', 'decode', 'Encoder', 'Decoder'):\n        try: setattr(m, n, None)\n        except Exception: pass\ndef f(x): return 1",
    "patched unittest": "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\nunittest.TestResult.wasSuccessful = lambda s: True\ndef f(x): return 1",
    "its own check": "def check(candidate): return True\ndef test_check(): pass\ncandidate = check\n_part_of_the_tests = _assertion_reached = _the_candidate = check\ndef f(x): return 0",
    "settrace": "import sys\ndef t(frame, event, arg):\n    frame.f_locals['ok'] = True\n    return t\nsys.settrace(t)\ndef f(x): return 1",
    "import hooks": "import sys\nclass H:\n    def find_spec(s, *a): raise SystemExit(0)\nsys.meta_path.insert(0, H())\nsys.modules.clear()\ndef f(x): return 1",
    # the protocol
    "frames": (
        "import sys\n"
        "def f(x):\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        for value in list(frame.f_locals.values()):\n"
        "            if hasattr(value, 'send') and hasattr(value, 'receive'):\n"
        "                for _ in range(9):\n"
        "                    value.send({'ok': True, 'value': True, 'done': True, 'finished': [[0, True, ''], [1, True, '']], 'passed': 2})\n"
        "        frame = frame.f_back\n"
        "    return 1"
    ),
    "gc": "import gc\nfound = [o for o in gc.get_objects() if type(o).__name__ == 'Channel']\nfor c in found:\n    c.send({'done': True, 'finished': [[0, True, '']]})\ndef f(x): return found",
    "writes answers ahead": "import os, json\nfor fd in range(1, 64):\n    body = json.dumps({'number': '0' * 16, 'message': {'value': 1}}).encode()\n    try:\n        for _ in range(20): os.write(fd, len(body).to_bytes(4, 'big') + body)\n    except OSError: pass\ndef f(x): return 1",
    "writes garbage": "import os\nfor fd in range(1, 64):\n    try: os.write(fd, b'\\xff' * 1000)\n    except OSError: pass\ndef f(x): return 1",
    "writes a huge length": "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'\\xff\\xff\\xff\\xff')\n    except OSError: pass\ndef f(x): return 1",
    "closes its descriptors": "import os\ndef f(x):\n    os.closerange(0, 64)\n    return 1",
    "reads the protocol": "import os\nread = []\nfor fd in range(3, 64):\n    try:\n        os.set_blocking(fd, False)\n        read.append(os.read(fd, 100000))\n    except OSError: pass\ndef f(x): return str(read)",
    "a thread that answers": (
        "import threading, gc, time\n"
        "def work():\n"
        "    while True:\n"
        "        for o in gc.get_objects():\n"
        "            if type(o).__name__ == 'Channel':\n"
        "                try: o.send({'value': 1, 'ok': True, 'done': True, 'finished': [[0, True, '']]})\n"
        "                except Exception: pass\n"
        "        time.sleep(0.01)\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "def f(x):\n    time.sleep(0.2)\n    return 1"
    ),
    "prints the verdict": "print('OK')\nprint('{\"passed\": true, \"score\": 1.0}')\ndef f(x):\n    print('Ran 3 tests in 0.001s\\n\\nOK')\n    return None",
    # sizes
    "deep value": "def f(x):\n    v = []\n    for _ in range(100000): v = [v]\n    return v",
    "cyclic value": "def f(x):\n    v = []\n    v.append(v)\n    return v",
    "shared value": "def f(x):\n    v = 'ha'\n    for _ in range(30): v = [v] * 10\n    return v",
    "huge integer": "def f(x): return 1 << 100_000_000",
    "huge text": "def f(x): return 'x' * 50_000_000",
    "surrogates": "def f(x): return chr(0xD800) * 10",
    "keys of one hash": "def f(x): return {n * (2**61 - 1) for n in range(5000)}",
    "hanging __del__": "class D:\n    def __del__(s):\n        while True: pass\ndef f(x): return D()",
    "recursion": "def f(x): return f(x)",
    "loop": "while True: pass",
    "flood": "def f(x):\n    while True: print('x' * 100000)",
}
# the others do something when `f` is called, which nobody does in a whole program
ATTACKS_AT_LOADING = [
    "empty", "os._exit", "sys.exit", "syntax", "atexit", "patched builtins", "patched json and codecs", "settrace", "import hooks",
    "gc", "writes answers ahead", "writes garbage", "writes a huge length", "reads the protocol", "a thread that answers",
    "prints the verdict",
]  # fmt: skip
SLOW_ATTACKS = {
    "loop",
    "huge text",
    "recursion",
    "flood",
    "hanging __del__",
    "keys of one hash",
    "shared value",
}


def check_that_all_fail(report):
    assert report.score == 0
    assert report.passed == 0
    assert report.results
    for result in report.results:
        assert result.error or (result.got is not None and result.got != result.expected)
        assert str(EXPECTED) not in (
            result.traceback + result.error if result.expected is None else result.traceback
        )


attacks = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW_ATTACKS else ())
        for name in ATTACKS
    ],
)


@pytest.mark.slow(but_each=11)
@attacks
def test_no_program_passes_calls_that_it_fails(name, sandbox):
    """The values that it gives are compared where it is not, so it cannot say that they are
    right.
    """
    check_that_all_fail(
        run_tests(ATTACKS[name], parse_tests(CALLS, "f"), sandbox=sandbox, limits=LIMITS)
    )


@pytest.mark.slow(but_each=36)
@attacks
def test_no_program_passes_test_code_that_it_fails(name, sandbox):
    """Test code runs in another sandbox and gets values, never the program's objects."""
    tests = parse_tests(CODE, "f")
    assert tests.kind == "driver"
    check_that_all_fail(run_tests(ATTACKS[name], tests, sandbox=sandbox, limits=LIMITS))


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    "name",
    [
        "__eq__",
        "every operator",
        "subclass of int",
        "mock.ANY",
        "nan",
        "AssertionError",
        "os._exit",
    ],
)
def test_no_program_passes_unittest_that_it_fails(name, sandbox):
    """The assertions of unittest are the library's own, beside the test code."""
    report = run_tests(ATTACKS[name], parse_tests(UNITTEST), sandbox=sandbox, limits=LIMITS)
    assert len(report.results) == 3
    check_that_all_fail(report)


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("name", ATTACKS_AT_LOADING)
def test_no_program_passes_by_printing(name, sandbox):
    """Of a whole program, only what it prints counts; no exit code and no end replaces it."""
    report = run_tests(
        ATTACKS[name],
        parse_tests([{"stdin": "1", "stdout": str(EXPECTED)}]),
        sandbox=sandbox,
        limits=LIMITS,
    )
    assert report.score == 0


SECRET = "a text that only the tests know"
SPY = """
import gc, os, sys
def everything():
    yield from (repr(sys.argv), repr(dict(os.environ)))
    for o in gc.get_objects():
        try: yield repr(o)[:100000]
        except Exception: pass
    frame = sys._getframe()
    while frame:
        yield repr(frame.f_locals)[:100000]
        frame = frame.f_back
    for path in ('/proc/self/cmdline', '/proc/self/environ', '/proc/1/cmdline', '/proc/1/environ'):
        try: yield open(path, 'rb').read().decode('latin1')
        except OSError: pass
def f(x):
    return 'seen' if any('wonk stset eht ylno' in text[::-1] for text in everything()) else 'unseen'
"""


@pytest.mark.parametrize(
    "tests",
    [
        [{"input": [1], "output": SECRET}],
        f"def check(candidate):\n    hidden = {SECRET!r}\n    for x in [1]:\n        assert candidate(x) == hidden",
        {
            "entry_point": "f",
            "tests": ["assert f(1) == 1"],
            "hidden": [f"assert f(1) == {SECRET!r}"],
        },
    ],
    ids=["calls", "code", "hidden"],
)
def test_the_program_cannot_see_what_is_expected(tests, sandbox):
    """Neither expected values nor test code are in the memory, the files or the environment of the
    program's sandbox.
    """
    report = run_tests(SPY, parse_tests(tests, "f"), sandbox=sandbox)
    assert "unseen" in (report.results[0].got or report.results[0].error)
    assert report.score == 0


def test_the_program_sees_what_it_is_given(sandbox):
    """The spy of the test above would find the text."""
    report = run_tests(SPY, parse_tests([{"input": [SECRET], "output": 1}], "f"), sandbox=sandbox)
    assert report.results[0].got == "'seen'"


def test_arguments_are_sent_anew_for_each_call(sandbox):
    """A program that changes its arguments changes no other test."""
    code = "def f(v):\n    v.append(0)\n    return len(v)"
    report = run_tests(
        code, parse_tests([{"input": [[1, 2]], "output": 3}] * 2, "f"), sandbox=sandbox
    )
    assert report.score == 1


@pytest.mark.parametrize("value", ["nan", "[nan]", "(1, nan)"])
def test_nan_equals_nan_only_if_the_test_says_so(value, sandbox):
    """nan is no value that one could have computed by accident, unless it is expected by name."""
    code = f"nan = float('nan')\ndef f(): return {value}"
    expected = eval(value, {"nan": float("nan")})
    plain = parse_tests([{"input": [], "output": expected}], "f")
    said = parse_tests([{"input": [], "output": expected, "equal_nan": True}], "f")
    assert run_tests(code, plain, sandbox=sandbox).score == 0
    assert run_tests(code, said, sandbox=sandbox).score == 1


RAISING = [
    "def check(candidate):\n    try:\n        candidate(1)\n        assert False\n    except Exception:\n        pass",
    "def check(candidate):\n    try:\n        candidate(1)\n    except BaseException:\n        assert True\n    else:\n        assert False",
    "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        with self.assertRaises(Exception):\n            f(1)",
    "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        with self.assertRaises(BaseException):\n            f(1)",
    "import pytest\ndef test_a():\n    with pytest.raises(BaseException):\n        f(1)",
]
RARE = [
    pytest.param(tests, marks=pytest.mark.slow) for tests in (RAISING[0], RAISING[2], RAISING[4])
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "tests", [RAISING[1], RAISING[3], [{"input": [1], "raises": "Exception"}], *RARE]
)
def test_the_end_of_the_program_is_no_exception(tests, sandbox):
    """A test that expects an exception passes if one is raised, and not if the program ends or runs
    out of time.
    """
    read = parse_tests(tests, "f")
    assert run_tests("def f(x): raise KeyError(x)", read, sandbox=sandbox).score == 1
    for body in (
        "import os; os._exit(0)",
        "import os; os.abort()",
        "raise SystemExit(0)",
        "return 1",
    ):
        assert run_tests(f"def f(x):\n    {body}", read, sandbox=sandbox, limits=LIMITS).score == 0


def test_an_exception_at_the_start_is_not_the_expected_one(sandbox):
    """`raises` is about the call: a program that raises before it is called raises nothing that was
    asked for.
    """
    tests = parse_tests([{"input": [1], "raises": "ValueError"}], "f")
    assert run_tests("raise ValueError", tests, sandbox=sandbox).score == 0
    assert run_tests("def f(x):\n    raise UnicodeError", tests, sandbox=sandbox).score == 1
    assert run_tests("def f(x):\n    raise KeyError", tests, sandbox=sandbox).score == 0


def test_tests_beside_the_program_are_labelled_and_need_consent(sandbox):
    """What a program could forge is never a score by itself, and says what it is."""
    tests = parse_tests("def test_kind():\n    assert isinstance(f(1), F)\n", "f")
    code = "class F: pass\ndef f(x): return F()"
    refused = run_tests(code, tests, sandbox=sandbox)
    trusted = run_tests(code, tests, sandbox=sandbox, trust_in_process=True)
    assert (refused.score, refused.method) == (None, "in_process: forgeable")
    assert re.search("isinstance.*trust_in_process=True", refused.problem)
    assert (trusted.score, trusted.method) == (1.0, "in_process: forgeable")
    for end in ("import os; os._exit(0)", "raise SystemExit(0)", ""):
        assert run_tests(end, tests, sandbox=sandbox, trust_in_process=True).score == 0


EXCEPTIONS = ["ValueError", "KeyError", "TypeError", "IndexError", "NotImplementedError"]


@pytest.mark.parametrize(
    "code",
    [
        f"class E({', '.join(EXCEPTIONS)}): pass\ndef f(x): raise E",
        f"E = Exception\nfor name in {EXCEPTIONS}: E = type(name, (E,), {{}})\ndef f(x): raise E",
        (
            f"class Meta(type):\n    def mro(cls): return [cls, {', '.join(EXCEPTIONS)}, Exception, BaseException, object]\n"
            "class E(ValueError, metaclass=Meta): pass\ndef f(x): raise E"
        ),
    ],
    ids=["bases", "names", "mro"],
)
def test_an_exception_is_not_all_that_could_be_expected(code, sandbox):
    """An exception counts as one built-in exception and the bases of that."""
    tests = parse_tests([{"input": [1], "raises": name} for name in EXCEPTIONS], "f")
    assert run_tests(code, tests, sandbox=sandbox).passed <= 1


def test_an_exception_counts_as_its_own_class_and_its_bases(sandbox):
    """A class of the program's own counts by its name, by those of its bases, and by the built-in
    class that it derives from.
    """
    tests = parse_tests(
        [
            {"input": [1], "raises": name}
            for name in ("Own", "Base", "KeyError", "LookupError", "Exception")
        ],
        "f",
    )
    code = "class Base(KeyError): pass\nclass Own(Base): pass\ndef f(x): raise Own"
    assert run_tests(code, tests, sandbox=sandbox).score == 1


IMPOSTORS = {  # a program, and test code that computes what is right
    "a number that changes": (
        (
            "class V:\n    def __init__(s, c): s.c, s.n = c, 0\n"
            "    def __float__(s):\n        s.n += 1\n        return -s.c[0] / s.c[1] if s.n == 2 else 0.0\n"
            "def f(c): return V(c)"
        ),
        (
            "import math\ndef check(candidate):\n    for c in ([1, 2, 3], [4, 5, 6]):\n"
            "        x = candidate(list(c))\n        assert abs(sum(a * math.pow(x, i) for i, a in enumerate(c))) < 1e-6"
        ),
    ),
    "a list with two faces": (
        (
            "class L:\n    def __init__(s, x): s.x = x\n    def __len__(s): return len(s.x)\n    def __getitem__(s, i): return i\n"
            "    def __iter__(s): return iter(s.x)\ndef f(x): return L(x)"
        ),
        (
            "def check(candidate):\n    for x in ([3, 1, 2], [9, 8]):\n        r = candidate(x)\n"
            "        assert all(r[i] <= r[i + 1] for i in range(len(r) - 1)) and sorted(r) == sorted(x)"
        ),
    ),
    "a method of the class Solution": (
        (
            "class Solution:\n    def f(s, x):\n        s.x = x\n        return s\n    def __len__(s): return len(s.x)\n"
            "    def __getitem__(s, i): return i\n    def __iter__(s): return iter(s.x)"
        ),
        (
            "def check(candidate):\n    for x in ([3, 1, 2], [9, 8]):\n        r = Solution().f(x)\n"
            "        assert all(r[i] <= r[i + 1] for i in range(len(r) - 1)) and sorted(r) == sorted(x)"
        ),
    ),
    "a text that agrees": (
        "class T:\n    def startswith(s, *a): return True\n    endswith = startswith\ndef f(x): return T()",
        "def check(candidate):\n    for x in [1]:\n        assert candidate(x).startswith('Dear') and candidate(x).endswith('Yours')",
    ),
    "a set that agrees": (
        "class T:\n    def __getattr__(s, name): return lambda *a: True\ndef f(x): return T()",
        "def check(candidate):\n    for x in [1]:\n        assert candidate(x).issubset({1, 2})",
    ),
    "an error that the test code catches": (
        "class T:\n    def __iter__(s): raise ValueError\ndef f(x): return T()",
        (
            "def check(candidate):\n    for x in [1]:\n        try:\n            list(candidate(x))\n        except BaseException:\n"
            "            assert True"
        ),
    ),
    "an argument that is changed": (
        "def f(x):\n    x.clear()\n    return []",
        "def check(candidate):\n    for x in ([3, 1, 2], [2, 1]):\n        got = candidate(x)\n        assert got == sorted(x)",
    ),
    "an argument that is changed in the assertion": (
        "def f(x):\n    x.clear()\n    return 0",
        "def check(candidate):\n    for x in ([3, 1, 2], [2, 1]):\n        assert candidate(x) == sum(x)",
    ),
    "an argument that is changed and compared with the result": (
        "def f(x):\n    x.clear()\n    return []",
        "def check(candidate):\n    for x in ([3, 1, 2], [2, 1]):\n        got = candidate(x)\n        assert x == got",
    ),
}


@pytest.mark.slow(but_each=5)
@pytest.mark.parametrize("name", IMPOSTORS)
def test_no_object_takes_the_part_of_a_value(name, sandbox):
    """Test code that computes what is right gets built-in values, and its own arguments as they
    were.
    """
    code, source = IMPOSTORS[name]
    tests = parse_tests(source, "f")
    assert tests.kind == "driver"
    report = run_tests(code, tests, sandbox=sandbox, limits=LIMITS)
    assert (report.score, report.passed) == (0, 0)


@pytest.mark.parametrize(
    ("code", "source"),
    [
        (
            "def f(x): x.sort()",
            "def check(candidate):\n    x = [3, 1]\n    candidate(x)\n    assert x == [1, 3]",
        ),
        (
            "def f(x):\n    x[:] = sorted(set(x))\n    return len(x)",
            "def check(candidate):\n    for x, right in [([3, 1, 1], [1, 3])]:\n        k = candidate(x)\n        assert x[:k] == right",
        ),
    ],
    ids=["in place", "in place with a result"],
)
def test_arguments_that_the_tests_ask_about(code, source, sandbox):
    """Arguments that the test code compares are those after the call."""
    report = run_tests(code, parse_tests(source, "f"), sandbox=sandbox, limits=LIMITS)
    assert report.score == 1, report.results


@pytest.mark.parametrize(
    "call",
    [
        "eval(candidate(x))",
        "exec(candidate(x))",
        "pickle.loads(candidate(x))",
        "eval(compile(candidate(x), '', 'eval'))",
    ],
)
def test_code_of_the_program_runs_beside_no_tests(call, sandbox):
    """Test code that runs what the program returns would give it the verdict."""
    tests = parse_tests(
        f"import pickle\ndef check(candidate):\n    for x in [1]:\n        assert {call} == 24", "f"
    )
    report = run_tests("def f(x): return '24'", tests, sandbox=sandbox)
    assert (report.score, report.method) == (None, "in_process: forgeable")
