"""Prompt templates: a judge's prompt in a user's own words, with fields for the task and the
answers, and perhaps with a form of reply and a scale of its own.

`templates` says what is a field and what stays as written; a name that is not in `FIELDS` is a key
of the task's metadata, which holds the other columns of data.

A template written for `str.format` doubles the braces of its JSON. If every single brace belongs to
a field and every doubled one opens JSON, the template is taken for one of these, and doubled braces
become single.

A template may state its own scale and its own form of reply. A scale is a pair of numbers: `(1,
10)` allows whole numbers only, `(0.0, 1.0)` decimals, too. A score is mapped linearly to [0, 1];
one that is not on the scale is an error, never clamped. A reply form names keys of a JSON object:
`{"score": "rating", "reason": "why.text"}` reads the score under "rating" and the reason under
"text" of the object "why". A form of one answer without a score is that of a critic. A pydantic
model is a form, too (see `judging.own_form`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import permutations
from string import Formatter
from typing import Any, Literal, NamedTuple, TypeAlias

from ..base import checks
from ..base.templates import FIELD, TemplatePart, fill_template, parse_template
from ..errors import ConfigError
from ..loop.task import Task

Kind: TypeAlias = Literal["pointwise", "pairwise", "listwise"]

FIELDS = {
    "query": "task",
    "task": "task",
    "response": "answer",
    "answer": "answer",
    "response_a": "first",
    "response_b": "second",
    "answer_1": "first",
    "answer_2": "second",
    "responses": "answers",
    "answers": "answers",
    "context": "context",
    "reference": "reference",
    "tests": "tests",
    "messages": "messages",
    "system": "system",
    "history": "history",
    "steps": "steps",
    "criteria": "criteria",
}
ANSWER_FIELDS: dict[Kind, frozenset[str]] = {
    "pointwise": frozenset({"answer"}),
    "pairwise": frozenset({"first", "second"}),
    "listwise": frozenset({"answers"}),
}
CONVERSATION_FIELDS = ("system", "history", "task", "steps")  # in the order of a conversation
ATTRIBUTE_ACCESS = re.compile(rf"\{{({'|'.join(FIELDS)})(?:[.!\[]|:(?!\s))[^{{}}\n]*\}}")
DOUBLED_BRACE = re.compile(r"\{\{(?!\s*[\"'{}]|[A-Za-z_]\w*\}\})")
FIELD_LIST = ", ".join(f"{{{name}}}" for name in FIELDS)
MISSING_TEXT = "(none)"


class Template:
    """A parsed template. Raises ConfigError for a malformed field, and unless it shows one answer,
    two answers or all of them.

    `kind` says which: {response} makes it pointwise, {response_a} and {response_b} pairwise,
    {responses} listwise. `fields` are the values of `FIELDS` that occur, `metadata_fields` the keys
    of the task's metadata, in order.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = _parse_str_format(text) or _parse_fields(text)
        names = [name for _, name in self._parts if name]
        self.fields = {FIELDS[name] for name in names if name in FIELDS}
        self.metadata_fields = tuple(dict.fromkeys(name for name in names if name not in FIELDS))
        self.kind: Kind = self._find_kind()

    def _find_kind(self) -> Kind:
        shown = self.fields & frozenset().union(*ANSWER_FIELDS.values())
        for kind, fields in ANSWER_FIELDS.items():
            if shown == fields:
                return kind
        if shown:
            raise ConfigError(
                "the template must show one answer, {response}; or two, {response_a} and "
                "{response_b}; or all, {responses}"
            )
        others = ", ".join(f"{{{name}}}" for name in self.metadata_fields[:10])
        raise ConfigError(
            (
                "the template must show the answer: put {response} where it belongs "
                "({{response}} is the bare word)"
            )
            + (f"; it has {others}" if others else "")
        )

    @property
    def literal(self) -> str:
        """The text without its fields."""
        return "".join(literal for literal, _ in self._parts)

    def check_task(self, task: Task) -> None:
        """Raise ConfigError for a task whose metadata lacks a field."""
        if missing := [name for name in self.metadata_fields if name not in task.metadata]:
            known = dict.fromkeys([*FIELDS, *map(str, task.metadata)])
            raise ConfigError(
                f"the template has the field {{{missing[0]}}}, and the task has no such metadata: "
                f"{checks.unknown_name_message('field', missing[0], known)}; write "
                f"{{{{{missing[0]}}}}} for the bare word"
            )

    def metadata_texts(self, task: Task) -> dict[str, str]:
        """Return the metadata that occurs, as texts by `metadata_key`. Raises ConfigError if the
        task lacks a field.
        """
        self.check_task(task)
        values = {name: task.metadata[name] for name in self.metadata_fields}
        return {
            metadata_key(name): _as_text(value)
            for name, value in values.items()
            if value is not None
        }

    def fill(self, texts: Mapping[str, str]) -> str:
        """Return the text with every field replaced; a field that the task does not have becomes
        "(none)".

        Parts of the conversation without a field of their own are shown with the task.
        """
        shown_alone = {*self.fields, *(CONVERSATION_FIELDS if "messages" in self.fields else ())}
        conversation = [texts[name] for name in CONVERSATION_FIELDS if name in texts]
        with_task = [
            texts[name]
            for name in CONVERSATION_FIELDS
            if name in texts and (name == "task" or name not in shown_alone)
        ]
        values = {**texts, "messages": "\n\n".join(conversation)}
        if "task" in texts:
            values["task"] = "\n\n".join(with_task)
        return fill_template(
            self._parts,
            lambda name: values.get(FIELDS.get(name) or metadata_key(name), MISSING_TEXT),
        )


