"""Measures of Python programs that nothing runs: complexity, similarity, and comments that switch
checks off.
"""

import ast
import io
import tokenize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_row import each_row
from redraft.answers.python_source import compile_error
from redraft.sandbox.code.measures import MODULE_UNIT, code_similarity, complexities
from redraft.sandbox.code.type_checkers import without_switches

DECISIONS = {
    "x = 1": 0,
    "if x: pass": 1,
    "if x: pass\nelse: pass": 1,
    "if x: pass\nelif y: pass\nelse: pass": 2,
    "for i in x: pass": 1,
    "while x: pass": 1,
    "try: x\nexcept A: pass\nexcept B: pass\nfinally: pass": 2,
    "y = a if b else c": 1,
    "y = a and b and c": 2,
    "y = a and b or c": 2,
    "y = [a for a in b]": 1,
    "y = [a for a in b if a if c]": 3,
    "y = {a: c for a in b for c in a}": 2,
    "with x: pass": 0,
    "assert x": 0,
    "match x:\n case 1: pass\n case 2: pass\n case _: pass": 2,
    "match x:\n case _ if y: pass": 1,
    "y = not x": 0,
}
FIBONACCI = """
def fibonacci(n):
    '''Return a number.'''
    previous, current = 0, 1
    for _ in range(n):  # n times
        previous, current = current, previous + current
    return previous
"""


@each_row(("code", "decisions"), DECISIONS.items(), ids=repr)
def test_each_decision_counts(code, decisions):
    """At the top level and in a function, where it leaves the top level at 1."""
    assert complexities(code)[0].complexity == 1 + decisions
    in_function = "def f():\n" + "\n".join(f"    {line}" for line in code.splitlines())
    found = {each.name: each.complexity for each in complexities(in_function)}
    assert found == {"f": 1 + decisions, MODULE_UNIT: 1}


@given(st.lists(st.sampled_from(sorted(DECISIONS)), max_size=8))
def test_decisions_add_up(codes):
    """The complexity of statements one after the other is 1 and the sum of their decisions."""
    assert complexities("\n".join(codes))[0].complexity == 1 + sum(
        DECISIONS[code] for code in codes
    )


def test_functions_count_on_their_own():
    """Inner functions, methods and lambdas, by their names; defaults and decorators count where
    they stand.
    """
    code = """
class A:
    def m(self, x=1 if y else 2):
        def inner():
            return [lambda: a or b for a in c]
        if x: pass
"""
    found = {each.name: (each.line, each.complexity) for each in complexities(code)}
    assert found == {MODULE_UNIT: (1, 2), "m": (3, 2), "m.inner": (4, 2), "m.inner.lambda": (5, 2)}


# ---- similarity

RENAMED = """
# another one
def fib( count: int ) -> int :
    a, b = (0, 1)
    for i in range(count):
        a, b = b, (a + b)
    return (a)
"""


@pytest.mark.parametrize(("names", "equal"), [(False, True), (True, False)])
def test_layout_and_names_do_not_count(names, equal):
    """Comments, annotations, brackets, docstrings and own names; with `names`, names do."""
    assert (code_similarity(RENAMED, FIBONACCI, names) == 1) is equal
    assert code_similarity(ast.unparse(ast.parse(FIBONACCI)), FIBONACCI, names) == 1


def test_what_a_program_calls_counts():
    """Names that it does not bind are no names of its own: functions that it calls, attributes,
    keywords.
    """
    assert code_similarity("print(sorted(x))", "print(reversed(x))", False) < 1
    assert code_similarity("a = 1\nx.a = a", "b = 1\nx.b = b", False) < 1
    assert code_similarity("x = 1", "x = 2", False) < 1


PROGRAMS = st.lists(
    st.sampled_from([*sorted(DECISIONS), FIBONACCI, RENAMED, "import os\nos.getcwd()"]), max_size=5
).map("\n".join)


@settings(max_examples=20)
@given(PROGRAMS, PROGRAMS)
def test_similarity_is_a_symmetric_share(a, b):
    """From 0 to 1, equal in both directions, and 1 for the program itself."""
    score = code_similarity(a, b, False)
    assert 0 <= score <= 1
    assert score == code_similarity(b, a, False)
    assert code_similarity(a, a, True) == 1 or not a


@pytest.mark.parametrize(
    "code", ["def f(:", "x = (", "\0", "(" * 3000, "-" * 100_000 + "1"], ids=lambda code: code[:10]
)
def test_broken_code_has_no_similarity(code):
    """It is no program."""
    assert code_similarity(code, "x = 1", False) is None
    assert compile_error(code)


def test_an_error_of_the_compiler_is_found():
    """Also one that the parser does not see; the line is named."""
    assert compile_error("def f():\n    pass\nreturn 1").startswith(
        "line 3: 'return' outside function (Python 3."
    )
    assert compile_error(FIBONACCI) is None


# ---- comments that switch a type checker off

COMMENTS = [
    "# type: ignore",
    "#type:ignore[arg-type]",
    "# mypy: ignore-errors",
    "# pyright: basic",
    "#  MYPY: disable-error-code=x",
]
HARMLESS = [
    "# a comment",
    "# types: ignored",
    "'# type: ignore'",
    "x = '''\n# mypy: ignore-errors\n'''",
]


@given(
    st.lists(
        st.sampled_from(
            [*COMMENTS, *HARMLESS, "x = 1  # type: ignore", "y: int = ''  # pyright: ignore"]
        ),
        max_size=8,
    )
)
def test_no_switch_is_left(lines):
    """The program is the same, its lines too, and its texts stay."""
    code = "\n".join(lines)
    blanked = without_switches(code)
    comments = [
        t.string
        for t in tokenize.generate_tokens(io.StringIO(blanked).readline)
        if t.type == tokenize.COMMENT
    ]
    assert not [
        comment
        for comment in comments
        if ("ignore" in comment and "types" not in comment) or "pyright" in comment
    ]
    assert ast.dump(ast.parse(code)) == ast.dump(ast.parse(blanked))
    assert len(code.split("\n")) == len(blanked.split("\n"))
