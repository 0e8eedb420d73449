"""Requests of Anthropic's messages: their reader and their writer.

A request of a client of this protocol is written back from its own body: blocks, tools and fields
go on as the client sent them, unless the neutral form says something else by now.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any, Literal

from ...base.checks import format_value
from ...base.jsontext import dumps_text, first_duplicate
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
    ThinkingRequest,
    Tool,
    ToolChoice,
    Turn,
    WrittenRequest,
    short_name,
)
from ..request_fields import (
    DENIED_PARAMETERS,
    NOTHING,
    checked_schema,
    is_set,
)
from .client_tools import anthropic_tool
from .fields import (
    MAX_TOOLS,
    PARAMETERS,
    Hint,
    hints_of,
    marked_fields,
    parameters_of,
    read_body,
    unsaid_parameters,
)
from .messages_fields import (
    Base64Document,
    Base64Image,
    Block,
    Choice,
    ContentSource,
    CustomTool,
    DocumentBlock,
    FileSource,
    ImageBlock,
    Message,
    MessagesRequest,
    ProviderTool,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    TextSource,
    ThinkingBlock,
    ThinkingConfig,
    ToolChangeBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
)
from .messages_schemas import output_schema, schema_in_words
from .options import read_options
from .tool_arguments import TEXT_TOOL_SCHEMA, arguments_in

DEFAULT_MAX_TOKENS = 16_384
"""The limit of tokens of a request that states none; the protocol requires one."""
MIN_THINKING_TOKENS = 1024
ANSWER_TOOL = "redraft_answer"
"""The tool whose arguments are the answer, where a server knows no output format."""
UNSAID = "a model that speaks Anthropic's messages cannot be told it"
EFFORTS: Mapping[str, str] = {
    "minimal": "low",
    **{word: word for word in ("low", "medium", "high", "xhigh", "max")},
}
"""The efforts that the protocol knows, by those of the neutral form, of which "none" is no
thinking. Others are left out.
"""
BILLING_BLOCK = "x-anthropic-billing-header"
"""How a text of the system begins that tells Anthropic alone which client asks."""
TIERS: Mapping[str, str] = {"auto": "auto", "default": "standard_only"}
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.ASCII | re.DOTALL)
_OUTSIDE_ID = re.compile(r"[^\w-]", re.ASCII)


# ---- reading


def read_request(body: Json) -> Request:
    """Read a request. Raises GatewayError 400 that names the field."""
    given = read_body(MessagesRequest, body)
    for name in body:
        if name in DENIED_PARAMETERS and is_set(body[name], NOTHING):
            raise invalid_request(name, f"{name} is not supported: {DENIED_PARAMETERS[name]}")
    tools = _read_tools(given)
    return Request(
        protocol="messages",
        model=given.model,
        body=body,
        turns=tuple(_read_turns(given)),
        tools=tools,
        tool_choice=_read_choice(given.tool_choice, tools),
        schema=_read_schema(given),
        max_tokens=given.max_tokens,
        thinking=_read_thinking(given.thinking),
        parameters=_read_parameters(given),
        hints=(*hints_of(given), *_tool_hints(given)),
        is_stream=given.stream is True,
        include_usage=True,
        is_stored=body.get("store") is not False,  # a field of other protocols
        options=read_options(given.redraft),
    )


def _read_parameters(given: MessagesRequest) -> dict[str, Any]:
    parameters = parameters_of(given)
    if given.stop_sequences == []:
        del parameters["stop"]  # servers of other protocols refuse an empty list
    choice = given.tool_choice
    if given.tools and choice and choice.disable_parallel_tool_use is not None:
        parameters["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if given.service_tier == "standard_only":
        parameters["service_tier"] = "default"
    return parameters


def _tool_hints(given: MessagesRequest) -> Iterator[str]:
    for n, tool in enumerate(given.tools or ()):
        for path, mark, _ in marked_fields(tool, f"tools[{n}]."):
            if isinstance(mark, Hint) and isinstance(tool, CustomTool):
                yield path


def _read_thinking(given: ThinkingConfig | None) -> ThinkingRequest | None:
    if given is None:
        return None
    if given.type == "enabled" and given.budget_tokens is None:
        raise invalid_request("thinking.budget_tokens", "thinking.budget_tokens is missing")
    return ThinkingRequest(
        mode="disabled" if given.type == "between_tools" else given.type,
        budget_tokens=given.budget_tokens,
        is_shown=given.display != "omitted",
    )


def _read_schema(given: MessagesRequest) -> AnswerSchema | None:
    config = given.output_config
    name, form = ("output_config.format", config.format if config else None)
    if form is None:
        name, form = "output_format", given.output_format
    return AnswerSchema(checked_schema(f"{name}.schema", form.schema_)) if form else None


def _read_tools(given: MessagesRequest) -> tuple[Tool, ...]:
    """Return the tools that the model may call at the end of the conversation: those of the
    request, with what its messages add and remove.
    """
    tools = tuple(_read_tool(tool) for tool in given.tools or ())
    if twice := first_duplicate(tool.name for tool in tools if "name" in (tool.raw or {})):
        raise invalid_request("tools", f"tools: the tool {twice!r} is defined twice")
    added: dict[str, Tool] = {}
    removals: dict[str, bool] = {}  # by name: whether the last change is one
    for change in _tool_changes(given.messages):
        name = change.tool.name or ""
        if change.tool.definition:
            tool = _read_tool(change.tool.definition)
            added[tool.name], name = tool, tool.name
        removals[name] = change.type == "tool_removal"
    return _changed_tools(tools, added, removals)


def _tool_changes(messages: Iterable[Message]) -> Iterator[ToolChangeBlock]:
    """Yield what messages change. Tools of MCP servers are not known by their names here."""
    for message in messages:
        for block in message.content if isinstance(message.content, list) else ():
            if isinstance(block, ToolChangeBlock) and not block.tool.type.startswith("mcp_"):
                yield block


def _changed_tools(
    tools: Iterable[Tool], added: Mapping[str, Tool], removals: Mapping[str, bool]
) -> tuple[Tool, ...]:
    """Return the tools and those added, which replace others of their names, without the removed
    ones.
    """
    every = [*(tool for tool in tools if tool.name not in added), *added.values()]
    if len(every) > MAX_TOOLS:
        message = f"messages: with those added there are {len(every)} tools; at most {MAX_TOOLS}"
        raise invalid_request("messages", message)
    return tuple(tool for tool in every if not removals.get(tool.name))


def _read_tool(tool: CustomTool | ProviderTool) -> Tool:
    if isinstance(tool, ProviderTool):
        known = anthropic_tool(tool.type, tool.name) or Tool("provider", tool.name or tool.type)
        return replace(known, raw=tool.raw)
    return Tool(
        "function",
        tool.name,
        tool.description,
        tool.input_schema or {},
        tool.strict,
        raw=tool.raw,
    )


def _read_choice(choice: Choice | None, tools: tuple[Tool, ...]) -> ToolChoice | None:
    if choice is None:
        return None
    if choice.type == "tool":
        if choice.name not in {tool.name for tool in tools}:
            raise invalid_request(
                "tool_choice.name",
                f"tool_choice.name must be one of the tools, got {format_value(choice.name, 80)}",
            )
        return ToolChoice("tool", choice.name or "", raw=choice.raw)
    if choice.type == "any":
        if not tools:
            raise invalid_request(
                "tool_choice", "tool_choice needs `tools` to choose from, and there are none"
            )
        return ToolChoice("required", raw=choice.raw)
    return ToolChoice(choice.type, raw=choice.raw) if tools else None


def _read_turns(given: MessagesRequest) -> Iterator[Turn]:
    if given.system:
        yield Turn("system", tuple(map(_system_part, _parts(given.system))))
    for n, message in enumerate(given.messages):
        if message.content is None and message.role != "system":
            raise invalid_request(f"messages[{n}].content", f"messages[{n}].content is missing")
        if message.role == "user" and isinstance(message.content, list):
            yield from _user_turns(message, message.content)
        else:
            yield Turn(message.role, _parts(message.content), raw=message.raw)


def _system_part(part: Part) -> Part:
    is_billing = isinstance(part, Text) and part.raw and part.text.startswith(BILLING_BLOCK)
    return Other(BILLING_BLOCK, part.raw or {}, is_hint=True) if is_billing else part


def _user_turns(message: Message, blocks: list[Block]) -> Iterator[Turn]:
    """Yield the results of tools, which must follow the calls, and then what the user says."""
    results = [block for block in blocks if isinstance(block, ToolResultBlock)]
    for block in results:
        yield Turn(
            "tool",
            _parts(block.content),
            call_id=block.tool_use_id,
            is_error=block.is_error is True,
            raw=block.raw,
        )
    if len(results) < len(blocks) or not blocks:
        said = [block for block in blocks if not isinstance(block, ToolResultBlock)]
        yield Turn("user", _parts(said), raw=message.raw)


def _parts(content: str | Iterable[Block] | None) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return tuple(part for block in content or () for part in _block_parts(block))


def _block_parts(block: Block) -> Iterator[Part]:
    """Yield the parts for a block. If they are several, their `raw` is the same object."""
    raw = block.raw
    match block:
        case TextBlock():
            yield Text(block.text, raw=raw)
        case ThinkingBlock():
            yield Thinking(block.thinking, block.signature, raw=raw)
        case RedactedThinkingBlock():
            yield Thinking(redacted=block.data, raw=raw)
        case ToolUseBlock():
            yield Call(block.id, block.name, dumps_text(block.input), raw=raw)
        case ImageBlock():
            yield _media("image", block.source, None, raw)
        case DocumentBlock():
            yield from _document_parts(block)
        case SearchResultBlock() | ToolReferenceBlock():
            yield Text(_text_of(block), raw=raw)
        case _:
            yield Other(block.type, raw, is_hint=isinstance(block, ToolChangeBlock))


def _text_of(found: SearchResultBlock | ToolReferenceBlock) -> str:
    """Return what a search of the client found."""
    if isinstance(found, ToolReferenceBlock):
        return f"Found the tool {short_name(found.tool_name)}."
    return "\n\n".join((found.title, found.source, *(each.text for each in found.content)))


def _document_parts(block: DocumentBlock) -> Iterator[Part]:
    raw, source = block.raw, block.source
    texts = [block.context]
    if isinstance(source, TextSource | ContentSource):
        texts = [block.title, block.context]
        parts = _parts(source.data if isinstance(source, TextSource) else source.content)
    else:
        parts = (_media("document", source, block.title, raw),)
    found = [*(Text(text) for text in texts if text), *parts]
    yield from (replace(part, raw=raw) for part in found or [Other(block.type, raw)])


def _media(
    kind: Literal["image", "document"],
    source: Base64Image | Base64Document | UrlSource | FileSource,
    name: str | None,
    raw: Json,
) -> Media:
    match source:
        case UrlSource():
            return Media(kind, url=source.url, name=name, raw=raw)
        case FileSource():
            return Media(kind, file_id=source.file_id, name=name, raw=raw)
    return Media(kind, f"data:{source.media_type};base64,{source.data}", name=name, raw=raw)


# ---- writing


def write_request(request: Request, model: str) -> WrittenRequest:
    """Return a request for the model of this name. Raises GatewayError 400 that names the field for
    what changes the answer and cannot be said.
    """
    writer = _RequestWriter(request)
    body = writer.body(model)
    return WrittenRequest(body, tuple(dict.fromkeys(writer.ignored)))


def with_forced_tool(body: Json, schema: Json) -> dict[str, Any] | None:
    """Return a written request that asks for the JSON of a schema by a tool that the model must
    call, for servers that know no output format. `messages_replies` reads the call as the answer.

    None if the schema is not one of an object, which arguments are. A model that must call a tool
    cannot think.
    """
    if schema.get("type", "object") != "object":
        return None
    config = {k: v for k, v in (body.get("output_config") or {}).items() if k != "format"}
    tools = body.get("tools") or []
    tool = {
        "name": ANSWER_TOOL,
        "description": "Gives the final answer.",
        "input_schema": {"type": "object", **schema},
    }
    may_call = tools and (body.get("tool_choice") or {}).get("type") != "none"
    choice = {"type": "any"} if may_call else {"type": "tool", "name": ANSWER_TOOL}
    forced = {**body, "tools": [*tools, tool], "tool_choice": choice, "output_config": config}
    for name in ("thinking", *(() if config else ("output_config",))):
        forced.pop(name, None)
    return forced


class _OpenMessage:
    """A message to which turns may be added. `raw`: as a client of this protocol sent it."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.results: list[Json] = []
        self.blocks: list[Json] = []
        self.raw: Json | None = None

    def as_json(self) -> dict[str, Any]:
        blocks = [*self.results, *self.blocks]
        raw = self.raw or {}
        if "content" in raw or not raw:
            return {"role": self.role, **raw, "content": self._content(blocks, raw.get("content"))}
        return {"role": self.role, **raw}

    @staticmethod
    def _content(blocks: list[Json], raw: Any) -> Any:
        """Return a text by itself if there is nothing else, and the client wrote no list."""
        if isinstance(raw, list):
            return blocks
        if len(blocks) == 1 and set(blocks[0]) == {"type", "text"}:
            return blocks[0]["text"]
        return blocks or ""


