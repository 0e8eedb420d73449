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
        text = b"".join(text.split(request.nonce.encode()))  # in half the time of `replace`
    return sha256(text).hexdigest()


def cache(call: Call, store: MutableMapping[str, Reply], identity: str) -> Call:
    """Return a stored reply if there is one; it has no usage and counts as one cached call.

    Failed and truncated answers are not stored.
    """
    in_flight: dict[
        str, asyncio.Event | None
    ] = {}  # set when the call ends; None: no other one waits for it

    async def call_cached(request: Request) -> Reply:
        key = cache_key(identity, request)
        while key in in_flight:
            in_flight[key] = same_call_ended = in_flight[key] or asyncio.Event()
            await same_call_ended.wait()
        if (stored := store.get(key)) is not None:
            usage = stored.usage
            cached = Usage(
                cached_calls=1, answer_tokens=usage.answer_tokens, answer_cost=usage.answer_cost
            )
            return stored.with_usage(cached)
        in_flight[key] = None
        try:
            reply = await call(request)
            if not reply.truncated:
                store[key] = reply
            return reply
        finally:
            if ended := in_flight.pop(key):
                ended.set()

    return call_cached
