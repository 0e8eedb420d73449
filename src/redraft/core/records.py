"""Records: what happened in a run, as immutable values.

A record and the step that asked for it share a `slot`; resuming, replaying and de-duplicating are look-ups by slot. What
can be computed from other records is not stored (see `trace`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from math import sqrt
from typing import Any, TypeAlias, cast

from .. import checks
from ..errors import ConfigError
from ..jsontext import MAX_DEPTH, first_duplicate, nesting_depth, strict_loads
from ..usage import NO_USAGE, Usage

Slot: TypeAlias = tuple[Any, ...]
Message: TypeAlias = Mapping[str, Any]


class StopReason(StrEnum):
    """Why the work ended. Members are strings: `result.stop == "target"`.

    Attributes:
        TARGET: The best answer reached `target_score`.
        DONE: The graders say that nothing should change.
        TOOL_CALLS: The answer calls tools, and no grader reads tool calls; it is returned ungraded.
        PATIENCE: Several refinements in a row brought no improvement.
        MAX_ITERATIONS: All refinements were used.
        BUDGET: Money, tokens or calls are used up.
        DEADLINE: The time is up.
        GAIN: No step is expected to be worth its cost.
        FAILED: A model, or all graders, failed.
        CANCELLED: The caller interrupted the work.
    """

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
        """Whether no improvement was to be expected (see `Trace.converged` for musts)."""
        return self in {StopReason.TARGET, StopReason.DONE, StopReason.PATIENCE, StopReason.GAIN}

    @property
    def resumable(self) -> bool:
        """Whether the run was cut short, so that it can be continued."""
        return self in {StopReason.BUDGET, StopReason.DEADLINE, StopReason.FAILED, StopReason.CANCELLED}


MAX_TOOL_CALLS = 128  # in one answer
TOOL_CHOICES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that a model asks for: the function's name, and its arguments as the JSON text that the model wrote.

    `id` is what the result of the call refers to. Raises ValueError if a field is not text or the name is empty.
    """

    name: str
    arguments: str = "{}"
    id: str = ""

    def __post_init__(self) -> None:
        if not all(isinstance(text, str) for text in (self.name, self.arguments, self.id)) or not self.name:
            raise ValueError(f"a tool call has a name, arguments and an id, all of them texts, got {self!r:.200}")

    @property
    def parsed_arguments(self) -> Any:
        """The arguments as a value: a dict in every call that a model made. Raises ValueError for invalid JSON.

        The bounds are those of `jsontext.strict_loads`.
        """
        return strict_loads(self.arguments)

    def as_message_part(self) -> dict[str, Any]:
        """Return the call in the form of an assistant's message: {"id", "type", "function": {"name", "arguments"}}."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


MAX_ARTIFACT_METADATA = 65_536  # characters of an artifact's metadata as JSON
_ARTIFACT_KIND = re.compile(r"[a-z][a-z0-9_.+-]{0,63}")
_DIGEST_LENGTHS = {"sha1": 40, "sha256": 64, "sha384": 96, "sha512": 128}
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(;[ -~]*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A reference to a result that is stored elsewhere: a git tree, a file, an image.

    `kind` says what it is ("git-tree", "file", "image" or a word of one's own), `uri` where it is, `digest` what it
    contains, as "ALGORITHM:HEX" with sha1, sha256, sha384 or sha512 in lower case. `media_type` is that of HTTP, such as
    "image/png". `metadata` holds whatever else is to be kept, as JSON. Redraft stores and compares references; it never
    reads what they point to. Two artifacts of the same kind with the same digest are the same, wherever they are stored.

    Raises ValueError for a field that is not as described.
    """

    kind: str
    uri: str
    digest: str
    media_type: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or not _ARTIFACT_KIND.fullmatch(self.kind):
            raise ValueError(f"the kind of an artifact is a word such as 'git-tree', got {checks.format_value(self.kind)}")
        if not isinstance(self.uri, str) or not self.uri.isprintable() or not self.uri.strip():
            raise ValueError(f"the uri of an artifact is text without control characters, got {checks.format_value(self.uri)}")
        algorithm, _, value = self.digest.partition(":") if isinstance(self.digest, str) else ("", "", "")
        if len(value) != _DIGEST_LENGTHS.get(algorithm) or not set(value) <= set("0123456789abcdef"):
            raise ValueError(
                f"the digest of an artifact is ALGORITHM:HEX, such as 'sha256:9f86...', with {', '.join(_DIGEST_LENGTHS)}, "
                f"got {checks.format_value(self.digest)}"
            )
        if self.media_type is not None and not (isinstance(self.media_type, str) and _MEDIA_TYPE.fullmatch(self.media_type)):
            raise ValueError(f"the media type of an artifact is such as 'image/png', got {checks.format_value(self.media_type)}")
        if not isinstance(self.metadata, Mapping):
            raise ValueError(f"the metadata of an artifact is a mapping, got {checks.format_value(self.metadata)}")
        try:
            copy = json.loads(text := json.dumps(dict(self.metadata), allow_nan=False))
            if copy != self.metadata or len(text) > MAX_ARTIFACT_METADATA or nesting_depth(copy) > MAX_DEPTH:
                raise ValueError
        except (TypeError, ValueError, RecursionError):
            raise ValueError(
                f"the metadata of an artifact is JSON of at most {MAX_ARTIFACT_METADATA:,} characters with texts as keys, "
                f"got {checks.format_value(self.metadata)}"
            ) from None
        object.__setattr__(self, "metadata", copy)


