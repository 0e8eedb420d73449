"""Which code of an answer is the program: for tests, for the other graders of code, and for the
form of the answer alike.
"""

import asyncio
import textwrap
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import redraft
from each_row import each_row
from redraft import Task
from redraft.answers import CodeAnswer
from redraft.graders.computed.code_checks import code_of
from redraft.graders.computed.code_tests import program_of
from redraft.graders.registry import grader_from_spec
from redraft.loop.records import Candidate
from redraft.sandbox.code import parse_tests


def block(code, label="python", fence="```"):
    return f"{fence}{label}\n{code}\n{fence}\n"


F = "def f(n):\n    return n + 1"
WITH_EXAMPLE = 'def f(n):\n    """Return the next number.\n\n    ```python\n    f(1)  # 2\n    ```\n    """\n    return n + 1\n'
USAGE = (
    "for i in range(10):\n    raise SystemExit('a long line that uses it', f(i))\nresult = f(3)\n"
    * 3
)
CALLS_F = "assert f(1) == 2"
TRIED = block("def f(n):\n    return n * 7 + 123456789")
RIGHT = {
    # a text that is Python as a whole
    "an example in a docstring": (WITH_EXAMPLE, CALLS_F),
    "a byte order mark": (f"\ufeff{WITH_EXAMPLE}", CALLS_F),
    "line ends of Windows": (WITH_EXAMPLE.replace("\n", "\r\n"), CALLS_F),
    "line ends of Windows, in a fence": (f"Sure:\n\n{block(WITH_EXAMPLE)}Done.".replace("\n", "\r\n"), CALLS_F),
    # several blocks
    "usage": (f"Here:\n{block(F)}Usage:\n{block(USAGE)}", CALLS_F),
    "tests of its own": (block(F) + block("import unittest\nclass TestF(unittest.TestCase):\n    f = 1\n" + "assert f(1) == 7\n" * 9), CALLS_F),
    "a test function of its own": (block(F) + block("def test_f():\n    f = 3\n    assert f(1) == 2\ntest_f()"), CALLS_F),
    "a helper": (block(f"def helper(n):\n    return n + 1\n# {'x' * 300}") + block("def f(n):\n    return helper(n)"), CALLS_F),
    "a helper after it": (block("def f(n):\n    return helper(n)") + "where\n" + block("def helper(n):\n    return n + 1"), CALLS_F),
    "imports": (block("import math") + block("def f(n):\n    return math.floor(n) + 1"), CALLS_F),
    "imports of all names": (block("from math import *") + block("def f(n):\n    return floor(n) + 1"), CALLS_F),
    "a fence around a fence": (f"```\n{block(F)}```", CALLS_F),
    "a constant": (block("STEP = 1") + block("def f(n):\n    return n + STEP"), CALLS_F),
    "a first attempt": (block("def f(n):\n    # first attempt\n    x = 0\n    return n * 2 + x + 5") + "Better:\n" + block(F), CALLS_F),
    "a helper of a first attempt": (
        block("def g(n):\n    return 1\ndef f(n):\n    return n - g(n)") + block("def f(n):\n    return n + g(n)"),
        CALLS_F,
    ),
    "a head without a body at the end": (block(F) + "It has the head\n" + block("def f(n):\n    ..."), CALLS_F),
    "a template at the end": (block(F) + "It has the head\n" + block("def f(n):\n    raise NotImplementedError"), CALLS_F),
    "a name that is local in it": (block("def f(n):\n    result = n + 1\n    return result") + block("result = f(input())"), CALLS_F),
    "a method of its class": (
        block("class S:\n    def push(self, x):\n        return x") + "The method:\n" + block("def push(self, x):\n    return 7"),
        "s = S()\nassert s.push(1) == 1",
    ),
    "two names": (block(f"{F}\ndef g(n):\n    return n") + block("def g(n):\n    return n * 2"), "assert f(1) == 2\nassert g(2) == 4"),
    "an exception that is caught": (
        block("class Bad(Exception): pass") + block("def f(n):\n    if n < 0: raise Bad\n    return 2") + block(USAGE),
        "def test_f():\n    try:\n        f(-1)\n        assert False\n    except Bad:\n        pass\n    assert f(1) == 2\ntest_f()",
    ),
    "imports from __future__": (
        block("def h(n):\n    return 1") + block("from __future__ import annotations\ndef f(n: X):\n    return n + h(n)"),
        CALLS_F,
    ),
    "a lambda": (block("f = lambda n: n + 1") + block(USAGE), CALLS_F),
    "check(candidate)": (block(F) + block(USAGE), "def check(candidate):\n    assert candidate(1) == 2\n\ncheck(f)"),
    "Solution": (block("class Solution:\n    def f(self, n):\n        return n + 1") + block(USAGE), "assert Solution().f(1) == 2"),
    # fences
    "in a list": ("1. Do\n\n   ```python\n   def f(n):\n       return n + 1\n   ```\n2. Use\n\n   ```python\n   print(f(1), f(2), f(3))\n   ```", CALLS_F),
    "behind a number": (f"1. ```python\n   {F.replace(chr(10), chr(10) + '   ')}\n   ```\nDone.", CALLS_F),
    "four backticks": (block(WITH_EXAMPLE, fence="````"), CALLS_F),
    "tildes": (block(WITH_EXAMPLE, fence="~~~"), CALLS_F),
    "a longer end": (f"```python\n{F}\n`````\nDone.", CALLS_F),
    "not closed": (f"```python\n{F}", CALLS_F),
    "cut": (f"{block(F)}Again:\n```python\ndef f(n):\n    return (n +", CALLS_F),
    "a title": (block(F, 'python title="f.py"'), CALLS_F),
    "a file": (block(F, "python:solution.py"), CALLS_F),
    "a class of Pandoc": (block(F, "{.python .numberLines}"), CALLS_F),
    "an unknown label": (block(F, "code"), CALLS_F),
    "on one line": ("```def f(n): return n + 1```", CALLS_F),
    # reasoning
    "reasoning": (f"<think>\nI try\n{TRIED}</think>\n\nSo:\n{block(F)}", CALLS_F),
    "reasoning that is a block": (f"<think>```python\ndef f(n):\n    return 0\n```</think>\n\nText\n```python\n{F}\n```", CALLS_F),
    "reasoning that the prompt began": (f"I try\n{TRIED}</think>\n\n{block(F)}", CALLS_F),
    "reasoning that defines it last": (f"{block(F)}\n\nDone.<think>or\n{TRIED}</think>", CALLS_F),
    "reasoning before a program": (f"<think>{TRIED}</think>\n{F}", CALLS_F),
    "reasoning in other tags": (f"<thinking>\n{TRIED}</thinking>\n{F}", CALLS_F),
    "nothing but reasoning": (f"<think>\n{block(F)}</think>", CALLS_F),
    "reasoning that does not end": (f"<think>\n{block(F)}", CALLS_F),
    "a text with a tag": (block(f"{F}\nTAGS = '<think>', '</think>'"), CALLS_F),
    "a tag in a longer text": (f"TAG = \"\"\"\n<think>\n{block('x')}</think>\n\"\"\"\n{F}", CALLS_F),
    "tags around a fence": (f"<answer>```python\n{F}\n```</answer>", CALLS_F),
    # what is no Python
    "a session of the interpreter": (block(F) + block(">>> f(1)\n2\n" * 30), CALLS_F),
    "a patch": (block(F) + block("-def f(n):\n+def f(n, m):\n" * 30, "diff"), CALLS_F),
    "a shell": (block("pip install a-long-package-name another-long-package-name", "bash") + block(F), CALLS_F),
    "an output": (block(F, "") + block("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]\n" * 5, ""), CALLS_F),
    "another language": (block("function f(n) { return n + 1 }\n" * 9, "js") + block(F), CALLS_F),
    # no fence
    "prose around": (f"Sure! Here it is:\n\n{F}\n\nThis works because it's right.", CALLS_F),
    "prose around an example": (f"It's simple:\n{WITH_EXAMPLE}\n**Note**: done", CALLS_F),
    "tags": (f"[PYTHON]\n{F}\n[/PYTHON]", CALLS_F),
    "tags that are Python": (f"[BEGIN]\n{F}\n[DONE]\n", CALLS_F),
    "a word after it": (f"Here it is.\n@staticmethod\n{F}\n\nComplexity: O(n)\nDone\n\nIt's done!", CALLS_F),
    "on one line with a label": ("```python def f(n): return n + 1```", CALLS_F),
    "indented by four blanks": (f"Use this:\n\n{textwrap.indent(F, '    ')}\n\nIt's *right*.", CALLS_F),
    "indented by a tab": (f"Use this:\n\n{textwrap.indent(F, chr(9))}", CALLS_F),
    "indented in two parts": (f"With\n\n    import math\n\nit's\n\n{textwrap.indent(F, '    ')}\n    math.pi", CALLS_F),
    "a constant between prose": (f"Here it is:\n\nSTEP = 1\n\n{F.replace('n + 1', 'n + STEP')}\n\nIt's done.", CALLS_F),
    "a long constant between prose": (f"Here it is:\n\nsteps = {{\n    1: 1,\n}}\n{F.replace('n + 1', 'n + steps[1]')}\n\nIt's done.", CALLS_F),
    "a formula in prose": (f"With x = the number:\nx = the number\n\n{F}\n\nIt's done.", CALLS_F),
    "a constant after a formula": (f"So:\nx = the number\nSTEP: int = 1\n{F.replace('n + 1', 'n + STEP')}\n\nIt's done.", CALLS_F),
    "prose after a constant": ("STEP = 1\n\ndef f(n):\n    return n + STEP\n\nIt's done.", CALLS_F),
}  # fmt: skip
CALLS_NO_NAME = [{"input": [1], "output": 2}]
RIGHT_WITHOUT_A_NAME = {
    "a helper before": block("def h(n):\n    return 1")
    + block("def f(n):\n    return n + h(n)")
    + block(USAGE),
    "a helper after": block("def f(n):\n    return n + h(n)")
    + block("def h(n):\n    return 1")
    + block(USAGE),
    "a first attempt": block("def f(n):\n    return 7") + block(F) + block(USAGE),
    "usage in main": block(F) + block("def main():\n    print(f(1))\nmain()"),
}
READS = "n = int(input())\nprint(n + 1)"
PROGRAMS = {
    "a program that reads": (block(READS) + block("for x in range(10):\n    print('the test case', x, 'gives', x + 1)"), READS),
    "its call in a second block": (
        block("def main():\n    print(int(input()) + 1)") + block("main()"),
        "def main():\n    print(int(input()) + 1)\n\nmain()",
    ),
    "a helper": (block("def g(n):\n    return n + 1") + block("print(g(int(input())))"), "def g(n):\n    return n + 1\n\nprint(g(int(input())))"),
    "reads by os": (block(READS) + block("import os\nprint(int(os.read(0, 99)) + 1)"), "import os\nprint(int(os.read(0, 99)) + 1)"),
    "a trial with another input": (block(READS) + block("import io, sys\nsys.stdin = io.StringIO('1')\nprint(7)"), READS),
    "in tags around a fence": (f"<think>hm</think><answer>```python\n{READS}\n```</answer>", READS),
    "in tags": (f"[BEGIN]\n{READS}\n[DONE]", READS),
    "the better one": (block("import sys\nprint(sys.stdin.read(), 'first attempt')") + block(READS), READS),
}  # fmt: skip
ALONE = {  # what stays as it is: there is nothing to choose, or nothing says what
    "no code": ("I cannot do that.", "I cannot do that."),
    "a mistake": ("def f(n)\n    return n", "def f(n)\n    return n"),
    "a mistake inside": (
        "def f(n):\n    x = n +\n    return x\n\ndef g():\n    pass",
        "def f(n):\n    x = n +\n    return x\n\ndef g():\n    pass",
    ),
    "a mistake after a fence in a docstring": (
        f"{WITH_EXAMPLE}\ndef g(:\n    pass",
        f"{WITH_EXAMPLE}\ndef g(:\n    pass",
    ),
    "only usage": (block("print(f(1))") + block("print(f(2), f(3))"), "print(f(2), f(3))"),
    "the rest of a function, and another one": (
        "    return g(n)\n\ndef g(n):\n    return n",
        "return g(n)\n\ndef g(n):\n    return n",
    ),
    "an indented mistake": (
        "if n\n    def f(n):\n        return n\nelse:\n    pass",
        "if n\n    def f(n):\n        return n\nelse:\n    pass",
    ),
    "indented prose": ("It is:\n\n    def is a word\n", "It is:\n\n    def is a word\n"),
    "another name": (
        block("def h(n):\n    return n") + block("print(h(1))"),
        "def h(n):\n    return n",
    ),
    "only a patch": (block("-x\n+y", "diff"), "```diff\n-x\n+y\n```"),
    "prose with a word of Python": (
        "from there, import what you need",
        "from there, import what you need",
    ),
    "quotes around everything": (f"'''\n{block(F)}'''", F),
    "three quotes in prose": (f"Use ''' for docstrings.\n{block(F)}", F),
    "a broken block": ("```python\ndef f(n:\n    return\n```\nIt is cut.", "def f(n:\n    return"),
}


