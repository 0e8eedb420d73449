"""What users may implement: models, graders, requirements, editors and stores, and the requests and
replies they exchange.

Each protocol has one essential method; any object that has it qualifies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from .errors import ModelError
from .loop.engine import Perform
from .loop.records import Artifact, Candidate, Comparison, Feedback, ToolCall
from .loop.task import Message, Task
from .loop.trace import Trace
from .usage import NO_USAGE, Usage

__all__ = [
    "FORMATS",
    "Artifact",
    "AsyncFunction",
    "Call",
    "Check",
    "Comparer",
    "Comparison",
    "Edit",
    "Editor",
    "Format",
    "Grader",
    "JudgeClient",
    "Model",
    "Observer",
    "Perform",
    "RateLimitStatus",
    "RecordSteps",
    "Reply",
    "Request",
    "Requirement",
    "Store",
    "TokenLogprobs",
    "ToolCall",
]

Format: TypeAlias = Literal["json_schema", "json_object", "text"]
FORMATS: tuple[Format, ...] = ("json_schema", "json_object", "text")


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a model.

    - `schema`: a JSON schema that the answer must follow; `format`: how to ask for it.
    - `sample_index`: distinguishes repeats of the same messages (drafts, repeated grades), so that
      a cache keeps each.
    - `nonce`: a text in the messages that is new in every call and has no meaning; the cache
      ignores it.
    - `unsupported_parameters`: those that the endpoint refuses; they are not sent (`max_tokens`
      becomes `max_completion_tokens`).
    - `tools`, `tool_choice`: functions that the model may or must call, in OpenAI's form.
    - `top_logprobs`: asks for the log-probabilities of so many alternatives of each token; None
      asks for none.
    - `params`: further parameters for the body of the request (see `redraft.base.parameters`); None
      as a value leaves one out.
    - `is_generation`: it asks for an answer to the task and not for a grade; only then are the
      model's own tools offered.
    - `original`: the request before `max_tokens` was lowered to fit a budget; the cache uses it.
    """

    messages: tuple[Message, ...]
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    schema: Mapping[str, Any] | None = None
    format: Format = "text"
    sample_index: int = 0
    nonce: str = ""
    unsupported_parameters: frozenset[str] = frozenset()
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    is_generation: bool = False
    original: Request | None = field(default=None, repr=False)
    top_logprobs: int | None = None
    params: Mapping[str, Any] | None = None

    @property
    def is_judgement(self) -> bool:
        """Whether a judge makes the request: it asks for JSON, and for no answer to the task."""
        return self.schema is not None and not self.is_generation

    def with_format(self, format: Format) -> Request:
        """Return the request in another format."""
        return replace(self, format=format)


