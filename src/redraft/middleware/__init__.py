"""Wrappers around each call: timeout, limits, budget, retry, cache.

Each wrapper takes an async function and returns one of the same shape, so wrappers can be stacked.
`concurrency.limit_concurrency`, `timeout.timeout` and `observe.observe` fit around any async
function; `retry.retry`, `cache.cache`, `metering.meter`, `adapt.adapt`,
`prompt_cuts.notice_cut_prompts` and `endpoint_limiter.limit_endpoint` fit around a model call.
These wrap the call and not the step, because one step may make several calls (a judge may be asked
again, a grader may call a model) and the budget is reserved for each; `clients.SessionClients` puts
the stack together. `shortage.wait_for_room` wraps a step.

A call is repeated in five places, each for its own reason:

- `retry`: a retryable error; this is where retries are decided and counted.
- `endpoint_limiter`: the whole endpoint is down or asks for a long pause; the call waits and is not
  counted as failed.
- `adapt`: the endpoint refused a part of the request; it is sent in another form.
- `metering`: the endpoint refused a `max_tokens` that the budget had set; half of it is tried.
- `shortage`: this machine lacks descriptors, memory, processes or threads for a step, whose calls
  are then made again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .adapt import EndpointCapabilities
    from .budget import Budget, BudgetTracker
    from .endpoint_limiter import EndpointLimiter, limit_endpoint
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "Budget": "budget",
            "BudgetTracker": "budget",
            "EndpointCapabilities": "adapt",
            "EndpointLimiter": "endpoint_limiter",
            "limit_endpoint": "endpoint_limiter",
        },
    )

__all__ = ["Budget", "BudgetTracker", "EndpointCapabilities", "EndpointLimiter", "limit_endpoint"]
