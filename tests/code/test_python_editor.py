"""The editor for Python: which changes it keeps, what they cost, and that hidden tests never
decide.
"""

import asyncio
from dataclasses import replace
from textwrap import dedent
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redraft
from redraft.answers.code import CodeAnswer
from redraft.code import PythonEditor, TestReport, TestResult, parse_tests
from redraft.code.agreement import similar_calls
from redraft.code.editor import PARALLEL_RUNS, is_better, visible_tests
from redraft.code.report import make_report
from redraft.core.records import Candidate, Feedback
from redraft.errors import ConfigError
from redraft.graders.computed.code_checks import CodeSyntax, Lint
from redraft.graders.computed.code_tests import CodeTests
from redraft.protocols import Edit
from redraft.sandbox import Limits

needs_sandbox = pytest.mark.usefixtures("sandbox")

TESTS = [{"input": [n], "output": n, "name": f"t{n}"} for n in range(6)]


class TableRun:
    """Tests whose outcome is looked up: `passing(code)` gives the numbers of the tests that pass.
    It records what was run.
    """

    def __init__(self, passing):
        self.passing, self.codes, self.names = passing, [], []

    async def __call__(self, code, tests, limits):
        self.codes.append(code)
        self.names.append([test.name for test in tests.items])
        passing = self.passing(code)
        return make_report(
            "calls", [result_of(test, int(test.name[1:]) in passing) for test in tests.items], None
        )


def result_of(test, ok):
    return TestResult(
        f"f({test.name})",
        ok=ok,
        got="1",
        expected="2",
        seconds=0.001,
        hidden=test.hidden,
        name=test.name,
    )


CODE = "def f(x):\n    return x < 1\n"
RIGHT = "def f(x):\n    return x <= 1\n"
HALF = "def f(x):\n    return x > 1\n"


@pytest.mark.parametrize(
    ("passing", "expected"),
    [
        ({CODE: {0, 1}, RIGHT: {0, 1, 2, 3, 4, 5}}, RIGHT),
        ({CODE: {0, 1}, RIGHT: {1, 2, 3, 4, 5}}, None),  # one that passed fails
        ({CODE: {0, 1}, HALF: {0, 1, 2}}, None),  # a mutation that satisfies only some of the tests
        ({CODE: {0, 1, 2, 3, 4, 5}, RIGHT: {0}}, None),  # nothing to repair
        ({CODE: {0, 1}}, None),  # nothing helps
    ],
    ids=["better", "breaks a test", "partial", "all pass", "nothing helps"],
)
def test_a_change_is_kept_only_if_it_is_better(passing, expected):
    """More tests pass, none that passed fails, and a mutation counts only if all pass."""
    repair = PythonEditor(max_runs=60).repair(
        CODE, parse_tests(TESTS), TableRun(lambda code: passing.get(code, set()))
    )
    assert (repair.code if repair else None) == expected
    if repair:
        assert repair.found_on == ("t2", "t3", "t4", "t5")
        assert (repair.before.passed, repair.after.passed) == (2, 6)
        assert (
            repair.note
            == "line 2: `<` became `<=` (found on the visible tests t2, t3, t4 and 1 more: 6 of 6 pass, before 2)"
        )


def test_certain_repairs_count_even_if_some_tests_still_fail():
    """A missing import is no guess."""
    code, fixed = (
        "def f(x):\n    return sqrt(x)\n",
        "from math import sqrt\ndef f(x):\n    return sqrt(x)\n",
    )
    run = TableRun({code: set(), fixed: {0, 1}}.get)
    repair = PythonEditor(max_runs=20).repair(
        code, parse_tests(TESTS), TableRun(lambda c: run.passing(c) or set())
    )
    assert repair.code == fixed
    assert repair.after.passed == 2


