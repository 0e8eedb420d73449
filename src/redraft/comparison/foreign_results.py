"""Result files of other programs: promptfoo and Inspect.

A file is hostile data: types are checked, nothing in it is run, sizes are bounded where it is read.
A score that is missing, or that belongs to a failed call, is None, whatever number stands in the
file. `FORMS` recognises a form by the keys of a document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from typing import Any

from ..base.checks import format_value
from ..errors import ConfigError
from ..loop.task import Task
from .results import ResultRow, hash_task

INSPECT_WORDS = {
    "C": 1.0,
    "I": 0.0,
    "P": 0.5,
    "N": 0.0,
    "yes": 1.0,
    "no": 0.0,
    "true": 1.0,
    "false": 0.0,
}
"""The values that Inspect's own metrics give to the words of its scorers; yes, no, true and false
in any case.
"""
INSPECT_FIELDS = (
    "id",
    "input",
    "target",
    "output",
    "scores",
    "score",
    "metadata",
    "error",
    "attachments",
)
ATTACHMENT = (
    "attachment://"  # before the key of a text that stands in the attachments of the sample
)
PROMPTFOO_ERROR = 2  # failureReason of a row whose call failed


@dataclass(frozen=True)
class ForeignResults:
    """The rows of a document and the name of the score that was taken."""

    rows: Sequence[ResultRow]
    score_name: str


@dataclass(frozen=True)
class ResultChoice:
    """What to take of a document: `part` is the run in it (of a provider), `score` the name of the
    score; "" is any.
    """

    name: str
    part: str = ""
    score: str = ""


def number_or_none(value: Any) -> float | None:
    """Return a finite number, 1 or 0 for true and false; None for anything else."""
    if isinstance(value, bool):
        return float(value)
    try:
        return float(value) if isinstance(value, int | float) and isfinite(value) else None
    except OverflowError:
        return None


# ---- promptfoo


def is_promptfoo(document: Any) -> bool:
    """Return whether a document is the output of `promptfoo eval`."""
    rows = _promptfoo_rows(document)
    return bool(rows) and all("testIdx" in row or "testCase" in row for row in rows[:20])


def _promptfoo_rows(document: Any) -> list[Mapping[str, Any]]:
    inner = document.get("results") if isinstance(document, Mapping) else None
    if isinstance(inner, Mapping):
        inner = inner.get("results")
    return [row for row in inner if isinstance(row, Mapping)] if isinstance(inner, list) else []


def read_promptfoo(document: Any, choice: ResultChoice) -> ForeignResults:
    """Return the rows of one provider and prompt: `part` is the provider, the label of the prompt,
    or both with "|" between.
    """
    rows = _promptfoo_rows(document)
    parts = {_promptfoo_part(row): None for row in rows}
    provider = _one_part(
        choice, parts, lambda part: choice.part in {part, *part.split("|")}, "provider|prompt"
    )
    chosen = [row for row in rows if _promptfoo_part(row) == provider]
    return ForeignResults([_promptfoo_row(row, choice) for row in chosen], choice.score or "score")


def _promptfoo_part(row: Mapping[str, Any]) -> str:
    provider, prompt = row.get("provider"), row.get("prompt")
    name = (
        provider.get("label") or provider.get("id") if isinstance(provider, Mapping) else provider
    )
    label = prompt.get("label") if isinstance(prompt, Mapping) else None
    index = row.get("promptIdx")
    return f"{name or 'provider'}|{label if isinstance(label, str) and len(label) < 80 else index if index is not None else 0}"  # noqa: E501


def _promptfoo_row(row: Mapping[str, Any], choice: ResultChoice) -> ResultRow:
    case, response, graded = (
        _mapping(row.get(key)) for key in ("testCase", "response", "gradingResult")
    )
    variables = _mapping(row.get("vars")) or _mapping(case.get("vars"))
    score = (
        _mapping(row.get("namedScores")).get(choice.score)
        if choice.score
        else row.get("score", graded.get("score"))
    )
    if score is None and not choice.score:
        score = graded.get("pass", row.get("success"))
    failed = row.get("failureReason") == PROMPTFOO_ERROR or (
        bool(row.get("error")) and response.get("output") is None
    )
    index = row.get("testIdx")
    key = hash_task(variables) if variables else hash_task(["test", index, case.get("description")])
    metadata = {
        **_mapping(case.get("metadata")),
        **{f"vars.{name}": value for name, value in variables.items()},
    }
    return ResultRow(
        None,
        key,
        None if failed else number_or_none(score),
        _text(response.get("output")),
        metadata,
    )


# ---- Inspect


def is_inspect(document: Any) -> bool:
    """Return whether a document is a log of Inspect (.json), or the samples of one."""
    return (
        isinstance(document, Mapping)
        and isinstance(document.get("eval"), Mapping)
        and isinstance(document.get("samples"), list)
    )


def read_inspect(document: Any, choice: ResultChoice) -> ForeignResults:
    """Return the samples; several epochs of a sample are repeats. `score` is a scorer, or
    "SCORER.KEY".
    """
    samples = [sample for sample in document["samples"] if isinstance(sample, Mapping)]
    names = dict.fromkeys(name for sample in samples for name in _inspect_scores(sample))
    score = _one_score(choice, names)
    return ForeignResults([_inspect_row(sample, score) for sample in samples], score)


def inspect_fields(sample: Any) -> dict[str, Any]:
    """Return the fields of a sample that are read: without its messages and events, which take most
    of the memory.
    """
    return (
        {name: sample[name] for name in INSPECT_FIELDS if name in sample}
        if isinstance(sample, Mapping)
        else {}
    )


def _inspect_scores(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all scorers; those of a scorer with several values as "SCORER.KEY"."""
    values: dict[str, Any] = {}
    scores = sample.get("scores") or ({"score": sample["score"]} if sample.get("score") else {})
    for name, score in _mapping(scores).items():
        value = score.get("value") if isinstance(score, Mapping) else score
        inner = value.items() if isinstance(value, Mapping) else [("", value)]
        values |= {f"{name}.{key}" if key else name: each for key, each in inner}
    return values


