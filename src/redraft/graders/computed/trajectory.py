"""The tool calls of a whole trajectory, compared with those expected: precision, recall and order.

A trajectory is the task's messages and the answer after them. Tool calls stand in the messages of
the assistant, as `tool_calls` or the earlier `function_call`, and in the answer. What tools
returned, and any other text, is not read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...base import checks
from ...base.own_code import fingerprint_name
from ...base.text import pluralize
from ...loop.records import Candidate, Feedback
from ...loop.task import Message, Task
from ...protocols import JudgeClient
from .base import score_feedback, with_limit
from .tool_calls import (
    CallKey,
    calls_in_text,
    expected_calls,
    find_expectation,
    may_hold_calls,
    parse_call,
    unexpected_calls_hint,
    unreadable_calls,
)

SCOPES = ("all", "steps")
# stands for a name or arguments that cannot be read; no expected call is equal to it
INVALID = "(invalid)"


@with_limit
@dataclass(frozen=True)
class _TrajectoryCalls:
    """What the graders of a trajectory's calls share. `share` returns the score."""

    scope: Literal["all", "steps"] = "all"
    arguments: bool = True
    name: str = "trajectory_calls"

    model_free = True
    reads_metadata = True
    reads_tool_calls = True

    def __post_init__(self) -> None:
        checks.one_of("scope", self.scope, SCOPES)

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
        return await asyncio.to_thread(self._compare, task, candidate, expected)

    def _compare(self, task: Task, candidate: Candidate, expected: list[CallKey]) -> Feedback:
        try:
            made = self._made_calls(task, candidate)
        except ValueError as error:
            return unreadable_calls(error)
        score = 1.0 if not made and not expected else self.share(made, expected)
        hint = unexpected_calls_hint(made, expected) or "Calls are missing or out of order."
        calls = pluralize(len(made), "tool call")
        return score_feedback(
            score, f"{calls} made, {len(expected)} expected: {self.measure(score)}", hint
        )

    def _made_calls(self, task: Task, candidate: Candidate) -> list[CallKey]:
        """Return the calls of the messages and of the answer. Raises ValueError if only a text may
        hold calls, unreadable ones.
        """
        calls = [
            *_message_calls(task.messages, self.scope),
            *(call.as_message_part() for call in candidate.tool_calls),
        ]
        if not calls and may_hold_calls(candidate.text):
            return calls_in_text(candidate.text, arguments=self.arguments)
        return [_call_key(call, arguments=self.arguments) for call in calls]

    def share(self, made: Sequence[CallKey], expected: Sequence[CallKey]) -> float:
        raise NotImplementedError

    def measure(self, score: float) -> str:
        """Return the score in words."""
        raise NotImplementedError


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
        return (Counter(made) & Counter(expected)).total() / len(made) if made else 0.0

    def measure(self, score: float) -> str:
        return f"{score:.0%} of those made are expected"


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
        return (Counter(made) & Counter(expected)).total() / len(expected) if expected else 0.0

    def measure(self, score: float) -> str:
        return f"{score:.0%} of those expected were made"


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
        from rapidfuzz import distance

        return distance.LCSseq.similarity(made, expected) / len(expected) if expected else 0.0

    def measure(self, score: float) -> str:
        return f"{score:.0%} of those expected were made in this order"


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
