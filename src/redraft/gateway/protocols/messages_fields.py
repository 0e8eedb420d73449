"""The wire models of requests of Anthropic's messages: what each field, block and tool means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import (
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    Tag,
    model_validator,
)

from ..neutral import Json
from .fields import (
    MAX_STOPS,
    MAX_TOOLS,
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

MAX_MESSAGES = 100_000
SAME_PROTOCOL = "pass/NAME takes it where the model speaks Anthropic's messages"
WebUrl = Annotated[str, Field(pattern=r"^(?i:https?)://")]
Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/ \t\r\n]*={0,2}[ \t\r\n]*$")]
ImageType = Annotated[str, Field(pattern=r"^image/[A-Za-z0-9_.+-]{1,64}$")]


# ---- blocks


class RawModel(WireModel):
    """An object of which the neutral form keeps `raw`: the JSON as the client sent it."""

    __slots__ = ("raw",)  # no field: a private attribute of pydantic takes as long as all the rest
    if TYPE_CHECKING:
        raw: Json

    @model_validator(mode="wrap")
    @classmethod
    def _keep_raw(cls, value: Any, handler: ModelWrapValidatorHandler[RawModel]) -> RawModel:
        model = handler(value)
        # an object of its own, by which the writer knows a block
        object.__setattr__(model, "raw", dict(value))
        return model


class Base64Image(WireModel):
    """An image in base64."""

    type: Literal["base64"]
    media_type: ImageType
    data: Base64


class Base64Document(WireModel):
    """A PDF in base64."""

    type: Literal["base64"]
    media_type: Literal["application/pdf"]
    data: Base64


class UrlSource(WireModel):
    """What lies at a URL."""

    type: Literal["url"]
    url: WebUrl


class FileSource(WireModel):
    """A file that is stored at the provider."""

    type: Literal["file"]
    file_id: str


class TextSource(WireModel):
    """A text."""

    type: Literal["text"]
    data: str


class ContentSource(WireModel):
    """A content of blocks."""

    type: Literal["content"]
    content: str | list[Block]


class TextBlock(RawModel):
    """A text. Its citations are kept in `raw`."""

    type: Literal["text"]
    text: str


class ImageBlock(RawModel):
    """An image."""

    type: Literal["image"]
    source: Annotated[Base64Image | UrlSource | FileSource, Field(discriminator="type")]


class DocumentBlock(RawModel):
    """A document with its title and what the client says about it."""

    type: Literal["document"]
    title: str | None = None
    context: str | None = None
    source: Annotated[
        Base64Document | UrlSource | FileSource | TextSource | ContentSource,
        Field(discriminator="type"),
    ]


class SearchResultBlock(RawModel):
    """What a search of the client found."""

    type: Literal["search_result"]
    title: str
    source: str
    content: list[TextBlock]


class ThinkingBlock(RawModel):
    """What the model thought."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(RawModel):
    """Thinking that only the model can read."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(RawModel):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: Name
    name: Name
    input: dict[str, Any]


class ToolResultBlock(RawModel):
    """The result of a tool."""

    type: Literal["tool_result"]
    tool_use_id: Name
    content: str | list[Block] | None = None
    is_error: bool | None = None


class ToolReferenceBlock(RawModel):
    """A tool that a search of the client found. It is one of `tools`."""

    type: Literal["tool_reference"]
    tool_name: Name


class ToolChange(WireModel):
    """A tool, by its name (type "tool_reference"), or one that `tools` does not have."""

    type: str
    name: Name | None = None
    definition: AnyTool | None = None


class ToolChangeBlock(RawModel):
    """From here on the model may call a tool, or may not."""

    type: Literal["tool_addition", "tool_removal"]
    tool: ToolChange


class OtherBlock(RawModel):
    """A block that only Anthropic's models know, such as a search that their server ran."""

    type: str


