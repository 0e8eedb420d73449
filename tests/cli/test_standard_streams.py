"""Commands whose standard streams are closed, as cron and some containers leave them: the same work, and what is printed is lost."""

import json
import os
import subprocess
from itertools import combinations

import pytest

from redraft.cli import COMMANDS

from .chat_server import writer_and_judge
from .conftest import PROGRAM
from .test_processes import TYPED

CLOSINGS = ("<&-", ">&-", "2>&-")
COMBINATIONS = [chosen for count in (1, 2, 3) for chosen in combinations(CLOSINGS, count)]


def run_closed(arguments, closings, cwd, env=None):
    """Run the program with these standard streams closed; return what it printed on the others, and the exit code."""
    command = ["sh", "-c", f'exec "$@" {" ".join(closings)}', "sh", *PROGRAM, *arguments]
    environment = {**os.environ, **(env or {})}
    return subprocess.run(command, input=b"", capture_output=True, cwd=cwd, env=environment, timeout=120, check=False)


def batch_of(folder, server, count=3):
    rows = "".join(json.dumps({"prompt": f"Question {n}"}) + "\n" for n in range(count))
    (folder / "rows.jsonl").write_text(rows)
    return ["batch", "rows.jsonl", "-o", "out.jsonl", "--model", server.model, "--require", "words:1-5"]


@pytest.mark.parametrize(
    "closings", [pytest.param(each, marks=() if len(each) == 3 else pytest.mark.slow, id="".join(each)) for each in COMBINATIONS]
)
def test_a_batch_writes_its_rows_and_nothing_else_into_its_files(redraft, serve, closings):
    """Nothing that is printed lands in a file, which has the number of a stream only if that is closed."""
    server = serve(lambda messages, n: "fine")
    done = run_closed(batch_of(redraft.folder, server), closings, redraft.folder)
    assert done.returncode == 0
    assert [json.loads(line)["best"] for line in (redraft.folder / "out.jsonl").read_text().splitlines()] == ["fine"] * 3
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
        (place / "rows.jsonl").write_text('{"id": 1, "prompt": "Say it", "response": "Well, it is."}\n')
        done = run_closed(command, closings, place, {"REDRAFT_HOME": str(place.parent / "home")})
        sizes = {path.name: path.stat().st_size for path in place.iterdir() if path.suffix == ".jsonl" or path.suffix == ".md"}
        ended.append((done.returncode, sorted(path.name for path in place.iterdir()), sizes))
        assert b"Traceback" not in done.stderr
    assert ended == [ended[0]] * len(ended)


@pytest.mark.slow
def test_the_tools_server_ends_where_stdin_is_closed(redraft):
    """A client that gives no stdin has ended."""
    pytest.importorskip("mcp")
    assert run_closed(["mcp", "--model", "none"], ("<&-",), redraft.folder).returncode == 0