def test_a_certain_repair_is_no_repair_if_it_helps_nothing_in_the_end():
    """It leads to other changes; alone, with no more tests that pass, it is not offered."""
    code, fixed = (
        "def f(x):\n    return sqrt(x)\n",
        "from math import sqrt\ndef f(x):\n    return sqrt(x)\n",
    )
    run = TableRun(lambda changed: {0})
    assert PythonEditor(max_runs=20).repair(code, parse_tests(TESTS), run) is None
    assert fixed in run.codes


ALIKE = "def f(x):\n    return x < 2\n"
OTHER = "def f(x):\n    return x > 1\n"


@pytest.mark.parametrize(
    ("count", "passing", "behaviours", "expected"),
    [
        (3, [RIGHT], {}, None),  # with few tests one change is no evidence
        (4, [RIGHT], {}, RIGHT),
        (3, [RIGHT, ALIKE], {}, RIGHT),
        (3, [RIGHT, OTHER], {OTHER: "2"}, None),
        # the larger group, although it comes later
        (3, [OTHER, RIGHT, ALIKE], {OTHER: "2"}, RIGHT),
    ],
)
def test_with_few_tests_a_guess_needs_another_one_that_does_the_same(
    count, passing, behaviours, expected
):
    """On inputs that the tests do not have."""

    async def run(code, tests, limits):
        ok = code in passing
        got = behaviours.get(code, "1")
        return make_report(
            "calls", [replace(result_of(test, ok), got=got) for test in tests.items], None
        )

    repair = PythonEditor(max_runs=80).repair(CODE, parse_tests(TESTS[:count]), run)
    assert (repair.code if repair else None) == expected


def test_similar_calls_have_other_arguments_of_the_same_types():
    """Each differs in one argument, and there are not too many."""
    tests = parse_tests([{"input": [[1, 2], "ab", 3, True, {"a": 1}], "output": 0}] * 30)
    calls = similar_calls(tests).calls
    assert len(calls) <= 24
    for call in calls:
        changed = [
            n
            for n, (new, old) in enumerate(zip(call.args, tests.calls[0].args, strict=True))
            if new != old
        ]
        assert len(changed) == 1
        assert type(call.args[changed[0]]) is type(tests.calls[0].args[changed[0]])
    assert similar_calls(parse_tests([{"stdin": "1", "stdout": "1"}])) is None


def test_changes_are_made_one_after_the_other():
    """A program with a slip of syntax and a wrong operator is repaired in two changes."""
    code = "def f(x)\n    return x < 1\n"
    passing = {CODE: {0, 1}, RIGHT: set(range(6))}
    repair = PythonEditor().repair(
        code, parse_tests(TESTS), TableRun(lambda each: passing.get(each, set()))
    )
    assert repair.code == RIGHT
    assert repair.notes == ("line 1: added the missing colon", "line 2: `<` became `<=`")


def test_hidden_tests_never_decide():
    """They are run with the first and the last version only, and a version that breaks them is kept
    all the same.
    """
    tests = parse_tests([{**test, "hidden": n >= 4} for n, test in enumerate(TESTS)])
    run = TableRun(lambda code: {CODE: {0, 1, 2, 4, 5}, RIGHT: {0, 1, 2, 3}}.get(code, set()))
    repair = PythonEditor(max_runs=20).repair(CODE, tests, run)
    assert repair.code == RIGHT
    assert (repair.before.hidden_passed, repair.after.hidden_passed, repair.after.hidden_total) == (
        2,
        0,
        2,
    )
    assert repair.found_on == ("t3",)
    with_hidden = [
        code for code, names in zip(run.codes, run.names, strict=True) if set(names) & {"t4", "t5"}
    ]
    assert with_hidden == [CODE, RIGHT]


def test_tests_that_are_all_hidden_choose_nothing():
    """There is nothing to go by."""
    tests = parse_tests([{**test, "hidden": True} for test in TESTS])
    assert PythonEditor().repair(CODE, tests, TableRun(lambda code: set())) is None


