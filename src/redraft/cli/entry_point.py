"""The program `redraft`: its commands, its own options, and how it begins and ends.

It imports what every command needs; a command is imported when it runs, shows its help or completes
its options.
"""

from __future__ import annotations

import gc
import os
import sys
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from itertools import pairwise, takewhile
from typing import Any

import click
from click.shell_completion import CompletionItem

from .. import __version__
from ..base.checks import unknown_name_message
from ..base.descriptors import prepare_process
from . import COMMANDS
from .completion import install, show
from .exit_codes import exit_code_of
from .output import messages_are_json, use_json_messages, warning

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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Propose commands without importing them, and the options of the program."""
        commands = [
            CompletionItem(name, help=about)
            for name, about in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Choose the format of messages before any argument is parsed, since that may fail."""
        options = list(takewhile(lambda arg: arg != "--", args))
        if "--log-format=json" in options or ("--log-format", "json") in pairwise(options):
            use_json_messages()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name. Raises UsageError naming the nearest command
        for an unknown name, unless a shell completes the arguments.
        """
        is_unknown = args and not args[0].startswith("-") and args[0] not in COMMANDS
        if is_unknown and not ctx.resilient_parsing:
            raise click.UsageError(
                unknown_name_message("command", args[0], COMMANDS, "redraft --help")
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. If messages are JSON, Ctrl-C writes no blank line, as click does for
        people.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            if messages_are_json():
                raise click.Abort from error
            raise

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(
            import_module(f".commands.{cmd_name}", __package__), cmd_name
        )
        return command


TELEMETRY_SWITCHES = (
    "OTEL_EXPORTER_OTLP_",
    "OTEL_TRACES_EXPORTER",
    "OTEL_METRICS_EXPORTER",
    "OTEL_LOGS_EXPORTER",
)
WORKING_COMMANDS = frozenset(
    {"run", "best", "grade", "batch", "validate", "compare", "gate", "serve", "mcp"}
)
SHELLS = click.Choice(["auto", "bash", "zsh", "fish"])  # auto: the one that $SHELL names


def _call_completion(ctx: click.Context, param: click.Parameter, shell: str | None) -> None:
    """Install or print completion and end, if the option is given."""
    if shell and not ctx.resilient_parsing:
        (install if param.name == "install_completion" else show)(shell)
        ctx.exit()


shell_option = partial(
    click.option,
    type=SHELLS,
    is_flag=False,
    flag_value="auto",
    metavar="[bash|zsh|fish]",
    is_eager=True,
    expose_value=False,
    callback=_call_completion,
)


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="redraft", message="%(prog)s %(version)s")
@shell_option(
    "--install-completion",
    help="Install completion of commands, options and files for this shell. Default: $SHELL.",
)
@shell_option("--show-completion", help="Print the script of --install-completion.")
@click.pass_context
def program(ctx: click.Context) -> None:
    """Improve LLM answers: draft, grade, give feedback, redraft, and keep the best answer, with the
    scores as evidence.
    """
    if ctx.invoked_subcommand in WORKING_COMMANDS and any(
        name.startswith(TELEMETRY_SWITCHES) for name in os.environ
    ):
        from ..telemetry import continue_trace
        from ..telemetry.environment import telemetry_from_environment

        ctx.obj = ctx.with_resource(telemetry_from_environment(warning))
        if ctx.invoked_subcommand not in {"serve", "mcp"}:  # whose requests belong elsewhere
            ctx.with_resource(continue_trace(os.environ))


def main(argv: list[str] | None = None) -> int:
    """Run a command and return the exit code. Without `argv` the process is that of the command
    line.
    """
    if argv is None:
        prepare_process()
        if sys.argv[1:2] == ["batch"]:  # its rows leave no cycles behind: look for some rarely
            gc.set_threshold(50_000, 20, 100)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # write escapes instead of failing half-way
            stream.reconfigure(errors="backslashreplace")
    return exit_code_of(
        lambda: program.main(args=argv, prog_name="redraft", standalone_mode=False), _report
    )


def _report(error: Exception) -> int:
    """Write what went wrong and return the exit code."""
    from .errors import report_error  # with most of the library

    return report_error(error)
