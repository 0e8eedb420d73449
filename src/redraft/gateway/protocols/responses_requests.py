"""Requests for OpenAI's responses: the wire models, and the reader into the neutral form.

Items of the input become turns: neighbouring items of the assistant (reasoning, messages, calls)
are one turn, and each result of a call is one. The gateway stores no responses, so whatever refers
to a stored one is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, groupby
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import Discriminator, Field, Tag

from ...base.checks import format_value
from ...base.jsontext import dumps_text, first_duplicate, list_in, object_in, text_in
from ..exchange import invalid_request
from ..neutral import (
    AnswerSchema,
    Call,
    Json,
    Media,
    Other,
    Part,
    Request,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    Turn,
    short_name,
)
from ..request_fields import MAX_NAME_CHARS, checked_schema
from .chat_fields import AudioPart, FunctionDefinition, OpenAIBody, RefusalPart
from .client_tools import OPENAI_TOOLS
from .fields import (
    MAX_TOOLS,
    HintValue,
    Parameter,
    RefusedField,
    TokenLimit,
    WireModel,
    hints_of,
    parameters_of,
    read_body,
    tag_by,
)
from .options import read_options
from .tool_arguments import TEXT_TOOL_SCHEMA

SAME_PROTOCOL = "pass/NAME to a model that speaks OpenAI's responses takes it"
NOT_STORED = (
    f"the gateway stores no responses: send the whole conversation as input; {SAME_PROTOCOL}"
)
LOGPROBS = "message.output_text.logprobs"  # the value of `include` that changes the answer
SIGNATURE, REDACTED = "signature", "redacted"
"""What the gateway writes into `encrypted_content`, before a colon and a model's own text."""
ALLOWED, TOOL_SEARCH = "allowed_tools", "tool_search"
EXEC = ("type", "exec")  # of the action of every local shell
REFUSED_ITEMS: Mapping[str, str] = {
    "item_reference": NOT_STORED,
    **dict.fromkeys(
        ("compaction", "compaction_summary", "context_compaction"),
        f"only the model that wrote it can read it; {SAME_PROTOCOL}",
    ),
    "compaction_trigger": f"the gateway does not compact the input; {SAME_PROTOCOL}",
}
"""The items of the input that change the answer and that only OpenAI's models can honour."""

NonEmpty = Annotated[str, Field(min_length=1)]


# ---- contents


class TextPart(WireModel):
    """A text of a message or of the result of a tool."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class ImagePart(WireModel):
    """An image at a URL (http, https or data), or stored at the provider."""

    type: Literal["input_image"]
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class FilePart(WireModel):
    """A file: its data in base64 or as a data URL, where it lies, or its ID at the provider."""

    type: Literal["input_file"]
    file_data: str | None = None
    file_url: str | None = None
    file_id: str | None = None
    filename: str | None = None
    detail: str | None = None


ContentPart: TypeAlias = Annotated[
    TextPart | RefusalPart | ImagePart | FilePart | AudioPart, Field(discriminator="type")
]
Content: TypeAlias = str | list[ContentPart]


# ---- tools


class FunctionTool(FunctionDefinition):
    """A function that the client runs."""

    type: Literal["function"]


class TextFormat(WireModel):
    """Which texts a tool takes: any, or those of a grammar (lark or regex)."""

    type: str
    syntax: str | None = None
    definition: str | None = None


class CustomTool(WireModel):
    """A tool that the client runs, whose input is a text."""

    type: Literal["custom"]
    name: NonEmpty
    description: str | None = None
    format: TextFormat | None = None


class SearchTool(WireModel):
    """A search for further tools, which the provider or ("client") the client runs."""

    type: Literal["tool_search"]
    execution: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OtherTool(WireModel):
    """A tool that the provider runs, or that only OpenAI's models know."""

    type: NonEmpty


