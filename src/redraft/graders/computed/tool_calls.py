"""The tool calls of an answer, or of a whole trajectory, compared with those expected.

A trajectory is the task's messages and the answer after them. Tool calls stand in the messages of
the assistant, as `tool_calls` or the earlier `function_call`, and in the answer. What tools
returned, and any other text, is not read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ...base.own_code import fingerprint_name
from ...base.text import compose_nfc, pluralize
from ...errors import ConfigError
from ...loop.records import Candidate, Feedback
from ...loop.task import Message, Task
from ...requirements.data import parse_json
from .base import ComputedGrader, preview, score_feedback
from .json_fields import canonical_json

CallKey: TypeAlias = tuple[str, str]
# stands for a name or arguments that cannot be read; no expected call is equal to it
INVALID = "(invalid)"

_FENCE = re.compile(r"```(?:json|tool_call|tool_calls)?[ \t]*\r?\n([^`]*)```", re.IGNORECASE)
_TAG = re.compile(r"<tool_call>([^<]*)</tool_call>")
_CALL_HINT = re.compile(r"tool_calls?|\"(?:name|arguments|function)\"\s*:", re.IGNORECASE)


class _CallGrader(ComputedGrader):
    """What the graders of tool calls share."""

    arguments: bool

    reads_metadata = True
    reads_tool_calls = True

    def check_task(self, task: Task) -> None:
        """Raise ConfigError for a task that expects no calls, neither in its metadata nor in its
        reference.
        """
        _find_expectation(task, self.name)

    def assess(self, task: Task, candidate: Candidate) -> Feedback:
        """Return a score from 0 to 1. Raises ConfigError for a task without readable
        expectations.
        """
        expected = _expected_calls(task, self.name, arguments=self.arguments)
        try:
            made = self.made_calls(task, candidate, expected)
        except ValueError as error:
            return Feedback(
                0.0,
                f"no tool calls can be read: {error}",
                ("Answer with the tool calls as one JSON list.",),
            )
        score = 1.0 if not made and not expected else self.share(made, expected)
        hint = _unexpected_calls_hint(made, expected) or "Calls are missing or out of order."
        calls = pluralize(len(made), "tool call")
        return score_feedback(
            score, f"{calls} made, {len(expected)} expected{self.words(score)}", hint
        )

    def made_calls(
        self, task: Task, candidate: Candidate, expected: Sequence[CallKey]
    ) -> list[CallKey]:
        """Return the calls that were made. Raises ValueError if they cannot be read."""
        raise NotImplementedError

    def share(self, made: Sequence[CallKey], expected: Sequence[CallKey]) -> float:
        """Return the score, unless there are neither calls nor expected ones."""
        raise NotImplementedError

    def words(self, score: float) -> str:
        """Return the score in words."""
        raise NotImplementedError


@fingerprint_name("tool_calls")
@dataclass(frozen=True)
class ToolCalls(_CallGrader):
    """The share of tool calls that are the expected ones.

    `order`: the length of the longest common subsequence divided by that of the longer list, so
    surplus calls and a wrong order lower the score. `any`: the number of common calls, in any
    order, divided by the length of the longer list. `subset`: the share of expected calls that were
    made; others are allowed. Two calls are equal if their names are and, with `arguments`, all
    their arguments.

    The expected calls are `metadata["tool_calls"]`, else JSON in `reference`: a list of {"name",
    "arguments"} or of OpenAI's {"function": {...}}, a list of such lists, or an object with such
    `tool_calls`. If the list is empty, a text without calls gets 1. The calls made are
    `Candidate.tool_calls`; without any, those that the text holds in the same form: as the whole
    text, in one code fence, or in <tool_call> tags. Calls in several fences, or both inside and
    outside of tags, cannot be read.
    """

    mode: Literal["order", "any", "subset"] = "order"
    arguments: bool = True
    name: str = "tool_calls"

    def made_calls(
        self, task: Task, candidate: Candidate, expected: Sequence[CallKey]
    ) -> list[CallKey]:
        if candidate.tool_calls:
            calls = [call.as_message_part() for call in candidate.tool_calls]
            return _parse_calls(calls, arguments=self.arguments)
        if not expected and not _CALL_HINT.search(candidate.text):
            return []
        return _parse_calls(_find_json(candidate.text), arguments=self.arguments)

    def share(self, made: Sequence[CallKey], expected: Sequence[CallKey]) -> float:
        if self.mode == "subset":
            return _share_of(_common(made, expected), expected)
        common = _common_in_order if self.mode == "order" else _common
        return common(made, expected) / max(len(made), len(expected))

    def words(self, score: float) -> str:
        return f", {score:.0%} in agreement"


@dataclass(frozen=True)
class _TrajectoryCalls(_CallGrader):
    """What the graders of a trajectory's calls share."""

    scope: Literal["all", "steps"] = "all"
    arguments: bool = True
    name: str = "trajectory_calls"

    def made_calls(
        self, task: Task, candidate: Candidate, expected: Sequence[CallKey]
    ) -> list[CallKey]:
        """Return the calls of the messages and of the answer. Raises ValueError if only a text may
        hold calls, unreadable ones.
        """
        calls = [
            *_message_calls(task.messages, self.scope),
            *(call.as_message_part() for call in candidate.tool_calls),
        ]
        if not calls and _CALL_HINT.search(candidate.text):
            return _parse_calls(_find_json(candidate.text), arguments=self.arguments)
        return [_call_key(call, arguments=self.arguments) for call in calls]


