"""Labels of people in a file that is only appended to: what was judged, by whom, and how.

The first line says what was asked; each item is written once, with its texts, before its first
label. Taking a label back is a line, too. A line is written whole, and is on the disk before a
label is confirmed: neither `kill -9` nor a power failure loses it. `read_cases` reads such a file
as it is, with one rating for each annotator.

`export_labels` and `import_labels` write and read the formats of other tools:

- "jsonl": rows as `read_cases` reads them: `ratings` has one entry for each of the `raters`.
- "label-studio": the JSON list of tasks with annotations that Label Studio imports and exports;
  pairs are of type "pairwise", pass is "choices", scores are "rating".
- "argilla": the JSON list of records that Argilla's `dataset.records.to_json` writes and
  `from_json` reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from ..base import checks
from ..base.documents import open_regular
from ..base.jsontext import strict_loads
from ..errors import ConfigError, StoreError, WrongFileError
from ..loop.serialize import object_from_json, pack, unpack
from ..storage.trace_file import LockedLineFile, read_bounded_lines
from .cases import FIRST, SECOND, TIE

SCHEMA = 1
MARK = "redraft_labels"
MAX_NAME = 80
PAIR_WORDS = {1.0: FIRST, 2.0: SECOND, 0.0: TIE}
AnnotationKind: TypeAlias = Literal["pair", "pass", "score"]
"""What is asked: which of two responses is better, whether a response passes, or how good it is on
a scale.
"""
KINDS: tuple[AnnotationKind, ...] = ("pair", "pass", "score")
Sample: TypeAlias = Literal["random", "chosen", "imported"]
PASS_WORDS = {1.0: "good", 0.0: "bad"}
SIDES = {1.0: "left", 2.0: "right"}
WORDS: Mapping[AnnotationKind, Mapping[str, float]] = {
    "pair": {word: value for words in (PAIR_WORDS, SIDES) for value, word in words.items()},
    "pass": {word: value for value, word in PASS_WORDS.items()},
    "score": {},
}
"""What words mean in the formats of other tools, by the kind of the question."""
RESPONSE_NAMES: Mapping[AnnotationKind, tuple[str, ...]] = {
    "pair": ("response_a", "response_b"),
    "pass": ("response",),
    "score": ("response",),
}
CONTROL = "label"  # the name of the question in other tools
MAX_ITEMS = 200_000
MAX_BYTES = 2**28
MAX_SECONDS = 86_400.0
NOBODY = "unknown"  # the annotator of a label that names none


@dataclass(frozen=True, slots=True)
class LabelQuestion:
    """What annotators are asked. Raises ConfigError for an unknown kind, or a scale that is not two
    whole numbers from 0 to 9.

    `scale`: the lowest and the highest number of kind "score". `text`: the question, or the rubric,
    in words.
    """

    kind: AnnotationKind = "pair"
    text: str = ""
    scale: tuple[int, int] = (1, 5)

    def __post_init__(self) -> None:
        checks.one_of("kind", self.kind, KINDS)
        low, high = self.scale
        if not (type(low) is int and type(high) is int and 0 <= low < high <= 9):
            raise checks.invalid_argument(
                "scale", "two whole numbers from 0 to 9, such as (1, 5)", self.scale
            )

    @property
    def values(self) -> tuple[float, ...]:
        """The values that a label can have: 1, 2 and 0 (a tie) for pairs, 1 and 0 for pass, else
        the scale.
        """
        if self.kind == "pair":
            return (1.0, 2.0, 0.0)
        return (
            (1.0, 0.0)
            if self.kind == "pass"
            else tuple(float(n) for n in range(self.scale[0], self.scale[1] + 1))
        )


@dataclass(frozen=True, slots=True)
class LabelItem:
    """Something to be judged: two responses to one prompt (kind "pair"), or one.

    `origins` says where each response comes from, such as "first answer"; annotators do not see it.
    """

    id: str
    prompt: str
    responses: tuple[str, ...]
    context: str | None = None
    reference: str | None = None
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Label:
    """What one annotator said of one item.

    Attributes:
        item: The ID of the item.
        annotator: The annotator's name.
        value: For pairs 1 (the first response is better), 2 or 0 (a tie); 1 or 0 for pass; a number
            of the scale. None: skipped.
        sample: "random" if the item belongs to the random share, which represents all items;
            "chosen" if it was chosen because its label teaches much; "imported" if that is unknown.
        shown: The numbers of the responses, from 0, in the order in which they were shown.
        seconds: How long the annotator took, or None.
        at: When, ISO 8601 in UTC.
        note: A remark.
    """

    item: str
    annotator: str
    value: float | None
    sample: Sample = "imported"
    shown: tuple[int, ...] = ()
    seconds: float | None = None
    at: str = ""
    note: str = ""


@dataclass
class LabelSet:
    """The labels in a file: the question, the items by ID, and the last label of each item by each
    annotator.

    `random_share`: the share of the items that are drawn at random, which is the same for
    everybody; None if it was never chosen. `identical`: how many pairs are no items, because both
    answers are the same; each of them is a tie.
    """

    question: LabelQuestion
    items: dict[str, LabelItem] = field(default_factory=dict)
    labels: dict[tuple[str, str], Label] = field(default_factory=dict)
    random_share: float | None = None
    identical: int = 0

    def add(self, label: Label) -> None:
        """Enter a label; the annotator's earlier one of this item no longer counts."""
        self.labels.pop((label.item, label.annotator), None)
        self.labels[label.item, label.annotator] = label

    @property
    def annotators(self) -> list[str]:
        """The names of all annotators, sorted."""
        return sorted({annotator for _, annotator in self.labels})

    def of(self, annotator: str) -> list[Label]:
        """Return the labels of an annotator, the last one last."""
        return [label for label in self.labels.values() if label.annotator == annotator]

    def by_item(self) -> Iterator[tuple[LabelItem, list[Label]]]:
        """Yield each item that has labels, with these."""
        labels: dict[str, list[Label]] = {}
        for label in self.labels.values():
            labels.setdefault(label.item, []).append(label)
        return ((item, labels[item.id]) for item in self.items.values() if item.id in labels)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each item that has a label, as `read_cases` reads them.

        `sample` is "random" if one of its labels says so: keep these rows for estimates of all
        items. `ratings` has one entry for each annotator, in the order of their names, None where
        one gave no label. `scale` is the scale of kind "score".
        """
        annotators = self.annotators
        for item in self.items.values():
            labels = [self.labels.get((item.id, annotator)) for annotator in annotators]
            values = [label.value if label else None for label in labels]
            if any(value is not None for value in values):
                samples = [label.sample for label in labels if label]
                yield {
                    **self._row(item, values),
                    "sample": "random" if "random" in samples else samples[0],
                }

    def _row(self, item: LabelItem, values: Sequence[float | None]) -> dict[str, Any]:
        is_pair = self.question.kind == "pair"
        ratings = [
            PAIR_WORDS[value] if is_pair and value is not None else value for value in values
        ]
        row: dict[str, Any] = {
            "id": item.id,
            "prompt": item.prompt,
            **dict(zip(RESPONSE_NAMES[self.question.kind], item.responses, strict=True)),
            "ratings": ratings,
        }
        row |= {
            f"origin_{side}": origin
            for side, origin in zip("ab", item.origins if is_pair else (), strict=False)
        }
        row |= {"scale": list(self.question.scale)} if self.question.kind == "score" else {}
        return row | {
            name: value
            for name in ("context", "reference")
            if (value := getattr(item, name)) is not None
        }


class LabelFile:
    """Appends labels to the file `path`, which one process at a time may open; a new file is begun
    with `question`.

    An existing file is continued. Raises StoreError for a file that is none of labels or is in use,
    and ConfigError if it asks another kind of question.
    """

    def __init__(self, path: str | Path, question: LabelQuestion) -> None:
        self.path = Path(path)
        exists = self.path.is_file() and self.path.stat().st_size > 0
        if exists and not is_label_file(self.path):
            raise WrongFileError(
                f"{str(path)!r} is no file of labels, such as `redraft label` writes: name "
                "another file"
            )
        self._lines = LockedLineFile(self.path, "labels", resume=exists, durable=True)
        self.labels = LabelSet(question)
        try:
            if self._lines.is_empty:  # also one whose first line is torn
                self._write({MARK: SCHEMA, "question": pack(question)})
            else:
                self.labels = read_labels(self.path)
                _check_same_question(self.path, self.labels.question, question)
        except BaseException:
            self._lines.close()
            raise

    def add(self, item: LabelItem, label: Label) -> None:
        """Write a label. When this returns, it survives `kill -9`. Raises ConfigError as
        `extend`.
        """
        self.extend([(item, label)])

    def extend(self, judged: Iterable[tuple[LabelItem, Label]]) -> None:
        """Write several labels at once. An item that the file has already is not written again.

        Raises ConfigError, and writes nothing, for a value that is not allowed, and for an item
        with other responses than the one of this ID in the file.
        """
        checked = LabelSet(self.labels.question)
        lines: list[Mapping[str, Any]] = []
        for item, label in judged:
            known = checked.items.get(item.id) or self.labels.items.get(item.id)
            if known and known.responses != item.responses:
                raise ConfigError(
                    f"item {item.id!r:.80} has other responses than the item of this ID in "
                    f"{str(self.path)!r}"
                )
            _check_label(self.labels.question, label)
            stamped = (
                label
                if label.at
                else replace(label, at=datetime.now(UTC).isoformat(timespec="seconds"))
            )
            new = [{"item": pack(item)}] if known is None else []
            checked.items[item.id] = known or item
            for line in (*new, {"label": pack(stamped)}):
                # what cannot be read is not written
                _enter_line(checked, object_from_json(json.dumps(line)))
                lines.append(line)
        self._write(*lines)
        self.labels.items |= checked.items
        for label in checked.labels.values():
            self.labels.add(label)

    def choose_random_share(self, share: float | None, default: float) -> float:
        """Return the share of items that are drawn at random; it is chosen once for a file, as
        `share` or else `default`.

        With another share, later labels would be a sample without the items that were chosen
        because they teach much. Raises ConfigError if another one was chosen before.
        """
        known = self.labels.random_share
        if known is None:
            known = default if share is None else share
            checks.number("random_share", known, 0, 1)
            self._write({"random_share": known})
            self.labels.random_share = known
        elif share not in {None, known}:
            raise ConfigError(
                f"random_share={share}: the labels in {str(self.path)!r} were begun with {known}; "
                "name another file"
            )
        return known

    def note_identical(self, pairs: int) -> None:
        """Write how many pairs are left out, because both answers are the same; the last number
        counts.
        """
        if pairs != self.labels.identical:
            self._write({"identical": pairs})
            self.labels.identical = pairs

    def undo(self, annotator: str) -> Label | None:
        """Take the annotator's last label back and return it; None if there is none."""
        own = self.labels.of(annotator)
        if not own:
            return None
        self._write({"undo": {"item": own[-1].item, "annotator": annotator}})
        del self.labels.labels[own[-1].item, annotator]
        return own[-1]

    def _write(self, *lines: Mapping[str, Any]) -> None:
        self._lines.write(
            [json.dumps(line) for line in lines], f"{len(self.labels.labels)} labels are in it"
        )

    def close(self) -> None:
        """Close the file, so that another process may open it."""
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_same_question(path: Path, before: LabelQuestion, question: LabelQuestion) -> None:
    if before.kind != question.kind or (before.kind == "score" and before.scale != question.scale):
        scale = f" from {before.scale[0]} to {before.scale[1]}" if before.kind == "score" else ""
        raise ConfigError(
            f"{str(path)!r} has labels of kind {before.kind}{scale}: name another file for other "
            "labels"
        )


