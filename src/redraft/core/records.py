"""What happened: immutable records.

A record and the step that asked for it share a `slot`; resuming, replaying and de-duplicating are look-ups by slot.
Nothing is stored here that can be computed from the trace (see `trace`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from math import sqrt
from typing import Any, TypeAlias

from ..jsontext import first_duplicate, strict_loads

Slot: TypeAlias = tuple[Any, ...]
Message: TypeAlias = Mapping[str, Any]


class StopReason(StrEnum):
    """Why the work ended."""

    TARGET = "target"
    DONE = "done"
    TOOL_CALLS = "tool_calls"
    PATIENCE = "patience"
    MAX_ITERATIONS = "max_iterations"
    BUDGET = "budget"
    DEADLINE = "deadline"
    GAIN = "gain"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def converged(self) -> bool:
        """Whether the work ended because there was nothing better to expect (see `Trace.converged` for musts)."""
        return self in {StopReason.TARGET, StopReason.DONE, StopReason.PATIENCE, StopReason.GAIN}

    @property
    def resumable(self) -> bool:
        """Whether the work was cut short, so that going on makes sense."""
        return self in {StopReason.BUDGET, StopReason.DEADLINE, StopReason.FAILED, StopReason.CANCELLED}


def _add_optional(a: float | None, b: float | None) -> Any:
    return None if a is None or b is None else a + b


@dataclass(frozen=True, slots=True)
class Usage:
    """What calls consumed. Unknown is None, never 0, and a sum with an unknown part is unknown.

    `calls` counts every model call made, failed and repeated ones included; `retried_calls` says how many of them
    were retries or re-asks. `cost` is in USD. `cached_calls` were answered from a cache: they cost nothing and are
    not in `calls`. `answer_tokens` and `answer_cost` are what the answers took when they were made: failed attempts left
    out, cached answers included.
    """

    calls: int = 0
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cached_calls: int = 0
    retried_calls: int = 0
    cost: float | None = 0.0
    answer_tokens: int | None = 0
    answer_cost: float | None = 0.0

    def __add__(self, other: Usage) -> Usage:
        if other is NO_USAGE or self is NO_USAGE:
            return self if other is NO_USAGE else other
        return Usage(
            self.calls + other.calls,
            _add_optional(self.input_tokens, other.input_tokens),
            _add_optional(self.output_tokens, other.output_tokens),
            self.cached_calls + other.cached_calls,
            self.retried_calls + other.retried_calls,
            _add_optional(self.cost, other.cost),
            _add_optional(self.answer_tokens, other.answer_tokens),
            _add_optional(self.answer_cost, other.answer_cost),
        )

    @property
    def tokens(self) -> int | None:
        """Tokens read and written together."""
        both: int | None = _add_optional(self.input_tokens, self.output_tokens)
        return both

    def as_single_answer(self) -> Usage:
        """The same where all calls were made for one answer: each after the first was a retry."""
        return replace(self, retried_calls=max(self.calls - 1, 0))


NO_USAGE = Usage()


MAX_TOOL_CALLS = 128  # in one answer
TOOL_CHOICES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool that a model asks for: the name of the function, and its arguments as JSON text, as the model wrote them.

    `id` is what the result of the call refers to. Raises ValueError where a field is no text.
    """

    name: str
    arguments: str = "{}"
    id: str = ""

    def __post_init__(self) -> None:
        if not all(isinstance(text, str) for text in (self.name, self.arguments, self.id)) or not self.name:
            raise ValueError(f"a tool call has a name, arguments and an id, all of them texts, got {self!r:.200}")

    @property
    def parsed_arguments(self) -> Any:
        """The arguments as a value: an object, in every call that a model made. Raises ValueError for what is no JSON.

        Its bounds are those of `jsontext.parsed`.
        """
        return strict_loads(self.arguments)

    def as_message_part(self) -> dict[str, Any]:
        """The call as it stands in an assistant's message: {"id", "type", "function": {"name", "arguments"}}."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def _format_value(value: object) -> str:
    from ..checks import format_value  # it knows the errors, and those know the records

    return format_value(value)


def validate_tools(tools: Any) -> tuple[Mapping[str, Any], ...]:
    """The tools offered to a writer. Raises ValueError for what is no list of function tools, or names one twice."""
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        raise ValueError(f"tools must be a list of {_TOOL}, got {_format_value(tools)}")
    checked = tuple({"type": "function", **tool} if isinstance(tool, Mapping) else tool for tool in tools)
    names = [_tool_name(tool) for tool in checked]
    if (twice := first_duplicate(names)) is not None:
        raise ValueError(f"tools: the function {twice!r} stands there twice")
    return checked


_TOOL = '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}'


def _tool_name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, dict) and tool["type"] == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise ValueError(f"tools: a tool is {_TOOL}, got {_format_value(tool)}")
    if not isinstance(function.get("parameters", {}), Mapping):
        raise ValueError(f"tools: the parameters of {name!r} must be a JSON schema, got {_format_value(function['parameters'])}")
    return name


def validate_tool_choice(choice: Any, tools: Iterable[Mapping[str, Any]]) -> str | Mapping[str, Any] | None:
    """Which of the tools a writer must call. Raises ValueError for what says nothing about these tools."""
    if choice is None:
        return None
    names = [tool["function"]["name"] for tool in tools]
    if not names:
        raise ValueError(f"tool_choice says which of the `tools` to call, and there are none, got {_format_value(choice)}")
    if isinstance(choice, str) and choice in TOOL_CHOICES:
        return choice
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    if isinstance(function, Mapping) and function.get("name") in names:
        return dict(choice)
    allowed = f'{", ".join(map(repr, TOOL_CHOICES))} or {{"type": "function", "function": {{"name": ...}}}}'
    raise ValueError(f"tool_choice must be {allowed} with one of {', '.join(map(repr, names))}, got {_format_value(choice)}")


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to be answered well.

    `messages` may be given as a prompt or as chat messages (`{"role", "content"}`). With a `response`, that becomes
    candidate 0. `reference`, `context` and `tests` are for graders that read them; tests are shown to judges and never run.
    `requirements` are specs such as "words:80-200", or objects with such a `spec`. `tools` are functions that the model which
    writes may call, and `tool_choice` whether it must, both in OpenAI's form; judges are never offered them. Raises ConfigError
    for a field that is not what it must be.
    """

    messages: tuple[Message, ...]
    response: str | None = None
    reference: str | None = None
    context: str | None = None
    tests: str | None = None
    requirements: tuple[str, ...] = ()
    id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | Mapping[str, Any] | None = None

    def __init__(
        self,
        messages: str | Iterable[Message],
        response: str | None = None,
        *,
        reference: str | None = None,
        context: str | None = None,
        tests: str | None = None,
        requirements: Iterable[Any] = (),
        id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        tools: Iterable[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
    ) -> None:
        from .. import checks
        from ..errors import ConfigError

        texts = dict(response=response, reference=reference, context=context, tests=tests, id=id)
        for name, value in texts.items():
            checks.text(name, value, optional=True, allow_blank=True)
        if not (metadata is None or isinstance(metadata, Mapping)):
            raise checks.invalid_argument("metadata", 'a mapping such as {"source": "mail"} or None', metadata)
        try:
            said = tuple(as_messages(messages))
        except ValueError as error:
            raise ConfigError(f"messages: {error}") from None
        try:
            offered = validate_tools(() if tools is None else tools)
            choice = validate_tool_choice(tool_choice, offered)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        given = dict(messages=said, requirements=_requirement_specs(requirements), metadata=dict(metadata or {}))
        for name, held in [*texts.items(), *given.items(), ("tools", offered), ("tool_choice", choice)]:
            object.__setattr__(self, name, held)

    @property
    def prompt(self) -> str:
        """The text of the last user message."""
        return next((message_text(m) for m in reversed(self.messages) if m["role"] == "user"), "")


URL_FIELDS = {"image_url", "video_url", "audio_url", "file_url", "url", "uri"}
"""The fields of a message's parts in which an address stands: a text, or an object with such a field."""


def _requirement_specs(requirements: Any) -> tuple[str, ...]:
    """The specs of requirements, given as specs or as objects that have one. Raises ConfigError."""
    from .. import checks

    wanted = 'a list of specs such as ["words:80-200"], or of objects with a `spec`'
    if isinstance(requirements, str | bytes | Mapping | type) or not isinstance(requirements, Iterable):
        raise checks.invalid_argument("requirements", wanted, requirements)
    specs = [one if isinstance(one, str) else getattr(one, "spec", None) for one in requirements]
    for spec in specs:
        if not isinstance(spec, str):
            raise checks.invalid_argument("requirements", wanted, requirements)
    return tuple(map(str, specs))


def as_messages(prompt: str | Iterable[Message]) -> list[dict[str, Any]]:
    """Chat messages from a prompt, or a checked copy of the messages given. Raises ValueError.

    A message that calls tools may come without content, which is None then.
    """
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if isinstance(prompt, Mapping | bytes | type) or not isinstance(prompt, Iterable):
        raise ValueError(f"a task is a prompt or a list of messages, got {_format_value(prompt)}")
    messages: list[dict[str, Any]] = []
    for n, message in enumerate(prompt, 1):
        calls = isinstance(message, Mapping) and (message.get("tool_calls") or message.get("function_call"))
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or not ("content" in message or calls):
            raise ValueError(f'message {n} must be {{"role": "user", "content": "..."}}, got {_format_value(message)}')
        _check_urls(message.get("content"), f"messages[{n - 1}].content")
        messages.append({**message, "content": message.get("content")})
    if not messages:
        raise ValueError("a task needs at least one message, got none")
    return messages


def _check_urls(value: Any, where: str) -> None:
    """Raises ValueError for an address of an image, or of another file, in a message that is no http(s) or data: URL."""
    if isinstance(value, list | tuple):
        for n, part in enumerate(value):
            _check_urls(part, f"{where}[{n}]")
    elif isinstance(value, Mapping) and value.get("type") != "text":
        for name, inner in value.items():
            if name in URL_FIELDS and isinstance(inner, str) and not inner.lower().startswith(("http://", "https://", "data:")):
                raise ValueError(f"{where}.{name}: an image is an http(s): or data: URL, got {_format_value(inner)}")
            if isinstance(inner, Mapping):
                _check_urls(inner, f"{where}.{name}")


def message_text(message: Message) -> str:
    """The text in a message whose content is text or a list of parts."""
    content = message["content"]
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list | tuple) else ()
    return "\n".join(str(p["text"]) for p in parts if isinstance(p, Mapping) and "text" in p)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One response, the candidate it came from, and who made it (`by`: a model, "editor" or "given").

    `truncated` says that the model was cut off; `reasoning` is what it thought aloud, which is no part of the answer;
    `note` says in words what an editor did. `seconds` is how long it took. `tool_calls` are the calls of tools that the model
    asks for; `text` may be empty then.
    """

    id: int
    text: str
    parent: int | None = None
    by: str = "given"
    role: str = "given"
    truncated: bool = False
    reasoning: str | None = None
    note: str = ""
    lossy: bool = False
    usage: Usage = NO_USAGE
    seconds: float | None = None
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def slot(self) -> Slot:
        return ("candidate", self.id)

    @property
    def display_text(self) -> str:
        """The text and, each on a line of its own, the tool calls: `[tool call: NAME] ARGUMENTS`."""
        calls = (f"[tool call: {call.name}] {call.arguments}" for call in self.tool_calls)
        return "\n".join(filter(None, (self.text, *calls)))

    @property
    def content_key(self) -> tuple[Any, ...]:
        """The text and the tool calls without their ids, which are new every time: equal where two candidates say the same."""
        return (self.text, *((call.name, call.arguments) for call in self.tool_calls))


@dataclass(frozen=True, slots=True)
class CriterionScore:
    """One line of a grader's view: a criterion, its score in [0, 1], the evidence quoted, and what to change."""

    name: str
    score: float
    evidence: str = ""
    action: str = ""
    weight: float = 1.0

    def __post_init__(self) -> None:
        _check_score(self.score, f"the score of criterion {self.name!r}")


