"""Requests for chat completions: read from clients, written for models.

The core of Redraft speaks this protocol, too: `write_messages` (of `chat_messages`), `write_tools`,
`write_tool_choice` and `write_parameters` are what it gets of a request of any protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...base.checks import format_value
from ...base.jsontext import first_duplicate, list_in, object_in, text_in
from ...base.parameters import ROUTING_FIELDS
from ...loop.task import as_messages
from ...models.openai_chat import is_strict_schema
from ..exchange import invalid_request
from ..neutral import (
    AnswerSchema,
    Json,
    Request,
    Tool,
    ToolChoice,
    WrittenRequest,
    short_name,
)
from ..request_fields import (
    DENIED_PARAMETERS,
    NOTHING,
    checked_schema,
    errors_of_field,
    is_set,
)
from .chat_fields import (
    AllowedTools,
    ChatBody,
    ChatTool,
    CustomDefinition,
    CustomTool,
    FunctionTool,
    NamedChoice,
    NamedMessage,
    ResponseFormat,
    ToolName,
)
from .chat_messages import (
    messages_for_model,
    parts_left_out,
    read_turns,
)
from .fields import PARAMETERS, hints_of, parameters_of, read_body, unsaid_parameters
from .options import read_options
from .tool_arguments import TEXT_TOOL_SCHEMA

OF_CORE = frozenset(("temperature", "seed"))  # parameters for which the core has fields
# up to how many tokens of thinking; "high" for more
THINKING_EFFORTS = ((4096, "low"), (16_384, "medium"))

# ---- read


def read_request(body: Json) -> Request:
    """Read a request. Raises GatewayError 400 that names the field at fault."""
    asked = read_body(ChatBody, body)
    with errors_of_field("messages"):
        as_messages(body["messages"])  # of files, only URLs of the web
    choice = asked.tool_choice
    tools = _read_tools(asked.tools or (), list_in(body, "tools"))
    if isinstance(choice, NamedChoice) and choice.allowed_tools:
        names = set(map(_name_of_tool, choice.allowed_tools.tools))
        tools = tuple(tool for tool in tools if tool.name in names)
    parameters = parameters_of(asked)
    if stops := [asked.stop] if isinstance(asked.stop, str) else asked.stop:
        parameters["stop"] = stops
    is_stream, options = bool(asked.stream), asked.stream_options
    return Request(
        protocol="chat",
        model=asked.model,
        body=body,
        turns=read_turns(asked.messages, body["messages"]),
        tools=tools,
        tool_choice=_read_tool_choice(choice, body.get("tool_choice"), tools),
        schema=_read_schema(asked.response_format),
        max_tokens=_read_max_tokens(asked),
        parameters=parameters,
        hints=(*hints_of(asked), *_other_hints(asked)),
        is_stream=is_stream,
        include_usage=bool(is_stream and options and options.include_usage),
        is_stored=asked.store is not False,
        options=read_options(asked.redraft),
    )


def _other_hints(asked: ChatBody) -> Iterator[str]:
    if asked.store:
        yield "store"
    if any(isinstance(each, NamedMessage) and each.name is not None for each in asked.messages):
        yield "messages[].name"


def _read_tools(tools: Sequence[ChatTool], raw: Sequence[Json]) -> tuple[Tool, ...]:
    read = tuple(_read_tool(*pair) for pair in zip(tools, raw, strict=True))
    if twice := first_duplicate(tool.name for tool in read if tool.kind != "provider"):
        raise invalid_request("tools", f"tools: the function {twice[:80]!r} is defined twice")
    return read


def _read_tool(tool: ChatTool, raw: Json) -> Tool:
    match tool:
        case FunctionTool(function=function):
            schema, strict = function.parameters or {}, function.strict
            return Tool("function", function.name, function.description, schema, strict, raw=raw)
        case CustomTool(custom=custom):
            return Tool("text", custom.name, _description(custom), TEXT_TOOL_SCHEMA, raw=raw)
    return Tool("provider", tool.type, raw=raw)


def _description(custom: CustomDefinition) -> str | None:
    """Return the description of a custom tool, with the grammar of its input."""
    texts = [custom.description] if custom.description else []
    if custom.format and (grammar := custom.format.grammar):
        texts.append(f"The input follows this grammar ({grammar.syntax}):\n{grammar.definition}")
    return "\n\n".join(texts) or None


def _name_of_tool(tool: Json) -> str:
    """Return the name of a tool that `allowed_tools` lists."""
    fields = object_in(tool, "function") or object_in(tool, "custom") or tool
    return text_in(fields, "name") or text_in(tool, "type")


def _read_tool_choice(choice: Any, raw: Any, tools: tuple[Tool, ...]) -> ToolChoice | None:
    """Return whether a tool must be called. Without tools, "none" and "auto" ask for nothing."""
    match choice:
        case None:
            return None
        case NamedChoice(function=ToolName(name=name)) | NamedChoice(custom=ToolName(name=name)):
            made = ToolChoice("tool", name, raw)
        case NamedChoice(allowed_tools=AllowedTools(mode=mode)):
            made = ToolChoice(mode, raw=raw)
        case "none" | "auto" | "required":
            made = ToolChoice(choice, raw=raw)
        case _:
            made = ToolChoice("tool", choice.type, raw)
    if not tools and made.kind in {"none", "auto"}:
        return None
    names = [tool.name for tool in tools]
    if not names:
        raise invalid_request(
            "tool_choice", "tool_choice needs `tools` to choose from, and there are none"
        )
    if made.kind == "tool" and made.name not in names:
        raise invalid_request(
            "tool_choice",
            f"tool_choice must name one of {', '.join(map(repr, names))[:500]}, got "
            f"{format_value(made.name, 80)}",
        )
    return made


def _read_schema(form: ResponseFormat | None) -> AnswerSchema | None:
    """Return the schema that `response_format` asks for; None for text."""
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return AnswerSchema({})
    if form.json_schema is None:
        where = "response_format.json_schema"
        raise invalid_request(where, f"{where} is missing")
    given = form.json_schema
    schema = checked_schema("response_format.json_schema.schema", given.schema_)
    return AnswerSchema(schema, given.name, given.description, given.strict)


def _read_max_tokens(asked: ChatBody) -> int | None:
    """Return the limit of tokens, under its name of today or its earlier one."""
    limits = {asked.max_completion_tokens, asked.max_tokens} - {None}
    if len(limits) > 1:
        raise invalid_request(
            "max_tokens", "max_tokens and max_completion_tokens differ: give one of them"
        )
    return next(iter(limits), None)


# ---- written


def write_request(request: Request, model: str) -> WrittenRequest:
    """Return a request for the model of this name. One of this protocol stays as it is.

    Raises GatewayError 400 that names the field for what changes the answer and cannot be said.
    """
    if request.protocol == "chat":
        kept = {name: value for name, value in request.body.items() if name != "redraft"}
        return WrittenRequest({**kept, "model": model})
    parameters, ignored = write_parameters(request)
    body = {
        "model": model,
        "messages": list(messages_for_model(request)),
        "tools": list(write_tools(request)) or None,
        "tool_choice": write_tool_choice(request),
        "max_tokens": request.max_tokens,
        **{name: request.parameters.get(name) for name in OF_CORE},
        "response_format": _response_format(request.schema),
        **parameters,
    }
    if request.is_stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    said = {name: value for name, value in body.items() if value is not None}
    return WrittenRequest(said, ignored)


def _response_format(schema: AnswerSchema | None) -> dict[str, Any] | None:
    if schema is None:
        return None
    if not schema.schema:
        return {"type": "json_object"}
    strict = is_strict_schema(schema.schema) if schema.strict is None else schema.strict
    form = {"name": schema.name, "schema": schema.schema, "strict": strict}
    if schema.description is not None:
        form["description"] = schema.description
    return {"type": "json_schema", "json_schema": form}


def write_parameters(request: Request) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the parameters for a model of this protocol, without those for which the core has
    fields, and the names of what it is not sent.

    A client of this protocol may send fields that OpenAI does not have, such as `min_p`. Raises
    GatewayError 400 for those that choose the model, the host or the key, or defeat a refinement.
    """
    left_out = (*_tools_left_out(request), *parts_left_out(request))
    if request.protocol == "chat":
        unsent = (n for n in request.hints if n in NOT_PARAMETERS and request.body[n])
        return _own_parameters(request), (*unsent, *left_out)
    said = {
        PARAMETERS[name]["chat"]: value
        for name, value in request.parameters.items()
        if "chat" in PARAMETERS[name] and name not in OF_CORE
    }
    if "parallel_tool_calls" in said and not write_tools(request):
        del said["parallel_tool_calls"]
    if "effort" not in request.parameters and (effort := _effort(request)):
        said["reasoning_effort"] = effort
    unsaid = unsaid_parameters(request.parameters, request.protocol, "chat")
    return said, (*request.hints, *unsaid, *left_out)


