"""The command line.

Each command is a module in `commands`, imported when it is called or listed. These modules import click and nothing slow:
what a command needs, it imports when it runs. `redraft.api` does the work itself.
"""

from __future__ import annotations

import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import click

from .. import __version__
from ..checks import unknown_name_message
from .errors import run_command
from .output import messages_are_json

COMMANDS = (
    "run",
    "best",
    "grade",
    "batch",
    "runs",
    "export",
    "show",
    "demo",
    "models",
    "graders",
    "validate",
    "rubric",
    "priors",
    "trust",
)


EPILOG = """\b
Examples:
  redraft demo
  redraft run "Explain quantum computing to a ten-year-old" --require words:80-200
  redraft grade --response answer.md --require bullets:3
  redraft batch questions.jsonl -o answers.jsonl --model ollama:llama3.2
  redraft run --help
"""


class LazyGroup(click.Group):
    """Imports the module of a command when the command is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises UsageError naming the nearest command for an unknown name."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise click.UsageError(unknown_name_message("command", args[0], COMMANDS), ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Among JSON lines, Ctrl-C writes no blank line, as click does for people."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            if messages_are_json():
                raise click.Abort from error
            raise

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f".commands.{cmd_name}", __name__), cmd_name)
        return command


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="redraft", message="%(prog)s %(version)s")
def program() -> None:
    """Improve LLM answers: draft, grade, give feedback, redraft, and keep the best answer, with the scores as evidence."""


def main(argv: list[str] | None = None) -> int:
    """Run a command and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # write escapes instead of failing half-way

    def invoke() -> Any:
        return program.main(args=argv, prog_name="redraft", standalone_mode=False)

    return run_command(invoke)
