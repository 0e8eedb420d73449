"""Requests in OpenAI's chat form, written in Anthropic's form.

Every field and part is converted, or refused by its name. The exceptions change no answer:
`prompt_cache_key` (a hint), and reasoning of earlier turns, which has no signature of the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..base.checks import format_value
from ..base.jsontext import loads
from ..settings import Flag, Keyword, Number, Text, WholeNumber
from .chat_wire import REFUSED, refuse_fields, tool_choice_of, tools_of
from .exchange import GatewayError, invalid_request
from .request_fields import (
    check_body,
    check_field,
    checked_messages,
    is_set,
    list_of,
    model_of,
    object_of,
)

DEFAULT_MAX_TOKENS = 16_384
"""The limit of tokens of a request that states none; Anthropic's protocol requires one."""
_UNSAID = "Anthropic's protocol, which this model speaks, cannot say it"
UNSAID: Mapping[str, tuple[tuple[Any, ...], str]] = {
    **{name: (unused, _UNSAID) for name, (unused, _) in REFUSED.items()},
    "seed": ((), _UNSAID),
    "frequency_penalty": ((0, 0.0), _UNSAID),
    "presence_penalty": ((0, 0.0), _UNSAID),
    "logit_bias": (({},), _UNSAID),
    "prediction": ((), _UNSAID),
    "verbosity": ((), _UNSAID),
    "store": ((False,), _UNSAID),
    "metadata": (({},), _UNSAID),
    "prompt_cache_retention": ((), _UNSAID),
    "prompt_cache_options": ((), _UNSAID),
}
"""The fields that cannot be said: the values that ask for nothing, and why others are refused."""
READ = frozenset(
    (
        *(
            "model",
            "messages",
            "max_tokens",
            "max_completion_tokens",
            "temperature",
            "top_p",
            "top_k",
            "stop",
            "stream",
        ),
        *(
            "stream_options",
            "user",
            "safety_identifier",
            "prompt_cache_key",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
        ),
        *("response_format", "reasoning_effort", "service_tier", "redraft"),
    )
)
EFFORTS = ("low", "medium", "high", "xhigh")
IGNORED_MESSAGE_FIELDS = frozenset(
    ("role", "content", "tool_calls", "tool_call_id", "reasoning_content", "reasoning", "refusal")
)
# of replies, which clients send back
NULL_MESSAGE_FIELDS = frozenset(("annotations", "audio", "function_call", "name"))
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.ASCII | re.DOTALL)


def messages_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request in Anthropic's form. Raises GatewayError 400 naming the field for what that
    cannot say.
    """
    check_body(body)
    refuse_fields(body, UNSAID)
    for name in body:
        if name not in READ and name not in UNSAID and body[name] is not None:
            raise invalid_request(name, f"{name} is not supported: {_UNSAID}")
    system, messages = _conversation(body.get("messages"))
    fields: dict[str, Any] = {
        "model": model_of(body),
        "system": system or None,
        "messages": messages,
        "max_tokens": _max_tokens(body),
        "temperature": check_field("temperature", body.get("temperature"), Number(0, 2)),
        "top_p": check_field("top_p", body.get("top_p"), Number(0, 1)),
        "top_k": check_field("top_k", body.get("top_k"), WholeNumber(0, 2**31)),
        "stop_sequences": _stops(body.get("stop")),
        "stream": check_field("stream", body.get("stream"), Flag()) or None,
        "metadata": _user(body),
        "service_tier": _service_tier(body.get("service_tier")),
        **_tools(body),
        **_thinking(body),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _max_tokens(body: Mapping[str, Any]) -> int:
    limits = [
        check_field(name, body.get(name), WholeNumber(1, 2**31))
        for name in ("max_completion_tokens", "max_tokens")
    ]
    return next((limit for limit in limits if limit is not None), DEFAULT_MAX_TOKENS)


def _stops(value: Any) -> list[str] | None:
    texts = [value] if isinstance(value, str) else list_of("stop", value)
    for text in texts:
        check_field("stop", text, Text(), optional=False)
    return texts or None


def _user(body: Mapping[str, Any]) -> dict[str, str] | None:
    users = {
        check_field(name, body.get(name), Text()) for name in ("safety_identifier", "user")
    } - {None}
    if len(users) > 1:
        raise invalid_request(
            "user",
            "user and safety_identifier differ: Anthropic's protocol, which this model speaks, "
            "has one",
        )
    return {"user_id": users.pop()} if users else None


def _service_tier(value: Any) -> str | None:
    tier = check_field("service_tier", value, Keyword(("auto", "default")))
    return "standard_only" if tier == "default" else tier


def _thinking(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields `output_config` and `thinking`."""
    effort = check_field(
        "reasoning_effort", body.get("reasoning_effort"), Keyword(("none", *EFFORTS))
    )
    config: dict[str, Any] = {"effort": effort} if effort in EFFORTS else {}
    form = object_of("response_format", body.get("response_format"))
    kind = check_field(
        "response_format.type",
        form.get("type", "text"),
        Keyword(("text", "json_schema", "json_object")),
    )
    if kind == "json_object":
        raise invalid_request(
            "response_format",
            f"response_format of type json_object is not supported: {_UNSAID}; give a schema",
        )
    if kind == "json_schema":
        given = object_of("response_format.json_schema", form.get("json_schema"))
        schema = object_of("response_format.json_schema.schema", given.get("schema"))
        config["format"] = {"type": "json_schema", "schema": dict(schema)}
    fields: dict[str, Any] = {"output_config": config} if config else {}
    return fields | ({"thinking": {"type": "disabled"}} if effort == "none" else {})


