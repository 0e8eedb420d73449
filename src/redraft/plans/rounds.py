"""Asks a plan for a round of steps, and for the next one only when all steps of the last have
ended.

The engine asks for steps after every record (of a `Round`: but not after feedback), while others
are still being performed. A plan is pure and does not see those, so that it would choose the next
text before the scores of this round are in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..base.own_code import is_own
from ..loop.engine import Plan
from ..loop.steps import Step, Stop
from ..loop.trace import Trace
from .base import PlanDecision


@dataclass
class RoundByRound:
    """Returns the steps that `decide` chooses, one round at a time.

    While texts of a round are being written, those that exist are graded; nothing else begins.

    Args:
        preview: Returns the decision for a trace, without any effect.
        decide: Returns the decision for a trace in which no chosen step is missing; it may record
            it.
    """

    preview: Callable[[Trace], PlanDecision]
    decide: Callable[[Trace], PlanDecision]
    _chosen: Sequence[Step] = field(default=(), init=False)

    def __call__(self, trace: Trace) -> Sequence[Step]:
        """Return the next steps."""
        if len(self._chosen) > 1 and (missing := trace.missing(self._chosen)):
            decision = self.preview(trace)
            necessary = () if decision.choices is not None else decision.steps
            return [*missing, *(step for step in necessary if not isinstance(step, Stop))]
        decision = self.decide(trace)
        self._chosen = () if decision.choices is None else decision.steps
        return decision.steps


def returns_rounds(plan: Plan) -> bool:
    """Whether a `Round` that a plan returns can be relied on: the plan, and the one that it asks,
    are of Redraft's own classes.

    A user's function or subclass may return what ours returns, and stop after feedback.
    """
    match plan:
        case object(base_plan=base_plan):
            return is_own(type(plan)) and is_own(type(base_plan))
    return is_own(type(plan))