_Function = Annotated[FunctionTool, Tag("type:function")]
_Custom = Annotated[CustomTool, Tag("type:custom")]
_Other = Annotated[OtherTool, Tag("other")]
ToolInGroup: TypeAlias = Annotated[
    _Function | _Custom | _Other, tag_by("type", "function", "custom", "namespace", TOOL_SEARCH)
]


class NamespaceTool(WireModel):
    """A group of tools, in which names are distinct."""

    type: Literal["namespace"]
    name: NonEmpty
    description: str | None = None
    tools: list[ToolInGroup]


AnyTool: TypeAlias = Annotated[
    _Function
    | _Custom
    | _Other
    | Annotated[NamespaceTool, Tag("type:namespace")]
    | Annotated[SearchTool, Tag("type:tool_search")],
    tag_by("type", "function", "custom", "namespace", TOOL_SEARCH),
]


class NamedTool(WireModel):
    """The tool that the model must call, or (type "allowed_tools") those that it may call."""

    type: NonEmpty
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[NamedTool] | None = None


Choice: TypeAlias = Literal["auto", "none", "required"] | NamedTool | None


# ---- the answer


class AnswerFormat(WireModel):
    """The form of the answer: a text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: NonEmpty | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(WireModel):
    """The form of the answer, and how long it is to be."""

    format: AnswerFormat | None = None
    verbosity: Annotated[str | None, Parameter("verbosity")] = None


class Reasoning(WireModel):
    """How much the model is to think, and what of it the client wants to see."""

    effort: Annotated[str | None, Parameter("effort")] = None
    summary: HintValue = None
    generate_summary: HintValue = None
    context: HintValue = None
    mode: HintValue = None


# ---- items of the input


class MessageItem(WireModel):
    """A message of any role."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class ToolCallItem(WireModel):
    """A call of one of the client's own tools, which may be in a namespace."""

    call_id: NonEmpty
    name: NonEmpty
    namespace: str | None = None


class FunctionCallItem(ToolCallItem):
    """A call of a function."""

    type: Literal["function_call"]
    arguments: str


class CustomToolCallItem(ToolCallItem):
    """A call of a tool whose input is a text."""

    type: Literal["custom_tool_call"]
    input: str


class ActionItem(WireModel):
    """A call of a tool that OpenAI defines and the client runs."""

    type: Literal["local_shell_call", "shell_call", "apply_patch_call"]
    call_id: str | None = None
    id: str | None = None
    action: dict[str, Any] | None = None
    operation: dict[str, Any] | None = None