# ---- tools


def _tools(body: Mapping[str, Any]) -> dict[str, Any]:
    tools = tools_of(body.get("tools"))
    if not tools:
        tool_choice_of(body.get("tool_choice"), tools)
        return {}
    choice = _tool_choice(tool_choice_of(body.get("tool_choice"), tools))
    if check_field("parallel_tool_calls", body.get("parallel_tool_calls"), Flag()) is False:
        choice = choice or {"type": "auto"}
        choice |= {} if choice["type"] == "none" else {"disable_parallel_tool_use": True}
    fields: dict[str, Any] = {"tools": [_tool(tool["function"]) for tool in tools]}
    return fields | ({"tool_choice": choice} if choice else {})


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    schema = dict(function.get("parameters") or {})
    tool = {"name": function["name"], "input_schema": {"type": "object", **schema}}
    return tool | {
        name: function[name] for name in ("description", "strict") if function.get(name) is not None
    }


def _tool_choice(choice: Any) -> dict[str, Any] | None:
    if isinstance(choice, Mapping):
        return {"type": "tool", "name": choice["function"]["name"]}
    return {"type": {"required": "any"}.get(choice, choice)} if choice else None


# ---- messages


def _conversation(value: Any) -> tuple[str, list[dict[str, Any]]]:
    """Return the system prompt, which the first messages are, and turns: neighbours of one role
    become one.
    """
    messages = checked_messages(value)
    texts: list[str] = []
    turns: list[dict[str, Any]] = []
    for n, message in enumerate(messages):
        where = f"messages[{n}]"
        _check_message_fields(where, message)
        if message["role"] == "system" and not turns:
            texts += [_text(where, message["content"])]
        else:
            _add_turn(turns, where, message)
    if not turns:
        raise invalid_request(
            "messages", f"messages must have one that is not of the system: {_UNSAID}"
        )
    return "\n\n".join(filter(None, texts)), [_simple_turn(turn) for turn in turns]


def _check_message_fields(where: str, message: Mapping[str, Any]) -> None:
    for name, value in message.items():
        if name not in IGNORED_MESSAGE_FIELDS and is_set(
            value, ([], "") if name in NULL_MESSAGE_FIELDS else ()
        ):
            raise invalid_request(f"{where}.{name}", f"{where}.{name} is not supported: {_UNSAID}")


def _add_turn(turns: list[dict[str, Any]], where: str, message: Mapping[str, Any]) -> None:
    role = "user" if message["role"] == "tool" else message["role"]
    blocks = list(_message_blocks(where, message))
    if turns and turns[-1]["role"] == role:
        turns[-1]["content"] += blocks
    else:
        turns.append({"role": role, "content": blocks})