@fingerprint_name("tool_call_precision")
@dataclass(frozen=True)
class ToolCallPrecision(_TrajectoryCalls):
    """The share of the tool calls made that are expected, in any order; each expected call counts
    once.

    The calls made are those in the task's messages and in the answer; with the `scope` "steps",
    only those after the last message of the user. An answer's text is read for calls (as
    `tool_calls` reads it) only if there are none elsewhere. The expected calls are
    `metadata["tool_calls"]`, else JSON in `reference`, as `tool_calls` reads them. Two calls are
    equal if their names are and, with `arguments`, all their arguments; arguments that are no JSON
    equal none. Without any call, the score is 1 if none is expected, else 0; and 0 if calls are
    made and none is expected.
    """

    name: str = "tool_call_precision"

    def share(self, made: Sequence[CallKey], expected: Sequence[CallKey]) -> float:
        return _share_of(_common(made, expected), made)

    def words(self, score: float) -> str:
        return f": {score:.0%} of those made are expected"


@fingerprint_name("tool_call_recall")
@dataclass(frozen=True)
class ToolCallRecall(_TrajectoryCalls):
    """The share of the expected tool calls that were made, in any order; further calls cost
    nothing.

    Calls are read and compared as by `tool_call_precision`. If none is expected, the score is 1
    without a call and 0 with one.
    """

    name: str = "tool_call_recall"

    def share(self, made: Sequence[CallKey], expected: Sequence[CallKey]) -> float:
        return _share_of(_common(made, expected), expected)

    def words(self, score: float) -> str:
        return f": {score:.0%} of those expected were made"


@fingerprint_name("tool_call_order")
@dataclass(frozen=True)
class ToolCallOrder(_TrajectoryCalls):
    """The share of the expected tool calls that were made in the expected order; calls in between
    cost nothing.

    It is the length of the longest common subsequence, divided by the number of expected calls.
    Calls are read and compared as by `tool_call_precision`. If none is expected, the score is 1
    without a call and 0 with one.
    """

    name: str = "tool_call_order"

    def share(self, made: Sequence[CallKey], expected: Sequence[CallKey]) -> float:
        return _share_of(_common_in_order(made, expected), expected)

    def words(self, score: float) -> str:
        return f": {score:.0%} of those expected were made in this order"


def _share_of(count: int, calls: Sequence[CallKey]) -> float:
    return count / len(calls) if calls else 0.0


