"""Code that is run, from the command line: the options, the defaults, what is recorded, what needs
consent.
"""

import json

import pytest

from redraft.sandbox import Sandbox
from require import require_sandbox

pytestmark = pytest.mark.usefixtures("sandbox")

DRAFTS = [
    "def fib(n):\n    return n",
    "def fib(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a",
]
TESTS = [
    {"input": [0], "output": 0},
    {"input": [10], "output": 55},
    {"input": [90], "output": 2880067194370816120, "hidden": True},
]
FIB = ("Write fib(n).", "--answer", "code:python", "--tests", "tests.json")


def write_next(messages, n):
    """The draft that follows from what the prompt says is wrong."""
    return f"Here:\n```python\n{DRAFTS['expected 55' in messages[-1]['content']]}\n```"


@pytest.fixture
def folder(redraft):
    (redraft.folder / "tests.json").write_text(json.dumps(TESTS))
    (redraft.folder / "wrong.py").write_text(DRAFTS[0])
    (redraft.folder / "right.py").write_text(DRAFTS[1])
    rows = [
        {"id": str(n), "prompt": f"Write fib(n), number {n}.", "checks": TESTS[:2]}
        for n in range(3)
    ]
    (redraft.folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return redraft.folder


def test_a_function_is_improved_until_its_tests_pass(redraft, folder, serve):
    """The tests run without being named as a grader; a resumed trace runs them in the same way,
    with no call.
    """
    server = serve(write_next)
    done = redraft("run", *FIB, "--model", server.model, "--trace", "t.jsonl", "--no-editor")
    assert (done.returncode, done.out.strip(), server.calls) == (0, DRAFTS[1], 2)
    header, *records = map(json.loads, (folder / "t.jsonl").read_text().splitlines())
    assert [grader["name"] for grader in header["panel"]] == ["answer", "tests"] and header[
        "settings"
    ]["sandbox"] == "auto"
    last = [record for record in records if record.get("grader") == "tests"][-1]
    assert last["metadata"]["hidden_passed"] == 1 and last["metadata"]["sandbox"] == Sandbox().tier
    done = redraft("run", "--resume", "t.jsonl")
    assert (done.returncode, done.out.strip(), server.calls) == (0, DRAFTS[1], 2)


@pytest.mark.slow
def test_every_row_of_a_batch_runs_its_tests(redraft, folder, serve):
    """The column may have any name; the same command repeats nothing."""
    server = serve(write_next)
    command = [
        "batch",
        "rows.jsonl",
        "-o",
        "out.jsonl",
        "--answer",
        "code:python",
        "-c",
        "tests=checks",
        "--no-editor",
    ]
    for calls in (6, 6):
        done = redraft(*command, "--model", server.model)
        rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
        assert (done.returncode, server.calls) == (0, calls)
        assert [(row["best"], row["initial_score"], row["best_score"]) for row in rows] == [
            (DRAFTS[1], 0.5, 1.0)
        ] * 3


def test_the_best_of_given_programs(redraft, folder):
    """No model is needed."""
    done = redraft(
        "best", *FIB, "--response", "wrong.py", "--response", "right.py", "--model", "none"
    )
    assert (done.returncode, done.out.strip()) == (0, DRAFTS[1])


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    ("options", "score"),
    [
        ((), "score 0.50"),
        (("--answer", "code:python"), "score 0.50"),
        (("--answer", "code:python", "--require", "words:1-90"), "score 0.50"),
        (("--grader", "tests"), "score 0.50"),
        (("--grader", "code_execution"), "score 0.50"),
        (("--grader", "jury:tests,exact", "--reference", "right.py"), "score 0.25"),
        (("--require", "words:1-90"), "score 0.50"),
        (("--answer", "code:python", "--grader", "length:words=1-90"), "score 0.75"),
    ],
)
def test_tests_grade_once(redraft, folder, options, score):
    """They are something that is named, beside whatever else is; a grader that runs them need not
    be named, and may be.
    """
    done = redraft(
        "grade", "Write fib(n).", "--response", "wrong.py", "--tests", "tests.json", *options
    )
    assert done.returncode == 0 and score in done.out, done.err


@pytest.mark.parametrize("option", [("--unsafe-exec",), ("--sandbox", "unsafe")])
def test_running_without_a_sandbox_is_recorded(redraft, folder, option):
    """In the verdict, and in the settings of the trace."""
    done = redraft(
        "run", *FIB, "--response", "right.py", "--model", "none", "--trace", "t.jsonl", *option
    )
    header, *records = map(json.loads, (folder / "t.jsonl").read_text().splitlines())
    assert (
        done.returncode == 0
        and header["settings"]["sandbox"] == "unsafe"
        and "without a sandbox" in done.err
    )
    assert {
        record["metadata"]["sandbox"] for record in records if record.get("grader") == "tests"
    } == {"unsafe"}