Block: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("type:text")]
    | Annotated[ImageBlock, Tag("type:image")]
    | Annotated[DocumentBlock, Tag("type:document")]
    | Annotated[SearchResultBlock, Tag("type:search_result")]
    | Annotated[ThinkingBlock, Tag("type:thinking")]
    | Annotated[RedactedThinkingBlock, Tag("type:redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("type:tool_use")]
    | Annotated[ToolResultBlock, Tag("type:tool_result")]
    | Annotated[ToolReferenceBlock, Tag("type:tool_reference")]
    | Annotated[ToolChangeBlock, Tag("type:tool_addition")]
    | Annotated[ToolChangeBlock, Tag("type:tool_removal")]
    | Annotated[OtherBlock, Tag("other")],
    tag_by(
        *("type", "text", "image", "document", "search_result", "thinking", "redacted_thinking"),
        *("tool_use", "tool_result", "tool_reference", "tool_addition", "tool_removal"),
    ),
]


# ---- requests


class Message(RawModel):
    """A message. One of the system may stand between others, without a content if it only changes
    settings.
    """

    role: Literal["user", "assistant", "system"]
    content: str | list[Block] | None = None


class CustomTool(RawModel):
    """A function that the client runs."""

    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: HintValue = None
    input_examples: HintValue = None
    allowed_callers: HintValue = None


class ProviderTool(RawModel):
    """A tool that Anthropic's models know by its type."""

    type: str
    name: Name | None = None


AnyTool: TypeAlias = Annotated[
    Annotated[CustomTool, Tag("type:custom")] | Annotated[ProviderTool, Tag("other")],
    tag_by("type", "custom", default="custom"),
]


class Choice(RawModel):
    """Whether the model must call a tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(WireModel):
    """Whether the model is to think. `between_tools`: it does not, and says what it does between
    its calls of tools.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"type": {"const": "enabled"}}},
            "then": {
                "properties": {"budget_tokens": {"type": "integer"}},
                "required": ["budget_tokens"],
            },
        }
    )

    type: Literal["enabled", "adaptive", "disabled", "between_tools"]
    budget_tokens: TokenLimit | None = None
    display: str | None = None
    block_binding: HintValue = None


class OutputFormat(WireModel):
    """The JSON schema that the answer must follow."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(WireModel):
    """How the answer is to be."""

    effort: Annotated[
        Literal["low", "medium", "high", "xhigh", "max"] | None, Parameter("effort")
    ] = None
    format: OutputFormat | None = None
    task_budget: HintValue = None


class MessagesRequest(RequestBody):
    """The body of `POST /v1/messages`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: TokenLimit
    system: str | list[TextBlock] | None = None
    top_k: Annotated[Annotated[Whole, Field(ge=0, le=2**31)] | None, Parameter("top_k")] = None
    stop_sequences: Annotated[
        Annotated[list[Name], Field(max_length=MAX_STOPS)] | None, Parameter("stop")
    ] = None
    tools: Annotated[list[AnyTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Choice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the earlier name of output_config.format

    anthropic_beta: HintValue = None
    anthropic_version: HintValue = None
    betas: HintValue = None
    cache_control: HintValue = None
    context_hint: HintValue = None
    context_management: HintValue = None
    diagnostics: HintValue = None
    fallback_credit_token: HintValue = None
    speed: HintValue = None
    user_profile_id: HintValue = None
    workspace_id: HintValue = None

    billing_policy: Annotated[
        object,
        RefusedField(
            "it bills another organization than the one whose key the model has",
            ({"type": "billing_policy"}, {"type": "billing_policy", "bill_to": "self"}),
        ),
    ] = None
    compaction: Annotated[
        object, RefusedField(f"the reply would be a summary and no answer; {SAME_PROTOCOL}")
    ] = None
    container: Annotated[
        object, RefusedField(f"containers are stored at the provider; {SAME_PROTOCOL}", ("", {}))
    ] = None
    inference_geo: Annotated[
        object,
        RefusedField(
            f"the gateway cannot promise where a request is processed; {SAME_PROTOCOL}",
            ("global",),
        ),
    ] = None
    mcp_servers: Annotated[
        object,
        RefusedField(f"each draft would run tools of these servers again; {SAME_PROTOCOL}", ([],)),
    ] = None
    thread: Annotated[
        object,
        RefusedField(
            f"no conversation is stored here: send all its messages, or {SAME_PROTOCOL}",
            detail="thread_unsupported_request",
        ),
    ] = None
