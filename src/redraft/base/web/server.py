"""A server on 127.0.0.1 for one user: an address with a secret, and a browser that is shown it."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn
from starlette.types import ASGIApp

from ...errors import ConfigError
from .access import AccessControl

HOST = "127.0.0.1"
SHUTDOWN_SECONDS = 2


class PageServer:
    """Listens on a port of 127.0.0.1 (0: any free one). Raises ConfigError for a port that cannot
    be had.

    `url` is the address with the secret; `run` serves until Ctrl-C, SIGTERM or `stop`.
    """

    def __init__(self, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        # with the protocol named, asyncio sends small replies at once (TCP_NODELAY)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if os.name == "posix":
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((HOST, port))
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise ConfigError(
                f"--port {port}: {HOST}:{port} cannot be served: {error.strerror or error}"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._server: uvicorn.Server | None = None

    @property
    def root(self) -> str:
        """The first part of every path: a slash and the token."""
        return f"/{self.token}"

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}{self.root}/"

    def run(
        self, app: ASGIApp, styles: Iterable[str] = (), on_start: Callable[[], None] = lambda: None
    ) -> None:
        """Serve an application whose paths begin with `root`. `styles`: as in `AccessControl`."""
        guarded = AccessControl(app, self.token, self.port, tuple(styles))
        config = uvicorn.Config(
            guarded,
            http="h11",  # which limits the size of headers
            lifespan="off",
            ws="none",
            access_log=False,
            log_level="warning",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        self._server = uvicorn.Server(config)
        # from before the address is known
        with suppress(KeyboardInterrupt), self._server.capture_signals():
            on_start()
            self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Make `run` return soon. Any thread may call it."""
        if self._server:
            self._server.should_exit = True

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()


@contextmanager
def browser_page(url: str) -> Iterator[None]:
    """Show an address in the user's browser within the context.

    The browser is started with a private file that leads to the address: other users of the machine
    can read the arguments of its process. It is started in a thread, because a browser that runs in
    the terminal ends when its user leaves it.
    """
    with TemporaryDirectory(prefix="redraft-") as folder:
        page = Path(folder) / "open.html"
        page.touch(mode=0o600)
        page.write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(url)}">',
            encoding="utf-8",
        )
        threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
        yield
