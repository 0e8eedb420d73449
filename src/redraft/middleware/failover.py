"""Several models in order: if one is out of service, the next one answers.

A model is out of service after an outage (see `endpoint_errors.is_out_of_service`) that its own
retries did not overcome, while it answered nobody else. Then no call is sent to it until it answers
a short probe, which one call at a time sends, after 1, 2, 4 ... 30 s. `Availability` has that state
for one model; all calls of a session share it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from time import monotonic

from ..base.log import endpoint_log, error_kind
from ..base.text import format_duration
from ..errors import ModelError
from ..protocols import Call, Reply, Request
from .circuit_breaker import CircuitBreaker
from .endpoint_errors import (
    EndpointDownError,
    is_busy,
    is_out_of_service,
    is_server_response,
)
from .endpoint_limiter import MAX_PAUSE, probe_request

MAX_REASON_CHARS = 200  # of the reason of an outage
PROBE_SECONDS = 10.0  # how long a probe may take


class Availability:
    """Whether a model is in service. `probe` sends a short request to it; None: the next call is
    the probe.

    `guard` wraps each request to the model, inside all limits, and `note_outage` is called with an
    error that no retry overcame. `notify` is called with a message when the model goes out of
    service or comes back.
    """

    # of a call to a model that another one can replace; batches retry more often otherwise
    max_retries = 3

    def __init__(
        self,
        name: str,
        notify: Callable[[str], object] | None = None,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.name, self._notify = name, notify
        self.probe: Call | None = None
        self.answers = 0
        self._clock = clock
        self._circuit = CircuitBreaker(clock, lambda _: None, failure_threshold=1)
        self._not_before = 0.0

    @property
    def is_down(self) -> bool:
        return self._circuit.is_open

    @property
    def description(self) -> str:
        """Why it is out of service, such as "openai:a did not answer: ModelUnavailableError (status
        503)".
        """
        return f"{self.name} did not answer: {self._circuit.last_error}"

    def guard(self, call: Call) -> Call:
        """Wrap the call that sends a request: while the model is out of service, raise
        EndpointDownError at once.
        """

        async def call_guarded(request: Request) -> Reply:
            if self.is_down and _PROBED.get() is not self:
                raise EndpointDownError(
                    f"{self.name} is out of service since {self._circuit.down_since}: "
                    f"{self._circuit.last_error}"
                )
            try:
                reply = await call(request)
            except ModelError as error:
                if is_server_response(error) and not is_busy(error):
                    self._note_answer()
                raise
            self._note_answer()
            return reply

        return call_guarded

    def _note_answer(self) -> None:
        self.answers += 1
        seconds = self._circuit.seconds_down
        if self._circuit.record_success():
            self._announce(f"back after {format_duration(seconds)}")

    def _announce(self, message: str) -> None:
        endpoint_log.warning("%s: %s", self.name, message)
        if self._notify:
            self._notify(f"{self.name}: {message}")

    def note_outage(self, error: ModelError, next_name: str, answers_before: int) -> None:
        """Take the model out of service, unless it has answered other calls since."""
        if isinstance(error, EndpointDownError) or (
            self.answers > answers_before and not self.is_down
        ):
            return
        was_down = self.is_down
        self._not_before = self._clock() + min(error.retry_after or 0.0, MAX_PAUSE)
        self._circuit.record_failure(error)
        if not was_down:
            self._announce(
                f"out of service after {self._circuit.last_error}; {next_name} answers instead"
            )

    async def call(self, call: Call, request: Request) -> Reply:
        """Make a call. If the model is out of service and a probe is due, send that first."""
        if not (
            self.is_down
            and self._circuit.seconds_to_probe() <= 0
            and self._clock() >= self._not_before
        ):
            return await call(request)
        self._circuit.start_probe()
        token = _PROBED.set(self)
        try:
            if self.probe is None:
                return await call(request)
            await self._send_probe(self.probe, request)
        finally:
            _PROBED.reset(token)
        return await call(request)

    async def _send_probe(self, probe: Call, request: Request) -> None:
        """Send a short request; `guard` puts the model back into service if it is answered."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await probe(probe_request(request))
        except (ModelError, TimeoutError):
            return


_PROBED: ContextVar[Availability | None] = ContextVar("probed", default=None)
"""The model to which the current call may send a request although it is out of service."""


@dataclass(frozen=True, slots=True)
class FailoverModel:
    """One of several models: its name, its call with all middleware, and whether it is in
    service.
    """

    name: str
    call: Call
    availability: Availability


def _reason(error: ModelError) -> str:
    """Return the kind of an outage, with the reason where no status says it, such as a refused
    connection.
    """
    kind, reason = error_kind(error), " ".join(str(error).split())[:MAX_REASON_CHARS]
    return kind if error.status or not reason or reason == kind else f"{kind}: {reason}"


def fail_over(models: Sequence[FailoverModel], last_name: str, last_call: Call) -> Call:
    """Return a call that each of the models answers if those before it are out of service; the last
    one has no `Availability`.

    The reply says which model answered (`by`) and why those before it did not (`note`). Errors that
    are no outage are raised.
    """

    async def call_first_in_service(request: Request) -> Reply:
        reasons: list[str] = []
        for n, model in enumerate(models):
            availability, answers_before = model.availability, model.availability.answers
            try:
                reply = await availability.call(model.call, request)
            except ModelError as error:
                if not is_out_of_service(error):
                    raise
                next_name = models[n + 1].name if n + 1 < len(models) else last_name
                availability.note_outage(error, next_name, answers_before)
                was_down = isinstance(error, EndpointDownError)
                reasons.append(
                    availability.description
                    if was_down
                    else f"{availability.name} did not answer: {_reason(error)}"
                )
                continue
            return replace(
                reply, by=model.name, note="; ".join(filter(None, [*reasons, reply.note]))
            )
        try:
            reply = await last_call(request)
        except ModelError as error:
            error.args = (f"{error} (before that, {'; '.join(reasons)})",)
            raise
        return replace(reply, by=last_name, note="; ".join(filter(None, [*reasons, reply.note])))

    return call_first_in_service
