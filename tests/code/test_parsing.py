"""Tests in the forms of data sets are read without running anything; what is wrong with them is
said.
"""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from redraft.answers import python_source as source
from redraft.answers.python_program import complete_program
from redraft.errors import ConfigError
from redraft.sandbox.code import parse_tests, run_tests
from redraft.sandbox.code.assertion_code import read_test_code
from redraft.sandbox.code.calls import default_entry_point
from redraft.sandbox.code.runner import is_empty


def calls(tests, entry_point=None):
    return [
        (test.function, test.args, dict(test.kwargs), test.comparison, test.expected)
        for test in parse_tests(tests, entry_point).calls
    ]


HUMANEVAL = """
METADATA = {'author': 'jt'}

def check(candidate):
    # a comment
    assert candidate([1.0, 2], "x") == [3 * 19, -1], "message"
    assert True, "prints if this fails"
    assert not candidate(n=2)
    assert candidate(()) is None
    assert candidate(2) != 3
    assert candidate("ab" * 2) == {1: (2,), None: {3}}
"""


@pytest.mark.parametrize(
    "ending", ["", "\ncheck(f)\n", "\ndef test_check():\n    check(f)\n\ntest_check()\n"]
)
def test_humaneval_becomes_calls(ending):
    """`def check(candidate)` with simple assertions is calls, with or without what starts it."""
    assert calls(HUMANEVAL + ending, "f") == [
        ("f", ([1.0, 2], "x"), {}, "equal", [57, -1]),
        ("f", (), {"n": 2}, "false", None),
        ("f", ((),), {}, "identical", None),
        ("f", (2,), {}, "not_equal", 3),
        ("f", ("abab",), {}, "equal", {1: (2,), None: {3}}),
    ]


MBPP = [
    "assert f(1) == 2",
    "assert (3, 4) == g([])",
    "assert abs(f(2) - 0.5) < 1e-3",
    "assert math.isclose(f(3), 1, rel_tol=0.1)",
]


@pytest.mark.parametrize(
    ("tests", "near"),
    [
        ({"tests": MBPP, "hiden": MBPP}, "hidden"),
        ({"entrypoint": "f", "tests": MBPP}, "entry_point"),
        ({"fn_nam": "f", "inputs": ["1"], "outputs": ["2"]}, "fn_name"),
        ({"test_list": MBPP, "test_setup": ""}, "test_setup_code"),
    ],
)
def test_a_key_with_a_typo_is_refused(tests, near):
    """A key around tests that nobody reads is a mistake; those of data sets are read over."""
    with pytest.raises(ConfigError, match=f"tests: unknown field .*did you mean '?{near}"):
        parse_tests(tests)
    known = {
        key: value
        for key, value in tests.items()
        if key in ("tests", "inputs", "outputs", "test_list")
    }
    assert parse_tests({**known, "task_id": 3, "challenge_test_list": []}).items


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("async def f_test():\n    assert await f(1) == 2", "nothing in the test code is a test"),
        ({"test_list": []}, "tests.test_list must be a list of texts"),
    ],
)
def test_what_is_no_test_is_named(tests, message):
    """Rather than that there is no test."""
    with pytest.raises(ConfigError, match=message):
        parse_tests(tests)


@pytest.mark.parametrize(
    ("test", "is_function"),
    [
        ("assert f(lambda v: v + 1, 2) == 3", True),
        ("assert f(str, 2) == '2'", True),
        ("def g(x): return x\nassert f([g], 2) == 2", True),
        ("import math\nassert f(key=math.sqrt) == 2", True),
        ("import math\nassert f(math.pi, 2) == sorted([2])", False),
        ("for input in [1, 2]:\n    assert f(input) == input", False),
        ("assert f(list(map(int, '12'))) == sorted([1])", False),
        ("assert sorted(f(2), key=len) == sorted([1])", False),
    ],
)
def test_a_function_as_an_argument_needs_the_program_itself(test, is_function):
    """A function cannot be passed by value, so such tests run beside the program, if at all, and
    say why.
    """
    tests = parse_tests(test)
    assert (tests.kind, tests.why) == (
        ("in_process", "f is called with a function") if is_function else ("driver", "")
    )


