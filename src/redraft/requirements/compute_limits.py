"""Checks and repairs that no text can hold up: what is small is done at once, the rest in a worker that is stopped at a limit.

`work` is the measure: characters that are read. A requirement that reads them more than once, or may, says so by a method
`work(text)`, and for what it proposes by `repair_work(text)`. A requirement that is not ours stays in this process: it is
its author's business. Nothing here knows a kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from ..compute import IN_PROCESS, run
from ..core.cancellation import run_in_thread
from ..protocols import Check, Requirement


async def check(requirement: Requirement, text: str) -> Check:
    """What the requirement measures. Raises ComputeLimitError where that takes too long: it is unknown then."""
    if not is_builtin(requirement) or check_cost(requirement, text) <= IN_PROCESS:
        return await run_in_thread(requirement.check, text)
    what = f"{short_spec(requirement.spec)} could not be checked"
    return Check(**await run(_check_in_worker, requirement.spec, text, failure_text=what, text_length=len(text)))


def is_builtin(requirement: Requirement) -> bool:
    """Whether it is of a kind that Redraft brings, so that its spec means the same in a worker."""
    return type(requirement).__module__.startswith(f"{__package__}.")


def check_cost(requirement: Requirement, text: str) -> float:
    """What a check reads, in characters."""
    return _cost(requirement, "work", text)


def repair_cost(requirements: Sequence[Requirement], text: str) -> float:
    """The most that checking or repairing one of ours reads, in characters; 0 where none is ours."""
    ours = filter(is_builtin, requirements)
    return max((_cost(each, name, text) for each in ours for name in ("work", "repair_work")), default=0)


def _cost(requirement: Requirement, name: str, text: str) -> float:
    measure: Any = getattr(requirement, name, len)
    return float(measure(text))


def short_spec(spec: str) -> str:
    """A spec as a message shows it."""
    return spec if len(spec) <= 100 else f"{spec[:97]}..."


def _check_in_worker(spec: str, text: str) -> dict[str, Any]:
    return asdict(parse_spec(spec).check(text))


@lru_cache(maxsize=256)
def parse_spec(spec: str) -> Requirement:
    """The requirement that a spec of ours means, which reads no file: a schema stands in it."""
    from . import parse

    return parse(spec, files=False)
