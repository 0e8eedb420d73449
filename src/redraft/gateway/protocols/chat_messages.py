"""The messages of chat completions: read into turns, and written from those of any protocol."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from ...base.jsontext import dumps, text_in
from ...loop.task import Message
from ..exchange import invalid_request
from ..neutral import Call, Json, Media, Other, Part, Request, Text, Thinking, Turn, short_name
from .chat_fields import (
    AssistantMessage,
    AudioPart,
    ChatMessage,
    ChatMessages,
    ContentPart,
    CustomCall,
    FilePart,
    ImagePart,
    OtherMessage,
    RefusalPart,
    TextPart,
    ToolCall,
    ToolMessage,
)
from .fields import read_body

CONVERSATIONS = {"chat": "messages", "messages": "messages", "responses": "input"}
"""The field of each protocol that has the conversation."""
_ERROR_WORD = "Error: "

# ---- read


def read_messages(messages: Iterable[Message]) -> tuple[Turn, ...]:
    """Return chat messages as turns. Raises GatewayError 400 for what is no such message."""
    given = [dict(message) for message in messages]
    return read_turns(read_body(ChatMessages, {"messages": given}).messages, given)


def read_turns(messages: Sequence[ChatMessage], raw: Sequence[Json]) -> tuple[Turn, ...]:
    """Return messages as turns; `raw`: as they were sent."""
    return tuple(_read_turn(*each) for each in zip(count(), messages, raw))


def _read_turn(n: int, message: ChatMessage, raw: Json) -> Turn:
    assert not isinstance(message, OtherMessage)
    content = message.content
    parts: tuple[Part, ...] = ()
    if isinstance(content, str):
        parts = (Text(content),)
    elif content:
        parts = tuple(map(_read_part, content, raw["content"]))
    if isinstance(message, AssistantMessage):
        return Turn("assistant", (*_assistant_parts(n, message, parts, raw),), raw=raw)
    if isinstance(message, ToolMessage):
        return Turn("tool", parts, message.tool_call_id, raw=raw)
    return Turn("user" if message.role == "user" else "system", parts, raw=raw)


def _assistant_parts(
    n: int, message: AssistantMessage, content: tuple[Part, ...], raw: Json
) -> Iterator[Part]:
    if message.function_call is not None:
        where = f"messages[{n}].function_call"
        raise invalid_request(where, f"{where} is not supported: use tool_calls")
    if thoughts := text_in(raw, "reasoning_content") or text_in(raw, "reasoning"):
        yield Thinking(thoughts)
    yield from content
    if message.refusal:
        yield Text(message.refusal, is_refusal=True)
    for call, given in zip(message.tool_calls or (), raw.get("tool_calls") or (), strict=True):
        yield _read_call(call, given)
    if isinstance(message.audio, dict):
        yield Other("audio", message.audio)


def _read_part(part: ContentPart, raw: Json) -> Part:
    match part:
        case TextPart():
            return Text(part.text, raw=raw)
        case RefusalPart():
            return Text(part.refusal, is_refusal=True, raw=raw)
        case ImagePart(image_url=str(url)):
            return Media("image", url, raw=raw)
        case ImagePart(image_url=image) if not isinstance(image, str):
            return Media("image", image.url, detail=image.detail, raw=raw)
        case AudioPart(input_audio=audio):
            return Media("audio", f"data:audio/{audio.format};base64,{audio.data}", raw=raw)
        case FilePart(file=file):
            return Media("document", file.file_data, file.file_id, file.filename, raw=raw)
    return Other(part.type, raw)


def _read_call(call: ToolCall, raw: Json) -> Call:
    if isinstance(call, CustomCall):
        arguments = dumps({"input": call.custom.input}).decode()
        return Call(call.id, call.custom.name, arguments, raw)
    return Call(call.id, call.function.name, call.function.arguments, raw)


# ---- written


def write_messages(request: Request) -> tuple[Message, ...]:
    """Return the turns as messages: message n is that of turn n. Messages of a client of this
    protocol stay as they are, but for a developer's, which become system messages, and for calls of
    custom tools, which become calls of functions.

    Raises GatewayError 400 for a part that the user sends and this protocol cannot say.
    """
    return tuple(_write_message(turn, request) for turn in request.turns)


def messages_for_model(request: Request) -> tuple[Message, ...]:
    """Return the messages as models of this protocol take them: images in results of tools follow
    in a message of the user, where alone the protocol has them.
    """
    messages = write_messages(request)
    if request.protocol == "chat":
        return messages
    out: list[Message] = []
    media: list[Json] = []
    for message in messages:
        if message["role"] == "tool":
            out.append(_without_media(message, media))
            continue
        said: list[Json] = []
        if media and message["role"] == "user":
            said.append({"role": "user", "content": [*media, *_as_parts(message["content"])]})
        elif media:
            said += [{"role": "user", "content": [*media]}, message]
        out += said or [message]
        media.clear()
    return tuple([*out, {"role": "user", "content": media}] if media else out)


def _without_media(message: Message, media: list[Json]) -> Message:
    """Return the result of a tool as a text; its images are added to `media`."""
    parts = _as_parts(message["content"])
    texts = [part["text"] for part in parts if part["type"] == "text"]
    moved = [part for part in parts if part["type"] != "text"]
    if moved:
        texts.append(f"({len(moved)} of its parts follow in the next message of the user.)")
        call = f"From the result of the tool call {message['tool_call_id']}:"
        media += [{"type": "text", "text": call}, *moved]
    return {**message, "content": "\n\n".join(texts)}


def _as_parts(content: str | list[Json]) -> list[Json]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _write_message(turn: Turn, request: Request) -> Message:
    if request.protocol == "chat" and turn.raw is not None:
        return _own_message(turn, turn.raw)
    match turn.role:
        case "assistant":
            return _assistant_message(turn, request)
        case "tool":
            content = _content(turn, request)
            if turn.is_error and not turn.text.lower().startswith("error"):
                content = (
                    _ERROR_WORD + content
                    if isinstance(content, str)
                    else [{"type": "text", "text": _ERROR_WORD.rstrip()}, *content]
                )
            return {"role": "tool", "tool_call_id": turn.call_id, "content": content}
    return {"role": turn.role, "content": _content(turn, request)}


def _own_message(turn: Turn, raw: Json) -> Message:
    """Return a message of a client of this protocol."""
    message = {**raw, "role": turn.role, "content": raw.get("content")}
    if raw.get("tool_calls") and any(
        call.raw and call.raw.get("type") == "custom" for call in turn.calls
    ):
        message["tool_calls"] = [_function_call(call) for call in turn.calls]
    return message


def _assistant_message(turn: Turn, request: Request) -> Message:
    """Return a turn of the model. Thinking is said only if no other protocol's model signed it, and
    in a loop with tools, where models of this protocol read it.
    """
    # several texts of responses are messages; of messages, they are pieces of one
    joint = "\n\n" if request.protocol == "responses" else ""
    text = joint.join(part.text for part in turn.parts if isinstance(part, Text))
    if not turn.calls:
        return {"role": "assistant", "content": text}
    thoughts = "".join(
        part.text for part in turn.parts if isinstance(part, Thinking) and not part.signature
    )
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    message |= {"reasoning_content": thoughts} if thoughts else {}
    return message | {"tool_calls": [_function_call(call) for call in turn.calls]}


def _function_call(call: Call) -> Json:
    function = {"name": short_name(call.name), "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _content(turn: Turn, request: Request) -> str | list[Json]:
    """Return a content: one text if all parts are texts, because not every server reads lists."""
    parts: list[Json] = list(_write_parts(turn, request))
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts


def _write_parts(turn: Turn, request: Request) -> Iterator[dict[str, Any]]:
    where = CONVERSATIONS[request.protocol]
    for part in turn.parts:
        match part:
            case Text():
                yield {"type": "text", "text": part.text}
            case Media():
                yield _media_part(where, part, request)
            case Other(is_hint=False) if turn.role != "tool":
                raise _unsaid_part(where, f"a part of the type {part.kind[:80]!r}")


def _media_part(where: str, part: Media, request: Request) -> dict[str, Any]:
    kind, _, data = (part.url or "").partition(";base64,")
    if part.kind == "image" and part.url:
        detail = {"detail": part.detail} if part.detail else {}
        return {"type": "image_url", "image_url": {"url": part.url, **detail}}
    if part.kind == "audio" and data:
        form = "mp3" if kind.endswith(("/mp3", "/mpeg")) else kind.rpartition("/")[2]
        return {"type": "input_audio", "input_audio": {"data": data, "format": form}}
    if part.kind == "document" and data:
        file = {"filename": part.name or "document.pdf", "file_data": part.url}
        return {"type": "file", "file": file}
    if part.kind == "document" and part.file_id and request.protocol == "responses":
        return {"type": "file", "file": {"file_id": part.file_id}}
    how = "that is stored elsewhere" if part.file_id else "without its data"
    raise _unsaid_part(where, f"a part of the kind {part.kind!r} {how}")


def _unsaid_part(where: str, what: str) -> Exception:
    return invalid_request(
        where, f"{where} has {what}, which cannot be sent to a model of this protocol"
    )


def parts_left_out(request: Request) -> Iterator[str]:
    """Yield the types of parts that only the protocol of the request has."""
    if request.protocol == "chat":
        return
    kinds = {part.kind for turn in request.turns for part in turn.parts if isinstance(part, Other)}
    for kind in sorted(kinds):
        yield f"{CONVERSATIONS[request.protocol]} ({kind})"
