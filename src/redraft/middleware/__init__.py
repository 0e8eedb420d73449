"""Wrappers: everything that is "also do X around each call".

Each takes an async function and returns one of the same shape, so they stack in any order; none knows of the others.
`retry`, `limit`, `timeout` and `observe` fit around any async function, `cache`, `meter`, `adapt` and `gated` around a
model call. They stand around the call and not around the step, because a step may make several calls (a re-ask, a
function that asks a model) and money is reserved for each.
"""

from .adapt import adapt
from .budget import Budget, Purse, meter, priced
from .cache import cache, key_of
from .capabilities import EndpointCapabilities
from .concurrency import Limiter, limit
from .endpoint_limiter import Gate, gated
from .observe import observe
from .retry import retry
from .timeout import timeout, until

__all__ = [
    "Budget",
    "EndpointCapabilities",
    "Gate",
    "Limiter",
    "Purse",
    "adapt",
    "cache",
    "gated",
    "key_of",
    "limit",
    "meter",
    "observe",
    "priced",
    "retry",
    "timeout",
    "until",
]
