"""Whether a reply has the form "reasoning between tags, then the answer".

Models that read a reply take the reasoning of their families out of it (see
`redraft.models.reasoning`), so a candidate's text has none; `Candidate.reasoning_form` records how
the reply contained it. Tags with other names, and those of a given answer, stand in the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...base import checks
from ...base.own_code import fingerprint_name
from ...loop.records import Candidate, Feedback
from ...loop.task import Task
from ...models.reasoning import TAG_NAMES
from ...requirements.data import parse_json
from .base import ComputedGrader, binary_feedback, reasoning_form_of
from .tool_calls import parse_call

TAG_NAME = re.compile(r"[A-Za-z][\w-]{0,63}", re.ASCII)
THINK, TOOL_CALL = "think", "tool_call"
FAULTS = {
    "empty": "there is no reasoning between the tags",
    "other": "the reasoning is not in one block before the answer",
}  # of the reasoning forms of a candidate

Parts: TypeAlias = tuple[str, str]  # the reasoning and what follows it


class FormatFault(ValueError):
    """What is wrong with the form of a reply, in words."""


@fingerprint_name("reasoning_format")
@dataclass(frozen=True)
class ReasoningFormat(ComputedGrader):
    """1 if the reply is reasoning between tags and then an answer, else 0.

    The reasoning stands once, at the beginning, between <think> and </think> (or the tags named by
    `think`), and is not empty. The opening tag may be missing, since many chat templates write it
    into the prompt; reasoning that the endpoint returns separately, or in the form of another model
    family, counts as `think`, `thinking` and `thought`. The answer follows, and is not empty. With
    `answer`, it stands once between the tags of this name, and nothing else follows. With
    `tool_calls`, calls may take its place: <tool_call> tags, each with a JSON object with a name
    and arguments, or the candidate's tool calls.

    The whole reply is read, also the reasoning that is not part of the answer. Reads only the
    answer.
    """

    think: str = THINK
    answer: str = ""
    tool_calls: bool = False
    name: str = "reasoning_format"

    def __post_init__(self) -> None:
        checks.flag("tool_calls", self.tool_calls)
        for name in ("think", "answer"):
            tag = getattr(self, name)
            checks.text(name, tag, allow_blank=name == "answer")
            if tag and not TAG_NAME.fullmatch(tag):
                raise checks.invalid_argument(name, "the name of a tag, such as reasoning", tag)

    @property
    def reads_tool_calls(self) -> bool:
        """Whether it grades candidates that call tools."""
        return self.tool_calls

    def assess(self, task: Task, candidate: Candidate) -> Feedback:
        """Return 1 or 0."""
        try:
            self._check_answer(self._text_after_reasoning(candidate), candidate)
        except FormatFault as fault:
            problem = str(fault)
            return binary_feedback(
                ok=False,
                reason=problem,
                action=f"{problem[0].upper()}{problem[1:]}: write {self.demand}.",
            )
        return binary_feedback(
            ok=True, reason="the reasoning and the answer are where they should be", action=""
        )

    @property
    def demand(self) -> str:
        """The form in words."""
        answer = (
            f"the answer between <{self.answer}> and </{self.answer}>"
            if self.answer
            else "the answer"
        )
        calls = f" or calls between <{TOOL_CALL}> and </{TOOL_CALL}>" if self.tool_calls else ""
        return (
            f"the reasoning between <{self.think}> and </{self.think}>, then {answer}{calls}, and "
            "nothing else"
        )

    def _text_after_reasoning(self, candidate: Candidate) -> str:
        """Return what follows the reasoning. Raises FormatFault if there is none, or not in one
        block at the beginning.
        """
        form = reasoning_form_of(candidate) if self.think in TAG_NAMES else None
        if form is None:
            reasoning, text = _split_at_tags(candidate.text, self.think)
            form = "block" if reasoning.strip() else "empty"
        else:
            text = candidate.text
        if form in FAULTS:
            raise FormatFault(FAULTS[form])
        is_tagged = f"<{self.think}>" in text or f"</{self.think}>" in text
        _require(not is_tagged, FAULTS["other"])
        return text.strip()

    def _check_answer(self, text: str, candidate: Candidate) -> None:
        """Raise FormatFault unless the text after the reasoning is an answer or tool calls."""
        if self.tool_calls and (candidate.tool_calls or f"<{TOOL_CALL}>" in text):
            _check_calls(text, candidate)
        elif self.answer:
            content = _content_of_only(text, self.answer).strip()
            _require(content, f"there is no text between <{self.answer}> and </{self.answer}>")
        else:
            _require(text, "no answer follows the reasoning")


def _require(condition: object, fault: str) -> None:
    """Raise FormatFault unless a condition holds."""
    if not condition:
        raise FormatFault(fault)


def _split_at_tags(text: str, tag: str) -> Parts:
    """Return the text in the tags at the beginning, and the text after them; the opening tag may be
    missing.
    """
    reasoning, close, rest = text.partition(f"</{tag}>")
    _require(close, f"there is no reasoning that ends with </{tag}>")
    before, opened, inside = reasoning.partition(f"<{tag}>")
    _require(not opened or not before.strip(), f"there is text before <{tag}>")
    _require(f"<{tag}>" not in inside, FAULTS["other"])
    return (inside if opened else before), rest


def _content_of_only(text: str, tag: str) -> str:
    """Return the content of the tags that enclose the whole text. Raises FormatFault if they do
    not, or occur twice.
    """
    opened, closed = f"<{tag}>", f"</{tag}>"
    once = text.count(opened) == 1 and text.count(closed) == 1
    _require(once, f"the answer does not stand once between {opened} and {closed}")
    around = text.startswith(opened) and text.endswith(closed)
    _require(around, f"there is text around {opened} and {closed}")
    return text[len(opened) : -len(closed)]


def _check_calls(text: str, candidate: Candidate) -> None:
    """Raise FormatFault unless a text is empty, beside calls of the candidate, or nothing but
    readable calls in tags.
    """
    opened, closed = f"<{TOOL_CALL}>", f"</{TOOL_CALL}>"
    if candidate.tool_calls:
        _require(not text, "there is text beside the tool calls")
        return
    for piece in text.removesuffix(closed).split(closed):
        before, tag, content = piece.partition(opened)
        alone = tag and not before.strip() and opened not in content
        _require(alone, f"the tool calls do not stand alone between {opened} and {closed}")
        try:
            _check_call(parse_json(content))
        except ValueError as error:
            raise FormatFault(f"a tool call cannot be read: {str(error)[:200]}") from None


def _check_call(call: Any) -> None:
    """Raise ValueError unless a call has a name and an object of arguments, which may be empty."""
    parse_call(call, arguments=True)
    function = call.get("function", call)
    arguments = function.get("arguments", function.get("parameters"))
    if not isinstance(parse_json(arguments) if isinstance(arguments, str) else arguments, dict):
        raise ValueError('a call is {"name": ..., "arguments": {...}}')
