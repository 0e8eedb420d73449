"""What tests and a program share in one process, where each has a sandbox of its own: it is carried
over, or there is no score.
"""

import pytest

from redraft.errors import SandboxUnavailableError
from redraft.sandbox import Limits, Sandbox
from redraft.sandbox.code import exchange, parse_tests, run_tests

pytestmark = pytest.mark.usefixtures("sandbox")
POINT = "from collections import namedtuple\nPoint = namedtuple('Point', 'x y')\n"
CONTEXT = """
class M:
    def __enter__(self): return self
    def __exit__(self, *a): return True
    async def __aenter__(self): return self
    async def __aexit__(self, *a): return True
    def value(self): return 7
def f(): return M()
"""
CASES = {  # a program, its tests, and their score or why there is none
    "a named tuple": (POINT + "def f(n): return Point(n, 2)\n", "def test_a():\n    p = f(1)\n    assert p.x == 1 and p.y == 2 and p == (1, 2)\n    assert p._asdict() == {'x': 1, 'y': 2}", 1.0),
    "named tuples in a list": (POINT + "def f(n): return [Point(n, 2)]\n", "def test_a():\n    p = f(1)\n    assert p[0].x == 1", 1.0),
    "a wrong named tuple": (POINT + "def f(n): return [Point(7, 2)]\n", "def test_a():\n    p = f(1)\n    assert p[0].x == 1", 0.0),
    "a function with a name of ours": ("def read_attribute(x): return x + 1\n", "import solution\ndef test_a():\n    assert solution.read_attribute(1) == 2", 1.0),
    "a method of a named tuple": ("from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    def area(self): return 5\ndef f(n): return P(n)\n", "def test_a():\n    assert f(1).x == 1\n    assert f(1).area() == 5", "they read area of a named tuple (P)"),
    "a field with the name of a method": ("from collections import namedtuple\nR = namedtuple('R', 'count')\ndef f(n): return R(n)\n", "def test_a():\n    assert f(1).count == 1", 1.0),
    "a named tuple as an argument": ("def f(p): return p.x + p.y\n", "from collections import namedtuple\nP = namedtuple('P', 'x y')\nassert sorted([f(P(1, 2))]) == [3]", 1.0),
    "a named tuple in asserts alone": (POINT + "def f(n): return Point(n, 2)\n", ["assert f(1) == (1, 2)"], 1.0),
    "a field in place of a method of a text": ("class C:\n    def __call__(s, *a): return True\nfrom collections import namedtuple\nR = namedtuple('R', 'startswith')\ndef f(n): return R(C())\n", "def test_a():\n    assert f(1).startswith('abc')", "they use __call__ of an object of its class 'C'"),
    "a field in place of a method of a dictionary": ("class C:\n    def __call__(s, *a): return True\nfrom collections import namedtuple\nR = namedtuple('R', 'keys')\ndef f(n): return R(C())\n", "def test_a():\n    assert f(1).keys()", "they use __call__ of an object of its class 'C'"),
    "a named tuple that the tests make": (POINT, "def test_a():\n    assert Point(1, 2).x == 1\n    assert Point(1, 2) == (1, 2)", 1.0),
    "a seed": ("import random\ndef f(n): return random.randint(0, n)\n", "import random\ndef test_a():\n    random.seed(0)\n    a = f(10**9)\n    random.seed(0)\n    assert f(10**9) == a", "seed random numbers (seed)"),
    "a seed for the tests alone": ("def f(n): return n + 1\n", "import random\nrandom.seed(0)\nn = random.randint(0, 9)\nassert f(n) == n + 1", 1.0),
    "a seed for the tests alone, and a wrong program": ("def f(n): return n\n", "import random\nrandom.seed(0)\nn = random.randint(0, 9)\nassert f(n) == n + 1", 0.0),
    "an argument that is changed later": ("ITEMS = []\ndef keep(items):\n    global ITEMS\n    ITEMS = items\ndef total(): return sum(ITEMS)\n", "def test_a():\n    a = [1]\n    keep(a)\n    a.append(2)\n    assert total() == 3", "they change a value that the program got or gave"),
    "an argument that was copied": ("ITEMS = []\ndef keep(items):\n    global ITEMS\n    ITEMS = list(items)\ndef total(): return sum(ITEMS)\n", "def test_a():\n    a = [1]\n    keep(a)\n    a.append(2)\n    assert total() == 1", 1.0),
    "a value that the program still has": ("ITEMS = [1]\ndef f(): return ITEMS\n", "def test_a():\n    f().append(2)\n    r = f()\n    r.append(3)\n    assert f() == [1]", "they change a value that the program got or gave"),
    "a copy of it": ("ITEMS = [1]\ndef f(): return list(ITEMS)\n", "def test_a():\n    r = f()\n    r.append(3)\n    assert f() == [1]", 1.0),
    "a value that the program changes later": ("ITEMS = []\ndef push(x): ITEMS.append(x); return ITEMS\n", "def test_a():\n    assert push(1) == [1]\n    got = push(2)\n    assert got == [1, 2]\n    got = push(3)\n    assert got == [1, 2, 3]", 1.0),
    "an argument that nobody has": ("def f(a): return sorted(a)\n", "def test_a():\n    a = [2, 1]\n    assert f(a) == [1, 2]\n    a.append(0)\n    assert f(a) == [0, 1, 2]", 1.0),
    "a part of an argument that is changed later": (
        "ROWS = []\ndef keep(rows):\n    global ROWS\n    ROWS = rows\ndef first(): return ROWS[0][0]\n",
        "def test_a():\n    rows = [[1], [2]]\n    keep(rows)\n    rows[0][0] = 5\n    assert first() == 5",
        "they change a value that the program got or gave",
    ),
    "a program that remembers": ("def f(a, memo={}):\n    k = tuple(a)\n    memo[k] = sum(a)\n    return memo[k]\n", "def test_a():\n    a = [2, 1]\n    assert f(a) == 3\n    a.append(0)\n    assert f(a) == 3", 1.0),
    "what is printed": ("def f(n): print(n)\n", "import io, contextlib\ndef test_a():\n    out = io.StringIO()\n    with contextlib.redirect_stdout(out):\n        f(1)\n    assert out.getvalue() == '1\\n'", "read what is printed"),
    "a warning": ("import warnings\ndef f(n): warnings.warn('x')\n", "import pytest\ndef test_a():\n    with pytest.warns(UserWarning):\n        f(1)", "look at warnings"),
    "the environment": ("import os\ndef f(n): return os.environ['A']\n", "import os\ndef test_a():\n    os.environ['A'] = 'b'\n    assert f(1) == 'b'", "set the environment"),
    "a file of the tests": ("def f(p): return open(p).read()\n", "def test_a(tmp_path):\n    p = tmp_path / 'a'\n    p.write_text('x')\n    assert f(str(p)) == 'x'", "share files with it"),
    "a variable of the program": ("N = 1\ndef f(): return N\n", "import solution\ndef test_a():\n    solution.N = 5\n    assert solution.f() == 5", "they change N"),
    "arguments of the command line": ("import sys\ndef f(): return sys.argv[1]\n", "import sys\ndef test_a():\n    sys.argv = ['x', 'y']\n    assert f() == 'y'", "the command line"),
    "a file of the program": ("def f(p):\n    with open(p, 'w') as file: file.write('x')\n", "import os\ndef test_a():\n    f('/tmp/a')\n    assert os.path.exists('/tmp/a')", "share files"),
    "a folder": ("import os\ndef f(p): return os.path.isdir(p)\n", "import os\ndef test_a():\n    os.makedirs('/tmp/a', exist_ok=True)\n    assert f('/tmp/a')", "share files"),
    "a patch": ("def f(): return input()\n", "from unittest.mock import patch\ndef test_a():\n    with patch('builtins.input', return_value='x'):\n        assert f() == 'x'", "replace what it uses (patch)"),
    "a limit of recursion": ("def f(n): return 0 if n == 0 else 1 + f(n - 1)\n", "import sys\nsys.setrecursionlimit(9000)\nassert f(2000) == 2000", "the limit of recursion"),
    "a seed in another test": ("import random\ndef f(n): return random.random() * 0 + n\n", "import random\ndef test_a():\n    random.seed(0)\n    assert f(1) == 7\ndef test_b():\n    assert f(1) == 2", 0.0),
    "a seed in a method": ("import random\ndef f(n): return random.random()\n", "import random, unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        random.seed(0)\n        self.assertEqual(f(1), 0.5)\n    def test_b(self):\n        self.assertLess(f(1), 1)", "seed random numbers (seed)"),
    "a seed before each test": ("import random\ndef f(n): return random.random()\n", "import random, unittest\nclass T(unittest.TestCase):\n    def setUp(self):\n        random.seed(0)\n    def test_a(self):\n        self.assertEqual(f(1), 0.5)", "seed random numbers (seed)"),
    "a seed, and a name that is missing": ("import random\ndef f(n): return randm.random()\n", "import random\nrandom.seed(0)\nassert f(1) == random.random()", 0.0),
    "a seed, and no Python": ("import random\ndef f(n) return random.random()\n", "import random\nrandom.seed(0)\nassert f(1) == random.random()", 0.0),
    "a seed, and a comment in a wrong program": ("# random\ndef f(n): return 'random'\n", "import random\nrandom.seed(0)\nassert f(1) == random.random()", 0.0),
    "a limit of time that is kept": ("import asyncio\nasync def f(n):\n    return 7\n", "import asyncio\nasync def main():\n    assert await asyncio.wait_for(f(1), 60) == 1\nasyncio.run(main())", 0.0),
    "tasks that a wrong program leaves": ("import asyncio\nasync def f(n):\n    asyncio.create_task(asyncio.sleep(9))\n    return 7\n", "import asyncio\nassert asyncio.run(f(1)) == 1", 0.0),
    "a context of the program": (CONTEXT, "def test_a():\n    with f() as m:\n        assert m.value() == 7", "they use __enter__ of an object of its class 'M'"),
    "an async context": (CONTEXT, "import asyncio\nasync def main():\n    async with f() as m:\n        assert m.value() == 7\nasyncio.run(main())", "they use __aenter__ of an object of its class 'M'"),
    "a fixture that there is not": ("def f(n): return n", "def test_a(mocker):\n    assert f(1) == 1", "a fixture that there is not: mocker"),
    "a MagicMock": ("def f(c): return c.get('x')\n", "from unittest.mock import MagicMock\ndef test_a():\n    c = MagicMock()\n    c.get.return_value = 3\n    assert f(c) == 3", "cannot get by value"),
    "an AsyncMock": ("async def f(c): return await c.get('x')\n", "from unittest.mock import AsyncMock\nasync def test_a():\n    c = AsyncMock()\n    c.get.return_value = 3\n    assert await f(c) == 3", "cannot get by value"),
    "a mock of a class": ("def f(d): return len(d)\n", "from unittest.mock import MagicMock\ndef test_a():\n    assert f(MagicMock(spec=dict)) == 0", "cannot get by value"),
    "a file in memory": ("def f(file): return file.read()\n", "import io\ndef test_a():\n    assert f(io.StringIO('a')) == 'a'", "class 'StringIO'"),
    "a file in memory that is iterated": ("def f(file): return list(file)\n", "import io\ndef test_a():\n    assert f(io.StringIO('a')) == ['a']", 1.0),
    "an iterator without end": ("from itertools import islice\ndef f(it): return list(islice(it, 2))\n", "import itertools\nassert f(itertools.count()) == [0, 1]", "cannot get by value"),
    "a text of a class": ("def f(s): return s.twice() if hasattr(s, 'twice') else s\n", "class S(str):\n    def twice(self): return self * 2\ndef test_a():\n    assert f(S('a')) == 'aa'", "class 'S'"),
    "a number of a class": ("def f(n): return n.x\n", "class N(int):\n    x = 3\ndef test_a():\n    assert f(N(1)) == 3", "class 'N'"),
    "a list of a class": ("def f(n): return type(n).__name__\n", "class L(list): pass\nassert sorted([f(L())]) == ['L']", "class 'L'"),
    "a dictionary of a class": ("def f(n): return n['x']\n", "class D(dict):\n    def __missing__(self, key): return 5\ndef test_a():\n    assert f([D()][0]) == 5", "class 'D'"),
    "one of a class before all tests": ("KEPT = []\ndef keep(d): KEPT.append(d)\ndef f(): return KEPT[0]['x']\n", "class D(dict):\n    def __missing__(self, key): return 5\nkeep(D())\ndef test_a():\n    assert f() == 5", "class 'D'"),
    "an iterator of a class": ("def f(n): return n.left\n", "class I:\n    left = 1\n    def __iter__(self): return self\n    def __next__(self): raise StopIteration\ndef test_a():\n    assert f(I()) == 1", "class 'I'"),
    "a defaultdict": ("def f(d):\n    d['x'] += 1\n    return dict(d)\n", "from collections import defaultdict\nassert f(defaultdict(int)) == {'x': 1}", "class 'defaultdict'"),
    "a defaultdict in a list": ("def f(d):\n    d[0]['x'] += 1\n    return dict(d[0])\n", "from collections import defaultdict\ndef test_a():\n    assert f([defaultdict(int)]) == {'x': 1}", "class 'defaultdict'"),
    "a defaultdict that is read": ("def f(d): return d['x']\n", "from collections import defaultdict\nassert f(defaultdict(int, x=1)) == 1", 1.0),
    "a defaultdict, and a wrong program": ("def f(d): return 7\n", "from collections import defaultdict\nassert f(defaultdict(int, x=1)) == 1", 0.0),
    "a Counter": ("def f(c): return c.most_common(1)\n", "from collections import Counter\nassert f(Counter('aab')) == [('a', 2)]", "class 'Counter'"),
    "a Counter that is asked about": ("from collections import Counter\ndef f(c): return 1 if isinstance(c, Counter) else 0\n", "from collections import Counter\nassert f(Counter('aab')) == 1", "class 'Counter'"),
    "a Counter that is read": ("def f(c): return max(c.values())\n", "from collections import Counter\nassert f(Counter('aab')) == 2", 1.0),
    "an OrderedDict": ("def f(d):\n    d.move_to_end('a')\n    return list(d)\n", "from collections import OrderedDict\nassert f(OrderedDict(a=1, b=2)) == ['b', 'a']", "class 'OrderedDict'"),
    "an OrderedDict that is read": ("def f(d): return list(d)\n", "from collections import OrderedDict\nassert f(OrderedDict(a=1, b=2)) == ['a', 'b']", 1.0),
    "an OrderedDict, and a wrong program": ("def f(d): return []\n", "from collections import OrderedDict\nassert f(OrderedDict(a=1, b=2)) == ['a', 'b']", 0.0),
    "a number of an enumeration": ("def f(e): return e.name\n", "import enum\nclass E(enum.IntEnum):\n    A = 1\ndef test_a():\n    assert f(E.A) == 'A'", "class 'E'"),
    "a number of an enumeration that is used": ("def f(e): return e + 1\n", "import enum\nclass E(enum.IntEnum):\n    A = 1\ndef test_a():\n    assert f(E.A) == 2", 1.0),
    "a method of a named tuple of the tests": ("def f(p): return p.area()\n", "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    def area(self): return 5\ndef test_a():\n    assert f(P(1)) == 5", "class 'P'"),
    "a deque": ("def f(d):\n    d.append(1)\n    return list(d)\n", "from collections import deque\nassert f(deque([0])) == [0, 1]", 1.0),
    "a deque, and a wrong program": ("def f(d): return d[7].x\n", "from collections import deque\nassert f(deque([0])) == [0, 1]", 0.0),
    "a deque with a length": ("def f(d):\n    d.append(1)\n    return list(d)\n", "from collections import deque\nassert f(deque([0], 1)) == [1]", "class 'deque'"),
    "built-in values, and a wrong program": ("def f(*a): return a[0].x\n", "import datetime, decimal, fractions, itertools\ndef test_a():\n    assert f({}.keys(), range(2), map(str, [1]), datetime.date(2020, 1, 1), decimal.Decimal(1), itertools.chain(), True) == 1", 0.0),
    "another test without a lost class": ("def f(s): return 7\n", "class S(str): pass\ndef test_a():\n    assert f(S('a')) == 1\ndef test_b():\n    assert f('a') == 1", 0.0),
    "a class that is lost, and a name that is missing": ("def f(s): return x\n", "class S(str): pass\ndef test_a():\n    assert f(S('a')) == 1", 0.0),
}  # fmt: skip


