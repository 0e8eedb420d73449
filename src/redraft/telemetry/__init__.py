"""OpenTelemetry: spans, evaluation events and metrics by the semantic conventions for generative
AI.

The rest of Redraft uses only the functions here, and the core only an `Observer`'s, which
this module is. They do nothing, and import nothing, until the program has configured OpenTelemetry:
`attributes` has what is said of a call, a step, a grade and a refinement, `recorder` says it,
`environment` configures the SDK for the command line, and `requests` records what the gateway is
asked.

- One span a refinement (`invoke_workflow refine`), one a step (`grade judge`) and one a model's
  call with all its retries (`chat MODEL`). A row of a batch is a trace of its own, linked to the
  span of the run.
- One event a grade (`gen_ai.evaluation.result`), under the call that wrote the answer.
- The histograms `gen_ai.client.operation.duration`, `gen_ai.client.operation.time_to_first_chunk`,
  `gen_ai.client.token.usage` and `http.server.request.duration`.

No prompt, answer, reason or message of an error is recorded unless
OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT asks for it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from ..errors import ModelError, error_name
from ..loop.trace import Trace
from ..protocols import Call, RecordSteps, Reply, Request

if TYPE_CHECKING:
    from .attributes import CallTarget
    from .recorder import Recorder

__all__ = [
    "ForwardedCall",
    "active_recorder",
    "begin_row",
    "continue_trace",
    "name_request",
    "outgoing_headers",
    "record_calls",
    "record_failed_attempt",
    "record_forwarded_call",
    "record_refinement",
    "record_run",
]


class RowOfRun(NamedTuple):
    """A row of a batch: the name of the run and its id in the data."""

    run: str
    row: str


# by https://www.w3.org/TR/trace-context
TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]([0-9a-f])"
)
"""The IDs of the trace and the span, and the last digit of the flags: odd if it is sampled."""
_ROW: ContextVar[RowOfRun | None] = ContextVar("row", default=None)


def active_recorder() -> Recorder | None:
    """Return what records; None unless the program has configured OpenTelemetry, which it cannot do
    without importing it.
    """
    if "opentelemetry" not in sys.modules:
        return None
    try:
        from .recorder import configured_recorder
    except ImportError:  # another package of that name, or a version without what is needed
        return None
    return configured_recorder()


def record_calls(call: Call, model: str, address: object, operation: str) -> Call:
    """Record each call of a model as a span and in the metrics."""

    def call_recorded(request: Request) -> Awaitable[Reply]:
        recorder = active_recorder()
        return (
            recorder.call(call, request, model, address, operation) if recorder else call(request)
        )

    return call_recorded


def record_failed_attempt(error: ModelError, wait: float | None) -> None:
    """Record an attempt of the current call that failed; the next one is made after `wait` seconds,
    or at a time that is not known.
    """
    if recorder := active_recorder():
        recorder.failed_attempt(error_name(error), error.status, wait)


@dataclass
class ForwardedCall:
    """A call of a model. `reply`: what it answered, once that has been read, without its text and
    tool calls unless `has_content`.

    `is_recorded`: whether anything is recorded, so that `reply` is wanted. `is_complete`: set once
    the whole reply is passed on; what ends the work after that is no error of the call.
    """

    reply: Reply | None = None
    is_recorded: bool = False
    is_complete: bool = False
    has_content: bool = False
    started: float = field(default_factory=perf_counter)
    seconds_to_first_chunk: float | None = None
    as_current: Callable[[], AbstractContextManager[object]] = field(
        default=nullcontext, repr=False
    )
    """Makes its span current meanwhile, so that the model's server is told of it."""

    def note_chunk(self) -> None:
        """Note that a part of a stream has arrived."""
        if self.seconds_to_first_chunk is None:
            self.seconds_to_first_chunk = perf_counter() - self.started


def record_forwarded_call(
    target: CallTarget, make_request: Callable[[bool], Request]
) -> AbstractContextManager[ForwardedCall]:
    """Record what happens meanwhile as a model's call whose request and reply are the client's own.
    `make_request` returns the request, given whether its messages are wanted.

    Its span is not current, so that an asynchronous generator may be suspended meanwhile; see
    `ForwardedCall.as_current`.
    """
    recorder = active_recorder()
    if recorder is None:
        return nullcontext(ForwardedCall())
    return recorder.forwarded_call(target, make_request(recorder.has_content))


def name_request(id: str, headers: Mapping[str, str]) -> str | None:
    """Write the ID of a request to the current span, as `redraft.trace_id`.

    Return the W3C ID of the trace to which the request belongs: that of the span, or the one in its
    `traceparent` if nothing is recorded here; None if there is neither.
    """
    if recorder := active_recorder():
        return recorder.name_request(id)
    sent = TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    return sent[1] if sent else None


def continue_trace(environ: Mapping[str, str]) -> AbstractContextManager[None]:
    """Record what happens meanwhile under the span that TRACEPARENT and TRACESTATE of an
    environment name.
    """
    recorder = active_recorder()
    headers = {name.lower(): value for name, value in environ.items()}
    return recorder.remote_context(headers) if recorder else nullcontext()


def record_refinement(
    latest: Callable[[], Trace],
    writer: str | None,
    fingerprint: Callable[[str], str],
) -> AbstractContextManager[RecordSteps]:
    """Record what happens meanwhile as the span of a refinement; its value makes its performer
    record its steps.

    `latest` returns the trace so far, `writer` is the name of the model that writes, and
    `fingerprint` returns a grader's by its name on the panel.
    """
    recorder = active_recorder()
    return (
        recorder.refinement(latest, writer, fingerprint, _ROW.get())
        if recorder
        else nullcontext(lambda perform: perform)
    )


def record_run(name: str) -> AbstractContextManager[None]:
    """Record what happens meanwhile as the span of a batch, to which the spans of its rows are
    linked.
    """
    recorder = active_recorder()
    return recorder.run(name) if recorder else nullcontext()


def begin_row(run: str, row: str) -> None:
    """Record the next refinement of this asyncio task as a row of a batch: a trace of its own."""
    if active_recorder():
        _ROW.set(RowOfRun(run, row))


def outgoing_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers of a request with `traceparent` for the current span, if there is one;
    nothing else is added.
    """
    recorder = active_recorder()
    return recorder.outgoing_headers(headers) if recorder else headers