def metadata_key(name: str) -> str:
    """Return the key of a metadata field among the texts that a judge is shown."""
    return f"field-{name}"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)


def find_field(text: str) -> str:
    """Return the first field of `FIELDS` in a text, with its braces; "" if there is none."""
    names = (match[2] for match in FIELD.finditer(text) if match[2] in FIELDS)
    return next((f"{{{name}}}" for name in names), "")


def _parse_str_format(text: str) -> tuple[TemplatePart, ...]:
    """Return the parts of a template that was written for `str.format`; () for any other."""
    if "{{" not in text or DOUBLED_BRACE.search(text):
        return ()
    try:
        parts = list(Formatter().parse(text))
    except ValueError:
        return ()
    fields = [(name, spec or how) for _, name, spec, how in parts if name is not None]
    if any(how or not FIELD.fullmatch(f"{{{name}}}") for name, how in fields):
        return ()
    return tuple((literal, name or "") for literal, name, _, _ in parts)


def _parse_fields(text: str) -> tuple[TemplatePart, ...]:
    """Return the parts of a template. Raises ConfigError for a field with an attribute, an index or
    a format.
    """
    if access := ATTRIBUTE_ACCESS.search(text):
        raise ConfigError(
            f"the template has {access[0][:60]!r}; a field is a bare name, {{{access[1]}}}; there "
            f"are {FIELD_LIST}"
        )
    return parse_template(text, FIELDS)


# ---- scales and forms of reply


Paths: TypeAlias = tuple[tuple[str, str], ...]
ReadInput: TypeAlias = str | Mapping[str, str] | Paths | type[Any]

SHARED_PARTS = ("reason", "actions", "done")
FORM_PARTS: dict[Kind, tuple[str, ...]] = {
    "pointwise": ("score", *SHARED_PARTS),
    "pairwise": ("winner", *SHARED_PARTS),
    "listwise": ("ranking", "ties", *SHARED_PARTS),
}
VERDICT_PARTS: dict[Kind, tuple[str, ...]] = {
    "pointwise": ("score", "actions", "done"),
    "pairwise": ("winner",),
    "listwise": ("ranking",),
}
"""The parts of which a form needs at least one."""
TEXT_PARTS = {"reason", "actions"}  # two parts that may have the same key
MAX_SCALE_END = 1_000_000
MAX_NUMBERS = 101  # scores that a schema lists; of a longer scale it names the ends
MAX_PATH_CHARS = 200


