"""`redraft demo`: see it work, with no key and no network."""

from __future__ import annotations

import click

from . import options

EPILOG = """\b
Examples:
  redraft demo
  redraft demo examples/demo
  cp -r examples/demo my-cases && redraft demo my-cases

\b
A case is a TOML file:
  title = "..."                  # what it shows
  prompt = "..."                 # what was asked
  response = "draft.md"          # the answer to improve, a file beside it
  require = ["words:80-120"]     # `redraft graders` lists what can be required
"""


@click.command(epilog=EPILOG)
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False))
@options.debug
def demo(folder: str | None) -> None:
    """Let the built-in editor improve the answers in FOLDER (default: examples/demo), and see every step.

    All of it is computed, nothing is canned: edit the files and run it again.
    """
    from .showcase import present

    present(folder)
