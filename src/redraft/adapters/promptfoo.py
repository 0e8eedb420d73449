"""Graders as a Python assertion of promptfoo.

promptfoo turns an exception of an assertion into a failure with the score 0. An unknown score
therefore needs a number that the user named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from .grades import GradeArguments, GradeSettings, UnknownScore

__all__ = ["assertion"]


def assertion(
    graders: Any = None,
    judge: Any = None,
    *,
    unknown: float,
    target_score: float = 0.9,
    **settings: Unpack[GradeSettings],
) -> Callable[[Any, dict[str, Any]], dict[str, Any]]:
    """Return what a file that promptfoo names defines as `get_assert`.

    The file says `get_assert = assertion("clarity", unknown=0.0)`.

    Args:
        graders: As in `redraft.grade`. The test's variable `reference` is the reference.
        judge: As in `redraft.grade`.
        unknown: The number that stands for an unknown score.
        target_score: The score from which on an output passes.
        **settings: As in `redraft.grade`, for each output.

    Raises:
        ConfigError: `unknown` is not a finite number.
    """
    scores, arguments = UnknownScore(unknown), GradeArguments(graders, judge, settings)

    def get_assert(output: Any, context: dict[str, Any]) -> dict[str, Any]:
        reference = (context.get("vars") or {}).get("reference")
        grade = arguments.grade_sync(context["prompt"], output, reference=reference)
        score = scores.number(grade)
        reason = grade.feedback or f"the score is unknown: {grade.problem}"
        return {"pass": score >= target_score, "score": score, "reason": reason}

    return get_assert