def _common(made: Sequence[CallKey], expected: Sequence[CallKey]) -> int:
    return (Counter(made) & Counter(expected)).total()


def _common_in_order(made: Sequence[CallKey], expected: Sequence[CallKey]) -> int:
    """Return the length of the longest common subsequence."""
    from rapidfuzz import distance

    return distance.LCSseq.similarity(made, expected)


def _find_expectation(task: Task, grader: str) -> Any:
    """Return the expected calls as the task has them, not parsed. Raises ConfigError if it has
    none.
    """
    if "tool_calls" in task.metadata:
        return task.metadata["tool_calls"]
    if task.reference is None:
        raise ConfigError(
            f'grader {grader!r} needs the task\'s metadata["tool_calls"] or reference, and this '
            "task has neither"
        )
    return task.reference


def _expected_calls(task: Task, grader: str, *, arguments: bool) -> list[CallKey]:
    """Return the calls that a task expects. Raises ConfigError for a task without readable
    expectations.
    """
    value = _find_expectation(task, grader)
    try:
        return _parse_calls(
            parse_json(value) if isinstance(value, str) else value, arguments=arguments
        )
    except ValueError as error:
        raise ConfigError(
            f"grader {grader!r} cannot read the expected tool calls: {error}"
        ) from None


def _parse_calls(value: Any, *, arguments: bool) -> list[CallKey]:
    """Return the calls in a list or an object with `tool_calls`; a list may hold a list of calls
    for each step.

    Without `arguments`, calls of the same function are equal. Raises ValueError.
    """
    if isinstance(value, dict):
        value = value.get("tool_calls", [value])
    if not isinstance(value, list | tuple):
        raise ValueError("there is no list of calls")
    steps = (each if isinstance(each, list | tuple) else [each] for each in value)
    return [parse_call(call, arguments=arguments) for step in steps for call in step]


def parse_call(value: Any, *, arguments: bool) -> CallKey:
    """Return the name and the canonical arguments of a call. Raises ValueError."""
    value = value.get("function", value) if isinstance(value, dict) else value
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError('a call is {"name": ..., "arguments": {...}}')
    name = compose_nfc(value["name"])
    if not arguments:
        return name, ""
    values = value.get("arguments", value.get("parameters")) or {}
    return name, canonical_json(parse_json(values) if isinstance(values, str) else values)


def _unexpected_calls_hint(made: Sequence[CallKey], expected: Sequence[CallKey]) -> str:
    """Name the functions of the calls that are not expected; "" without one."""
    names = [preview(name, 40) for name, _ in (Counter(made) - Counter(expected))]
    return f"Not expected like this: {', '.join(names[:10])}." if names else ""


def _find_json(text: str) -> Any:
    """Return the value of the text as JSON, or of its only code fence or tags. Raises
    ValueError.
    """
    if tags := _TAG.findall(text):
        if _CALL_HINT.search(_TAG.sub("", text)):
            raise ValueError("there are calls outside the tags")
        return [parse_json(tag) for tag in tags]
    fences = _FENCE.findall(text)
    if len(fences) > 1:
        raise ValueError("there are several code fences")
    return parse_json(fences[0] if fences else text)


def _message_calls(messages: Sequence[Message], scope: str) -> Iterator[Any]:
    """Yield the calls in the messages of the assistant; with the scope "steps", after the last
    message of the user.
    """
    last = max((n for n, message in enumerate(messages) if message["role"] == "user"), default=-1)
    for message in messages[last + 1 if scope == "steps" else 0 :]:
        if message["role"] != "assistant":
            continue
        calls = message.get("tool_calls")
        yield from calls if isinstance(calls, list | tuple) else ()
        if call := message.get("function_call"):
            yield {"function": call}


def _call_key(call: Any, *, arguments: bool) -> CallKey:
    """Return the key of a call; of one that cannot be read, a key that no expected call has."""
    try:
        return parse_call(call, arguments=arguments)
    except ValueError:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        return name if isinstance(name, str) else INVALID, INVALID
