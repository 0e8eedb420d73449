"""The tool calls of an answer, compared with those expected."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ... import checks
from ...core.records import Candidate, Feedback
from ...core.task import Task
from ...errors import ConfigError
from ...own_code import fingerprint_name
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

    `order`: the length of the longest common subsequence divided by that of the longer list, so surplus calls and a wrong order
    lower the score. `any`: the number of common calls, in any order, divided by the length of the longer list. `subset`: the share
    of expected calls that were made; others are allowed. Two calls are equal if their names are and, with `arguments`, all their
    arguments.

    The expected calls are `metadata["tool_calls"]`, else JSON in `reference`: a list of {"name", "arguments"} or of OpenAI's
    {"function": {...}}, or an object with such `tool_calls`. If the list is empty, a text without calls gets 1. The calls made are
    `Candidate.tool_calls`; without any, those that the text holds in the same form: as the whole text, in one code fence, or in
    <tool_call> tags. Calls in several fences, or both inside and outside of tags, cannot be read.
    """

    mode: Literal["order", "any", "subset"] = "order"
    arguments: bool = True
    name: str = "tool_calls"

    model_free = True
    reads_metadata = True
    reads_tool_calls = True

    def __post_init__(self) -> None:
        checks.one_of("mode", self.mode, MODES)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return a score from 0 to 1. Raises ConfigError for a task without readable expectations."""
        return await asyncio.to_thread(self._compare, self._expected_calls(task), candidate)

    def _expected_calls(self, task: Task) -> list[CallKey]:
        listed = task.metadata.get("tool_calls", MISSING)
        if listed is MISSING and task.reference is None:
            raise ConfigError(
                f'grader {self.name!r} needs the task\'s metadata["tool_calls"] or reference, and this task has neither'
            )
        try:
            return self._parse_calls(parse_json(task.reference or "") if listed is MISSING else listed)
        except ValueError as error:
            raise ConfigError(f"grader {self.name!r} cannot read the expected tool calls: {error}") from None

    def _compare(self, expected: list[CallKey], candidate: Candidate) -> Feedback:
        try:
            made = self._made_calls(candidate, none_expected=not expected)
        except ValueError as error:
            return Feedback(0.0, f"no tool calls can be read: {error}", ("Answer with the tool calls as one JSON list.",))
        score = _match_share(made, expected, self.mode)
        unexpected = [preview(name, 40) for name, _ in (Counter(made) - Counter(expected))]
        hint = f"Not expected like this: {', '.join(unexpected[:10])}." if unexpected else "Calls are missing or out of order."
        return score_feedback(score, f"{len(made)} tool calls made, {len(expected)} expected, {score:.0%} in agreement", hint)

    def _made_calls(self, candidate: Candidate, *, none_expected: bool) -> list[CallKey]:
        text = candidate.text
        if candidate.tool_calls:
            return self._parse_calls([call.as_message_part() for call in candidate.tool_calls])
        if none_expected and not _CALL_HINT.search(text):
            return []
        return self._parse_calls(_find_json(text))

    def _parse_calls(self, value: Any) -> list[CallKey]:
        if isinstance(value, dict):
            value = value.get("tool_calls", [value])
        if not isinstance(value, list | tuple):
            raise ValueError("there is no list of calls")
        return [self._parse_call(each) for each in value]

    def _parse_call(self, value: Any) -> CallKey:
        value = value.get("function", value) if isinstance(value, dict) else value
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise ValueError('a call is {"name": ..., "arguments": {...}}')
        arguments = value.get("arguments", value.get("parameters")) or {}
        if isinstance(arguments, str):
            arguments = parse_json(arguments)
        return value["name"], canonical_json(arguments) if self.arguments else ""


MISSING = object()


def _find_json(text: str) -> Any:
    """Return the value of the text as JSON, or of its only code fence or tags. Raises ValueError."""
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
        from rapidfuzz.distance import LCSseq

        common = LCSseq.similarity(actual, expected)
    return common / max(len(actual), len(expected))