def program(answer, tests):
    """Return the code of an answer, as the form takes it and as graders of that do; all must
    agree.
    """
    task = Task("Write f.", tests=tests)
    form = CodeAnswer("python").for_task(task)
    code = form.extract(answer)
    again = [
        form.extract(code),
        CodeAnswer("python").extract(code),
        code_of(answer, task),
        code_of(code, task),
    ]
    if form.tests:
        again += [program_of(answer, task, form.tests), program_of(code, task, form.tests)]
    assert {each.strip("\n") for each in again} == {code.strip("\n")}
    return code


@each_row("name", RIGHT)
def test_the_code_that_tests_call_is_the_program(name):
    """It passes them, and usage, tests and attempts beside it do not run; all who take the code
    take the same.
    """
    answer, tests = RIGHT[name]
    names = {"__name__": "solution"}
    exec(program(answer, tests), names)
    exec(tests, names)


@pytest.mark.parametrize("name", RIGHT_WITHOUT_A_NAME)
def test_without_a_name_it_is_the_last_function_that_no_other_one_uses(name):
    """And the tests call the last function of the program."""
    names = {}
    code = program(RIGHT_WITHOUT_A_NAME[name], CALLS_NO_NAME)
    exec(code, names)
    assert names["f"](1) == 2
    assert code.rindex("def ") == code.rindex("def f(")