def check_annotator(name: str) -> None:
    """Raise ConfigError unless a name of an annotator is 1 to 80 printable characters."""
    if (
        not isinstance(name, str)
        or not name.strip()
        or len(name) > MAX_NAME
        or not name.isprintable()
    ):
        raise checks.invalid_argument(
            "annotator", f"a name of 1 to {MAX_NAME} printable characters", name
        )


def is_label_file(path: Path) -> bool:
    """Whether a file begins as a file of labels does. A pipe is none, and nothing is read of it."""
    try:
        with open_regular(path) as file:
            return file.read(64).lstrip().startswith(f'{{"{MARK}"'.encode())
    except OSError:
        return False


def read_labels(path: str | Path) -> LabelSet:
    """Read a file of labels. A torn last line is ignored. Raises StoreError that names the line for
    anything else.
    """
    try:
        with open_regular(path) as raw, BufferedReader(raw) as file:
            return labels_from_lines(read_bounded_lines(file, f"labels {str(path)!r}"), str(path))
    except OSError as error:
        raise StoreError(
            f"labels {str(path)!r} cannot be read: {checks.read_error_message(error)}"
        ) from error


def labels_from_lines(lines: Iterable[str], name: str) -> LabelSet:
    """Read the lines of a file of labels; `name` is its name in errors. Raises StoreError."""
    found: LabelSet | None = None
    for n, line in enumerate(lines, 1):
        try:
            data = object_from_json(line)
            if found is None:
                found = _begin(data)
            else:
                _enter_line(found, data)
        except (StoreError, ConfigError, KeyError, TypeError, ValueError) as error:
            raise StoreError(f"labels {name!r}, line {n}: {error}") from error
    if found is None:
        raise StoreError(f"labels {name!r}: the file is empty")
    return found


