"""What a person reads in a pipe or a log: prose, and JSON only if asked for; tables without
padding.
"""

import json
import re

import pytest

from cpu_time import least_seconds
from redraft.cli import COMMANDS, output, program

from .chat_server import writer_and_judge


def subcommands():
    """Return all commands, with those of groups, as lists of arguments."""
    found = []
    for name in COMMANDS:
        command = program.get_command(None, name)
        found += [[name, each] for each in getattr(command, "commands", {})] or [[name]]
    return found


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("command", subcommands(), ids=" ".join)
def test_a_wrong_option_of_any_command_is_told_in_prose_or_in_json_if_asked_for(redraft, command):
    """Both say the same, whatever the command; the option is the same for all."""
    done = redraft(*command, "--debgu")
    first, *others = done.err.splitlines()
    assert done.returncode == 2 and first.startswith("redraft: ") and "--debug" in first, done.err
    assert not any(line.startswith("{") for line in others)
    for option in (["--log-format", "json"], ["--log-format=json"]):
        (told,) = map(json.loads, redraft(*command, "--debgu", *option).err.splitlines())
        assert (told["event"], f"redraft: {told['message']}") == ("error", first)


@pytest.fixture
def noted_options():
    """A command with some options."""
    with output.message_scope():
        output.note_options(
            {"limit": ("--limit",), "editor": ("--editor", "--no-editor"), "score": ("--score",)}
        )
        yield


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "replace the rows with overwrite (--overwrite); again",
            "replace the rows with --overwrite; again",
        ),
        ("belongs to graders (--grader)", "belongs to --grader"),
        ("continue it with resume=True (--resume)", "continue it with --resume"),
        ("name another (--errors)", "name another (--errors)"),
        ("limit=5 and editor=False", "--limit 5 and --no-editor"),
        ("score='limit=5': no column", "--score 'limit=5': no column"),
        ("cannot read https://h/x?limit=5&score=1", "cannot read https://h/x?limit=5&score=1"),
        ("give the `limit`, not the `margin`", "give the --limit, not the `margin`"),
    ],
)
def test_a_message_of_the_library_names_options(noted_options, message, expected):
    """Python's arguments are replaced by the options of the command; addresses and quoted values
    are left as they are.
    """
    assert output.in_options(message) == expected


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(
    "piece", ["a=", "a=a`", "limit=", "(--", "a=b (--a=b (", " (from Python: ", "a (-", "'", "`a"]
)
def test_a_long_message_takes_linear_time(noted_options, piece):
    """It may hold a text of a model or of a server."""
    assert least_seconds(lambda: output.in_options(piece * 20_000), 1) < 1


@pytest.fixture
def commands(redraft, serve):
    """Return commands that do their work, with the arguments of each."""
    model = serve(writer_and_judge(["good"] * 99, [4] * 99)).model
    (redraft.folder / "in.jsonl").write_text('{"prompt": "p", "response": "r", "label": 1}\n' * 2)
    (redraft.folder / "r.txt").write_text("one, two")
    graded = ("--require", "words:1-5", "--require", "no_commas")
    redraft("batch", "in.jsonl", "-o", "done.jsonl", "--model", "none", *graded)
    return {
        "run": ("run", "Say it", "--model", model),
        "best": ("best", "Say it", "--response", "r.txt", "--response", "in.jsonl", *graded),
        "grade": ("grade", "Say it", "--response", "r.txt", *graded),
        "grade rows": ("grade", "in.jsonl", *graded),
        "batch": ("batch", "in.jsonl", "-o", "out.jsonl", "--model", model),
        "dry run": ("batch", "in.jsonl", "-o", "out.jsonl", "--model", model, "--dry-run"),
        "validate": ("validate", "in.jsonl", "--grader", "words:1-5", "--cards-dir", "cards"),
        "runs": ("runs",),
        "runs show": ("runs", "show", "done.jsonl"),
        "runs show row": ("runs", "show", "done.jsonl", "0"),
        "export": ("export", "done.jsonl", "-o", "-", "--format", "dpo"),
        "graders": ("graders",),
        "grader": ("graders", "clarity"),
        "models": ("models",),
        "priors": ("priors",),
        "priors show": ("priors", "show", "shipped"),
    }


NAMES = (
    "run",
    "best",
    "grade",
    "grade rows",
    "batch",
    "dry run",
    "validate",
    "runs",
    "runs show",
    "runs show row",
    "export",
    "graders",
    "grader",
    "models",
    "priors",
    "priors show",
)


@pytest.mark.slow(but_each=8)
@pytest.mark.parametrize("name", NAMES)
def test_stderr_in_a_pipe_is_prose_or_json_if_asked_for(redraft, commands, name):
    """No line mixes them."""
    prose = redraft(*commands[name]).err
    assert not any(line.startswith("{") for line in prose.splitlines()), prose
    for path in redraft.folder.glob("out.jsonl*"):
        path.unlink()
    as_json = redraft(*commands[name], "--log-format", "json").err
    events = [json.loads(line) for line in as_json.splitlines()]
    assert all(event["event"] for event in events)
    assert bool(events) == bool(prose)


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("name", NAMES)
def test_no_table_in_a_pipe_is_padded_or_wrapped(redraft, commands, name):
    """Cells are separated by tabs, no line ends with spaces, and the width of a terminal changes
    nothing.
    """
    narrow, wide = (redraft(*commands[name], env={"COLUMNS": columns}) for columns in ("20", "200"))
    nonce = re.compile(r"(?<=-)[0-9a-f]{8}\b")
    assert nonce.sub("", narrow.out) == nonce.sub("", wide.out)
    assert "─" not in wide.out
    assert not re.search(r"\S  +\S| $", narrow.out + narrow.err, re.MULTILINE), narrow


def test_no_progress_is_reported_before_a_row_has_ended(redraft, serve):
    """A run that ends at once tells why, and no zeros."""
    (redraft.folder / "in.jsonl").write_text('{"prompt": "p"}\n' * 3)
    server = serve(lambda messages, n: (401, "bad key"))
    done = redraft(
        "batch", "in.jsonl", "-o", "o.jsonl", "--model", server.model, "--log-format", "json"
    )
    progress = [
        event for event in map(json.loads, done.err.splitlines()) if event["event"] == "progress"
    ]
    assert done.returncode == 1 and all(event["state"] != "running" for event in progress), done.err


@pytest.mark.parametrize("options", [(), ("--log-format", "json")])
def test_libraries_show_no_progress_in_a_pipe(redraft, options):
    """Those that load data sets write to stderr themselves unless their environment says
    otherwise.
    """
    (redraft.folder / "own.py").write_text(
        "import os\n\ndef tell(text):\n    return 1.0, os.environ.get('HF_HUB_DISABLE_PROGRESS_BARS', 'shown')\n"
    )
    (redraft.folder / "r.txt").write_text("one")
    done = redraft("grade", "Say it", "--response", "r.txt", "--grader", "own.py:tell", *options)
    assert done.out.splitlines()[0].endswith("\t1"), done