@dataclass(frozen=True, slots=True)
class Feedback:
    """One grader's view of one candidate.

    `score` is in [0, 1], higher is better, or None: unknown. `actions` say what to change; `done` whether the grader
    would stop here (None: it does not say). `nearness` is how near a text comes to a demand that it does not meet, in
    [0, 1] (None: the score says that, too). A grader fills these; the loop fills in who looked at what.
    `votes` are the views this one was made of, a `Failure` for each that could not be had. Raises ValueError for a
    score that is none: it is never clamped.
    """

    score: float | None = None
    reason: str = ""
    actions: tuple[str, ...] = ()
    done: bool | None = None
    criteria: tuple[CriterionScore, ...] = ()
    candidate: int = 0
    grader: str = ""
    repeat: int = 0
    by: str = ""
    usage: Usage = NO_USAGE
    seconds: float | None = None
    votes: tuple[Feedback | Failure, ...] = ()
    nearness: float | None = None

    def __post_init__(self) -> None:
        if self.nearness is not None:
            _check_score(self.nearness, "a nearness")
        if self.score is not None:
            _check_score(self.score, "a score")
            object.__setattr__(self, "score", float(self.score))
        for name in ("actions", "criteria", "votes"):
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name)))

    @property
    def slot(self) -> Slot:
        return ("feedback", self.candidate, self.grader, self.repeat)

    @property
    def is_critique(self) -> bool:
        """Whether it is a critic's: it says what to change or whether to stop, and gives no score."""
        return self.score is None and (bool(self.actions) or self.done is not None)

    @property
    def vote_sd(self) -> float | None:
        """The standard deviation (n - 1) of the scores of its votes; None with fewer than two."""
        scores = [v.score for v in self.votes if isinstance(v, Feedback) and v.score is not None]
        if len(scores) < 2:
            return None
        mean = sum(scores) / len(scores)
        return sqrt(sum((s - mean) ** 2 for s in scores) / (len(scores) - 1))


