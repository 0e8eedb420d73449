"""Judges whose prompt and whose form of reply may be a user's own: a template, and JSON whose keys
the user names (see `template`), or a pydantic model, which validates the replies.

Reading is as strict as with the judges' own form: one JSON object, numbers on the scale, nothing
that has to be guessed. The schema that is sent asks for every key of the form, in the order of the
template: servers that follow a schema token by token write keys in its order, and reasons belong
before the score. What it allows is read, but for a ranking that names an answer twice; what is read
beyond it is never refused: a form may lack all but the verdict, and have other keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

from ...base import checks
from ...errors import ConfigError
from ...loop.records import MAX_METADATA
from ...loop.task import Task
from ..base import check_needs
from ..rubric import overall_criterion, read_text_file
from ..template import (
    FORM_PARTS,
    VERDICT_PARTS,
    Kind,
    Paths,
    Scale,
    Template,
    parse_scale,
)
from .structured import (
    KeyPath,
    LlmJudge,
    UnreadableOutput,
    bool_at,
    letters,
    misfit,
    plain_number,
    plain_word,
    read_object,
    reason_at,
    score_at,
    spell_keys,
    text_schema,
    texts_at,
    word_at,
)

TEMPLATE_GRADERS: dict[Kind, tuple[str, str]] = {
    "pointwise": ("one answer", "Judge"),
    "pairwise": ("two answers", "Pairwise"),
    "listwise": ("all answers", "Ranker"),
}
"""What a template of each kind shows, and the grader that it is for."""

WINNERS = ("first", "second", "tie")
WINNER_WORDS = {
    **dict.fromkeys(("first", "a", "1", "answer a", "answer 1", "response a"), "first"),
    **dict.fromkeys(("second", "b", "2", "answer b", "answer 2", "response b"), "second"),
    "tie": "tie",
}
"""What a template may call the winner, as a `plain_word`."""

TEXT = text_schema(1000)  # a model that rambles never reaches the score
TEXTS = {"type": "array", "items": text_schema(300), "maxItems": 8}
WINNER_NAMES = [
    spelled
    for word in WINNER_WORDS
    for spelled in dict.fromkeys((word, word.capitalize(), word.title()))
]
PART_SCHEMAS: Mapping[str, Any] = {
    "reason": TEXT,
    "actions": {"anyOf": [TEXTS, TEXT]},
    "done": {"type": "boolean"},
    "winner": {"enum": [*WINNER_NAMES, 1, 2]},
}
"""The JSON schemas of the parts of a form that depend on nothing else."""
KEY_OR_BRACE = re.compile(r"""(["'])((?:(?!\1)[^\n]){1,200})\1\s*:\s*(["'])?|[{}]""")


def form_schema(form: Paths, template: str, **parts: Any) -> dict[str, Any]:
    """Return the JSON schema of a reply in a form, whose keys stand in the order in which the
    template writes them.

    `parts` are the schemas of further parts. A key that the template writes beside the form's
    own is asked for, too.
    """
    schemas = {**PART_SCHEMAS, **parts}
    leaves: dict[KeyPath, Any] = {}
    for part, dotted in sorted(form, key=lambda pair: pair[0] != "reason"):
        leaves.setdefault(tuple(dotted.split(".")), schemas[part])
    objects = {path[:n] for path in leaves for n in range(len(path))}
    names = {letters(name) for path in leaves for name in path}
    schema = _empty_object()
    for path, value in (_written_keys(template, set(leaves)) | leaves).items():
        if path in leaves or (path[:-1] in objects and letters(path[-1]) not in names):
            holder = schema
            for key in path[:-1]:
                holder = _set_property(holder, key, _empty_object())
            _set_property(holder, path[-1], value)
    return schema


def _empty_object() -> dict[str, Any]:
    return {"type": "object", "properties": {}, "required": []}


def _set_property(schema: dict[str, Any], key: str, value: Any) -> Any:
    """Add a required property to the schema of an object, unless it has it. Return the schema of
    its value.
    """
    if key not in schema["properties"]:
        schema["required"].append(key)
    return schema["properties"].setdefault(key, value)


def _written_keys(template: str, wanted: set[KeyPath]) -> dict[KeyPath, Any]:
    """Return the keys in the last JSON object of a template that has a wanted one, with the schemas
    of their values.
    """
    found: dict[KeyPath, Any] = {}
    keys: dict[KeyPath, Any] = {}
    outer: list[str] = []
    key = ""
    for token in KEY_OR_BRACE.finditer(template):
        if token[1]:
            key = token[2]
            keys[(*outer[1:], key)] = TEXT if token[3] else {}
        elif token[0] == "{":
            keys = keys if outer else {}
            outer.append(key)
        elif outer:
            key = outer.pop()
            found = keys if not outer and wanted & keys.keys() else found
    return found


class OwnReply:
    """A reply in a form of one's own. It, and each property, raises UnreadableOutput for what is
    not in that form.

    `metadata` holds the keys that are not in the form, if they are not too long.
    """

    def __init__(self, data: Mapping[str, Any], read: Paths) -> None:
        self._paths, self._values = dict(read), dict[str, Any]()
        names = {key for path in self._paths.values() for key in path.split(".")}
        rest = data
        for path in self._paths.values():
            value = _take(data, path.split("."), names)[0]
            rest = _take(rest, path.split("."), names)[1]
            if value is not MISSING:
                self._values[path] = value
        self.metadata = short_metadata(rest)

    @property
    def reason(self) -> str:
        """The reason; "" if the form has none."""
        return reason_at(self._values, self._paths.get("reason", ""))

    @property
    def actions(self) -> tuple[str, ...]:
        """What to change."""
        return texts_at(self._values, self._paths.get("actions", ""))

    @property
    def done(self) -> bool | None:
        """Whether nothing should change; None if the form does not say."""
        return bool_at(self._values, self._paths.get("done", ""))

    @property
    def winner(self) -> str:
        """The winner: "first", "second" or "tie"."""
        value = plain_number(self.value("winner"))
        winner = WINNER_WORDS.get(plain_word(str(value))) if value.__class__ in {int, str} else None
        if winner is None:
            raise misfit(
                self._values,
                self._paths["winner"],
                '"first", "second" or "tie", "A" or "B", 1 or 2',
            )
        return winner

    def word(self, part: str, words: Sequence[str]) -> str:
        """Return the value of a part that is one of `words`."""
        return word_at(self._values, self._paths[part], words)

    def score(self, scale: Scale) -> float:
        """Return the score, as a number on the scale."""
        return score_at(self._values, self._paths["score"], scale)

    def check_critique(self) -> None:
        """Raise UnreadableOutput for a reply without a score that says neither what to change nor
        whether to stop.
        """
        if self.done is None and self.value("actions") is None:
            paths = [self._paths[part] for part in ("actions", "done") if part in self._paths]
            raise UnreadableOutput(f"{' and '.join(map(repr, paths))} must not be missing or null")

    def key(self, part: str) -> str:
        """Return the user's key of a part, a dotted path."""
        return self._paths.get(part, part)

    def value(self, part: str) -> Any:
        """Return the value of a part as it is; None if the form or the reply has none."""
        return self._values.get(self._paths.get(part, ""))


MISSING = object()


def short_metadata(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of JSON for the metadata of feedback; {} if it is longer than half of what
    they may hold.
    """
    text = json.dumps(data)
    # this joins halves of characters
    metadata: dict[str, Any] = json.loads(text) if len(text) <= MAX_METADATA // 2 else {}
    return metadata


def _take(
    data: Mapping[str, Any], path: Sequence[str], names: Collection[str]
) -> tuple[Any, dict[str, Any]]:
    """Return the value at a path, or MISSING, and the object without it. `names` are all keys of
    the form.
    """
    rest = dict(spell_keys(data, names))
    key, *inner = path
    value = rest.pop(key, MISSING)
    if not inner or value is MISSING:
        return value, rest
    if not isinstance(value, dict):
        return MISSING, {**rest, key: value}
    value, left = _take(value, inner, names)
    return value, ({**rest, key: left} if left else rest)


# ---- forms of pydantic models


FIELD_TYPES: Mapping[str, tuple[str, frozenset[str]]] = {
    "score": ("a number, int or float", frozenset({"integer", "number"})),
    "reason": ("text, str", frozenset({"string", "null"})),
    "actions": (
        "a list of texts, list[str], or str",
        frozenset({"string", "list of string", "null"}),
    ),
    "done": ("a bool", frozenset({"boolean", "null"})),
}
"""What the field of each part may hold: in words, and as the types of its JSON schema."""


@dataclass(frozen=True)
class TypedForm:
    """The form of a pydantic model. Raises ConfigError for a model without a verdict, or with a
    field of another type.

    `paths` are the parts that it has, `scale` the bounds of its score; None if it states none.
    """

    model: Any
    paths: Paths = field(init=False)
    scale: Scale | None = field(init=False)
    answer: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        from ...answers.json_forms import TypedAnswer  # most judges have no form of their own

        try:
            answer: TypedAnswer[Any] = TypedAnswer(self.model)
        except ConfigError as error:
            raise ConfigError(f"read: {str(error).removeprefix('answer: ')}") from None
        properties = answer.json_schema.get("properties", {})
        parts = [part for part in FORM_PARTS["pointwise"] if part in properties]
        if not set(VERDICT_PARTS["pointwise"]) & set(parts):
            fields = ", ".join(properties) or "none"
            raise ConfigError(
                f"read: {self.name} needs a field score or, for a critic, actions or done; its "
                f"fields are: {fields}"
            )
        for part in parts:
            expected, allowed = FIELD_TYPES[part]
            if other := sorted(_types_of(properties[part], answer.json_schema) - allowed):
                raise ConfigError(
                    f"read: the field {part!r} of {self.name} must hold {expected}, got {other[0]}"
                )
        score = _target(properties.get("score", {}), answer.json_schema)
        object.__setattr__(self, "answer", answer)
        object.__setattr__(self, "paths", tuple((part, part) for part in parts))
        object.__setattr__(self, "scale", _scale_of(score))

    @classmethod
    def of(cls, value: Any) -> TypedForm | None:
        """Return the form that a value is, or the form of a model; None for any other value.
        Pydantic is not imported.
        """
        is_model = isinstance(value, type) and hasattr(value, "model_validate_json")
        form = cls(value) if is_model else value
        return form if isinstance(form, TypedForm) else None

    @property
    def name(self) -> str:
        """The name of the model."""
        return str(self.model.__name__)

    @property
    def spec(self) -> str:
        """The model in a fingerprint: its name, and a hash of its schema and its validators."""
        return f"{self.name} {self.answer.fingerprint}"

    def schema(self, score: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON schema of a reply; `score` is the schema of a score whose bounds the
        model does not state.
        """
        schema, bounds = self.answer.schema, {} if self.scale else score
        properties = schema["properties"].items()
        return {
            **schema,
            "properties": {name: _with_bounds(name, each, bounds) for name, each in properties},
        }

    def read(self, text: str, scale: Scale) -> dict[str, Any]:
        """Return the values of a valid reply by the names of fields, and its other keys. Raises
        UnreadableOutput.
        """
        from ...answers.base import InvalidAnswer

        data = dict(spell_keys(read_object(text), list(self.answer.json_schema["properties"])))
        if "score" in dict(self.paths):
            # the model would take more for a number: a bool, or a text such as "4e0"
            score_at(data, "score", scale)
        try:
            value = self.answer.read(json.dumps(data))
        except InvalidAnswer as error:
            raise UnreadableOutput(str(error)) from error
        return {**data, **self.answer.to_data(value, json.dumps(data))}


def _with_bounds(
    name: str, schema: Mapping[str, Any], score: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the schema of a field with the bounds that it does not state itself, of a score and of
    texts.
    """
    if name == "score" and score:
        if "anyOf" in schema:  # numbers of several types
            return score
        if "type" in schema:
            kinds = {score["type"], schema["type"]}
            return {**score, **schema, "type": "integer" if "integer" in kinds else "number"}
    if name in {"reason", "actions"} and schema.get("type") == "string":
        return {**TEXT, **schema}
    if name == "actions" and schema.get("items") == {"type": "string"}:
        return {**TEXTS, **schema, "items": TEXTS["items"]}
    return schema


def _target(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the definition that a schema refers to, or the schema itself."""
    name = schema.get("$ref", "").rpartition("/")[2]
    target: Mapping[str, Any] = root["$defs"].get(name, {}) if name else schema
    return target


def _types_of(schema: Mapping[str, Any], root: Mapping[str, Any]) -> set[str]:
    """Return the JSON types of what follows a schema, lists as "list of string"."""
    schema = _target(schema, root)
    if "anyOf" in schema:
        return {name for each in schema["anyOf"] for name in _types_of(each, root)}
    name = schema.get("type", "any value")
    return (
        {f"list of {item}" for item in _types_of(schema.get("items", {}), root)}
        if name == "array"
        else {name}
    )


def _scale_of(schema: Mapping[str, Any]) -> Scale | None:
    """Return the scale of a field with bounds on both sides, or with all its numbers."""
    ends: list[Any] = schema.get("enum") or [schema.get("minimum"), schema.get("maximum")]
    if not all(map(checks.is_number, ends)) or not min(ends) < max(ends):
        return None
    convert = int if schema.get("type") == "integer" else float
    return parse_scale((convert(min(ends)), convert(max(ends))), "read: ")


# ---- judges with a template


class TemplateJudge(LlmJudge):
    """A judge that may go by a rubric, with a prompt and a form of reply that may be a user's
    own.
    """

    rubric: Any
    template: str | Path | None
    read: Any

    template_kind: ClassVar[Kind]

    def _load_template(self, default: str | None = None) -> str | None:
        """Return the text of its template, which may be in a file, or else `default`. Raises
        ConfigError unless it shows as many answers as the judge grades at once, and for a reply
        form without a template.
        """
        text = self.template
        if not (text is None or isinstance(text, str | Path)):
            raise checks.invalid_argument("template", "text, the Path of a file or None", text)
        if isinstance(text, Path):
            text = read_text_file(text, "template")
        text = default if text is None else text
        if text is None and self.read is not None:
            raise ConfigError("read names the keys of a template's own reply form: give a template")
        found = self.template_kind if text is None else Template(text).kind
        if found != self.template_kind:
            shown, grader = TEMPLATE_GRADERS[found]
            raise ConfigError(
                f"grader {self.name!r}: the template shows {shown}: it is for {grader}"
            )
        return text

    @cached_property
    def _template(self) -> Template | None:
        return None if self.template is None else Template(cast("str", self.template))

    @property
    def _typed_form(self) -> TypedForm | None:
        """The form of a pydantic model, or None."""
        return self.read if isinstance(self.read, TypedForm) else None

    @property
    def _form(self) -> Paths | None:
        """The paths of the template's own reply form, or None."""
        paths: Paths | None = self._typed_form.paths if self._typed_form else self.read
        return paths

    @property
    def _criteria_text(self) -> str:
        """The criteria of the rubric in words; "" without a rubric."""
        raise NotImplementedError

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields that a task must have."""
        return self.rubric.needs if self.rubric else ()

    @property
    def reads_metadata(self) -> bool:
        """Whether the template has fields of the task's metadata."""
        return self._template is not None and bool(self._template.metadata_fields)

    def check_task(self, task: Task) -> None:
        """Raise ConfigError for a task without what the rubric needs, or without the metadata that
        the template shows.
        """
        check_needs(self.name, self.needs, task)
        if self._template is not None:
            self._template.check_task(task)

    def _filled_template(self, template: Template, texts: Mapping[str, str]) -> list[str]:
        """Return the filled template and, unless it has a field for them, the criteria of the
        rubric.
        """
        filled = template.fill({**texts, "criteria": self._criteria_text})
        is_complete = (
            "criteria" in template.fields
            or self.rubric is None
            or self.rubric.criteria == overall_criterion()
        )
        return [filled] if is_complete else [filled, self._criteria_text]
