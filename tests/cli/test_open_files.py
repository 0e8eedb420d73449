"""Commands under limits on open files: the soft one is raised, and the hard one makes them slower."""

import json
import subprocess

import pytest

from .conftest import PROGRAM


def run_limited(arguments, folder, *, soft, hard):
    command = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"'
    arguments = ["bash", "-c", command, "bash", *PROGRAM, *arguments]
    return subprocess.run(arguments, capture_output=True, cwd=folder, timeout=300, check=False, text=True, stdin=subprocess.DEVNULL)


def write_rows(folder, count):
    (folder / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"Question {n}"}) + "\n" for n in range(count)))


@pytest.mark.slow
@pytest.mark.parametrize("extra", [[], ["--max-in-flight", "64", "--initial-in-flight", "64"]], ids=["usual", "many at once"])
def test_a_batch_of_many_calls_with_few_descriptors(redraft, serve, extra):
    """Every row is answered, each with one call, and the next run has nothing to do."""
    server = serve(lambda messages, n: "fine")
    write_rows(redraft.folder, 120)
    command = ["batch", "rows.jsonl", "-o", "out.jsonl", "--model", server.model, "--require", "words:1-5", *extra]
    done = run_limited(command, redraft.folder, soft=24, hard=24)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (redraft.folder / "out.jsonl").read_text().splitlines()]
    assert ([row["best"] for row in rows], server.calls) == (["fine"] * 120, 120)
    again = run_limited(command, redraft.folder, soft=24, hard=24)
    assert (again.returncode, server.calls) == (0, 120)


def test_the_soft_limit_is_raised_to_the_hard_one(redraft):
    """A grader, which runs in the process of the command, sees the limit."""
    (redraft.folder / "answer.md").write_text("fine")
    (redraft.folder / "rules.py").write_text(
        "import os, resource\n"
        "def limit(text):\n"
        "    return 1.0 if resource.getrlimit(resource.RLIMIT_NOFILE) == (500, 500) else 0.0\n"
    )
    done = run_limited(
        ["grade", "--response", "answer.md", "--grader", "rules.py:limit", "--json"], redraft.folder, soft=100, hard=500
    )
    assert '"score": 1.0' in done.stdout, done.stderr
