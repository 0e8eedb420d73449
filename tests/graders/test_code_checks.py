"""Graders of Python code that is not run: syntax, lint, security, types, complexity, and the
similarity with a reference.
"""

from dataclasses import replace
from importlib import metadata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redraft
from redraft import Candidate, Task
from redraft.base.sync import run_sync
from redraft.errors import ConfigError
from redraft.graders.registry import grader_from_spec
from redraft.graders.traits import check_environment, traits_of
from redraft.sandbox import Execution, Sandbox
from redraft.sandbox.code import ruff, type_checkers
from redraft.sandbox.code.ruff import ToolError
from require import require_sandbox

pytestmark = pytest.mark.usefixtures("sandbox")

GOOD = "def double(n: int) -> int:\n    return 2 * n\n"
BRANCHES = "def f(a):\n" + "".join(f"    if a == {n}:\n        return {n}\n" for n in range(12))
CHECKS = ["syntax", "lint", "security", "types", "complexity", "code_similarity"]
BY_TOOL = ["lint", "security", "types"]


async def run_grader(spec, text, reference=GOOD, **fields):
    grader = grader_from_spec(spec)
    task = Task("q", reference=reference, **fields)
    check_environment(traits_of(grader))
    if hasattr(grader, "check_task"):
        grader.check_task(task)
    feedback = await grader.grade(task, Candidate(0, text), None)
    assert feedback.score in (None, 1) or (feedback.actions and all(feedback.actions))
    assert all(action.isprintable() for action in feedback.actions)
    return feedback


SCORES = [
    ("syntax", GOOD, 1, ""),
    ("syntax", "def f(:\n  pass", 0, "Write code that compiles: line 1: "),
    ("syntax", "def f():\n    pass\nreturn 1", 0, "line 3: 'return' outside function"),
    ("syntax", "", 0, "Answer with Python code."),
    ("syntax", "'''only a text'''\npass", 0, "Answer with Python code."),
    ("lint", GOOD, 1, ""),
    ("lint", "import os\n" + GOOD, 1 / 2, "Line 1: F401 `os` imported but unused"),
    ("lint", "import os, sys\n" + GOOD, 1 / 4, "Line 1: E401 Multiple imports on one line"),
    ("lint", "import os  # noqa\n" + GOOD, 1 / 2, "F401"),
    ("lint", "# ruff: noqa\n# flake8: noqa\nimport os\n" + GOOD, 1 / 2, "Line 3: F401"),
    ("lint:E", "import os\n" + GOOD, 1, ""),
    ("lint:F,ignore=F401", "import os\nx = y\n", 1 / 2, "F821 Undefined name `y`"),
    ("lint:rules=D1", GOOD, 1 / 3, "Line 1: D100"),
    ("lint", "x = (", 0, "line 1: '(' was never closed"),
    ("security", GOOD, 1, ""),
    ("security", "assert 1\nprint(eval(input()))  # noqa: S307", 1 / 2, "Line 2: S307"),
    ("security:ignore=S307", "assert 1\nprint(eval(input()))", 1 / 2, "Line 1: S101"),
    ("security", "import subprocess\nsubprocess.run('x', shell=True)", 1 / 3, "S602"),
    ("complexity", GOOD, 1, ""),
    (
        "complexity",
        BRANCHES,
        10 / 13,
        "Line 1: the complexity of f is 13 and may be 10: split it, or simplify its conditions.",
    ),
    ("complexity:limit=13", BRANCHES, 1, ""),
    ("complexity", "", 0, "Answer with Python code."),
    ("code_similarity", GOOD, 1, ""),
    ("code_similarity", "def twice(x):\n    return 2*x", 1, ""),
    ("code_similarity", "def f(:", 0, "Write code that compiles."),
    ("code_similarity", "", 0, "Solve the task in the usual way"),
]


@pytest.mark.slow(but_each=7)
@pytest.mark.parametrize(("spec", "code", "score", "says"), SCORES)
async def test_scores(spec, code, score, says):
    """Of code alone, and what is to change."""
    feedback = await run_grader(spec, code)
    assert feedback.score == pytest.approx(score)
    assert says in " ".join(feedback.actions)


