"""A client of the openai package (`OpenAI`, `AsyncOpenAI`, `AzureOpenAI`, ...) as a model.

The client sends the request with its own key, address, headers and HTTP client; otherwise it
sends and receives what `openai_chat` does. Its retries are switched off, because middleware
retries. A synchronous client runs in a thread of its own for each call, which ends with the call
or, after a cancellation, with the next part of the response.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from ..base import checks
from ..base.masking import without_cause
from ..base.threads import call_in_daemon_thread
from ..errors import ConfigError
from ..protocols import FORMATS, Reply, Request
from .client_packages import masks_of, model_error
from .endpoint_url import redacted_url
from .http_client import (
    MAX_BODY_BYTES,
    HttpResponse,
    LoopLocal,
    masked_headers,
    too_large_error,
)
from .openai_chat import Chat, ExtraBodyTools

DEFAULT_HTTP_CLIENTS = frozenset({"AsyncHttpxClientWrapper", "_AsyncHttpxClientWrapper"})
"""The classes of HTTP clients that the openai package and LangChain create if the user gives
none.
"""


class ClientModel(ExtraBodyTools):
    """A model behind a client of the openai package.

    An HTTP client that you gave it is used unchanged, so its proxies and redirects are yours.

    Args:
        client: The client, synchronous or asynchronous.
        model: Name of the model.
        extra_body: Parameters to add to the body of every request, as in `Chat`.

    Raises:
        ConfigError: The name of the model is missing, or an argument is invalid.
    """

    formats = FORMATS

    def __init__(
        self, client: Any, model: Any = None, *, extra_body: Mapping[str, Any] | None = None
    ) -> None:
        kind = type(client).__name__
        if model is None:
            raise ConfigError(
                f"a client of the openai package ({kind}) has many models: name one, as in "
                "model=(client, 'gpt-4o-mini') or redraft.connect(client, model='gpt-4o-mini')"
            )
        checks.text("the name of a model", model)
        self._chat = Chat(model, str(client.base_url), extra_body=extra_body)
        self._extra = dict(extra_body or {})
        self.name, self.base_url, self.host = model, self._chat.base_url, self._chat.host
        self._kind = f"{type(client).__module__.partition('.')[0]}.{kind}"
        self._query = dict(
            getattr(client, "default_query", None) or getattr(client, "_custom_query", {})
        )
        self._client = client
        self._is_async = hasattr(client, "__aenter__")
        self._mask, self._reply_mask = masks_of(client)
        self._clients = LoopLocal(lambda: client_without_retries(client), close_if_own)

    def __repr__(self) -> str:
        return f"ClientModel({self._kind}, {self.name!r}, {redacted_url(self.base_url)!r})"

    @property
    def identity(self) -> str:
        """The class of the client, the endpoint, the version of its API, the model and extra
        parameters, without secrets.
        """
        version = str(self._query.get("api-version", ""))
        return f"{self._kind} {version} {self._chat.identity}"

    async def complete(self, request: Request) -> Reply:
        """Send a request and return the reply. Raises ModelError."""
        body = self._chat.request_body(request)
        try:
            status, headers, content = await self._send(body)
            content = self._reply_mask.mask_bytes(content)
            reply = self._chat.parse_response(
                status, masked_headers(headers, self._reply_mask), content
            )
        except Exception as error:  # (the exceptions of any HTTP client)
            if isinstance(error, ConfigError):
                raise
            failure = model_error(error, self._mask)
        else:
            return reply
        failure.args = (self._mask(f"{self.name} at {self.host}: {failure}"),)
        raise without_cause(failure)

    async def _send(self, body: Mapping[str, Any]) -> HttpResponse:
        if not self._is_async:
            stopped = threading.Event()  # (a cancelled call does not wait for its thread)
            try:
                return await call_in_daemon_thread(partial(_send_sync, self._client, body, stopped))
            finally:
                stopped.set()
        client, _ = await self._clients.get()
        parts, size = [], 0
        async with client.chat.completions.with_streaming_response.create(
            **_arguments(body)
        ) as response:
            async for part in response.iter_bytes():
                size += len(part)
                if size > MAX_BODY_BYTES:
                    raise too_large_error()
                parts.append(part)
            return response.status_code, response.headers, b"".join(parts)


def _arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body as the arguments of `create`: what is not required goes unchecked, because
    endpoints take more.
    """
    more = {name: value for name, value in body.items() if name not in {"model", "messages"}}
    return {"model": body["model"], "messages": body["messages"], "extra_body": more}


def _send_sync(client: Any, body: Mapping[str, Any], stopped: threading.Event) -> HttpResponse:
    parts, size = [], 0
    sender = client.with_options(max_retries=0)
    with sender.chat.completions.with_streaming_response.create(**_arguments(body)) as response:
        for part in response.iter_bytes():
            size += len(part)
            if size > MAX_BODY_BYTES or stopped.is_set():
                raise too_large_error()
            parts.append(part)
        return response.status_code, response.headers, b"".join(parts)


def client_without_retries(client: Any) -> tuple[Any, bool]:
    """Return a copy of a client without retries, and whether the copy has an HTTP client of its
    own, to be closed with it.

    An asynchronous client has one unless the user gave it an HTTP client: the connections of an
    HTTP client belong to one event loop, and every `refine_sync` has its own.
    """
    if type(getattr(client, "_client", None)).__name__ not in DEFAULT_HTTP_CLIENTS:
        return client.with_options(max_retries=0), False
    packages = (sys.modules.get(kind.__module__.partition(".")[0]) for kind in type(client).__mro__)
    make = next(
        make for package in packages if (make := getattr(package, "DefaultAsyncHttpxClient", None))
    )
    return client.with_options(max_retries=0, http_client=make()), True


async def close_if_own(client: tuple[Any, bool]) -> None:
    """Close a copy that has an HTTP client of its own."""
    if client[1]:
        await client[0].close()
