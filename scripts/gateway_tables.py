"""The tables of docs/gateway.md that say what becomes of fields, tools and parts of requests: of
fields by the marks of the wire models, of the others by what a conversion of an example does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic.fields import FieldInfo

from redraft.gateway.exchange import GatewayError
from redraft.gateway.neutral import ProtocolName
from redraft.gateway.openapi import REQUESTS
from redraft.gateway.protocols.fields import PARAMETERS, Hint, Parameter, RefusedField, WireModel
from redraft.gateway.protocols.registry import CLIENTS, MODELS

TITLES: Mapping[ProtocolName, str] = {
    "chat": "Chat completions",
    "responses": "Responses",
    "messages": "Messages",
}
KINDS: Mapping[str, ProtocolName] = {"openai": "chat", "anthropic": "messages"}
NOTES: Mapping[tuple[str, ProtocolName], str] = {
    ("effort", "messages"): ": `minimal` as `low`, `none` as no thinking; a word that OpenAI does "
    "not document is left out"
}
"""What is said of a parameter that is sent to another protocol."""
HEAD = " | ".join(f"for a model of kind `{kind}`" for kind in KINDS)

# ---- fields


def field_table() -> Iterator[str]:
    """Every field of the three protocols, those that are treated alike in one row."""
    for protocol, kind in REQUESTS.items():
        yield f"\n#### {TITLES[protocol]}\n\n| field | {HEAD} |\n|---|---|---|"
        rows: dict[tuple[str, ...], list[str]] = {}
        for name, treated in _fields(kind, protocol):
            rows.setdefault(treated, []).append(name)
        for treated, names in rows.items():
            yield f"| {', '.join(names)} | {' | '.join(treated)} |"


def _fields(
    kind: type[WireModel], protocol: ProtocolName, prefix: str = ""
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the fields, and how they are treated for models of each kind. Those of an object stand
    for it if one of them has a mark.
    """
    for name, field in kind.model_fields.items():
        inner = next((each for each in get_args(field.annotation) if _has_marks(each)), None)
        path = f"{prefix}{field.alias or name}"
        if inner and name != "redraft":
            yield from _fields(inner, protocol, f"{path}.")
        else:
            unused = _unused(field)
            but = f" (other than {' and '.join(unused)})" if unused else ""
            yield f"`{path}`{but}", _treatment(path, field, protocol)


def _has_marks(kind: object) -> bool:
    return (
        isinstance(kind, type)
        and issubclass(kind, WireModel)
        and any(
            isinstance(mark, Hint | RefusedField | Parameter)
            for field in kind.model_fields.values()
            for mark in field.metadata
        )
    )


def _unused(field: FieldInfo) -> list[str]:
    marks = [mark for mark in field.metadata if isinstance(mark, RefusedField)]
    return [f"`{json.dumps(value)}`" for mark in marks for value in mark.unused]


def _treatment(path: str, field: FieldInfo, protocol: ProtocolName) -> tuple[str, ...]:
    for mark in field.metadata:
        match mark:
            case RefusedField():
                return (f"400: {mark.why}", "the same")
            case Hint():
                return tuple("sent" if each == protocol else "left out" for each in KINDS.values())
            case Parameter():
                return tuple(_sent_as(path, mark, protocol, each) for each in KINDS.values())
    return ("honoured", "honoured")


def _sent_as(path: str, mark: Parameter, client: ProtocolName, model: ProtocolName) -> str:
    if client == model:
        return "sent"
    if model not in PARAMETERS[mark.name]:
        return "left out"
    name = PARAMETERS[mark.name][model]
    how = "sent" if name == path else f"sent as `{name}`"
    return how + NOTES.get((mark.name, model), "")


