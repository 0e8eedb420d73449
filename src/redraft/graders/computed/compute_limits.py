"""Computed grades that no text can hold up: what is short is graded at once, the rest in a worker that is stopped at a limit.

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
from ...protocols import JudgeClient

G = TypeVar("G", bound=type)


def with_limit(kind: G) -> G:
    """The class of graders with a `grade` that works on long texts in a worker.

    A subclass from elsewhere works in this process: it is its author's business.
    """
    grade = kind.grade  # type: ignore[attr-defined]

    @wraps(grade)
    async def limited_grade(self: Any, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        size = len(candidate.display_text) + len(task.reference or "") + len(task.context or "")
        if size <= IN_PROCESS or not type(self).__module__.startswith(f"{__package__}."):
            return await grade(self, task, candidate, ask)  # type: ignore[no-any-return]
        read = pack(task if getattr(self, "reads_metadata", False) else replace(task, metadata={}))
        settings = {f.name: getattr(self, f.name) for f in fields(self)}
        what = f"{self.name} could not be computed"
        told = pack(Candidate(0, candidate.text, tool_calls=candidate.tool_calls))
        found: Feedback = unpack(
            Feedback, await run(_grade_in_worker, *_class_path(self), settings, read, told, failure_text=what, text_length=size)
        )
        return found

    kind.grade = limited_grade  # type: ignore[attr-defined]
    return kind


async def compute_with_limit(function: Callable[..., Any], *texts: str, name: str) -> Any:
    """What a function computes of texts, wherever that takes the event loop no time."""
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
