"""Requests, replies and streams in a form that belongs to none of the protocols.

A client and a model may speak different protocols. Each protocol has one reader and one writer
(see `protocols`), and this is what they read into and write from, so that no pair of protocols
needs a conversion of its own.

What a protocol alone knows travels in `raw` and in `Request.body`: the JSON as the client sent it,
which only a writer of the same protocol (`Request.protocol`) uses. Whatever has no name here and no
place in another protocol is never sent to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, TypeAlias

ProtocolName: TypeAlias = Literal["chat", "responses", "messages"]
Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter", "refusal"]
Json: TypeAlias = Mapping[str, Any]
PIECE_CHARS = 256  # of the text of an answer in one event
MAX_TOOL_NAME = 64  # characters, which models of every protocol take

# ---- contents


@dataclass(frozen=True, slots=True)
class Text:
    """A text of a message. `is_refusal`: the model wrote it instead of an answer."""

    text: str
    is_refusal: bool = False
    raw: Json | None = None


@dataclass(frozen=True, slots=True)
class Media:
    """An image, a document or a sound: at a `url` (http, https or data), or stored as `file_id`.

    `name` is the name of a file, `detail` how closely an image is to be looked at.
    """

    kind: Literal["image", "document", "audio"]
    url: str | None = None
    file_id: str | None = None
    name: str | None = None
    detail: str | None = None
    raw: Json | None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """What a model thought before it answered.

    `signature` proves to the model that wrote it that nothing was changed; `redacted` is thinking
    that only that model can read, in place of the text.
    """

    text: str = ""
    signature: str = ""
    redacted: str = ""
    raw: Json | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool: its name in the neutral form (`Tool.flat_name`), and its arguments as the
    JSON text that the model wrote.
    """

    id: str
    name: str
    arguments: str = "{}"
    raw: Json | None = None


@dataclass(frozen=True, slots=True)
class Other:
    """A part that only the protocol it came in knows, such as a search that a provider ran.
    `is_hint`: it may be left out wherever it stands.
    """

    kind: str
    raw: Json
    is_hint: bool = False


Part: TypeAlias = Text | Media | Thinking | Call | Other


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of a conversation.

    The result of a tool is a turn of its own, of the role "tool", with the ID of its call in
    `call_id`; `is_error` says that the tool failed. `raw` is the message, the item or the block.
    """

    role: Role
    parts: tuple[Part, ...]
    call_id: str = ""
    is_error: bool = False
    raw: Json | None = None

    @property
    def text(self) -> str:
        """The texts of the turn, a blank line between them."""
        return "\n\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of tools in the turn."""
        return tuple(part for part in self.parts if isinstance(part, Call))


# ---- requests


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model may call.

    - "function": `schema` is that of its arguments.
    - "text": its input is one text, such as a patch. Where a protocol has no such tools, it is a
      function with the one argument `input`, which is exact in both directions.
    - "provider": the provider of the model runs it, or knows it by its type (`name`), so that only
      models of the same protocol can be offered it; `raw` describes it.

    `group` is the namespace that the client gave it, in which names are distinct.
    """

    kind: Literal["function", "text", "provider"]
    name: str
    description: str | None = None
    schema: Json = field(default_factory=dict)
    strict: bool | None = None
    group: str = ""
    raw: Json | None = None

    @property
    def flat_name(self) -> str:
        """The name in calls. Writers of other protocols give models its `short_name`."""
        return f"{self.group}__{self.name}" if self.group else self.name


def short_name(name: str) -> str:
    """Return the name of a tool within MAX_TOOL_NAME characters; a longer one ends with a hash."""
    if len(name) <= MAX_TOOL_NAME:
        return name
    mark = sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{name[: MAX_TOOL_NAME - 17]}_{mark}"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model must call a tool; with "tool", the one of this `flat_name`."""

    kind: Literal["auto", "none", "required", "tool"]
    name: str = ""
    raw: Any = None