# ---- tools and parts

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
PNG, PDF = "iVBORw0KGgo=", "JVBERi0xLjQ="
PNG_URL, PDF_URL = f"data:image/png;base64,{PNG}", f"data:application/pdf;base64,{PDF}"
TOOLS: Mapping[ProtocolName, tuple[dict[str, Any], ...]] = {
    "chat": (
        {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
        {"type": "custom", "custom": {"name": "c"}},
    ),
    "responses": (
        {"type": "function", "name": "f", "parameters": SCHEMA},
        {"type": "custom", "name": "c"},
        {"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "c"}]},
        {"type": "local_shell"},
        {"type": "shell"},
        {"type": "apply_patch"},
        {"type": "tool_search", "execution": "client", "parameters": SCHEMA},
        {"type": "web_search"},
        {"type": "file_search", "vector_store_ids": ["v"]},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "image_generation"},
        {"type": "mcp", "server_label": "s", "server_url": "https://example.org"},
        {"type": "computer"},
    ),
    "messages": (
        {"name": "f", "input_schema": SCHEMA},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "web_fetch_20250910", "name": "web_fetch"},
        {"type": "code_execution_20250825", "name": "code_execution"},
        {"type": "tool_search_tool_regex", "name": "tool_search_tool_regex"},
        {"type": "mcp_toolset", "mcp_server_name": "s"},
        {"type": "computer_20251124", "name": "computer"},
    ),
}
CALL = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
IMAGE_SOURCE = {"type": "base64", "media_type": "image/png", "data": PNG}
PDF_SOURCE = {"type": "base64", "media_type": "application/pdf", "data": PDF}
TEXT_SOURCE = {"type": "text", "media_type": "text/plain", "data": "x"}
SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}}
TOOL_ADDITION = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}}
PARTS: Mapping[ProtocolName, Mapping[str, list[dict[str, Any]]]] = {
    "chat": {
        "`text`": [{"type": "text", "text": "x"}],
        "`image_url`": [{"type": "image_url", "image_url": {"url": PNG_URL}}],
        "`file` with `file_data` (PDF)": [{"type": "file", "file": {"file_data": PDF_URL}}],
        "`file` with `file_id`": [{"type": "file", "file": {"file_id": "f1"}}],
        "`input_audio`": [{"type": "input_audio", "input_audio": {"data": PNG, "format": "wav"}}],
        "`refusal` (assistant)": [{"type": "refusal", "refusal": "No."}],
        "any other type": [{"type": "video_url", "video_url": {"url": "https://example.org"}}],
    },
    "responses": {
        "`input_text`": [{"type": "input_text", "text": "x"}],
        "`input_image` with a URL": [{"type": "input_image", "image_url": PNG_URL}],
        "`input_file` with `file_data`": [{"type": "input_file", "file_data": PDF_URL}],
        "`input_image`, `input_file` with `file_id`": [{"type": "input_file", "file_id": "f1"}],
        "`input_audio`": [{"type": "input_audio", "input_audio": {"data": PNG, "format": "wav"}}],
        "`refusal` (assistant)": [{"type": "refusal", "refusal": "No."}],
        "item `reasoning`": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]}
        ],
        "items `web_search_call` and others of the provider": [
            {"type": "web_search_call", "id": "w1", "status": "completed"}
        ],
        "item `item_reference`": [{"type": "item_reference", "id": "i1"}],
        "item `compaction`": [{"type": "compaction", "encrypted_content": "x"}],
    },
    "messages": {
        "`text`": [{"type": "text", "text": "x"}],
        "`image` with data or a URL": [{"type": "image", "source": IMAGE_SOURCE}],
        "`document` (PDF)": [{"type": "document", "source": PDF_SOURCE}],
        "`document` (text)": [{"type": "document", "source": TEXT_SOURCE}],
        "`image`, `document` with `file_id`": [
            {"type": "image", "source": {"type": "file", "file_id": "f1"}}
        ],
        "`search_result`": [
            {
                "type": "search_result",
                "title": "t",
                "source": "s",
                "content": [{"type": "text", "text": "x"}],
            }
        ],
        "`thinking`, `redacted_thinking` (assistant)": [
            {"type": "thinking", "thinking": "x", "signature": "s"}
        ],
        "`server_tool_use` and results of the provider's tools (assistant)": [SEARCH],
        "`tool_reference`": [{"type": "tool_reference", "tool_name": "f"}],
        "`tool_addition`, `tool_removal`": [TOOL_ADDITION],
        "`container_upload` and any other type": [{"type": "container_upload", "file_id": "f1"}],
    },
}


def tool_table() -> Iterator[str]:
    """Types of tools, by what a conversion makes of them."""
    for protocol, tools in TOOLS.items():
        yield f"\n#### Tools in {TITLES[protocol].lower()}\n\n| type | {HEAD} |\n|---|---|---|"
        for tool in tools:
            name = tool.get("type") or "custom"
            body = {**_body(protocol, []), "tools": [tool]}
            yield f"| `{name}` | {' | '.join(_converted(protocol, body, 'tools'))} |"


def part_table() -> Iterator[str]:
    """Types of parts and items, by what a conversion makes of them."""
    for protocol, parts in PARTS.items():
        yield f"\n#### Contents in {TITLES[protocol].lower()}\n\n| type | {HEAD} |\n|---|---|---|"
        for name, given in parts.items():
            body = _body(protocol, given, is_answer="assistant" in name)
            yield f"| {name} | {' | '.join(_converted(protocol, body, 'messages'))} |"


def _body(
    protocol: ProtocolName, parts: list[dict[str, Any]], *, is_answer: bool = False
) -> dict[str, Any]:
    """Return a request with a text, and then these parts."""
    role = "assistant" if is_answer else "user"
    first, last = {"role": "user", "content": "q"}, {"role": "user", "content": "r"}
    if protocol == "responses":
        is_item = parts and parts[0]["type"].partition("_")[0] not in ("input", "refusal")
        items = parts if is_item else [{"role": role, "content": parts}] * bool(parts)
        return {"model": "refine/x", "input": [first, *items, last]}
    turns = [{"role": role, "content": parts}] * bool(parts)
    body = {"model": "refine/x", "messages": [first, *turns, last]}
    return body | ({"max_tokens": 9} if protocol == "messages" else {})


def _converted(protocol: ProtocolName, body: dict[str, Any], field: str) -> Iterator[str]:
    """Yield what models of each kind get."""
    for model in KINDS.values():
        if model == protocol:
            yield "as it is"
            continue
        try:
            request = CLIENTS[protocol].read_request(body)
            written = MODELS[model].write_request(request, "m").body
        except GatewayError as error:
            yield f"400: {error.message.partition(': ')[2] or error.message}"
            continue
        found = _tools(written) if field == "tools" else _parts(written)
        yield ", ".join(dict.fromkeys(f"`{each}`" for each in found)) or "left out"


def _tools(body: Mapping[str, Any]) -> Iterator[str]:
    for tool in body.get("tools") or ():
        yield tool.get("type") or "custom"


def _parts(body: Mapping[str, Any]) -> Iterator[str]:
    for message in body["messages"]:
        content = message.get("content")
        for part in (
            [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
        ):
            if part.get("text") not in ("q", "r", ""):
                yield part["type"]
