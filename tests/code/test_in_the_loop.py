"""Code that is run as part of a refinement: which graders run it, what a model is shown, what the
settings change.
"""

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redraft
from redraft import Task
from redraft.errors import ConfigError, SandboxUnavailableError
from redraft.graders import Checklist, Gate, Jury, WeightedMean, as_grader, router
from redraft.graders.execution import EXECUTION_FIELDS, CodeExecution
from redraft.graders.fingerprint import grader_fingerprint
from redraft.loop.visible_tests import visible_tests
from redraft.sandbox import Sandbox, tiers
from redraft.sandbox.graders.code_tests import CodeTests
from redraft.session.options import Options
from redraft.validation import validate_sync
from sessions import make_session

pytestmark = pytest.mark.usefixtures("sandbox")

DRAFTS = [
    "def fib(n):\n    return n",
    "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n)",
    "def fib(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a",
]
FENCED = [f"Here it is:\n\n```python\n{draft}\n```\n" for draft in DRAFTS]
TESTS = [{"input": [n], "output": value} for n, value in [(0, 0), (1, 1), (2, 1), (10, 55)]]
HIDDEN = {"input": [90], "output": 2880067194370816120, "hidden": True}
SECRET = "4815162342"  # a value in hidden tests
EXACT = {"editor": False, "patience": 5}


def fib_task(**more):
    return Task("Write fib(n).", tests=[*TESTS, HIDDEN], **more)


def write_next(messages):
    """A model that writes the draft that follows from what the prompt says is wrong."""
    said = str(messages[-1]["content"])
    return FENCED[2 if "RecursionError" in said else 1 if "returns 10" in said else 0]


def never_asked(messages):
    raise AssertionError(messages)


def feedback_of(result, candidate=-1):
    """The feedback of the grader that ran the tests."""
    return next(
        f for f in list(result.trace.feedback.values())[candidate] if f.grader.startswith("tests")
    )


# ---- the founding example


def test_a_function_is_improved_until_its_tests_pass():
    """Each draft runs; its failures, with the lines of its traceback, are what the next prompt asks
    to change.
    """
    model = redraft.ScriptedModel(FENCED)
    result = redraft.refine_sync(fib_task(), model, answer="code:python", **EXACT)
    assert result.parsed == DRAFTS[-1] and result.stop == "target"
    assert result.score_history == [0.5, 0.5, 1.0]
    first, second, third = (
        "\n".join(str(m["content"]) for m in request.messages) for request in model.requests
    )
    assert "one code block" in first and "55" not in first
    assert "fib(10): it returns 10, expected 55" in second
    assert "RecursionError" in third and "line 2" in third
    metadata = feedback_of(result).metadata
    assert metadata["sandbox"] == Sandbox().tier and metadata["method"] == "calls"
    assert (metadata["hidden_passed"], metadata["hidden_total"]) == (1, 1)


def test_tests_as_a_hard_constraint():
    """A must that is partly met is broken."""
    sample = fib_task(response=DRAFTS[0])
    report = redraft.grade_sync(sample, redraft.must("tests"))
    assert report.broken_musts and report["tests"].score == 0.5
    assert not redraft.grade_sync(
        replace(sample, response=DRAFTS[2]), redraft.must("tests")
    ).broken_musts


