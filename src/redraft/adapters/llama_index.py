"""Graders as an evaluator of LlamaIndex."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from llama_index.core.evaluation import (  # pyright: ignore[reportMissingImports]
    BaseEvaluator,
    EvaluationResult,
)

from .grades import GradeArguments, GradeSettings

__all__ = ["RedraftResponseEvaluator"]


class RedraftResponseEvaluator(BaseEvaluator):
    """An evaluator: `RedraftResponseEvaluator("faithfulness").evaluate_response(query, response)`.

    A result whose score is unknown is invalid (`invalid_result`), and says why.

    Args:
        graders: As in `redraft.grade`. The contexts are the task's context.
        judge: As in `redraft.grade`.
        target_score: The score from which on a response is `passing`.
        **settings: As in `redraft.grade`, for each response.
    """

    def __init__(
        self,
        graders: Any = None,
        judge: Any = None,
        *,
        target_score: float = 0.9,
        **settings: Unpack[GradeSettings],
    ) -> None:
        self._arguments = GradeArguments(graders, judge, settings)
        self._target_score = target_score

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: dict[str, Any]) -> None:
        pass

    async def aevaluate(
        self,
        query: str | None = None,
        response: str | None = None,
        contexts: Sequence[str] | None = None,
        *,
        reference: str | None = None,
        **kwargs: Any,
    ) -> EvaluationResult:
        """Return the score, whether it reaches the target, and the feedback."""
        grade = await self._arguments.grade(
            query or "(no query)",
            response or "",
            context="\n\n".join(contexts or ()) or None,
            reference=reference,
        )
        return EvaluationResult(
            query=query,
            response=response,
            contexts=contexts,
            score=grade.score,
            passing=None if grade.score is None else grade.score >= self._target_score,
            feedback=grade.feedback,
            invalid_result=grade.score is None,
            invalid_reason=grade.problem or None,
        )