@dataclass(frozen=True, slots=True)
class AnswerSchema:
    """The JSON schema that an answer must follow; {} for any JSON object."""

    schema: Json
    name: str = "answer"
    description: str | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class ThinkingRequest:
    """Whether the model is to think: "enabled" with at most so many tokens, "adaptive" as it likes,
    or "disabled". `is_shown`: the client reads the thinking in the reply.
    """

    mode: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    is_shown: bool = True


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The field `redraft` of a request; None: the profile's own value. Values are not clamped
    yet.
    """

    target_score: float | None = None
    max_iterations: int | None = None
    graders: tuple[str, ...] | None = None
    requirements: tuple[str, ...] = ()
    rubric: str | None = None
    events: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a client.

    - `protocol`: the one in which it came; `body`: the whole request as received.
    - `model`: as the client wrote it, such as "refine/fast".
    - `turns`: the conversation, those of the system first.
    - `parameters`: what several protocols have, by the names of `protocols.fields.PARAMETERS`, such
      as `temperature` and `effort`; a field that is absent or null is not in it.
    - `hints`: the fields that only its protocol has, and those that it does not have either, by the
      client's names, such as "metadata" or "reasoning.summary". A writer of the same protocol takes
      them from `body`; for others they are left out.
    - `is_stream`, `include_usage`: whether the client reads a stream, and wants the usage in it.
    - `is_stored`: False if the client asks that nothing of the request be kept (`store: false`).
    """

    protocol: ProtocolName
    model: str
    body: Json
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    schema: AnswerSchema | None = None
    max_tokens: int | None = None
    thinking: ThinkingRequest | None = None
    parameters: Json = field(default_factory=dict)
    hints: tuple[str, ...] = ()
    is_stream: bool = False
    include_usage: bool = False
    is_stored: bool = True
    options: RequestOptions = RequestOptions()

    def called_tool(self, name: str) -> Tool:
        """Return the tool that a model calls by a name, which may have been shortened; a function
        of this name if there is none.
        """
        named = (t for t in self.tools if name in (t.flat_name, short_name(t.flat_name)))
        return next(named, Tool("function", name))


@dataclass(frozen=True, slots=True)
class WrittenRequest:
    """A request in the protocol of a model.

    `ignored` names the fields of the client, as the client wrote them, that have no place in it and
    change no answer.
    """

    body: dict[str, Any]
    ignored: tuple[str, ...] = ()


# ---- replies


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one call. `input` includes `cached` and `cache_written`, `output` includes
    `reasoning`. None: unknown.
    """

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    cache_written: int | None = None
    reasoning: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply of a model, or an answer that was refined.

    `id`, `model`: as the model states them; "" if it does not. `stop_sequence`: which text ended
    it, if the model says so.
    """

    id: str
    model: str
    parts: tuple[Part, ...]
    finish: FinishReason = "stop"
    tokens: Tokens = Tokens()
    stop_sequence: str | None = None

    @property
    def text(self) -> str:
        """The text of the answer."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of tools in the reply."""
        return tuple(part for part in self.parts if isinstance(part, Call))


# ---- events of a stream, in their order: Begin, then parts one after the other, then End


@dataclass(frozen=True, slots=True)
class Begin:
    """The first event of a stream. `tokens` is what is known by then."""

    id: str
    model: str
    tokens: Tokens = Tokens()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of a text. `raw` is that of the whole text, with its last piece."""

    text: str
    is_refusal: bool = False
    raw: Json | None = None


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """More of the thinking: its text, or the signature or the unreadable text that ends it."""

    text: str = ""
    signature: str = ""
    redacted: str = ""


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of a tool begins. What follows are its arguments, until another event begins another
    part.
    """

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of the arguments of the call that began last."""

    arguments: str


@dataclass(frozen=True, slots=True)
class End:
    """The last event of a stream. `outcome` is what a refinement adds to the usage."""

    finish: FinishReason
    tokens: Tokens = Tokens()
    stop_sequence: str | None = None
    outcome: Json | None = None


@dataclass(frozen=True, slots=True)
class Ping:
    """A sign of life of a model that has nothing to say yet."""


Event: TypeAlias = Begin | TextDelta | ThinkingDelta | CallBegin | CallDelta | Other | End | Ping
"""An event of a stream. `Other`: a whole part, which other protocols leave out."""


def events_of(reply: Reply, outcome: Json | None = None) -> Iterator[Event]:
    """Yield a whole reply as a stream, but for its first event, with its texts in pieces of
    moderate size.
    """
    for part in reply.parts:
        match part:
            case Text():
                yield from _text_events(part)
            case Thinking():
                for piece in pieces(part.text):
                    yield ThinkingDelta(piece)
                if part.signature or part.redacted:
                    yield ThinkingDelta(signature=part.signature, redacted=part.redacted)
            case Call():
                yield CallBegin(part.id, part.name)
                for piece in pieces(part.arguments):
                    yield CallDelta(piece)
            case Other():
                yield part
    yield End(reply.finish, reply.tokens, reply.stop_sequence, outcome)


def _text_events(part: Text) -> Iterator[Event]:
    for piece in pieces(part.text):
        yield TextDelta(piece, part.is_refusal)
    if part.raw and part.text and part.raw.get("text") == part.text:
        yield TextDelta("", part.is_refusal, part.raw)


def pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces of moderate size."""
    for start in range(0, len(text), PIECE_CHARS):
        yield text[start : start + PIECE_CHARS]
