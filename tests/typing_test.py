"""What a type checker must infer for the public API. Checked by mypy, not run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import assert_type

import redraft
from redraft import Budget, Feedback, Judge, Result, ScriptedModel, SelfRefine, Task, Trace, Usage
from redraft.protocols import JudgeClient, Grader, Model
from redraft.core.stopping import patience, target
from redraft.errors import RedraftError


async def entry_points() -> None:
    result = await redraft.refine("q", "openai:x", lambda text: 0.5, target_score=0.8, budget=Budget(calls=3))
    assert_type(result, Result)
    assert_type(result.value, str)
    assert_type(result.score, float | None)
    assert_type(result.cost, float | None)
    assert_type(result.usage, Usage)
    assert_type(await redraft.refine_many(["a", Task("b")], max_in_flight=8), list[Result])
    assert_type(redraft.stream("q"), AsyncGenerator[Trace, None])
    assert_type(redraft.refine_sync([{"role": "user", "content": "q"}]), Result)
    await redraft.refine("q", plan=SelfRefine(target(0.9) | patience(2), drafts=3))


def protocols() -> None:
    model: Model = ScriptedModel(["a"])
    grader: Grader = Judge({"truth": "It is true."})
    error: RedraftError = redraft.errors.ConfigError("no")
    print(model, grader, error, Feedback(0.5, "reason", ("change",)))


async def evaluator(text: str, model: JudgeClient) -> float:
    return float(await model(text))
