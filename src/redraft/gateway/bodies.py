"""Reading the JSON of a request's body, so that the event loop is never held for long:
`BodyParser`.

The values of a body are counted before they are built. What is larger than LOOP_BYTES, or may have
too many values by a quick look at its bytes, is read in a process of its own (see `body_worker`):
the library that reads JSON holds Python's lock, so that a thread would hold up the loop as well.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from ..base.descriptors import is_shortage
from ..base.log import log
from ..workers.pool import ENVIRONMENT
from . import body_worker
from .body_worker import may_have_too_many_values
from .exchange import SHORTAGE_RETRY_AFTER, GatewayError, invalid_request

LOOP_BYTES = 8 * 2**20  # the largest body that the event loop reads itself
WRITE_BYTES = 2**20  # of a body, at once
PROCESSES = 2  # that read bodies at a time
LIMIT_SIGNALS = frozenset(
    -getattr(signal, name) for name in ("SIGKILL", "SIGXCPU") if hasattr(signal, name)
)
"""How a process ends that takes too much memory or time."""
gateway_log = log.getChild("gateway")


class BodyParser:
    """Reads the bodies of a gateway."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(PROCESSES)

    async def parse(self, raw: bytes) -> dict[str, Any]:
        """Return the object that a body holds. Raises GatewayError: 400, or 503 and 500 if no
        process can be started.
        """
        if len(raw) <= LOOP_BYTES and not may_have_too_many_values(raw):
            return _parse(raw)
        async with self._turn:
            return _checked_object(await _read_in_process(raw))


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        return _checked_object(orjson.loads(raw))
    except ValueError as error:
        raise _json_error(str(error)) from None


def _checked_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid_request("body", "the body must be a JSON object")
    return value


def _json_error(problem: str) -> GatewayError:
    return GatewayError(
        400, "invalid_json", f"the body is not valid JSON: {problem}", should_retry=False
    )


async def _read_in_process(raw: bytes) -> Any:
    """Return the value of a large body. Raises GatewayError."""
    process = await _start_process()
    assert process.stdin
    assert process.stdout
    try:
        for start in range(0, len(raw), WRITE_BYTES):
            process.stdin.write(raw[start : start + WRITE_BYTES])
            await process.stdin.drain()
        process.stdin.close()
        return await _value_of_frames(process.stdout)
    except (ConnectionError, asyncio.IncompleteReadError):
        raise _error_of_end(await process.wait()) from None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _start_process() -> asyncio.subprocess.Process:
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", str(Path(body_worker.__file__))),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**environment, "PYTHONPATH": str(Path(orjson.__file__).parents[1])},
        )
    except OSError as error:
        # EAGAIN: there are too many processes
        if not (is_shortage(error) or isinstance(error, BlockingIOError)):
            raise
        message = "the gateway is busy: no process can be started to read a large body"
        raise GatewayError(503, "overloaded", message, retry_after=SHORTAGE_RETRY_AFTER) from error


def _error_of_end(status: int) -> GatewayError:
    """Return the error for a process that ended with this status before it had written the
    value.
    """
    if status in LIMIT_SIGNALS:
        return invalid_request("body", "the body takes too much time or memory to read")
    gateway_log.error("the process that reads a large body ended with status %d", status)
    return GatewayError(
        500, "internal_error", "the gateway failed; its log says why", should_retry=False
    )


async def _value_of_frames(frames: asyncio.StreamReader) -> Any:
    """Return the value that frames describe. Raises IncompleteReadError if they break off."""
    outer: list[Any] = []
    stack: list[Any] = [outer]
    keys = [""]
    while not outer or len(stack) > 1:
        kind, size = await frames.readexactly(1), int.from_bytes(await frames.readexactly(4))
        content = await frames.readexactly(size)
        match kind:
            case b"?":
                raise _json_error(content.decode(errors="replace"))
            case b"!":
                raise invalid_request("body", content.decode())
            case b"k":
                keys[-1] = orjson.loads(content)
                continue
            case b"{" | b"[" | b"s":
                stack.append({} if kind == b"{" else [] if kind == b"[" else TextParts())
                keys.append("")
                continue
            case b".":
                value: Any = stack.pop()
                keys.pop()
                value = "".join(value) if isinstance(value, TextParts) else value
            case _:
                value = orjson.loads(content)
        if isinstance(stack[-1], dict):
            stack[-1][keys[-1]] = value
        else:
            stack[-1].append(value)
    return outer[0]


class TextParts(list[str]):
    """The parts of a text that is arriving."""
