"""Repairs of syntax and of names: what is repaired, and what is left alone."""

import ast
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_row import each_row
from redraft.code.imports import foreign_names, missing_imports, undefined_names
from redraft.code.proposals import repaired_syntax
from redraft.code.slips import repair_syntax
from redraft.code.source import compiles

SLIPS = {
    "colon": ("def f(x)\n    return x\n", "def f(x):\n    return x\n"),
    "colons": ("if x > 1\n    y = 1\nelse\n    y = 0", "if x > 1:\n    y = 1\nelse:\n    y = 0"),
    "colon before a comment": ("for i in range(3)  # three\n    f(i)", "for i in range(3):  # three\n    f(i)"),
    "open bracket": ("y = max(1, 2\nz = 3", "y = max(1, 2)\nz = 3"),
    "two open brackets": ("def f(x):\n    if (x > 1:\n        y = max(x, 2\n    return y", "def f(x):\n    if (x > 1):\n        y = max(x, 2)\n    return y"),
    "unmatched bracket": ("y = 1)", "y = 1"),
    "wrong bracket": ("y = [1, 2)", "y = [1, 2]"),
    "no indentation": ("def f(x):\nreturn x", "def f(x):\n    return x"),
    "too much indentation": ("def f(x):\n    y = 1\n      z = 2", "def f(x):\n    y = 1\n    z = 2"),
    "odd dedent": ("if x:\n    if y:\n        a = 1\n      b = 2", "if x:\n    if y:\n        a = 1\n        b = 2"),
    "tabs and spaces": ("def f(x):\n\tif x:\n        return 1\n\treturn 2", "def f(x):\n    if x:\n        return 1\n    return 2"),
    "outside of the function": ("def f(x):\n    y = 1\nreturn y", "def f(x):\n    y = 1\n    return y"),
    "everything indented": ("    x = 1\n    y = 2", "x = 1\ny = 2"),
    "empty block": ("def f():\n    # later\n\ndef g():\n    return 1", "def f():\n    pass\n    # later\n\ndef g():\n    return 1"),
    "typographic quotes": ("x = \u201ca\u201d + \u2018b\u2019", "x = \"a\" + 'b'"),
    "typographic signs": ("x = 3 \u2212 1\u00a0+ 2 \u00d7 2", "x = 3 - 1 + 2 * 2"),
    "prose around": ("Here is the code:\n\nx = 1\ny = x\nprint(x)\n\nThat's all you need.", "\nx = 1\ny = x\nprint(x)\n\n"),
    "fences": ("Sure!\n```python\ndef f(x):\n    return x\n```\nIt's short.", "def f(x):\n    return x"),
    "interactive session": (">>> def f(x):\n...     return x\n...\n>>> y = f(1)\n1", "def f(x):\n    return x\n\ny = f(1)"),
    "line numbers": ("1 def f(x):\n2     return x", "def f(x):\n    return x"),
    "print statement": ("print 'a', x", "print('a', x)"),
    "except of Python 2": ("try:\n    f()\nexcept ValueError, e:\n    pass", "try:\n    f()\nexcept ValueError as e:\n    pass"),
    "raise of Python 2": ("raise TypeError, 'x'", "raise TypeError('x')"),
    "else if": ("if x:\n    y = 1\nelse if z:\n    y = 2", "if x:\n    y = 1\nelif z:\n    y = 2"),
    "assignment as a test": ("if x = 1:\n    f()", "if x == 1:\n    f()"),
    "logic of C": ("if x && !y || z:\n    f()", "if x and not y or z:\n    f()"),
    "increment of C": ("x = 1\nx++", "x = 1\nx += 1"),
    "open string": ("x = 'abc", "x = 'abc'"),
    "open string in a call": ("print('abc)", "print('abc')"),
    "apostrophe": ("x = 'It's'", 'x = "It\'s"'),
    "missing comma": ("x = [1, 2 3]", "x = [1, 2, 3]"),
    "misspelled keywords": ("dfe f(x):\n    retrun x", "def f(x):\n    return x"),
    "two operators": ("x = 1 +* 2", "x = 1 + 2"),
    "leading zeros": ("x = 007", "x = 7"),
    "cut off": ("def f(x):\n    y = x\n    return [y, (2 *", "def f(x):\n    y = x"),
    "Windows line ends": ("if x\r\n    y = 1", "if x:\n    y = 1"),
    "entities": ("if x &lt; 1:\n    f()", "if x < 1:\n    f()"),
}  # fmt: skip


@each_row("name", SLIPS)
def test_a_slip_is_repaired(name):
    """The rest of the text stays as it is, and the note says what was done."""
    code, repaired = SLIPS[name]
    proposal = repair_syntax(code)
    assert proposal is not None
    assert ast.dump(ast.parse(proposal.code)) == ast.dump(ast.parse(repaired))
    assert "\n".join(proposal.code.split()) == "\n".join(repaired.split())
    assert proposal.note


UNREPAIRABLE = [
    "",
    "x = 1\n",
    "I cannot help with that.",
    "Sorry, no.",
    "%%% ((( ]]",
    "x" * 60_000 + " y z",
    "def f(x):\n    pass\n",
]


@pytest.mark.parametrize("code", UNREPAIRABLE, ids=range(len(UNREPAIRABLE)))
def test_nothing_is_made_of_text_that_is_no_code_or_that_is_right(code):
    """Sentences do not become code, and code without an error stays."""
    assert repair_syntax(code) is None


