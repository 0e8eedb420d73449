"""`redraft view`: the runs of a folder, a run or a trace in the browser."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...base.checks import check_extra
from ...errors import ConfigError
from ...storage.secure_files import write_atomic
from ...viewer.run_library import RunEntry, RunLibrary
from .. import options
from ..output import check_output, notice
from ..stored_runs import RUN, SUFFIX, find_run

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from ...base.page_server import PageServer

TRAINED = "trained:"
LIBRARIES = ("jinja2", "starlette", "uvicorn")  # of the pages

EPILOG = """\b
Examples:
  redraft view
  redraft view answers.jsonl
  redraft view answers.jsonl --journal work.journal
  redraft view proof.jsonl
  redraft view answers.jsonl --html report.html
  redraft view trained:support

\b
RUN is the name of a run, its output or its journal; a trace that `redraft run --trace` wrote,
or a folder with journals, works as well. You can look at a run while it is in progress.
trained:NAME shows the losses of a reward model that `redraft train --base` trained, or trains.
The page is served on 127.0.0.1, at an address that contains a secret. Ctrl-C ends it.
"""


@click.command(short_help="Show runs in the browser.", epilog=EPILOG)
@click.argument("run", required=False, type=RUN, metavar="[RUN]")
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
    check_extra("view", f"redraft view{' --html' if html else ''} needs", *LIBRARIES)
    if html:
        check_output(html, overwrite=overwrite, option="--html")
    if run and run.startswith(TRAINED):
        _show_training(run, html, port, browser=browser)
        return
    with ExitStack() as stack:
        library, entry = open_library(run, journal, stack)
        if html:
            _write_page(library, entry, html)
            return
        from ...base.page_server import PageServer
        from ...viewer.pages import STYLES, ViewerPages

        server = PageServer(port)
        is_one_of_several = run is not None and entry and len(library.entries()) > 1
        path = f"run/{entry.key}" if entry and is_one_of_several else ""
        app = ViewerPages(library, server.root).app()
        serve_pages(server, app, STYLES, "Ctrl-C ends it", browser=browser, path=path)


def _show_training(name: str, html: str | None, port: int, *, browser: bool) -> None:
    """Show the losses of a reward model that was trained, or is."""
    from ...base.page_server import PageServer
    from ...train.grader import grader_folder
    from ...train.reward_training import read_losses
    from ...viewer.pages import STYLES
    from ...viewer.training_page import training_app, training_page

    folder = grader_folder(name.removeprefix(TRAINED))
    losses = read_losses(folder)
    if html:
        write_atomic(html, training_page(name, losses))
        notice(f"{html} written")
        return
    server = PageServer(port)
    app = training_app(name, lambda: read_losses(folder), server.root)
    serve_pages(server, app, STYLES, "Ctrl-C ends it", browser=browser)


def open_library(
    run: str | None, journal: str | None, stack: ExitStack
) -> tuple[RunLibrary, RunEntry | None]:
    """Return the library that a command's arguments mean, until the stack closes it, and its run;
    None if they mean several. Raises ConfigError.
    """
    path, name = Path(run or "."), None
    if run is None or path.is_dir():
        path = Path(journal) if journal else path
    elif journal or not path.is_file() or Path(f"{run}{SUFFIX}").is_file():
        stored = find_run(run, journal)
        path, name = stored.path, stored.info.name
    # else a journal, or a trace
    library = stack.enter_context(RunLibrary([path]))
    entries = library.entries()
    matches = entries if len(entries) == 1 else [each for each in entries if each.info.name == name]
    return library, matches[0] if len(matches) == 1 else None


def _write_page(library: RunLibrary, entry: RunEntry | None, path: str) -> None:
    """Write the page of a run as a file. Raises ConfigError if there is not one run."""
    from ...viewer.static_page import static_page

    if entry is None:
        raise ConfigError(
            f"--html writes the page of one run: name it; there are {names_of_runs(library)}"
        )
    write_atomic(path, static_page(library, entry))
    notice(f"{path} written")


def names_of_runs(library: RunLibrary) -> str:
    """Return the runs in a library for a message."""
    return ", ".join(repr(each.info.display_name) for each in library.entries()) or "none"


def serve_pages(
    server: PageServer,
    app: ASGIApp,
    styles: Iterable[str],
    message: str,
    *,
    browser: bool,
    path: str = "",
) -> None:
    """Serve pages until Ctrl-C, and say where; open the page at `path` in the browser."""
    from ...base.page_server import browser_page

    url = f"{server.url}{path}"
    with ExitStack() as stack:
        stack.callback(server.close)

        def announce() -> None:
            click.echo(url)
            sys.stdout.flush()
            notice(message)
            if browser and sys.stdout.isatty():
                stack.enter_context(browser_page(url))

        server.run(app, styles, announce)
