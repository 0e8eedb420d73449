"""Small changes of programs: what is proposed, and in which order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_row import each_row
from redraft.code.coverage import suspicious_lines, with_line_recording
from redraft.code.mutations import Hints, mutants
from redraft.code.programs import (
    entry_point_aliases,
    similar_names,
    with_cached_results,
    with_recursion_limit,
    without_top_level_statements,
)
from redraft.code.report import TestReport, TestResult
from redraft.code.source import compiles

MISTAKES = {
    "comparison": ("def f(x):\n    return x < 3", "def f(x):\n    return x <= 3"),
    "opposite comparison": ("def f(x):\n    return x < 3", "def f(x):\n    return x > 3"),
    "membership": ("def f(x, y):\n    return x in y", "def f(x, y):\n    return x not in y"),
    "identity": ("def f(x):\n    return x is 1000", "def f(x):\n    return x == 1000"),
    "sign": ("def f(x):\n    return x + 2", "def f(x):\n    return x - 2"),
    "division": ("def f(x):\n    return x / 2", "def f(x):\n    return x // 2"),
    "assignment": ("def f(x):\n    x += 2\n    return x", "def f(x):\n    x -= 2\n    return x"),
    "logic": ("def f(x, y):\n    return x and y", "def f(x, y):\n    return x or y"),
    "negation": ("def f(x):\n    return not x", "def f(x):\n    return x"),
    "condition": ("def f(x):\n    if x:\n        return 1", "def f(x):\n    if not (x):\n        return 1"),
    "constant": ("def f():\n    return True", "def f():\n    return False"),
    "number": ("def f(x):\n    return x[1]", "def f(x):\n    return x[0]"),
    "range": ("def f(n):\n    return list(range(n))", "def f(n):\n    return list(range(n + 1))"),
    "range from 1": ("def f(n):\n    return list(range(n))", "def f(n):\n    return list(range(1, n + 1))"),
    "slice": ("def f(x, n):\n    return x[:n]", "def f(x, n):\n    return x[:n + 1]"),
    "index": ("def f(x, n):\n    return x[n]", "def f(x, n):\n    return x[n - 1]"),
    "length": ("def f(x):\n    return x[len(x)]", "def f(x):\n    return x[len(x) - 1]"),
    "variable": ("def f(a, b):\n    return a", "def f(a, b):\n    return b"),
    "order": ("def f(x):\n    return sorted(x)", "def f(x):\n    return sorted(x, reverse=True)"),
    "opposite order": ("def f(x):\n    return sorted(x, reverse=True)", "def f(x):\n    return sorted(x, reverse=not (True))"),
    "extreme": ("def f(x):\n    return max(x)", "def f(x):\n    return min(x)"),
    "method": ("def f(x):\n    return x.upper()", "def f(x):\n    return x.lower()"),
    "arguments": ("def f(a, b):\n    return pow(a, b)", "def f(a, b):\n    return pow(b, a)"),
    "no return": ("def f(x):\n    x + 1", "def f(x):\n    return x + 1"),
    "no return of a variable": ("def f(x):\n    y = x + 1", "def f(x):\n    y = x + 1\n    return y"),
    "print": ("def f(x):\n    print(x + 1)", "def f(x):\n    return x + 1"),
    "return in a loop": (
        "def f(xs):\n    for x in xs:\n        y = x\n        return y",
        "def f(xs):\n    for x in xs:\n        y = x\n    return y",
    ),
    "break": ("for x in y:\n    break", "for x in y:\n    continue"),
    "conversion": ("def f(x):\n    return x", "def f(x):\n    return tuple(x)"),
    "letters beyond ASCII": ("def f(é):\n    return 'ß' + é < 'ä'", "def f(é):\n    return 'ß' + é <= 'ä'"),
}  # fmt: skip


@each_row("name", MISTAKES)
def test_a_mistake_in_a_line_is_among_the_changes(name):
    """The rest of the text stays as it is."""
    code, right = MISTAKES[name]
    assert right in [mutant.code for mutant in mutants(code)]


CODES = st.sampled_from([code for code, _ in MISTAKES.values()])


@given(st.lists(CODES, min_size=1, max_size=3).map("\n\n".join), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_changes_compile_are_different_and_are_bounded(code, limit):
    """No change is proposed twice, none leaves the program as it is, and each says what it does."""
    found = mutants(code, limit=limit)
    codes = [mutant.code for mutant in found]
    assert len(set(codes)) == len(codes) <= limit
    assert code not in codes
    assert all(compiles(each) for each in codes)
    assert all(mutant.note.startswith("line ") for mutant in found)


def test_suspicious_lines_and_expected_types_come_first():
    """What the tests say decides the order."""
    code = "def f(x):\n    if x < 1:\n        return [1]\n    if x > 9:\n        return [2]"
    assert mutants(code, Hints({4: 1.0}))[0].note.startswith("line 4")
    assert mutants(code, Hints({2: 1.0}))[0].note.startswith("line 2")
    assert "tuple" in mutants(code, Hints({}, "(1,)", "[1]"))[0].note


def test_lines_that_only_failing_tests_run_are_the_most_suspicious():
    """The measure is Ochiai's."""
    runs = [
        TestResult("f()", ok=False, got=repr(hex(sum(1 << n for n in lines))))
        for lines in ([1, 2], [1, 2], [1, 3], [1])
    ]
    found = suspicious_lines(TestReport("calls", tuple(runs)), [False, False, True, True])
    assert found == {1: pytest.approx(2 / 8**0.5), 2: 1.0}


