"""A real server with the pages of some runs, and a real browser."""

import threading
from contextlib import contextmanager

import pytest

from redraft.base.page_server import PageServer
from redraft.graders.cards import CardStore
from redraft.viewer.pages import STYLES, ViewerPages
from redraft.viewer.run_library import RunLibrary
from require import require_program

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def serving(app_of, styles=STYLES):
    """Serve what `app_of(server)` returns, in a thread; the value is the server."""
    server, started = PageServer(), threading.Event()
    run = lambda: server.run(app_of(server), styles, started.set)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert started.wait(60)  # a server that has not started yet would not be stopped
        yield server
    finally:
        server.stop()
        thread.join(10)
        server.close()


@contextmanager
def viewing(tmp_path, *paths):
    """Serve the pages of these journals; the value is the server, with its library as an
    attribute.
    """
    with RunLibrary(paths, tmp_path / "cache") as library:
        for entry in library.entries():
            assert library.build(entry).wait(300)
        cards = CardStore.in_folder(tmp_path / "cards")
        with serving(lambda server: ViewerPages(library, server.root, cards).app()) as server:
            server.library = library
            yield server


# playwright keeps an event loop running, which asynchronous tests of other modules cannot share
@pytest.fixture(scope="module")
def browser():
    """A real browser: Debian's Chromium, where it is installed. While it is open, nothing else can
    run an event loop.
    """
    path = require_program("chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        with playwright.chromium.launch(executable_path=path, args=FLAGS) as launched:
            yield launched