@pytest.mark.parametrize("spec", ["syntax", "lint", "security", "complexity", "code_similarity"])
async def test_code_in_a_fence_is_graded_alone(spec):
    """The prose around it does not count, and lines are numbered from the start of the code."""
    plain, fenced = [
        await run_grader(spec, text)
        for text in (BRANCHES, f"Here is the code:\n```python\n{BRANCHES}\n```\nIt works.")
    ]
    assert (plain.score, plain.actions) == (fenced.score, fenced.actions)


FENCED = f"```python\n{GOOD}```\n"


@pytest.mark.parametrize(
    ("text", "score", "says"),
    [
        (FENCED + FENCED, 1, ""),
        (
            FENCED + "```python\nprint(double(2)\n```",
            0,
            "code block 2, line 1: '(' was never closed",
        ),
        ("First:\n```py\nx = = 1\n```\nand\n" + FENCED, 0, "code block 1, line 1: "),
        (FENCED + "As a session:\n```python\n>>> double(2)\n4\n```", 1, ""),
        (FENCED + "```python\n# nothing more\n```", 1, ""),
        (FENCED + "```python\n    def __len__(self):\n        return 1\n```", 1, ""),
        (FENCED + "```\nTypeError: no (\n```\n```bash\nls (\n```", 1, ""),
        ("```\nx = 1\n```\n```\n$ 1 (\n```", 1, ""),
    ],
)
async def test_every_block_of_python_must_compile(text, score, says):
    """A good block does not hide a broken one; blocks in another language, and without a label, are
    no Python.
    """
    feedback = await run_grader("syntax", text)
    assert feedback.score == score
    assert says in " ".join(feedback.actions)


def test_a_broken_block_beside_a_good_one_is_repaired():
    """The editor removes the fence that is left in that block alone."""
    block = "~~~python\nprint(double(2))\n{}~~~"
    task = Task("q", FENCED + block.format("```\n"))
    result = redraft.refine_sync(task, False, "syntax")
    assert (result.value, result.score) == (FENCED + block.format(""), 1)


PERFECT = (
    "#!/usr/bin/env python3\n"
    '"""Double numbers."""\n\nimport sys\n\n\n'
    'def double(number: int) -> int:\n    """Return twice the number."""\n    return 2 * number\n\n\n'
    'if __name__ == "__main__":\n    sys.stdout.write(str(double(21)))\n'
)


@pytest.mark.slow(but_each=14)
@pytest.mark.parametrize(
    "spec",
    [
        "lint:E,W,N",
        "code_style",
        "CodeStyleGrader",
        "lint:ALL,ignore=CPY",
        "security",
        "types:strict=true",
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        "{}",
        "\n{}\n\n\n",
        "```python\n{}```",
        "Here:\n\n```python\n{}\n\n```\nDone.",
        "  ```py\n{}\n  \n  ```",
        "~~~\n{}~~~",
        "```\n{}",
    ],
)
async def test_no_rule_about_the_end_of_a_file_counts_against_code_in_an_answer(spec, form):
    """An answer has no file, so how its code ends says nothing."""
    assert (await run_grader(spec, form.format(PERFECT))).score == 1


@pytest.mark.slow
@pytest.mark.parametrize("checker", type_checkers.CHECKERS)
@pytest.mark.parametrize(
    ("options", "code", "score"),
    [
        ("", GOOD + "import numpy, no_such_module\n", 1),
        (
            "",
            "# mypy: ignore-errors\n# pyright: basic\ndef f(n: int) -> str:\n    return n  # type: ignore\n",
            1 / 2,
        ),
        ("", "def f(n):\n    return 1 + ''\n", 1 / 2),
        (",strict=true", "def f(n):\n    return n\n", None),
    ],
)
async def test_types(checker, options, code, score):
    """Errors in unannotated functions count, modules that are not there do not, and no comment
    switches a check off.
    """
    feedback = await run_grader(f"types:checker={checker}{options}", code)
    assert feedback.metadata["tool"].startswith(checker) and feedback.metadata["sandbox"]
    assert feedback.score == pytest.approx(score) if score else feedback.score < 1


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["bubblewrap", "landlock", "unsafe"])
@pytest.mark.parametrize("spec", ["lint:F", "types:checker=mypy", "types:checker=basedpyright"])
async def test_each_tier_finds_the_same(spec, tier):
    """The tools find what they need in each of them."""
    require_sandbox(tier)
    feedback = await run_grader(
        f"{spec},sandbox={tier}", "import os\ndef f(n: int) -> str:\n    return n\n"
    )
    assert (feedback.score, feedback.metadata["sandbox"]) == (1 / 2, tier)