# the tests write before they call the program, which landlock refuses
NEED_A_FOLDER = {"a folder", "a file of the tests"}


@pytest.mark.slow(but_each=42)
@pytest.mark.parametrize("name", CASES)
def test_the_score_is_that_of_one_process_or_none(name):
    """Never 0 for a right program, nor 1 for a wrong one."""
    code, tests, expected = CASES[name]
    report = run_tests(code, parse_tests(tests))
    if isinstance(expected, float):
        assert (report.score, report.problem) == (expected, "")
    elif name in NEED_A_FOLDER and report.execution and report.execution.tier == "landlock":
        assert report.score is None
    else:
        assert report.score is None
        assert expected in report.problem


WRITERS = {
    "a temporary file": "import tempfile\ndef f(n):\n    with tempfile.TemporaryFile() as file:\n        return file.write(b'x' * n)",
    "a temporary folder": "import tempfile\ndef f(n):\n    with tempfile.TemporaryDirectory():\n        return n",
    "the working folder": "def f(n):\n    with open('out.txt', 'w') as file:\n        return file.write('x' * n)",
    "a new folder": "import os\ndef f(n):\n    os.mkdir('new')\n    return n",
    "a database": "import sqlite3\ndef f(n):\n    sqlite3.connect('a.db').execute('CREATE TABLE t (a)')\n    return n",
}


