"""Wrappers: everything that is "also do X around each call".

Each takes an async function and returns one of the same shape, so they stack in any order; none knows of the others.
`retry`, `limit`, `timeout` and `observe` fit around any async function, `cache`, `meter`, `adapt` and `gated` around a
model call. They stand around the call and not around the step, because a step may make several calls (a re-ask, a
function that asks a model) and money is reserved for each.
"""

from .adapt import adapt
from .budget import Budget, BudgetTracker, meter, with_cost
from .cache import cache, cache_key
from .capabilities import EndpointCapabilities
from .concurrency import ConcurrencyLimit, limit_concurrency
from .endpoint_limiter import EndpointLimiter, limit_endpoint
from .observe import observe
from .retry import retry
from .timeout import enforce_deadline, timeout

__all__ = [
    "Budget",
    "BudgetTracker",
    "ConcurrencyLimit",
    "EndpointCapabilities",
    "EndpointLimiter",
    "adapt",
    "cache",
    "cache_key",
    "enforce_deadline",
    "limit_concurrency",
    "limit_endpoint",
    "meter",
    "observe",
    "retry",
    "timeout",
    "with_cost",
]
