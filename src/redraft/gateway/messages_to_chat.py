"""Requests in Anthropic's form, read into OpenAI's chat form.

Every field and block is converted, or refused by its name: nothing is dropped, with these
exceptions, which change no answer: `cache_control` (a hint for prices), thinking blocks of earlier
turns (only the model that wrote them can read them), and the flag `is_error` of a tool's result,
which becomes the words "Error: " before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..base.checks import format_value
from ..base.jsontext import dumps
from ..settings import Flag, Keyword, Number, Text, WholeNumber
from .chat_wire import MAX_STOPS, MAX_TOOLS, refuse_fields
from .exchange import GatewayError, invalid_request
from .request_fields import (
    MAX_NAME_CHARS,
    check_body,
    check_field,
    is_set,
    list_of,
    model_of,
    object_of,
    other_parameters,
)

MAX_MESSAGES = 100_000
READ = (
    *(
        "model",
        "messages",
        "system",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "stop_sequences",
        "stream",
        "metadata",
    ),
    *(
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "service_tier",
        "cache_control",
        "redraft",
    ),
)
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "container": ((), "there are no containers here"),
    "context_management": (({}, {"edits": []}), "only Anthropic's own models edit their context"),
    "diagnostics": ((), "only Anthropic's own servers have them"),
    "inference_geo": ((), "the gateway cannot choose where a model runs"),
    "mcp_servers": (([],), "tools are run by the client"),
    "speed": (("standard",), "this model has one speed"),
    "user_profile_id": ((), "this model knows no profiles of users"),
}
"""The fields that cannot be honoured: the values that ask for nothing, and why others are
refused.
"""
KNOWN = frozenset((*READ, *REFUSED))
# up to how many tokens of thinking; "high" for more
THINKING_EFFORTS = ((4096, "low"), (16_384, "medium"))
EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
THINKING_KINDS = ("enabled", "disabled", "adaptive")
_IMAGE_TYPE = re.compile(r"image/[\w.+-]{1,64}", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]*={0,2}\s*", re.ASCII)
_ERROR_WORD = "Error: "


def chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request in OpenAI's chat form. Raises GatewayError 400 naming the field for what
    that cannot say.
    """
    check_body(body)
    refuse_fields(body, REFUSED)
    tools = chat_tools(body.get("tools"))
    fields: dict[str, Any] = {
        "model": model_of(body),
        "messages": chat_messages(body),
        "max_tokens": check_field(
            "max_tokens", body.get("max_tokens"), WholeNumber(1, 2**31), optional=False
        ),
        "temperature": check_field("temperature", body.get("temperature"), Number(0, 2)),
        "top_p": check_field("top_p", body.get("top_p"), Number(0, 1)),
        "top_k": check_field("top_k", body.get("top_k"), WholeNumber(0, 2**31)),
        "stop": _stops(body.get("stop_sequences")),
        "user": _user(body.get("metadata")),
        "tools": tools or None,
        **chat_tool_choice(body.get("tool_choice"), tools),
        "reasoning_effort": _effort(body),
        "response_format": _response_format(body.get("output_config")),
        "service_tier": _service_tier(body.get("service_tier")),
    }
    if check_field("stream", body.get("stream"), Flag()):
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    return {name: value for name, value in fields.items() if value is not None} | other_parameters(
        body, KNOWN.__contains__
    )


def _stops(value: Any) -> list[str] | None:
    texts = list_of("stop_sequences", value)
    if len(texts) > MAX_STOPS or not all(
        isinstance(text, str) and 0 < len(text) <= MAX_NAME_CHARS for text in texts
    ):
        raise invalid_request(
            "stop_sequences", f"stop_sequences must be at most {MAX_STOPS} short texts"
        )
    return texts or None


def _user(metadata: Any) -> str | None:
    user: str | None = check_field(
        "metadata.user_id", object_of("metadata", metadata, ("user_id",)).get("user_id"), Text()
    )
    return user


def _service_tier(value: Any) -> str | None:
    tier = check_field("service_tier", value, Keyword(("auto", "standard_only")))
    return "default" if tier == "standard_only" else tier


# ---- thinking and the form of the answer


def thinking_kind(body: Mapping[str, Any]) -> str | None:
    """Return whether the model is to think: "enabled", "disabled", "adaptive" (as it likes), or
    None.
    """
    given = object_of("thinking", body.get("thinking"), ("type", "budget_tokens", "display"))
    kind: str | None = check_field(
        "thinking.type", given.get("type"), Keyword(THINKING_KINDS), optional=not given
    )
    check_field(
        "thinking.budget_tokens",
        given.get("budget_tokens"),
        WholeNumber(1, 2**31),
        optional=kind != "enabled",
    )
    check_field("thinking.display", given.get("display"), Keyword(("summarized", "omitted")))
    return kind