NOT_PARAMETERS = frozenset(
    {
        *("model", "messages", "tools", "tool_choice", "response_format", "redraft", *OF_CORE),
        *("max_tokens", "max_completion_tokens", "stream", "stream_options", "store", "metadata"),
        *("n", "logprobs", "top_logprobs", "modalities", "functions", "function_call"),
    }
)
"""The fields of a client of this protocol that have a place of their own, or ask for nothing."""


def _own_parameters(request: Request) -> dict[str, Any]:
    """Return the parameters of a client of this protocol, as it wrote them."""
    given = {
        name: value
        for name, value in request.body.items()
        if name not in NOT_PARAMETERS and is_set(value, NOTHING if name in ROUTING_FIELDS else ())
    }
    if given.get("stop") == []:
        del given["stop"]
    for name in given:
        if name in DENIED_PARAMETERS:
            raise invalid_request(name, f"{name} is not supported: {DENIED_PARAMETERS[name]}")
    return given


def _effort(request: Request) -> str | None:
    """Return how much the model is to think, which this protocol says in words, not in tokens."""
    thinking = request.thinking
    if thinking is None or thinking.mode != "enabled" or thinking.budget_tokens is None:
        return None
    budget = thinking.budget_tokens
    return next((word for most, word in THINKING_EFFORTS if budget <= most), "high")


