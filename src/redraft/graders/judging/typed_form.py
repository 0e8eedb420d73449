"""A reply form that a pydantic model states: its fields are the parts, its schema is sent, and it
validates the replies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...base import checks
from ...errors import ConfigError
from ..reply_form import FORM_PARTS, VERDICT_PARTS, Paths, Scale, parse_scale
from .own_form import TEXT, TEXTS
from .structured import UnreadableOutput, read_object, score_at, spell_keys

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
        object.__setattr__(self, "answer", answer)
        object.__setattr__(self, "paths", tuple((part, part) for part in parts))
        object.__setattr__(
            self,
            "scale",
            _scale_of(_target(properties["score"], answer.json_schema))
            if "score" in parts
            else None,
        )

    @classmethod
    def of(cls, value: Any) -> TypedForm | None:
        """Return the form that a value is, or that of a model; None for any other value. Pydantic
        is not imported.
        """
        if isinstance(value, TypedForm):
            return value
        return (
            cls(value)
            if isinstance(value, type) and hasattr(value, "model_validate_json")
            else None
        )

    @property
    def name(self) -> str:
        """The name of the model."""
        return str(self.model.__name__)

    @property
    def spec(self) -> str:
        """The model in a fingerprint: its name, and a hash of its schema and its validators."""
        return f"{self.name} {self.answer.fingerprint}"

    def schema(self, score: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON schema of a reply; `score` is that of a score whose bounds the model does
        not state.
        """
        schema: dict[str, Any] = dict(self.answer.schema)
        fields = schema["properties"]
        schema["properties"] = {
            name: _with_bounds(name, value, {} if self.scale else score)
            for name, value in fields.items()
        }
        return schema

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
    """Return the schema of a field with the bounds that it does not state itself: those of a score,
    and those of texts.
    """
    if name == "score" and score and "anyOf" in schema:  # numbers of several types
        return score
    if name == "score" and score and "type" in schema:
        return {
            **score,
            **schema,
            "type": "integer" if "integer" in {score["type"], schema["type"]} else "number",
        }
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
    """Return the types of what follows a schema: those of JSON, lists as "list of string"."""
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
