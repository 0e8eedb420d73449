"""The tool calls of an answer, compared with those expected."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ...base import checks
from ...base.own_code import fingerprint_name
from ...base.text import compose_nfc, pluralize
from ...errors import ConfigError
from ...loop.records import Candidate, Feedback
from ...loop.task import Task
from ...protocols import JudgeClient
from ...requirements.data import parse_json
from .base import preview, score_feedback, with_limit
from .json_fields import canonical_json

CallKey: TypeAlias = tuple[str, str]
MODES = ("order", "any", "subset")

_FENCE = re.compile(r"```(?:json|tool_call|tool_calls)?[ \t]*\r?\n([^`]*)```", re.IGNORECASE)
_TAG = re.compile(r"<tool_call>([^<]*)</tool_call>")
_CALL_HINT = re.compile(r"tool_calls?|\"(?:name|arguments|function)\"\s*:", re.IGNORECASE)


@fingerprint_name("tool_calls")
@with_limit
@dataclass(frozen=True)
class ToolCalls:
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

    model_free = True
    reads_metadata = True
    reads_tool_calls = True

    def __post_init__(self) -> None:
        checks.one_of("mode", self.mode, MODES)

    def check_task(self, task: Task) -> None:
        """Raise ConfigError for a task that expects no calls, neither in its metadata nor in its
        reference.
        """
        find_expectation(task, self.name)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return a score from 0 to 1. Raises ConfigError for a task without readable
        expectations.
        """
        expected = expected_calls(task, self.name, arguments=self.arguments)
        return await asyncio.to_thread(self._compare, expected, candidate)

    def _compare(self, expected: list[CallKey], candidate: Candidate) -> Feedback:
        try:
            made = self._made_calls(candidate, none_expected=not expected)
        except ValueError as error:
            return unreadable_calls(error)
        score = _match_share(made, expected, self.mode)
        hint = unexpected_calls_hint(made, expected) or "Calls are missing or out of order."
        calls = pluralize(len(made), "tool call")
        return score_feedback(
            score, f"{calls} made, {len(expected)} expected, {score:.0%} in agreement", hint
        )

    def _made_calls(self, candidate: Candidate, *, none_expected: bool) -> list[CallKey]:
        if candidate.tool_calls:
            return parse_calls(
                [call.as_message_part() for call in candidate.tool_calls], arguments=self.arguments
            )
        if none_expected and not may_hold_calls(candidate.text):
            return []
        return calls_in_text(candidate.text, arguments=self.arguments)


def find_expectation(task: Task, grader: str) -> Any:
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


def expected_calls(task: Task, grader: str, *, arguments: bool) -> list[CallKey]:
    """Return the calls that a task expects. Raises ConfigError for a task without readable
    expectations.
    """
    value = find_expectation(task, grader)
    try:
        return parse_calls(
            parse_json(value) if isinstance(value, str) else value, arguments=arguments
        )
    except ValueError as error:
        raise ConfigError(
            f"grader {grader!r} cannot read the expected tool calls: {error}"
        ) from None


def parse_calls(value: Any, *, arguments: bool) -> list[CallKey]:
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


def may_hold_calls(text: str) -> bool:
    """Return whether a text looks as if it held tool calls."""
    return bool(_CALL_HINT.search(text))


def calls_in_text(text: str, *, arguments: bool) -> list[CallKey]:
    """Return the calls in a text: the whole text, its only code fence, or its tags. Raises
    ValueError.
    """
    return parse_calls(_find_json(text), arguments=arguments)


def unexpected_calls_hint(made: Sequence[CallKey], expected: Sequence[CallKey]) -> str:
    """Name the functions of the calls that are not expected; "" without one."""
    names = [preview(name, 40) for name, _ in (Counter(made) - Counter(expected))]
    return f"Not expected like this: {', '.join(names[:10])}." if names else ""


def unreadable_calls(error: ValueError) -> Feedback:
    """Return the feedback on an answer whose tool calls cannot be read."""
    return Feedback(
        0.0,
        f"no tool calls can be read: {error}",
        ("Answer with the tool calls as one JSON list.",),
    )


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


def _match_share(actual: Sequence[CallKey], expected: Sequence[CallKey], mode: str) -> float:
    if not actual and not expected:
        return 1.0
    common = (Counter(actual) & Counter(expected)).total()
    if mode == "subset":
        return common / len(expected) if expected else 0.0
    if mode == "order":
        from rapidfuzz import distance

        common = distance.LCSseq.similarity(actual, expected)
    return common / max(len(actual), len(expected))