@pytest.mark.parametrize(
    ("exit_code", "stdout", "stderr"),
    [
        (1, "", "Traceback ..."),
        (0, "", ""),
        (2, "", "INTERNAL ERROR"),
        (101, "", "panicked"),
        (None, "Success: no issues", ""),
        (1, "Success", ""),
    ],
)
@pytest.mark.parametrize("spec", ["lint", "types:checker=mypy", "types:checker=basedpyright"])
async def test_a_tool_that_breaks_gives_no_score(spec, exit_code, stdout, stderr, monkeypatch):
    """That it reports nothing is no proof that there is nothing."""
    ended = Execution(
        "exited", exit_code, None, stdout, stderr, False, 1.0, 1.0, None, "bubblewrap"
    )
    monkeypatch.setattr(Sandbox, "run_tool", lambda *_, **__: ended)
    feedback = await grader_from_spec(spec).grade(Task("q"), Candidate(0, GOOD), None)
    assert (feedback.score is None) is (spec != "lint" or exit_code != 0), feedback


HOSTILE = {
    "nothing": "",
    "brackets": "(" * 5000,
    "signs": "-" * 50_000 + "1",
    "additions": "+".join("1" * 20_000),
    "attributes": "a" + ".a" * 20_000,
    "blocks": "".join(f"{' ' * n}if 1:\n" for n in range(90)) + " " * 90 + "x = 1",
    "a power": "x = 9**9**9**9",
    "a long line": "x = '" + "a" * 150_000 + "'",
    "too long": "x = 1\n" * 60_000,
    "null": "x = 1\0",
    "a surrogate": "x = '\ud800'",
    "controls": "x = 1\x0c\x1b[2J\r\ny = 2",
    "direction": "x = '\u202e'",
    "encoding": "# coding: no-such-codec\nx = 1",
    "options": "--config=/etc/passwd\n",
    "findings": "import os\n" * 9_000,
    "names": "import " + ", ".join(f"a{n}\u00aa" for n in range(3000)),
}


TYPED = ["brackets", "a power", "null", "a surrogate", "options"]  # a run takes seconds


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    ["syntax", "lint:ALL", "security", "types:checker=mypy", "complexity", "code_similarity"],
)
async def test_hostile_code_gets_a_score_or_none(spec, monkeypatch):
    """No code makes a check crash; what could not be checked says why. (mypy computes powers.)"""
    monkeypatch.setattr(
        type_checkers, "MYPY_LIMITS", replace(type_checkers.MYPY_LIMITS, cpu_seconds=4)
    )
    names = TYPED if spec.startswith("types") else HOSTILE
    for name, code in ((name, HOSTILE[name]) for name in names):
        feedback = await run_grader(spec, code)
        assert feedback.score is not None or feedback.reason, name
        assert sum(map(len, feedback.actions)) < 5000, name


RULES = ["import os", "import sys", "x = undefined", "l = 1", "if x == None: y = 2", "print(1)"]


@pytest.mark.slow
@settings(max_examples=4)
@given(st.lists(st.sampled_from(RULES), min_size=1, max_size=6), st.sampled_from(RULES))
def test_only_the_number_of_findings_counts(lines, further):
    """A further line never removes a finding, and clean lines do not raise the score."""
    sandbox, code = Sandbox(), "\n".join(lines)
    count, more, padded = (
        len(ruff.findings(each, ["E", "F"], sandbox=sandbox))
        for each in (code, f"{code}\n{further}", code + "\nzz = 1" * 50)
    )
    assert count == padded <= more
    assert run_sync(run_grader("lint:E,F", code)).score == pytest.approx(1 / (1 + count))


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("spec", BY_TOOL)
async def test_the_tool_and_the_sandbox_are_recorded(spec):
    """With the version, since another version has other rules."""
    metadata_of = (await run_grader(spec, "import os\n" + GOOD)).metadata
    tool = "mypy" if spec == "types" else "ruff"
    assert (
        metadata_of["tool"] == f"{tool} {metadata.version(tool)}"
        and metadata_of["sandbox"] == Sandbox().tier
    )


