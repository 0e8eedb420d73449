"""The body of a request, which says when it leaves: when the connection stands and the first byte is written."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

from aiohttp.payload import BytesIOPayload, BytesPayload


class _SendNotifier:
    """Calls `leaves` before it is written. (`write` is what aiohttp before 3.12 calls.)"""

    on_send: Callable[[], object]

    async def write(self, writer: Any) -> None:
        self.on_send()
        await super().write(writer)  # type: ignore[misc]

    async def write_with_length(self, writer: Any, content_length: int | None) -> None:
        self.on_send()
        await super().write_with_length(writer, content_length)  # type: ignore[misc]


class _BytesPayload(_SendNotifier, BytesPayload):
    """A body in memory."""


class _FilePayload(_SendNotifier, BytesIOPayload):
    """A large one, which is written in parts."""


def make_payload(body: bytes | BytesIO, on_send: Callable[[], object]) -> BytesPayload | BytesIOPayload:
    """The body as a payload that calls `leaves` when it leaves."""
    payload = _FilePayload(body) if isinstance(body, BytesIO) else _BytesPayload(body)
    payload.on_send = on_send
    return payload
