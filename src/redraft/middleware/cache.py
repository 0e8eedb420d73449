"""Answer identical calls from a store; identical calls at the same time are made once."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

import orjson

from ..protocols import Call, Reply, Request
from ..usage import Usage

KEY_VERSION = 1  # part of every key: raise it when the key's parts change


def cache_key(identity: str, request: Request) -> str:
    """Return the sha256 of all that decides the answer: model, endpoint, messages, parameters, schema, sample index."""
    request = request.original or request
    parts = (
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
        text = orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        text = orjson.dumps(_to_jsonable(parts), option=orjson.OPT_SORT_KEYS)
    if request.nonce:
        text = text.replace(request.nonce.encode(), b"")
    return sha256(text).hexdigest()


def _to_jsonable(value: object) -> object:
    """Convert a value to types that orjson accepts; lone surrogates become escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode() if not value.isascii() else value
    if isinstance(value, dict):
        return {str(k): _to_jsonable(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_to_jsonable(v) for v in value]
    return value


def cache(call: Call, store: MutableMapping[str, Reply], identity: str) -> Call:
    """Answer from `store` what was answered before; a hit has no usage and counts as one cached call.

    Failed and truncated answers are not stored.
    """
    locks: dict[str, KeyLock] = {}

    async def call_cached(request: Request) -> Reply:
        key = cache_key(identity, request)
        key_lock = locks.setdefault(key, KeyLock())
        key_lock.waiters += 1
        try:
            async with key_lock.lock:
                if (known := store.get(key)) is not None:
                    return _cached_reply(known)
                reply = await call(request)
                if not reply.truncated:
                    store[key] = reply
                return reply
        finally:
            key_lock.waiters -= 1
            if not key_lock.waiters:
                locks.pop(key, None)

    return call_cached


@dataclass(slots=True)
class KeyLock:
    """A lock for identical calls, and how many use it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiters: int = 0


def _cached_reply(reply: Reply) -> Reply:
    """Return a stored reply with the usage of a cache hit."""
    original = reply.usage
    return replace(reply, usage=Usage(cached_calls=1, answer_tokens=original.answer_tokens, answer_cost=original.answer_cost))