def _check_score(score: Any, what: str) -> None:
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
        raise ValueError(f"{what} must be a number in [0, 1], got {_format_value(score)}")


def _as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    """What stands in a list. Raises ValueError for what is none: a text would be taken apart."""
    if isinstance(value, str | bytes | Mapping | type) or not isinstance(value, Iterable):
        raise ValueError(f"{name} must be a list, got {_format_value(value)}")
    return tuple(value)


def _check_interval(interval: Any) -> None:
    if not isinstance(interval, tuple | list) or len(interval) != 2:
        raise ValueError(f"an interval is a pair of numbers (low, high), got {interval!r:.200}")
    low, high = interval
    for end in interval:
        _check_score(end, "an end of an interval")
    if low > high:
        raise ValueError(f"an interval goes from its lower end to its upper one, got {(low, high)!r}")


def _check_id(id: Any) -> None:
    if isinstance(id, bool) or not isinstance(id, int):
        raise ValueError(f"the id of a candidate must be a whole number, got {id!r}")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One grader's ranking of several candidates: `ranking` holds their ids, best first.

    `ties` are groups of ids that share a place; within one, the order says nothing. `shown` is the order in which the
    grader saw them, where it saw them in one. `votes` are the comparisons this one was made of: the same duel in both
    orders, the rounds of a knockout; a `Failure` for each that could not be had.
    """

    ranking: tuple[int, ...]
    reason: str = ""
    actions: tuple[str, ...] = ()
    done: bool | None = None
    grader: str = ""
    repeat: int = 0
    by: str = ""
    usage: Usage = NO_USAGE
    seconds: float | None = None
    ties: tuple[tuple[int, ...], ...] = ()
    presentation_order: tuple[int, ...] = ()
    votes: tuple[Comparison | Failure, ...] = ()

    def __post_init__(self) -> None:
        for name in ("ranking", "actions", "shown", "votes"):
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name)))
        groups = [_as_tuple("a group of ties", group) for group in _as_tuple("ties", self.ties)]
        if wrong := [id for id in chain(self.ranking, *groups) if not isinstance(id, int)]:
            raise ValueError(f"ranking and ties hold ids of candidates, which are whole numbers, got {wrong[0]!r}")
        object.__setattr__(self, "ties", tuple(tuple(sorted(group)) for group in groups))
        if not {id for group in self.ties for id in group} <= set(self.ranking):
            raise ValueError(f"ties are of candidates in the ranking {list(self.ranking)!r}, got {self.ties!r}")

    @property
    def slot(self) -> Slot:
        return ("comparison", tuple(sorted(self.ranking)), self.grader, self.repeat)

    @property
    def ranks(self) -> dict[int, int]:
        """The place of every candidate, from 0; tied ones share the best place among them."""
        places = {id: place for place, id in enumerate(self.ranking)}
        for group in self.ties:
            places.update(dict.fromkeys(group, min(places[id] for id in group)))
        return places

    @property
    def consistent(self) -> bool | None:
        """Whether all votes on the same candidates agree; None where no two of them are about the same."""
        told: dict[frozenset[int], list[dict[int, int]]] = {}
        for vote in self.votes:
            if isinstance(vote, Comparison):
                told.setdefault(frozenset(vote.ranking), []).append(vote.ranks)
        twice = [places for places in told.values() if len(places) > 1]
        return all(p == places[0] for places in twice for p in places) if twice else None


@dataclass(frozen=True, slots=True)
class Failure:
    """A step that could not be carried out, and why. It fills no slot: a rerun tries it again.

    `of` is the slot that stays empty, `role` the kind of step, `error` the name of the error. `ends` is set where it
    ends the work: the budget or the deadline. `status`, `retry_after`, `retryable` and `what` are those of the error (see
    `ModelError` and `BudgetExhaustedError`), so that it can be raised again as it was.
    """

    step_slot: Slot
    role: str
    error: str
    message: str = ""
    stop_reason: StopReason | None = None
    by: str = ""
    usage: Usage = NO_USAGE
    seconds: float | None = None
    status: int | None = None
    retry_after: float | None = None
    retryable: bool | None = None
    limit: str = ""

    @property
    def slot(self) -> Slot:
        return ("failure", *self.step_slot)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Which candidate was kept (None: there was none) and why the work ended; `note` says it in words.

    `score` and `interval` are what the plan believes of its quality (the mean, and where it lies with 95 %), where that is
    not simply the score that was observed; `believed` holds the means of all, as pairs of an id and a score. `noise` is the
    standard deviation of one look's noise by which the plan went, before it saw any. Raises ValueError for what cannot be.
    """

    best: int | None
    reason: StopReason
    note: str = ""
    score: float | None = None
    interval: tuple[float, float] | None = None
    estimates: tuple[tuple[int, float], ...] = ()
    noise_sd: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", StopReason(self.reason))
        for score in (self.score, self.noise_sd):
            if score is not None:
                _check_score(score, "what is believed of a candidate")
        if self.interval is not None:
            _check_interval(self.interval)
        for pair in _as_tuple("believed", self.estimates):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ValueError(f"believed must hold pairs (id, score), got {pair!r:.200}")
            id, score = pair
            _check_id(id)
            _check_score(score, "what is believed of a candidate")
        if self.best is not None:
            _check_id(self.best)

    @property
    def slot(self) -> Slot:
        return ("outcome",)

    @property
    def usage(self) -> Usage:
        return NO_USAGE


Record: TypeAlias = Candidate | Feedback | Comparison | Failure | Outcome