class CallOutputItem(WireModel):
    """The result of a call of one of the client's own tools."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: NonEmpty
    output: Content


class ActionOutputItem(WireModel):
    """The result of a call of a tool that OpenAI defines and the client runs."""

    type: Literal["local_shell_call_output", "shell_call_output", "apply_patch_call_output"]
    call_id: str | None = None
    id: str | None = None
    output: object = None
    status: str | None = None


class ReasoningText(WireModel):
    """A part of what a model thought."""

    text: str


class ReasoningItem(WireModel):
    """What a model thought before it answered."""

    type: Literal["reasoning"]
    summary: list[ReasoningText] | None = None
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None


class AdditionalToolsItem(WireModel):
    """Tools that the model may call from here on."""

    type: Literal["additional_tools"]
    tools: list[AnyTool]


class SearchCallItem(WireModel):
    """A search for further tools. One that the provider ran has no `call_id`."""

    type: Literal["tool_search_call"]
    call_id: str | None = None
    arguments: object = None


class SearchOutputItem(WireModel):
    """The tools that a search found, which the model may call from here on."""

    type: Literal["tool_search_output"]
    call_id: str | None = None
    tools: list[AnyTool]


class ConfigurationItem(WireModel):
    """What the request says of the thinking and of the answer, from here on."""

    type: Literal["configuration_update"]
    reasoning: Reasoning | None = None
    text: TextOptions | None = None


class OtherItem(WireModel):
    """An item of another type, such as a search that the provider ran."""

    type: str | None = None


KnownItem: TypeAlias = (
    FunctionCallItem
    | CustomToolCallItem
    | ActionItem
    | CallOutputItem
    | ActionOutputItem
    | ReasoningItem
    | AdditionalToolsItem
    | SearchCallItem
    | SearchOutputItem
    | ConfigurationItem
)
_KNOWN_TYPES = frozenset(
    name for kind in get_args(KnownItem) for name in get_args(kind.model_fields["type"].annotation)
)


def _item_kind(item: object) -> str:
    fields: Mapping[object, object] = item if isinstance(item, Mapping) else {}
    kind = fields.get("type")
    if kind is None:  # (a reference to a stored item may have no type either)
        return "other item" if "id" in fields and "role" not in fields else "message item"
    if kind == "message":
        return "message item"
    return "known item" if isinstance(kind, str) and kind in _KNOWN_TYPES else "other item"


Item: TypeAlias = Annotated[
    Annotated[MessageItem, Tag("message item")]
    | Annotated[Annotated[KnownItem, Field(discriminator="type")], Tag("known item")]
    | Annotated[OtherItem, Tag("other item")],
    Discriminator(_item_kind),
]


# ---- the request


class StreamOptions(WireModel):
    """What a stream holds besides the answer."""

    include_obfuscation: HintValue = None


class ResponsesRequest(OpenAIBody):
    """The body of `POST /v1/responses`."""

    model: Annotated[str, Field(max_length=MAX_NAME_CHARS, pattern=r"\S")]
    input: str | Annotated[list[Item], Field(min_length=1)]
    instructions: str | None = None
    tools: list[AnyTool] | None = None
    tool_choice: Choice = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: TokenLimit | None = None
    stream_options: StreamOptions | None = None

    access_programs: HintValue = None
    client_metadata: HintValue = None
    context_management: HintValue = None
    image: HintValue = None
    include: HintValue = None
    max_tool_calls: HintValue = None

    background: Annotated[object, RefusedField(NOT_STORED, (False,))] = None
    background_options: Annotated[object, RefusedField(NOT_STORED)] = None
    conversation: Annotated[object, RefusedField(NOT_STORED, ("",))] = None
    previous_response_id: Annotated[object, RefusedField(NOT_STORED, ("",))] = None
    prompt: Annotated[
        object, RefusedField(f"prompts are stored at the provider; {SAME_PROTOCOL}")
    ] = None
    moderation: Annotated[object, RefusedField(f"its results would be lost; {SAME_PROTOCOL}")] = (
        None
    )
    generate: Annotated[
        object,
        RefusedField(f"a request that only fills a cache has no answer; {SAME_PROTOCOL}", (True,)),
    ] = None
    multi_agent: Annotated[
        object,
        RefusedField(f"the provider runs the other agents; {SAME_PROTOCOL}", ({"enabled": False},)),
    ] = None
    top_logprobs: Annotated[
        object, RefusedField(f"the answer has no log-probabilities; {SAME_PROTOCOL}", (0,))
    ] = None
    truncation: Annotated[
        object,
        RefusedField(f"the input is never cut: use 'disabled'; {SAME_PROTOCOL}", ("disabled",)),
    ] = None


# ---- reading


def read_request(body: Json) -> Request:
    """Read a request. Raises GatewayError 400 that names the field that is wrong or refused."""
    read = read_body(ResponsesRequest, body)
    if isinstance(read.include, list) and LOGPROBS in read.include:
        raise invalid_request("include", f"include {LOGPROBS!r} is not supported: {SAME_PROTOCOL}")
    items = (
        [MessageItem(role="user", content=read.input)]
        if isinstance(read.input, str)
        else read.input
    )
    tools = _allowed_tools(read.tool_choice, _tools(read.tools or (), items))
    updates = [item for item in items if isinstance(item, ConfigurationItem)]
    parameters = parameters_of(read)
    for update in updates:
        parameters |= parameters_of(update)
    texts = [each for each in (read.text, *(update.text for update in updates)) if each]
    turns = tuple(_turns(read.instructions, items))
    if not turns:
        raise invalid_request("input", "input must have a message")
    return Request(
        protocol="responses",
        model=read.model,
        body=body,
        turns=turns,
        tools=tools,
        tool_choice=_tool_choice(read.tool_choice, tools),
        schema=_answer_schema(texts),
        max_tokens=read.max_output_tokens,
        parameters=parameters,
        hints=(*hints_of(read), *(("store",) if read.store else ())),
        is_stream=bool(read.stream),
        include_usage=True,
        is_stored=read.store is not False,
        options=read_options(read.redraft),
    )


def _answer_schema(texts: Iterable[TextOptions]) -> AnswerSchema | None:
    """Return the schema that the last format asks for."""
    formats = [text.format for text in texts if text.format]
    if not formats or formats[-1].type == "text":
        return None
    form = formats[-1]
    if form.type == "json_object":
        return AnswerSchema({})
    if form.name is None:
        raise invalid_request("text.format.name", "text.format.name is missing")
    schema = checked_schema("text.format.schema", form.schema_)
    return AnswerSchema(schema, form.name, form.description, form.strict)


# ---- tools


def _tools(tools: Iterable[AnyTool], items: Iterable[Item]) -> tuple[Tool, ...]:
    """Return the tools of the request and of its input, those of namespaces with their group. What
    the input adds several times counts once.
    """
    given = list(chain.from_iterable(map(_tools_of, tools)))
    twice = first_duplicate(tool.flat_name for tool in given if tool.kind != "provider")
    if twice is not None:
        raise invalid_request("tools", f"tools: {twice[:80]!r} is defined twice")
    lists = (i.tools for i in items if isinstance(i, AdditionalToolsItem | SearchOutputItem))
    names = {_name_of(tool): tool for tool in given}
    added = chain.from_iterable(map(_tools_of, chain.from_iterable(lists)))
    given += [tool for tool in added if names.setdefault(_name_of(tool), tool) is tool]
    if len(given) > MAX_TOOLS:
        raise invalid_request("tools", f"tools holds {len(given)} tools; at most {MAX_TOOLS}")
    return tuple(given)


def _name_of(tool: Tool) -> tuple[bool, str]:
    """Return whether the provider has a tool, and its name."""
    return tool.kind == "provider", tool.flat_name


def _tools_of(tool: AnyTool) -> Iterator[Tool]:
    if not isinstance(tool, NamespaceTool):
        yield _tool(tool)
        return
    for each in tool.tools:
        inner = _tool(each, tool.name)
        texts = [text for text in (tool.description, inner.description) if text]
        yield replace(inner, description="\n\n".join(texts) or None)


def _tool(tool: ToolInGroup | SearchTool, group: str = "") -> Tool:
    match tool:
        case FunctionTool():
            schema = tool.parameters or {}
            return Tool("function", tool.name, tool.description, schema, tool.strict, group)
        case CustomTool():
            return Tool("text", tool.name, _text_description(tool), TEXT_TOOL_SCHEMA, group=group)
        case SearchTool(execution="client"):
            raw = {"type": TOOL_SEARCH}
            return Tool("function", TOOL_SEARCH, tool.description, tool.parameters or {}, raw=raw)
        case OtherTool(type=kind) if kind in OPENAI_TOOLS and not group:
            environment = object_in(tool.model_extra or {}, "environment")
            if text_in(environment, "type") in ("", "local"):
                return _shell_tool(OPENAI_TOOLS[kind], environment)
    return Tool("provider", tool.type, group=group, raw=tool.model_dump())


def _shell_tool(tool: Tool, environment: Json) -> Tool:
    """Return a tool with the skills that the client has."""
    skills = [dumps_text(skill) for skill in list_in(environment, "skills")]
    texts = [tool.description or "", *(["These skills are there:", *skills] if skills else [])]
    return replace(tool, description="\n".join(texts), raw={"type": tool.name})


def _text_description(tool: CustomTool) -> str | None:
    """Return the description of a tool, and the grammar of its input, which no function has."""
    if tool.format is None or not tool.format.definition:
        return tool.description
    kind = f"{tool.format.syntax} grammar" if tool.format.syntax else "grammar"
    grammar = f"The input must follow this {kind}:\n{tool.format.definition}"
    return f"{tool.description}\n\n{grammar}" if tool.description else grammar


def _allowed_tools(choice: Choice, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """Return the tools that the model may call."""
    if not isinstance(choice, NamedTool) or choice.type != ALLOWED:
        return tools
    names = _tools_by_name(tools)
    allowed = [
        _named_tool(f"tool_choice.tools[{n}]", each, names)
        for n, each in enumerate(choice.tools or ())
    ]
    ids = {id(tool) for tool in allowed}
    return tuple(tool for tool in tools if id(tool) in ids)


def _tool_choice(choice: Choice, tools: tuple[Tool, ...]) -> ToolChoice | None:
    """Return whether the model must call a tool; None if that is not said, or there is none."""
    if isinstance(choice, NamedTool) and choice.type != ALLOWED:
        tool = _named_tool("tool_choice", choice, _tools_by_name(tools))
        if tool.kind == "provider":
            message = f"tool_choice {choice.type[:80]!r} is not supported: {SAME_PROTOCOL}"
            raise invalid_request("tool_choice", message)
        return ToolChoice("tool", tool.flat_name)
    kind = choice.mode if isinstance(choice, NamedTool) else choice
    if kind is not None and any(tool.kind != "provider" for tool in tools):
        return ToolChoice(kind)
    if kind == "required":
        message = "tool_choice 'required' needs a tool of the type function or custom"
        raise invalid_request("tool_choice", message)
    return None


def _tools_by_name(tools: Iterable[Tool]) -> dict[tuple[bool, str], Tool]:
    """Return tools by whether the provider has them, and their names, with and without group."""
    return {
        (tool.kind == "provider", name): tool
        for tool in tools
        for name in (tool.name, tool.flat_name)
    }


def _named_tool(where: str, named: NamedTool, tools: Mapping[tuple[bool, str], Tool]) -> Tool:
    """Return the tool of a name, or, if the provider has it, of a type."""
    name = (named.name or "") if named.type in ("function", "custom") else named.type
    tool = tools.get((True, named.type)) or tools.get((False, name))
    if tool is None:
        raise invalid_request(
            where, f"{where} must name one of the tools, got {format_value(name, 80)}"
        )
    return tool


# ---- turns


def _turns(instructions: str | None, items: Iterable[Item]) -> Iterator[Turn]:
    """Yield the conversation. What only the provider knows is left out where it stands alone."""
    if instructions:
        yield Turn("system", (Text(instructions),))
    turns = (turn for n, item in enumerate(items) for turn in _turns_of(f"input[{n}]", item))
    for is_assistant, group in groupby(turns, key=lambda turn: turn.role == "assistant"):
        if not is_assistant:
            yield from group
            continue
        parts = tuple(chain.from_iterable(turn.parts for turn in group))
        if any(not isinstance(part, Thinking | Other) for part in parts):
            yield Turn("assistant", parts)


def _turns_of(where: str, item: Item) -> Iterator[Turn]:
    """Yield the turn of an item, if it has one."""
    match item:
        case MessageItem():
            yield _message(where, item)
        case CallOutputItem():
            yield Turn("tool", _parts(f"{where}.output", item.output), item.call_id)
        case ActionOutputItem():
            output = item.status if item.output is None else item.output
            text = output if isinstance(output, str) else dumps_text(output)
            is_error = item.status == "failed"
            yield Turn("tool", (Text(text),), _call_id(where, item), is_error)
        case SearchOutputItem():
            found = chain.from_iterable(map(_tools_of, item.tools))
            names = [short_name(tool.flat_name) for tool in found]
            text = f"Found these tools: {', '.join(names)}" if names else "Found no tools."
            if item.call_id:
                yield Turn("tool", (Text(text),), item.call_id)
        case AdditionalToolsItem() | ConfigurationItem():
            return
        case _:
            yield Turn("assistant", tuple(_assistant_parts(where, item)))


def _assistant_parts(where: str, item: Item) -> Iterator[Part]:
    match item:
        case FunctionCallItem():
            yield Call(item.call_id, _flat_name(item), item.arguments)
        case CustomToolCallItem():
            yield Call(item.call_id, _flat_name(item), dumps_text({"input": item.input}))
        case ActionItem():
            said = item.action or item.operation or {}
            said = {name: value for name, value in said.items() if (name, value) != EXEC}
            yield Call(_call_id(where, item), item.type.removesuffix("_call"), dumps_text(said))
        case SearchCallItem(call_id=str(call_id)):
            yield Call(call_id, TOOL_SEARCH, dumps_text(item.arguments or {}))
        case ReasoningItem():
            yield from _thinking(item)
        case OtherItem():
            kind = item.type or "item_reference"
            if kind in REFUSED_ITEMS:
                message = f"{where}.type {kind!r} is not supported: {REFUSED_ITEMS[kind]}"
                raise invalid_request(f"{where}.type", message)
            yield Other(kind, item.model_dump())


def _flat_name(item: ToolCallItem) -> str:
    return Tool("function", item.name, group=item.namespace or "").flat_name


def _call_id(where: str, item: ActionItem | ActionOutputItem) -> str:
    """Return the ID of a call. The result of a local shell has it in `id`."""
    call_id = item.call_id or item.id
    if not call_id:
        raise invalid_request(f"{where}.call_id", f"{where}.call_id is missing")
    return call_id


def _thinking(item: ReasoningItem) -> Iterator[Thinking]:
    """Yield what a model thought. `encrypted_content` counts if the gateway wrote it: what OpenAI
    wrote, only its own model can read.
    """
    text = "\n\n".join(part.text for part in item.summary or item.content or ())
    kind, _, proof = (item.encrypted_content or "").partition(":")
    if kind == SIGNATURE:
        yield Thinking(text, signature=proof)
    elif kind == REDACTED:
        yield Thinking(text, redacted=proof)
    elif text:
        yield Thinking(text)


def _message(where: str, item: MessageItem) -> Turn:
    parts = _parts(f"{where}.content", item.content)
    return Turn("system" if item.role == "developer" else item.role, parts)


def _parts(where: str, content: str | list[ContentPart]) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),)
    if not content:
        raise invalid_request(where, f"{where} must be a text or a list of at least one part")
    return tuple(_part(f"{where}[{n}]", part) for n, part in enumerate(content))


def _part(where: str, part: ContentPart) -> Part:
    match part:
        case TextPart():
            return Text(part.text)
        case RefusalPart():
            return Text(part.refusal, is_refusal=True)
        case AudioPart(input_audio=audio):
            return Media("audio", f"data:audio/{audio.format};base64,{audio.data}")
        case ImagePart():
            url = _checked_url(f"{where}.image_url", part.image_url)
            media = Media("image", url, part.file_id, detail=part.detail)
        case FilePart():
            url = _checked_url(f"{where}.file_url", part.file_url) or _data_url(part.file_data)
            media = Media("document", url, part.file_id, part.filename)
    if not media.url and not media.file_id:
        names = "image_url" if media.kind == "image" else "file_data, file_url"
        raise invalid_request(where, f"{where} needs {names} or file_id")
    return media


def _data_url(data: str | None) -> str | None:
    """Return the data of a file as a data URL. In base64 alone it is a PDF."""
    return data if not data or data.startswith("data:") else f"data:application/pdf;base64,{data}"


def _checked_url(where: str, url: str | None) -> str | None:
    if url and not url[:8].lower().startswith(("https://", "http://", "data:")):
        message = f"{where} must be an http, https or data URL, got {format_value(url, 80)}"
        raise invalid_request(where, message)
    return url