@given(
    st.lists(
        st.sampled_from(
            [
                "if x:",
                "    y = 1",
                "    return y",
                "return x",
                "for x in y:",
                "else:",
                "def f(",
                "y = (1",
            ]
        ),
        max_size=5,
    )
)
@settings(max_examples=40, deadline=None)
def test_a_repair_never_loses_a_return(lines):
    """What is a whole statement is no end that was cut off."""
    code = "\n".join(lines)
    repaired = repair_syntax(code)
    assert repaired is None or repaired.code.count("return") == code.count("return")


def test_most_of_a_text_is_never_removed():
    """A program of which only the first line is code is not reduced to it."""
    broken = "x = 1\n" + "\n".join(f"@@ {n} := ((" for n in range(8))
    assert repair_syntax(broken) is None


LINES = st.sampled_from(
    [
        "def f(x):",
        "def g(x, y)",
        "    return x",
        "    if x > 1:",
        "  y = (1, 2",
        "]",
        "\t'abc",
        "print 'a'",
        "# c",
        "",
        "Here you are.",
        "x = 1",
    ]
)


@given(st.lists(LINES, max_size=8).map("\n".join) | st.text(max_size=60))
@settings(max_examples=3 * settings.default.max_examples, deadline=None)
def test_a_repair_compiles_and_only_errors_are_repaired(code):
    """Whatever the text is, a repair is code that compiles, and nothing is raised."""
    repaired = repair_syntax(code)
    if repaired is not None:
        assert compiles(repaired.code)
        assert not compiles(code)
        assert repair_syntax(repaired.code) is None


HOSTILE = {
    "deep brackets": "(" * 40_000,
    "deep unary": "x = " + "-" * 40_000 + "1",
    "deep blocks": "\n".join(" " * n + "if x:" for n in range(300)),
    "many errors": "if x\n" * 4_000,
    "long line": "x = " + "1 " * 20_000,
    "nul": "x = \0" * 100,
    "surrogate": "x = '\udc80",
}


TAKES_LONG = ("long line", "many errors")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=pytest.mark.slow) if each in TAKES_LONG else each
        for each in HOSTILE
    ],
)
def test_hostile_code_is_repaired_in_a_worker_or_left_alone(name):
    """The process survives, and it takes a bounded time."""
    repaired = repaired_syntax(HOSTILE[name])
    assert repaired is None or compiles(repaired.code)


# ---- names

IMPORTS = [
    ("x: List[int] = []", "from typing import List"),
    ("def f(x):\n    return math.sqrt(x)", "import math"),
    ("y = ceil(2.5) + sqrt(2)", "from math import ceil, sqrt"),
    ("c = Counter('aab')", "from collections import Counter"),
    ("d = datetime.datetime.now()", "import datetime"),
    ("d = datetime.now()", "from datetime import datetime"),
    (
        "@dataclass\nclass P:\n    x: int = field(default=1)",
        "from dataclasses import dataclass, field",
    ),
    ("def f(n):\n    return reduce(lambda a, b: a * b, range(n))", "from functools import reduce"),
    ("def f(x):\n    return string.ascii_letters", "import string"),
]


@pytest.mark.parametrize(("code", "statement"), IMPORTS)
def test_a_missing_import_is_added(code, statement):
    """The statement comes first, and no name is undefined after it."""
    proposal = missing_imports(code)
    assert proposal.code == f"{statement}\n{code}"
    assert not undefined_names(proposal.code)


def test_imports_come_after_the_docstring_and_future_imports():
    """A program stays valid."""
    code = '"""A program."""\nfrom __future__ import annotations\nx = deque()'
    assert (
        missing_imports(code).code
        == '"""A program."""\nfrom __future__ import annotations\nfrom collections import deque\nx = deque()'
    )


COMPLETE = [
    "import math\nx = math.pi",
    "def f(xs):\n    return [x for x in xs if (y := x)] + [y]",
    "def f():\n    global q\n    q = 1\n\ndef g():\n    return q",
    "from math import *\nx = sqrt(2)",
    "class A:\n    def f(self):\n        return __class__",
    "try:\n    import re\nexcept ImportError as error:\n    print(error, re)",
    "def f(x):\n    match x:\n        case [a, *b]:\n            return a, b",
    "x = frobnicate(1)",
    "copy = 1\ndef f():\n    return copy",
    "def f(:",
]


@pytest.mark.parametrize("code", COMPLETE)
def test_no_import_is_added_where_none_is_missing_or_none_is_known(code):
    """Names that are defined in any visible scope stay, and unknown ones are not invented."""
    assert missing_imports(code) is None


def test_only_the_standard_library_is_imported_unless_asked():
    """What `np` stands for is only a proposal where a sandbox decides."""
    assert missing_imports("x = np.zeros(3)") is None
    assert missing_imports("x = np.zeros(3)", standard_library_only=False).code.startswith(
        "import numpy as np\n"
    )


def test_names_of_other_languages_are_replaced():
    """Only where they are undefined."""
    assert foreign_names("é = null; y = [true, xrange(3)]").code == "é = None; y = [True, range(3)]"
    assert foreign_names("null = 0\ny = null") is None


def test_imports_that_are_added_exist():
    """Every statement that is added can be executed."""
    code = "\n".join(
        f"x = {name}" for name in "defaultdict deque sqrt List reduce heappush Decimal".split()
    )
    statements = missing_imports(code).code.removesuffix(code)
    assert statements.count("import") == 6
    subprocess.run([sys.executable, "-I", "-c", statements], check=True)
