"""The call cache in a journal: replies by the key of their call, over all its runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from dataclasses import fields

from ..core.records import Usage
from ..core.serialize import loads, pack, unpack
from ..errors import StoreError
from ..protocols import Reply
from .database import Database
from .schema import damaged, name_of

AT_ONCE = 1000
KEPT = tuple(f.name for f in fields(Reply) if f.compare and f.name not in {"usage", "tool_calls"})
"""What is kept of a reply beside its usage and its tool calls: all that makes two replies equal."""
USAGE = tuple(f.name for f in fields(Usage))


class Calls(MutableMapping[str, Reply]):
    """Replies by key (hex). What is written is read back at once, committed or not."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __getitem__(self, key: str) -> Reply:
        text = self._text(key)
        if text is None:
            raise KeyError(key)
        try:
            reply: Reply = unpack(Reply, loads(text))
        except StoreError as error:
            raise StoreError(f"{name_of(self._database.path)}, call {key}: {error}") from error
        return reply

    def __setitem__(self, key: str, reply: Reply) -> None:
        text = _written(reply)
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
        while found := self._database.read("SELECT call, key FROM calls WHERE call > ? ORDER BY call LIMIT ?", last, AT_ONCE):
            if found[-1][0] <= last:
                raise damaged(self._database.path, "its calls are out of order")
            yield from (key for _, key in found)
            last = found[-1][0]

    def __len__(self) -> int:
        self._database.flush()
        return int(self._database.read("SELECT count(*) FROM calls")[0][0])

    def clear(self) -> None:
        """Forget all calls. Blocks."""
        self._database.flush()
        self._database.write("calls", ("DELETE FROM calls", ()))
        self._database.flush()

    def _text(self, key: str) -> str | None:
        if (write := self._database.pending(key)) is not None:
            return str(write.value) if write.value is not None else None
        found = self._database.read("SELECT reply FROM calls WHERE key = ?", key)
        if found and not isinstance(found[0][0], str):
            raise damaged(self._database.path, f"call {key}: its reply is no text")
        return found[0][0] if found else None


def _written(reply: Reply) -> str:
    """Like `pack`, at a third of its time: this stands in the way of every call."""
    kept = {name: getattr(reply, name) for name in KEPT}
    if reply.tool_calls:
        kept["tool_calls"] = [pack(call) for call in reply.tool_calls]
    return json.dumps({**kept, "usage": {name: getattr(reply.usage, name) for name in USAGE}})
