"""`redraft graders`: what can grade an answer."""

from __future__ import annotations

import click

from . import options

EPILOG = """\b
Examples:
  redraft graders
  redraft grade --response answer.md --require words:80-200 --require no_commas
  redraft graders --json | jq -r '.requirements[].example'
"""


@click.command(epilog=EPILOG)
@options.as_json
@options.debug
def graders(as_json: bool) -> None:
    """The graders with a name, and the requirements with an example each."""
    from ..graders import entries
    from ..requirements import KINDS

    named = [(e.name, e.about, f"--grader {e.example}") for e in entries() if e.mode != "requirement"]
    kinds = [(name, kind.help, kind.example) for name, kind in KINDS.items()]
    if as_json:
        import json

        rows = {"graders": named, "requirements": kinds}
        keys = ("name", "about", "example")
        click.echo(json.dumps({k: [dict(zip(keys, row, strict=True)) for row in v] for k, v in rows.items()}, indent=2))
        return
    _draw("Graders that ask a model", named)
    _draw("Requirements: --require SPEC must be kept, --grader SPEC counts in the score", kinds)


def _draw(title: str, rows: list[tuple[str, str, str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from .live import console

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(ratio=3)
    table.add_column(ratio=2, overflow="fold")
    for name, about, example in rows:
        table.add_row(Text(name, "bold"), Text(about), Text(example, "cyan"))
    out = console(stderr=False)
    out.print(Text(title, "bold underline"))
    out.print(table)
    out.print()
