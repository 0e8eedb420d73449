"""A plan from a story: a generator that yields steps and is handed their records."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

from ..core.records import Record, Task
from ..core.steps import Step
from ..core.trace import Trace
from . import Plan

PlanGenerator: TypeAlias = Callable[[Task], Generator[Sequence[Step], list[Record], None]]


def plan_from_generator(generator: PlanGenerator) -> Plan:
    """Tell `story(task)` from the start against each trace; the plan is whatever it is waiting for.

    The story must be pure: the same records lead it to the same steps. For each wave it is sent the records in the
    order of its steps; a step that failed comes as a `Failure`.
    """

    def plan(trace: Trace) -> Sequence[Step]:
        telling = generator(trace.task)
        try:
            steps = next(telling)
            while not (missing := trace.missing(steps)):
                steps = telling.send([trace.records_by_slot.get(s.slot) or trace.failures[s.slot] for s in steps])
        except StopIteration:
            return []
        return missing

    return plan
