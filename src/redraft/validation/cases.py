"""What people said, and what a grader said: the two sides of a validation.

Rows of any shape become `Case`s (see `labelled`); what a grader says of one, live or recorded, becomes a `Verdict`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..core.records import Task
from ..errors import ConfigError

LabelKind: TypeAlias = Literal["score", "pass", "pair", "ranking"]
"""What the labels are: a number for one response, kept or not, which of two is better, the order of several."""


@dataclass(frozen=True, slots=True)
class LabelledCase:
    """One labelled row.

    `responses`: one for kinds score and pass, two for pair, several for ranking. `label`: the number on whatever scale
    people used (kind score), 1 or 0 (pass). `places`: the place of each response, from 0, equal for ties (pair,
    ranking). `ratings`: what each rater said, where it is known, None where one said nothing: scores, 1 or 0, or for
    pairs the better response (1, 2; 0 is a tie). `group` is what its row is reported under. Raises ConfigError for a
    label that does not fit its kind.
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
                f"case {self.id!r}: kind {self.kind!r} needs `places`, one for each response, such as (0, 1) where the first is "
                f"better, got {self.ranks!r} for {len(self.responses)} responses"
            )
        if not several and (self.label is None or len(self.responses) != 1):
            raise ConfigError(f"case {self.id!r}: kind {self.kind!r} needs one response and a `label`, got {self.label!r}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a grader said of a case, once. Nothing in it: unreadable, and `why`.

    `scores`: a score for each response, as the grader gave it, in the order of the case; `places`: the place of each,
    from 0, equal for ties. `shown`: the order in which it saw them, as indexes, where it saw them side by side.
    `passed`: for kind pass. `look` tells repeated looks apart. `why` says what could not be read, or that the grader failed.
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
        """Whether it says something of every response."""
        return self.ranks is not None or self.passed is not None or (bool(self.scores) and None not in self.scores)
