"""Asking a judge for JSON, and once more with the exact complaint when its answer cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ...errors import BadResponseError
from ...protocols import JudgeClient, Reply, Request
from .json_reader import UnreadableOutput
from .prompt import without_control_tokens

T = TypeVar("T")


async def ask_for_json(ask: JudgeClient, request: Request, parse: Callable[[Reply], T]) -> T:
    """What `read` makes of the reply. Raises BadResponseError when it is unreadable twice.

    A reply that was cut off is never read, however whole it looks: it is asked for again with twice the tokens.
    """
    reply = await ask.complete(request)
    try:
        return _parse_complete(reply, parse)
    except UnreadableOutput as complaint:
        reply = await ask.complete(_re_ask_request(request, reply, str(complaint)))
    try:
        return _parse_complete(reply, parse)
    except UnreadableOutput as complaint:
        raise BadResponseError(f"the judge's answer cannot be read: {complaint}") from complaint


def _parse_complete(reply: Reply, parse: Callable[[Reply], T]) -> T:
    if reply.truncated:
        raise UnreadableOutput("the answer was cut off at the token limit")
    return parse(reply)


def _re_ask_request(request: Request, reply: Reply, complaint: str) -> Request:
    if reply.truncated:
        return replace(
            request, max_tokens=request.max_tokens and 2 * request.max_tokens, sample_index=request.sample_index + RE_ASK_OFFSET
        )
    said = {"role": "assistant", "content": without_control_tokens(reply.text[:8000]) or "(nothing)"}
    asked = {"role": "user", "content": f"That cannot be read: {without_control_tokens(complaint)}. {RE_ASK_PROMPT}"}
    return replace(request, messages=(*request.messages, said, asked), sample_index=request.sample_index + RE_ASK_OFFSET)


RE_ASK_PROMPT = "Answer again, in the form asked for."
RE_ASK_OFFSET = 1_000_000  # added to `look`, so that a cache keeps a re-ask apart from further looks
