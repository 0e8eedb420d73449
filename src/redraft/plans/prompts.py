"""The prompts of the model that writes: the default ones, templates of the user, or functions of
the user.

A template has named fields (see `redraft.base.templates` for its braces):

- `{prompt}`, also `{query}` or `{task}`: the text of the last user message
- `{response}`, also `{answer}`: the answer to be improved
- `{feedback}`: what the graders ask to change, a line each; `{reason}`: their reasons; `{score}`:
  the score, such as 0.72
- `{tried}`: what earlier refinements of this answer tried in vain
- `{demands}`: the requirements; a template without this field has them at its end
- `{context}`, `{system}`, `{history}`: the context of the task, its system messages, and the
  messages before the last one
- any other name: that column, or that entry of the task's metadata; without one, the usual names of
  columns are synonyms: `{question}`, `{instruction}` and `{input}` of the prompt, `{document}` and
  `{passage}` of the context

There is no field for the reference and the tests: the model that writes never sees them. The filled
template takes the place of the last user message; the messages before it stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import iscoroutinefunction, signature
from typing import Any, TypeAlias

from ..base import checks
from ..base.templates import TemplatePart, fill_template, parse_template
from ..errors import ConfigError
from ..loop.prompts import (
    constraint_paragraph,
    demand_lines,
    draft_messages,
    open_actions,
    refinement_messages,
    tried_lines,
)
from ..loop.records import Candidate
from ..loop.steps import Generate, Refine
from ..loop.task import Message, as_messages, message_text
from ..loop.trace import Trace

DraftFunction: TypeAlias = Callable[[Trace], str | Iterable[Message]]
RefineFunction: TypeAlias = Callable[[Trace, Candidate], str | Iterable[Message]]
DraftPrompt: TypeAlias = str | DraftFunction
RefinePrompt: TypeAlias = str | RefineFunction

TASK_FIELDS = ("prompt", "query", "task", "context", "system", "history", "demands")
ANSWER_FIELDS = ("response", "answer", "feedback", "score", "reason", "tried")
HIDDEN_FIELDS = ("reference", "tests")
FIELDS = (*TASK_FIELDS, *ANSWER_FIELDS)
SYNONYMS: Mapping[str, str] = {
    **dict.fromkeys(("question", "instruction", "input"), "prompt"),
    **dict.fromkeys(("document", "passage"), "context"),
}
"""Fields by another name, unless a column has it."""
NOTHING = "(none)"


@dataclass(frozen=True)
class Prompts:
    """The prompts for drafts and refinements; None: the default. Raises ConfigError.

    A template shows the request (`draft`) or the answer (`refine`). A function of a trace, or of a
    trace and the candidate to improve, returns a text, which is used like a filled template, or all
    messages. It must be pure.
    """

    draft: DraftPrompt | None = None
    refine: RefinePrompt | None = None

    def __post_init__(self) -> None:
        _check("draft_prompt", self.draft, "a template with {prompt}, or a function of a trace", 1)
        _check(
            "refine_prompt",
            self.refine,
            "a template with {response}, or a function of a trace and a candidate",
            2,
        )
        if self.draft_template and not self.draft_template.shows("prompt"):
            raise ConfigError(
                "draft_prompt: put {prompt} where the request belongs, got "
                f"{checks.format_value(self.draft)}"
            )
        if self.draft_template and (wrong := self.draft_template.names.intersection(ANSWER_FIELDS)):
            raise ConfigError(f"draft_prompt: there is no {{{min(wrong)}}} before the first answer")
        if self.refine_template and not self.refine_template.shows("response"):
            raise ConfigError(
                "refine_prompt: put {response} where the answer belongs, got "
                f"{checks.format_value(self.refine)}; the name of a file is given as a Path"
            )

    @cached_property
    def draft_template(self) -> PromptTemplate | None:
        return PromptTemplate("draft_prompt", self.draft) if isinstance(self.draft, str) else None

    @cached_property
    def refine_template(self) -> PromptTemplate | None:
        return (
            PromptTemplate("refine_prompt", self.refine) if isinstance(self.refine, str) else None
        )

    @property
    def reads_metadata(self) -> bool:
        """Whether a prompt may depend on the metadata of the task: functions may."""
        templates = [t for t in (self.draft_template, self.refine_template) if t]
        return (
            callable(self.draft)
            or callable(self.refine)
            or any(t.names.difference(FIELDS) for t in templates)
        )

    def check_columns(self, names: Collection[str]) -> None:
        """Raise ConfigError for a template with a field that is neither known nor one of these
        columns.
        """
        for template in filter(None, (self.draft_template, self.refine_template)):
            template.check_columns(names)

    def draft_messages(self, trace: Trace) -> tuple[Message, ...]:
        """Return the messages that ask for a draft. Raises what a function of the user raises."""
        if self.draft is None:
            return draft_messages(trace)
        content = (
            self.draft_template.fill(trace, None) if self.draft_template else self.draft(trace)  # type: ignore[operator]
        )
        return _messages(trace, content)

    def refinement_messages(self, trace: Trace, parent: Candidate) -> tuple[Message, ...]:
        """Return the messages that ask for a better version of `parent`. Raises what a function of
        the user raises.
        """
        if self.refine is None:
            return refinement_messages(trace, parent, self.draft_messages(trace))
        content = (
            self.refine_template.fill(trace, parent)
            if self.refine_template
            else self.refine(trace, parent)  # type: ignore[operator]
        )
        return _messages(trace, content)

    def drafts(self, trace: Trace, ids: Iterable[int]) -> list[Generate]:
        """Return the steps that write drafts."""
        if self.draft is not None:
            return [Generate(id, (), partial(self.draft_messages, trace)) for id in ids]
        messages = self.draft_messages(trace)
        return [Generate(id, messages) for id in ids]

    def refinement(self, trace: Trace, parent: Candidate) -> Refine:
        """Return the step that refines `parent`."""
        if self.draft is not None or self.refine is not None:
            return Refine(
                trace.next_id, (), parent.id, partial(self.refinement_messages, trace, parent)
            )
        return Refine(trace.next_id, self.refinement_messages(trace, parent), parent.id)


class PromptTemplate:
    """A parsed template; `names` are its fields. Raises ConfigError for a field that the model that
    writes must not see.
    """

    def __init__(self, argument: str, text: str) -> None:
        self.argument = argument
        self._parts: tuple[TemplatePart, ...] = parse_template(text, FIELDS)
        self.names = frozenset(name for _, name in self._parts if name)
        if hidden := self.names.intersection(HIDDEN_FIELDS):
            raise ConfigError(
                f"{argument}: the model that writes never sees the {min(hidden)}: leave out "
                f"{{{min(hidden)}}}"
            )

    def shows(self, field: str) -> bool:
        """Return whether the template has a field, or a synonym of it."""
        names = {"query": "prompt", "task": "prompt", "answer": "response", **SYNONYMS}
        return any(names.get(name, name) == field for name in self.names)

    def check_columns(self, columns: Collection[str]) -> None:
        """Raise ConfigError for a field that is neither known nor one of these columns."""
        for name in sorted(self.names.difference(FIELDS, SYNONYMS)):
            if name not in columns:
                fields = ", ".join(f"{{{field}}}" for field in (*FIELDS, *map(str, columns)))
                raise ConfigError(
                    f"{self.argument}: there is no field {{{name}}} and no such column or "
                    f"metadata of the task; there are {fields[:500]}; write {{{{{name}}}}} for "
                    "the bare word"
                )

    def fill(self, trace: Trace, parent: Candidate | None) -> str:
        """Return the text with every field replaced, and the demands at the end unless they have a
        field.

        A schema that the answer to be improved follows is not repeated.
        """
        self.check_columns(trace.task.metadata)
        values = prompt_fields(trace, parent)
        text = fill_template(self._parts, values.__getitem__)
        demands = "" if "demands" in self.names else constraint_paragraph(trace, parent)
        return "\n\n".join(filter(None, (text, demands)))


def prompt_fields(trace: Trace, parent: Candidate | None = None) -> dict[str, str]:
    """Return the fields of a template with their texts, for prompt functions that build on them.

    The fields about an answer describe `parent`. A field without content holds "(none)".
    """
    task = trace.task
    last = max(
        (i for i, m in enumerate(task.messages) if m["role"] == "user"), default=len(task.messages)
    )
    values = {str(name): _as_text(value) for name, value in task.metadata.items()}
    values |= dict.fromkeys(("prompt", "query", "task"), task.prompt)
    values |= {
        "context": task.context or "",
        "system": "\n\n".join(message_text(m) for m in task.messages if m["role"] == "system"),
        "history": "\n\n".join(
            f"{m['role']}: {message_text(m)}" for m in task.messages[:last] if m["role"] != "system"
        ),
        "demands": "\n".join(demand_lines(trace)),
    }
    if parent is not None:
        values |= _answer_fields(trace, parent)
    values |= {
        name: values[field]
        for name, field in SYNONYMS.items()
        if name not in task.metadata and field in values
    }
    return {name: text or NOTHING for name, text in values.items()}


def _answer_fields(trace: Trace, parent: Candidate) -> dict[str, str]:
    score, reasons = trace.scores[parent.id], (f.reason for f in trace.feedback[parent.id])
    return {
        **dict.fromkeys(("response", "answer"), parent.display_text),
        "feedback": "\n".join(open_actions(trace, parent)),
        "score": "unknown" if score is None else f"{score:.2f}",
        "reason": "; ".join(filter(None, reasons)),
        "tried": "\n".join(tried_lines(trace, parent)),
    }


def _as_text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _check(argument: str, prompt: Any, expected: str, parameters: int) -> None:
    """Raise ConfigError for a prompt that is neither a template nor an ordinary function of as many
    parameters.
    """
    if prompt is None or isinstance(prompt, str):
        return
    if not callable(prompt) or isinstance(prompt, type):
        raise checks.invalid_argument(argument, expected, prompt)
    if iscoroutinefunction(prompt):
        raise ConfigError(
            f"{argument}: an async function cannot make a prompt; use `def` and no `await`"
        )
    try:
        shape = signature(prompt)
    except (TypeError, ValueError):  # a function written in C need not have one
        return
    try:
        shape.bind(*range(parameters))
    except TypeError as error:
        raise ConfigError(
            f"{argument} must be {expected}; the function takes {shape}: {error}"
        ) from None


def _messages(trace: Trace, content: Any) -> tuple[Message, ...]:
    """Return messages as they are; a text takes the place of the last user message. Raises
    ValueError.
    """
    if not isinstance(content, str):
        if not isinstance(content, Iterable) or isinstance(content, Mapping):
            raise ValueError(
                f"a prompt is a text or a list of messages, got {checks.format_value(content)}"
            )
        return tuple(as_messages(content))
    if not content.strip():
        raise ValueError("the prompt is empty")
    messages = trace.task.messages
    if messages[-1]["role"] != "user":
        return (*messages, {"role": "user", "content": content})
    return (*messages[:-1], _with_text(messages[-1], content))


def _with_text(message: Message, text: str) -> Message:
    """Return the message with another text; its images stay."""
    content = message["content"]
    if not isinstance(content, list | tuple):
        return {**message, "content": text}
    others = [part for part in content if not (isinstance(part, Mapping) and "text" in part)]
    return {**message, "content": [{"type": "text", "text": text}, *others]}