@pytest.mark.parametrize(
    "tests",
    [
        MBPP,
        json.dumps(MBPP),
        repr(MBPP),
        "\n".join(MBPP),
        {"test_list": MBPP, "test_setup_code": "import math"},
        {"tests": MBPP},
    ],
    ids=["list", "JSON", "Python list", "text", "MBPP row", "mapping"],
)
def test_lists_of_asserts_become_calls(tests):
    """In whatever wrapping a data set has them."""
    parsed = parse_tests(tests)
    assert [(test.function, test.expected) for test in parsed.calls] == [
        ("f", 2),
        ("g", (3, 4)),
        ("f", 0.5),
        ("f", 1),
    ]
    tolerances = [test.comparer.tolerance for test in parsed.calls]
    assert tolerances[:2] == [None, None]
    assert (tolerances[2].absolute, tolerances[3].relative) == (1e-3, 0.1)


SET_UP = {
    "code": {"test_setup_code": "def g(n):\n    return n + 1"},
    "imports": {"test_imports": ["from fractions import Fraction as g"]},
    "both": {"test_imports": ["import math"], "test_setup_code": "g = math.floor"},
    "texts": {
        "test_imports": '["import math"]',
        "test_setup_code": "g = math.floor",
        "test_list": '["assert f(1) == g(1.0)"]',
    },
    "none": {"test_imports": [], "test_setup_code": None, "test_list": ["assert f(1) == 1"]},
}


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("name", SET_UP)
def test_the_set_up_of_mbpp_comes_before_its_asserts(name, sandbox):
    """Imports, then code; the asserts use both."""
    right = "def f(n): return n + 1" if name == "code" else "def f(n): return n"
    tests = parse_tests({"test_list": ["assert f(1) == g(1)"], **SET_UP[name]})
    assert run_tests(right, tests).score == 1
    assert run_tests("def f(n): return 7", tests).score == 0


@pytest.mark.parametrize(
    "source",
    [
        "assert sorted(f(1)) == [1]",
        "assert f(x) == 1",
        "for n in range(3):\n    assert f(n) == n",
        "assert f(1) == 1 and f(2) == 2",
        "assert f(1) in (1, 2)",
        "assert f(1).name == 2",
        "assert f(9 ** 9 ** 9) == 1",
        "assert f('a' * 10 ** 9) == 1",
        "assert f(__import__('os').getpid()) == 1",
        "assert f(*[1]) == 1",
        "assert f(1) is 7",
        "from math import gcd\nassert gcd(4, 6) == 2 and f(1)",
        "x = f(1)\nassert x == 1",
        "def helper(v):\n    return v\nassert helper(f(1)) == 1",
        "def check(candidate):\n    assert candidate(helper()) == 1",
    ],
)
def test_what_is_no_simple_equality_stays_code(source):
    """Nothing is evaluated to find that out: no call, no large number, no long text."""
    parsed = parse_tests(source, "f")
    assert (parsed.kind, parsed.calls, len(parsed.code)) == ("driver", (), 1)


def test_builtin_and_library_functions_are_not_the_candidate():
    """An assertion about `len` says nothing about the program."""
    assert parse_tests("assert len('ab') == 2\nassert f(1) == 2").kind == "driver"
    assert calls("assert sum([1, 2]) == 3", "sum") == [("sum", ([1, 2],), {}, "equal", 3)]