@given(st.integers(1, 12), st.integers(1, 30), st.randoms(use_true_random=False))
@settings(max_examples=12, deadline=None)
def test_a_repair_is_bounded_and_never_loses_a_test(tests, max_runs, random):
    """Whatever the tests say of each version."""
    outcomes = {}

    def passing(code):
        return outcomes.setdefault(code, {n for n in range(tests) if random.random() < 0.6})

    run = TableRun(passing)
    repair = PythonEditor(max_runs=max_runs).repair(
        CODE, parse_tests([{**TESTS[0], "name": f"t{n}"} for n in range(tests)]), run
    )
    # and once with an addition that records lines
    assert len(set(run.codes) - {CODE}) <= max_runs + 1
    if repair:
        assert passing(CODE) < passing(repair.code)


def test_the_time_is_bounded():
    """After `seconds` no further change is tried."""

    async def slow(code, tests, limits):
        await asyncio.sleep(0.1)
        return make_report("calls", [result_of(test, False) for test in tests.items], None)

    seconds = asyncio.run(
        timed(PythonEditor(max_runs=1_000, seconds=0.2).arepair(CODE, parse_tests(TESTS), slow))
    )
    assert seconds < 30  # a thousand runs would take 100 s


async def timed(work):
    loop = asyncio.get_running_loop()
    start = loop.time()
    assert await work is None
    return loop.time() - start


def test_tests_that_cannot_be_judged_choose_nothing():
    """A report without a score is no reason for a change."""

    async def unjudged(code, tests, limits):
        return TestReport("in_process: forgeable", problem="not trusted")

    assert PythonEditor().repair(CODE, parse_tests(TESTS), unjudged) is None


def test_reports_of_different_length_are_not_compared():
    """Which test is which would be a guess."""
    tests = visible_tests(parse_tests(TESTS))
    before = make_report("driver", [result_of(test, False) for test in tests.items], None)
    after = make_report("driver", [result_of(test, True) for test in tests.items[1:]], None)
    assert not is_better(after, before)
    assert is_better(
        make_report("driver", [result_of(test, True) for test in tests.items], None), before
    )


@pytest.mark.parametrize(
    "arguments", [{"max_runs": 0}, {"max_runs": True}, {"seconds": 0}, {"seconds": float("nan")}]
)
def test_arguments_are_checked(arguments):
    """The error names the argument."""
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        PythonEditor(**arguments)


# ---- in a sandbox

REPAIRED = {
    "import": ("def f(x):\n    return sqrt(x)", ["assert f(9) == 3", "assert f(4) == 2"], "from math import sqrt"),
    "name": ("def g(x):\n    return x + 1", ["assert f(9) == 10"], "f = g"),
    "start": ("def f(x):\n    return x\n\nassert f(1) == 2", ["assert f(9) == 9"], None),
    "loop": ("def f(xs):\n    for x in xs:\n        if x > 3:\n            return True\n        return False", ["assert f([1, 4])", "assert not f([1])", "assert f([9])", "assert not f([2, 3])"], None),
    "recursion": ("def f(n):\n    return n if n < 2 else f(n - 1) + 1", ["assert f(3000) == 3000", "assert f(3) == 3"], "setrecursionlimit"),
    "import and name": ("def f(s):\n    count = Counter(s)\n    return cuont['a'] + cuont['b']", ["assert f('aaa') == 3", "assert f('b') == 1"], "import Counter"),
    "null and name": ("def f(x):\n    result = x if x != null else 0\n    return reslt + reslt", ["assert f(1) == 2", "assert f(5) == 10"], "None"),
    "names": ("def f(first, second):\n    return frist + secnd", ["assert f(1, 1) == 2", "assert f(5, 2) == 7"], None),
    "import and bound": ("def f(n):\n    out = []\n    for i in range(isqrt(n)):\n        out.append(i)\n    return out", ["assert f(9) == [0, 1, 2, 3]", "assert f(4) == [0, 1, 2]", "assert f(1) == [0, 1]", "assert f(0) == [0]"], "import isqrt"),
    "syntax, import and name": ("def f(n):\n    if n < 0\n        return 0\n    return floor(valeu(n) / 2)\ndef value(n):\n    return n", ["assert f(-1) == 0", "assert f(5) == 2"], "import floor"),
    "program": ("n = int(input()\nprint(n * 2)", [{"stdin": "3\n", "stdout": "6\n"}], None),
}  # fmt: skip


