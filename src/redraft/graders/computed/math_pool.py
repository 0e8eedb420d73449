"""Comparing mathematics in a worker, because sympy cannot be stopped otherwise.

A worker loads sympy once (about a second) and answers many questions; see `compute`.
"""

from __future__ import annotations

from importlib.util import find_spec

from ...compute import run
from ...errors import ComputeLimitError, ConfigError
from .math_worker import equal_as_mathematics


async def equal_in_worker(actual: str, expected: str, seconds: float) -> bool | None:
    """Return whether two expressions are equal as mathematics; None if that takes longer than `seconds`. Raises ConfigError."""
    if find_spec("math_verify") is None:
        raise ConfigError("math needs an extra: pip install 'redraft[math]'")
    try:
        answer = await run(
            equal_as_mathematics,
            actual,
            expected,
            failure_text="the expressions could not be compared",
            text_length=len(actual),
            seconds=seconds,
        )
    except ComputeLimitError:
        return None
    return answer if isinstance(answer, bool) else None