@pytest.mark.parametrize("got", ["'0x" + "f" * 5000 + "'", "None", "[1]", "'0x'", None, "'x'"])
def test_what_is_no_record_of_lines_says_nothing(got):
    """The record comes from the program itself."""
    assert (
        suspicious_lines(TestReport("calls", (TestResult("f()", ok=False, got=got),)), [False])
        == {}
    )


def test_lines_are_recorded_only_of_a_function_with_a_name():
    """The name of a test is data, too."""
    assert with_line_recording("def f(): pass", "f); import os; (f") is None
    assert with_line_recording("\n" * 2_000, "f") is None
    assert compiles(with_line_recording("def f(): pass", "f"))


def test_recursive_functions_without_effects_are_cached():
    """A function that prints, changes an argument or is a method is left alone."""
    [cached] = with_cached_results(
        "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)"
    )
    assert cached.code.startswith("import functools\n@functools.cache\ndef fib(n):")
    assert with_cached_results("def f(n):\n    return n") == []
    assert with_cached_results("def f(n):\n    print(n)\n    return f(n - 1)") == []
    assert with_cached_results("def f(xs):\n    xs[0] = 1\n    return f(xs)") == []
    assert with_cached_results("class A:\n    def f(self):\n        return self.f()\n") == []


def test_a_function_under_another_name_is_found():
    """Other functions and methods are tried under the name that the tests call."""
    found = entry_point_aliases(
        "def g(x):\n    return x\n\nclass Solution:\n    def f(self, x):\n        return x\n", "f"
    )
    assert [each.code.splitlines()[-1] for each in found] == ["f = g", "f = Solution().f"]
    assert entry_point_aliases("def f(x):\n    return x", "f") == []
    assert entry_point_aliases("def g(x):\n    return x", "f; import os") == []


def test_statements_that_run_at_the_start_are_removed():
    """Definitions stay, and a program that is nothing else stays whole."""
    code = "import sys\ndef f(x):\n    return x\n\nprint(f(1))\nassert f(2) == 3\nN = 3\n"
    assert (
        without_top_level_statements(code).code == "import sys\ndef f(x):\n    return x\n\nN = 3\n"
    )
    code = "import sys\nN = 3\nn = int(input())\na, b = map(int, sys.stdin.readline().split())\ndef f(x):\n    y = input\n    return x\nprint(f(n))"
    assert (
        without_top_level_statements(code).code
        == "import sys\nN = 3\ndef f(x):\n    y = input\n    return x"
    )
    assert without_top_level_statements("print(1)\nprint(2)") is None
    assert without_top_level_statements("def f(x):\n    return x") is None


def test_misspelled_names_become_similar_ones():
    """Only undefined names are changed."""
    [fixed] = similar_names("def f(nums):\n    return sum(nmus)", {"nmus"})
    assert fixed.code == "def f(nums):\n    return sum(nums)"
    assert similar_names("def f(nums):\n    return zz", {"zz"}) == []


def test_a_recursion_limit_is_set_at_the_start():
    """The program stays valid."""
    assert compiles(
        with_recursion_limit('"""A."""\nfrom __future__ import annotations\nx = 1').code
    )
