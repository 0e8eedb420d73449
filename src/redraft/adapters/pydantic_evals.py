"""Graders as an evaluator of pydantic-evals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic_evals.evaluators import (  # pyright: ignore[reportMissingImports]
    EvaluationReason,
    Evaluator,
    EvaluatorContext,
)

from .grades import GradeArguments, GradeSettings, UnknownScore

__all__ = ["RedraftEvaluator"]


@dataclass
class RedraftEvaluator(Evaluator):
    """An evaluator: `Dataset(cases=cases, evaluators=[RedraftEvaluator("clarity")])`.

    A score that is unknown raises GradingError, which is in the report as the case's
    `evaluator_failures`, and is part of no average.

    Args:
        graders: As in `redraft.grade`. The expected output is the reference.
        judge: As in `redraft.grade`.
        name: The name of the score in reports.
        settings: The settings of `redraft.grade`, by name.
    """

    graders: Any = None
    judge: Any = None
    name: str = "redraft"
    settings: GradeSettings = field(default_factory=GradeSettings)

    def get_default_evaluation_name(self) -> str:
        return self.name

    async def evaluate(self, ctx: EvaluatorContext) -> EvaluationReason:
        """Return the score, with the feedback as the reason."""
        arguments = GradeArguments(self.graders, self.judge, self.settings)
        grade = await arguments.grade(ctx.inputs, ctx.output, reference=ctx.expected_output)
        return EvaluationReason(UnknownScore(None).number(grade), grade.feedback)