@pytest.mark.parametrize("name", PROGRAMS)
def test_for_standard_input_it_is_the_code_that_reads_it(name):
    """With what it needs."""
    answer, code = PROGRAMS[name]
    assert program(answer, [{"stdin": "1", "stdout": "2"}]) == code


@pytest.mark.parametrize("name", ALONE)
def test_what_is_no_choice_stays_as_it_was(name):
    """Nothing is cut from code with a mistake, and the longest block counts where no block defines
    what is called.
    """
    answer, code = ALONE[name]
    assert program(answer, CALLS_F).strip() == code.strip()


@each_row("name", RIGHT)
def test_without_tests_it_is_the_longest_block(name):
    """Whatever is in it; the code is not searched again."""
    form = CodeAnswer("python")
    code = form.extract(RIGHT[name][0])
    assert form.extract(code).strip("\n") == code.strip("\n")


@pytest.mark.parametrize("tests", ["this is no test", "[{]"])
def test_tests_that_cannot_be_read_choose_nothing(tests):
    """What grades the task says what is wrong with them."""
    assert (
        CodeAnswer("python")
        .for_task(Task("q", tests=tests))
        .extract(block("x = 1") + block("y = 12345"))
        == "y = 12345"
    )


@pytest.mark.parametrize(
    ("language", "text", "code"),
    [
        (
            "javascript",
            f"{block('npm install something-or-other', 'sh')}{block('f(1)', 'js')}",
            "f(1)",
        ),
        ("rust", "~~~rust\nfn main() {}\n~~~~\n", "fn main() {}"),
        ("markdown", block(f"# Title\n{block('x')}", "markdown", "````"), f"# Title\n{block('x')}"),
        ("sql", "Run\r\n```sql\r\nSELECT 1\r\n```\r\nnow.", "SELECT 1"),
    ],
)
def test_other_languages(language, text, code):
    """The longest block with the label; a longer fence may hold a shorter one."""
    form = CodeAnswer(language)
    assert form.for_task(Task("q", tests=CALLS_F)) is form
    assert form.extract(text) == code