def _begin(data: Mapping[str, Any]) -> LabelSet:
    if data.get(MARK) != SCHEMA:
        raise StoreError(
            f"this is no file of labels of schema {SCHEMA}, such as `redraft label` writes"
        )
    return LabelSet(unpack(LabelQuestion, data["question"]))


def _enter_line(found: LabelSet, data: Mapping[str, Any]) -> None:
    """Enter what a line after the first says. Raises StoreError, ConfigError, KeyError, TypeError
    or ValueError.
    """
    if "item" in data:
        item = unpack(LabelItem, data["item"])
        if len(item.responses) != (2 if found.question.kind == "pair" else 1):
            raise StoreError(f"item {item.id!r:.80} has {len(item.responses)} responses")
        found.items[item.id] = item
    elif "label" in data:
        label = unpack(Label, data["label"])
        if label.item not in found.items:
            raise StoreError(f"a label of {label.item!r:.80}, which is no item before it")
        _check_label(found.question, label)
        found.add(label)
    elif "undo" in data:
        found.labels.pop((data["undo"]["item"], data["undo"]["annotator"]), None)
    elif "random_share" in data:
        checks.number("random_share", data["random_share"], 0, 1)
        found.random_share = float(data["random_share"])
    elif "identical" in data:
        checks.whole_number("identical", data["identical"], 0)
        found.identical = data["identical"]


