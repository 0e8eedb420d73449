"""Put an endpoint's limiter around a model's call: wait for a slot, report how the call ended, and probe.

What the limiter repeats by itself (after an outage, after a very long Retry-After) is no failure to the caller.

A timeout may be caused by the request or by the endpoint. A very short request, the probe, tells which: while an endpoint
may be down because of timeouts, a call that is admitted sends the probe in place of its own request, and a call that
timed out while no other was answered has a probe sent at once. If the probe is answered, the request is at fault
(`ModelTimeoutError.endpoint_responsive`). If the endpoint is down for other reasons, a call is its own probe.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from ..errors import ModelError, ModelTimeoutError
from ..protocols import Call, Format, Reply, Request
from ..usage import NO_USAGE, Usage
from .call_costs import estimate_usage
from .endpoint_errors import is_busy, is_call_fault, is_fatal, is_server_response, may_be_refusal
from .endpoint_limiter import EndpointLimiter, Slot
from .metering import RESERVE_AGAIN


def limit_endpoint(call: Call, limiter: EndpointLimiter) -> Call:
    """Hold each call until the limiter admits it, and report to the limiter how it ended.

    The reply's usage includes that of attempts that the limiter repeated, as retries; each attempt is reserved in the budget.
    """
    answered_formats: set[Format] = set()

    async def call_limited(request: Request) -> Reply:
        reserve_again = RESERVE_AGAIN.get()
        token = RESERVE_AGAIN.set(None)  # it is for this call, not for those that a model makes in answering it
        try:
            return await call_until_settled(request, reserve_again)
        finally:
            RESERVE_AGAIN.reset(token)

    async def call_until_settled(request: Request, reserve_again: Callable[[Usage], Awaitable[Request]] | None) -> Reply:
        tokens = estimate_usage(request, None)["tokens"] if limiter.counts_tokens else 0.0
        spent, diagnosis = NO_USAGE, TimeoutDiagnosis(limiter)
        while True:
            slot = await limiter.acquire(tokens)
            if not slot.is_probe and diagnosis.is_call_fault:
                limiter.release()
                raise diagnosis.error_with_usage(spent)
            try:
                reply = await call(probe_request(request) if slot.is_probe else request)
            except ModelError as error:
                if slot.is_probe:
                    repeat = limiter.record_probe_failure(slot, error)
                else:
                    call_fault = is_call_fault(error, request, answered_formats)
                    if not call_fault and limiter.stops_on_fatal and limiter.use_probes and may_be_refusal(error):
                        call_fault = await answers_probe(call, limiter, request, error, reserve_again)
                    repeat = limiter.record_failure(slot, error, call_fault=call_fault)
                if not repeat:
                    diagnosis.mark_error(slot, error)
                    error.usage = (spent + error.usage).as_single_answer()
                    raise
                if not slot.is_probe:
                    diagnosis.record_failure(slot, error)
                used = error.usage
            except BaseException:
                limiter.release()
                raise
            else:
                limiter.record_success(slot, reply)
                if not slot.is_probe:
                    answered_formats.add(request.format)
                    return reply if spent is NO_USAGE else replace(reply, usage=(spent + reply.usage).as_single_answer())
                if diagnosis.is_call_fault:
                    raise diagnosis.error_with_usage(spent + reply.usage)
                used = reply.usage
            if reserve_again:
                request = await reserve_again(used)
            else:
                spent += used

    return call_limited


async def answers_probe(
    call: Call,
    limiter: EndpointLimiter,
    request: Request,
    error: ModelError,
    reserve_again: Callable[[Usage], Awaitable[Request]] | None,
) -> bool:
    """Whether an endpoint that refused a request answers a probe instead. `error.usage` becomes what is not settled yet."""
    try:
        if reserve_again:
            request, error.usage = await reserve_again(error.usage), NO_USAGE
        reply = await call(probe_request(request))
    except ModelError as failure:
        error.usage += failure.usage
        return is_server_response(failure) and not is_busy(failure) and not is_fatal(failure)
    except BaseException:
        limiter.release()
        raise
    error.usage += reply.usage
    return True


def probe_request(request: Request) -> Request:
    """Return the shortest possible request, without the parameters that `request` leaves out."""
    return Request(({"role": "user", "content": "Hi"},), max_tokens=1, unsupported_parameters=request.unsupported_parameters)


@dataclass(slots=True)
class TimeoutDiagnosis:
    """A call that timed out, while the limiter finds out whether its endpoint answers."""

    limiter: EndpointLimiter
    error: ModelError | None = None
    _slot: Slot | None = None
    _failures_before: int = 0

    def record_failure(self, slot: Slot, error: ModelError) -> None:
        """Record that the call failed and will be repeated."""
        self._slot, self._failures_before = slot, self.limiter.confirmed_failures
        self.error = error if isinstance(error, ModelTimeoutError) else None

    @property
    def is_call_fault(self) -> bool:
        """Whether the call timed out although the endpoint answered the next request."""
        return self.error is not None and self._failures_before == self.limiter.confirmed_failures

    def mark_error(self, slot: Slot, error: ModelError) -> None:
        """Set on the error whether the endpoint answers other calls."""
        if isinstance(error, ModelTimeoutError) and not slot.is_probe:
            error.endpoint_responsive = self.limiter.answers_others(slot)

    def error_with_usage(self, usage: Usage) -> ModelError:
        """Return the error to be raised, with the usage of all attempts."""
        assert self.error is not None
        assert self._slot is not None
        self.mark_error(self._slot, self.error)
        self.error.usage = usage.as_single_answer()
        return self.error
