"""Commands that write a file replace none without `--overwrite`."""

import click
import pytest

from redraft.cli import COMMANDS as NAMES
from redraft.cli import program

COMMANDS = {
    "run": ("run", "--response", "text.txt", "--require", "words:1-9", "--model", "none"),
    "best": (
        "best",
        "--response",
        "text.txt",
        "--response",
        "other.txt",
        "--require",
        "words:1-9",
        "--model",
        "none",
    ),
    "rubric": ("rubric", "Replies to complaints", "--model", "openai:m@http://127.0.0.1:9/v1"),
    "rubric --from": (
        "rubric",
        "--from",
        "rows.jsonl",
        "--model",
        "openai:m@http://127.0.0.1:9/v1",
    ),
}


def commands(group, names, path="redraft"):
    """Yield every command with its full name."""
    for name in names:
        command = group.get_command(click.Context(group), name)
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, command.commands, f"{path} {name}")


def test_every_command_with_an_output_has_the_option():
    """`--overwrite` goes with `--output`."""
    options = {name: {p.name for p in command.params} for name, command in commands(program, NAMES)}
    writers = {name for name in options if "output" in options[name]}
    assert {
        "redraft run",
        "redraft best",
        "redraft rubric",
        "redraft export",
        "redraft runs export",
        "redraft batch",
    } <= writers
    assert not {name for name in writers if "overwrite" not in options[name]}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_existing_file_is_replaced_only_if_asked_for(redraft, name):
    """The refusal comes before anything is read from a model, and names the option."""
    for file in ("text.txt", "other.txt", "rows.jsonl", "out.txt"):
        (redraft.folder / file).write_text('{"prompt": "a"}\n')
    refused = redraft(*COMMANDS[name], "-o", "out.txt")
    assert refused.returncode == 2, refused.err
    assert "out.txt" in refused.err and "--overwrite" in refused.err
    assert (redraft.folder / "out.txt").read_text() == '{"prompt": "a"}\n'
    allowed = redraft(*COMMANDS[name], "-o", "out.txt", "--overwrite")
    assert "--overwrite" not in allowed.err
    if not name.startswith("rubric"):
        assert allowed.returncode == 0, allowed.err
    (redraft.folder / "out.txt").write_text("")
    assert "--overwrite" not in redraft(*COMMANDS[name], "-o", "out.txt").err
