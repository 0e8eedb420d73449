"""Graders as an output validator of pydantic-ai: an answer that they find wanting is sent back to
the model with what to change.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, Unpack

from pydantic_ai import ModelRetry, RunContext

from .grades import GradeArguments, GradeSettings, UnknownScore

__all__ = ["output_validator"]

log = logging.getLogger("redraft.adapters")
Output = TypeVar("Output")


def output_validator(
    graders: Any = None,
    judge: Any = None,
    *,
    target_score: float = 0.9,
    unknown: float | None = None,
    **settings: Unpack[GradeSettings],
) -> Callable[[RunContext[Any], Output], Awaitable[Output]]:
    """Return a validator: `agent.output_validator(output_validator("clarity"))`.

    An output below `target_score` is sent back, as often as `Agent(retries={"output": N})` says.
    The last one passes, with a warning in the log, since pydantic-ai would lose it. Parts of a
    stream are not graded.

    Args:
        graders: As in `redraft.grade`.
        judge: As in `redraft.grade`.
        target_score: The score from which on an output passes, from 0 to 1.
        unknown: The score that an output counts with if its own is unknown: 1.0 lets it pass, 0.0
            sends it back. None: GradingError ends the run of the agent.
        **settings: As in `redraft.grade`, for each output.

    Raises:
        ConfigError: `unknown` is not a finite number.
    """
    scores, arguments = UnknownScore(unknown), GradeArguments(graders, judge, settings)

    async def validate(ctx: RunContext[Any], output: Output) -> Output:
        if ctx.partial_output:
            return output
        parts = [ctx.prompt] if isinstance(ctx.prompt, str) else ctx.prompt or []
        prompt = "\n".join(part for part in parts if isinstance(part, str))
        grade = await arguments.grade(prompt or "(no prompt)", output)
        score = scores.number(grade)
        if score >= target_score:
            return output
        if ctx.retry >= ctx.max_retries:
            log.warning("the last output passes with score %g, below %g", score, target_score)
            return output
        raise ModelRetry(grade.feedback or "The answer is not good enough: improve it.")

    return validate