def test_the_form_and_the_graders_score_the_same_program(sandbox):
    """A whole program with a fenced example costs one call, and usage beside a function counts for
    no grader.
    """
    task = Task("Write f.", tests=CALLS_F)
    for answer in (f"Sure:\n\n{block(WITH_EXAMPLE)}", f"{block(F)}Usage:\n{block(USAGE)}"):
        result = redraft.refine_sync(
            task, redraft.ScriptedModel([answer] * 4), ["tests", "syntax"], answer="code:python"
        )
        assert (result.score, result.usage.calls) == (1, 1)
    wrong = block("def f(n):\n    return 7") + block(f"assert f(1) == 7\n{F.replace('f(', 'g(')}")
    for settings in ({}, {"answer": "code:python"}):
        assert (
            redraft.grade_sync(
                Task("Write f.", response=wrong, tests=CALLS_F), "tests", **settings
            ).score
            == 0
        )


def test_other_graders_read_the_code_that_is_tested():
    """A complex usage is not the program."""
    usage = "def main(a):\n" + "".join(f"    if a > {n}:\n        print({n})\n" for n in range(30))
    task, answer = Task("Write f.", tests=CALLS_F), Candidate(0, block(F) + block(usage))
    grader = grader_from_spec("complexity")
    assert asyncio.run(grader.grade(task, answer, None)).score == 1
    assert asyncio.run(grader.grade(Task("Write f."), answer, None)).score < 0.5
    example = Candidate(0, WITH_EXAMPLE.replace("f(1)  # 2", "f(1) -> 2") * 2)
    assert asyncio.run(grader_from_spec("syntax").grade(task, example, None)).score == 1


