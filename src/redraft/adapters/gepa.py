"""Graders as the evaluator of GEPA's `optimize_anything`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from .grades import GradeArguments, GradeSettings, UnknownScore

__all__ = ["evaluator"]


def evaluator(
    graders: Any = None,
    judge: Any = None,
    *,
    prompt: str,
    run: Callable[..., Any] | None = None,
    unknown: float | None = None,
    **settings: Unpack[GradeSettings],
) -> Callable[..., tuple[float, dict[str, Any]]]:
    """Return an evaluator: `optimize_anything(seed_candidate=text, evaluator=evaluator("clarity",
    prompt="Write a welcome text."))`.

    It returns the score, and as side information the feedback, which says what to change, and the
    interval of the score.

    Args:
        graders: As in `redraft.grade`.
        judge: As in `redraft.grade`.
        prompt: What the graded texts answer. With a data set, the example stands below it.
        run: A function `(candidate)`, or `(candidate, example)` with a data set, that returns the
            text to grade; None: the candidate is the text.
        unknown: The number that stands for an unknown score; None: it raises GradingError, which
            ends the optimization, unless `EngineConfig(raise_on_exception=False)` makes it 0.0.
        **settings: As in `redraft.grade`, for each text.

    Raises:
        ConfigError: `unknown` is not a finite number.
    """
    scores, arguments = UnknownScore(unknown), GradeArguments(graders, judge, settings)

    def evaluate(candidate: Any, example: Any = None) -> tuple[float, dict[str, Any]]:
        given = (candidate,) if example is None else (candidate, example)
        text = run(*given) if run else candidate
        asked = prompt if example is None else f"{prompt}\n\n{example}"
        grade = arguments.grade_sync(asked, text)
        return scores.number(grade), {"Feedback": grade.feedback, "Interval": grade.interval}

    return evaluate
