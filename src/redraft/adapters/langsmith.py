"""Graders as an evaluator of LangSmith, by which LangChain programs are evaluated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Unpack

from .grades import GradeArguments, GradeSettings, field_of

__all__ = ["evaluator"]


def evaluator(
    graders: Any = None,
    judge: Any = None,
    *,
    key: str = "redraft",
    prompt: str | None = None,
    answer: str | None = None,
    **settings: Unpack[GradeSettings],
) -> Callable[..., Awaitable[dict[str, Any]]]:
    """Return an evaluator: `client.evaluate(target, data="questions",
    evaluators=[evaluator("clarity")])`.

    Feedback whose score is unknown has the score None, which LangSmith leaves out of averages, and
    a comment that says why.

    Args:
        graders: As in `redraft.grade`.
        judge: As in `redraft.grade`.
        key: The name of the feedback.
        prompt: The field of the inputs that is the prompt; None: the only one.
        answer: The field of the outputs to grade; None: the only one. The reference outputs' field
            of this name is the reference.
        **settings: As in `redraft.grade`, for each answer.
    """
    arguments = GradeArguments(graders, judge, settings)

    async def evaluate(
        inputs: dict[str, Any], outputs: dict[str, Any], reference_outputs: dict[str, Any]
    ) -> dict[str, Any]:
        text, asked = field_of(outputs, answer, "answer"), field_of(inputs, prompt, "prompt")
        name = answer or next(iter(outputs))
        grade = await arguments.grade(asked, text, reference=reference_outputs.get(name))
        return {"key": key, "score": grade.score, "comment": grade.problem or grade.feedback}

    return evaluate