async def test_a_completion_is_checked_with_its_beginning():
    """The beginning is in the metadata of the task."""
    prefix = "def double(n):\n"
    feedback = await run_grader("syntax", "    return 2 * n", metadata={"code_prefix": prefix})
    assert feedback.score == 1
    assert (await run_grader("syntax", "    return 2 * n")).score == 0
    similar = await run_grader(
        "code_similarity", GOOD, reference="    return 2 * n\n", metadata={"code_prefix": prefix}
    )
    assert similar.score == 1


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            "lint:bogus",
            "grader 'lint': rules must be rules of ruff such as E, F or B006, got 'bogus'",
        ),
        ("lint:E,ignore=;rm", "ignore must be rules of ruff"),
        ("lint:ABCDEF9", "Unknown rule selector `ABCDEF9`"),
        ("lint:rules=", "rules must be"),
        ("types:checker=pyre", "checker must be auto or mypy or basedpyright, got 'pyre'"),
        ("complexity:limit=0", "limit must be a whole number from 1 to 10,000, got 0"),
        ("syntax:x", "there are: none"),
        ("code_similarity:names=1", "names must be true or false"),
    ],
)
async def test_wrong_options_are_named(spec, says):
    """The value and what is allowed."""
    with pytest.raises(ConfigError, match=says):
        await run_grader(spec, GOOD)


async def test_a_reference_that_is_no_code_is_an_error():
    """It is the task that is wrong."""
    with pytest.raises(ConfigError, match="the reference is not Python code"):
        await run_grader("code_similarity", GOOD, reference="It is double.")


@pytest.fixture
def nothing_installed(monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    ruff.check_rules.cache_clear()


async def test_a_missing_tool(nothing_installed):
    """Ruff is named with the extra; types are unknown, unless a checker was asked for."""
    with pytest.raises(ConfigError, match=r"pip install 'redraft\[code\]'"):
        await run_grader("lint", GOOD)
    feedback = await run_grader("types", GOOD)
    assert (feedback.score, feedback.reason) == (
        None,
        "types were not checked: neither mypy nor basedpyright is installed",
    )
    with pytest.raises(ConfigError, match=r"mypy is not installed \(pip install mypy\)"):
        await run_grader("types:checker=mypy", GOOD)


async def test_a_tool_that_is_stopped_gives_no_score(monkeypatch):
    """Its limits are ours; the code is not to blame."""
    monkeypatch.setattr(
        ruff,
        "findings",
        lambda *_, **__: (_ for _ in ()).throw(ToolError("ruff did not finish (cpu)")),
    )
    feedback = await grader_from_spec("lint").grade(Task("q"), Candidate(0, GOOD), None)
    assert (feedback.score, feedback.reason) == (None, "ruff did not finish (cpu)")


# ---- safe fixes


@pytest.mark.parametrize(
    ("code", "fixed"),
    [
        ("import os\n\nx = 1\n", "x = 1\n"),
        ("x = 1\nif x == None:\n    pass\n", None),  # the fix is not safe
        ("import os\n", None),  # nothing would be left
        ("x = (\n", None),
        ("x = 1\n", None),
        ("import os  # noqa\nx = f'1'\n", "x = '1'\n"),
    ],
)
@pytest.mark.parametrize(
    "form", ["{}", "Here:\n```python\n{}```\nDone."], ids=["alone", "in a fence"]
)
@pytest.mark.slow(but_each=6)
async def test_the_editor_applies_safe_fixes(code, fixed, form):
    """To the code in the answer; the text around it stays."""
    edit = await grader_from_spec("lint").repair(Task("q"), Candidate(0, form.format(code)))
    assert (edit and edit.text) == (fixed and form.format(fixed))


def test_functions_of_ruff_for_editors():
    """They return code, or say why there is none."""
    assert ruff.apply_safe_fixes("import os\nx = 1\n", ["F"]) == "x = 1\n"
    assert ruff.apply_safe_fixes("x = (\n", ["F"]) == "x = (\n"
    assert ruff.format_code("x=[ 1,2 ]\n") == "x = [1, 2]\n"
    with pytest.raises(ToolError, match="Failed to parse"):
        ruff.format_code("x = (\n")


def test_in_a_refinement():
    """Findings reach the writer as actions."""
    model = redraft.ScriptedModel(
        ["```python\ndef double(n):\n    return undefined\n```", f"```python\n{GOOD}```"]
    )
    result = redraft.refine_sync(
        "Double a number.", model, ["lint", "complexity"], answer="code:python", editor=False
    )
    assert result.value == GOOD.rstrip() and result.score == 1
    assert "Line 2: F821 Undefined name `undefined`" in str(model.requests[1].messages)