def _inspect_row(sample: Mapping[str, Any], score: str) -> ResultRow:
    value = _inspect_scores(sample).get(score)
    number = _word_value(value) if isinstance(value, str) else number_or_none(value)
    attachments = _mapping(sample.get("attachments"))
    output = _mapping(_with_attachments(sample.get("output"), attachments))
    choices = output.get("choices")
    message = (
        _mapping(_mapping(choices[0]).get("message"))
        if isinstance(choices, list) and choices
        else {}
    )
    text = (
        output.get("completion")
        if isinstance(output.get("completion"), str)
        else _text(message.get("content"))
    )
    id = sample.get("id")
    question = _with_attachments(sample.get("input"), attachments)
    metadata = dict(_mapping(sample.get("metadata")))
    task = hash_task([question, sample.get("target")]) if question else ""
    return ResultRow(
        None if id is None else str(id),
        task,
        None if sample.get("error") else number,
        text,
        metadata,
        _task(question),
    )


def _with_attachments(value: Any, attachments: Mapping[str, Any]) -> Any:
    """Return a value with the texts that it refers to; None if one of them is not there."""
    try:
        return _resolve(value, attachments)
    except LookupError:
        return None


def _resolve(value: Any, attachments: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        return (
            attachments[value.removeprefix(ATTACHMENT)] if value.startswith(ATTACHMENT) else value
        )
    if isinstance(value, Mapping):
        return {name: _resolve(inner, attachments) for name, inner in value.items()}
    return [_resolve(inner, attachments) for inner in value] if isinstance(value, list) else value


def _word_value(word: str) -> float | None:
    """Return the value of a word, or of a number that is written as a text."""
    known = INSPECT_WORDS.get(word if len(word) == 1 else word.lower())
    try:
        return number_or_none(float(word)) if known is None and len(word) < 40 else known
    except ValueError:
        return None


# ---- shared


@dataclass(frozen=True)
class ResultForm:
    """A form of result files: whether a document has it, and its rows."""

    name: str
    matches: Callable[[Any], bool]
    read: Callable[[Any, ResultChoice], ForeignResults]


FORMS = (
    ResultForm("promptfoo", is_promptfoo, read_promptfoo),
    ResultForm("inspect", is_inspect, read_inspect),
)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    """Return a text: as it is, or that of the parts of a message; anything else as None."""
    if isinstance(value, list):
        parts = [part.get("text") for part in value if isinstance(part, Mapping)]
        texts = [part for part in parts if isinstance(part, str)] or [
            part for part in value if isinstance(part, str)
        ]
        return "".join(texts) if texts else None
    return value if isinstance(value, str) else None


def _task(question: Any) -> Task | None:
    """Return the task of a text, or of messages; None for anything else."""
    try:
        return Task(question) if isinstance(question, str | list) and question else None
    except (ValueError, TypeError, AttributeError, KeyError):
        return None


def _one_score(choice: ResultChoice, names: Iterable[str]) -> str:
    """Return the score to take: the one that is named, or the only one. Raises ConfigError."""
    known = list(names)
    if choice.score:
        if choice.score not in known:
            raise _unknown("score", choice, choice.score, known)
        return choice.score
    if len(known) != 1:
        listed = ", ".join(format_value(name, 80) for name in known[:20])
        raise ConfigError(
            f"{choice.name!r} has {f'several scores: {listed}; name one' if known else 'no score'}"
        )
    return known[0]


def _one_part(
    choice: ResultChoice, parts: Iterable[str], fits: Callable[[str], bool], what: str
) -> str:
    """Return the part to take: the one that is named, or the only one. Raises ConfigError."""
    known = list(parts)
    chosen = [part for part in known if fits(part)] if choice.part else known
    if len(chosen) == 1:
        return chosen[0]
    if choice.part and not chosen:
        raise _unknown(what, choice, choice.part, known)
    listed = ", ".join(format_value(part, 120) for part in (chosen or known)[:20])
    raise ConfigError(
        f"{choice.name!r} has several runs: name one as FILE#NAME; there are {listed}"
    )


def _unknown(what: str, choice: ResultChoice, name: str, known: Iterable[str]) -> ConfigError:
    listed = ", ".join(format_value(each, 80) for each in islice(known, 20))
    return ConfigError(
        f"{choice.name!r} has no {what} {format_value(name, 80)}; there are {listed or 'none'}"
    )
