"""`redraft view`: the runs of a folder, a run or a trace in the browser."""

from __future__ import annotations

import click

from .. import options

EPILOG = """\b
Examples:
  redraft view
  redraft view answers.jsonl
  redraft view answers.jsonl --journal work.journal
  redraft view proof.jsonl
  redraft view answers.jsonl --html report.html

\b
RUN is the name of a run, its output or its journal; a trace that `redraft run --trace` wrote,
or a folder with journals, works as well. You can look at a run while it is in progress.
The page is served on 127.0.0.1, at an address that contains a secret. Ctrl-C ends it.
"""


@click.command(short_help="Show runs in the browser.", epilog=EPILOG)
@click.argument("run", required=False, type=options.FILE, metavar="[RUN]")
@options.journal
@click.option(
    "--html",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write one self-contained page to FILE instead: the figures and the first 5,000 rows.",
)
@options.overwrite
@options.port
@options.browser
@options.debug
def view(
    run: str | None,
    journal: str | None,
    html: str | None,
    *,
    overwrite: bool,
    port: int,
    browser: bool,
) -> None:
    """Show runs in the browser: figures, rows, what changed in each answer and why. It changes
    nothing and calls no model.
    """
    from ..operations.view import serve_runs, write_page

    if html:
        write_page(run, journal, html, overwrite=overwrite)
    else:
        serve_runs(run, journal, port, browser=browser)
