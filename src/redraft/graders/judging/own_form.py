"""Replies in a form that a template states itself: JSON whose keys the user names (see `reply_form`).

Reading is as strict as with the judges' own form: one JSON object, numbers on the scale, no coercion. Other keys are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...protocols import Reply
from ..reply_form import Paths, Scale
from .structured import UnreadableOutput, bool_at, read_object, reason_at, score_at, string_at, texts_at

WINNERS = ("first", "second", "tie")
WINNER_WORDS = {
    **dict.fromkeys(("first", "a", "1", "answer_1", "response_a", "answer a", "answer 1", "response a"), "first"),
    **dict.fromkeys(("second", "b", "2", "answer_2", "response_b", "answer b", "answer 2", "response b"), "second"),
    "tie": "tie",
}
"""What a template may call the winner, in lower case."""


class OwnReply:
    """A reply in a form of one's own. It, and each property, raises UnreadableOutput for what is not in that form."""

    def __init__(self, reply: Reply, read: Paths) -> None:
        self._paths = dict(read)
        data = read_object(reply.text)
        found = ((path, _value_at(data, path)) for path in self._paths.values())
        self._values = {path: value for path, value in found if value is not MISSING}

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
        path = self._paths["winner"]
        value = self._values.get(path)
        text = str(value) if type(value) is int else string_at(self._values, path)
        winner = WINNER_WORDS.get(text.lower())
        if winner is None:
            raise UnreadableOutput(f'{path!r} must be "first", "second" or "tie", "A" or "B", 1 or 2, got {text[:60]!r}')
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


def _value_at(data: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path, or MISSING."""
    value: Any = data
    for key in path.split("."):
        value = value.get(key, MISSING) if isinstance(value, Mapping) else MISSING
    return value
