"""What a stream that is passed on says at its beginning and its end: its usage, and whether it is
whole.

Events are not parsed as they pass: the last one is recognised by how its line begins, and only the
first and the last bytes are kept, to be read when the stream has ended. `UsageRemover` takes the
usage out of the stream of a client that did not ask for it.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any, TypeAlias

import orjson

from ..base.jsontext import loads
from ..models.chat_replies import read_count
from .neutral import ProtocolName

# at most as many of the first bytes are kept, and at least as many of the last
KEPT_BYTES = 16 * 1024
MAX_USAGE_BYTES = 4096
# text in an answer has a backslash before its quotes
_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')
_ERROR = rb'event:\s*error\b|data:\s*\{\s*"error"\s*:\s*[{"]|data:\s*\{\s*"type"\s*:\s*"error"'


def _event_of_type(types: bytes) -> bytes:
    return rb'event:\s*(?:%b)\b|data:\s*\{\s*"type"\s*:\s*"(?:%b)"' % (types, types)


_LAST_EVENT = {
    wire: re.compile(rb"[\r\n](?:%b|(?P<error>%b))" % (start, _ERROR))
    for wire, start in {
        "chat": rb"data:\s*\[DONE\]",
        "responses": _event_of_type(rb"response\.(?:completed|incomplete|failed)"),
        "messages": _event_of_type(rb"message_stop"),
    }.items()
}
"""How the last event of a stream begins: the end of the answer, or an error."""
_ANSWER = {
    "chat": re.compile(rb'"choices"\s*:\s*\[\s*\{'),
    "messages": re.compile(rb"message_start\b"),
    "responses": re.compile(rb""),
}
"""What a stream has if it is an answer, even an empty one; the last event of a stream of responses
has the whole answer.
"""
# a stream of chat completions may end after it without [DONE]
_FINISH = re.compile(rb'"finish_reason"\s*:\s*(?:"(?!null"|")|\{)')
_NAMES = tuple(
    (name, re.compile(rb'"%b"\s*:\s*"([^"\\]{1,256})"' % name.encode())) for name in ("id", "model")
)
_REASON = re.compile(rb'"(?:finish_reason|stop_reason|status)"\s*:\s*"([^"\\]{1,64})"')
_BLANK_LINE = re.compile(rb"\n\r?\n|\r\r")
_OVERLAP = 64  # bytes that are searched again with the next part: a match may be in two parts

SHORT_CACHE_SURCHARGE, LONG_CACHE_SURCHARGE = 0.25, 1.0
"""What Anthropic asks for a token that it writes into its cache, for five minutes or an hour, more
than for another one.
"""

TokenCounts: TypeAlias = tuple[int | None, int | None]


class StreamEnds:
    """The first and the last bytes of a stream of a protocol."""

    def __init__(self, wire: ProtocolName) -> None:
        self._wire = wire
        self._first = b""
        self._last: deque[bytes] = deque()
        self._last_size = 0
        self._unsearched = b"\n"
        self._has_last_event = False
        self.has_error = False
        """Whether the last event is an error."""
        self.is_finished = False
        """Whether the last event has arrived as a whole. A server that keeps the connection open
        sends nothing more.
        """

    def add(self, part: bytes) -> None:
        """Note the next bytes."""
        if len(self._first) < KEPT_BYTES:
            self._first += part[: KEPT_BYTES - len(self._first)]
        if not self.is_finished:
            self._search_end(self._unsearched + part)
        self._last.append(part)
        self._last_size += len(part)
        while self._last_size - len(self._last[0]) >= KEPT_BYTES:
            self._last_size -= len(self._last.popleft())

    def _search_end(self, data: bytes) -> None:
        """Look for the start of the last event, and then for the blank line that ends it."""
        if not self._has_last_event and (match := _LAST_EVENT[self._wire].search(data)):
            self._has_last_event, self.has_error = True, match["error"] is not None
            data = data[match.end() :]
        if self._has_last_event:
            self.is_finished = bool(_BLANK_LINE.search(data))
        self._unsearched = data[-_OVERLAP:]

    @property
    def is_whole(self) -> bool:
        """Whether the stream ended as its protocol ends one, or with an error event: its reader
        notices either.
        """
        return self._has_last_event or (
            self._wire == "chat" and bool(_FINISH.search(b"".join(self._last)))
        )

    @property
    def has_answer(self) -> bool:
        """Whether there is an answer in the stream, and not only its end."""
        pattern = _ANSWER[self._wire]
        return bool(pattern.search(self._first) or pattern.search(b"".join(self._last)))

    def summary(self) -> dict[str, Any]:
        """Return what the stream says besides its answer, as a whole reply says it: its ID and
        model, why it ended, and its usage.
        """
        names = {name: match for name, pattern in _NAMES if (match := pattern.search(self._first))}
        texts = {name: match[1].decode(errors="replace") for name, match in names.items()}
        reasons = _REASON.findall(b"".join(self._last))
        reason = reasons[-1].decode(errors="replace") if reasons else None
        return {**texts, "stop_reason": reason, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Return the usage object of the stream.

        Anthropic's protocol may state those of the input in its first event only.
        """
        usage: dict[str, Any] = {}
        for fields in (
            *_usage_objects(self._first)[:1],
            *_usage_objects(b"".join(self._last))[-1:],
        ):
            usage |= {name: value for name, value in fields.items() if value is not None}
        return usage


