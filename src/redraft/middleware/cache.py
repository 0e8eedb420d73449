"""Identical calls are made once, even when asked at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

import orjson

from ..core.records import Usage
from ..protocols import Call, Reply, Request

KEY_VERSION = 1  # of the key


def cache_key(identity: str, request: Request) -> str:
    """The sha256 of all that decides the answer: model, endpoint, messages, parameters, schema, which look."""
    request = request.original or request
    asked = (
        KEY_VERSION,
        identity,
        request.messages,
        request.temperature,
        request.max_tokens,
        request.seed,
        request.schema,
        request.format,
        request.sample_index,
        *sorted(request.unsupported_parameters),
        *([request.tools, request.tool_choice] if request.tools else ()),
    )
    try:
        text = orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        text = orjson.dumps(_to_jsonable(asked), option=orjson.OPT_SORT_KEYS)
    if request.nonce:
        text = text.replace(request.nonce.encode(), b"")
    return sha256(text).hexdigest()


def _to_jsonable(value: object) -> object:
    """The same in types that orjson takes; lone surrogates become escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode() if not value.isascii() else value
    if isinstance(value, dict):
        return {str(k): _to_jsonable(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_to_jsonable(v) for v in value]
    return value


def cache(call: Call, store: MutableMapping[str, Reply], identity: str) -> Call:
    """Answer from `memory` what was answered before; a hit consumes nothing and counts as one cached call.

    Failed and truncated answers are not kept.
    """
    turns: dict[str, KeyLock] = {}

    async def call_cached(request: Request) -> Reply:
        key = cache_key(identity, request)
        turn = turns.setdefault(key, KeyLock())
        turn.waiters += 1
        try:
            async with turn.lock:
                if (known := store.get(key)) is not None:
                    return _cached_reply(known)
                reply = await call(request)
                if not reply.truncated:
                    store[key] = reply
                return reply
        finally:
            turn.waiters -= 1
            if not turn.waiters:
                turns.pop(key, None)

    return call_cached


@dataclass(slots=True)
class KeyLock:
    """Those who ask the same: one after the other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiters: int = 0


def _cached_reply(reply: Reply) -> Reply:
    """A known answer: it consumed nothing now."""
    made = reply.usage
    return replace(reply, usage=Usage(cached_calls=1, answer_tokens=made.answer_tokens, answer_cost=made.answer_cost))
