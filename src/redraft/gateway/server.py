"""The process of a gateway: its socket, its signals, and its end.

SIGTERM and SIGINT end it gently: /readyz says 503, no request is admitted, those at work have
`drain_seconds` to end, everything is written, and the exit code is 0. A second signal ends it at
once. SIGHUP reads the configuration again; a file with a mistake changes nothing.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from ..base.descriptors import descriptor_limit
from ..base.sync import run_on_uvloop
from ..base.threads import run_in_thread
from ..errors import ConfigError, RedraftError
from ..telemetry.environment import ExportWatch
from .acceptor import Acceptor
from .app import Gateway
from .config import GatewayConfig
from .connections import MAX_HEADER_BYTES, http_protocol
from .guard import address_of
from .keys import KeyRing

Say = Callable[[str], object]
BACKLOG = 2048
KEEP_ALIVE_SECONDS = 75  # of an idle connection: longer than the 60 s of common load balancers
OTHER_DESCRIPTORS = 64  # that are open besides connections, or held back
SWITCH_SECONDS = 0.0005  # that a thread which writes files may keep the event loop waiting
CLOSE_SECONDS = 5  # for connections, after the last request
# after which free memory is given back; done after each large answer, it would double its time
MEMORY_SECONDS = 10.0


class GatewayServer:
    """Serves a gateway on a socket until it is told to end.

    `read_config` reads the configuration again. `allow_public`: other machines may use it without a
    key. `say` and `warn` write messages; `announce` is called with the URL and the gateway once it
    takes requests. `telemetry` knows what of OpenTelemetry could not be sent.
    """

    def __init__(
        self,
        config: GatewayConfig,
        env: Mapping[str, str],
        *,
        read_config: Callable[[], GatewayConfig] | None = None,
        allow_public: bool = False,
        say: Say = print,
        warn: Say = print,
        announce: Callable[[str, Gateway], object] = lambda *_: None,
        telemetry: ExportWatch | None = None,
    ) -> None:
        self.config, self._env, self._telemetry = config, env, telemetry
        self._allow_public = allow_public
        self._read_config, self._say, self._warn, self._announce = read_config, say, warn, announce
        self._end = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    def run(self) -> None:
        """Serve until a signal ends it. Raises ConfigError and StoreError if it cannot begin."""
        run_on_uvloop(self.serve())

    async def serve(self) -> None:
        """Serve until `stop`."""
        with bind_socket(self.config.host, self.config.port) as listener:
            self._check_descriptors()
            async with Gateway(self.config, self._env, self._telemetry) as gateway:
                server = GatewayHttpServer(gateway)
                with self._signals(gateway, server):
                    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
                    returning = asyncio.create_task(_keep_returning_memory())
                    try:
                        await self._wait_until_started(server, serving)
                        self._announce(url_of(listener), gateway)
                        await self._wait_for_end(gateway, serving)
                    finally:
                        returning.cancel()
                        server.should_exit = True
                        await serving
                    await gateway.store.wait_for_commit()

    def _check_descriptors(self) -> None:
        """Warn if clients will have to wait for descriptors before `max_concurrent` requests are at
        work.
        """
        most, needed = descriptor_limit(), 2 * self.config.limits.max_concurrent + OTHER_DESCRIPTORS
        if most < needed:
            self._warn(
                f"the limit on open files is {most:.0f}: for max-concurrent it should be {needed} "
                "(ulimit -n, LimitNOFILE=)"
            )

    def stop(self) -> None:
        """End gently."""
        self._end.set()

    async def _wait_until_started(
        self, server: uvicorn.Server, serving: asyncio.Future[None]
    ) -> None:
        while not server.started and not serving.done():  # noqa: ASYNC110  (uvicorn has no event for it)
            await asyncio.sleep(0.005)

    async def _wait_for_end(self, gateway: Gateway, serving: asyncio.Future[None]) -> None:
        """Wait for the signal to end, then for the requests at work."""
        await _wait_for_either(self._end.wait(), serving)
        gateway.drain()
        seconds = gateway.config.limits.drain_seconds
        if gateway.admission.active:
            self._say(f"ending: {gateway.admission.active} requests at work have {seconds:g} s")
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _wait_for_either(gateway.admission.wait_until_idle(), serving)
        if gateway.admission.active:
            self._warn(f"{gateway.admission.active} requests are cut off")
            await gateway.cut_off()

    # ---- signals

    @contextmanager
    def _signals(self, gateway: Gateway, server: uvicorn.Server) -> Iterator[None]:
        """Handle signals within the context."""
        loop = asyncio.get_running_loop()

        def end() -> None:
            # a second signal ends at once
            server.force_exit = server.should_exit = self._end.is_set()
            self._end.set()

        handlers: dict[Any, Callable[[], object]] = {signal.SIGTERM: end, signal.SIGINT: end}
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = partial(self._start_task, gateway)
        before = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            # not in a thread, and not on Windows
            with suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number, earlier in before.items():
                with suppress(NotImplementedError, RuntimeError, ValueError):
                    loop.remove_signal_handler(number)
                    signal.signal(number, earlier)

    def _start_task(self, gateway: Gateway) -> None:
        task = asyncio.ensure_future(self.reload(gateway))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def reload(self, gateway: Gateway) -> None:
        """Read the configuration again and use it; if that fails, the old one stays in force."""
        if self._read_config is None:
            self._warn("there is no configuration file to read again")
            return
        try:
            config = self._read_config()
            if not self._allow_public:
                host = self.config.host
                refuse_exposure(replace(config, host=host), is_open=gateway.keys.is_open)
            await gateway.reload(config)
        except (RedraftError, OSError) as error:
            self._warn(f"the configuration stays as it was: {error}")
            return
        fixed = [
            name
            for name in ("host", "port", "folder")
            if getattr(config, name) != getattr(self.config, name)
        ]
        self._say(
            "the configuration was read again"
            + (f"; changed only by a restart: {', '.join(fixed)}" if fixed else "")
        )


def prefer_event_loop() -> None:
    """Keep the rest of this process from holding requests up: garbage collections of what stays,
    and other threads.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_SECONDS)


