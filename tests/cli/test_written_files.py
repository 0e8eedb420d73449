"""Options that name a file to be written: a place where it cannot be is a usage error, before
anything is sent or changed.
"""

import click
import pytest

from redraft.cli import COMMANDS, program
from redraft.cli.options import READABLE

FOREIGN = "a file of another program\n"
NONE = ("--model", "none", "--require", "words:1-9")
NOBODY = "http://127.0.0.1:9/v1#m"  # nothing listens there

# The command without the option.
RUN = ("run", "--response", "text.txt", *NONE)
BATCH = ("batch", "rows.jsonl", *NONE)
COMPARE = ("compare", NOBODY, f"{NOBODY}2", "--data", "rows.jsonl", "--require", "words:1-9")
GATE = ("gate", "rows.jsonl", "other.jsonl")
WRITERS = {
    "redraft run --output": RUN,
    "redraft run --trace": RUN,
    "redraft best --output": ("best", "--response", "text.txt", "--response", "other.txt", *NONE),
    "redraft rubric --output": ("rubric", "Replies to complaints", "--model", NOBODY),
    "redraft batch --output": BATCH,
    "redraft batch --journal": (*BATCH, "-o", "new.jsonl"),
    "redraft batch --errors": (*BATCH, "-o", "new.jsonl"),
    "redraft compare --journal": COMPARE,
    "redraft gate --journal": ("gate", *COMPARE[1:]),
    "redraft gate --junit": GATE,
    "redraft gate --markdown": GATE,
    "redraft label --labels": ("label", "rows.jsonl", "--kind", "pass", "--port", "0"),
    "redraft label --export": ("label", "rows.jsonl"),
    "redraft view --html": ("view", "done.jsonl"),
    "redraft export --output": ("export", "done.jsonl", "--format", "messages"),
    "redraft runs export --output": ("runs", "export", "done.jsonl"),
    "redraft runs salvage --output": ("runs", "salvage", "done.jsonl.journal"),
}
FOLDERS_TOO = {"redraft export --output"}
ADDED_OR_REPLACED = {"redraft gate --junit", "redraft gate --markdown"}


def written_files(group, names, path="redraft"):
    """Yield each option of a command that may name a file that does not exist."""
    for name in names:
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from written_files(command, command.commands, f"{path} {name}")
        for option in command.params:
            kind = option.type
            if (
                isinstance(option, click.Option)
                and isinstance(kind, click.Path)
                and kind is not READABLE
            ):
                if kind.file_okay and not kind.exists:
                    yield f"{path} {name} {max(option.opts, key=len)}"


def test_the_table_is_complete():
    """A new option that names a file to be written belongs there."""
    assert set(written_files(program, COMMANDS)) == {*WRITERS}


@pytest.fixture
def folder(redraft):
    """A folder with answers, a finished run, a file of another program, and a folder."""
    for name in ("rows.jsonl", "other.jsonl"):
        (redraft.folder / name).write_text(
            "".join(
                f'{{"id": "{n}", "prompt": "{n}", "response": "a", "score": 0.5}}\n'
                for n in range(3)
            )
        )
    for name in ("text.txt", "other.txt"):
        (redraft.folder / name).write_text("one two")
    assert redraft(*BATCH, "-o", "done.jsonl").returncode == 0
    (redraft.folder / "folder").mkdir()
    (redraft.folder / "foreign.jsonl").write_text(FOREIGN)
    return redraft.folder


PLACES = {
    "foreign.jsonl": {*WRITERS} - ADDED_OR_REPLACED,
    "folder": {*WRITERS} - FOLDERS_TOO,
    "nowhere/file.jsonl": {*WRITERS},
    "text.txt/file.jsonl": {*WRITERS},
}


@pytest.mark.slow(but_each=11)
@pytest.mark.parametrize(
    ("writer", "place"),
    [(writer, place) for place in PLACES for writer in WRITERS if writer in PLACES[place]],
)
def test_a_place_where_the_file_cannot_be_is_a_usage_error(redraft, folder, writer, place):
    """The message names it, and what was there is left as it was."""
    before = {path.name for path in folder.iterdir()}
    done = redraft(*WRITERS[writer], writer.rpartition(" ")[2], place)
    assert done.returncode == 2, done.err
    assert place in done.err and "Traceback" not in done.err
    assert (folder / "foreign.jsonl").read_text() == FOREIGN
    assert (
        not {path.name for path in folder.iterdir()} - before - {"new.jsonl", "new.jsonl.journal"}
    )


def test_a_file_of_another_program_beside_the_output_is_a_usage_error(redraft, folder):
    """The journal of a batch has a name of its own only if it gets one."""
    (folder / "new.jsonl.journal").write_text(FOREIGN)
    done = redraft(*BATCH, "-o", "new.jsonl")
    assert done.returncode == 2, done.err
    assert "is not a journal" in done.err and (folder / "new.jsonl.journal").read_text() == FOREIGN
