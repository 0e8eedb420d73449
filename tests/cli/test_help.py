"""Help, and that what it says is true."""

import shlex
import subprocess
import sys

import click
import pytest

from redraft.cli import COMMANDS, program


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_could_be_typed(name):
    """Every command shows examples, and their commands and options exist."""
    command = program.get_command(click.Context(program), name)
    assert "Examples:" in command.epilog and command.get_short_help_str()
    commands = [command, *getattr(command, "commands", {}).values()]
    known = {option for c in commands for p in c.params for option in (*p.opts, *p.secondary_opts)}
    for line in command.epilog.splitlines():
        if line.strip().startswith("redraft "):
            words = shlex.split(line)
            if words[1] != name:
                assert words[1] in COMMANDS
                continue
            ours = words[2 : next((i for i, w in enumerate(words) if w in {"|", ">", "<"}), len(words))]
            assert {w for w in ours if w.startswith("-") and w != "-"} <= known, line


def test_help_of_the_program_names_every_command(redraft):
    """`redraft --help` lists all commands with what they do, and examples."""
    out = redraft("--help").out
    assert all(f"  {name} " in out for name in COMMANDS) and "Examples:" in out


@pytest.mark.parametrize("command", [[], ["run"], ["batch"]])
def test_help_imports_nothing_heavy(command):
    """`--help` must be quick: it loads none of what makes commands slow."""
    heavy = ["rich", "aiohttp", "asyncio", "sqlite3", "jsonschema", "regex", "rapidfuzz", "genai_prices"]
    code = (
        f"import sys; from redraft.cli import main; main([*{command}, '--help']); print([m for m in {heavy} if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()[-1] == "[]"


def test_tests_are_said_to_be_shown_and_not_run(redraft):
    """Nothing of ours runs the code of an answer."""
    said = " ".join(redraft("batch", "--help").out.split())
    assert "tests (of code: shown to judges, never run)" in said
