"""Plans decide what to do next: they are pure functions from a trace to the next steps.

A plain function qualifies as a plan; `plan_from_generator` makes one from a generator. A plan that
treats scores as noisy offers more (`NoiseAwarePlan`): its priors, the price at which it stops, and
the choices behind its decisions. No plan writes to anything; the caller records its decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy_imports import attribute_loader
from ..loop.engine import Plan

if TYPE_CHECKING:
    from .base import (
        NoiseAwarePlan,
        PlanChoice,
        PlanDecision,
        PlanGenerator,
        PlanTraits,
        StoppablePlan,
        outcome_if_stopped,
        plan_from_generator,
        plan_traits,
    )
    from .limits import COST_UNITS, UNLIMITED, CostUnit, Left
    from .self_refine import best_of
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "COST_UNITS": "limits",
            "CostUnit": "limits",
            "Left": "limits",
            "NoiseAwarePlan": "base",
            "PlanChoice": "base",
            "PlanDecision": "base",
            "PlanGenerator": "base",
            "PlanTraits": "base",
            "StoppablePlan": "base",
            "UNLIMITED": "limits",
            "best_of": "self_refine",
            "outcome_if_stopped": "base",
            "plan_from_generator": "base",
            "plan_traits": "base",
        },
    )

__all__ = [
    "COST_UNITS",
    "UNLIMITED",
    "CostUnit",
    "Left",
    "NoiseAwarePlan",
    "Plan",
    "PlanChoice",
    "PlanDecision",
    "PlanGenerator",
    "PlanTraits",
    "StoppablePlan",
    "best_of",
    "outcome_if_stopped",
    "plan_from_generator",
    "plan_traits",
]
