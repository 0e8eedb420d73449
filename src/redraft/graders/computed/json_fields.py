"""JSON answers, field by field, against the JSON in the reference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import isclose
from typing import Any

from ...base import checks
from ...base.own_code import fingerprint_name
from ...base.text import compose_nfc
from ...errors import ConfigError
from ...loop.records import Candidate, Feedback
from ...loop.task import Task
from ...requirements.data import parse_json
from .base import ComputedGrader, binary_feedback, reference_of, score_feedback

MAX_DEPTH = 64
MISSING = object()


@fingerprint_name("json_fields")
@dataclass(frozen=True)
class JsonFields(ComputedGrader):
    """The share of fields that are equal: of all in the reference or in the answer, so an extra
    field counts as wrong.

    A field is a path, such as `user.tags.0`, to a value that is neither an object nor a list, or to
    an empty one. The whole answer must be JSON, bare or in one code fence; else the score is 0.
    `fields` limits the comparison to these paths and those below them; without `ordered`, the order
    of lists does not count; numbers may differ by `tolerance` times the reference's size (>= 0).
    Reads `reference`, which must be JSON.
    """

    fields: tuple[str, ...] = ()
    ordered: bool = True
    tolerance: float = 1e-9
    name: str = "json_fields"

    needs = ("reference",)

    def __post_init__(self) -> None:
        checks.number("tolerance", self.tolerance, 0)
        object.__setattr__(self, "fields", tuple(self.fields))

    def assess(self, task: Task, candidate: Candidate) -> Feedback:
        """Return a score from 0 to 1. Raises ConfigError for a reference that is not JSON or has
        none of the fields.
        """
        expected = self._expected_leaves(reference_of(task, self.name))
        try:
            actual = self._leaves(candidate.text)
        except ValueError as error:
            return binary_feedback(
                ok=False,
                reason=f"the answer is not JSON: {str(error)[:200]}",
                action="Answer with JSON and nothing else.",
            )
        paths = {**expected, **actual}
        wrong = [
            path
            for path in paths
            if not self._equal(actual.get(path, MISSING), expected.get(path, MISSING))
        ]
        score = 1 - len(wrong) / len(paths)
        listed = ", ".join((path or "the value")[:60] for path in wrong[:20])
        return score_feedback(
            score,
            f"{len(paths) - len(wrong)} of {len(paths)} fields are right",
            f"Wrong, missing or too many: {listed}.",
        )

    def _expected_leaves(self, reference: str) -> dict[str, Any]:
        try:
            leaves = self._leaves(reference)
        except ValueError as error:
            raise ConfigError(
                f"grader {self.name!r} needs JSON in the task's reference: {error}"
            ) from None
        if not leaves:
            raise ConfigError(
                f"grader {self.name!r}: the task's reference has none of the fields "
                f"{', '.join(self.fields)}"
            )
        return leaves

    def _leaves(self, text: str) -> dict[str, Any]:
        leaves = dict(iter_leaves(parse_json(text), ordered=self.ordered))
        if not self.fields:
            return leaves
        return {
            path: value
            for path, value in leaves.items()
            if any(f"{path}.".startswith(f"{f}.") for f in self.fields)
        }

    def _equal(self, a: Any, b: Any) -> bool:
        if _is_number(a) and _is_number(b):
            return a == b or isclose(
                _to_float(a), _to_float(b), rel_tol=0, abs_tol=self.tolerance * abs(_to_float(b))
            )
        return type(a) is type(b) and bool(a == b)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _to_float(value: float) -> float:
    """Return a number as a float; one that is too large is infinite."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def iter_leaves(
    value: Any, path: str = "", depth: int = 0, *, ordered: bool = True
) -> Iterator[tuple[str, Any]]:
    """Yield every leaf with its path. Raises ValueError for JSON nested deeper than 64."""
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH}")
    if not isinstance(value, dict | list) or not value:
        yield path, value
        return
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value if ordered else sorted(value, key=canonical_json))
    )
    for key, each in inside:
        yield from iter_leaves(
            each, f"{path}.{key}" if path else str(key), depth + 1, ordered=ordered
        )


def canonical_json(value: Any) -> str:
    """Return one text for equal JSON values (1.0 equals 1, and texts have one form of Unicode).

    Raises ValueError for a value that is nested too deep or not JSON.
    """
    try:
        return json.dumps(_normalise(value), sort_keys=True)
    except (RecursionError, TypeError) as error:
        raise ValueError(f"it is not JSON, or nested too deeply ({type(error).__name__})") from None


def _normalise(value: Any) -> Any:
    if isinstance(value, str):
        return compose_nfc(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {_normalise(key): _normalise(each) for key, each in value.items()}
    return [_normalise(each) for each in value] if isinstance(value, list) else value
