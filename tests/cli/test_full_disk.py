"""A real disk of 3 MB that fills: each command says so, and succeeds once there is room again."""

import json
import re

import pytest

from disk_faults import fill, small_disk

from .chat_server import is_judging, verdict
from .conftest import Redraft

RUBRIC = '[criteria]\ntruth = "It is true."\n'
MODEL = "MODEL"
BATCH = (
    "batch",
    "in.jsonl",
    "--model",
    MODEL,
    "--require",
    "words:1-9000",
    "--max-iterations",
    "0",
)
RUN = ("--model", MODEL, "-o", "out.txt")
COMMANDS = {
    "batch": (*BATCH, "-o", "out.jsonl"),
    "batch to a table": (*BATCH, "-o", "out.csv"),
    "run": ("run", "Say it", *RUN, "--require", "words:1-9000", "--trace", "trace.jsonl"),
    "validate": (
        "validate",
        "labels.jsonl",
        "--rubric",
        "truth.toml",
        "--judge",
        MODEL,
        "--cards-dir",
        "cards",
    ),
}
RESUMED = {"run": ("run", "--resume", "trace.jsonl", *RUN)}
"""The command that continues a trace that has begun; the others are continued by the same
command.
"""
GRADER_IS_POOR = 3  # the exit code of `validate`
ROWS = 20


def answer(messages, n):
    return verdict(3, ["truth"]) if is_judging(messages) else "y " * 2000


def write_inputs(folder):
    rows = [{"prompt": f"say {i} {'x' * 1000}"} for i in range(ROWS)]
    labels = [
        {"prompt": f"say {i}", "response": "x" * 500, "score": i % 5 / 4} for i in range(ROWS)
    ]
    for name, lines in (("in.jsonl", rows), ("labels.jsonl", labels)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "truth.toml").write_text(RUBRIC)


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 12_288, 65_536])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_fills_and_is_emptied(tmp_path, serve, name, room):
    """Twice the command fails while the disk is full, and says so without a traceback; then it does
    all its work.
    """
    model = serve(answer).model
    with small_disk(tmp_path / "disk") as disk:
        write_inputs(disk)

        def run():
            trace = disk / "trace.jsonl"
            command = RESUMED[name] if trace.exists() and trace.stat().st_size else COMMANDS[name]
            done = Redraft(disk).process([model if word == MODEL else word for word in command])
            assert "Traceback" not in done.err, done.err
            is_done = done.returncode in {0, GRADER_IS_POOR}
            assert is_done or re.search(r"No space left|disk is full", done.err), done.err
            return is_done

        ballast = fill(disk, leave=room)
        assert [run(), run()] == [False, False] or room
        ballast.unlink()
        assert run()
        assert not [*disk.rglob("*.lock"), *disk.rglob(".*.part")]
