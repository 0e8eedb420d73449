"""Identical calls are made once, even when asked at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

import orjson

from ..core.records import Usage
from ..protocols import Call, Reply, Request

VERSION = 1  # of the key


def key_of(identity: str, request: Request) -> str:
    """The sha256 of all that decides the answer: model, endpoint, messages, parameters, schema, which look."""
    request = request.original or request
    asked = (
        VERSION,
        identity,
        request.messages,
        request.temperature,
        request.max_tokens,
        request.seed,
        request.schema,
        request.format,
        request.look,
        *sorted(request.unsupported),
        *([request.tools, request.tool_choice] if request.tools else ()),
    )
    try:
        text = orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        text = orjson.dumps(_storable(asked), option=orjson.OPT_SORT_KEYS)
    if request.nonce:
        text = text.replace(request.nonce.encode(), b"")
    return sha256(text).hexdigest()


def _storable(value: object) -> object:
    """The same in types that orjson takes; lone surrogates become escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode() if not value.isascii() else value
    if isinstance(value, dict):
        return {str(k): _storable(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_storable(v) for v in value]
    return value


def cache(call: Call, memory: MutableMapping[str, Reply], identity: str) -> Call:
    """Answer from `memory` what was answered before; a hit consumes nothing and counts as one cached call.

    Failed and truncated answers are not kept.
    """
    turns: dict[str, Turn] = {}

    async def cached(request: Request) -> Reply:
        key = key_of(identity, request)
        turn = turns.setdefault(key, Turn())
        turn.waiting += 1
        try:
            async with turn.lock:
                if (known := memory.get(key)) is not None:
                    return _again(known)
                reply = await call(request)
                if not reply.truncated:
                    memory[key] = reply
                return reply
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                turns.pop(key, None)

    return cached


@dataclass(slots=True)
class Turn:
    """Those who ask the same: one after the other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


def _again(known: Reply) -> Reply:
    """A known answer: it consumed nothing now."""
    made = known.usage
    return replace(known, usage=Usage(cached_calls=1, answer_tokens=made.answer_tokens, answer_cost=made.answer_cost))