class _RequestWriter:
    """Writes one request. `ignored` are the client's fields that have no place in it."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._is_same = request.protocol == "messages"
        self._given = request.body if self._is_same else {}
        unsaid = unsaid_parameters(request.parameters, request.protocol, "messages")
        self.ignored = [] if self._is_same else [*request.hints, *unsaid]

    def body(self, model: str) -> dict[str, Any]:
        request, given = self._request, self._given
        body = {name: value for name, value in given.items() if name != "redraft"}
        config = self._output_config()
        demand = [] if request.schema is None or "format" in config else [_in_words(request.schema)]
        system, messages = self._conversation(demand)
        fields: dict[str, Any] = {
            "model": model,
            "max_tokens": request.max_tokens or DEFAULT_MAX_TOKENS,
            "system": system,
            "messages": messages,
            "thinking": self._thinking(),
            "output_config": config or None,
            "output_format": None,
            "tools": self._tools(),
            "tool_choice": self._tool_choice(),
            **self._parameters(),
        }
        if request.is_stream is not (given.get("stream") is True):
            fields["stream"] = request.is_stream or None
        for name, value in fields.items():
            if value is not None:
                body[name] = value
            elif given.get(name):
                del body[name]
        return body

    # ---- settings

    def _parameters(self) -> dict[str, Any]:
        """Return the parameters that stand at the top of the body."""
        said, given = self._request.parameters, self._given
        tier = said.get("service_tier")
        values = {
            "temperature": self._temperature(),
            "top_p": said.get("top_p"),
            "top_k": said.get("top_k"),
            "stop_sequences": said.get("stop"),
            "service_tier": given.get("service_tier") if self._is_same else TIERS.get(tier or ""),
        }
        if tier is not None and not values["service_tier"]:
            self.ignored.append("service_tier")
        return values

    def _temperature(self) -> Any:
        """Return the temperature: at most 1; none for a model that thinks, because it must be 1."""
        temperature = self._request.parameters.get("temperature")
        if temperature is None or temperature == self._given.get("temperature"):
            return temperature
        thinking = self._request.thinking
        if thinking and thinking.mode != "disabled":
            self.ignored.append("temperature")
            return None
        if temperature > 1:
            self.ignored.append("temperature")
        return min(temperature, 1)

    def _thinking(self) -> dict[str, Any] | None:
        said, limit = self._request.thinking, self._request.max_tokens or DEFAULT_MAX_TOKENS
        if said is None:
            disabled = self._request.parameters.get("effort") == "none"
            return {"type": "disabled"} if disabled else None
        given = self._given.get("thinking") or {}
        if said.mode == ("disabled" if given.get("type") == "between_tools" else given.get("type")):
            written = dict(given)
        else:
            written = {"type": said.mode} | ({} if said.is_shown else {"display": "omitted"})
        if said.mode != "enabled":
            return written
        if said.budget_tokens is None:
            return written | {"type": "adaptive"}
        if said.budget_tokens < limit or limit == self._given.get("max_tokens"):
            return written | {"budget_tokens": said.budget_tokens}
        if limit <= MIN_THINKING_TOKENS:
            self.ignored.append("thinking.budget_tokens")
            return {"type": "disabled"}
        return written | {"budget_tokens": limit - 1}

    def _output_config(self) -> dict[str, Any]:
        """Return the effort, the schema, and what else the client says there."""
        given = self._given.get("output_config") or {}
        effort = self._request.parameters.get("effort") or "none"
        if effort not in EFFORTS and effort != "none":
            self.ignored.append(PARAMETERS["effort"][self._request.protocol])
        fields = {
            "effort": EFFORTS.get(effort),
            "format": self._format(given.get("format") or self._given.get("output_format")),
        }
        return {name: value for name, value in (given | fields).items() if value is not None}

    def _format(self, given: Any) -> dict[str, Any] | None:
        asked = self._request.schema
        if asked is None:
            return None
        if isinstance(given, Mapping) and given.get("schema") == asked.schema:
            return dict(given)
        schema = output_schema(asked.schema)
        return schema and {"type": "json_schema", "schema": schema}

    # ---- tools

    def _tools(self) -> list[Json] | None:
        if self._is_same:
            return self._given.get("tools")
        tools = [
            tool for n, each in enumerate(self._request.tools) if (tool := self._tool(n, each))
        ]
        return tools or None

    def _tool(self, n: int, tool: Tool) -> Json | None:
        if tool.kind == "provider":
            self._leave_out(n, tool)
            return None
        schema = TEXT_TOOL_SCHEMA if tool.kind == "text" else tool.schema
        written: dict[str, Any] = {
            "name": short_name(tool.flat_name),
            "input_schema": {"type": "object", **schema},
        }
        if tool.description is not None:
            written["description"] = tool.description
        if tool.strict and tool.kind == "function":
            strict_schema = output_schema(written["input_schema"])
            if strict_schema is None:
                self.ignored.append(f"tools[{n}].strict")
            else:
                written |= {"input_schema": strict_schema, "strict": True}
        return written

    def _leave_out(self, n: int, tool: Tool) -> None:
        """Note a tool that the model does not know. Raises GatewayError 400 if it must call it."""
        choice = self._request.tool_choice
        if choice and choice.kind == "tool" and choice.name == tool.flat_name:
            raise invalid_request(
                "tool_choice", f"tool_choice must not name {tool.name!r}: {UNSAID}"
            )
        self.ignored.append(f"tools[{n}] ({tool.name})")

    def _tool_choice(self) -> Json | None:
        choice = self._request.tool_choice
        if not self._request.tools:
            return None if self._given.get("tools") else self._given.get("tool_choice")
        if choice is not None and self._is_same and choice.raw is not None:
            known = dict(choice.raw)
        elif choice is not None:
            kind = "any" if choice.kind == "required" else choice.kind
            known = {"type": kind} | ({"name": short_name(choice.name)} if kind == "tool" else {})
        else:
            known = {}
        is_single = self._request.parameters.get("parallel_tool_calls") is False
        if is_single and known.get("type") != "none":
            known = {"type": "auto"} | known | {"disable_parallel_tool_use": True}
        return known or None

    # ---- the conversation

    def _conversation(
        self, demand: list[Json]
    ) -> tuple[str | list[Json] | None, list[dict[str, Any]]]:
        """Return the system prompt, with this demand at its end, and the messages. Neighbours of
        one role are one message, but for two messages of a client of this protocol.
        """
        system: list[Json] = []
        messages: list[_OpenMessage] = []
        for n, turn in enumerate(self._request.turns):
            raw = turn.raw if self._is_same else None
            where = f"messages[{n}]" if self._request.protocol == "chat" else "input"
            if turn.role == "system" and not messages and raw is None:
                system += self._blocks(where, turn.parts)
            else:
                self._add_turn(messages, turn, raw, where)
        if not messages:
            name = "input" if self._request.protocol == "responses" else "messages"
            raise invalid_request(
                name, f"{name} must have a message that is not one of the system: {UNSAID}"
            )
        return self._system([*system, *demand]), [message.as_json() for message in messages]

    def _system(self, blocks: list[Json]) -> str | list[Json] | None:
        is_list = isinstance(self._given.get("system"), list)
        if is_list or any(set(block) != {"type", "text"} for block in blocks):
            return blocks or None
        return "\n\n".join(block["text"] for block in blocks) or None

    def _add_turn(
        self, messages: list[_OpenMessage], turn: Turn, raw: Json | None, where: str
    ) -> None:
        role = "user" if turn.role == "tool" else turn.role
        last = messages[-1] if messages else None
        if last is None or last.role != role or (raw is not None and (last.blocks or last.raw)):
            last = _OpenMessage(role)
            messages.append(last)
        if turn.role == "tool":
            last.results.append(raw or self._result(turn, where))
            return
        last.raw = raw or last.raw
        last.blocks += self._blocks(where, turn.parts)

    def _result(self, turn: Turn, where: str) -> Json:
        blocks = list(self._blocks(where, turn.parts))
        is_text = len(blocks) == 1 and set(blocks[0]) == {"type", "text"}
        result: dict[str, Any] = {
            "type": "tool_result",
            "tool_use_id": _written_id(turn.call_id),
            "content": blocks[0]["text"] if is_text else blocks or "",
        }
        return result | ({"is_error": True} if turn.is_error else {})

    def _blocks(self, where: str, parts: Iterable[Part]) -> Iterator[Json]:
        """Yield the blocks for parts. Parts of one block have the same `raw`."""
        n = 0
        for _, group in groupby(parts, lambda part: id(part.raw) if part.raw else id(part)):
            same = list(group)
            if self._is_same and same[0].raw is not None:
                yield same[0].raw
            else:
                for part in same:
                    block = self._block(
                        where if where == "input" else f"{where}.content[{n}]", part
                    )
                    n += 1
                    if block is not None:
                        yield block

    def _block(self, where: str, part: Part) -> Json | None:
        """Return the block for a part; None for one that says nothing here."""
        match part:
            case Text() if part.text:
                return {"type": "text", "text": part.text}
            case Thinking() if part.signature:
                return {"type": "thinking", "thinking": part.text, "signature": part.signature}
            case Thinking() if part.redacted:
                return {"type": "redacted_thinking", "data": part.redacted}
            case Call():
                return _tool_use(where, part)
            case Media():
                return self._media(where, part)
            case Other():
                self.ignored.append(f"{where} ({part.kind})")
        return None

    def _media(self, where: str, part: Media) -> Json:
        if part.file_id is not None:
            raise invalid_request(
                where,
                f"{where} must hold its data or a URL: another provider has the file of this ID; "
                "pass/NAME takes it where the model speaks your protocol",
            )
        if part.detail not in {None, "auto"}:
            self.ignored.append(f"{where}.detail")
        source = _source(part)
        if source is None:
            raise invalid_request(
                where,
                f"{where} must be a text, an image or a PDF (at an http(s): URL, or a data: "
                f"URL in base64): of others, {UNSAID}",
            )
        block: dict[str, Any] = {"type": part.kind, "source": source}
        return block | ({"title": part.name} if part.name and part.kind == "document" else {})


def _source(part: Media) -> Json | None:
    """Return where an image or a PDF is; None for other media."""
    url = part.url or ""
    if part.kind == "audio":
        return None
    if url.lower().startswith(("http://", "https://")):
        return {"type": "url", "url": url}
    match = _DATA_URL.fullmatch(url)
    if match is None or (part.kind == "document" and match[1] != "application/pdf"):
        return None
    return {"type": "base64", "media_type": match[1], "data": match[2]}


def _in_words(schema: AnswerSchema) -> Json:
    return {"type": "text", "text": schema_in_words(schema.schema)}


def _tool_use(where: str, call: Call) -> Json:
    arguments = arguments_in(call.arguments)
    if arguments is None:
        raise invalid_request(
            where,
            f"{where}: the arguments of a call must be a JSON object: of others, {UNSAID}; got "
            f"{format_value(call.arguments, 80)}",
        )
    return {
        "type": "tool_use",
        "id": _written_id(call.id),
        "name": short_name(call.name),
        "input": arguments,
    }


def _written_id(id: str) -> str:
    """Return the ID of a call with the characters that Anthropic's servers take."""
    return _OUTSIDE_ID.sub("_", id) or "_"