@pytest.mark.parametrize(
    "spec",
    ["tests:sandbox=unsafe", "jury:tests:sandbox=unsafe", "tests:sandbox=unsafe,cpu_seconds=5"],
)
def test_an_option_without_a_sandbox_warns(redraft, folder, spec):
    """As --unsafe-exec does, also in a part of another grader."""
    done = redraft(
        "grade",
        "Write fib(n).",
        "--response",
        "right.py",
        "--tests",
        "tests.json",
        "--grader",
        spec,
    )
    assert done.returncode == 0 and "without a sandbox" in done.err


def test_the_warning_comes_once(redraft, folder):
    """However many options choose it."""
    done = redraft(
        "grade", *FIB, "--response", "right.py", "--grader", "tests:sandbox=unsafe", "--unsafe-exec"
    )
    assert done.returncode == 0 and done.err.count("without a sandbox") == 1


def test_a_foreign_trace_does_not_choose_to_run_without_a_sandbox(
    redraft, folder, tmp_path_factory
):
    """One that this user's own run wrote may; it is resumed as it was begun."""
    redraft(
        "run",
        *FIB,
        "--response",
        "wrong.py",
        "--model",
        "none",
        "--trace",
        "t.jsonl",
        "--unsafe-exec",
    )
    assert redraft("run", "--resume", "t.jsonl").returncode == 0
    done = redraft(
        "run", "--resume", "t.jsonl", env={"REDRAFT_HOME": str(tmp_path_factory.mktemp("other"))}
    )
    assert done.returncode == 2 and "where code of answers runs" in done.err


def test_unsafe_and_a_sandbox_exclude_each_other(redraft, folder):
    """The message names both options."""
    done = redraft(
        "grade", *FIB, "--response", "right.py", "--unsafe-exec", "--sandbox", "bubblewrap"
    )
    assert (
        done.returncode == 2 and "--unsafe-exec" in done.err and "--sandbox bubblewrap" in done.err
    )


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


UNUSABLE = [
    "tests:sandbox=docker:there-is-none",
    "lint:sandbox=docker:there-is-none",
    "lint:NOPE",
    "types:sandbox=docker:there-is-none",
]


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("grader", UNUSABLE)
def test_a_grader_that_cannot_work_here_is_an_error_before_any_call(redraft, folder, grader):
    """All commands agree, and a validation neither writes a card nor saves a verdict."""
    rows = [
        {"prompt": "Write fib(n).", "response": code, "tests": TESTS, "label": n}
        for n, code in enumerate(DRAFTS)
    ]
    (folder / "labelled.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    commands = [
        ("validate", "labelled.jsonl", "--cards-dir", "cards"),
        ("grade", "labelled.jsonl"),
        ("batch", "labelled.jsonl", "-o", "o.jsonl", "--mode", "grade"),
        ("run", *FIB, "--response", "wrong.py", "--model", "none"),
    ]
    for command in commands:
        done = redraft(*command, "--grader", grader)
        assert done.returncode == 2 and ("no sandbox" in done.err or "NOPE" in done.err), (
            command,
            done.err,
        )
    assert not list((folder / "cards").rglob("*.*")) and not (folder / "o.jsonl").exists()


def check_of(answer):
    return {
        "test": f"def check(candidate):\n    assert candidate(1) == {answer}\n",
        "entry_point": "inc",
    }


PUBLISHED = {
    "HumanEval": [
        {"id": str(n), "prompt": 'def inc(n):\n    """n + 1"""\n', "completion": f"    return n + {n}\n", **check_of(2), "label": n}
        for n in (0, 1)
    ],
    "MBPP": [
        {"id": str(n), "text": "Write inc.", "completion": f"def inc(n): return n + {n}", "test_list": ["assert inc(a) == 2"],
         "test_setup_code": "a = 1", "label": n}
        for n in (0, 1)
    ],
}  # fmt: skip


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("rows", PUBLISHED.values(), ids=PUBLISHED)
def test_rows_of_published_data_sets_run_their_tests(redraft, folder, rows):
    """All commands that read rows agree, without naming the column."""
    (folder / "data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = redraft(
        "batch", "data.jsonl", "-o", "o.jsonl", "--answer", "code:python", "--mode", "grade"
    )
    assert done.returncode == 0 and 'tests from "test' in done.err, done.err
    assert [
        json.loads(line)["best_score"] for line in (folder / "o.jsonl").read_text().splitlines()
    ] == [0, 1]
    done = redraft("grade", "data.jsonl", "--answer", "code:python", "--json")
    assert [report["score"] for report in json.loads(done.out)] == [0, 1]
    done = redraft("validate", "data.jsonl", "--grader", "tests", "--cards-dir", "cards", "--json")
    assert {each["name"]: each["value"] for each in json.loads(done.out)["measures"]}[
        "accuracy"
    ] == 1, done.err