def return_free_memory() -> None:
    """Have glibc give the memory that it has free back to the system; other C libraries do so
    themselves, or cannot.

    It keeps what is free between other things, and up to 64 MB at the end, in its heap and in those
    of some threads; after many large answers that is more than all else. Takes about 10 ms of CPU
    time for 64 MB.
    """
    if sys.platform == "linux":
        # a Python without ctypes, another library, a static one
        with suppress(ImportError, AttributeError, OSError):
            from ctypes import CDLL

            CDLL(None).malloc_trim(0)


async def _keep_returning_memory() -> None:
    """Give free memory back now and every MEMORY_SECONDS, until cancelled."""
    while True:
        await run_in_thread(return_free_memory)
        await asyncio.sleep(MEMORY_SECONDS)


async def _wait_for_either(work: Coroutine[Any, Any, Any], other: asyncio.Future[None]) -> None:
    """Wait until one of the two has ended."""
    task: asyncio.Future[Any] = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task, other], return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()


class UnsignalledServer(uvicorn.Server):
    """uvicorn without signal handlers of its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class GatewayHttpServer(UnsignalledServer):
    """uvicorn for a gateway: with an `Acceptor`, and the limits of `connections`."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(
            uvicorn_config(
                gateway.app,
                http=http_protocol(),
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=CLOSE_SECONDS,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            )
        )
        self._gateway = gateway

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept the connections on the sockets."""
        # the event loop of Windows reports no socket that can be read, and sockets are no
        # descriptors there
        is_windows = os.name == "nt"
        await super().startup(sockets if is_windows else [])
        if is_windows:
            return
        gateway, state, protocol = (
            self._gateway,
            self.server_state,
            cast("Any", self.config.http_protocol_class),
        )
        make_protocol = partial(
            protocol, config=self.config, server_state=state, app_state=self.lifespan.state
        )
        kept = gateway.config.limits.max_concurrent
        acceptors = [
            Acceptor(each, make_protocol, state.connections, gateway.refuse, kept)
            for each in sockets or ()
        ]
        self.servers = cast("Any", acceptors)


def uvicorn_config(app: ASGIApp, **more: Any) -> uvicorn.Config:
    """Return how uvicorn serves an application of ours: without its own logs, and without what a
    proxy says of the client. `more`: further arguments of `uvicorn.Config`.
    """
    return uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        log_level=logging.CRITICAL,
        proxy_headers=False,
        server_header=False,
        **more,
    )


@contextmanager
def bind_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on an address within the context. Raises ConfigError for one that cannot be had."""
    try:
        addresses = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ConfigError(
            f"host {host!r} is no address of this machine: {error.strerror or error}"
        ) from error
    family, kind, protocol, _, address = addresses[0]
    with socket.socket(family, kind, protocol) as listener:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as error:
            hint = (
                "; --port chooses another port, 0 any free one"
                if error.errno == errno.EADDRINUSE
                else ""
            )
            raise ConfigError(
                f"{host}:{port} cannot be served: {error.strerror or error}{hint}"
            ) from error
        listener.setblocking(False)
        yield listener


def url_of(listener: socket.socket) -> str:
    """Return the base URL for clients of this machine."""
    host, port = listener.getsockname()[:2]
    if ip_address(host).is_unspecified:
        host = "127.0.0.1" if listener.family == socket.AF_INET else "::1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def is_public(host: str) -> bool:
    """Whether other machines can reach a server on this host."""
    address = address_of(host)
    return host != "localhost" and (address is None or not address.is_loopback)


def check_exposure(config: GatewayConfig) -> None:
    """Raise ConfigError if other machines can reach the gateway and it asks for no key."""
    if is_public(config.host):
        with KeyRing(config.folder) as ring:
            refuse_exposure(config, is_open=not ring.stored_keys())


def refuse_exposure(config: GatewayConfig, *, is_open: bool) -> None:
    """Raise ConfigError if other machines can reach a server and it asks for no key. `is_open`:
    there is no key.
    """
    needs_key = not is_open if config.require_keys is None else config.require_keys
    if is_public(config.host) and not needs_key:
        place = config.host or "every address"
        raise ConfigError(
            f"other machines can reach {place}, and no API key is needed: add one with "
            f"`redraft keys add NAME --folder {config.folder}`, or allow everyone with --insecure"
        )
