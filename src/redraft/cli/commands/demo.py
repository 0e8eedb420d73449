"""`redraft demo`: see it work, with no key and no network."""

from __future__ import annotations

import click

from .. import options

EPILOG = """\b
Examples:
  redraft demo
  redraft demo examples/demo
  cp -r examples/demo my-cases && redraft demo my-cases

\b
A case is a TOML file:
  title = "..."                  # what it shows
  prompt = "..."                 # what was asked
  response = "draft.md"          # a file in the same folder with the answer to improve
  require = ["words:80-120"]     # `redraft graders` lists all requirements
"""


@click.command(short_help="Improve sample answers without a key or a network.", epilog=EPILOG)
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False))
@options.debug
def demo(folder: str | None) -> None:
    """Improve the answers in FOLDER (default: examples/demo) with the built-in editor, and show
    every step.

    Needs no key and no network. The results are computed: edit the files and run it again.
    """
    from ..operations.demo import show_demo

    show_demo(folder)