def shows_thinking(body: Mapping[str, Any]) -> bool:
    """Whether the client reads the model's thinking in a reply."""
    return (
        thinking_kind(body) in {"enabled", "adaptive"}
        and body["thinking"].get("display") != "omitted"
    )


def _effort(body: Mapping[str, Any]) -> str | None:
    """Return how much the model is to think, which OpenAI's protocol says in words and not in
    tokens.
    """
    given = check_field(
        "output_config.effort",
        _output_config(body.get("output_config")).get("effort"),
        Keyword(tuple(EFFORTS)),
    )
    if given is not None:
        return EFFORTS[given]
    if thinking_kind(body) != "enabled":
        return None
    budget = body["thinking"]["budget_tokens"]
    return next((word for most, word in THINKING_EFFORTS if budget <= most), "high")


def _output_config(value: Any) -> Mapping[str, Any]:
    return object_of("output_config", value, ("effort", "format"))


def output_schema(value: Any) -> Mapping[str, Any] | None:
    """Return the JSON schema that `output_config` asks for; None for text."""
    form = _output_config(value).get("format")
    if form is None:
        return None
    given = object_of("output_config.format", form, ("type", "schema"))
    check_field(
        "output_config.format.type", given.get("type"), Keyword(("json_schema",)), optional=False
    )
    if given.get("schema") is None:
        raise invalid_request(
            "output_config.format.schema", "output_config.format.schema is missing"
        )
    return object_of("output_config.format.schema", given["schema"])


def _response_format(output_config: Any) -> dict[str, Any] | None:
    schema = output_schema(output_config)
    if schema is None:
        return None
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }


# ---- tools

TOOL_FIELDS = (
    *(
        "type",
        "name",
        "description",
        "input_schema",
        "strict",
        "cache_control",
        "eager_input_streaming",
    ),
    *("defer_loading", "input_examples", "allowed_callers"),
)


def chat_tools(value: Any) -> list[dict[str, Any]]:
    """Return the tools as functions. Tools that Anthropic's servers run are refused."""
    tools = list_of("tools", value)
    if len(tools) > MAX_TOOLS:
        raise invalid_request("tools", f"tools holds {len(tools)} tools; at most {MAX_TOOLS}")
    return [_chat_tool(f"tools[{n}]", tool) for n, tool in enumerate(tools)]


def _chat_tool(where: str, value: Any) -> dict[str, Any]:
    tool = object_of(where, value)
    if tool.get("type", "custom") not in {None, "custom"}:
        message = (
            f"{where}.type must be 'custom': only Anthropic's own models know "
            f"{format_value(tool['type'], 80)}"
        )
        raise invalid_request(f"{where}.type", message)
    object_of(where, tool, TOOL_FIELDS)
    for name, unused in {
        "defer_loading": (False,),
        "input_examples": ([],),
        "allowed_callers": ([], ["direct"]),
    }.items():
        if is_set(tool.get(name), unused):
            raise invalid_request(
                f"{where}.{name}",
                f"{where}.{name} is not supported: only Anthropic's own models know it",
            )
    name = check_field(f"{where}.name", tool.get("name"), Text(), optional=False)
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise invalid_request(
            f"{where}.name", f"{where}.name must have 1 to {MAX_NAME_CHARS} characters"
        )
    function: dict[str, Any] = {
        "name": name,
        "parameters": dict(object_of(f"{where}.input_schema", tool.get("input_schema"))),
    }
    if (
        description := check_field(f"{where}.description", tool.get("description"), Text())
    ) is not None:
        function["description"] = description
    if (strict := check_field(f"{where}.strict", tool.get("strict"), Flag())) is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}


