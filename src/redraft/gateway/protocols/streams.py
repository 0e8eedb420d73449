"""Streams of server-sent events, and what all protocols share in reading replies of models.

Writers are an `EventWriter`, and use `event` and `comment`. Readers are an `EventReader`, which
bounds and decodes the events, and describe what is no answer with `bad_reply`. A `PartOrder` puts
parts that a model mixes one after the other.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...base.jsontext import dumps, loads
from ...errors import BadResponseError, ModelError
from ...models.chat_replies import json_type_name
from ...models.http_client import MAX_BODY_BYTES
from ...models.server_errors import ErrorBody, stated_error
from ...models.sse import SSEParser
from ..exchange import GatewayError, Progress
from ..neutral import Event, FinishReason, Json, Request

MAX_PARTS = 4096  # of one reply
MAX_ID_CHARS = 256  # of a reply, and of the name of its model


# ---- written


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """Return a server-sent event. JSON has no line breaks, so its data cannot end the event."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + dumps(data) + b"\n\n"


def comment(text: str) -> bytes:
    """Return a comment of a stream, which clients ignore, in one line."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return f": {line}\n\n".encode(errors="replace")


class EventWriter(ABC):
    """Writes one stream of server-sent events, which began at a Unix time in seconds. Each method
    returns whole events, b"" for none.
    """

    def __init__(self, request: Request, created: int) -> None:
        self._request, self._created = request, created

    @abstractmethod
    def write(self, event: Event) -> bytes:
        """Return what an event of the neutral form is in the protocol."""

    @abstractmethod
    def fail(self, error: GatewayError) -> bytes:
        """Return the error after which the stream ends."""

    def keep_alive(self) -> bytes:
        """Return what clients ignore: a comment, or the protocol's own ping."""
        return comment("keep-alive")

    def progress(self, progress: Progress) -> bytes:
        """Return a step of a refinement: a comment, or a typed event if the request asks for
        `events`.
        """
        if self._request.options.events:
            return self._progress_event(
                {
                    "kind": progress.kind,
                    "iteration": progress.iteration,
                    "score": progress.score,
                    "reason": progress.reason or None,
                }
            )
        score = "" if progress.score is None else f" score={progress.score:.4f}"
        return comment(f"redraft {progress.kind} iteration={progress.iteration}{score}")

    @abstractmethod
    def _progress_event(self, step: Json) -> bytes:
        """Return a step of a refinement in the protocol's own form."""


# ---- read


def bad_reply(message: str) -> GatewayError:
    """Return the error for a reply that is no answer."""
    return GatewayError(
        502, "upstream_error", f"the model {message}", cause=BadResponseError.__name__
    )


def call_id(id: str, reply_id: str, n: int) -> str:
    """Return the ID of call `n` of a reply; one without an ID gets one, because its result refers
    to it.
    """
    known = reply_id.removeprefix("chatcmpl-")[:MAX_ID_CHARS]
    return id or f"call_{re.sub('[^A-Za-z0-9_-]', '_', known)}_{n}"


def neutral_finish(finish: str, *, is_refused: bool, has_calls: bool) -> FinishReason:
    """Return the reason to finish. Some servers write "stop" after calls of tools."""
    if is_refused:
        return "refusal"
    match finish:
        case "length" | "content_filter":
            return finish
    return "tool_calls" if has_calls and finish in {"tool_calls", "stop"} else "stop"


@contextmanager
def errors_of_model() -> Iterator[None]:
    """Raise ModelError of the block as GatewayError 502."""
    try:
        yield
    except ModelError as error:
        raise bad_reply(str(error)) from None


class PartOrder:
    """Puts the parts of a stream one after the other. Of those that a model mixes, the first goes
    on as it arrives, and the others wait until it ends. Parts have the numbers 0, 1, 2, ... in the
    order in which they begin.
    """

    def __init__(self) -> None:
        self._first = 0  # that has not ended
        self._ended: set[int] = set()
        self._waiting: defaultdict[int, list[Event]] = defaultdict(list)
        self._size = 0

    def add(self, part: int, events: Iterable[Event]) -> Iterator[Event]:
        """Yield events of a part if it is the first. Raises GatewayError 502 if too many wait."""
        for event in events:
            if part == self._first:
                yield event
                continue
            self._waiting[part].append(event)
            self._size += len(repr(event))
            if self._size > MAX_BODY_BYTES:
                raise bad_reply(f"mixed more than {MAX_BODY_BYTES:,} bytes of its parts")

    def end(self, part: int) -> Iterator[Event]:
        """Yield what has waited for the end of a part."""
        self._ended.add(part)
        while self._first in self._ended:
            self._first += 1
            yield from self._waiting.pop(self._first, ())


class EventReader(ABC):
    """Reads the events of a stream; `_read` says what each is in the neutral form."""

    def __init__(self) -> None:
        self._parser = SSEParser()
        self._is_done = False

    def feed(self, part: bytes) -> Iterator[Event]:
        """Yield the events in the next bytes. Raises GatewayError 502 for what is no such stream,
        after the events before it.
        """
        with errors_of_model():
            for name, data in self._parser.feed(part):
                yield from self._read_data(name, data)

    def _read_data(self, name: str, data: bytes) -> Iterator[Event]:
        self._is_done = self._is_done or data.strip() == b"[DONE]"
        if self._is_done:
            return
        try:
            content = loads(data)
        except ValueError:
            raise bad_reply("sent an event that is no JSON") from None
        error = stated_error(content) or (content if name == "error" else None)
        if error:
            raise bad_reply(f"broke off with an error: {ErrorBody({'error': error}).text}")
        if not isinstance(content, dict):
            raise bad_reply(f"sent {json_type_name(content)} as an event")
        yield from self._read(content)

    @abstractmethod
    def _read(self, data: Mapping[str, Any]) -> Iterator[Event]:
        """Yield what an event says."""

    def finish(self) -> Iterator[Event]:
        """Yield what is left, with `End` as the last. Raises GatewayError 502 if the stream broke
        off.
        """
        yield from self.feed(b"\n\n")  # ends an event that no blank line ended
        with errors_of_model():
            yield from self._end()

    @abstractmethod
    def _end(self) -> Iterator[Event]:
        """Yield what follows the last event."""