def validate_tools(tools: Any) -> tuple[Mapping[str, Any], ...]:
    """Return a checked copy of tools. Raises ValueError for anything but a list of function tools with distinct names."""
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        raise ValueError(f"tools must be a list of {_TOOL}, got {checks.format_value(tools)}")
    checked = tuple({"type": "function", **tool} if isinstance(tool, Mapping) else tool for tool in tools)
    names = [_tool_name(tool) for tool in checked]
    if (twice := first_duplicate(names)) is not None:
        raise ValueError(f"tools: the function {twice!r} is defined twice")
    return checked


_TOOL = '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}'


def _tool_name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, dict) and tool["type"] == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise ValueError(f"tools: a tool is {_TOOL}, got {checks.format_value(tool)}")
    if not isinstance(function.get("parameters", {}), Mapping):
        raise ValueError(
            f"tools: the parameters of {name!r} must be a JSON schema, got {checks.format_value(function['parameters'])}"
        )
    return name


def validate_tool_choice(choice: Any, tools: Iterable[Mapping[str, Any]]) -> str | Mapping[str, Any] | None:
    """Return a checked tool choice. Raises ValueError for one that does not fit these tools."""
    if choice is None:
        return None
    names = [tool["function"]["name"] for tool in tools]
    if not names:
        raise ValueError(f"tool_choice needs `tools` to choose from, and there are none, got {checks.format_value(choice)}")
    if isinstance(choice, str) and choice in TOOL_CHOICES:
        return choice
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    if isinstance(function, Mapping) and function.get("name") in names:
        return dict(cast("Mapping[str, Any]", choice))
    allowed = f'{", ".join(map(repr, TOOL_CHOICES))} or {{"type": "function", "function": {{"name": ...}}}}'
    raise ValueError(f"tool_choice must be {allowed} with one of {', '.join(map(repr, names))}, got {checks.format_value(choice)}")


@dataclass(frozen=True, slots=True)
class Task:
    """Something to be answered.

    Args:
        messages: A prompt, or chat messages in OpenAI's form, such as `{"role": "user", "content": "..."}`.
        response: An answer to start from. It becomes candidate 0.
        reference: A known good answer, for graders that compare.
        context: Material that the answer must rest on, for graders that read it.
        tests: Tests, for judges that read them. They are shown and never run.
        requirements: Specs such as "words:80-200", or objects with such a `spec`. The model is told them; each is a `must`.
        id: An ID of your own.
        metadata: Anything else, for graders of your own.
        tools: Functions that the model that writes may call, in OpenAI's form. Judges are never offered them.
        tool_choice: Whether it must call one: "none", "auto", "required", or `{"type": "function", "function": {"name": ...}}`.
            None leaves it to the model.

    Raises:
        ConfigError: An argument is not as described.
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
"""The fields of a message's parts that hold a URL: as text, or as an object with such a field."""


def _requirement_specs(requirements: Any) -> tuple[str, ...]:
    """Return the specs of requirements, given as specs or as objects with a `spec`. Raises ConfigError."""
    wanted = 'a list of specs such as ["words:80-200"], or of objects with a `spec`'
    if isinstance(requirements, str | bytes | Mapping | type) or not isinstance(requirements, Iterable):
        raise checks.invalid_argument("requirements", wanted, requirements)
    specs = [one if isinstance(one, str) else getattr(one, "spec", None) for one in requirements]
    for spec in specs:
        if not isinstance(spec, str):
            raise checks.invalid_argument("requirements", wanted, requirements)
    return tuple(map(str, specs))


