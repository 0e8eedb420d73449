"""What computed graders share: what they need of a task, and how they say what they found.

No reason or action ever quotes the reference: a refiner would copy it, and the score would mean nothing.
"""

from __future__ import annotations

from ...core.records import Feedback, Task
from ..inputs import check_needs


def reference_of(task: Task, grader: str) -> str:
    """The reference. Raises ConfigError where the task has none."""
    return _required_text(task, "reference", grader)


def context_of(task: Task, grader: str) -> str:
    """The context. Raises ConfigError where the task has none."""
    return _required_text(task, "context", grader)


def _required_text(task: Task, field: str, grader: str) -> str:
    check_needs(grader, (field,), task)
    return str(getattr(task, field))


def binary_feedback(ok: bool, reason: str, action: str) -> Feedback:  # noqa: FBT001
    """1 or 0; not done while it is 0."""
    return Feedback(1.0, reason) if ok else Feedback(0.0, reason, (action,), done=False)


def score_feedback(score: float, reason: str, action: str) -> Feedback:
    """A score by degrees. What arithmetic left a hair outside [0, 1] is rounded into it."""
    score = round(score, 9)
    return Feedback(score, reason, () if score == 1 else (action,))


def preview(text: str, limit: int = 80) -> str:
    """A foreign text on one line, cut."""
    line = " ".join(text[: 4 * limit].split())
    return repr(line if len(line) <= limit else f"{line[: limit - 3]}...")
