"""Commands whose standard streams are closed, as cron and some containers leave them, or take
nothing: the same work, and what is printed is lost.
"""

import json
import os
import subprocess
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path

import pytest

from redraft.cli import COMMANDS

from .chat_server import writer_and_judge
from .conftest import PROGRAM
from .test_processes import TYPED

CLOSINGS = ("<&-", ">&-", "2>&-")
COMBINATIONS = [chosen for count in (1, 2, 3) for chosen in combinations(CLOSINGS, count)]


def run_closed(arguments, closings, cwd, env=None):
    """Run the program with these standard streams closed; return what it printed on the others, and
    the exit code.
    """
    command = ["sh", "-c", f'exec "$@" {" ".join(closings)}', "sh", *PROGRAM, *arguments]
    environment = {**os.environ, **(env or {})}
    return subprocess.run(
        command, input=b"", capture_output=True, cwd=cwd, env=environment, timeout=120, check=False
    )


def batch_of(folder, server, count=3):
    rows = "".join(json.dumps({"prompt": f"Question {n}"}) + "\n" for n in range(count))
    (folder / "rows.jsonl").write_text(rows)
    return [
        "batch",
        "rows.jsonl",
        "-o",
        "out.jsonl",
        "--model",
        server.model,
        "--require",
        "words:1-5",
    ]


@pytest.mark.parametrize(
    "closings",
    [
        pytest.param(each, marks=() if len(each) == 3 else pytest.mark.slow, id="".join(each))
        for each in COMBINATIONS
    ],
)
def test_a_batch_writes_its_rows_and_nothing_else_into_its_files(redraft, serve, closings):
    """Nothing that is printed lands in a file, which has the number of a stream only if that is
    closed.
    """
    server = serve(lambda messages, n: "fine")
    done = run_closed(batch_of(redraft.folder, server), closings, redraft.folder)
    assert done.returncode == 0
    assert [
        json.loads(line)["best"] for line in (redraft.folder / "out.jsonl").read_text().splitlines()
    ] == ["fine"] * 3
    assert b"Traceback" not in done.stderr
    again = run_closed(batch_of(redraft.folder, server), closings, redraft.folder)
    assert (again.returncode, server.calls) == (0, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_ends_as_usual(redraft, serve, name):
    """The exit code and the files are those of a process with its streams."""
    server = serve(writer_and_judge(["Yes."], [5]))
    command = [word.replace("SERVER", server.model) for word in TYPED[name].split()]
    ended = []
    for number, closings in enumerate([(), *COMBINATIONS]):
        place = redraft.folder / str(number) / "work"
        place.mkdir(parents=True)
        (place / "answer.md").write_text("Well, yes.")
        (place / "rows.jsonl").write_text(
            '{"id": 1, "prompt": "Say it", "response": "Well, it is."}\n'
        )
        done = run_closed(command, closings, place, {"REDRAFT_HOME": str(place.parent / "home")})
        sizes = {
            path.name: path.stat().st_size
            for path in place.iterdir()
            if path.suffix == ".jsonl" or path.suffix == ".md"
        }
        ended.append((done.returncode, sorted(path.name for path in place.iterdir()), sizes))
        assert b"Traceback" not in done.stderr
    assert ended == [ended[0]] * len(ended)


@pytest.mark.slow
def test_the_tools_server_ends_where_stdin_is_closed(redraft):
    """A client that gives no stdin has ended."""
    pytest.importorskip("mcp")
    assert run_closed(["mcp", "--model", "none"], ("<&-",), redraft.folder).returncode == 0


# ---- streams that nobody reads, or that take nothing

FULL = Path("/dev/full")


@contextmanager
def broken_pipe():
    """Give the end of a pipe whose reader has closed it."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


@contextmanager
def full_disk():
    if not FULL.exists():
        pytest.skip("no /dev/full")
    with FULL.open("wb") as file:
        yield file


@contextmanager
def full_pipe():
    """Give the end of a pipe that nobody reads and that does not block, as programs on Node have
    them.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        with suppress(BlockingIOError):
            while os.write(writer, b" " * 4096):
                pass
        yield writer
    finally:
        os.close(reader)
        os.close(writer)


DESTINATIONS = {"closed pipe": broken_pipe, "full disk": full_disk, "full pipe": full_pipe}


def run_with(arguments, cwd, env=None, **streams):
    """Run the program with these streams; the others are read."""
    given = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        **streams,
    }
    done = subprocess.run(
        [*PROGRAM, *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        timeout=120,
        check=False,
        **given,
    )
    assert b"Traceback" not in (done.stderr or b"") and b"Exception ignored" not in (
        done.stderr or b""
    )
    return done


def contents(place):
    return {
        path.name: path.read_bytes()
        for path in place.iterdir()
        if path.suffix in {".jsonl", ".md", ".xml"}
    }


@pytest.mark.slow(but_each=6)
@pytest.mark.parametrize("destination", DESTINATIONS)
@pytest.mark.parametrize("formatted", [[], ["--log-format", "json"]], ids=["lines", "json"])
def test_a_batch_does_its_work_though_nobody_reads_its_messages(
    redraft, serve, destination, formatted
):
    """`2>&1 | head -1`, a collector of logs that has ended, and a full disk behind stderr lose what
    is said, and no row.
    """
    server = serve(lambda messages, n: "fine")
    with DESTINATIONS[destination]() as stderr:
        done = run_with(
            [*batch_of(redraft.folder, server), *formatted], redraft.folder, stderr=stderr
        )
    assert (done.returncode, done.stdout) == (0, b"")
    assert [
        json.loads(line)["best"] for line in (redraft.folder / "out.jsonl").read_text().splitlines()
    ] == ["fine"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_ends_quietly_where_nobody_reads(redraft, serve, name):
    """Without a reader of its messages the exit code, stdout and the files are the same; without
    one of its output it says nothing.
    """
    server = serve(writer_and_judge(["Yes."], [5]))
    command = [word.replace("SERVER", server.model) for word in TYPED[name].split()]

    def end(number, **streams):
        place = redraft.folder / str(number) / "work"
        place.mkdir(parents=True)
        (place / "answer.md").write_text("Well, yes.")
        (place / "rows.jsonl").write_text(
            '{"id": 1, "prompt": "Say it", "response": "Well, it is."}\n'
        )
        done = run_with(command, place, {"REDRAFT_HOME": str(place.parent / "home")}, **streams)
        return done, {name: len(text) for name, text in contents(place).items()}

    usual, files = end("usual")
    for number, destination in enumerate(DESTINATIONS):
        with DESTINATIONS[destination]() as stream:
            silent, written = end(f"stderr{number}", stderr=stream)
            printed = [done.stdout.count(b"\n") for done in (silent, usual)]
            assert (silent.returncode, printed[0], written) == (usual.returncode, printed[1], files)
    with broken_pipe() as stream:
        unread, written = end("stdout", stdout=stream)
    assert unread.returncode == (1 if usual.stdout else usual.returncode)
    assert written == files
    assert usual.stdout or unread.stderr.count(b"\n") == usual.stderr.count(b"\n")


def test_the_first_line_is_enough(redraft):
    """As `redraft graders | head -1` takes it: one line, and no complaint."""
    command = ["sh", "-c", '"$@" | head -1', "sh", *PROGRAM, "graders"]
    done = subprocess.run(
        command, capture_output=True, cwd=redraft.folder, timeout=120, check=False
    )
    assert (len(done.stdout.splitlines()), done.stderr) == (1, b"")