def as_messages(prompt: str | Iterable[Message]) -> list[dict[str, Any]]:
    """Return chat messages: one for a prompt, or a checked copy of the given ones. Raises ValueError.

    A message with tool calls may lack content, which is then None.
    """
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if isinstance(prompt, Mapping | bytes | type) or not isinstance(prompt, Iterable):
        raise ValueError(f"a task is a prompt or a list of messages, got {checks.format_value(prompt)}")
    messages: list[dict[str, Any]] = []
    for n, message in enumerate(prompt, 1):
        calls = isinstance(message, Mapping) and (message.get("tool_calls") or message.get("function_call"))
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or not ("content" in message or calls):
            raise ValueError(f'message {n} must be {{"role": "user", "content": "..."}}, got {checks.format_value(message)}')
        _check_urls(message.get("content"), f"messages[{n - 1}].content")
        messages.append({**message, "content": message.get("content")})
    if not messages:
        raise ValueError("a task needs at least one message, got none")
    return messages


def _check_urls(value: Any, where: str) -> None:
    """Raise ValueError for the address of a file in a message that is not an http(s): or data: URL."""
    if isinstance(value, list | tuple):
        for n, part in enumerate(value):
            _check_urls(part, f"{where}[{n}]")
    elif isinstance(value, Mapping) and value.get("type") != "text":
        for name, inner in value.items():
            if name in URL_FIELDS and isinstance(inner, str) and not inner.lower().startswith(("http://", "https://", "data:")):
                raise ValueError(f"{where}.{name}: an image is an http(s): or data: URL, got {checks.format_value(inner)}")
            if isinstance(inner, Mapping):
                _check_urls(inner, f"{where}.{name}")


def message_text(message: Message) -> str:
    """Return the text of a message, whose content is text or a list of parts."""
    content = message["content"]
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list | tuple) else ()
    return "\n".join(str(p["text"]) for p in parts if isinstance(p, Mapping) and "text" in p)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One response.

    Two candidates with equal text, tool calls and artifact count as the same. `text` may be empty if there is one of the others.

    Attributes:
        id: Its number in the trace, from 0.
        text: The answer.
        parent: ID of the candidate that it was made from, or None.
        by: Who made it: the name of a model, "editor" or "given".
        role: How it was made: "generate", "refine", "repair" or "given".
        truncated: Whether the model was cut off at its token limit.
        reasoning: What the model thought aloud. It is not part of the answer.
        note: What the editor did, in words.
        lossy: Whether the editor removed content.
        usage: What making it consumed.
        seconds: How long making it took, or None.
        tool_calls: Calls of tools that the model asks for.
        artifact: A reference to a result that is stored elsewhere, or None.
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
    artifact: Artifact | None = None

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
        """The text, the tool calls without their ids (which are new every time), and the kind and digest of the artifact.

        Two candidates with equal keys are the same response.
        """
        calls = ((call.name, call.arguments) for call in self.tool_calls)
        artifact = [("artifact", self.artifact.kind, self.artifact.digest)] if self.artifact else []
        return (self.text, *calls, *artifact)


@dataclass(frozen=True, slots=True)
class CriterionScore:
    """The score of one criterion in a grader's feedback.

    Attributes:
        name: The criterion.
        score: From 0 to 1.
        evidence: A quotation from the answer.
        action: What to change, or "".
        weight: How much it counts in the mean, above 0.

    Raises:
        ValueError: The score is not a number from 0 to 1.
    """

    name: str
    score: float
    evidence: str = ""
    action: str = ""
    weight: float = 1.0

    def __post_init__(self) -> None:
        _check_score(self.score, f"the score of criterion {self.name!r}")


