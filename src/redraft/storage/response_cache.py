"""The response cache in a journal: replies by the key of their request, shared by all its runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from dataclasses import fields

from ..core.serialize import object_from_json, pack, unpack
from ..errors import StoreError
from ..protocols import Reply
from ..usage import Usage
from .database import Database
from .schema import damaged_error, journal_label

KEYS_PER_READ = 1000
REPLY_FIELDS = tuple(f.name for f in fields(Reply) if f.compare and f.name not in {"usage", "tool_calls"})
"""The stored fields of a reply beside its usage and its tool calls: those that make two replies equal."""
USAGE_FIELDS = tuple(f.name for f in fields(Usage))


class ResponseCache(MutableMapping[str, Reply]):
    """Replies by key (hex). A reply can be read at once, committed or not."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __getitem__(self, key: str) -> Reply:
        text = self._text(key)
        if text is None:
            raise KeyError(key)
        try:
            reply: Reply = unpack(Reply, object_from_json(text))
        except StoreError as error:
            raise StoreError(f"{journal_label(self._database.path)}, call {key}: {error}") from error
        return reply

    def __setitem__(self, key: str, reply: Reply) -> None:
        text = _encode_reply(reply)
        self._database.write(key, ("INSERT OR REPLACE INTO calls (key, reply) VALUES (?, ?)", (key, text)), value=text)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._database.write(key, ("DELETE FROM calls WHERE key = ?", (key,)))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._text(key) is not None

    def __iter__(self) -> Iterator[str]:
        self._database.flush()
        last = 0
        while found := self._database.read("SELECT call, key FROM calls WHERE call > ? ORDER BY call LIMIT ?", last, KEYS_PER_READ):
            if found[-1][0] <= last:
                raise damaged_error(self._database.path, "its calls are out of order")
            yield from (key for _, key in found)
            last = found[-1][0]

    def __len__(self) -> int:
        self._database.flush()
        return int(self._database.read("SELECT count(*) FROM calls")[0][0])

    def clear(self) -> None:
        """Delete all replies. Blocks."""
        self._database.flush()
        self._database.write("calls", ("DELETE FROM calls", ()))
        self._database.flush()

    def _text(self, key: str) -> str | None:
        if (write := self._database.pending_write(key)) is not None:
            return str(write.value) if write.value is not None else None
        found = self._database.read("SELECT reply FROM calls WHERE key = ?", key)
        if found and not isinstance(found[0][0], str):
            raise damaged_error(self._database.path, f"call {key}: its reply is not text")
        return found[0][0] if found else None


def _encode_reply(reply: Reply) -> str:
    """Encode like `pack`, in a third of the time: every call waits for this."""
    data = {name: getattr(reply, name) for name in REPLY_FIELDS}
    if reply.tool_calls:
        data["tool_calls"] = [pack(call) for call in reply.tool_calls]
    return json.dumps({**data, "usage": {name: getattr(reply.usage, name) for name in USAGE_FIELDS}})
