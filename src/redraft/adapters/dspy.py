"""Graders as a metric of DSPy, and as the feedback metric of its optimizer GEPA.

DSPy turns an exception of a metric into its own `failure_score`, which is 0.0 unless it is set, and
so does its GEPA. An unknown score therefore needs a number that the user named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import dspy  # pyright: ignore[reportMissingImports]

from .grades import (
    AnswerGrade,
    GradeArguments,
    GradeSettings,
    UnknownScore,
    answer_text,
    field_of,
)

__all__ = ["feedback_metric", "metric"]


def metric(
    graders: Any = None,
    judge: Any = None,
    *,
    unknown: float,
    answer: str | None = None,
    **settings: Unpack[GradeSettings],
) -> Callable[..., float]:
    """Return a metric: `dspy.Evaluate(devset=devset, metric=metric("clarity", unknown=0.0))`.

    Args:
        graders: As in `redraft.grade`.
        judge: As in `redraft.grade`.
        unknown: The number that stands for an unknown score.
        answer: The field of the prediction to grade; None: its last one. The example's field of
            this name is the reference.
        **settings: As in `redraft.grade`, for each answer.

    Raises:
        ConfigError: `unknown` is not a finite number.
    """
    scores, arguments = UnknownScore(unknown), GradeArguments(graders, judge, settings)

    def score(gold: Any, pred: Any, trace: Any = None) -> float:
        return scores.number(_grade(gold, pred, answer, arguments))

    return score


def feedback_metric(
    graders: Any = None,
    judge: Any = None,
    *,
    unknown: float,
    answer: str | None = None,
    **settings: Unpack[GradeSettings],
) -> Callable[..., Any]:
    """Return a metric with feedback: `dspy.GEPA(metric=feedback_metric("clarity", unknown=0.0))`.

    It returns a `dspy.Prediction` with the `score`, the `feedback`, which says what to change, and
    the `interval` of the score (None if no judge took part). The arguments are those of `metric`.
    """
    scores, arguments = UnknownScore(unknown), GradeArguments(graders, judge, settings)

    def score_with_feedback(
        gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> Any:
        grade = _grade(gold, pred, answer, arguments)
        return dspy.Prediction(
            score=scores.number(grade), feedback=grade.feedback, interval=grade.interval
        )

    return score_with_feedback


def _grade(gold: Any, pred: Any, answer: str | None, arguments: GradeArguments) -> AnswerGrade:
    inputs, outputs = gold.inputs().toDict(), pred.toDict()
    name = answer or next(reversed(outputs), None)
    lines = [f"{key}: {answer_text(value)}" for key, value in inputs.items()]
    prompt = "\n".join(lines) if len(lines) > 1 else field_of(inputs, None, "inputs")
    text = field_of(outputs, name, "answer")
    return arguments.grade_sync(prompt, text, reference=gold.get(name))
