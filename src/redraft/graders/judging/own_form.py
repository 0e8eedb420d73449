"""Replies in a form that a template states itself: JSON whose keys the user names (see
`reply_form`).

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
from typing import Any, TypeAlias

from ...loop.records import MAX_METADATA
from ..reply_form import Paths, Scale
from .structured import (
    UnreadableOutput,
    bool_at,
    letters,
    misfit,
    plain_number,
    plain_word,
    reason_at,
    score_at,
    spell_keys,
    text_schema,
    texts_at,
)

Path: TypeAlias = tuple[str, ...]

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

    `parts` are the schemas of further parts. A key that the template writes beside those of the
    form is asked for, too.
    """
    schemas = {**PART_SCHEMAS, **parts}
    leaves: dict[Path, Any] = {}
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


def _written_keys(template: str, wanted: set[Path]) -> dict[Path, Any]:
    """Return the keys in the last JSON object of a template that has a wanted one, with the schemas
    of their values.
    """
    found: dict[Path, Any] = {}
    keys: dict[Path, Any] = {}
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
        self._paths = dict(read)
        rest = data
        names = {key for path in self._paths.values() for key in path.split(".")}
        self._values = {}
        for path in self._paths.values():
            value = _take(data, path.split("."), names)[0]
            rest = _take(rest, path.split("."), names)[1]
            if value is not MISSING:
                self._values[path] = value
        self.metadata = short_metadata(rest)

    @property
    def reason(self) -> str:
        """The reason; "" if the form has none."""
        return reason_at(self._values, self._paths["reason"]) if "reason" in self._paths else ""

    @property
    def actions(self) -> tuple[str, ...]:
        """What to change."""
        return texts_at(self._values, self._paths["actions"]) if "actions" in self._paths else ()

    @property
    def done(self) -> bool | None:
        """Whether nothing should change; None if the form does not say."""
        return bool_at(self._values, self._paths["done"]) if "done" in self._paths else None

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