async def test_a_batch_runs_the_tests_of_each_row_and_resumes_without_any_work(tmp_path):
    """The column is recognised; the score is that of the tests; a change of a row's tests redoes
    this row alone.
    """
    rows = [
        {"id": "fib", "prompt": "Write fib(n).", "tests": TESTS},
        {
            "id": "text",
            "prompt": "Write fib(n), again.",
            "tests": "assert fib(3) == 2",
            "response": DRAFTS[2],
        },
        {
            "id": "wrong",
            "prompt": "Write fib(n).",
            "tests": ["assert fib(3) == 7"],
            "response": DRAFTS[2],
        },
    ]
    settings = {"answer": "code:python", "max_iterations": 2, "max_in_flight": 1, **EXACT}

    async def run(model):
        return await redraft.batch(
            rows, tmp_path / "out.jsonl", redraft.connect(model, name="writer"), **settings
        )

    report = await run(write_next)
    written = {
        row["id"]: row for row in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    }
    assert {id: row["best_score"] for id, row in written.items()} == {
        "fib": 1.0,
        "text": 1.0,
        "wrong": 0.0,
    }
    assert written["fib"]["best"] == DRAFTS[-1] and report.rows.done == 3
    report = await run(never_asked)
    assert (report.rows.reused, report.spending.calls) == (3, 0)
    rows[2]["tests"] = ["assert fib(3) == 2"]
    report = await run(never_asked)
    assert (report.rows.reused, report.rows.done, report.scores.best) == (2, 3, 1.0)


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize(
    "change", [{"sandbox": "unsafe"}, {"trust_in_process": True}, {"packages": ["pytest"]}]
)
async def test_a_row_is_redone_if_code_runs_in_another_way(tmp_path, change):
    """What decides a verdict is part of the key of a row."""
    rows = [{"prompt": "Write fib(n).", "tests": TESTS, "response": DRAFTS[2]}]
    for settings, reused in [({}, 0), ({}, 1), (change, 0), (change, 1)]:
        report = await redraft.batch(
            rows, tmp_path / "out.jsonl", False, answer="code:python", mode="grade", **settings
        )
        assert (report.rows.done, report.rows.reused) == (1, reused)


@pytest.mark.slow
def test_tests_are_validated_against_labels(tmp_path):
    """Labelled rows have the tests of their task, so that their verdicts can be compared with those
    of people.
    """
    codes = [("return n + 1", 1), ("return n", 0), ("return 1 + n", 1), ("return n - 1", 0)]
    rows = [
        {
            "prompt": f"Write f, number {n}.",
            "response": f"def f(n):\n    {code}",
            "tests": ["assert f(1) == 2"],
            "label": label,
        }
        for n, (code, label) in enumerate(codes)
    ]
    result = validate_sync(rows, "tests", cards_dir=tmp_path)
    assert result.headline.value == 1.0


# ---- which graders run


@pytest.mark.parametrize(
    ("answer", "tests", "graders", "panel"),
    [
        ("code:python", TESTS, None, ["answer", "tests"]),
        ("code:python", None, None, ["answer"]),
        ("code:rust", TESTS, None, ["answer"]),
        (None, TESTS, None, ["tests"]),
        (None, TESTS, "tests", ["tests"]),
        ("code:python", TESTS, ["code_quality"], ["answer", "code_quality", "tests"]),
        ("code:python", TESTS, ["code_quality", "tests"], ["answer", "code_quality", "tests"]),
    ],
)
async def test_the_default_grader_of_code_with_tests(answer, tests, graders, panel):
    """Tests are something that is named: they run beside other graders, unless the answer is of
    another language.
    """
    stream = redraft.stream(
        Task("Write it.", tests=tests), redraft.ScriptedModel(["x"]), graders, answer=answer
    )
    trace = await anext(stream)
    assert [grader.name for grader in trace.panel] == panel
    await stream.aclose()


async def test_tasks_with_and_without_tests_share_a_session():
    """Each is graded by what it has."""
    tasks = [Task("Write f.", tests="assert f() == 1"), Task("Write f, too.")]
    writer = redraft.ScriptedModel(["def f():\n    return 1"] * 2)
    results = await redraft.refine_many(tasks, writer, answer="code:python", max_iterations=0)
    assert [[grader.name for grader in result.trace.panel] for result in results] == [
        ["answer", "tests"],
        ["answer"],
    ]


def test_no_sandbox_is_an_error_before_any_call(monkeypatch):
    """It says why, and what to install; neither is code run nor a call made."""
    monkeypatch.setattr(tiers, "AUTOMATIC", ())
    tiers.choose_tier.cache_clear()
    model = redraft.ScriptedModel(FENCED)
    try:
        with pytest.raises(SandboxUnavailableError, match="install bubblewrap"):
            redraft.refine_sync(fib_task(), model, answer="code:python")
        with pytest.raises(SandboxUnavailableError, match="install bubblewrap"):
            redraft.batch_sync(
                [{"prompt": "Write fib.", "tests": TESTS}], None, model, answer="code:python"
            )
    finally:
        tiers.choose_tier.cache_clear()
    assert model.requests == []


