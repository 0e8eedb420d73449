"""The command line: what people type, and what they are shown.

A command is a module of its own here and is imported when it is called for or listed, so these modules import click and
nothing else that takes time: what a command needs, it imports when it runs. The work itself is done by `redraft.api`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import click

from .. import __version__

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


class Commands(click.Group):
    """Finds each command in the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises UsageError with the nearest command for a name that is none."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            from ..checks import unknown_name_message

            raise click.UsageError(unknown_name_message("command", args[0], COMMANDS), ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Among JSON lines, without the line end by which click marks Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            from . import notices

            if notices.are_json():
                raise click.Abort from error
            raise

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f".{cmd_name}", __name__), cmd_name)
        return command


@click.group(cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="redraft", message="%(prog)s %(version)s")
def program() -> None:
    """Make LLM answers better and prove it: draft, grade, say what to change, redraft, keep the best."""


def main(argv: list[str] | None = None) -> int:
    """Run a command and return the exit code."""
    from .exits import guarded

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # better an escape than an end half-way

    def invoke() -> Any:
        return program.main(args=argv, prog_name="redraft", standalone_mode=False)

    return guarded(invoke)
