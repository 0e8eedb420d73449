"""Shared parts of computed graders: reading the fields of a task, and making feedback.

No reason or action ever quotes the reference: the model would copy it, and the score would mean nothing.
"""

from __future__ import annotations

from ...core.records import Feedback, Task
from ..inputs import check_needs


def reference_of(task: Task, grader: str) -> str:
    """Return the reference. Raises ConfigError if the task has none."""
    return _required_text(task, "reference", grader)


def context_of(task: Task, grader: str) -> str:
    """Return the context. Raises ConfigError if the task has none."""
    return _required_text(task, "context", grader)


def _required_text(task: Task, field: str, grader: str) -> str:
    check_needs(grader, (field,), task)
    return str(getattr(task, field))


def binary_feedback(ok: bool, reason: str, action: str) -> Feedback:  # noqa: FBT001
    """Return 1, or 0 and not done."""
    return Feedback(1.0, reason) if ok else Feedback(0.0, reason, (action,), done=False)


def score_feedback(score: float, reason: str, action: str) -> Feedback:
    """Return a graded score. A value slightly outside [0, 1], from rounding, is rounded into it."""
    score = round(score, 9)
    return Feedback(score, reason, () if score == 1 else (action,))


def preview(text: str, limit: int = 80) -> str:
    """Return a text on one line, truncated."""
    line = " ".join(text[: 4 * limit].split())
    return repr(line if len(line) <= limit else f"{line[: limit - 3]}...")
