"""Records the requests to a server as spans: ASGI middleware, for the gateway.

The span in the client's `traceparent` becomes the parent, so that an application sees what its
request led to. Headers, queries and bodies are not recorded.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from . import active_recorder
from .attributes import HTTP_STATUS

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

STATUS_KEY = "redraft.status"  # of a scope: with which status the application logs the request
WENT_AWAY = 499  # its client did not wait for the reply


class RequestSpans:
    """ASGI middleware that records each HTTP request as a span, until its last byte is sent.

    `routes`: the paths that the server has; only these are in the name of a span. Requests to
    `ignored` paths have no span.
    """

    def __init__(
        self, app: ASGIApp, routes: Collection[str] = (), ignored: Collection[str] = ()
    ) -> None:
        self._app, self._routes, self._ignored = app, frozenset(routes), frozenset(ignored)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        recorder = (
            active_recorder()
            if scope["type"] == "http" and scope.get("path") not in self._ignored
            else None
        )
        if recorder is None:
            await self._app(scope, receive, send)
            return
        path = str(scope.get("path", ""))
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope.get("headers", ())
        }
        method, scheme = str(scope["method"]), str(scope.get("scheme", "http"))
        with (
            recorder.remote_context(headers),
            recorder.request(method, path, scheme, is_route=path in self._routes) as reply,
        ):

            async def send_recorded(message: Message) -> None:
                if message["type"] == "http.response.start":
                    reply[HTTP_STATUS] = int(message["status"])
                await send(message)

            await self._app(scope, receive, send_recorded)
            if (status := scope.get(STATUS_KEY)) == WENT_AWAY:
                reply[HTTP_STATUS] = status
