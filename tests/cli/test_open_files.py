"""Commands under limits on open files: the soft one is raised, and the hard one makes them
slower.
"""

import json
import subprocess

import pytest

from redraft.middleware import shortage
from redraft.sandbox.tiers import MIN_DESCRIPTORS
from require import require_sandbox

from .conftest import PROGRAM


def run_limited(arguments, folder, *, soft, hard):
    command = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"'
    arguments = ["bash", "-c", command, "bash", *PROGRAM, *arguments]
    return subprocess.run(
        arguments,
        capture_output=True,
        cwd=folder,
        timeout=300,
        check=False,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def write_rows(folder, count, **more):
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({"prompt": f"Question {n}", **more}) + "\n" for n in range(count))
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    [[], ["--max-in-flight", "64", "--initial-in-flight", "64"]],
    ids=["usual", "many at once"],
)
def test_a_batch_of_many_calls_with_few_descriptors(redraft, serve, extra):
    """Every row is answered, each with one call, and the next run has nothing to do."""
    server = serve(lambda messages, n: "fine")
    write_rows(redraft.folder, 120)
    command = [
        "batch",
        "rows.jsonl",
        "-o",
        "out.jsonl",
        "--model",
        server.model,
        "--require",
        "words:1-5",
        *extra,
    ]
    done = run_limited(command, redraft.folder, soft=24, hard=24)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (redraft.folder / "out.jsonl").read_text().splitlines()]
    assert ([row["best"] for row in rows], server.calls) == (["fine"] * 120, 120)
    again = run_limited(command, redraft.folder, soft=24, hard=24)
    assert (again.returncode, server.calls) == (0, 120)


@pytest.mark.slow
def test_the_soft_limit_is_raised_to_the_hard_one(redraft):
    """A grader, which runs in the process of the command, sees the limit."""
    (redraft.folder / "answer.md").write_text("fine")
    (redraft.folder / "rules.py").write_text(
        "import os, resource\n"
        "def limit(text):\n"
        "    return 1.0 if resource.getrlimit(resource.RLIMIT_NOFILE) == (500, 500) else 0.0\n"
    )
    done = run_limited(
        ["grade", "--response", "answer.md", "--grader", "rules.py:limit", "--json"],
        redraft.folder,
        soft=100,
        hard=500,
    )
    assert '"score": 1.0' in done.stdout, done.stderr


TESTED = ("batch", "rows.jsonl", "-o", "out.jsonl", "--grader", "tests", "--answer", "code:python")


@pytest.mark.slow
@pytest.mark.parametrize("limit", [MIN_DESCRIPTORS, 40])
def test_a_batch_that_starts_many_programs_with_few_descriptors(redraft, serve, limit):
    """Every row is graded, though one sandbox at most fits at a time."""
    require_sandbox("bubblewrap")
    server = serve(lambda messages, n: "```python\ndef f(x):\n    return x\n```")
    write_rows(redraft.folder, 40, tests=["assert f(1) == 1"])
    done = run_limited([*TESTED, "--model", server.model], redraft.folder, soft=limit, hard=limit)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (redraft.folder / "out.jsonl").read_text().splitlines()]
    assert ([row["best_score"] for row in rows], server.calls) == ([1.0] * 40, 40)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [24, MIN_DESCRIPTORS - 1])
def test_too_few_descriptors_for_a_sandbox_are_an_error_before_any_call(redraft, serve, limit):
    """It names the limit that is needed."""
    server = serve(lambda messages, n: "never")
    write_rows(redraft.folder, 3, tests=["assert f(1) == 1"])
    done = run_limited([*TESTED, "--model", server.model], redraft.folder, soft=limit, hard=limit)
    assert (done.returncode, server.calls) == (2, 0), done.stderr
    assert f"at least {MIN_DESCRIPTORS} open files, got {limit}" in done.stderr


def test_a_batch_that_found_no_room_says_so(redraft, serve, monkeypatch):
    """The summary has the reason and what to do, and with room the same command grades what was
    answered.
    """
    monkeypatch.setattr(shortage, "SHORTAGE_PAUSES", (0.0,))
    server = serve(lambda messages, n: "fine")
    write_rows(redraft.folder, 3)
    rules = redraft.folder / "rules.py"
    rules.write_text(
        "import errno, pathlib\n"
        "def short(text):\n"
        "    if not pathlib.Path(__file__).with_name('room').exists():\n"
        "        raise OSError(errno.EMFILE, 'Too many open files', 'words.txt')\n"
        "    return 1.0\n"
    )
    command = [
        "batch",
        "rows.jsonl",
        "-o",
        "out.jsonl",
        "--model",
        server.model,
        "--grader",
        "rules.py:short",
    ]
    done = redraft(*command)
    assert done.returncode == 3
    for text in (
        b"3 rows cut short",
        b"errors: ShortageError 3",
        b"ulimit -n",
        b"--max-in-flight",
        b"the same command resumes",
    ):
        assert text in done.stderr, done.stderr
    (redraft.folder / "room").touch()
    again = redraft(*command)
    assert (again.returncode, server.calls) == (0, 3)
    assert b"ShortageError" not in again.stderr


@pytest.mark.slow
@pytest.mark.parametrize("limit", [8, 10, 12, 14, 16])
def test_a_command_that_can_open_no_file_was_used_rightly(redraft, limit):
    """It ends with 1, not with 2, which says that the command line is wrong."""
    write_rows(redraft.folder, 3)
    command = [
        "batch",
        "rows.jsonl",
        "-o",
        "out.jsonl",
        "--model",
        "http://127.0.0.1:9/v1#m",
        "--require",
        "words:1-5",
    ]
    done = run_limited(command, redraft.folder, soft=limit, hard=limit)
    assert done.returncode in {1, 3}, done.stderr
