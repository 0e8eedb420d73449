"""Fields of JSON answers: which were right, came back different, and nobody had asked to change.

A field is named in the feedback if its name, the name of a field around it, or its value occurs
there. If the feedback on an answer names no field at all, any of them may change, so nothing is
reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..base.jsontext import replace_lone_surrogates, strict_loads
from .records import Candidate
from .trace import Trace

JSON_FORM = "json"  # of the setting `answer_form`, before its fingerprint
FORM_SETTING = (
    "answer_form"  # in the settings of a trace: the form of the answer and its fingerprint
)
WORD = re.compile(r"[^\W_]+")
MAX_FIELDS = 2000  # of an answer; larger answers are not compared
MAX_VALUE_CHARS = 80  # of a value that is shown
MIN_QUOTED_CHARS = 3  # of a value by which feedback can name a field


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field that changed without being asked: its path, and its values as JSON, shortened;
    `after` is None if it is missing.
    """

    path: str
    before: str
    after: str | None

    def __str__(self) -> str:
        return (
            f"{self.path}: was {self.before}, now {'missing' if self.after is None else self.after}"
        )


def has_json_form(trace: Trace) -> bool:
    """Return whether the answers of a trace have a form of JSON."""
    return str(trace.settings.get(FORM_SETTING, "")).startswith(f"{JSON_FORM}:")


def unrequested_changes(trace: Trace, candidate: Candidate) -> list[FieldChange]:
    """Return the fields of the answer's parent that were right, and that the refinement changed
    without being asked.
    """
    written = (
        trace.by_id.get(candidate.parent)
        if candidate.role == "repair" and candidate.parent is not None
        else candidate
    )
    parent = (
        trace.by_id.get(written.parent)
        if written and written.role == "refine" and written.parent is not None
        else None
    )
    if parent is None or not has_json_form(trace):
        return []
    before, after = _fields_of(parent.text), _fields_of(candidate.text)
    texts = _feedback_text(trace, parent)
    free = {path for path, value in before.items() if _is_named(path, value, texts)}
    if not free or not after:
        return []
    return [
        FieldChange(path, _shorten(value), None if path not in after else _shorten(after[path]))
        for path, value in before.items()
        if path not in free and after.get(path) != value and not _has_inner(path, after)
    ]


def _fields_of(text: str) -> dict[str, str]:
    """Return the values in an answer as JSON by their paths; empty if the answer is no JSON, or too
    large.
    """
    try:
        fields = dict(_leaves(strict_loads(text), ""))
    except ValueError:
        return {}
    return fields if len(fields) <= MAX_FIELDS else {}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield paths and values. A list of values that are no objects is one value."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _leaves(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for n, each in enumerate(value):
            yield from _leaves(each, f"{path}[{n}]")
    else:
        yield path, replace_lone_surrogates(json.dumps(value, sort_keys=True, ensure_ascii=False))


def _has_inner(path: str, fields: Mapping[str, str]) -> bool:
    """Return whether a field that was a value is now an object or a list of objects: its fields are
    new, not changed.
    """
    return path not in fields and any(
        other.startswith((f"{path}.", f"{path}[")) for other in fields
    )


def _feedback_text(trace: Trace, candidate: Candidate) -> str:
    """Return what the graders found wrong with a candidate."""
    lines: list[str] = []
    for feedback in trace.feedback[candidate.id]:
        if feedback.score is None or feedback.score < 1:
            lines += [feedback.reason, *feedback.actions]
        for c in feedback.criteria:
            if c.score < 1:
                lines += [c.action, c.evidence]
    return _words("\n".join(lines))


def _is_named(path: str, value: str, texts: str) -> bool:
    names = [name for name in re.split(r"[.\[\]]+", path) if name and not name.isdigit()]
    content = value.strip('"')
    return any(
        _occurs(each, texts)
        for each in (*names, *([content] if len(content) >= MIN_QUOTED_CHARS else []))
    )


def _occurs(text: str, texts: str) -> bool:
    """Return whether words occur in texts; those that are not ASCII also within others, because not
    every script has spaces.
    """
    words = _words(text)
    return bool(words.strip()) and (words if text.isascii() else words.strip()) in texts


def _words(text: str) -> str:
    """Return the words of a text between spaces, in lower case: "line_items" as "line items"."""
    return f" {' '.join(WORD.findall(text.lower()))} "


def _shorten(value: str) -> str:
    return value if len(value) <= MAX_VALUE_CHARS else f"{value[: MAX_VALUE_CHARS - 3]}..."
