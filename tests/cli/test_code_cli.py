"""Code that is run, from the command line: the options, the defaults, what is recorded, what needs consent."""

import json

import pytest
from redraft.errors import SandboxUnavailableError
from redraft.sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("sandbox")

DRAFTS = [
    "def fib(n):\n    return n",
    "def fib(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a",
]
TESTS = [{"input": [0], "output": 0}, {"input": [10], "output": 55}, {"input": [90], "output": 2880067194370816120, "hidden": True}]
FIB = ("Write fib(n).", "--answer", "code:python", "--tests", "tests.json")


def write_next(messages, n):
    """The draft that follows from what the prompt says is wrong."""
    return f"Here:\n```python\n{DRAFTS['expected 55' in messages[-1]['content']]}\n```"


@pytest.fixture
def folder(redraft):
    (redraft.folder / "tests.json").write_text(json.dumps(TESTS))
    (redraft.folder / "wrong.py").write_text(DRAFTS[0])
    (redraft.folder / "right.py").write_text(DRAFTS[1])
    rows = [{"id": str(n), "prompt": f"Write fib(n), number {n}.", "checks": TESTS[:2]} for n in range(3)]
    (redraft.folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return redraft.folder


def test_a_function_is_improved_until_its_tests_pass(redraft, folder, serve):
    """The tests run without being named as a grader; a resumed trace runs them in the same way, with no call."""
    server = serve(write_next)
    done = redraft("run", *FIB, "--model", server.model, "--trace", "t.jsonl", "--no-editor")
    assert (done.returncode, done.out.strip(), server.calls) == (0, DRAFTS[1], 2)
    header, *records = map(json.loads, (folder / "t.jsonl").read_text().splitlines())
    assert [grader["name"] for grader in header["panel"]] == ["answer", "tests"] and header["settings"]["sandbox"] == "auto"
    last = [record for record in records if record.get("grader") == "tests"][-1]
    assert last["metadata"]["hidden_passed"] == 1 and last["metadata"]["sandbox"] == Sandbox().tier
    done = redraft("run", "--resume", "t.jsonl")
    assert (done.returncode, done.out.strip(), server.calls) == (0, DRAFTS[1], 2)


def test_every_row_of_a_batch_runs_its_tests(redraft, folder, serve):
    """The column may have any name; the same command repeats nothing."""
    server = serve(write_next)
    command = ["batch", "rows.jsonl", "-o", "out.jsonl", "--answer", "code:python", "-c", "tests=checks", "--no-editor"]
    for calls in (6, 6):
        done = redraft(*command, "--model", server.model)
        rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
        assert (done.returncode, server.calls) == (0, calls)
        assert [(row["best"], row["initial_score"], row["best_score"]) for row in rows] == [(DRAFTS[1], 0.5, 1.0)] * 3


def test_the_best_of_given_programs(redraft, folder):
    """No model is needed."""
    done = redraft("best", *FIB, "--response", "wrong.py", "--response", "right.py", "--model", "none")
    assert (done.returncode, done.out.strip()) == (0, DRAFTS[1])


@pytest.mark.parametrize(
    ("options", "code", "score", "notice"),
    [
        (("--answer", "code:python"), 0, "score 0.50", False),
        (("--answer", "code:python", "--require", "words:1-90"), 0, "score 0.50", False),
        (("--grader", "tests"), 0, "score 0.50", False),
        (("--grader", "code_execution"), 0, "score 0.50", False),
        (("--grader", "jury:tests,exact", "--reference", "right.py"), 0, "score 0.25", False),
        (("--require", "words:1-90"), 0, "score 1.00", True),
        (("--answer", "code:python", "--grader", "length:words=1-90"), 0, "score 1.00", True),
    ],
)
def test_tests_that_nothing_runs_are_noticed(redraft, folder, options, code, score, notice):
    """Named graders are those that are named; with Python as the answer and none named, tests run."""
    done = redraft("grade", "Write fib(n).", "--response", "wrong.py", "--tests", "tests.json", *options)
    assert done.returncode == code and score in done.out, done.err
    assert ("add --grader tests" in done.err) == notice


@pytest.mark.parametrize("option", [("--unsafe-exec",), ("--sandbox", "unsafe")])
def test_running_without_a_sandbox_is_recorded(redraft, folder, option):
    """In the verdict, and in the settings of the trace."""
    done = redraft("run", *FIB, "--response", "right.py", "--model", "none", "--trace", "t.jsonl", *option)
    header, *records = map(json.loads, (folder / "t.jsonl").read_text().splitlines())
    assert done.returncode == 0 and header["settings"]["sandbox"] == "unsafe" and "without a sandbox" in done.err
    assert {record["metadata"]["sandbox"] for record in records if record.get("grader") == "tests"} == {"unsafe"}


@pytest.mark.parametrize("spec", ["tests:sandbox=unsafe", "jury:tests:sandbox=unsafe", "tests:sandbox=unsafe,cpu_seconds=5"])
def test_an_option_without_a_sandbox_warns(redraft, folder, spec):
    """As --unsafe-exec does, also in a part of another grader."""
    done = redraft("grade", "Write fib(n).", "--response", "right.py", "--tests", "tests.json", "--grader", spec)
    assert done.returncode == 0 and "without a sandbox" in done.err


def test_a_foreign_trace_does_not_choose_to_run_without_a_sandbox(redraft, folder, tmp_path_factory):
    """One that this user's own run wrote may; it is resumed as it was begun."""
    redraft("run", *FIB, "--response", "wrong.py", "--model", "none", "--trace", "t.jsonl", "--unsafe-exec")
    assert redraft("run", "--resume", "t.jsonl").returncode == 0
    done = redraft("run", "--resume", "t.jsonl", env={"REDRAFT_HOME": str(tmp_path_factory.mktemp("other"))})
    assert done.returncode == 2 and "where code of answers runs" in done.err


def test_unsafe_and_a_sandbox_exclude_each_other(redraft, folder):
    """The message names both options."""
    done = redraft("grade", *FIB, "--response", "right.py", "--unsafe-exec", "--sandbox", "bubblewrap")
    assert done.returncode == 2 and "--unsafe-exec" in done.err and "--sandbox bubblewrap" in done.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--sandbox", "chroot"), "sandbox"),
        (("--packages", "no-such-package-at-all"), "no-such-package-at-all"),
        (("--tests", "wrong.json"), "tests"),
    ],
)
def test_mistakes_are_named(redraft, folder, options, says):
    """Before anything runs."""
    (folder / "wrong.json").write_text('[{"input": [1], "expected": 2}]')
    done = redraft("grade", *FIB, "--response", "right.py", *options)
    assert done.returncode == 2 and says in done.err


def test_the_details_of_the_grader_say_which_sandbox_works(redraft):
    """In words and as JSON."""
    assert Sandbox().tier in redraft("graders", "tests").out
    assert json.loads(redraft("graders", "tests", "--json").out)["sandbox"] == Sandbox().tier
