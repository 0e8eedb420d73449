"""Answer identical calls from a store; identical concurrent calls are made once."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from hashlib import sha256

import orjson

from ..base.jsontext import escape_surrogates
from ..protocols import Call, Reply, Request
from ..usage import Usage

KEY_VERSION = 1  # part of every key: raise it when the key's parts change


def cache_key(identity: str, request: Request) -> str:
    """Return the SHA-256 of all that decides the answer: model, endpoint, messages, parameters,
    schema, sample index.
    """
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
        *(["top_logprobs", request.top_logprobs] if request.top_logprobs else ()),
        *(["params", request.params] if request.params else ()),
    )
    try:
        text = orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        text = orjson.dumps(escape_surrogates(parts), option=orjson.OPT_SORT_KEYS)
    if request.nonce:
        text = text.replace(request.nonce.encode(), b"")
    return sha256(text).hexdigest()


def cache(call: Call, store: MutableMapping[str, Reply], identity: str) -> Call:
    """Return a stored reply if there is one; it has no usage and counts as one cached call.

    Failed and truncated answers are not stored.
    """
    in_flight: dict[str, asyncio.Event] = {}  # set when the call ends

    async def call_cached(request: Request) -> Reply:
        key = cache_key(identity, request)
        while key in in_flight:
            await in_flight[key].wait()
        if (stored := store.get(key)) is not None:
            usage = stored.usage
            cached = Usage(
                cached_calls=1, answer_tokens=usage.answer_tokens, answer_cost=usage.answer_cost
            )
            return stored.with_usage(cached)
        ended = in_flight[key] = asyncio.Event()
        try:
            reply = await call(request)
            if not reply.truncated:
                store[key] = reply
            return reply
        finally:
            del in_flight[key]
            ended.set()

    return call_cached
