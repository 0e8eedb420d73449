"""The fields of a request for a chat completion, as OpenAI's SDK has them, and what each means
here. The document of the API is generated from these models.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag

from .fields import (
    MAX_STOPS,
    MAX_TOOLS,
    Hint,
    HintValue,
    Name,
    Parameter,
    RefusedField,
    TokenLimit,
    Whole,
    WireModel,
    tag_by,
)
from .options import RequestBody

MAX_SEED = 2**63
PASS_HINT = "a model pass/NAME that speaks this protocol takes it"

Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]


# ---- messages


class CachedPart(WireModel):
    """A part after which the prompt may be cached."""

    prompt_cache_breakpoint: object = None


class TextPart(CachedPart):
    """A text."""

    type: Literal["text"]
    text: str


class RefusalPart(WireModel):
    """What the model wrote instead of an answer."""

    type: Literal["refusal"]
    refusal: str


class ImageUrl(WireModel):
    """Where an image is: an http(s): or data: URL."""

    url: str
    detail: str | None = None


class ImagePart(CachedPart):
    """An image."""

    type: Literal["image_url"]
    image_url: ImageUrl | str


class InputAudio(WireModel):
    """A sound in base64."""

    data: str
    format: str


class AudioPart(CachedPart):
    """A sound."""

    type: Literal["input_audio"]
    input_audio: InputAudio


class FileContent(WireModel):
    """A file: its data as a data: URL, or its ID."""

    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class FilePart(CachedPart):
    """A file."""

    type: Literal["file"]
    file: FileContent


class OtherPart(WireModel):
    """A part of another type, which only models of this protocol may know."""

    type: Name


ContentPart = Annotated[
    Annotated[TextPart, Tag("type:text")]
    | Annotated[RefusalPart, Tag("type:refusal")]
    | Annotated[ImagePart, Tag("type:image_url")]
    | Annotated[AudioPart, Tag("type:input_audio")]
    | Annotated[FilePart, Tag("type:file")]
    | Annotated[OtherPart, Tag("other")],
    tag_by("type", "text", "refusal", "image_url", "input_audio", "file"),
]
Content = str | list[ContentPart]


class CalledFunction(WireModel):
    """A function that the model called, with its arguments as a text of JSON."""

    name: Name
    arguments: str


class FunctionCall(WireModel):
    """A call of a function."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class CalledCustomTool(WireModel):
    """A custom tool that the model called, with its input."""

    name: Name
    input: str


class CustomCall(WireModel):
    """A call of a custom tool."""

    id: str
    type: Literal["custom"]
    custom: CalledCustomTool


ToolCall = Annotated[
    Annotated[FunctionCall, Tag("other")] | Annotated[CustomCall, Tag("type:custom")],
    tag_by("type", "custom"),
]


class NamedMessage(WireModel):
    """A message that may say who speaks."""

    name: str | None = None


class SystemMessage(NamedMessage):
    """What the model is told beforehand; `role`: "developer" is the newer word."""

    role: Literal["system", "developer"]
    content: Content


class UserMessage(NamedMessage):
    """What the user says."""

    role: Literal["user"]
    content: Content


class AssistantMessage(NamedMessage):
    """What the model said in an earlier turn, or begins to say. `reasoning_content` and `reasoning`
    are names that servers give to its thinking.
    """

    role: Literal["assistant"]
    content: Content | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: object = None
    audio: object = None
    reasoning_content: object = None
    reasoning: object = None


class ToolMessage(WireModel):
    """The result of a tool."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str


class OtherMessage(WireModel):
    """A message of no role that there is."""

    role: Literal["system", "developer", "user", "assistant", "tool"]


ChatMessage = Annotated[
    Annotated[SystemMessage, Tag("role:system")]
    | Annotated[SystemMessage, Tag("role:developer")]
    | Annotated[UserMessage, Tag("role:user")]
    | Annotated[AssistantMessage, Tag("role:assistant")]
    | Annotated[ToolMessage, Tag("role:tool")]
    | Annotated[OtherMessage, Tag("other")],
    tag_by("role", "system", "developer", "user", "assistant", "tool"),
]


class ChatMessages(WireModel):
    """A conversation."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]


# ---- tools