# ---- tests as data


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (None, None),
        ("assert f() == 1", "assert f() == 1"),
        (["assert f() == 1", "assert f() == 2"], "assert f() == 1\nassert f() == 2"),
        ([], None),
        ([{"input": [1, (2, 3)], "output": None}], '[{"input": [1, [2, 3]], "output": null}]'),
        (
            {"entry_point": "f", "tests": [{"input": ["é"], "output": 1.5}]},
            '{"entry_point": "f", "tests": [{"input": ["é"], "output": 1.5}]}',
        ),
    ],
)
def test_a_task_keeps_tests_as_text(given, stored):
    """So that a trace and a journal keep them, too."""
    task = Task("Write f.", tests=given)
    assert task.tests == stored and replace(task).tests == stored


@pytest.mark.parametrize(
    "given",
    [3, [{"input": {1, 2}}], [{"input": [10**5000]}], [object()], b"assert f()", [[1, [...]]]],
)
def test_tests_that_are_no_json_are_refused(given):
    """The message names the argument."""
    with pytest.raises(ConfigError, match="tests"):
        Task("Write f.", tests=given)


SHOWN, NOT_SHOWN = (
    {"input": [1], "output": 1},
    {"input": [2], "output": int(SECRET), "hidden": True},
)
WITH_HIDDEN = {
    "a list": [SHOWN, NOT_SHOWN],
    "a list in a mapping": {"entry_point": "f", "tests": [SHOWN, NOT_SHOWN]},
    "a list of hidden ones": {"tests": [SHOWN], "hidden": [{"input": [2], "output": int(SECRET)}]},
    "asserts": {"tests": ["assert f(1) == 1"], "hidden": [f"assert f(2) == {SECRET}"]},
    "code": {"tests": "assert f(1) == 1", "hidden": f"assert f(2) == {SECRET}"},
    "tests as a text in a mapping": {"tests": json.dumps([SHOWN, NOT_SHOWN])},
    "one test": NOT_SHOWN,
    "programs": [{"stdin": "1", "stdout": "1"}, {"stdin": "2", "stdout": SECRET, "hidden": True}],
    "python": repr([SHOWN, NOT_SHOWN]),
    "python with a tuple": repr([SHOWN, {**NOT_SHOWN, "input": (2,)}]),
    "escaped": json.dumps([SHOWN, NOT_SHOWN]).replace("hidden", "\\u0068idden"),
    "spaces before it": "\n  " + json.dumps([NOT_SHOWN]),
    "neither JSON nor Python": json.dumps([SHOWN, NOT_SHOWN])[:-1],
}


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("tests", WITH_HIDDEN.values(), ids=WITH_HIDDEN)
async def test_no_model_is_shown_a_hidden_test(tests):
    """Neither the judge, whose rubric shows tests, nor the writer."""
    task = Task("Write f.", response="def f(n):\n    return n", tests=tests)
    verdict = json.dumps(
        {"criteria": {"quality": {"score": 1, "evidence": "", "action": "more"}}, "done": False}
    )
    judge, writer = (
        redraft.ScriptedModel([verdict] * 9),
        redraft.ScriptedModel(["def f(n):\n    return 2 * n"] * 9),
    )
    graders = [redraft.Judge({"quality": "It is right."}), Checklist()]
    # what cannot be read cannot run
    answer = "code:rust" if tests == WITH_HIDDEN["neither JSON nor Python"] else "code:python"
    try:
        await redraft.refine(task, writer, graders, judge, answer=answer, max_iterations=1)
    except redraft.errors.RedraftError:
        pass  # a scripted judge need not be understood
    shown = [str(request.messages) for model in (judge, writer) for request in model.requests]
    assert shown and not any(SECRET in text for text in shown)


def test_visible_tests_are_shown_as_they_are():
    """Without hidden ones nothing changes, whatever the form."""
    for text in [
        "assert f(1) == 1",
        '[{"input": [1], "output": "hidden"}]',
        "[1, 2",
        None,
        '{"inputs": [1], "outputs": [2]}',
    ]:
        assert visible_tests(text) == text


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=8), st.booleans())
def test_what_is_shown_is_what_is_not_hidden(rows, nested):
    """For any mixture of hidden tests and others."""
    tests = [
        {"input": [n], "output": n, **({"hidden": True} if hidden else {})} for n, hidden in rows
    ]
    shown = visible_tests(json.dumps({"tests": tests} if nested else tests))
    data = json.loads(shown) if shown else []
    assert (data["tests"] if nested and data else data) == [
        test for test in tests if "hidden" not in test
    ]


