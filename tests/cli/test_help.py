"""Help texts, and that they are correct."""

import re
import shlex
import subprocess
import sys

import click
import pytest

from each_row import each_row
from redraft.cli import COMMANDS, program
from redraft.cli.exit_codes import EXIT_CODES, OK, USAGE
from redraft.cli.options import HEADINGS


@each_row("name", COMMANDS)
def test_help_has_examples_of_existing_commands_and_options(name):
    """Every command shows examples, and their commands and options exist."""
    command = program.get_command(click.Context(program), name)
    assert "Examples:" in command.epilog and command.get_short_help_str()
    commands = [command, *getattr(command, "commands", {}).values()]
    known = {option for c in commands for p in c.params for option in (*p.opts, *p.secondary_opts)}
    assert f"redraft {name}" in command.epilog
    for line in command.epilog.splitlines():
        if line.strip().startswith("redraft "):
            words = shlex.split(line)
            if words[1] != name:
                assert words[1] in COMMANDS
                continue
            ours = words[
                2 : next((i for i, w in enumerate(words) if w in {"|", ">", "<"}), len(words))
            ]
            assert {w for w in ours if w.startswith("-") and w != "-"} <= known, line


def test_help_of_the_program_names_every_command(redraft):
    """`redraft --help` lists all commands with a summary, and examples."""
    out = redraft("--help").out
    assert all(f"  {name} " in out for name in COMMANDS) and "Examples:" in out


def test_the_list_of_commands_shows_the_summary_of_each():
    """`redraft --help` prints from a table; its summaries equal those of the commands, on one
    line.
    """
    context = click.Context(program)
    short_help = {
        name: program.get_command(context, name).get_short_help_str(limit=65) for name in COMMANDS
    }
    assert short_help == COMMANDS
    assert not any(text.endswith("...") for text in COMMANDS.values())


def modules_loaded_by_help(*command):
    """The modules that are loaded after help was shown in a new process."""
    code = f"import sys; from redraft.cli import main; main([*{command}, '--help']); print(*sys.modules)"
    return set(
        subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()[-1].split()
    )


def test_the_list_of_commands_imports_no_command_and_no_settings():
    """`redraft --help` must take less than 200 ms, also without bytecode."""
    ours = {name for name in modules_loaded_by_help() if name.startswith("redraft")}
    assert "redraft.cli" in ours
    assert not ours & {"redraft.settings", "redraft.cli.options", "redraft.cli.config"}
    assert not [name for name in ours if name.startswith("redraft.cli.commands")]


HEAVY = {
    "aiohttp",
    "genai_prices",
    "httptools",
    "jsonschema",
    "numpy",
    "opentelemetry",
    "prometheus_client",
    "pyarrow",
    "pydantic",
    "rapidfuzz",
    "ray",
    "regex",
    "starlette",
    "uvicorn",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_help_imports_no_slow_library(name):
    """A command imports at its top what it always needs, and no library that a part of its uses
    needs.
    """
    assert not modules_loaded_by_help(name) & HEAVY


def test_help_says_what_runs_tests_and_where(redraft):
    """A user finds the grader, the sandbox, and the way to do without one."""
    said = " ".join(redraft("batch", "--help-all").out.split())
    assert "tests (of code, run by the grader tests)" in said
    assert "--sandbox TIER" in said and "--unsafe-exec" in said


@each_row("name", COMMANDS)
def test_help_names_only_exit_codes_of_the_table(name):
    """One table has all exit codes; docs/cli.md is written from it."""
    command = program.get_command(click.Context(program), name)
    for each in (command, *getattr(command, "commands", {}).values()):
        _, _, text = (each.epilog or "").partition("Exit codes:")
        numbers = re.findall(r"(?:^|[ ,])(\d+)(?= )", text.partition("\n\n")[0], re.MULTILINE)
        assert {int(n) for n in numbers} <= set(EXIT_CODES), each.name
        assert not text or {OK, USAGE} <= {int(n) for n in numbers}, each.name


WITH_MANY_OPTIONS = ("run", "best", "grade", "batch")


def flags_in(text):
    """The options that the lists of a help text have."""
    lists = text.partition("Examples:")[0]
    return set(re.findall(r"^  (?:-\w, )?(--?[\w-]+)", lists, re.MULTILINE))


@pytest.mark.parametrize("name", WITH_MANY_OPTIONS)
def test_help_shows_the_common_options_and_says_how_to_see_all(redraft, name):
    """About twenty are shown, under headings; `--help-all` shows every one, under its heading."""
    command = program.get_command(click.Context(program), name)
    options = [
        each for each in command.params if isinstance(each, click.Option) and not each.hidden
    ]
    assert [each.name for each in options if each.heading not in HEADINGS] == []
    common, every = redraft(name, "--help").out, redraft(name, "--help-all").out
    by_name = {max(each.opts, key=len): each for each in options}
    listed = {by_name[flag] for flag in flags_in(common) if flag != "--help"}
    assert listed == {each for each in options if each.common} and 12 <= len(listed) <= 25
    assert flags_in(every) == {*by_name, "--help"}
    told = f"These are {len(listed) + 1} of {len(options) + 1} options; `redraft {name} --help-all`"
    assert common.strip().splitlines()[-1].startswith(told) and "options; `redraft" not in every
    sections = {part.partition(":\n")[0]: part for part in every.split("\n\n")}
    assert all(flag in flags_in(sections[each.heading]) for flag, each in by_name.items())
    assert "Examples:" in common and "Examples:" in every


@pytest.mark.parametrize("name", WITH_MANY_OPTIONS)
def test_help_is_shown_in_spite_of_broken_settings(redraft, name):
    """A user reads there what is wrong."""
    (redraft.folder / "redraft.toml").write_text("= 1")
    for option in ("-h", "--help", "--help-all"):
        assert redraft(name, option).returncode == 0


def test_without_arguments_the_help_is_shown(redraft):
    """Line by line, as `--help` shows it, and with the exit code of wrong usage."""
    done = redraft()
    assert done.returncode == 2 and redraft("--help").out.strip() in (done.out + done.err)