def _simple_turn(turn: dict[str, Any]) -> dict[str, Any]:
    """Return a turn whose only block is text with the text as its content."""
    blocks = turn["content"]
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        return {"role": turn["role"], "content": blocks[0]["text"]}
    return turn if blocks else {"role": turn["role"], "content": ""}


def _message_blocks(where: str, message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    content = message["content"]
    if message["role"] == "tool":
        parts = list(_content_blocks(f"{where}.content", content))
        text = content if isinstance(content, str) else parts
        yield {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": text}
        return
    yield from _content_blocks(f"{where}.content", content)
    if isinstance(message.get("refusal"), str) and message["refusal"]:
        yield {"type": "text", "text": message["refusal"]}
    for n, call in enumerate(message.get("tool_calls") or ()):
        yield _tool_use(f"{where}.tool_calls[{n}].function.arguments", call)


def _tool_use(where: str, call: Mapping[str, Any]) -> dict[str, Any]:
    text = call["function"]["arguments"]
    try:
        arguments = loads(text.encode()) if text.strip() else {}
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise invalid_request(
            where, f"{where} must be a JSON object: {_UNSAID}, got {format_value(text, 80)}"
        )
    return {
        "type": "tool_use",
        "id": call["id"],
        "name": call["function"]["name"],
        "input": arguments,
    }


def _text(where: str, content: Any) -> str:
    """Return a content of texts."""
    parts = list(_content_blocks(f"{where}.content", content))
    for n, part in enumerate(parts):
        if part["type"] != "text":
            raise invalid_request(
                f"{where}.content[{n}]",
                f"{where}.content[{n}] must be a text in a message of the system",
            )
    return "\n\n".join(part["text"] for part in parts)


def _content_blocks(where: str, content: Any) -> Iterator[dict[str, Any]]:
    """Yield the blocks for a content. Empty texts, which Anthropic's servers refuse, are none."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for n, part in enumerate(parts or ()):
        block = _block(f"{where}[{n}]", part)
        if block != {"type": "text", "text": ""}:
            yield block


def _block(where: str, part: Mapping[str, Any]) -> dict[str, Any]:
    match part["type"]:
        case "text" | "refusal":
            return {"type": "text", "text": part[part["type"]]}
        case "image_url":
            return _image_block(where, object_of(f"{where}.image_url", part.get("image_url")))
        case "file":
            return _document_block(where, object_of(f"{where}.file", part.get("file")))
    raise _unknown_part(where, part["type"])


def _unknown_part(where: str, kind: str) -> GatewayError:
    message = (
        f"{where}.type must be text, image_url or file: of {format_value(kind, 80)}, {_UNSAID}"
    )
    return invalid_request(f"{where}.type", message)


def _image_block(where: str, image: Mapping[str, Any]) -> dict[str, Any]:
    if is_set(image.get("detail"), ("auto",)):
        raise invalid_request(
            f"{where}.image_url.detail", f"{where}.image_url.detail is not supported: {_UNSAID}"
        )
    url = check_field(f"{where}.image_url.url", image.get("url"), Text(), optional=False)
    if match := _DATA_URL.fullmatch(url):
        return {
            "type": "image",
            "source": {"type": "base64", "media_type": match[1], "data": match[2]},
        }
    if not url.lower().startswith(("http://", "https://")):
        raise invalid_request(
            f"{where}.image_url.url",
            f"{where}.image_url.url must be an http(s): URL, or a data: URL in base64",
        )
    return {"type": "image", "source": {"type": "url", "url": url}}


def _document_block(where: str, file: Mapping[str, Any]) -> dict[str, Any]:
    match = (
        _DATA_URL.fullmatch(file["file_data"]) if isinstance(file.get("file_data"), str) else None
    )
    if match is None or match[1] != "application/pdf":
        raise invalid_request(
            f"{where}.file",
            f"{where}.file must have `file_data` with a PDF: of other files, {_UNSAID}",
        )
    block: dict[str, Any] = {
        "type": "document",
        "source": {"type": "base64", "media_type": match[1], "data": match[2]},
    }
    title = check_field(f"{where}.file.filename", file.get("filename"), Text())
    return block | ({"title": title} if title else {})
