"""Middleware: everything that is "also do X around each call".

Each wrapper takes an async function and returns one of the same shape, so wrappers stack in any order and none knows of
the others. `retry.retry`, `concurrency.limit_concurrency`, `timeout.timeout` and `observe.observe` fit around any async
function; `cache.cache`, `metering.meter`, `adapt.adapt` and `endpoint_calls.limit_endpoint` fit around a model call.
They wrap the call and not the step, because one step may make several calls (a second question to a judge, a function
that asks a model) and a budget is reserved for each. `session.Session` puts the stack together.
"""

from .budget import Budget, BudgetTracker
from .cache import cache_key
from .capabilities import EndpointCapabilities
from .concurrency import ConcurrencyLimit, limit_concurrency
from .endpoint_calls import limit_endpoint
from .endpoint_limiter import EndpointLimiter
from .metering import meter, with_cost
from .timeout import enforce_deadline

__all__ = [
    "Budget",
    "BudgetTracker",
    "ConcurrencyLimit",
    "EndpointCapabilities",
    "EndpointLimiter",
    "cache_key",
    "enforce_deadline",
    "limit_concurrency",
    "limit_endpoint",
    "meter",
    "with_cost",
]