def chat_tool_choice(value: Any, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the fields `tool_choice` and `parallel_tool_calls`."""
    given = object_of("tool_choice", value, ("type", "name", "disable_parallel_tool_use"))
    kind = check_field(
        "tool_choice.type",
        given.get("type"),
        Keyword(("auto", "any", "tool", "none")),
        optional=value is None,
    )
    one_call = check_field(
        "tool_choice.disable_parallel_tool_use", given.get("disable_parallel_tool_use"), Flag()
    )
    fields: dict[str, Any] = {"parallel_tool_calls": False} if one_call and tools else {}
    name = check_field("tool_choice.name", given.get("name"), Text(), optional=kind != "tool")
    if kind == "tool":
        if name not in {tool["function"]["name"] for tool in tools}:
            raise invalid_request(
                "tool_choice.name",
                f"tool_choice.name must be one of the tools, got {format_value(name, 80)}",
            )
        return fields | {"tool_choice": {"type": "function", "function": {"name": name}}}
    if kind == "any" and not tools:
        raise invalid_request(
            "tool_choice", "tool_choice needs `tools` to choose from, and there are none"
        )
    if kind is None or not tools:
        return fields
    return fields | {"tool_choice": {"any": "required"}.get(kind, kind)}


# ---- messages


def chat_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the system prompt and the messages in OpenAI's form."""
    given = list_of("messages", body.get("messages"))
    if not 0 < len(given) <= MAX_MESSAGES:
        raise invalid_request(
            "messages",
            f"messages must be a list of 1 to {MAX_MESSAGES:,} messages, got {len(given)}",
        )
    messages = list(_system_message("system", body.get("system")))
    for n, message in enumerate(given):
        messages += _chat_message(f"messages[{n}]", message)
    return messages


def _system_message(where: str, value: Any) -> Iterator[dict[str, Any]]:
    """Yield the system message, if there is one."""
    texts = (
        [value] if isinstance(value, str) else [_text_of(*each) for each in _blocks(where, value)]
    )
    if any(texts):
        yield {"role": "system", "content": "\n\n".join(filter(None, texts))}


def _text_of(where: str, block: Mapping[str, Any]) -> str:
    if block["type"] != "text":
        raise _unknown_block(where, block, "text")
    if is_set(block.get("citations"), ([],)):
        raise invalid_request(
            f"{where}.citations",
            f"{where}.citations are not supported: this model's protocol has none",
        )
    text: str = check_field(f"{where}.text", block.get("text"), Text(), optional=False)
    return text


def _blocks(where: str, content: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the blocks of a content with the place of each."""
    if content is not None and not isinstance(content, list | tuple):
        raise invalid_request(
            where, f"{where} must be a text or a list of blocks, got {format_value(content, 80)}"
        )
    for n, block in enumerate(content or ()):
        place = f"{where}[{n}]"
        if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
            raise invalid_request(
                place, f'{place} must be a block such as {{"type": "text", "text": "..."}}'
            )
        yield place, block


def _unknown_block(where: str, block: Mapping[str, Any], allowed: str) -> GatewayError:
    message = (
        f"{where}.type must be {allowed} for a model that speaks OpenAI's protocol, got "
        f"{format_value(block['type'], 80)}"
    )
    return invalid_request(f"{where}.type", message)


def _chat_message(where: str, message: Any) -> Iterator[dict[str, Any]]:
    """Yield the messages for one of Anthropic's: each result of a tool is a message of its own."""
    given = object_of(where, message, ("role", "content"))
    role = check_field(
        f"{where}.role", given.get("role"), Keyword(("user", "assistant", "system")), optional=False
    )
    content = given.get("content")
    if content is None:
        raise invalid_request(f"{where}.content", f"{where}.content is missing")
    if role == "system":
        yield from _system_message(f"{where}.content", content)
    elif isinstance(content, str):
        yield {"role": role, "content": content}
    else:
        blocks = list(_blocks(f"{where}.content", content))
        yield from [_assistant_message(blocks)] if role == "assistant" else _user_messages(blocks)


def _assistant_message(blocks: list[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    texts, calls = [], []
    for where, block in blocks:
        match block["type"]:
            case "text":
                texts.append(_text_of(where, block))
            case "tool_use":
                calls.append(_tool_call(where, block))
            case "thinking" | "redacted_thinking":
                continue
            case _:
                raise _unknown_block(where, block, "text, tool_use or thinking")
    text = "".join(texts)
    return (
        {"role": "assistant", "content": text or None, "tool_calls": calls}
        if calls
        else {"role": "assistant", "content": text}
    )


def _tool_call(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    texts = {
        name: check_field(f"{where}.{name}", block.get(name), Text(), optional=False)
        for name in ("id", "name")
    }
    if not isinstance(block.get("input"), Mapping):
        raise invalid_request(
            f"{where}.input",
            f"{where}.input must be an object, got {format_value(block.get('input'), 80)}",
        )
    arguments = dumps(block["input"]).decode()
    return {
        "id": texts["id"],
        "type": "function",
        "function": {"name": texts["name"], "arguments": arguments},
    }


def _user_messages(blocks: list[tuple[str, Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield the results of tools, which must follow the calls, and then what the user says."""
    parts: list[dict[str, Any]] = []
    results = 0
    for where, block in blocks:
        if block["type"] == "tool_result":
            message, images = _tool_message(where, block)
            yield message
            parts += images
            results += 1
        else:
            parts += _parts(where, block)
    if parts or not results:
        yield {"role": "user", "content": _content(parts)}


def _content(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return parts as content: one text if all are texts, because not every server reads lists."""
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts


def _tool_message(
    where: str, block: Mapping[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the result of a tool, and its images, which belong into the user's next message in
    OpenAI's form.
    """
    call = check_field(f"{where}.tool_use_id", block.get("tool_use_id"), Text(), optional=False)
    content = block.get("content")
    given = [{"type": "text", "text": content}] if isinstance(content, str) else content
    parts = [part for each in _blocks(f"{where}.content", given) for part in _parts(*each)]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    images = [part for part in parts if part["type"] != "text"]
    if images:
        texts.append(f"({len(images)} of its parts follow in the next message of the user.)")
        images.insert(0, {"type": "text", "text": f"From the result of the tool call {call}:"})
    is_error = check_field(f"{where}.is_error", block.get("is_error"), Flag())
    text = "\n\n".join(texts)
    text = _ERROR_WORD + text if is_error and not text.lower().startswith("error") else text
    return {"role": "tool", "tool_call_id": call, "content": text}, images


# ---- parts of a message


def _parts(where: str, block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts in OpenAI's form for a block of the user or of a tool."""
    match block["type"]:
        case "text":
            return [{"type": "text", "text": _text_of(where, block)}]
        case "image":
            return [_image_part(where, block)]
        case "document":
            return _document_parts(where, block)
    raise _unknown_block(where, block, "text, image, document or tool_result")


def _source(where: str, block: Mapping[str, Any], kinds: tuple[str, ...]) -> Mapping[str, Any]:
    source = object_of(f"{where}.source", block.get("source"))
    check_field(f"{where}.source.type", source.get("type"), Keyword(kinds), optional=False)
    return source


def _image_part(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    if is_set(block.get("transformations"), ({},)):
        raise invalid_request(
            f"{where}.transformations", f"{where}.transformations are not supported by this model"
        )
    source = _source(where, block, ("base64", "url"))
    if source["type"] == "url":
        return {
            "type": "image_url",
            "image_url": {"url": _web_url(f"{where}.source.url", source.get("url"))},
        }
    media_type = source.get("media_type")
    if not isinstance(media_type, str) or not _IMAGE_TYPE.fullmatch(media_type):
        raise invalid_request(
            f"{where}.source.media_type", f"{where}.source.media_type must be that of an image"
        )
    url = f"data:{media_type};base64,{_base64(f'{where}.source.data', source.get('data'))}"
    return {"type": "image_url", "image_url": {"url": url}}


def _web_url(where: str, url: Any) -> str:
    if not isinstance(url, str) or not url.lower().startswith(("http://", "https://")):
        raise invalid_request(
            where, f"{where} must be an http(s): URL, got {format_value(url, 80)}"
        )
    return url


def _base64(where: str, data: Any) -> str:
    if not isinstance(data, str) or not _BASE64.fullmatch(data):
        raise invalid_request(where, f"{where} must be in base64")
    return data


def _document_parts(where: str, block: Mapping[str, Any]) -> list[dict[str, Any]]:
    citations = object_of(f"{where}.citations", block.get("citations"))
    if citations.get("enabled"):
        raise invalid_request(
            f"{where}.citations",
            f"{where}.citations are not supported: this model's protocol has none",
        )
    title, context = (
        check_field(f"{where}.{name}", block.get(name), Text()) for name in ("title", "context")
    )
    source = _source(where, block, ("base64", "text", "content"))
    notes = [{"type": "text", "text": text} for text in (title, context) if text]
    if source["type"] == "text":
        return [
            *notes,
            {
                "type": "text",
                "text": check_field(
                    f"{where}.source.data", source.get("data"), Text(), optional=False
                ),
            },
        ]
    if source["type"] == "content":
        content = source.get("content")
        if isinstance(content, str):
            return [*notes, {"type": "text", "text": content}]
        inner = [_inner_part(*each) for each in _blocks(f"{where}.source.content", content)]
        return [*notes, *inner]
    if source.get("media_type") != "application/pdf":
        raise invalid_request(
            f"{where}.source.media_type", f"{where}.source.media_type must be 'application/pdf'"
        )
    data = f"data:application/pdf;base64,{_base64(f'{where}.source.data', source.get('data'))}"
    file = {"type": "file", "file": {"filename": title or "document.pdf", "file_data": data}}
    return [*({"type": "text", "text": text} for text in (context,) if text), file]


def _inner_part(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part for a block inside a document: a text or an image."""
    if block["type"] == "image":
        return _image_part(where, block)
    return {"type": "text", "text": _text_of(where, block)}
