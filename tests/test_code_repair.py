"""What is repaired of Python in an answer: what is left around it, and missing imports. No
statement is changed.
"""

import subprocess
import sys
from asyncio import run

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redraft
from redraft.answers.code import CodeAnswer, is_code
from redraft.answers.python_imports import insert_imports, missing_imports, with_missing_imports
from redraft.answers.python_source import undefined_names
from redraft.loop.records import Candidate
from redraft.sandbox.graders.code_checks import CodeSyntax, Lint

PYTHON = CodeAnswer("python")
TASK = redraft.Task("Write a program.")


FORMS = {
    "a fence that closes nothing": ("x = int(input())\nprint(x)\n```", "x = int(input())\nprint(x)"),
    "an indented one with a label": ("x = f(1)\n  ```python", "x = f(1)"),
    "no code": ("I cannot do that.\n```", None),
    "a value": ("```\n[1, 2", None),
    "a missing colon": ("def f(x)\n    return 1", None),
    "code that is cut off": ("x = 1\ndef g(", None),
    "a wrong block": ("if x:\n    y = 1\n      z = 2", None),
    "a body": ("    if x > 1:\n        return 1\n    return 2", None),
    "a body that lost its indentation": ("if x > 1:\n    return 1\nreturn 2", None),
    "a body of one line": ("return x", None),
    "code": ("x = 1", None),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_what_is_left_around_code_is_removed(name):
    """By the form of the answer, and by the grader of syntax; mistakes in the code stay."""
    text, repaired = FORMS[name]
    edits = [(edit.text, edit.lossy) for edit in PYTHON.repairs(text)]
    assert edits == ([] if repaired is None else [(repaired, False)])
    edit = run(CodeSyntax().repair(TASK, Candidate(0, text)))
    assert (edit and edit.text) == repaired


def test_indentation_of_all_lines_is_no_fault_of_the_code():
    """It is removed together with a fence."""
    assert [edit.text for edit in PYTHON.repairs("    x = f(1)\n    ```\n")] == ["x = f(1)\n"]


def test_other_languages_are_left_alone():
    """What is right in them is not known."""
    assert list(CodeAnswer("ruby").repairs("puts 1\n```")) == []


def test_the_loop_removes_a_fence_without_a_call():
    """The repair is a candidate with a note."""
    model = redraft.ScriptedModel(["print(input())\n```"])
    result = redraft.refine_sync("Echo a line.", model, "syntax", answer="code:python")
    assert (result.parsed, result.usage.calls) == ("print(input())", 1)
    assert result.trace.best.role == "repair"
    assert result.trace.best.note.startswith("removed what was left around the code")


LINES = st.sampled_from(
    ["def f(x):", "    return x", "```", "  ~~~py", "x = 1", "", "Here you are."]
)


@given(st.lists(LINES, max_size=8).map("\n".join) | st.text(max_size=60))
@settings(deadline=None)
def test_a_repair_is_code_and_only_what_is_no_code_is_repaired(text):
    """Whatever the text is, and nothing is raised."""
    for edit in PYTHON.repairs(text):
        assert is_code(edit.text)
        assert not is_code(text)
        assert list(PYTHON.repairs(edit.text)) == []


HOSTILE = {
    "deep brackets": "(" * 40_000,
    "deep unary": "x = " + "-" * 40_000 + "1",
    "deep blocks": "\n".join(" " * n + "if x:" for n in range(300)),
    "many errors": "if x\n" * 4_000,
    "long line": "x = " + "1 " * 20_000,
    "nul": "x = \0" * 100,
    "surrogate": "x = '\udc80",
    "too long": "x = sqrt(2)\n" * 5_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_code_is_left_alone(name):
    """The process survives, and it takes a bounded time."""
    assert list(PYTHON.repairs(HOSTILE[name])) == []
    assert with_missing_imports(HOSTILE[name]) is None


# ---- imports

IMPORTS = [
    ("x: List[int] = []", "from typing import List"),
    ("def f(x):\n    return math.sqrt(x)", "import math"),
    ("y = ceil(2.5) + sqrt(2)", "from math import ceil, sqrt"),
    ("c = Counter('aab')", "from collections import Counter"),
    ("d = datetime.datetime.now()", "import datetime"),
    ("d = datetime.now()", "from datetime import datetime"),
    ("@dataclass\nclass P:\n    x: int = field(default=1)", "from dataclasses import dataclass, field"),
    ("def f(n):\n    return reduce(lambda a, b: a * b, range(n))", "from functools import reduce"),
    ("def f(x):\n    return string.ascii_letters", "import string"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "statement"), IMPORTS)
def test_a_missing_import_is_added(code, statement):
    """The statement comes first, and no name is undefined after it."""
    assert missing_imports(code) == [statement]
    assert insert_imports(code, [statement]) == f"{statement}\n{code}"
    assert not undefined_names(f"{statement}\n{code}")


def test_imports_come_after_the_docstring_and_future_imports():
    """A program stays valid."""
    start = '"""A program."""\nfrom __future__ import annotations\n'
    edit = with_missing_imports(f"{start}x = deque()")
    assert edit.text == f"{start}from collections import deque\nx = deque()"
    assert edit.note == "added `from collections import deque`"
    assert insert_imports("#!/bin/python\nx", ["import x"]) == "#!/bin/python\nimport x\nx"


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
    "x = np.zeros(3)",
    "x = null",
    "def f(:",
]


@pytest.mark.parametrize("code", COMPLETE)
def test_no_import_is_added_where_none_is_missing_or_none_is_known(code):
    """Names that are defined in any visible scope stay, and unknown ones are not invented."""
    assert missing_imports(code) == []


def test_imports_that_are_added_exist():
    """Every statement that is added can be executed."""
    names = "defaultdict deque sqrt List reduce heappush Decimal".split()
    statements = missing_imports("\n".join(f"x = {name}" for name in names))
    assert len(statements) == 6
    subprocess.run([sys.executable, "-I", "-c", "\n".join(statements)], check=True)


LINT = {
    "unused import": ("import os\nx = 1", "x = 1", "applied the safe fixes of ruff"),
    "missing import": ("x = math.pi", "import math\nx = math.pi", "added `import math`"),
    "two statements on a line": ("def f(x):\n    if x: return 1\n    return 2", "def f(x):\n    if x:\n        return 1\n    return 2", "formatted the code with ruff"),
    "prose around": ("So:\n```python\nimport os\nx = 1\n```\n", "So:\n```python\nx = 1\n```\n", "applied the safe fixes of ruff"),
    "unknown name": ("x = frobnicate(1)", None, ""),
    "nothing to do": ("x = 1", None, ""),
}  # fmt: skip


@pytest.mark.slow(but_each=3)
@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("name", LINT)
def test_findings_are_repaired_where_that_keeps_what_the_code_does(name):
    """Imports, safe fixes and the format; a repair is kept only if findings become fewer."""
    text, repaired, note = LINT[name]
    edit = run(Lint().repair(TASK, Candidate(0, text)))
    assert (edit and edit.text, edit.note if edit else "") == (repaired, note)
