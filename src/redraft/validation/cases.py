"""The two sides of a validation: the labels of people and the verdicts of a grader.

Rows of any shape become `LabelledCase`s (see `labelled`); the answer of a grader about one, live or recorded, is a `Verdict`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..core.records import Task
from ..errors import ConfigError

LabelKind: TypeAlias = Literal["score", "pass", "pair", "ranking"]
"""Kinds of labels: a number for a response, pass or fail, the better of two responses, the order of several."""


@dataclass(frozen=True, slots=True)
class LabelledCase:
    """One labelled row.

    `responses`: one for kinds score and pass, two for pair, several for ranking. `label`: the number on the scale that people
    used (kind score), or 1 or 0 (pass). `ranks`: the rank of each response, from 0, equal for ties (pair, ranking). `ratings`:
    the rating of each rater if known, None where one is missing: scores, 1 or 0, or for pairs the better response (1, 2; 0 is a
    tie). `group`: the heading of the report that counts the case. Raises ConfigError for a label that does not fit its kind.
    """

    id: str
    kind: LabelKind
    task: Task
    responses: tuple[str, ...]
    label: float | None = None
    ranks: tuple[int, ...] | None = None
    ratings: tuple[float | None, ...] = ()
    group: str = ""

    def __post_init__(self) -> None:
        several = self.kind in {"pair", "ranking"}
        if several and (self.ranks is None or len(self.ranks) != len(self.responses) or len(self.responses) < 2):
            raise ConfigError(
                f"case {self.id!r}: kind {self.kind!r} needs `ranks`, one for each response, such as (0, 1) if the first is "
                f"better, got {self.ranks!r} for {len(self.responses)} responses"
            )
        if not several and (self.label is None or len(self.responses) != 1):
            raise ConfigError(f"case {self.id!r}: kind {self.kind!r} needs one response and a `label`, got {self.label!r}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One answer of a grader about a case; without scores, ranks and `passed` it is unreadable, and `reason` says why.

    `scores`: the grader's score of each response, in the order of the case. `ranks`: the rank of each, from 0, equal for ties.
    `presentation_order`: the indexes of the responses in the order the grader saw them, if it saw them side by side. `passed`: for
    kind pass. `repeat` numbers repeated gradings.
    """

    case: str
    scores: tuple[float | None, ...] = ()
    ranks: tuple[int, ...] | None = None
    presentation_order: tuple[int, ...] = ()
    passed: bool | None = None
    repeat: int = 0
    reason: str = ""

    @property
    def readable(self) -> bool:
        """Whether it judges every response."""
        return self.ranks is not None or self.passed is not None or (bool(self.scores) and None not in self.scores)