def _check_label(question: LabelQuestion, label: Label) -> None:
    check_annotator(label.annotator)
    if label.value is not None and label.value not in question.values:
        raise checks.invalid_argument("value", f"one of {question.values} or None", label.value)


# ---- formats of other tools: an entry is an item with what people judged


class _Judgement(NamedTuple):
    """What an entry says of one label, as it stands there."""

    annotator: Any
    value: Any
    seconds: Any = None
    at: Any = ""


class _Entry(NamedTuple):
    """An item in a format of another tool: its ID or None, its texts by the names of the columns,
    and its labels.
    """

    id: Any
    fields: Mapping[str, Any]
    judgements: Iterable[_Judgement]


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


def _word(value: float, kind: AnnotationKind) -> str | int:
    """Return a label as other tools name it."""
    return int(value) if kind == "score" else {"pair": PAIR_WORDS, "pass": PASS_WORDS}[kind][value]


def _to_jsonl(labels: LabelSet) -> str:
    return "".join(f"{json.dumps({**row, 'raters': labels.annotators})}\n" for row in labels.rows())


def _jsonl_entry(row: Mapping[str, Any]) -> _Entry:
    ratings = _list(row.get("ratings", []))
    raters = _list(row.get("raters", [f"rater {n}" for n in range(1, len(ratings) + 1)]))
    both = zip(raters, ratings, strict=True)
    return _Entry(
        row.get("id"), row, (_Judgement(rater, value) for rater, value in both if value is not None)
    )


