"""Computed grades with a limit: short texts are graded at once, long ones in a worker process that is stopped after a time.

A grade that takes too long is unknown: `ComputeLimitError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields, replace
from functools import wraps
from importlib import import_module
from typing import Any, TypeVar

from ...compute import IN_PROCESS, run
from ...core.records import Candidate, Feedback, Task
from ...core.serialize import pack, unpack
from ...own_code import is_own
from ...protocols import JudgeClient

G = TypeVar("G", bound=type)


def with_limit(kind: G) -> G:
    """Return the class with a `grade` method that grades long texts in a worker process.

    A user's subclass grades in this process, without a limit.
    """
    grade = kind.grade  # type: ignore[attr-defined]

    @wraps(grade)
    async def limited_grade(self: Any, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        size = len(candidate.display_text) + len(task.reference or "") + len(task.context or "")
        if size <= IN_PROCESS or not is_own(type(self)):
            return await grade(self, task, candidate, ask)  # type: ignore[no-any-return]
        packed_task = pack(task if getattr(self, "reads_metadata", False) else replace(task, metadata={}))
        settings = {f.name: getattr(self, f.name) for f in fields(self)}
        failure = f"{self.name} could not be computed"
        packed_candidate = pack(Candidate(0, candidate.text, tool_calls=candidate.tool_calls))
        arguments = (*_class_path(self), settings, packed_task, packed_candidate)
        graded = await run(_grade_in_worker, *arguments, failure_text=failure, text_length=size)
        feedback: Feedback = unpack(Feedback, graded)
        return feedback

    kind.grade = limited_grade  # type: ignore[attr-defined]
    return kind


async def compute_with_limit(function: Callable[..., Any], *texts: str, name: str) -> Any:
    """Call a function of texts in a thread or, for long texts, in a worker process."""
    size = sum(map(len, texts))
    if size <= IN_PROCESS:
        return await asyncio.to_thread(function, *texts)
    return await run(function, *texts, failure_text=f"{name} could not be computed", text_length=size)


def _class_path(grader: Any) -> tuple[str, str]:
    return type(grader).__module__, type(grader).__qualname__


def _grade_in_worker(
    module: str, name: str, settings: dict[str, Any], task: dict[str, Any], candidate: dict[str, Any]
) -> dict[str, Any]:
    kind = getattr(import_module(module), name)
    grade = kind.grade.__wrapped__
    return pack(asyncio.run(grade(kind(**settings), unpack(Task, task), unpack(Candidate, candidate), None)))
