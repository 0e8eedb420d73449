"""Replies in a form that a template states itself: JSON whose keys the user names (see `reply_form`).

Reading is as strict as with the judges' own form: one JSON object, numbers on the scale, nothing that has to be guessed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...core.records import MAX_METADATA
from ...protocols import Reply
from ..reply_form import Paths, Scale
from .structured import (
    bool_at,
    misfit,
    plain_number,
    plain_word,
    read_object,
    reason_at,
    score_at,
    spell_keys,
    texts_at,
)

WINNERS = ("first", "second", "tie")
WINNER_WORDS = {
    **dict.fromkeys(("first", "a", "1", "answer a", "answer 1", "response a"), "first"),
    **dict.fromkeys(("second", "b", "2", "answer b", "answer 2", "response b"), "second"),
    "tie": "tie",
}
"""What a template may call the winner, as a `plain_word`."""


class OwnReply:
    """A reply in a form of one's own. It, and each property, raises UnreadableOutput for what is not in that form.

    `metadata` holds the keys that are not in the form, if they are not too long.
    """

    def __init__(self, reply: Reply, read: Paths) -> None:
        self._paths = dict(read)
        data = rest = read_object(reply.text)
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
            raise misfit(self._values, self._paths["winner"], '"first", "second" or "tie", "A" or "B", 1 or 2')
        return winner

    def score(self, scale: Scale) -> float:
        """Return the score, as a number on the scale."""
        return score_at(self._values, self._paths["score"], scale)

    def key(self, part: str) -> str:
        """Return the user's key of a part, a dotted path."""
        return self._paths.get(part, part)

    def value(self, part: str) -> Any:
        """Return the value of a part as it is; None if the form or the reply has none."""
        return self._values.get(self._paths.get(part, ""))


MISSING = object()


def short_metadata(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of JSON for the metadata of feedback; {} if it is longer than half of what they may hold."""
    text = json.dumps(data)
    metadata: dict[str, Any] = json.loads(text) if len(text) <= MAX_METADATA // 2 else {}  # (this joins halves of characters)
    return metadata


def _take(data: Mapping[str, Any], path: Sequence[str], names: Collection[str]) -> tuple[Any, dict[str, Any]]:
    """Return the value at a path, or MISSING, and the object without it. `names` are all keys of the form."""
    rest = dict(spell_keys(data, names))
    key, *inner = path
    value = rest.pop(key, MISSING)
    if not inner or value is MISSING:
        return value, rest
    if not isinstance(value, dict):
        return MISSING, {**rest, key: value}
    value, left = _take(value, inner, names)
    return value, ({**rest, key: left} if left else rest)