@needs_sandbox
@pytest.mark.parametrize("name", REPAIRED)
@pytest.mark.slow(but_each=4)
def test_a_program_is_repaired_in_the_sandbox(name):
    """Real programs and tests of several kinds."""
    code, tests, part = REPAIRED[name]
    repair = PythonEditor(max_runs=60).repair(code, parse_tests(tests, "f"))
    assert repair.after.ok
    assert part is None or part in repair.code


@needs_sandbox
def test_results_are_cached_where_only_time_fails():
    """The same function with a cache passes within the time."""
    code = "def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)"
    tests = parse_tests(["assert f(5) == 5", "assert f(80) == 23416728348467685"])
    repair = PythonEditor().repair(code, tests, limits=Limits(cpu_seconds=0.5))
    assert "@functools.cache" in repair.code
    assert repair.notes == ("cached the results of `f`",)


TASK = redraft.Task(
    "Write f(xs), the sum.",
    tests="\n".join(f"assert f({xs}) == {sum(xs)}" for xs in ([1, 4], [], [2, 2, 2], [3])),
)
WRONG = "def f(xs):\n    s = 0\n    for i in range(1, len(xs)):\n        s += xs[i]\n    return s"


@needs_sandbox
def test_the_loop_repairs_code_before_it_asks_the_model_again():
    """One call of the model, then a repair with a note; `editor=False` leaves it to the model."""
    model = redraft.ScriptedModel(
        [f"```python\n{WRONG.replace(':', '', 2).replace('xs)', 'xs):', 1)}\n```"]
    )
    result = redraft.refine_sync(TASK, model, CodeTests(), answer="code:python")
    assert (result.score, result.usage.calls, result.stop) == (1.0, 1, "target")
    repair = result.trace.best
    assert (repair.role, repair.by) == ("repair", "editor")
    assert "1 became 0 (found on the visible tests f([1, 4])" in repair.note
    model = redraft.ScriptedModel([f"```python\n{WRONG}\n```"] * 2)
    assert (
        redraft.refine_sync(
            TASK, model, CodeTests(), answer="code:python", editor=False, max_iterations=1
        ).score
        < 1
    )


@needs_sandbox
@pytest.mark.parametrize("text", [f"Here:\n```python\n{WRONG}\n```\nGood?", WRONG])
def test_only_the_code_of_an_answer_is_changed(text):
    """The prose around it stays."""
    edit = asyncio.run(CodeTests().repair(TASK, Candidate(0, text)))
    assert edit.text == text.replace("range(1,", "range(0,")


@needs_sandbox
def test_a_completion_stays_a_completion():
    """What the task puts before the code is not added to the answer."""
    task = replace(TASK, metadata={"code_prefix": 'def f(xs):\n    """The sum."""\n'})
    body = "    s = 0\n    for x in xs:\n        s -= x\n    return s"
    edit = asyncio.run(CodeTests().repair(task, Candidate(0, body)))
    assert dedent(edit.text) == dedent(body).replace("-=", "+=")


LINT = {
    "unused import": ("import os\nx = 1", "x = 1", "applied the safe fixes of ruff"),
    "missing import": ("x = math.pi", "import math\nx = math.pi", "added `import math`"),
    "two statements on a line": ("def f(x):\n    if x: return 1\n    return 2", "def f(x):\n    if x:\n        return 1\n    return 2", "formatted the code with ruff"),
    "prose around": ("So:\n```python\nimport os\nx = 1\n```\n", "So:\n```python\nx = 1\n```\n", "applied the safe fixes of ruff"),
    "unknown name": ("x = frobnicate(1)", None, ""),
    "nothing to do": ("x = 1", None, ""),
}  # fmt: skip