def _to_label_studio(labels: LabelSet) -> str:
    kind = labels.question.kind
    tasks = [
        {
            "data": {"id": item.id} | _fields(item, kind),
            "annotations": [_annotation(label, kind) for label in own],
        }
        for item, own in labels.by_item()
    ]
    return json.dumps(tasks, indent=1) + "\n"


def _annotation(label: Label, kind: AnnotationKind) -> dict[str, Any]:
    """Return an annotation of Label Studio. A pairwise result names a side; a tie is a choice
    beside it.
    """
    result: list[Any] = []
    value: dict[str, Any]
    if label.value is not None:
        if kind == "score":
            type_, value = "rating", {"rating": _word(label.value, kind)}
        elif kind == "pair" and label.value:
            type_, value = "pairwise", {"selected": SIDES[label.value]}
        else:
            type_, value = "choices", {"choices": [_word(label.value, kind)]}
        target = ",".join(RESPONSE_NAMES[kind])
        result = [{"from_name": CONTROL, "to_name": target, "type": type_, "value": value}]
    annotation: dict[str, Any] = {
        "result": result,
        "was_cancelled": label.value is None,
        "completed_by": {"email": label.annotator},
    }
    annotation |= {} if label.seconds is None else {"lead_time": label.seconds}
    return annotation | ({"created_at": label.at} if label.at else {})


def _label_studio_entry(task: Mapping[str, Any]) -> _Entry:
    data = _object(task.get("data"))
    annotations = map(_object, _list(task.get("annotations", [])))
    return _Entry(data.get("id", task.get("id")), data, map(_annotation_judgement, annotations))


def _annotation_judgement(annotation: Mapping[str, Any]) -> _Judgement:
    who = annotation.get("completed_by")
    name = who.get("email") or who.get("id") if isinstance(who, Mapping) else who
    value = None if annotation.get("was_cancelled") else _result_value(annotation)
    return _Judgement(name, value, annotation.get("lead_time"), annotation.get("created_at"))


def _result_value(annotation: Mapping[str, Any]) -> Any:
    """Return the number or the word of the first result; None if there is none."""
    for each in _list(annotation.get("result", [])):
        value = _object(_object(each).get("value", {}))
        if "rating" in value:
            return float(value["rating"])
        word = value.get("selected") or next(iter(_list(value.get("choices", []))), None)
        if word is not None:
            return word
    return None


def _to_argilla(labels: LabelSet) -> str:
    kind = labels.question.kind
    records = []
    for item, own in labels.by_item():
        responses = [
            {"value": _word(label.value, kind), "user_id": label.annotator}
            for label in own
            if label.value is not None
        ]
        if responses:
            records.append({"id": item.id, "fields": _fields(item, kind), "metadata": {}, "suggestions": {},  # noqa: E501
                            "responses": {CONTROL: responses}, "vectors": {}, "status": "completed"})  # fmt: skip  # noqa: E501
    return json.dumps(records, indent=1) + "\n"


