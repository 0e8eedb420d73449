"""The messages and tools of a request in the forms that endpoints accept.

The functions on messages are pure; `adapt` decides which of them an endpoint needs. The two
wrappers at the end decide which requests offer tools, and remove tool calls from answers to the
others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, TypeAlias

from ..base.checks import is_blank
from ..base.finish_reasons import checked_finish
from ..errors import BadResponseError, ContentFilterError
from ..loop.task import Message
from ..protocols import Call, Reply, Request

Messages: TypeAlias = tuple[Message, ...]

IMAGES_OMITTED_NOTE = "The images cannot be shown to you."
OPENING_USER_TEXT = "(The conversation begins with your message.)"
SYSTEM_ROLES = frozenset({"system", "developer"})
TOOL_ROLES = frozenset({"tool", "function"})


def merge_adjacent(messages: Messages) -> Messages:
    """Join neighbouring messages of one role: texts by a blank line, lists of parts one after the
    other.

    Tool results, and messages that call tools, stay as they are, because each belongs to one call.
    """
    runs: list[list[Message]] = []
    for message in messages:
        if runs and _can_merge(runs[-1][-1], message):
            runs[-1].append(message)
        else:
            runs.append([message])
    if len(runs) == len(messages):
        return messages
    return tuple(run[0] if len(run) == 1 else _merge(run) for run in runs)


def _can_merge(before: Message, after: Message) -> bool:
    if before["role"] != after["role"] or before["role"] in TOOL_ROLES:
        return False
    return not any(
        message.get(field)
        for message in (before, after)
        for field in ("tool_calls", "function_call")
    )


def _merge(messages: Sequence[Message]) -> Message:
    """Return one message for several. From the first on whose author has another name, the names go
    into the text.
    """
    name = messages[0].get("name")
    of_one = list(takewhile(lambda message: message.get("name") == name, messages))
    if len(of_one) < len(messages):
        messages = [_with_name_in_text(each) for each in (_join(of_one), *messages[len(of_one) :])]
    return _join(messages)


def _join(messages: Sequence[Message]) -> Message:
    """Return one message for several. It has each field of the first that has it."""
    contents = [message.get("content") or "" for message in messages]
    texts = list(takewhile(lambda content: isinstance(content, str), contents))
    content: Any = "\n\n".join(filter(None, texts))
    if len(texts) < len(contents):
        content = [part for each in (content, *contents[len(texts) :]) for part in _parts(each)]
    return {field: value for message in reversed(messages) for field, value in message.items()} | {
        "content": content
    }


def _with_name_in_text(message: Message) -> Message:
    unnamed = {field: value for field, value in message.items() if field != "name"}
    if name := message.get("name"):
        content = message.get("content") or ""
        prefix = f"{name}:"
        unnamed["content"] = (
            f"{prefix} {content}"
            if isinstance(content, str)
            else [{"type": "text", "text": prefix}, *content]
        )
    return unnamed


def _parts(content: Any) -> list[Any]:
    """Return a message's content as a list of parts."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content) if isinstance(content, list | tuple) else []


def fold_system(messages: Messages) -> Messages:
    """Move system text into the user message after it."""
    return merge_adjacent(
        tuple(
            {**message, "role": "user"} if message["role"] in SYSTEM_ROLES else message
            for message in messages
        )
    )


def fold_later_system(messages: Messages) -> Messages:
    """Like `fold_system`, but leave system messages at the beginning."""
    start = next(
        (n for n, message in enumerate(messages) if message["role"] not in SYSTEM_ROLES),
        len(messages),
    )
    return messages[:start] + fold_system(messages[start:])


def start_with_user(messages: Messages) -> Messages:
    """Put a user message before a conversation that an assistant begins: the system text, if there
    is any.
    """
    first_role = next(
        (message["role"] for message in messages if message["role"] not in SYSTEM_ROLES), "user"
    )
    if first_role == "user":
        return messages
    if messages[0]["role"] in SYSTEM_ROLES:
        return fold_system(messages)
    return ({"role": "user", "content": OPENING_USER_TEXT}, *messages)


def has_images(messages: Messages) -> bool:
    """Whether a message has an image part."""
    return any(
        _is_image(part)
        for message in messages
        if not isinstance(message["content"], str)
        for part in _parts(message["content"])
    )


def without_images(messages: Messages) -> Messages:
    """Leave image parts out; a message that had some says that they cannot be shown."""

    def without(message: Message) -> Message:
        parts = _parts(message["content"])
        if not any(map(_is_image, parts)):
            return message
        texts = [
            str(part["text"]) for part in parts if isinstance(part, Mapping) and "text" in part
        ]
        return {**message, "content": "\n\n".join([*texts, IMAGES_OMITTED_NOTE])}

    return tuple(map(without, messages))


def _is_image(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image_url"


# ---- tools


def has_tools(request: Request) -> bool:
    """Whether a request offers tools, or its conversation has tool calls or their results."""
    return bool(request.tools) or any(
        message["role"] in TOOL_ROLES or message.get("tool_calls") or message.get("function_call")
        for message in request.messages
    )


def offer_own_tools(
    call: Call, tools: tuple[Mapping[str, Any], ...], choice: str | Mapping[str, Any] | None
) -> Call:
    """Add a model's own tools to requests that write a text, unless the task has tools. Judges are
    offered none.
    """

    async def call_with_tools(request: Request) -> Reply:
        if request.is_generation and not request.tools:
            request = replace(request, tools=tools, tool_choice=choice)
        return await call(request)

    return call_with_tools if tools else call


WHOLE_OR_CUT = (None, "stop", "length", "tool_calls")


def checked_reply(endpoint: str, request: Request, reply: Reply, *, may_offer_tools: bool) -> Reply:
    """Return a reply without tool calls if the request offers no tools, and with OpenAI's reason to
    finish.

    `may_offer_tools`: the model may offer tools of its own to requests that write, as a `Model` of
    the user's may. Raises BadResponseError if nothing is left of the answer, or if it may not be
    whole, and ContentFilterError if it was filtered.
    """
    if reply.finish_reason not in WHOLE_OR_CUT:
        reply = replace(reply, finish_reason=checked_finish(reply.finish_reason, reply.usage))
        if reply.finish_reason == "content_filter":
            raise ContentFilterError(
                f"{endpoint}: the answer was withheld by a content filter", usage=reply.usage
            )
    if request.is_generation and not reply.tool_calls and is_blank(reply.text):
        raise BadResponseError(
            f"{endpoint} returned an empty answer", retryable=True, usage=reply.usage
        ).without_text()
    may_call = request.tools or (may_offer_tools and request.is_generation)
    return reply if may_call or not reply.tool_calls else _without_tool_calls(endpoint, reply)


def _without_tool_calls(endpoint: str, reply: Reply) -> Reply:
    """Return the text of a reply alone. Raises BadResponseError if there is none."""
    if not is_blank(reply.text):
        return replace(reply, tool_calls=())
    names = ", ".join(dict.fromkeys(tool_call.name[:60] for tool_call in reply.tool_calls[:5]))
    raise BadResponseError(
        f"{endpoint} called a tool instead of answering: {names}", retryable=True, usage=reply.usage
    )