class Scale(NamedTuple):
    """A scale of scores, from `low` to `high`. If one of them is a float, decimals are allowed."""

    low: float
    high: float

    @property
    def is_whole(self) -> bool:
        """Whether only whole numbers are scores."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def description(self) -> str:
        """The scale in words."""
        return f"a {'whole ' if self.is_whole else ''}number from {self.low} to {self.high}"

    @property
    def numbers(self) -> range:
        """All scores of a scale of whole numbers."""
        return range(int(self.low), int(self.high) + 1)

    @property
    def is_short(self) -> bool:
        """Whether all its scores can be listed: whole numbers, and not too many."""
        return self.is_whole and len(self.numbers) <= MAX_NUMBERS

    def holds(self, value: Any) -> bool:
        """Return whether a value of JSON is a number on this scale."""
        if value.__class__ is not int and (value.__class__ is not float or self.is_whole):
            return False
        return bool(self.low <= value <= self.high)

    def share(self, score: float) -> float:
        """Return the place of a score between the ends of the scale, in [0, 1]."""
        return (score - self.low) / (self.high - self.low) + 0.0  # (-0.0 becomes 0.0)


def parse_scale(value: Any, where: str = "") -> Scale:
    """Return a scale from a pair of numbers. Raises ConfigError."""
    numbers = list(value) if isinstance(value, list | tuple) else []
    if (
        len(numbers) != 2
        or not all(checks.is_number(n) and abs(n) <= MAX_SCALE_END for n in numbers)
        or not numbers[0] < numbers[1]
    ):
        expected = (
            "a pair of numbers, the worst score first: (1, 10) for whole numbers, (0.0, 1.0) for "
            "decimals"
        )
        raise checks.invalid_argument(f"{where}scale", expected, value)
    return Scale(*numbers)


def parse_read(value: Any, kind: Kind, where: str = "") -> Paths:
    """Return (part, path) pairs for a reply. A text is the path of the first part. Raises
    ConfigError.
    """
    parts = FORM_PARTS[kind]
    paths = (
        {parts[0]: value} if isinstance(value, str) else dict(value) if _is_pairs(value) else value
    )
    if not isinstance(paths, Mapping) or not all(map(_is_path, paths.values())):
        typed = (
            ", or a pydantic model with such fields" if kind == "pointwise" and not where else ""
        )
        expected = (
            f'the key of the {parts[0]}, or a mapping such as {{"{parts[0]}": "{parts[0]}", '
            f'"reason": "why.text"}}{typed}'
        )
        raise checks.invalid_argument(f"{where}read", expected, value)
    _check_parts(paths, kind, where)
    return tuple(paths.items())


def _check_parts(paths: Mapping[str, str], kind: Kind, where: str) -> None:
    """Raise ConfigError for unknown parts, without a verdict, and for two parts that no reply can
    have.
    """
    parts, verdicts = FORM_PARTS[kind], VERDICT_PARTS[kind]
    if unknown := [part for part in paths if part not in parts]:
        raise ConfigError(
            f"{where}read: {checks.unknown_name_message('part', str(unknown[0]), parts)}"
        )
    if not set(verdicts) & set(paths):
        critic = f" (or, for a critic, of {' or '.join(verdicts[1:])})" if verdicts[1:] else ""
        raise ConfigError(
            f"{where}read: it must name the key of the {parts[0]}{critic}, got "
            f"{checks.format_value(dict(paths))}"
        )
    for (part, path), (other, inner) in permutations(paths.items(), 2):
        if inner.startswith(f"{path}.") or (inner == path and not {part, other} <= TEXT_PARTS):
            raise ConfigError(
                f"{where}read: {part} is at {path!r} and {other} at {inner!r}, and no reply can "
                "have both"
            )


def check_scale(scale: Scale | None, read: Paths | None, where: str = "") -> None:
    """Raise ConfigError for a form with a score and no scale, and for one with a scale and no
    score.
    """
    has_score = read is not None and "score" in dict(read)
    if has_score and scale is None:
        raise ConfigError(
            f"{where}read needs a scale, the worst and the best score of the template, such as "
            "scale=(1, 10)"
        )
    if read is not None and scale is not None and not has_score:
        raise ConfigError(
            f"{where}scale: read names no key of a score, so that there is nothing on a scale: "
            "leave it out"
        )


def _is_pairs(value: Any) -> bool:
    """Return whether a value is what `parse_read` returns."""
    return isinstance(value, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 for pair in value
    )


def _is_path(path: Any) -> bool:
    return (
        isinstance(path, str)
        and len(path) <= MAX_PATH_CHARS
        and all(key.strip() for key in path.split("."))
    )