def _usage_objects(data: bytes) -> list[dict[str, Any]]:
    """Return the whole objects under the key "usage" in a part of a stream."""
    objects = (_object_at(data, match.end()) for match in _USAGE.finditer(data))
    return [usage for usage in objects if usage is not None]


def _object_at(data: bytes, start: int) -> Any:
    """Return the JSON object that begins at `start`; None if it is cut off."""
    end = data.find(b"}", start, start + MAX_USAGE_BYTES) + 1
    while end:
        try:
            return orjson.loads(data[start:end])
        except orjson.JSONDecodeError:
            end = data.find(b"}", end, start + MAX_USAGE_BYTES) + 1
    return None


def token_counts(usage: Any) -> TokenCounts:
    """Return the input and the output tokens in a usage object of any protocol; None for what it
    does not say.
    """
    fields = usage if isinstance(usage, dict) else {}
    output = read_count(fields.get("completion_tokens", fields.get("output_tokens")))
    if "prompt_tokens" in fields:
        return read_count(fields["prompt_tokens"]), output
    read = read_count(fields.get("input_tokens"))
    cache = sum(
        read_count(fields.get(f"cache_{kind}_input_tokens")) or 0 for kind in ("creation", "read")
    )
    return (None if read is None else read + cache), output


def cache_surcharge(usage: Any) -> float:
    """Return how many input tokens more than it has a prompt costs, because parts of it were
    written into a cache.
    """
    fields = usage if isinstance(usage, dict) else {}
    lives = fields.get("cache_creation")
    long = (
        (read_count(lives.get("ephemeral_1h_input_tokens")) or 0) if isinstance(lives, dict) else 0
    )
    written = max(read_count(fields.get("cache_creation_input_tokens")) or 0, long)
    return SHORT_CACHE_SURCHARGE * (written - long) + LONG_CACHE_SURCHARGE * long


class UsageRemover:
    """Removes the chunk with the usage, which has no choices, from a stream of a client that did
    not ask for it.
    """

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, part: bytes) -> bytes:
        """Add bytes, and return the whole events so far."""
        data = self._pending + part
        end = max(data.rfind(b"\n\n") + 2, data.rfind(b"\r\n\r\n") + 4)
        if end < 4:
            end = 0
        self._pending = data[end:]
        return _without_usage(data[:end])

    def finish(self) -> bytes:
        """Return what no blank line ended."""
        return _without_usage(self._pending)


def _without_usage(events: bytes) -> bytes:
    if b'"choices":[]' not in events and b'"choices": []' not in events:
        return events
    kept = (line for line in events.splitlines(keepends=True) if not _is_usage_chunk(line))
    return b"".join(kept)


def _is_usage_chunk(line: bytes) -> bool:
    """Whether a line of a stream is a chunk with the usage and no choices."""
    if not line.startswith(b"data:"):
        return False
    try:
        chunk = loads(line[5:].strip())
    except ValueError:
        return False
    return isinstance(chunk, dict) and chunk.get("choices") == [] and bool(chunk.get("usage"))