class FunctionDefinition(WireModel):
    """A function; `parameters` is the JSON schema of its arguments."""

    name: Name
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class FunctionTool(WireModel):
    """A function that the model may call."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class Grammar(WireModel):
    """What a text must follow."""

    definition: str
    syntax: str


class CustomFormat(WireModel):
    """The form of the input of a custom tool."""

    type: str
    grammar: Grammar | None = None


class CustomDefinition(WireModel):
    """A tool whose input is a text."""

    name: Name
    description: str | None = None
    format: CustomFormat | None = None


class CustomTool(WireModel):
    """A tool whose input is a text, which the model may call."""

    type: Literal["custom"]
    custom: CustomDefinition


class OtherTool(WireModel):
    """A tool of another type, which only models of this protocol may know."""

    type: Name


ChatTool = Annotated[
    Annotated[FunctionTool, Tag("type:function")]
    | Annotated[CustomTool, Tag("type:custom")]
    | Annotated[OtherTool, Tag("other")],
    tag_by("type", "function", "custom", default="function"),
]


class ToolName(WireModel):
    """The name of a tool."""

    name: Name


class AllowedTools(WireModel):
    """Some of the tools."""

    mode: Literal["auto", "required"]
    tools: list[dict[str, object]]


class NamedChoice(WireModel):
    """The tool that the model must call; of the type "allowed_tools", those that it may call."""

    type: Name
    function: ToolName | None = None
    custom: ToolName | None = None
    allowed_tools: AllowedTools | None = None


ChatToolChoice = Literal["none", "auto", "required"] | NamedChoice

# ---- the form of the answer


class JsonSchema(WireModel):
    """The JSON schema that the answer must follow."""

    name: Name
    description: str | None = None
    schema_: Annotated[dict[str, object] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(WireModel):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(WireModel):
    """What a stream has besides the answer."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[bool | None, Hint()] = None


# ---- the request


def refusal(why: str, *unused: object) -> RefusedField:
    """Return the mark of a field that a model of this protocol takes all the same."""
    return RefusedField(f"{why}; {PASS_HINT}", unused)


class OpenAIBody(RequestBody):
    """What the requests of both of OpenAI's protocols have."""

    store: bool | None = None
    parallel_tool_calls: Annotated[bool | None, Parameter("parallel_tool_calls")] = None
    user: Annotated[str | None, Hint()] = None
    safety_identifier: Annotated[str | None, Hint()] = None
    prompt_cache_key: Annotated[str | None, Hint()] = None
    prompt_cache_retention: Annotated[str | None, Hint()] = None
    prompt_cache_options: HintValue = None


class ChatBody(ChatMessages, OpenAIBody):
    """The body of `POST /v1/chat/completions`."""

    # tools and the form of the answer
    tools: Annotated[list[ChatTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ChatToolChoice | None = None
    response_format: ResponseFormat | None = None
    verbosity: Annotated[str | None, Parameter("verbosity")] = None
    # limits and sampling
    max_completion_tokens: TokenLimit | None = None
    max_tokens: TokenLimit | None = None
    top_k: Annotated[Whole | None, Parameter("top_k")] = None
    stop: Name | Annotated[list[Name], Field(max_length=MAX_STOPS)] | None = None
    seed: Annotated[
        Annotated[Whole, Field(ge=-MAX_SEED, le=MAX_SEED)] | None, Parameter("seed")
    ] = None
    frequency_penalty: Annotated[Penalty | None, Parameter("frequency_penalty")] = None
    presence_penalty: Annotated[Penalty | None, Parameter("presence_penalty")] = None
    logit_bias: Annotated[dict[str, float] | None, Parameter("logit_bias")] = None
    prediction: Annotated[dict[str, object] | None, Parameter("prediction")] = None
    reasoning_effort: Annotated[str | None, Parameter("effort")] = None
    stream_options: StreamOptions | None = None
    # what only the answers of one model can have
    n: Annotated[object, refusal("one answer is chosen and returned", 1)] = None
    logprobs: Annotated[object, refusal("the answer is chosen among several", False)] = None
    top_logprobs: Annotated[object, refusal("the answer is chosen among several", 0)] = None
    audio: Annotated[object, refusal("answers are text")] = None
    modalities: Annotated[object, refusal("answers are text", ["text"])] = None
    moderation: Annotated[object, refusal("its results would be lost")] = None
    web_search_options: Annotated[object, refusal("its citations would be lost")] = None
    functions: Annotated[object, RefusedField("use tools", ([],))] = None
    function_call: Annotated[object, RefusedField("use tool_choice", ("none", "auto"))] = None
