"""Checks and repairs with a limit: short ones run at once, long ones in a worker process that is stopped after a time.

The cost is the number of characters that are read. A requirement that reads the text more than once has a method
`check_cost(text)`, and for its repairs `repair_cost(text)`. Users' requirements run in this process, without a limit. Nothing
here knows a kind of requirement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from ..compute import IN_PROCESS, run
from ..core.cancellation import run_in_thread
from ..own_code import is_own
from ..protocols import Check, Requirement
from .spec import parse


async def check(requirement: Requirement, text: str) -> Check:
    """Check a text. Raises ComputeLimitError if that takes too long: the result is unknown then."""
    if not is_own(type(requirement)) or check_cost(requirement, text) <= IN_PROCESS:
        return await run_in_thread(requirement.check, text)
    failure = f"{short_spec(requirement.spec)} could not be checked"
    return Check(**await run(_check_in_worker, requirement.spec, text, failure_text=failure, text_length=len(text)))


def check_cost(requirement: Requirement, text: str) -> float:
    """Return how many characters a check reads."""
    return _cost(requirement, "check_cost", text)


def repair_cost(requirements: Sequence[Requirement], text: str) -> float:
    """Return the most characters that checking or repairing one of Redraft's requirements reads; 0 without one."""
    own = (each for each in requirements if is_own(type(each)))
    return max((_cost(each, name, text) for each in own for name in ("check_cost", "repair_cost")), default=0)


def _cost(requirement: Requirement, name: str, text: str) -> float:
    measure: Any = getattr(requirement, name, len)
    return float(measure(text))


def short_spec(spec: str) -> str:
    """Return a spec as messages show it."""
    return spec if len(spec) <= 100 else f"{spec[:97]}..."


def _check_in_worker(spec: str, text: str) -> dict[str, Any]:
    return asdict(parse_spec(spec).check(text))


@lru_cache(maxsize=256)
def parse_spec(spec: str) -> Requirement:
    """Return the requirement of a spec that Redraft wrote. It reads no file: a schema is part of the spec."""
    return parse(spec, files=False)