@needs_sandbox
@pytest.mark.parametrize("name", LINT)
def test_findings_are_repaired_where_that_keeps_what_the_code_does(name):
    """Imports, safe fixes and the format; a repair is kept only if findings become fewer."""
    text, repaired, note = LINT[name]
    edit = asyncio.run(Lint().repair(redraft.Task("Write code."), Candidate(0, text)))
    assert (edit and edit.text, edit.note if edit else "") == (repaired, note)


SYNTAX = {
    "a colon": ("def f(x)\n    return 1", "def f(x):\n    return 1", False),
    "a function cut off": ("x = 1\ndef g(", "x = 1", True),
    "a sentence": (
        "So it goes like this:\n\nx = 1\nif x\n    y = 1",
        "\nx = 1\nif x:\n    y = 1",
        True,
    ),
    "no code": ("I cannot do that.", None, None),
    "a body": ("    if x > 1:\n        return 1\n    return 2", None, None),
    "a body that lost its indentation": ("if x > 1:\n    return 1\nreturn 2", None, None),
    "a body of one line": ("return x", None, None),
    "a body that ends with return": (
        "total = 0\nfor x in xs:\n    total += x\nreturn total",
        None,
        None,
    ),
    "blocks of a body": ("if x:\nreturn 1\nelse:\nreturn 2", None, None),
}


@pytest.mark.parametrize("name", SYNTAX)
def test_the_grader_of_syntax_offers_repairs_and_says_whether_they_lose_something(name):
    """Only small changes are offered, and none that drops a statement of a function's body."""
    text, repaired, lossy = SYNTAX[name]
    edit = asyncio.run(CodeSyntax().repair(TASK, Candidate(0, text)))
    assert (edit and edit.text, edit.lossy if edit else None) == (repaired, lossy)
    edits = list(CodeAnswer("python").repairs(text))
    assert [(each.text, each.lossy) for each in edits] == (
        [] if repaired is None else [(repaired, lossy)]
    )


# ---- repairs that graders offer


class LetterGrader:
    """Scores the share of the letter `a`; its repair replaces one letter."""

    model_free = editable = True

    def __init__(self, name="letters", replacement=("b", "a"), guards=False, score=None):
        self.name, self.replacement, self.guards_repairs, self.score = (
            name,
            replacement,
            guards,
            score,
        )

    async def grade(self, task, candidate, ask):
        return Feedback(
            self.score(candidate.text)
            if self.score
            else candidate.text.count("a") / len(candidate.text)
        )

    async def repair(self, task, candidate):
        new = candidate.text.replace(*self.replacement)
        return Edit(new, f"{self.name} replaced") if new != candidate.text else None


def refined(text, *graders, **settings):
    return redraft.refine_sync(
        "q", redraft.ScriptedModel([text] * 3), list(graders), max_iterations=1, **settings
    )


def test_a_grader_may_offer_repairs():
    """An editable grader's repair becomes a candidate of its own, for free."""
    result = refined("ab", LetterGrader())
    assert (result.value, result.score, result.usage.calls) == ("aa", 1.0, 1)
    assert result.trace.best.note == "letters replaced"
    assert refined("ab", LetterGrader(), editor=False).value == "ab"


def test_repairs_of_several_graders_are_made_one_after_the_other():
    """Each gets the text of the one before."""
    result = refined("abc", LetterGrader(), LetterGrader("more", ("c", "a")))
    assert (result.value, result.trace.best.note) == ("aaa", "letters replaced; more replaced")


