"""A plan from a generator that yields steps and receives their records."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

from ..core.records import Record, Task
from ..core.steps import Step
from ..core.trace import Trace
from . import Plan

PlanGenerator: TypeAlias = Callable[[Task], Generator[Sequence[Step], list[Record], None]]


def plan_from_generator(generator: PlanGenerator) -> Plan:
    """Make a plan from a generator that yields steps and is sent their records.

    The generator is run from the beginning for every trace, so it must be pure: the same records lead to the same steps. For
    each list of steps that it yields, it is sent their records in the same order; a step that failed is sent as a `Failure`.
    When it returns, the work ends.

    Args:
        generator: A function of a `Task` that returns such a generator.

    Returns:
        A plan, for the setting `plan`.
    """

    def plan(trace: Trace) -> Sequence[Step]:
        running = generator(trace.task)
        try:
            steps = next(running)
            while not (missing := trace.missing(steps)):
                steps = running.send([trace.records_by_slot.get(s.slot) or trace.failures[s.slot] for s in steps])
        except StopIteration:
            return []
        return missing

    return plan
