"""Help in sections, for commands with more options than one list can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from .config import Configured


class Sectioned(Configured):
    """A command whose options are listed under headings; `sections` says with which parameter each begins, in order."""

    def __init__(self, *args: Any, sections: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        headed: dict[str, list[tuple[str, str]]] = {}
        heading = "Options"
        for param in self.get_params(ctx):
            heading = self.sections.get(str(param.name), heading)
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                headed.setdefault(heading, []).append(record)
        for title, records in headed.items():
            with formatter.section(title):
                formatter.write_dl(records)


class Defaulting(click.Group):
    """A group that does `default` when no command of it is named."""

    def __init__(self, *args: Any, default: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default in front of options that stand alone."""
        named = bool(args) and (not args[0].startswith("-") or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else [self.default, *args])
