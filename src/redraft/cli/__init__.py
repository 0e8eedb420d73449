"""The command line: a file for each command.

`commands/NAME.py` has all of one command: its options and help, a typed function, what it does and
how it shows it. It is imported when that command runs or shows its help. Beside `commands` is what
they share: the options (`options`, generated from `redraft.settings`), the conversion of their
values to arguments of the library (`request`, `refinement`), files with defaults (`config`) and the
consent to them (`consent`), code of users (`user_code`), and the output (`output`, `progress`,
`terminal`).
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
from .exit_codes import exit_code_of
from .output import messages_are_json, use_json_messages, warning

COMMANDS = {  # with their short help, so that `redraft --help` lists them without importing them
    "run": "Refine one answer.",
    "best": "Keep the best of several answers.",
    "grade": "Grade given answers.",
    "batch": "Refine every row of a data set.",
    "runs": "List the runs of `redraft batch`; show, export or delete one.",
    "export": "Write the answers of a run as training data.",
    "show": "Show a saved trace, or a request of a gateway.",
    "view": "Show runs in the browser.",
    "label": "Judge answers in the browser.",
    "serve": "Refine the answers of any model for any client.",
    "demo": "Improve sample answers without a key or a network.",
    "models": "List where Redraft looks for models, and what it found.",
    "graders": "List all graders, or show one.",
    "validate": "Measure a grader against labels of people.",
    "compare": "Say whether B is better than A.",
    "gate": "Fail a build if B is worse than A.",
    "rubric": "Find criteria for a judge, from labelled data or a description.",
    "priors": "Show, learn or delete priors for a model and its graders.",
    "keys": "Add, list and revoke API keys of the gateway.",
    "mcp": "Serve Redraft's tools to coding agents (MCP).",
    "trust": "Consent to the settings of a folder or a trace.",
}

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
        command: click.Command = getattr(import_module(f".commands.{cmd_name}", __name__), cmd_name)
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
        from .completion import install, show

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
        from ..telemetry.environment import telemetry_from_environment

        ctx.with_resource(telemetry_from_environment(warning))


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
    return exit_code_of(lambda: program.main(args=argv, prog_name="redraft", standalone_mode=False))
