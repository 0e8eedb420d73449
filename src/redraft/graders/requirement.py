"""Requirements as graders: 1 when kept, 0 when not, and the measured value beside the demand."""

from __future__ import annotations

from dataclasses import dataclass

from .. import checks
from ..core.records import Candidate, Feedback, Task
from ..protocols import JudgeClient, Requirement
from ..requirements import compute_limits as limits


@dataclass(frozen=True)
class RequirementGrader:
    """A requirement's view of a candidate. Its `done` is False while the demand is not met, and None otherwise."""

    requirement: Requirement

    model_free = True

    def __post_init__(self) -> None:
        if not isinstance(self.requirement, Requirement):
            raise checks.invalid_argument("requirement", "a Requirement, such as parse('words:80-200')", self.requirement)

    @property
    def editable(self) -> bool:
        """Whether it ever proposes repairs; a requirement that does not say so is taken to."""
        return bool(getattr(self.requirement, "editable", True))

    @property
    def name(self) -> str:
        return self.requirement.spec

    @property
    def demand(self) -> str:
        """The demand in words."""
        return self.requirement.demand

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """1 or 0, with the measured value as the reason, the demand as what to change, and how near the text comes to it.

        Raises ComputeLimitError where the text is such that checking it takes too long.
        """
        check = await limits.check(self.requirement, candidate.text)
        if check.ok:
            return Feedback(1.0, check.measurement)
        wish = f"{check.measurement}; {self.requirement.demand}"
        return Feedback(0.0, check.measurement, (wish,), done=False, nearness=check.nearness)
