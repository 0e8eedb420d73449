"""Scores as columns of a Hugging Face data set."""

from __future__ import annotations

from typing import Any, Unpack

from datasets import Dataset, Features, Value

from .grades import GradeArguments, GradeSettings

__all__ = ["add_scores"]


def add_scores(
    dataset: Dataset,
    graders: Any = None,
    judge: Any = None,
    *,
    prompt: str = "prompt",
    response: str = "response",
    reference: str | None = None,
    **settings: Unpack[GradeSettings],
) -> Dataset:
    """Return the data set with the columns `redraft_score` (from 0 to 1; null if it is unknown) and
    `redraft_feedback`, which says what to change, or why the score is unknown.

    Rows are graded at the same time. For large data sets, a journal and a budget of all rows, use
    `redraft.batch` with `mode="grade"`.

    Args:
        dataset: The data set.
        graders: As in `redraft.grade`.
        judge: As in `redraft.grade`.
        prompt: The column of prompts: texts, or lists of messages.
        response: The column of the responses to grade.
        reference: The column of references; None: there is none.
        **settings: As in `redraft.grade`, for each row.
    """
    arguments = GradeArguments(graders, judge, settings)

    async def score(row: dict[str, Any]) -> dict[str, Any]:
        known = row[reference] if reference else None
        grade = await arguments.grade(row[prompt], row[response] or "", reference=known)
        return {"redraft_score": grade.score, "redraft_feedback": grade.problem or grade.feedback}

    columns = {"redraft_score": Value("float64"), "redraft_feedback": Value("string")}
    return dataset.map(score, features=Features({**dataset.features, **columns}))