@pytest.mark.slow
def test_hidden_results_are_shown_where_the_visible_ones_are(redraft, folder, serve):
    """To people, and not to the writer or a judge."""
    server = serve(write_next)
    (folder / "rows.jsonl").write_text(
        json.dumps({"id": "0", "prompt": "Write fib(n).", "response": DRAFTS[0], "tests": TESTS})
        + "\n"
    )
    done = redraft("grade", *FIB, "--response", "wrong.py")
    assert "1 of 2 tests pass; hidden: 0 of 1" in done.out
    done = redraft("grade", *FIB, "--response", "wrong.py", "--response", "right.py")
    assert "0.50 (hidden: 0 of 1)" in done.out and "1.00 (hidden: 1 of 1)" in done.out
    command = ["batch", "rows.jsonl", "--answer", "code:python", "--no-editor"]
    assert redraft(*command, "-o", "graded.jsonl", "--mode", "grade").returncode == 0
    assert (
        redraft(
            *command, "-o", "refined.csv", "--model", server.model, "--grader", "jury:tests,syntax"
        ).returncode
        == 0
    )
    row = json.loads((folder / "graded.jsonl").read_text())
    assert (row["hidden_passed"], row["hidden_total"]) == (0, 1)
    header, values = (folder / "refined.csv").read_text().split("\n", 1)
    assert "hidden_passed,hidden_total" in header and ",1,1" in values
    assert "; hidden: 0 of 1" in redraft("runs", "show", "graded-jsonl", "0").out
    assert server.calls and not any("hidden" in json.dumps(request) for request in server.bodies)


UNSAFE = "runs without a sandbox"
NOTICES = {
    "unsafe": (["--unsafe-exec"], [UNSAFE], []),
    "a sandbox of its own": (["--unsafe-exec", "--grader", "tests:sandbox=landlock"], [], [UNSAFE]),
    "one of two": (
        [
            "--unsafe-exec",
            "--grader",
            "tests:sandbox=landlock",
            "--grader",
            "syntax",
            "--grader",
            "lint",
        ],
        [UNSAFE],
        [],
    ),
    "a grader as a requirement": (
        ["--require", "tests"],
        ["--require tests: 'tests' is a grader", "--grader tests"],
        [],
    ),
    "no requirement": (["--require", "tets"], ["unknown requirement 'tets'"], ["is a grader"]),
}


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(("options", "said", "unsaid"), NOTICES.values(), ids=NOTICES)
def test_messages_say_what_to_type(redraft, folder, options, said, unsaid):
    """A warning is true of what runs, and an error names the option that was meant."""
    done = redraft("grade", *FIB, "--response", "right.py", *options)
    assert all(text in done.err for text in said) and not any(
        text in done.err for text in unsaid
    ), done.err


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    ("options", "note"),
    [(("--no-editor",), "there are no automatic repairs"), ((), "all automatic repairs are done")],
)
def test_the_reason_without_a_model_says_whether_anything_repaired(redraft, folder, options, note):
    """The editor cannot make this program right either."""
    (folder / "hopeless.py").write_text("def fib(n):\n    return 'a' if n else ['b']")
    done = redraft("run", *FIB, "--response", "hopeless.py", "--model", "none", *options)
    assert note in done.err, done.err


@pytest.mark.parametrize(("tier", "code"), [("bubblewrap", 0), ("auto", 0), ("landlock", 2)])
def test_the_sandbox_of_a_stranger_may_only_be_stricter(redraft, folder, tier, code):
    """Landlock shows more than bubblewrap, so that choosing it needs consent."""
    if code == 0:
        require_sandbox(tier)
    (folder / "redraft.toml").write_text(f'sandbox = "{tier}"\n')
    done = redraft("grade", *FIB, "--response", "right.py")
    assert done.returncode == code and (code == 0 or "redraft trust" in done.err), done.err
