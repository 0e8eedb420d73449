"""What tests and a program share in one process, where each has a sandbox of its own: it is carried over, or there is no score."""

import pytest
from redraft.code import parse_tests, run_tests
from redraft.errors import SandboxUnavailableError
from redraft.sandbox import Limits, Sandbox

pytestmark = pytest.mark.usefixtures("sandbox")
POINT = "from collections import namedtuple\nPoint = namedtuple('Point', 'x y')\n"
CASES = {  # a program, its tests, and their score or why there is none
    "a named tuple": (POINT + "def f(n): return Point(n, 2)\n", "def test_a():\n    p = f(1)\n    assert p.x == 1 and p.y == 2 and p == (1, 2)\n    assert p._asdict() == {'x': 1, 'y': 2}", 1.0),
    "named tuples in a list": (POINT + "def f(n): return [Point(n, 2)]\n", "def test_a():\n    p = f(1)\n    assert p[0].x == 1", 1.0),
    "a wrong named tuple": (POINT + "def f(n): return [Point(7, 2)]\n", "def test_a():\n    p = f(1)\n    assert p[0].x == 1", 0.0),
    "a method of a named tuple": ("from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    def area(self): return 5\ndef f(n): return P(n)\n", "def test_a():\n    assert f(1).x == 1\n    assert f(1).area() == 5", "they read area of a named tuple (P)"),
    "a field with the name of a method": ("from collections import namedtuple\nR = namedtuple('R', 'count')\ndef f(n): return R(n)\n", "def test_a():\n    assert f(1).count == 1", 1.0),
    "a named tuple as an argument": ("def f(p): return p.x + p.y\n", "from collections import namedtuple\nP = namedtuple('P', 'x y')\nassert sorted([f(P(1, 2))]) == [3]", 1.0),
    "a named tuple in asserts alone": (POINT + "def f(n): return Point(n, 2)\n", ["assert f(1) == (1, 2)"], 1.0),
    "a field in place of a method of a text": ("class C:\n    def __call__(s, *a): return True\nfrom collections import namedtuple\nR = namedtuple('R', 'startswith')\ndef f(n): return R(C())\n", "def test_a():\n    assert f(1).startswith('abc')", 0.0),
    "a field in place of a method of a dictionary": ("class C:\n    def __call__(s, *a): return True\nfrom collections import namedtuple\nR = namedtuple('R', 'keys')\ndef f(n): return R(C())\n", "def test_a():\n    assert f(1).keys()", 0.0),
    "a named tuple that the tests make": (POINT, "def test_a():\n    assert Point(1, 2).x == 1\n    assert Point(1, 2) == (1, 2)", 1.0),
    "a seed": ("import random\ndef f(n): return random.randint(0, n)\n", "import random\ndef test_a():\n    random.seed(0)\n    a = f(10**9)\n    random.seed(0)\n    assert f(10**9) == a", "seed random numbers (seed)"),
    "a seed for the tests alone": ("def f(n): return n + 1\n", "import random\nrandom.seed(0)\nn = random.randint(0, 9)\nassert f(n) == n + 1", 1.0),
    "a seed for the tests alone, and a wrong program": ("def f(n): return n\n", "import random\nrandom.seed(0)\nn = random.randint(0, 9)\nassert f(n) == n + 1", 0.0),
    "an argument that is changed later": ("class S:\n    def __init__(self, items): self.items = items\n    def total(self): return sum(self.items)\n", "def test_a():\n    a = [1]\n    s = S(a)\n    a.append(2)\n    assert s.total() == 3", "they change a value that the program got or gave"),
    "an argument that was copied": ("class S:\n    def __init__(self, items): self.items = list(items)\n    def total(self): return sum(self.items)\n", "def test_a():\n    a = [1]\n    s = S(a)\n    a.append(2)\n    assert s.total() == 1", 1.0),
    "a value that the program still has": ("class S:\n    def __init__(self): self.items = [1]\n    def all(self): return self.items\n", "def test_a():\n    s = S()\n    s.all().append(2)\n    r = s.all()\n    r.append(3)\n    assert s.all() == [1]", "they change a value that the program got or gave"),
    "a copy of it": ("class S:\n    def __init__(self): self.items = [1]\n    def all(self): return list(self.items)\n", "def test_a():\n    s = S()\n    r = s.all()\n    r.append(3)\n    assert s.all() == [1]", 1.0),
    "a value that the program changes later": ("class S:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x); return self.items\n", "def test_a():\n    s = S()\n    assert s.push(1) == [1]\n    got = s.push(2)\n    assert got == [1, 2]\n    got = s.push(3)\n    assert got == [1, 2, 3]", 1.0),
    "an argument that nobody has": ("def f(a): return sorted(a)\n", "def test_a():\n    a = [2, 1]\n    assert f(a) == [1, 2]\n    a.append(0)\n    assert f(a) == [0, 1, 2]", 1.0),
    "objects that the program still has": (
        "class Item:\n    def __init__(self, n): self.n = n\n"
        "class Box:\n    def __init__(self): self.items = []\n    def add(self, n): self.items.append(Item(n)); return self.items\n"
        "    def sum(self): return sum(item.n for item in self.items)\n",
        "def test_a():\n    box = Box()\n    items = box.add(1)\n    box.add(2)\n    assert [i.n for i in items] == [1] and box.sum() == 3",
        1.0,
    ),
    "a list of objects in the program": (
        "class Item:\n    def __init__(self, n): self.n = n\nALL = [Item(1)]\ndef f(items): return [i.n for i in items]\n",
        "def test_a():\n    assert ALL[0].n == 1\n    assert f(ALL) == [1]",
        1.0,
    ),
    "a part of an argument that is changed later": (
        "class Grid:\n    def __init__(self, rows): self.rows = rows\n    def first(self): return self.rows[0][0]\n",
        "def test_a():\n    rows = [[1], [2]]\n    grid = Grid(rows)\n    rows[0][0] = 5\n    assert grid.first() == 5",
        "they change a value that the program got or gave",
    ),
    "a program that remembers": ("def f(a, memo={}):\n    k = tuple(a)\n    memo[k] = sum(a)\n    return memo[k]\n", "def test_a():\n    a = [2, 1]\n    assert f(a) == 3\n    a.append(0)\n    assert f(a) == 3", 1.0),
    "what is printed": ("def f(n): print(n)\n", "import io, contextlib\ndef test_a():\n    out = io.StringIO()\n    with contextlib.redirect_stdout(out):\n        f(1)\n    assert out.getvalue() == '1\\n'", "read what is printed"),
    "a warning": ("import warnings\ndef f(n): warnings.warn('x')\n", "import pytest\ndef test_a():\n    with pytest.warns(UserWarning):\n        f(1)", "look at warnings"),
    "the environment": ("import os\ndef f(n): return os.environ['A']\n", "import os\ndef test_a():\n    os.environ['A'] = 'b'\n    assert f(1) == 'b'", "set the environment"),
    "a file of the tests": ("def f(p): return open(p).read()\n", "def test_a(tmp_path):\n    p = tmp_path / 'a'\n    p.write_text('x')\n    assert f(str(p)) == 'x'", "share files with it"),
    "a fixture that there is not": ("def f(n): return n", "def test_a(mocker):\n    assert f(1) == 1", "a fixture that there is not: mocker"),
}  # fmt: skip


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("name", CASES)
def test_the_score_is_that_of_one_process_or_none(name):
    """Never 0 for a right program, nor 1 for a wrong one."""
    code, tests, expected = CASES[name]
    report = run_tests(code, parse_tests(tests))
    if isinstance(expected, float):
        assert (report.score, report.problem) == (expected, "")
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
    assert run_tests(WRITERS[program], parse_tests(["assert f(3) == 3"]), sandbox=tier("bubblewrap")).score == 1


@pytest.mark.parametrize("program", WRITERS)
def test_without_a_folder_it_was_the_sandbox(program):
    """With Landlock there is nothing to write to, which says nothing of the program."""
    report = run_tests(WRITERS[program], parse_tests(["assert f(3) == 3"]), sandbox=tier("landlock"))
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
    report = run_tests(program, parse_tests(["assert f(3) == 3"]), sandbox=tier("landlock"), limits=Limits(cpu_seconds=2))
    assert report.score == 0