@given(st.text(st.sampled_from("`~\n pythonx=1():\t'\"def\r"), max_size=80))
@example("\ufeff")
@example("``` x\n'''\n```")
def test_choosing_never_fails(text):
    """Any text gives code, and the code gives itself."""
    form = CodeAnswer("python").for_task(Task("q", tests=CALLS_F))
    code = form.extract(text)
    assert form.extract(code) == code


HOSTILE = {
    "fences in quotes": "def f():\n    '''\n" + "```\n" * 20_000,
    "quotes and fences": "def f():\n" + "    '''\n```\n" * 4_000,
    "many definitions": "".join(
        block(f"def f(n):\n    return g{n}(n)\ndef g{n + 1}(n): pass") for n in range(600)
    ),
    "prose and code": "def f(n):\n    pass\n" + "This is prose.\n" * 2_000,
    "lines that may be code": "import x\nfoo bar\n" * 1_500,
    "many brackets": "def f(n):\n    pass\n" + "(" * 30_000,
}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_takes_long(name):
    """The CPU time stays in proportion to the length."""
    form = CodeAnswer("python").for_task(Task("q", tests=CALLS_F))
    started = time.process_time()
    form.extract(HOSTILE[name])
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("tests", "names"),
    [
        (CALLS_F, {"f"}),
        ("assert f(1) == g(2)", {"f", "g"}),
        ([{"input": [1], "output": 2, "function": "Solution.f"}], {"Solution"}),
        ({"entry_point": "f", "tests": CALLS_NO_NAME}, {"f"}),
        ("import solution\nassert sorted(solution.f(1)) == [2]", {"f", "solution"}),
        ("import candidate as c\nassert sorted(c.f(1)) == [2]", {"f", "candidate"}),
        ("from solution import f, Bad\ndef test_f():\n    assert f(1) == 2", {"f", "Bad"}),
        ("def check(candidate):\n    assert sorted(candidate(1)) == [2]\ncheck(f)", {"f"}),
        (CALLS_NO_NAME, set()),
        ([{"stdin": "1", "stdout": "2"}], set()),
    ],
)
def test_names_that_tests_use(tests, names):
    """Those of the program, and none of the tests' own."""
    assert set(parse_tests(tests).names) in (names, names - {"solution", "candidate"})
