"""What steps cost in the unit in which a plan sets its price."""

from __future__ import annotations

from typing import NamedTuple

from ..usage import Usage
from . import CostUnit
from .limits import Left, StepNeeds

UNIT_PHRASES = {"calls": "a call", "tokens": "for 1,000 tokens", "usd": "for a USD"}


class StepCosts(NamedTuple):
    """The cost of writing a text, of a text with its grades, and of one more grade by every judge; None if unknown."""

    text: float | None
    candidate: float | None
    repeat: float | None


def step_costs(needs: StepNeeds, unit: CostUnit) -> StepCosts:
    """Return the costs of steps that need so much."""
    return StepCosts(cost(needs.text, unit), cost(needs.graded_text, unit), cost(needs.repeat, unit))


def cost(need: Left, unit: CostUnit) -> float | None:
    """Return the cost of a need (tokens in thousands); None if unknown."""
    match unit:
        case "calls":
            return need.calls
        case "tokens":
            return None if need.tokens is None else need.tokens / 1000
        case "usd":
            return need.usd


def answer_cost(usage: Usage, unit: CostUnit) -> float | None:
    """Return the cost of answers, paid for or from the cache (tokens in thousands); None if unknown."""
    match unit:
        case "calls":
            return float(usage.calls + usage.cached_calls - usage.retried_calls)
        case "tokens":
            return None if usage.answer_tokens is None else usage.answer_tokens / 1000
        case "usd":
            return usage.answer_cost