def test_a_repair_that_a_guard_scores_lower_is_dropped():
    """Style never costs a passing test; the guard's own repairs are its own matter."""
    for editable in (True, False):
        guard = LetterGrader(
            "guard", ("x", "x"), guards=True, score=lambda text: 0.5 if "b" in text else 0.2
        )
        guard.editable = editable
        result = refined("ab", LetterGrader(), guard)
        assert [c.role for c in result.trace.candidates if c.text != "ab"] == []


def test_a_repair_that_raises_is_a_failure_and_ends_nothing():
    """The loop goes on without repairs."""

    class Broken(LetterGrader):
        async def repair(self, task, candidate):
            raise OSError("no disk")

    result = refined("ab", Broken())
    assert result.score == 0.5
    assert [failure.role for failure in result.trace.failures.values()] == ["repair"]


TWO_TESTS = [{"input": [n], "output": n + 1} for n in (1, 2)]
OVERRUNS = {  # which run hangs, and how many are started at most
    "the first": (lambda code, n: n == 0, 1),
    "one of a changed program": (lambda code, n: n > 0, 1 + PARALLEL_RUNS),
    "the last": (lambda code, n: n > 0 and code == RIGHT, 1_000),
}


@pytest.mark.parametrize("which", OVERRUNS)
async def test_the_seconds_bound_each_run(which):
    """What still runs at the end is stopped, whichever run it is."""
    hangs, most = OVERRUNS[which]
    started, ended = [], []

    async def run(code, tests, limits):
        started.append(code)
        try:
            await asyncio.sleep(60 if hangs(code, len(started) - 1) else 0)
        finally:
            ended.append(code)
        return make_report(
            "calls",
            [TestResult("f(1)", False, seconds=0.1), TestResult("f(2)", False, seconds=0.1)],
            None,
        )

    begun = monotonic()
    assert (
        await PythonEditor(seconds=0.6, max_runs=50).arepair(CODE, parse_tests(TWO_TESTS, "f"), run)
        is None
    )
    assert monotonic() - begun < 30
    assert len(started) == len(ended) <= most


async def test_the_seconds_bound_the_search_for_changes(monkeypatch):
    """The worker that makes proposals is stopped, too."""
    cancelled = []

    async def endless(*_, **__):
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.append(True)

    monkeypatch.setattr("redraft.code.proposals.run", endless)
    begun = monotonic()
    assert (
        await PythonEditor(seconds=0.4).arepair(
            CODE, parse_tests(TESTS), TableRun(lambda code: set())
        )
        is None
    )
    assert monotonic() - begun < 30
    assert cancelled


TIMES = [
    # CPU limit of a test, outcome of the two tests after the repair, whether it counts
    (10.0, (True, True), True),
    (10.0, (True, False), False),  # the second may have passed within the limits of the grader
    (0.5, (True, False), True),  # it had all its time before
]


@pytest.mark.parametrize(("cpu_seconds", "after", "counts"), TIMES)
async def test_a_test_that_got_less_time_before_the_repair_must_pass_after_it(
    cpu_seconds, after, counts
):
    """The code as it is gets a part of the seconds, so nothing is known of a test that ran out of
    them.
    """
    code, fixed = (
        "def f(x):\n    return sqrt(x)\n",
        "from math import sqrt\ndef f(x):\n    return sqrt(x)\n",
    )
    allowed = []

    async def run(changed, tests, limits):
        allowed.append(limits.cpu_seconds)
        oks = after if changed == fixed else (False, False)
        results = [
            TestResult(f"t{n}", ok, error="" if ok else f"{error}", seconds=0.01)
            for n, (ok, error) in enumerate(
                zip(oks, ("NameError", "out of time: more than 1 seconds"), strict=True)
            )
        ]
        return make_report("calls", results, None)

    editor = PythonEditor(seconds=8)
    repair = await editor.arepair(
        code, parse_tests(TWO_TESTS, "f"), run, Limits(cpu_seconds=cpu_seconds)
    )
    assert (repair is not None) == counts
    assert allowed[0] == min(1.0, cpu_seconds)
    assert max(allowed) <= cpu_seconds