@dataclass(frozen=True, slots=True)
class RateLimitStatus:
    """An endpoint's rate limits: what is left of each, and the seconds until it is reset. None:
    unknown.
    """

    requests_left: int | None = None
    tokens_left: int | None = None
    requests_reset: float | None = None
    tokens_reset: float | None = None

    @property
    def wait(self) -> float:
        """Seconds until every exhausted limit is reset; 0 if none is exhausted or nothing is
        known.
        """
        requests = self.requests_reset if self.requests_left == 0 else None
        tokens = self.tokens_reset if self.tokens_left == 0 else None
        return max(requests or 0.0, tokens or 0.0)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token of a reply, and the most likely tokens at its place, itself included, with their
    natural log-probabilities.

    `top` is kept only at numbers and directly after them, where scores are. In a token, a lone
    surrogate stands for a byte that is not UTF-8 by itself (Python's "surrogateescape").
    """

    token: str
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's reply. `finish_reason` is "stop", "length" (cut off at the token limit) or
    "tool_calls"; None: unknown.

    A model of your own may use the words of its provider (see `redraft.base.finish_reasons`): one
    that says that the answer failed, or that is not known, is an error.

    `by` is the name of the model that answered if several could, and `note` says why those before
    it did not, or that the server cut the prompt; neither is stored with it. `tool_calls` are the
    tool calls that the model asks for; the text may be empty then. `reasoning_form` says how the
    reply contained its `reasoning` (see `Candidate`). `rate_limit_status` is what the response said
    about rate limits; it is not part of the answer and not stored with it. `token_logprobs` are the
    tokens of the whole answer, if the request asked for log-probabilities and the endpoint gave
    them. `response_id` and `response_model` are what the endpoint calls the answer and the model
    that gave it, "" if it does not say; neither is stored with it. `cached_tokens` are tokens of
    the prompt that the endpoint counts apart because its cache had them, and `cache_written_tokens`
    because it wrote them there: `usage.input_tokens` may include them or not. `reasoning_tokens`
    are those of `usage.output_tokens` that the endpoint says are reasoning. 0: none, or not told.
    `first_chunk_seconds`: after which the first part of a stream arrived; None: it was none. It is
    not stored.
    """

    text: str
    usage: Usage = Usage(calls=1, input_tokens=None, output_tokens=None, cost=None)
    finish_reason: str | None = "stop"
    reasoning: str | None = None
    rate_limit_status: RateLimitStatus | None = field(default=None, compare=False, repr=False)
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning_form: str | None = None
    by: str = field(default="", compare=False)
    note: str = field(default="", compare=False)
    token_logprobs: tuple[TokenLogprobs, ...] = ()
    response_id: str = field(default="", compare=False, repr=False)
    response_model: str = field(default="", compare=False, repr=False)
    cached_tokens: int = field(default=0, compare=False, repr=False)
    cache_written_tokens: int = field(default=0, compare=False, repr=False)
    reasoning_tokens: int = field(default=0, compare=False, repr=False)
    first_chunk_seconds: float | None = field(default=None, compare=False, repr=False)

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"

    def with_usage(self, usage: Usage) -> Reply:
        """Return the reply with another usage."""
        return replace(self, usage=usage)

    def after(self, spent: Usage) -> Reply:
        """Return the reply with what earlier attempts for the same answer spent; itself if there
        were none.
        """
        whole = (spent + self.usage).as_single_answer()
        return self if spent == NO_USAGE else self.with_usage(whole)


Call: TypeAlias = Callable[[Request], Awaitable[Reply]]
RecordSteps: TypeAlias = Callable[[Perform], Perform]

S = TypeVar("S")
R = TypeVar("R")
AsyncFunction: TypeAlias = Callable[[S], Awaitable[R]]
"""The shape that every middleware takes and returns."""


@runtime_checkable
class Model(Protocol):
    """Turns messages into text. Raises a ModelError if it cannot.

    `name` is for display; `identity` is everything besides the request that decides the answer
    (endpoint, model, extra parameters), and part of the cache key. It may have further attributes
    that say more of it: `models.traits.ModelTraits` describes each, and what it means without it.
    """

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> str: ...

    async def complete(self, request: Request) -> Reply: ...


class JudgeClient(Protocol):
    """A grader's access to the judge model, with the same budget, retries and cache as every other
    call.
    """

    @property
    def repeat(self) -> int:
        """The number of this repeat, from 0."""
        ...

    async def __call__(self, prompt: str | Iterable[Message]) -> str:
        """Return the model's answer to a prompt or chat messages."""
        ...

    async def complete(self, request: Request) -> Reply:
        """Send a request with all its parameters."""
        ...

    def with_options(self, model: Any = None, repeat: int = 0) -> JudgeClient:
        """Return a client for another model (None: the same) or another repeat, which the cache
        keeps apart.
        """
        ...


@runtime_checkable
class Grader(Protocol):
    """Grades one candidate. An exception that it raises is recorded as a `Failure`.

    It may have further attributes that say more of it: `graders.traits.GraderTraits` describes
    each, and what it means without it.
    """

    @property
    def name(self) -> str: ...

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback: ...


@runtime_checkable
class Comparer(Protocol):
    """Ranks candidates, best first."""

    @property
    def name(self) -> str: ...

    async def compare(
        self, task: Task, candidates: Sequence[Candidate], ask: JudgeClient
    ) -> Comparison: ...


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a requirement's check: whether it is met, and the measurement in words ("112
    words").

    `nearness`: how near a text comes that does not meet it, in [0, 1]; None if that is unknown.
    """

    ok: bool
    measurement: str
    nearness: float | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """A changed text, a note on what was changed, and whether content was lost (a sentence, letter
    case).
    """

    text: str
    note: str
    lossy: bool = False


@runtime_checkable
class Requirement(Protocol):
    """A checkable demand on a text. `spec` is its string form, `demand` says it in words ("at most
    100 words").
    """

    @property
    def spec(self) -> str: ...

    @property
    def demand(self) -> str: ...

    def check(self, text: str) -> Check: ...

    def repairs(self, text: str) -> Iterable[Edit]:
        """Yield changed texts that may meet it; none if formal changes cannot."""
        ...


class Editor(Protocol):
    """Repairs text without a model. If it has a coroutine function `arepair` as well, the performer
    awaits that.
    """

    def repair(self, text: str, requirements: Sequence[Requirement]) -> Edit | None:
        """Return one repair that meets more requirements and breaks none; None if there is none."""
        ...


class Store(Protocol):
    """Stores traces."""

    def append(self, trace: Trace) -> None:
        """Store the records of a trace that are not stored yet. Called with every new record,
        before `on_record`.
        """
        ...


class Observer(Protocol):
    """Records what happens, and changes nothing of it but that grades and outcomes get the
    `traceparent` of their span: `redraft.telemetry` does.
    """

    def record_calls(self, call: Call, model: str, address: object, operation: str) -> Call:
        """Return what makes the calls of a model and records them. `address`: where its server is,
        if it has one; `operation`: such as "chat".
        """
        ...

    def record_failed_attempt(self, error: ModelError, wait: float | None) -> None:
        """Record an attempt of the current call that failed; the next one is made after `wait`
        seconds, or at a time that is not known.
        """
        ...

    def record_refinement(
        self,
        latest: Callable[[], Trace],
        writer: str | None,
        fingerprint: Callable[[str], str],
    ) -> AbstractContextManager[RecordSteps]:
        """Record what happens meanwhile as a refinement; its value makes its performer record its
        steps.

        `latest` returns the trace so far, `writer` is the name of the model that writes, and
        `fingerprint` returns a grader's by its name on the panel.
        """
        ...

    def record_run(self, name: str) -> AbstractContextManager[None]:
        """Record what happens meanwhile as a batch."""
        ...

    def begin_row(self, run: str, row: str) -> None:
        """Record the next refinement of this asyncio task as a row of a batch."""
        ...

    def outgoing_headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return the headers of a request to a server with those that tell it of the record."""
        ...