def _argilla_entry(record: Mapping[str, Any]) -> _Entry:
    by_question = _object(record.get("responses", {}))
    responses = _list(by_question.get(CONTROL, next(iter(by_question.values()), [])))
    judgements = (
        _Judgement(each.get("user_id"), each.get("value")) for each in map(_object, responses)
    )
    return _Entry(record.get("id"), _object(record.get("fields")), judgements)


class LabelFormat(NamedTuple):
    """A format of other tools: its writer, and the reader of an entry."""

    write: Callable[[LabelSet], str]
    read_entry: Callable[[Mapping[str, Any]], _Entry]


_FORMATS: Mapping[str, LabelFormat] = {
    "jsonl": LabelFormat(_to_jsonl, _jsonl_entry),
    "label-studio": LabelFormat(_to_label_studio, _label_studio_entry),
    "argilla": LabelFormat(_to_argilla, _argilla_entry),
}
LABEL_FORMATS = tuple(_FORMATS)
"""The names of the formats."""


def _format_named(name: str) -> LabelFormat:
    if name not in _FORMATS:
        raise ConfigError(f"format={name!r}: there are {', '.join(_FORMATS)}")
    return _FORMATS[name]


def export_labels(labels: LabelSet, format: str) -> str:
    """Return labels in a format of `LABEL_FORMATS`. Raises ConfigError for another one."""
    return _format_named(format).write(labels)


def import_labels(text: str, format: str, question: LabelQuestion) -> LabelSet:
    """Return the labels in a text of one of `LABEL_FORMATS`. Raises ConfigError for what cannot be
    understood.
    """
    found, read_entry = LabelSet(question), _format_named(format).read_entry
    try:
        for n, value in _entry_values(text, format):
            entry = read_entry(_object(value))
            item = _item(_id(entry.id, n), entry.fields, question.kind)
            if found.items.setdefault(item.id, item) != item:
                raise ConfigError(f"two different items have the ID {item.id!r:.80}")
            if len(found.items) > MAX_ITEMS:
                raise ConfigError(f"there are more than {MAX_ITEMS:,} items")
            for judgement in entry.judgements:
                found.add(_imported_label(item.id, judgement, question))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"these are no labels in the format {format}: {str(error)[:200]}"
        ) from error
    return found


def _entry_values(text: str, format: str) -> Iterator[tuple[int, Any]]:
    """Yield the entries in a text with their numbers: those of the lines, or of the list."""
    if format != "jsonl":
        yield from enumerate(_list(strict_loads(text)), 1)
        return
    # JSON may hold the other characters that `splitlines` splits at
    for n, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield n, strict_loads(line)


def _imported_label(item: str, judgement: _Judgement, question: LabelQuestion) -> Label:
    annotator = NOBODY if judgement.annotator is None else str(judgement.annotator)
    check_annotator(annotator)
    words, value = WORDS[question.kind], judgement.value
    number = words.get(value, value) if isinstance(value, str) else value
    is_known = checks.is_number(number) and number in question.values
    if number is not None and not is_known:
        allowed = ", ".join((*words, *(f"{each:g}" for each in question.values)))
        raise ConfigError(
            f"item {item!r:.80}: a label cannot be {value!r:.80}; it is one of {allowed}"
        )
    seconds = judgement.seconds
    took = seconds if checks.is_number(seconds) and 0 <= seconds <= MAX_SECONDS else None
    return Label(
        item,
        annotator,
        None if number is None else float(number),
        seconds=None if took is None else float(took),
        at=str(judgement.at or "")[:40],
    )


def _id(value: Any, n: int) -> str:
    """Return an ID as text; that of item `n` without one is its number."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise ConfigError(f"an ID must be text or a whole number, got {value!r:.80}")
    return str(n if value is None else value)


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"expected an object, got {value!r:.80}")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"expected a list, got {value!r:.80}")
    return value
