"""The command line among files of other programs: it names them and does not change them."""

import json
import os
import shlex
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from redraft.storage import Journal
from require import as_root

ROWS = '{"id": "a", "prompt": "Say it", "response": "One, two"}\n'
BATCH = ("batch", "in.jsonl", "--model", "none", "--require", "no_commas")
LOCK = 'version = 1\nrequires-python = ">=3.11"\n'


def modes(folder):
    return {p.name: stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()}


def test_a_journal_named_uv_does_not_touch_uv_lock(redraft):
    """The lock file of another program is neither overwritten nor deleted; the error names it and
    says what to do.
    """
    (redraft.folder / "in.jsonl").write_text(ROWS)
    (redraft.folder / "uv.lock").write_text(LOCK)
    done = redraft(*BATCH, "-o", "out.jsonl", "--journal", "uv")
    assert done.returncode == 1, done.err
    assert (
        "uv.lock' exists and is not a lock of Redraft; it was left unchanged: name another file"
        in done.err
    )
    assert (redraft.folder / "uv.lock").read_text() == LOCK
    assert redraft(*BATCH, "-o", "out.jsonl", "--journal", "other").returncode in {0, 3}
    assert (redraft.folder / "uv.lock").read_text() == LOCK


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_journals_are_private_and_outputs_follow_the_umask(redraft, umask):
    """Prompts and answers are readable by their owner alone; named outputs have the usual
    permissions.
    """
    (redraft.folder / "in.jsonl").write_text(f"{ROWS}nonsense\n")
    (redraft.folder / "in.txt").write_text("a")
    before = os.umask(umask)
    try:
        for output in ("out.jsonl", "out.csv", "out.jsonl.gz"):
            done = redraft(*BATCH, "-o", output)
            assert done.returncode == 3, done.err
        assert (
            redraft(
                "runs",
                "export",
                "out-jsonl",
                "--journal",
                "out.jsonl.journal",
                "-o",
                "traces.jsonl",
            ).returncode
            == 0
        )
        done = redraft(
            "run",
            "Say it",
            "--model",
            "none",
            "--response",
            "in.txt",
            "--require",
            "no_commas",
            "--trace",
            "t.jsonl",
            "-o",
            "t.txt",
        )
        assert done.returncode == 0, done.err
    finally:
        os.umask(before)
    found = modes(redraft.folder)
    private = {name for name in found if name.endswith(".journal") or name == "t.jsonl"}
    assert {found[name] for name in private} == {0o600}
    assert {found[name] for name in found.keys() - private - {"in.jsonl", "in.txt"}} == {
        0o666 & ~umask
    }
    assert {
        "out.jsonl",
        "out.csv",
        "out.jsonl.gz",
        "out.jsonl.errors.jsonl",
        "traces.jsonl",
        "t.txt",
    } <= found.keys()


@as_root
def test_an_errors_file_is_not_written_through_a_link(redraft):
    """A link of another user at its default path is refused, and its target is unchanged."""
    shared, precious = redraft.folder / "shared", redraft.folder / "precious"
    shared.mkdir()
    shared.chmod(0o1777)
    precious.touch()
    (redraft.folder / "in.jsonl").write_text(f"{ROWS}nonsense\n")
    os.symlink(precious, shared / "out.jsonl.errors.jsonl")
    os.lchown(shared / "out.jsonl.errors.jsonl", 65534, 65534)
    done = redraft(*BATCH, "-o", "shared/out.jsonl")
    assert done.returncode == 2, done.err
    assert "errors.jsonl' is not a file, or a link out of its folder" in done.err
    assert precious.read_bytes() == b""


def test_a_hostile_journal_is_refused_by_every_command(redraft):
    """One line names it, without a traceback."""
    path = redraft.folder / "out.jsonl.journal"
    with Journal(path) as journal:
        journal.update_run("out-jsonl")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TRIGGER evil AFTER INSERT ON rows BEGIN DELETE FROM calls; END")
    (redraft.folder / "in.jsonl").write_text(ROWS)
    for command in (
        (*BATCH, "-o", "out.jsonl"),
        ("runs", "--journal", path),
        ("runs", "show", "out-jsonl"),
        ("runs", "export", "out-jsonl", "-o", "-", "--journal", path),
        ("runs", "prune", "out-jsonl", "--yes", "--journal", path),
        ("export", "out-jsonl", "-o", "pairs.jsonl", "--format", "preference", "--journal", path),
        ("priors", "learn", path),
    ):
        done = redraft(*command)
        assert done.returncode in {1, 2}, (command, done.err)
        assert "holds objects that a journal does not have (the trigger 'evil')" in done.err, (
            command,
            done.err,
        )
        assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "record",
    [
        '{"kind": "candidate", "id": ["0"], "text": "a"}',
        f'{{"kind": {"[" * 50_000}',
        '{"kind": "candidate", "id": 0, "text": "a", "parent": 0}',
    ],
    ids=["a list", "deep", "its own parent"],
)
def test_a_hostile_trace_is_refused_by_every_command(redraft, record):
    """One line names it, without a traceback."""
    (redraft.folder / "t.jsonl").write_text(
        f"{json.dumps({'redraft': 1, 'task': {'messages': 'q'}})}\n{record}\n"
    )
    for command in (
        ("show", "t.jsonl"),
        ("run", "--resume", "t.jsonl", "--model", "none"),
        ("priors", "learn", "t.jsonl", "t.jsonl"),
    ):
        done = redraft(*command)
        assert done.returncode in {1, 2}, (command, done.err)
        assert "t.jsonl" in done.err and "Traceback" not in done.err, (command, done.err)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="no /dev/fd")
def test_a_trace_from_a_pipe_is_shown(redraft):
    """Shells pass `<(command)` as a pipe; an endless one is refused."""
    (redraft.folder / "in.md").write_text("fine")
    said = redraft(
        "run",
        "Say it",
        "--response",
        "in.md",
        "--model",
        "none",
        "--require",
        "words:1-9",
        "--trace",
        "t.jsonl",
    )
    assert said.returncode == 0, said.err
    shown = f"{shlex.quote(sys.executable)} -m redraft show"
    done = subprocess.run(
        ["bash", "-c", f"{shown} <(cat t.jsonl) && ! {shown} /dev/zero"],
        cwd=redraft.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "fine" in done.stdout and "longer than 134,217,728 bytes" in done.stderr


def test_a_blank_response_is_no_response(redraft):
    """`run` needs a prompt to write one; `grade` and `best` name the file."""
    (redraft.folder / "blank.txt").write_text("\ufeff \n")
    (redraft.folder / "text.txt").write_text("a text")
    require = ("--require", "no_commas", "--model", "none")
    for command, said in (
        (
            ("run", "--response", "blank.txt", *require),
            "blank.txt is blank, which is no response: give a PROMPT",
        ),
        (
            ("run", "Write.", "--response", "blank.txt", *require),
            "blank.txt is blank, which is no response",
        ),
        (
            ("grade", "Write.", "--response", "blank.txt", "--require", "no_commas"),
            "there is no response to grade",
        ),
        (
            (
                "grade",
                "Write.",
                "--response",
                "text.txt",
                "--response",
                "blank.txt",
                "--require",
                "no_commas",
            ),
            "blank.txt: there is no",
        ),
        (
            ("best", "--response", "text.txt", "--response", "blank.txt", *require),
            "blank.txt is blank, which is no answer",
        ),
    ):
        done = redraft(*command)
        assert (done.returncode, said in done.err) == (2, True), done.err
