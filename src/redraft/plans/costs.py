"""What steps cost in the unit in which a plan sets its price."""

from __future__ import annotations

from typing import NamedTuple

from ..usage import Usage
from .base import CostUnit
from .limits import StepNeeds

UNIT_PHRASES = {"calls": "a call", "tokens": "for 1,000 tokens", "usd": "for a USD"}


class StepCosts(NamedTuple):
    """The cost of writing a text, of a text with its grades, and of one more grade by every judge;
    None if unknown.
    """

    text: float | None
    candidate: float | None
    repeat: float | None


def step_costs(needs: StepNeeds, unit: CostUnit) -> StepCosts:
    """Return the costs of steps that need so much (tokens in thousands)."""
    text, grades, repeat = (
        getattr(needs.text, unit),
        getattr(needs.grades, unit),
        getattr(needs.repeat, unit),
    )
    costs = text, None if text is None or grades is None else text + grades, repeat
    return StepCosts(
        *[cost / 1000 if cost is not None and unit == "tokens" else cost for cost in costs]
    )


def answer_cost(usage: Usage, unit: CostUnit) -> float | None:
    """Return the cost of answers, paid for or from the cache (tokens in thousands); None if
    unknown.
    """
    match unit:
        case "calls":
            return float(usage.calls + usage.cached_calls - usage.retried_calls)
        case "tokens":
            return None if usage.answer_tokens is None else usage.answer_tokens / 1000
        case "usd":
            return usage.answer_cost
