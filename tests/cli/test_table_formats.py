"""Every command that reads tables recognises how they are written, says so on stderr, and takes
--encoding.
"""

import json

import click
import pytest

from redraft.cli import COMMANDS as NAMES
from redraft.cli import program

WORDS = ["привет мир", "как дела сегодня", "до встречи завтра"]
ROWS = "id;prompt;response;score\r\n" + "".join(
    f"{n};q{n};{text};0,{n}\r\n" for n, text in enumerate(WORDS, 1)
)
COMMANDS = {
    "grade": ["grade", "t.csv", "--require", "words:1-5"],
    "batch": ["batch", "t.csv", "-o", "out.jsonl", "--model", "none", "--require", "words:1-5"],
    "validate": ["validate", "t.csv", "--grader", "words:1-5"],
    "compare": ["compare", "t.csv", "t.csv", "--seed", "1"],
    "gate": ["gate", "t.csv", "t.csv", "--margin", "0.5"],
}


def test_every_command_that_names_columns_takes_an_encoding():
    """And `grade`, whose columns have their usual names."""
    found = [program.get_command(click.Context(program), name) for name in NAMES]
    found += [inner for command in found for inner in getattr(command, "commands", {}).values()]
    options = {
        command.name: {name for param in command.params for name in param.opts} for command in found
    }
    assert {name for name, names in options.items() if "--encoding" in names} == {
        *(name for name, names in options.items() if "--column" in names),
        "grade",
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_tables_in_other_encodings(redraft, name):
    """What is recognised is read, and reported; what is not is refused with the name of the option,
    and read with it.
    """
    (redraft.folder / "t.csv").write_bytes(ROWS.encode("utf-16"))
    done = redraft(*COMMANDS[name])
    good = 3 if name == "validate" else 0  # three labels show nothing
    assert done.returncode == good, done.err
    assert (
        done.err.count("t.csv is read as UTF-16 (--encoding NAME overrides this), with semicolons")
        == 1
    )
    (redraft.folder / "t.csv").write_bytes(ROWS.encode("cp1251"))
    for file in ("out.jsonl", "out.jsonl.journal"):
        (redraft.folder / file).unlink(missing_ok=True)
    done = redraft(*COMMANDS[name])
    assert done.returncode in {1, 2}, done.err
    assert "t.csv:2" in done.err and "name its encoding by --encoding" in done.err
    done = redraft(*COMMANDS[name], "--encoding", "cp1251")
    assert done.returncode == good, done.err
    assert "is read as" not in done.err
    if name == "batch":
        assert [
            json.loads(line)["best"]
            for line in (redraft.folder / "out.jsonl").read_text("utf-8").splitlines()
        ] == WORDS
        # the output is read again, as what it is
        done = redraft(*COMMANDS[name], "--encoding", "cp1251")
        assert done.returncode == 0, done.err
        assert len((redraft.folder / "out.jsonl").read_text("utf-8").splitlines()) == len(WORDS)


def test_an_unknown_encoding_is_a_usage_error(redraft):
    done = redraft(*COMMANDS["grade"], "--encoding", "cp-none")
    assert done.returncode == 2
    assert (
        "'--encoding': 'cp-none' is not known; allowed are those of Python, such as utf-8"
        in done.err
    )


def test_stdin_in_utf16(redraft):
    """As PowerShell writes into a pipe; a message is an object if messages are JSON."""
    text = "".join(f'{{"prompt": "q", "response": "{text}"}}\n' for text in WORDS)
    command = [
        "batch",
        "-",
        "-o",
        "out.jsonl",
        "--model",
        "none",
        "--require",
        "words:1-5",
        "--log-format",
        "json",
    ]
    done = redraft.inside(command, input=text.encode("utf-16"))
    assert done.returncode == 0, done.err
    assert "stdin is read as UTF-16 (--encoding NAME overrides this)" in [
        json.loads(line).get("message") for line in done.err.splitlines()
    ]
    assert [
        json.loads(line)["best"]
        for line in (redraft.folder / "out.jsonl").read_text("utf-8").splitlines()
    ] == WORDS
