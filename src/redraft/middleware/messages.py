"""Chat messages in the forms that endpoints take: neighbours of one role joined, system text moved, images left out.

Pure functions. Which of them an endpoint needs is decided elsewhere (see `adapt`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from ..core.records import Message

Messages: TypeAlias = tuple[Message, ...]

IMAGES_OMITTED_NOTE = "The images cannot be shown to you."
OPENING_USER_TEXT = "(The conversation begins with your message.)"
SYSTEM_ROLES = frozenset({"system", "developer"})
TOOL_ROLES = frozenset({"tool", "function"})


def merge_adjacent(messages: Messages) -> Messages:
    """Join neighbouring messages of one role: texts by a blank line, lists of parts one after the other.

    Results of tools and messages that call them stay as they are: each belongs to one call.
    """
    last = None
    for message in messages:
        if message["role"] == last:
            break
        last = message["role"]
    else:
        return messages
    joined: list[Message] = []
    for message in messages:
        if joined and _can_merge(joined[-1], message):
            joined[-1] = _merge(joined[-1], message)
        else:
            joined.append(message)
    return tuple(joined)


def _can_merge(before: Message, after: Message) -> bool:
    if before["role"] != after["role"] or before["role"] in TOOL_ROLES:
        return False
    return not any(message.get(field) for message in (before, after) for field in ("tool_calls", "function_call"))


def _merge(before: Message, after: Message) -> Message:
    """One message for two. Where their authors have different names, the names go into the text."""
    if before.get("name") != after.get("name"):
        before, after = _with_name_in_text(before), _with_name_in_text(after)
    first, second = before.get("content") or "", after.get("content") or ""
    if isinstance(first, str) and isinstance(second, str):
        content: Any = "\n\n".join(filter(None, (first, second)))
    else:
        content = [*_parts(first), *_parts(second)]
    return {**after, **before, "content": content}


def _with_name_in_text(message: Message) -> Message:
    bare = {field: value for field, value in message.items() if field != "name"}
    if name := message.get("name"):
        content = message.get("content") or ""
        text = f"{name}:"
        bare["content"] = f"{text} {content}" if isinstance(content, str) else [{"type": "text", "text": text}, *content]
    return bare


def _parts(content: Any) -> list[Any]:
    """A content as a list of parts."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content) if isinstance(content, list | tuple) else []


def fold_system(messages: Messages) -> Messages:
    """Move system text into the user message after it."""
    return merge_adjacent(tuple(_as_user(message) for message in messages))


def fold_later_system(messages: Messages) -> Messages:
    """The same for system messages that do not stand at the beginning."""
    start = next((n for n, message in enumerate(messages) if message["role"] not in SYSTEM_ROLES), len(messages))
    return messages[:start] + fold_system(messages[start:])


def _as_user(message: Message) -> Message:
    return {**message, "role": "user"} if message["role"] in SYSTEM_ROLES else message


def start_with_user(messages: Messages) -> Messages:
    """Put a user message before a conversation that an assistant begins; the system text, where there is one."""
    first = next((message["role"] for message in messages if message["role"] not in SYSTEM_ROLES), "user")
    if first == "user":
        return messages
    if messages[0]["role"] in SYSTEM_ROLES:
        return fold_system(messages)
    return ({"role": "user", "content": OPENING_USER_TEXT}, *messages)


def has_images(messages: Messages) -> bool:
    """Whether a message holds an image part."""
    return any(
        _is_image(part) for message in messages if not isinstance(message["content"], str) for part in _parts(message["content"])
    )


def without_images(messages: Messages) -> Messages:
    """The same messages without image parts; one that held some says that they cannot be shown."""
    return tuple(map(_without_images, messages))


def _without_images(message: Message) -> Message:
    parts = _parts(message["content"])
    if not any(map(_is_image, parts)):
        return message
    texts = [str(part["text"]) for part in parts if isinstance(part, Mapping) and "text" in part]
    return {**message, "content": "\n\n".join([*texts, IMAGES_OMITTED_NOTE])}


def _is_image(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image_url"