def test_data_choose_neither_trust_nor_sandbox_nor_packages():
    """A row, its metadata and its tests are data."""
    foreign = {"sandbox": "unsafe", "trust_in_process": True, "packages": ["pytest"]}
    pytest_file = "import fib_module\n\ndef test_it(monkeypatch):\n    assert fib(1) == 1\n"
    report = redraft.grade_sync(Task("f", DRAFTS[2], tests=TESTS, metadata=foreign), "tests")
    assert report["tests"].metadata["sandbox"] == Sandbox().tier
    report = redraft.grade_sync(Task("f", DRAFTS[2], tests=pytest_file, metadata=foreign), "tests")
    assert report.score is None
    with pytest.raises(ConfigError):
        redraft.grade_sync(
            Task(
                "f",
                DRAFTS[2],
                tests={"tests": TESTS, **foreign, "sandbox": 3, "tests_": 1} | {"tests": 5},
            ),
            "tests",
        )


# ---- the settings of a run


def test_the_settings_reach_every_grader_that_runs_code():
    """Also inside of others; a field that the user has set stays; nothing else changes."""
    execution = CodeExecution("unsafe", ("pytest",), trust_in_process=True)
    own = CodeTests(sandbox="bubblewrap", cpu_seconds=1)
    graders = [
        as_grader("tests"),
        own,
        Jury(["tests", "length:words=1-2"], repeats=2),
        Gate("tests", Gate("exact", own)),
        WeightedMean({CodeTests(name="a"): 2, as_grader("exact"): 1}),
        router({"x": "tests"}, "metadata.kind", default="tests"),
    ]
    for grader in graders:
        configured = execution.configure(grader)
        parts = [part for part in leaves(configured) if isinstance(part, CodeTests)]
        assert parts and type(configured) is type(grader)
        for part in parts:
            expected = "bubblewrap" if part.cpu_seconds == 1 else "unsafe"
            assert (part.sandbox, part.packages, part.trust_in_process) == (
                expected,
                ("pytest",),
                True,
            )
        assert grader_fingerprint(configured, str) != grader_fingerprint(grader, str)
        assert CodeExecution().configure(grader) is grader
    judge = redraft.Judge()
    assert execution.configure(judge) is judge


def test_a_container_for_code_is_not_where_installed_tools_run():
    """Ruff and mypy are here and seldom in an image; one that the user names for the grader
    stays.
    """
    container = CodeExecution("docker:python:3.12", ("no-such-package-here",))
    for spec in ("lint", "security", "types", "lint:sandbox=docker:ruff"):
        grader = as_grader(spec)
        assert container.configure(grader) is grader
        assert CodeExecution("unsafe").configure(grader).sandbox == (
            "docker:ruff" if "docker" in spec else "unsafe"
        )
    assert container.configure(as_grader("tests")).sandbox == "docker:python:3.12"


def leaves(grader):
    parts = getattr(grader, "parts", ())
    return [leaf for part in parts for leaf in leaves(part)] if parts else [grader]


def test_the_settings_are_fields_of_the_grader():
    """The names agree, and so do the defaults."""
    defaults = {each.name: each.default for each in fields(CodeTests)}
    for each in fields(CodeExecution):
        assert each.name in EXECUTION_FIELDS and defaults[each.name] == each.default == getattr(
            Options().code_execution(), each.name
        )


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"sandbox": "chroot"}, "sandbox"),
        ({"sandbox": ""}, "sandbox"),
        ({"sandbox": None}, "sandbox"),
        ({"packages": "numpy"}, "packages"),
        ({"packages": [3]}, "packages"),
        ({"packages": ["no-such-package-at-all"]}, "no-such-package-at-all"),
        ({"trust_in_process": "yes"}, "trust_in_process"),
    ],
)
def test_wrong_settings_are_refused_before_any_call(settings, says):
    """The message names the setting."""
    model = redraft.ScriptedModel(["x"])
    with pytest.raises(ConfigError, match=says):
        redraft.refine_sync("Write f.", model, "words:1", **settings)
    assert model.requests == []