@dataclass(frozen=True, slots=True)
class Feedback:
    """What one grader says of one candidate.

    A grader of your own fills in the first five. The loop fills in who graded what. A score out of range is an error; it is never
    clamped.

    Attributes:
        score: From 0 to 1, higher is better; None means unknown.
        reason: Why, in words.
        actions: What to change. The model that refines is told these.
        done: Whether the grader would stop here; None means that it does not say.
        criteria: Scores by criterion.
        candidate: ID of the candidate.
        grader: Name of the grader.
        repeat: Which of several repeated grades this is, from 0.
        by: Name of the model that was asked, or "".
        usage: What grading consumed.
        seconds: How long grading took, or None.
        votes: The votes that a jury's feedback consists of; a `Failure` for each that could not be had.
        nearness: How near the text comes to a requirement that it breaks, from 0 to 1; None means that the score says it.

    Raises:
        ValueError: The score or nearness is not a number from 0 to 1, or a list is not a list.
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
        """Whether it says what to change or whether to stop, and has no score."""
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
        raise ValueError(f"{what} must be a number in [0, 1], got {checks.format_value(score)}")


def _as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    """Return a list as a tuple. Raises ValueError for anything else, including text, which would be split."""
    if isinstance(value, str | bytes | Mapping | type) or not isinstance(value, Iterable):
        raise ValueError(f"{name} must be a list, got {checks.format_value(value)}")
    return tuple(value)


def _check_interval(interval: Any) -> None:
    if not isinstance(interval, tuple | list) or len(interval) != 2:
        raise ValueError(f"an interval must be a pair of numbers (low, high), got {interval!r:.200}")
    low, high = interval
    for end in interval:
        _check_score(end, "an end of an interval")
    if low > high:
        raise ValueError(f"the lower end of an interval must not exceed the upper one, got {(low, high)!r}")


def _check_id(id: Any) -> None:
    if isinstance(id, bool) or not isinstance(id, int):
        raise ValueError(f"the id of a candidate must be a whole number, got {id!r}")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One grader's ranking of several candidates.

    Attributes:
        ranking: IDs of the candidates, best first.
        reason: Why, in words.
        actions: What to change.
        done: Whether the grader would stop here; None means that it does not say.
        grader: Name of the grader.
        repeat: Which of several repeated comparisons this is, from 0.
        by: Name of the model that was asked, or "".
        usage: What comparing consumed.
        seconds: How long comparing took, or None.
        ties: Groups of IDs that share a place. Within a group the order means nothing.
        presentation_order: IDs in the order in which the grader saw them, if there was a single one.
        votes: The comparisons that this one consists of, such as both orders of a pair; a `Failure` for each that could not be
            had.

    Raises:
        ValueError: The ranking or the ties hold something other than IDs of candidates.
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
        for name in ("ranking", "actions", "presentation_order", "votes"):
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
        """The rank of every candidate, from 0; tied candidates share the best rank among them."""
        places = {id: place for place, id in enumerate(self.ranking)}
        for group in self.ties:
            places.update(dict.fromkeys(group, min(places[id] for id in group)))
        return places

    @property
    def consistent(self) -> bool | None:
        """Whether all votes on the same candidates agree; None if no two votes are on the same candidates."""
        ranks_by_candidates: dict[frozenset[int], list[dict[int, int]]] = {}
        for vote in self.votes:
            if isinstance(vote, Comparison):
                ranks_by_candidates.setdefault(frozenset(vote.ranking), []).append(vote.ranks)
        repeated = [ranks for ranks in ranks_by_candidates.values() if len(ranks) > 1]
        return all(r == ranks[0] for ranks in repeated for r in ranks) if repeated else None


@dataclass(frozen=True, slots=True)
class Failure:
    """A step that could not be carried out. It fills no slot, so a resumed run tries the step again.

    Attributes:
        step_slot: The slot that stays empty.
        role: The kind of step: "generate", "refine", "repair", "grade" or "compare".
        error: Name of the error.
        message: What went wrong, in words.
        stop_reason: Why the work must end because of it (budget or deadline), else None.
        by: Name of the model that was asked, or "".
        usage: What the attempts consumed.
        seconds: How long they took, or None.
        status: HTTP status of the last attempt, or None.
        retry_after: How many seconds the server asked to wait, or None.
        retryable: Whether the same call may succeed later, or None.
        limit: The limit that was reached, such as "calls", or "".
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
    """Which candidate is best, and why the work ended.

    Attributes:
        best: ID of the best candidate, or None if there is none.
        reason: Why the work ended.
        note: The same in words.
        score: Estimated quality of the best candidate, from 0 to 1; None if the score of the graders is taken as it is.
        interval: Its 95 % interval, or None.
        estimates: Estimated quality of each candidate, as pairs of ID and score.
        noise_sd: Standard deviation of the noise of one grade that the plan assumed at the beginning, or None.

    Raises:
        ValueError: A score or an interval is out of range.
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
                _check_score(score, "an estimated score")
        if self.interval is not None:
            _check_interval(self.interval)
        for pair in _as_tuple("estimates", self.estimates):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ValueError(f"estimates must hold pairs (id, score), got {pair!r:.200}")
            id, score = pair
            _check_id(id)
            _check_score(score, "an estimated score")
        if self.best is not None:
            _check_id(self.best)

    @property
    def slot(self) -> Slot:
        return ("outcome",)

    @property
    def usage(self) -> Usage:
        return NO_USAGE


Record: TypeAlias = Candidate | Feedback | Comparison | Failure | Outcome