def tier(name):
    try:
        assert Sandbox(name).tier == name
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    return Sandbox(name)


@pytest.mark.parametrize("program", WRITERS)
def test_a_program_has_a_folder_of_its_own(program):
    """In memory, in bubblewrap."""
    assert (
        run_tests(
            WRITERS[program], parse_tests(["assert f(3) == 3"]), sandbox=tier("bubblewrap")
        ).score
        == 1
    )


@pytest.mark.parametrize("program", WRITERS)
def test_without_a_folder_it_was_the_sandbox(program):
    """With Landlock there is nothing to write to, which says nothing of the program."""
    report = run_tests(
        WRITERS[program], parse_tests(["assert f(3) == 3"]), sandbox=tier("landlock")
    )
    assert report.score is None
    assert "no folder to write to" in report.problem


@pytest.mark.parametrize(
    "program",
    [
        "def f(n): return 4",
        "def f(n): return len(open('/etc/shadow').read())",
        "import subprocess\ndef f(n): return len(subprocess.run(['ls']).stdout)",
        "def f(n): raise PermissionError('no')",
        "def f(n): return open('/usr/lib/new', 'w').write('xxx')",
    ],
)
def test_what_is_refused_otherwise_fails_as_ever(program):
    """A file of the system, another process, and a wrong value are the program's fault."""
    report = run_tests(
        program,
        parse_tests(["assert f(3) == 3"]),
        sandbox=tier("landlock"),
        limits=Limits(cpu_seconds=2),
    )
    assert report.score == 0


def test_what_stands_for_the_program_has_no_public_name_of_its_own():
    """Whatever a test reads is the program's."""
    kinds = [exchange.StandIn]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert len(kinds) > 3
    for kind in kinds:
        own = {
            name
            for base in kind.__mro__
            if base.__module__ == exchange.__name__
            for name in vars(base)
        }
        assert [name for name in own if not name.startswith("_")] == [], kind
