"""The kinds of commands: with defaults from configuration files, with headings in their help, with
a default subcommand.
"""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from . import config
from .options import GENERAL, HEADINGS, PLAN, Option, where_it_went

HELP = "redraft.help"  # key in a context's `meta`: whether only help is requested
HELP_ALL = "redraft.help_all"  # key in a context's `meta`: whether help shows every option
HELP_OPTIONS = frozenset({"-h", "--help", "--help-all"})


class ConfiguredCommand(click.Command):
    """A command whose options can have defaults in files, which are read by `config` when the
    command runs.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            Option(
                ["--config"],
                heading=GENERAL,
                common=True,
                type=click.Path(exists=True, dir_okay=False),
                metavar="FILE",
                is_eager=True,
                expose_value=False,
                callback=_read_files,
                help="Settings from FILE (TOML) instead of this folder's redraft.toml.",
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments. Help works even if a file with settings is broken."""
        ctx.meta[HELP] = bool(HELP_OPTIONS & set(args))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises ConfigError for settings of a file that need consent and have
        none.
        """
        config.require_consent_for_files(ctx)
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings: those of the command alone, then the shared ones.
        If an option has no heading, write one list.
        """
        help_option = self.get_help_option(ctx)
        by_heading: dict[str, list[click.Option]] = {}
        for each in self.options_in_help(ctx):
            general = GENERAL if each is help_option else ""
            heading = each.heading if isinstance(each, Option) else general
            by_heading.setdefault(heading, []).append(each)
        if "" in by_heading:
            super().format_options(ctx, formatter)
            return
        own = [heading for heading in by_heading if heading not in HEADINGS]
        for heading in [*own, *(each for each in HEADINGS if each in by_heading)]:
            with formatter.section(heading):
                records = [each.get_help_record(ctx) for each in by_heading[heading]]
                formatter.write_dl(list(filter(None, records)))

    def options_in_help(self, ctx: click.Context) -> list[click.Option]:
        """Return the options that help shows."""
        params = self.get_params(ctx)
        return [each for each in params if isinstance(each, click.Option) and not each.hidden]


def _read_files(ctx: click.Context, param: click.Parameter, named: str | None) -> None:
    """Read the defaults of a command from files, before its other options are parsed."""
    if not ctx.resilient_parsing and not ctx.meta.get(HELP):
        config.use_files(ctx, named)


class GroupedCommand(ConfiguredCommand):
    """A command with many options: `--help` shows the common ones under their headings,
    `--help-all` all of them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                heading=GENERAL,
                common=True,
                help="Show every option and exit.",
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments. Raises UsageError that says where a setting of the plan went."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            has_plan = any(each.name == PLAN for each in self.params)
            if has_plan and (said := where_it_went(error.option_name.lstrip("-"))):
                raise click.UsageError(
                    f"no such option: {error.option_name}; {said}", ctx
                ) from None
            raise

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the epilog, and how to see the options that are not shown."""
        super().format_epilog(ctx, formatter)
        shown, every = len(self.options_in_help(ctx)), len(super().options_in_help(ctx))
        if shown < every:
            formatter.write_paragraph()
            formatter.write_text(
                f"These are {shown} of {every} options; `{ctx.command_path} --help-all` shows all."
            )

    def options_in_help(self, ctx: click.Context) -> list[click.Option]:
        """Return the common options; with --help-all, all of them."""
        options = super().options_in_help(ctx)
        if ctx.meta.get(HELP_ALL):
            return options
        return [each for each in options if not isinstance(each, Option) or each.common]


def _show_all(ctx: click.Context, param: click.Parameter, on: bool) -> None:
    """Show the help with every option and end."""
    if on and not ctx.resilient_parsing:
        ctx.meta[HELP_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


class DefaultGroup(click.Group):
    """A group that runs its `default` command when none is named."""

    def __init__(self, *args: Any, default: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the name of the default command before options without a command."""
        has_command = (
            not args[0].startswith("-") or args[0] in ctx.help_option_names
            if args
            else ctx.resilient_parsing  # completion proposes the commands, too
        )
        return super().parse_args(ctx, args if has_command else [self.default, *args])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Propose the commands, and the options of the default command."""
        options = self.commands[self.default].shell_complete(ctx, incomplete)
        return [*super().shell_complete(ctx, incomplete), *options]