def test_running_without_a_sandbox_is_recorded():
    """It is never chosen by itself, and each verdict says so."""
    report = redraft.grade_sync(
        fib_task(response=DRAFTS[2]), answer="code:python", sandbox="unsafe"
    )
    assert report["tests"].metadata["sandbox"] == "unsafe" and report.score == 1.0


async def test_a_session_configures_the_graders_that_it_is_given():
    """A panel holds the configured grader, so that its fingerprint does."""
    plain, unsafe = (
        make_session(Options(answer="code:python", sandbox=tier), None, "tests")
        for tier in ("auto", "unsafe")
    )
    digests = {session.common_panel().roles.fingerprint("tests") for session in (plain, unsafe)}
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("class B(A):\n    pass\nassert B().f() == 1", "trust_in_process=True"),
        ([HIDDEN], "all tests are hidden, so nothing decides"),
    ],
)
async def test_a_run_and_a_batch_say_why_there_is_no_score(tmp_path, tests, reason):
    """The reason of the grader is in the note of a run, and in the row of a batch."""
    task = Task("Write fib(n).", tests=tests, response=DRAFTS[2])
    result = await redraft.refine(task, False, answer="code:python")
    assert (result.value, result.score) == (DRAFTS[2], None)
    assert (
        result.stop_note.startswith("no answer was graded by all graders (tests: ")
        and reason in result.stop_note
    )
    row = {"prompt": "Write fib(n).", "tests": tests, "response": DRAFTS[2]}
    await redraft.batch([row], tmp_path / "out.jsonl", False, answer="code:python")
    assert reason in (tmp_path / "out.jsonl").read_text()


def test_validate_takes_how_code_is_run(tmp_path):
    """Code whose tests need its own objects is judged only with the setting that `refine` has,
    too.
    """
    rows = [
        {
            "prompt": "Write A.",
            "tests": "assert isinstance(A(), A)",
            "response": code,
            "label": label,
        }
        for code, label in [("class A: pass", 1), ("A = 3", 0)] * 3
    ]
    settings = {"kind": "pass", "cards_dir": tmp_path}
    assert (
        validate_sync(
            rows, "tests", trust_in_process=True, sandbox="auto", packages=[], **settings
        ).card.unjudged
        == 0
    )


@pytest.mark.slow
def test_rows_of_mbpp_in_a_batch(tmp_path):
    """The columns of the set-up belong to the asserts; a row without tests fails with the reason,
    and the others go on.
    """
    rows = [
        {"test_list": ["assert f(1) == 1"], "test_setup_code": "", "test_imports": []},
        {"test_list": ["assert g(f(1)) == 2"], "test_setup_code": "def g(n): return n + 1"},
        {"test_list": '["assert math.sqrt(f(4)) == 2"]', "test_imports": '["import math"]'},
        {"test_list": [], "test_setup_code": "import math"},
        {"test_list": ""},
        {"test_list": ["assert f(1) == 2"]},
    ]
    rows = [
        {"prompt": f"Write f, number {n}.", "response": "def f(n): return n", **row}
        for n, row in enumerate(rows)
    ]
    asked = dict(answer="code:python", mode="grade", columns={"tests": "test_list"})
    report = redraft.batch_sync(rows, tmp_path / "out.jsonl", False, **asked)
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    found.sort(key=lambda row: row["prompt"])
    assert [row["tests_score"] for row in found] == [1, 1, 1, None, None, 0]
    assert all("needs a task with tests; this task has none" in row["error"] for row in found[3:5])
    assert (report.rows.done, report.rows.failed) == (4, 2)
    changed = [
        {**row, "test_setup_code": "def g(n): return n"} if n == 1 else row
        for n, row in enumerate(rows)
    ]
    again = redraft.batch_sync(changed, tmp_path / "out.jsonl", False, overwrite=True, **asked)
    assert again.rows.reused == 5, "only the row whose set-up changed is graded again"
