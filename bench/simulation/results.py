"""The result of a policy on one task, and what follows from it."""

from __future__ import annotations

from typing import NamedTuple

TARGET = 0.9
TOLERANCE = 1e-9


class TaskResult(NamedTuple):
    """The true quality of the returned answer, the calls made, the reported score (None: none), and
    whether the policy says that the target is reached.

    `rounds` are the calls that had to wait for one another, `interval` is the reported interval of
    the score. `failed`: it ended as failed; `failed_graded`: although a grade was given.
    `ungraded`: whether a text was paid for that no grader was asked about.
    """

    quality: float
    calls: float
    score: float | None
    reached: bool
    rounds: int = 0
    interval: tuple[float, float] | None = None
    failed: bool = False
    failed_graded: bool = False
    ungraded: bool = False

    @property
    def overestimate(self):
        return None if self.score is None else self.score - self.quality

    @property
    def distance(self):
        """The size of the error of the reported score."""
        return None if self.score is None else abs(self.score - self.quality)

    @property
    def good(self):
        """Whether the answer is truly at the target."""
        return self.quality >= TARGET - TOLERANCE

    @property
    def false(self):
        """Whether the target is reported as reached although it is not."""
        return float(self.reached and not self.good)

    @property
    def false_claim(self):
        """Whether a claim is false; None without a claim."""
        return self.false if self.reached else None

    @property
    def recalled(self):
        """Whether a target that is truly reached is reported; None if it is not reached."""
        return float(self.reached) if self.good else None

    @property
    def covered(self):
        """Whether the reported interval has the true quality; None without an interval."""
        if self.interval is None:
            return None
        low, high = self.interval
        return float(low - TOLERANCE <= self.quality <= high + TOLERANCE)
