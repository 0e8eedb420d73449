"""Labels in the formats of other tools: writing them, and reading what people judged there.

- "jsonl": rows as `read_cases` reads them: `ratings` has one entry for each of the `raters`.
- "label-studio": the JSON list of tasks with annotations that Label Studio imports and exports;
  pairs are of type "pairwise", pass is "choices", scores are "rating".
- "argilla": the JSON list of records that Argilla's `dataset.records.to_json` writes and
  `from_json` reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ..base.checks import is_number
from ..base.jsontext import strict_loads
from ..errors import ConfigError
from .label_file import (
    PAIR_WORDS,
    AnnotationKind,
    Label,
    LabelItem,
    LabelQuestion,
    LabelSet,
    check_annotator,
)

CONTROL = "label"  # the name of the question in other tools
PASS_WORDS = {1.0: "good", 0.0: "bad"}
SIDES = {1.0: "left", 2.0: "right"}
RESPONSE_NAMES: Mapping[AnnotationKind, tuple[str, ...]] = {
    "pair": ("response_a", "response_b"),
    "pass": ("response",),
    "score": ("response",),
}
MAX_ITEMS = 200_000
MAX_BYTES = 2**28
MAX_SECONDS = 86_400.0
NOBODY = "unknown"  # the annotator of a label that names none


def _fields(item: LabelItem, kind: AnnotationKind) -> dict[str, str]:
    """Return the texts of an item by the names of the columns."""
    texts = {"prompt": item.prompt} | dict(zip(RESPONSE_NAMES[kind], item.responses, strict=True))
    return texts | {
        name: text for name in ("context", "reference") if (text := getattr(item, name)) is not None
    }


def _item(id: str, fields: Mapping[str, Any], kind: AnnotationKind) -> LabelItem:
    """Return the item that `_fields` describes. Raises ConfigError."""
    names = RESPONSE_NAMES[kind]
    texts = {name: fields.get(name) for name in ("prompt", *names, "context", "reference")}
    if any(not isinstance(texts[name], str) for name in names):
        raise ConfigError(f"item {id!r:.80} has no texts {', '.join(names)}")
    if wrong := [name for name, text in texts.items() if not isinstance(text, str | None)]:
        raise ConfigError(f"item {id!r:.80}: {wrong[0]} must be text")
    return LabelItem(
        id,
        texts["prompt"] or "",
        tuple(str(texts[name]) for name in names),
        texts["context"],
        texts["reference"],
    )


# ---- JSON Lines


def _to_jsonl(labels: LabelSet) -> str:
    return "".join(f"{json.dumps({**row, 'raters': labels.annotators})}\n" for row in labels.rows())


def _from_jsonl(text: str, question: LabelQuestion) -> Iterator[tuple[LabelItem, Label | None]]:
    # JSON may hold the other characters that `splitlines` splits at
    for n, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        row = _object(strict_loads(line))
        id, ratings = _id(row.get("id"), n), _list(row.get("ratings", []))
        item = _item(id, row, question.kind)
        yield item, None
        raters = _list(row.get("raters", [f"rater {n}" for n in range(1, len(ratings) + 1)]))
        for rater, value in zip(raters, ratings, strict=True):
            if value is not None:
                yield item, Label(id, _name(rater), _word_value(value, question))


def _word_value(value: Any, question: LabelQuestion) -> Any:
    """Return the number that a word such as "first" or "good" means; anything else as it is."""
    words: dict[Any, float] = {
        word: number
        for number, word in (PAIR_WORDS if question.kind == "pair" else PASS_WORDS).items()
    }
    return words.get(value, value) if isinstance(value, str) else value


# ---- Label Studio


def _to_label_studio(labels: LabelSet) -> str:
    kind = labels.question.kind
    tasks: list[dict[str, Any]] = []
    for item, own in labels.by_item():
        data: dict[str, str] = {"id": item.id} | _fields(item, kind)
        tasks.append({"data": data, "annotations": [_annotation(label, kind) for label in own]})
    return json.dumps(tasks, indent=1) + "\n"


def _annotation(label: Label, kind: AnnotationKind) -> dict[str, Any]:
    result: list[dict[str, Any]] = []
    if label.value is not None:
        if kind == "pair":
            # a pairwise result names a side; a tie is a choice beside it
            value: dict[str, Any] = (
                {"selected": SIDES[label.value]} if label.value else {"choices": ["tie"]}
            )
            type_, target = ("pairwise" if label.value else "choices"), "response_a,response_b"
        elif kind == "pass":
            value, type_, target = {"choices": [PASS_WORDS[label.value]]}, "choices", "response"
        else:
            value, type_, target = {"rating": int(label.value)}, "rating", "response"
        result = [{"from_name": CONTROL, "to_name": target, "type": type_, "value": value}]
    annotation: dict[str, Any] = {
        "result": result,
        "was_cancelled": label.value is None,
        "completed_by": {"email": label.annotator},
    }
    if label.seconds is not None:
        annotation["lead_time"] = label.seconds
    return annotation | ({"created_at": label.at} if label.at else {})


def _from_label_studio(
    text: str, question: LabelQuestion
) -> Iterator[tuple[LabelItem, Label | None]]:
    for n, entry in enumerate(_list(strict_loads(text)), 1):
        task = _object(entry)
        data = _object(task.get("data"))
        id = _id(data.get("id", task.get("id")), n)
        item = _item(id, data, question.kind)
        yield item, None
        for each in _list(task.get("annotations", [])):
            annotation = _object(each)
            who = annotation.get("completed_by")
            name = who.get("email") or who.get("id") if isinstance(who, Mapping) else who
            value = None if annotation.get("was_cancelled") else _result_value(annotation, question)
            at = str(annotation.get("created_at") or "")[:40]
            yield (
                item,
                Label(id, _name(name), value, seconds=_seconds(annotation.get("lead_time")), at=at),
            )


def _result_value(annotation: Mapping[str, Any], question: LabelQuestion) -> float | None:
    """Return the value of the first result; None if there is none. Raises ConfigError for a word
    that is no answer.
    """
    words: dict[str, float] = {side: value for value, side in SIDES.items()} | {"tie": 0.0}
    words |= {
        word: value
        for value, word in (PASS_WORDS if question.kind == "pass" else PAIR_WORDS).items()
    }
    for each in _list(annotation.get("result", [])):
        value = _object(_object(each).get("value", {}))
        if "rating" in value:
            return float(value["rating"])
        named = value.get("selected") or next(iter(_list(value.get("choices", []))), None)
        if named is not None:
            if named not in words:
                raise ConfigError(
                    f"an annotation cannot be {named!r:.80}: it is one of {', '.join(words)}"
                )
            return words[named]
    return None


# ---- Argilla


def _to_argilla(labels: LabelSet) -> str:
    kind = labels.question.kind
    words = PAIR_WORDS if kind == "pair" else PASS_WORDS
    records = []
    for item, own in labels.by_item():
        responses = [
            {
                "value": int(label.value) if kind == "score" else words[label.value],
                "user_id": label.annotator,
            }
            for label in own
            if label.value is not None
        ]
        if responses:
            records.append({"id": item.id, "fields": _fields(item, kind), "metadata": {}, "suggestions": {},  # noqa: E501
                            "responses": {CONTROL: responses}, "vectors": {}, "status": "completed"})  # fmt: skip  # noqa: E501
    return json.dumps(records, indent=1) + "\n"


def _from_argilla(text: str, question: LabelQuestion) -> Iterator[tuple[LabelItem, Label | None]]:
    for n, entry in enumerate(_list(strict_loads(text)), 1):
        record = _object(entry)
        id = _id(record.get("id"), n)
        item = _item(id, _object(record.get("fields")), question.kind)
        yield item, None
        responses = _object(record.get("responses", {}))
        for each in _list(responses.get(CONTROL, next(iter(responses.values()), []))):
            response = _object(each)
            yield (
                item,
                Label(
                    id, _name(response.get("user_id")), _word_value(response.get("value"), question)
                ),
            )


# ---- formats

Reader = Callable[[str, LabelQuestion], Iterable[tuple[LabelItem, "Label | None"]]]
WRITERS: Mapping[str, Callable[[LabelSet], str]] = {
    "jsonl": _to_jsonl,
    "label-studio": _to_label_studio,
    "argilla": _to_argilla,
}
READERS: Mapping[str, Reader] = {
    "jsonl": _from_jsonl,
    "label-studio": _from_label_studio,
    "argilla": _from_argilla,
}
LABEL_FORMATS = tuple(WRITERS)
"""The names of the formats."""


def export_labels(labels: LabelSet, format: str) -> str:
    """Return labels in a format of `LABEL_FORMATS`. Raises ConfigError for another one."""
    text: str = _entry_of(WRITERS, format)(labels)
    return text


def import_labels(text: str, format: str, question: LabelQuestion) -> LabelSet:
    """Return the labels in a text of one of `LABEL_FORMATS`. Raises ConfigError for what cannot be
    understood.
    """
    found = LabelSet(question)
    reader = _entry_of(READERS, format)
    try:
        for item, label in reader(text, question):
            if found.items.setdefault(item.id, item) != item:
                raise ConfigError(f"two different items have the ID {item.id!r:.80}")
            if len(found.items) > MAX_ITEMS:
                raise ConfigError(f"there are more than {MAX_ITEMS:,} items")
            if label is not None:
                found.add(_validate(label, question))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"these are no labels in the format {format}: {str(error)[:200]}"
        ) from error
    return found


def _entry_of(table: Mapping[str, Any], format: str) -> Any:
    if format not in table:
        raise ConfigError(f"format={format!r}: there are {', '.join(table)}")
    return table[format]


def _validate(label: Label, question: LabelQuestion) -> Label:
    check_annotator(label.annotator)
    value = label.value
    if value is not None and (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value not in question.values
    ):
        raise ConfigError(
            f"item {label.item!r:.80}: a label cannot be {value!r:.80}; it is one of "
            f"{question.values}"
        )
    return Label(
        label.item,
        label.annotator,
        None if value is None else float(value),
        "imported",
        (),
        label.seconds,
        label.at,
    )


def _id(value: Any, n: int) -> str:
    """Return an ID as text; that of item `n` without one is its number."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise ConfigError(f"an ID must be text or a whole number, got {value!r:.80}")
    return str(n if value is None else value)


def _name(value: Any) -> str:
    return NOBODY if value is None else str(value)


def _seconds(value: Any) -> float | None:
    return float(value) if is_number(value) and 0 <= value <= MAX_SECONDS else None


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"expected an object, got {value!r:.80}")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"expected a list, got {value!r:.80}")
    return value
