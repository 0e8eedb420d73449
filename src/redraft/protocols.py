"""What the loop expects of the world: the contracts that models, graders, editors and stores keep.

One method each; whatever has it qualifies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from .core.engine import Perform
from .core.records import Candidate, Comparison, Feedback, Message, Task, ToolCall, Usage
from .core.trace import Trace

__all__ = [
    "FORMATS",
    "Call",
    "Check",
    "Comparer",
    "Edit",
    "Editor",
    "Format",
    "Grader",
    "JudgeClient",
    "Model",
    "Perform",
    "RateLimitStatus",
    "Reply",
    "Request",
    "Requirement",
    "Store",
    "ToolCall",
]

Format: TypeAlias = Literal["json_schema", "json_object", "text"]
FORMATS: tuple[Format, ...] = ("json_schema", "json_object", "text")


@dataclass(frozen=True, slots=True)
class Request:
    """What a model is asked. `schema` is a JSON schema that the answer must follow, `format` how to ask for it.

    `look` tells repeated asks of the same words apart (drafts, looks), so that a cache keeps each. `nonce` is a text
    in the messages that is new in every call and means nothing; a cache ignores it. `unsupported` are parameters that the
    endpoint refuses: they are not sent, `max_tokens` as `max_completion_tokens`. `tools` are functions that the model may call, and
    `tool_choice` whether it must, in OpenAI's form. `writes`: it asks for a text of the task, not for a judgement; only then are
    tools offered that stand in the model's own parameters. `original` is the request as it was asked,
    where `max_tokens` was lowered to fit a budget; a cache goes by that.
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


@dataclass(frozen=True, slots=True)
class RateLimitStatus:
    """What an endpoint says of its rate limits: how much is left of each, and in how many seconds there is more. None: not said."""

    requests_left: int | None = None
    tokens_left: int | None = None
    requests_reset: float | None = None
    tokens_reset: float | None = None

    @property
    def wait(self) -> float:
        """Seconds until something is left again of what is used up; 0 where something is, or nothing is known."""
        requests = self.requests_reset if self.requests_left == 0 else None
        tokens = self.tokens_reset if self.tokens_left == 0 else None
        return max(requests or 0.0, tokens or 0.0)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered. `finish` is "stop", "length" (it was cut off) or what else the endpoint says, None if nothing.

    `tool_calls` are the calls of tools that the model asks for; the text may be empty then. `pace` is what came with it about
    rate limits: news of the moment, no part of the answer, and not kept with it.
    """

    text: str
    usage: Usage = Usage(calls=1, input_tokens=None, output_tokens=None, cost=None)
    finish_reason: str | None = "stop"
    reasoning: str | None = None
    rate_limit_status: RateLimitStatus | None = field(default=None, compare=False, repr=False)
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"


Call: TypeAlias = Callable[[Request], Awaitable[Reply]]


@runtime_checkable
class Model(Protocol):
    """Turns messages into text. Raises a ModelError for what it cannot answer.

    `name` is how people call it; `identity` is all that decides what it would answer beside the request
    (endpoint, model, extra parameters): the cache's key. `tools` and `tool_choice`: what its own parameters offer to requests that
    `writes` marks; a model without these fields may offer some of its own. `takes_probes`: False where a batch is not to ask it a
    short question, to find out whether its endpoint is there. A model that can be held to a schema says how in a field
    `formats` (see `Format`), strictest first; without one it is asked in words.
    """

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> str: ...

    async def complete(self, request: Request) -> Reply: ...


class JudgeClient(Protocol):
    """A grader's way to the judge model: metered, retried and remembered like every other call."""

    @property
    def repeat(self) -> int:
        """Which of several looks at the same thing this is, from 0."""
        ...

    async def __call__(self, prompt: str | Iterable[Message]) -> str:
        """The model's answer to a prompt or to chat messages."""
        ...

    async def complete(self, request: Request) -> Reply:
        """The same with everything that can be asked for."""
        ...

    def with_options(self, model: Any = None, repeat: int = 0) -> JudgeClient:
        """The way to another model (None: the same), or for one more look: its answers are kept apart in a cache."""
        ...


@runtime_checkable
class Grader(Protocol):
    """Gives its view of one candidate. What it raises becomes a `Failure`; it never invents a score.

    It may have a `model` of its own that it asks instead of the judge, `parts`: the graders it is made of, `free`: True
    where it asks no model, `may_ask`: True where only its grades show whether it asks one, `calls_once`: how many calls it makes
    once for a task, beside the one for each text, `needs`: the fields of the task (context, reference, tests) without which it
    cannot grade, `check_task(task)`: raises ConfigError for another task that it cannot grade, `reads_metadata`: whether it reads
    the task's metadata (a foreign one is taken to), and `reads_tool_calls`: True where it grades candidates that call tools. With
    no such grader they are handed on ungraded.
    """

    @property
    def name(self) -> str: ...

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback: ...


@runtime_checkable
class Comparer(Protocol):
    """Ranks candidates, best first."""

    @property
    def name(self) -> str: ...

    async def compare(self, task: Task, candidates: Sequence[Candidate], ask: JudgeClient) -> Comparison: ...


@dataclass(frozen=True, slots=True)
class Check:
    """What a requirement measured: whether it is kept, and the measurement in words ("112 words").

    `nearness`: how near a text comes that does not keep it, in [0, 1]; None where that cannot be told.
    """

    ok: bool
    measurement: str
    nearness: float | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """A changed text, what was done to it in words, and whether something of it was lost (a sentence, its case)."""

    text: str
    note: str
    lossy: bool = False


@runtime_checkable
class Requirement(Protocol):
    """A checkable demand on a text. `spec` is its string form, `demand` says it in words ("at most 100 words")."""

    @property
    def spec(self) -> str: ...

    @property
    def demand(self) -> str: ...

    def check(self, text: str) -> Check: ...

    def repairs(self, text: str) -> Iterable[Edit]:
        """Changed texts that may keep it; none where form alone does not allow it."""
        ...


class Editor(Protocol):
    """Repairs text without a model. One that also has `arepair`, the same as a coroutine function, is asked by that in a loop."""

    def repair(self, text: str, requirements: Sequence[Requirement]) -> Edit | None:
        """One repair that keeps more requirements than before and breaks none; None when there is none."""
        ...


class Store(Protocol):
    """Keeps traces."""

    def append(self, trace: Trace) -> None:
        """Keep what of a trace is not kept yet. Called with every new record, before anybody is told of it."""
        ...
