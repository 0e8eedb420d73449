"""`redraft view`: finds the runs, and serves their pages or writes one."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import click

from ...base import checks
from ...errors import ConfigError
from ...storage import write_atomic
from ...viewer.run_library import RunEntry, RunLibrary
from ..output import check_output, notice
from ..stored_runs import SUFFIX, find_run


def check_extra(command: str) -> None:
    """Raise ConfigError unless the libraries of the page are installed."""
    checks.check_extra("view", f"redraft {command} needs", "jinja2", "starlette", "uvicorn")


def open_library(run: str | None, journal: str | None) -> tuple[RunLibrary, str | None]:
    """Return the library that a command's arguments mean, and the name of the run that they name.
    Raises ConfigError.
    """
    path = Path(run or ".")
    if run is None or path.is_dir():
        return RunLibrary([Path(journal)] if journal else [path]), None
    if not journal and path.is_file() and not Path(f"{run}{SUFFIX}").is_file():
        return RunLibrary([path]), None  # a journal, or a trace
    stored = find_run(run, journal)
    library = RunLibrary([stored.path])
    return library, stored.info.name if len(library.entries()) > 1 else None


def entry_named(library: RunLibrary, name: str | None) -> RunEntry | None:
    """Return the run of this name, or the only run; None if there are several."""
    entries = library.entries()
    matches = [entry for entry in entries if name is None or entry.info.name == name]
    return matches[0] if len(matches) == 1 else None


def serve_runs(run: str | None, journal: str | None, port: int, *, browser: bool) -> None:
    """Serve the pages until Ctrl-C."""
    check_extra("view")
    from ...base.page_server import PageServer, browser_page
    from ...viewer.pages import STYLES, ViewerPages

    with ExitStack() as stack:
        library, name = open_library(run, journal)
        stack.callback(library.close)
        server = PageServer(port)
        stack.callback(server.close)
        entry = entry_named(library, name) if name else None
        url = f"{server.url}run/{entry.key}" if entry else server.url

        def announce() -> None:
            click.echo(url)
            sys.stdout.flush()
            notice("Ctrl-C ends it")
            if browser and sys.stdout.isatty():
                stack.enter_context(browser_page(url))

        server.run(ViewerPages(library, server.root).app(), STYLES, announce)


def write_page(run: str | None, journal: str | None, path: str, *, overwrite: bool) -> None:
    """Write the page of one run as a file. Raises ConfigError if the arguments do not mean a single
    run.
    """
    check_extra("view --html")
    from ...viewer.static_page import static_page

    check_output(path, overwrite=overwrite, option="--html")
    library, name = open_library(run, journal)
    with library:
        entry = entry_named(library, name)
        if entry is None:
            names = ", ".join(repr(each.info.display_name) for each in library.entries()) or "none"
            raise ConfigError(f"--html writes the page of one run: name it; there are {names}")
        write_atomic(path, static_page(library, entry))
    notice(f"{path} written")
