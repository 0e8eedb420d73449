"""Several clients over streamable HTTP, behind the keys, the limits and the Host and Origin checks
of the gateway.

Every call sets aside the most that it may use of its key's budget, and is charged what it used. A
key that is restricted to models of the gateway may not call tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from socket import socket

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from ..errors import RedraftError
from ..gateway.config import GatewayConfig, GatewayLimits
from ..gateway.guard import Guard
from ..gateway.keys import FILE_NAME, Caller, KeyStore
from ..gateway.server import (
    UnsignalledServer,
    bind_socket,
    refuse_exposure,
    url_of,
    uvicorn_config,
)
from ..middleware import Budget
from ..usage import Usage
from .progress import CallProgress
from .server import Context, make_server
from .workbench import CallLimits, Workbench

PATH = "/mcp"
HEALTH_PATH = "/healthz"
OWNER = "mcp"  # of reservations in the file of the keys
MAX_BODY = 8 * 2**20
MAX_SESSIONS = 500
MAX_CALLS = 100  # to models, in a tool call, unless the operator says otherwise
CLOSE_SECONDS = 1  # for connections, at the end
CALLER = "redraft.caller"  # key in a request's scope


class CallRefusedError(RedraftError):
    """The key, or the budget of the key, does not allow a call."""


@dataclass(frozen=True)
class HttpAddress:
    """Where to serve: `folder` has the keys, `allowed_hosts` are other names in the Host header.
    `is_insecure`: needs no keys.
    """

    folder: Path
    host: str = "127.0.0.1"
    port: int = 8485
    allowed_hosts: tuple[str, ...] = ()
    is_insecure: bool = False

    @property
    def config(self) -> GatewayConfig:
        """The configuration of the guard."""
        limits = GatewayLimits(max_body=MAX_BODY)
        return GatewayConfig(
            self.folder,
            host=self.host,
            port=self.port,
            allowed_hosts=self.allowed_hosts,
            limits=limits,
        )


def with_call_limit(limits: CallLimits) -> CallLimits:
    """Return limits that bound the model calls of a tool call, so that they can be reserved."""
    budget = limits.settings.get("budget") or Budget()
    bounded = budget if budget.calls is not None else replace(budget, calls=MAX_CALLS)
    return replace(limits, settings={**limits.settings, "budget": bounded})


async def serve_http(
    bench: Workbench, address: HttpAddress, announce: Callable[[str], object]
) -> None:
    """Serve until cancelled; `announce` is called with the URL. Raises ConfigError for a public
    address without keys.
    """
    keys = KeyStore(address.folder / FILE_NAME, owner=OWNER)
    try:
        if not address.is_insecure:
            refuse_exposure(address.config, is_open=keys.is_open)
        with bind_socket(address.host, address.port) as listener:
            app = McpService(bench, keys)
            config = replace(address.config, port=listener.getsockname()[1])
            async with app.sessions.run():
                guard = Guard(
                    app,
                    config,
                    keys=keys,
                    key_paths=(PATH,),
                    host_setting="--allow-host",
                    origin_setting="",
                )
                # h11 limits the size of headers
                http = uvicorn_config(guard, http="h11", timeout_graceful_shutdown=CLOSE_SECONDS)
                announce(f"{url_of(listener).removesuffix('/v1')}{PATH}")
                await _serve_until_cancelled(UnsignalledServer(http), listener)
    finally:
        keys.close()


class McpService:
    """The ASGI application: knows who sends a request, and passes it to the protocol's library."""

    def __init__(self, bench: Workbench, keys: KeyStore) -> None:
        self._keys, self._limits, self._admission = keys, bench.limits, bench.admission
        self.sessions = StreamableHTTPSessionManager(
            make_server(bench, self.admit),
            max_request_body_size=MAX_BODY,
            max_sessions=MAX_SESSIONS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == HEALTH_PATH:
            await PlainTextResponse("ok")(scope, receive, send)
            return
        if scope["path"].rstrip("/") != PATH:
            await PlainTextResponse(f"the tools are at {PATH}", 404)(scope, receive, send)
            return
        caller = self._keys.authenticate(Headers(scope=scope))
        scope[CALLER] = caller
        if caller.id:  # a session belongs to the key that began it
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=caller.id, scopes=[]))
        await self.sessions.handle_request(scope, receive, send)

    @asynccontextmanager
    async def admit(self, context: Context, progress: CallProgress) -> AsyncIterator[None]:
        """Stand around a call: wait for a place, reserve the most that it may use, and charge what
        it used.

        Raises CallRefusedError and GatewayError.
        """
        assert context.request is not None
        caller: Caller = context.request.scope[CALLER]
        _check_key(caller, self._limits)
        self._keys.count_request(caller)
        async with self._admission.slot(caller.id):
            budget = self._limits.settings.get("budget") or Budget()
            reservation = self._keys.reserve(
                caller,
                cost=budget.usd,
                calls=MAX_CALLS if budget.calls is None else budget.calls,
            )
            try:
                yield
            except (
                asyncio.CancelledError
            ):  # a call that was in flight is charged as it was reserved
                progress.usage += Usage(1, None, None, cost=None)
                raise
            finally:
                reservation.settle(progress.usage)


def _check_key(caller: Caller, limits: CallLimits) -> None:
    """Raise CallRefusedError for a key that may not call tools."""
    if not caller.may_use(OWNER):
        raise CallRefusedError(
            f"key {caller.name!r} is for {', '.join(caller.profiles)}, and not for tools"
        )
    budget = limits.settings.get("budget")
    if caller.limits.has_usd and (budget is None or budget.usd is None):
        raise CallRefusedError(
            f"key {caller.name!r} has a limit in USD, so the cost of a call must be bounded: "
            "whoever starts the server gives --budget-usd"
        )


async def _serve_until_cancelled(server: UnsignalledServer, listener: socket) -> None:
    """Serve; when cancelled, close the connections, which cancels their calls."""
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await asyncio.wait([serving])