@given(
    st.lists(
        st.tuples(
            st.lists(
                st.integers()
                | st.text()
                | st.lists(st.floats(allow_nan=False, allow_infinity=False))
            ),
            st.integers() | st.text(),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_json_and_python_say_the_same(pairs):
    """The same calls, written as JSON and as asserts, are the same calls."""
    as_json = json.dumps(
        [{"function": "f", "input": args, "output": value} for args, value in pairs]
    )
    as_code = "\n".join(
        f"assert f({', '.join(map(repr, args))}) == {value!r}" for args, value in pairs
    )
    assert calls(as_json) == calls(as_code)


@each_row(
    ("tests", "kind", "count"),
    [
        (
            [
                {"input": [1], "output": 2},
                {"input": [1], "raises": "ValueError", "weight": 2, "hidden": True},
            ],
            "calls",
            (1, 1),
        ),
        ({"input": [], "output": None, "name": "empty"}, "calls", (1, 0)),
        ({"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [2]]}, "calls", (2, 0)),
        ({"inputs": ["1\n", ["2", "3"]], "outputs": ["1\n", "5"]}, "stdio", (2, 0)),
        ([{"stdin": "1", "stdout": "2", "compare": "floats", "tolerance": 0.1}], "stdio", (1, 0)),
        ([{"input": "1\n2", "output": "3", "testtype": "stdin"}], "stdio", (1, 0)),
        ([{"input": '[1, 2]\n"a"', "output": "3", "testtype": "functional"}], "calls", (1, 0)),
        (
            [{"input": "1", "output": "3", "testtype": "functional", "hidden": True}],
            "calls",
            (0, 1),
        ),
        (
            {"entry_point": "f", "tests": ["assert f(1) == 1"], "hidden": ["assert f(2) == 2"]},
            "calls",
            (1, 1),
        ),
        ({"tests": ["assert f(1) == 1"], "hidden": ["assert sorted(f(2)) == 2"]}, "driver", (1, 1)),
        ({"hidden": [{"input": [1], "output": 1}]}, "calls", (0, 1)),
        (
            "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(1), 2)",
            "driver",
            (1, 0),
        ),
        (
            "import pytest\nfrom solution import f\ndef test_a():\n    with pytest.raises(ValueError):\n        f(1)",
            "driver",
            (1, 0),
        ),
        ("class Mine(Theirs):\n    pass\ndef test_a():\n    assert Mine()", "in_process", (1, 0)),
        ("def test_a(monkeypatch):\n    assert f(1)", "in_process", (1, 0)),
        ("def test_a():\n    assert isinstance(f(1), Theirs)", "in_process", (1, 0)),
        ("def test_a():\n    assert isinstance(f(1), int)", "driver", (1, 0)),
    ],
)
def test_forms(tests, kind, count):
    """Each form has its kind, and hidden tests are apart from the others, as text and as values."""
    for given_tests in [tests, *([json.dumps(tests)] if not isinstance(tests, str) else [])]:
        parsed = parse_tests(given_tests)
        assert (parsed.kind, (len(parsed.visible), len(parsed.hidden))) == (kind, count)
        assert bool(parsed.why) == (kind == "in_process")


@each_row(
    ("tests", "message"),
    [
        ("", "tests are blank"),
        ("the function must handle empty lists", "neither JSON nor Python code"),
        ("x = 1", "nothing in the test code is a test"),
        ("[1, 2", "are not JSON"),
        ("[1]", "tests must be"),
        ([], "1 to 10,000 tests, got 0"),
        ({}, "tests must be"),
        ({"tests": []}, "tests are empty"),
        (3, "tests must be"),
        ([{"input": 3, "output": 1}], r"tests\[0\].input must be the list of arguments"),
        ([{"input": [3]}], r"tests\[0\] needs either \"output\""),
        ([{"input": [3], "output": 1, "raises": "E"}], r"tests\[0\] needs either \"output\""),
        (
            [{"input": [], "output": 1}, {"input": [3], "output": 1, "wieght": 2}],
            r"tests\[1\]: unknown field 'wieght'; did you mean 'weight'",
        ),
        (
            [{"input": [3], "output": 1, "weight": 0}],
            r"tests\[0\].weight must be a number > 0, got 0",
        ),
        (
            [{"input": [3], "output": 1, "hidden": "yes"}],
            r"tests\[0\].hidden must be True or False",
        ),
        ([{"input": [3], "output": 1, "tolerance": -1}], r"tests\[0\].tolerance"),
        ([{"input": [3], "output": 1, "kwargs": [1]}], r"tests\[0\].kwargs must be a mapping"),
        ([{"stdin": "", "stdout": 3}], r"tests\[0\].stdout must be text"),
        (
            [{"stdin": "", "stdout": "", "compare": "near"}],
            r"tests\[0\].compare must be one of exact, tokens, floats",
        ),
        ([{"stdin": "", "stdout": ""}, {"input": [], "output": 1}], "either all have"),
        ({"inputs": [1], "outputs": []}, "lists of the same length"),
        (
            {"tests": [{"input": [], "output": 1}], "hidden": [{"stdin": "", "stdout": ""}]},
            "of the kind 'calls' and the hidden ones of the kind 'stdio'",
        ),
        ({"test_list": "assert f(1)"}, "tests.test_list must be a list of texts"),
        (
            {"test_list": MBPP, "test_imports": "import math"},
            "tests.test_imports must be a list of texts",
        ),
        (
            {"test_list": MBPP, "test_setup_code": ["import math"]},
            "tests.test_setup_code must be text",
        ),
        (
            [{"testtype": "functional", "input": "1", "output": "one"}],
            r"tests\[0\]: input and output must be JSON",
        ),
        (
            [{"testtype": "functional", "input": "[" * 100_000, "output": "1"}],
            r"tests\[0\]: .* nested more than 200 deep",
        ),
        ({"entry_point": 3, "tests": ["assert f(1)"]}, "tests.entry_point must be text"),
    ],
)
def test_what_is_wrong_with_tests_is_said(tests, message):
    """An error names the field, the value and what is allowed."""
    with pytest.raises(ConfigError, match=message):
        parse_tests(tests)


@given(
    st.text()
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(
                    ["tests", "input", "output", "stdin", "inputs", "outputs", "hidden"]
                ),
                x,
            )
            | st.fixed_dictionaries({"testtype": st.just("functional"), "input": x, "output": x})
        ),
    )
)
def test_anything_else_is_one_error(tests):
    """Tests come from files of other people: whatever they hold, they are read or refused."""
    try:
        parse_tests(tests)
    except ConfigError as error:
        assert len(str(error)) < 1500


def test_the_names_of_the_candidate_in_test_code():
    """Names that nothing defines, and modules that nobody has installed, are the candidate."""
    code = read_test_code(
        "import json, solution\nfrom my_answer import g\nLIMIT = 3\n"
        "def helper(v):\n    return v\n"
        "try:\n    f(1)\n    assert False\nexcept TooSmall:\n    pass\n"
        "assert helper(f(LIMIT)) == g(json.loads('1'))\n"
    )
    assert code.candidate_names == ("f",)
    assert code.exceptions == ("TooSmall",)
    assert set(code.modules) == {"solution", "my_answer"}
    assert len(code.parts) == 2


def test_tests_that_repeat_without_end_stay_code():
    """A short text that would fill the memory here runs in a sandbox, which limits it; what is
    small is still read.
    """
    many = "\n".join(f"assert f('a' * {n}) == [0] * {n}" for n in range(900_000, 900_100))
    assert parse_tests(many, "f").kind == "driver"
    assert (
        parse_tests("assert f(['a' * (10 ** 5) + 'b', [1, 2] * 3]) == -1 * (3 + 4)", "f").kind
        == "calls"
    )
    # one list many times
    assert parse_tests("assert f([[[0] * 999999] * 999999] * 999999) == 1", "f").kind == "calls"


def test_more_assertions_than_tests_are_allowed():
    """The number of tests is limited, however they are written."""
    with pytest.raises(ConfigError, match="at most 10,000 tests, got 10,001"):
        parse_tests("assert f(1) == 1\n" * 10_001, "f")


SLOW_TO_PARSE = 'x = f"' + "{a!r:>{w}}" * 40_000 + '"'  # minutes in Python 3.11


def test_code_that_takes_the_parser_long_is_not_parsed_here(monkeypatch):
    """Tests and programs are parsed in a worker first if they are long."""
    monkeypatch.setattr(source, "MAX_SECONDS", 0.5)
    asked = []
    monkeypatch.setattr(
        source, "_takes_long", lambda code: asked.append(code) or len(code) > 100_000
    )
    with pytest.raises(ConfigError, match="takes too long to parse"):
        parse_tests(SLOW_TO_PARSE, "f")
    assert not is_empty(SLOW_TO_PARSE)
    assert default_entry_point(SLOW_TO_PARSE) == ""
    assert complete_program(SLOW_TO_PARSE, "def f(x):\n", "f") == SLOW_TO_PARSE
    assert asked


@pytest.mark.slow
def test_the_worker_ends_a_parser_that_takes_long(monkeypatch):
    """Long code that is parsed soon is not refused."""
    monkeypatch.setattr(source, "MAX_SECONDS", 0.5)
    if sys.version_info < (3, 12):
        assert source._takes_long(SLOW_TO_PARSE)
    assert len(source.parse("x = 1\n" * 5_000).body) == 5_000
    with pytest.raises(SyntaxError):
        source.parse("x = 1\n" * 5_000 + "x =")


PAIRS = {"input": ["1 2\n", "5 5\n"], "output": ["3\n", "10\n"]}  # of CodeContests
NO_PAIRS = {"input": [], "output": []}


@pytest.mark.parametrize(
    "tests",
    [
        PAIRS,
        json.dumps(PAIRS),
        repr(PAIRS),
        {"input": json.dumps(PAIRS["input"]), "output": json.dumps(PAIRS["output"])},
        {"inputs": PAIRS["input"], "outputs": PAIRS["output"]},
        {"inputs": PAIRS["input"], "outputs": PAIRS["output"], "fn_name": None},
        {"inputs": [["1 2", ""], ["5 5", ""]], "outputs": [["3", ""], ["10", ""]]},
        {"public_tests": PAIRS, "private_tests": NO_PAIRS, "generated_tests": None},
        {"public_tests": json.dumps(PAIRS)},
        {
            "name": "A",
            "description": "Add.",
            "cf_rating": 800,
            "solutions": {"language": [3]},
            "public_tests": PAIRS,
        },
        {
            "public_tests": {name: texts[:1] for name, texts in PAIRS.items()},
            "private_tests": {n: t[1:] for n, t in PAIRS.items()},
        },
        {"tests": PAIRS},
        [
            {"input": "1 2\n", "output": "3\n", "testtype": "stdin"},
            {"input": "5 5\n", "output": "10\n", "testtype": "stdin"},
        ],
    ],
)
def test_inputs_and_outputs_of_programs(tests):
    """Equally long lists of texts are tests of standard input and output, however a data set wraps
    them.
    """
    parsed = parse_tests(tests)
    assert [(test.stdin, test.stdout, test.hidden) for test in parsed.runs] == [
        ("1 2\n", "3\n", False),
        ("5 5\n", "10\n", False),
    ]


@pytest.mark.parametrize(
    ("tests", "entry_point", "expected"),
    [
        (
            {"fn_name": "f", "inputs": [[1, 2], [3, 4]], "outputs": [3, 7]},
            None,
            [((1, 2), 3), ((3, 4), 7)],
        ),
        (
            {"fn_name": "f", "input": [[1, 2], [3, 4]], "output": [3, 7]},
            None,
            [((1, 2), 3), ((3, 4), 7)],
        ),
        ({"fn_name": "f", "inputs": "[[1, 2]]", "outputs": "[3]"}, None, [((1, 2), 3)]),
        ({"fn_name": "f", "inputs": ["1\n[2]"], "outputs": ["3"]}, None, [((1, [2]), 3)]),
        ({"entry_point": "f", "inputs": ["1\n[2]"], "outputs": ["3"]}, None, [((1, [2]), 3)]),
        ({"inputs": [[1, 2]], "outputs": [3]}, "f", [((1, 2), 3)]),
        ({"input": ["a", "b"], "output": ["c", "d"]}, "f", [(("a", "b"), ["c", "d"])]),
        ({"input": ["a"], "output": ["b"], "function": "f"}, None, [(("a",), ["b"])]),
        ({"input": ["a", "b"], "output": ["c"]}, None, [(("a", "b"), ["c"])]),
        ({"input": ["a\n", "b\n"], "output": ["c\n"]}, "f", [(("a\n", "b\n"), ["c\n"])]),
        ({"input": ["a\n", "b\n"], "output": 2}, None, [(("a\n", "b\n"), 2)]),
        ({"input": [3, 4], "output": 7}, None, [((3, 4), 7)]),
        ([{"input": ["a"], "output": ["b"]}], None, [(("a",), ["b"])]),
    ],
)
def test_inputs_and_outputs_of_functions(tests, entry_point, expected):
    """A function that is named, or values that are no texts, are calls."""
    assert [
        (test.args, test.expected) for test in parse_tests(tests, entry_point).calls
    ] == expected


@each_row(
    ("tests", "message"),
    [
        (NO_PAIRS, "must be a list of 1 to"),
        ({"public_tests": NO_PAIRS}, "tests are empty"),
        ({"public_tests": PAIRS, "private": PAIRS}, "unknown field 'private'"),
        ({"inputs": ["1"], "outputs": ["1", "2"]}, "lists of the same length"),
        ({"input": ["1 2\n", "5 5\n"], "output": ["3\n"]}, "got 2 inputs and 1 output"),
        ({"input": ["1 2\n"], "output": ["3", "10\n"]}, "got 1 input and 2 outputs"),
        ({"input": ["1 2\n"], "output": []}, "got 1 input and 0 outputs"),
        ({"input": json.dumps(["1\n2"]), "output": "[]"}, "got 1 input and 0 outputs"),
        ({"tests": {"input": ["1 2\n"], "output": ["3\n", "10\n"]}}, "got 1 input and 2 outputs"),
        ({"public_tests": {"input": ["a", "b"], "output": ["c"]}}, "got 2 inputs and 1 output"),
        (
            {"public_tests": PAIRS, "private_tests": {"input": ["a"], "output": []}},
            "got 1 input and 0 outputs",
        ),
        ({"public_tests": json.dumps({"input": ["a"], "output": []})}, "got 1 input and 0 outputs"),
        (
            {"public_tests": {"input": ["a"], "output": "b"}},
            "lists of the same length, got 1 input and str",
        ),
        ({"fn_name": "f", "inputs": ["a b"], "outputs": ["c"]}, "input and output must be JSON"),
        (
            {"public_tests": PAIRS, "private_tests": [{"input": [1], "output": 2}]},
            "of the kind 'stdio'",
        ),
        ({"public_tests": "no JSON"}, "neither JSON nor Python"),
    ],
)
def test_inputs_and_outputs_that_mean_nothing_are_refused(tests, message):
    """Before anything runs."""
    with pytest.raises(ConfigError, match=message):
        parse_tests(tests)


TWO_SUM = """
class Solution:
    def two_sum(self, numbers: List[int], target: int) -> Optional[List[int]]:
        seen, heap = defaultdict(list), []
        heappush(heap, inf)
        for n, each in enumerate(numbers):
            if seen[target - each]:
                return [*seen[target - each], n]
            seen[each].append(n)
            bisect_left(numbers, gcd(4, 6)), reduce(max, accumulate(numbers)), math.sqrt(pow(2, 2, 5)), Counter(numbers)
"""


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize(
    ("tests", "entry_point"),
    [
        ([{"input": [[2, 7], 9], "output": [0, 1]}], None),
        ([{"input": [[2, 7], 9], "output": [0, 1]}], "two_sum"),
        ([{"input": [[2, 7], 9], "output": [0, 1]}], "Solution.two_sum"),
        ([{"input": [[2, 7], 9], "output": [0, 1]}], "Solution().two_sum"),
        ({"fn_name": "two_sum", "inputs": [[[2, 7], 9]], "outputs": [[0, 1]]}, None),
        ([{"input": "[2, 7]\n9", "output": "[0, 1]", "testtype": "functional"}], None),
        (
            "def check(candidate):\n    assert candidate(numbers = [2, 7], target = 9) == [0, 1]",
            "Solution().two_sum",
        ),
        (
            "def check(candidate):\n    assert sorted(candidate([2, 7], 9)) == [0, 1]\n\ncheck(Solution().two_sum)",
            None,
        ),
        ("solution = Solution()\nassert solution.two_sum([2, 7], 9) == [0, 1]", None),
        (["assert Solution().two_sum([2, 7], 9) == [0, 1]"], None),
        (
            {
                "entry_point": "Solution().two_sum",
                "test": "def check(candidate):\n    assert candidate([2, 7], 9) == [0, 1]",
            },
            None,
        ),
        (
            {
                "task_id": "a",
                "prompt": "",
                "entry_point": "two_sum",
                "test": ["assert two_sum([2, 7], 9) == [0, 1]"],
            },
            None,
        ),
    ],
)
def test_the_form_of_leetcode(tests, entry_point, sandbox):
    """A method of the class Solution may use what its judges import before it."""
    tests = parse_tests(tests, entry_point)
    assert run_tests(TWO_SUM, tests).score == 1
    assert run_tests(TWO_SUM.replace("*seen", "7, *seen"), tests).score == 0


def test_other_programs_import_what_they_use(sandbox):
    """A function gets nothing, and a name of the program's own is its own."""
    tests = parse_tests(["assert f(1) == 2"])
    assert run_tests("def f(n: List): return 2", tests).score == 0
    assert (
        run_tests(
            "class Solution:\n    def f(self, n: List): return gcd(n)\ndef gcd(n): return 2", tests
        ).score
        == 1
    )


LINKED = "class Solution:\n    def f(self, head: Optional[ListNode]) -> int:\n        return 2"
NODE = (
    "class ListNode:\n    def __init__(self, val=0, next=None): self.val, self.next = val, next\n"
)
OF_JUDGES = {  # a program, its tests, and the class that its judge would provide, or its score
    "a linked list": (LINKED, ["assert Solution().f(None) == 2"], "ListNode"),
    "all names of typing": (f"from typing import *\n{LINKED}", ["assert Solution().f(None) == 2"], "ListNode"),
    "by calls": (LINKED, [{"input": [[1, 2]], "output": 2}], "ListNode"),
    "in test code": (LINKED, "def test_a():\n    assert Solution().f(None) == 2", "ListNode"),
    "of the tests": (LINKED, "def test_a():\n    assert Solution().f(ListNode(1)) == 2", "ListNode"),
    "a tree": (LINKED.replace("ListNode", "TreeNode"), ["assert Solution().f(None) == 2"], "TreeNode"),
    "another class": (LINKED.replace("ListNode", "'NestedInteger'").replace("[", "[NestedInteger, "), ["assert Solution().f(None) == 2"], "NestedInteger"),
    "a class in the code": ("class Solution:\n    def f(self, n):\n        return Node(2).val", ["assert Solution().f(None) == 2"], "Node"),
    "a function": ("def f(head: ListNode):\n    return 2", ["assert f(None) == 2"], "ListNode"),
    "a dummy": ("def f(head):\n    return ListNode(2).val", ["assert f(None) == 2"], "ListNode"),
    "a result": ("class Solution:\n    def f(self, n) -> Interval:\n        return 2", ["assert Solution().f(None) == 2"], "Interval"),
    "its own class": (f"{NODE}{LINKED}", ["assert Solution().f(None) == 2"], 1.0),
    "its own class, and a wrong program": (f"{NODE}{LINKED}".replace("return 2", "return 7"), ["assert Solution().f(None) == 2"], 0.0),
    "a wrong name": ("class Solution:\n    def f(self, n):\n        return x", ["assert Solution().f(None) == 2"], 0.0),
    "a wrong name in an annotation": ("class Solution:\n    def f(self, n: itn):\n        return 2", ["assert Solution().f(None) == 2"], 0.0),
    "a wrong default": ("class Solution:\n    def f(self, n=Wrong):\n        return 2", ["assert Solution().f(None) == 2"], 0.0),
    "a wrong name in a function": ("def f(n: Nodes):\n    return 2", ["assert f(None) == 2"], 0.0),
    "a class that was asked for": ("def f(n):\n    return ListNode(n).val", "def test_a():\n    assert ListNode(1).val == 1\n    assert f(2) == 2", 0.0),
    "a class that nobody uses": ("def f(n):\n    return 7", "def test_a():\n    assert ListNode(1).val == 1\n    assert f(2) == 2", 0.0),
    "an error of that text": ("def f(n):\n    raise NameError(\"name 'ListNode' is not defined\")", ["assert f(2) == 2"], 0.0),
}  # fmt: skip


@pytest.mark.slow(but_each=5)
@pytest.mark.parametrize("name", OF_JUDGES)
def test_a_class_that_the_judge_provides_is_no_fault_of_the_program(name, sandbox):
    """There is no score then; a name that no judge provides is a mistake."""
    code, tests, expected = OF_JUDGES[name]
    report = run_tests(code, parse_tests(tests))
    if isinstance(expected, float):
        assert (report.score, report.problem) == (expected, "")
    else:
        assert report.score is None
        assert f"the class {expected}" in report.problem