# ---- tools, written


def write_tools(request: Request) -> tuple[Json, ...]:
    """Return the tools as functions, without those that only a provider runs."""
    return tuple(_function(tool, request) for tool in request.tools if tool.kind != "provider")


def _function(tool: Tool, request: Request) -> Json:
    if request.protocol == "chat" and tool.kind == "function" and tool.raw is not None:
        return {"type": "function", **tool.raw}
    function: dict[str, Any] = {"name": short_name(tool.flat_name)}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = TEXT_TOOL_SCHEMA if tool.kind == "text" else tool.schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def write_tool_choice(request: Request) -> str | dict[str, Any] | None:
    """Return whether the model must call a function. Raises GatewayError 400 if it must call a tool
    that only a provider runs.
    """
    choice = request.tool_choice
    if choice is None:
        return None
    tools = [tool for tool in request.tools if tool.kind != "provider"]
    named = [tool for tool in tools if tool.flat_name == choice.name]
    if choice.kind == "tool" and named:
        name = _function(named[0], request)["function"]["name"]
        return {"type": "function", "function": {"name": name}}
    if choice.kind == "tool" or (choice.kind == "required" and not tools):
        raise invalid_request(
            "tool_choice",
            "tool_choice must not insist on a tool that only a provider runs; a model pass/NAME "
            "that speaks the protocol of the request takes it",
        )
    return choice.kind if tools else None


def _tools_left_out(request: Request) -> Iterator[str]:
    for n, tool in enumerate(request.tools):
        if tool.kind == "provider":
            yield f"tools[{n}] ({tool.name})"
