"""Says in OpenTelemetry what happens: `Recorder`. This module is imported only once the program has
imported OpenTelemetry.

A span is made current (attached to the context) only around an awaited call, in the task that
awaits it, and never while an asynchronous generator is suspended: the task that continues it may be
another. The span of a refinement, which is such a generator, is therefore passed to its steps as
their parent.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import RLock
from time import perf_counter
from typing import TYPE_CHECKING

from opentelemetry import _logs, metrics, trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ..base.error_text import error_text
from ..base.log import error_kind
from ..base.masking import Mask, secrets_in_environment
from ..base.own_code import PACKAGE
from ..errors import CAUSES, ModelError, error_name, is_model_cause
from ..loop.records import Candidate, Failure, Feedback, Record, StopReason
from ..loop.steps import Compare, Grade, Step, Stop
from ..loop.trace import Trace
from ..protocols import Call, Perform, RecordSteps, Reply, Request
from ..usage import Usage
from . import ForwardedCall
from . import attributes as say

if TYPE_CHECKING:
    from . import RowOfRun

CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
ON_SPANS = frozenset({"true", "1", "span_only", "span_and_event"})
IN_EVENTS = frozenset({"event_only", "span_and_event"})
# the API's own providers record nothing
API_PACKAGES = ("opentelemetry.trace", "opentelemetry.metrics", "opentelemetry._logs")
VERSION = str(sys.modules[PACKAGE].__version__)
_PROPAGATOR = TraceContextTextMapPropagator()
# no error is recorded by the API: its message may quote a prompt
_as_current = partial(trace.use_span, record_exception=False, set_status_on_exception=False)


def configured_recorder() -> Recorder | None:
    """Return the recorder for what the program has configured; None if nothing records."""
    global _RECORDER  # noqa: PLW0603  (it is replaced when the program configures other providers)
    key = (
        trace.get_tracer_provider(),
        metrics.get_meter_provider(),
        _logs.get_logger_provider(),
        os.environ.get(CONTENT_VARIABLE, "").strip().lower(),
    )
    with _LOCK:  # two recorders would count twice
        if _RECORDER is None or _RECORDER.key != key:
            _RECORDER = Recorder(key)
        return _RECORDER if _RECORDER.is_active else None


@dataclass(slots=True)
class CallOfStep:
    """The last answered call of a step: its span, and the ID of the response."""

    span: SpanContext | None = None
    response_id: str = ""


_CURRENT_STEP: ContextVar[CallOfStep | None] = ContextVar("current_step", default=None)
_CURRENT_TARGET: ContextVar[say.CallTarget | None] = ContextVar("current_target", default=None)


class Recorder:
    """Records spans, events and metrics with the providers in `key`, and content as its last part
    says.
    """

    def __init__(
        self, key: tuple[trace.TracerProvider, metrics.MeterProvider, _logs.LoggerProvider, str]
    ) -> None:
        self.key = key
        tracers, meters, loggers, content = key
        self.is_active = any(_records(provider) for provider in key[:3])
        self.content_on_spans, self.content_in_events = content in ON_SPANS, content in IN_EVENTS
        self.tracer = tracers.get_tracer(PACKAGE, VERSION)
        self.logger = loggers.get_logger(PACKAGE, VERSION) if _records(loggers) else None
        meter = meters.get_meter(PACKAGE, VERSION)
        self.seconds = meter.create_histogram(
            "gen_ai.client.operation.duration",
            "s",
            "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=say.SECONDS_BUCKETS,
        )
        self.tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=say.TOKEN_BUCKETS,
        )
        self.failed_attempts = meter.create_counter(
            "redraft.client.failed_attempts",
            "{attempt}",
            "Attempts to call a model that failed, retried ones included.",
        )

    @property
    def has_content(self) -> bool:
        """Whether prompts, answers and reasons are recorded anywhere."""
        return self.content_on_spans or self.content_in_events

    @cached_property
    def mask(self) -> Mask:
        """Masks the secrets of the environment in content."""
        return Mask(secrets_in_environment(os.environ))

    # ---- calls

    async def call(
        self, call: Call, request: Request, model: str, address: object, operation: str
    ) -> Reply:
        """Make a call, and record it."""
        target = say.call_target(model, address, operation=operation)
        attributes = say.request_attributes(target, request)
        with self.forwarded_call(target, attributes) as made, made.as_current():
            token = _CURRENT_TARGET.set(target)
            try:
                reply = await call(request)
            finally:
                _CURRENT_TARGET.reset(token)
            made.usage, span = reply.usage, trace.get_current_span()
            span.set_attributes(say.reply_attributes(reply))
            if self.has_content:
                self._record_messages(span, attributes, request, reply)
            if step := _CURRENT_STEP.get():
                step.span, step.response_id = span.get_span_context(), reply.response_id
        return reply

    @contextmanager
    def forwarded_call(
        self, target: say.CallTarget, attributes: say.Attributes | None = None
    ) -> Iterator[ForwardedCall]:
        """Record a call whose request and reply are passed on. `attributes`: what is known of it
        besides its target.
        """
        span = self.tracer.start_span(
            target.span_name,
            kind=SpanKind.CLIENT if target.host else SpanKind.INTERNAL,
            attributes=attributes or target.attributes,
        )
        started, call = perf_counter(), ForwardedCall(as_current=partial(_as_current, span))
        try:
            yield call
            call.is_complete = True
        except BaseException as error:
            if not call.is_complete:
                self._measure(target, perf_counter() - started, error=_cause_of(error))
                if isinstance(error, ModelError):
                    span.set_attributes(say.token_attributes(error.usage))
                elif is_model_cause(cause := _cause_of(error)):  # no attempt follows this one
                    self.record_attempt(span, target, say.attempt_attributes(cause))
                self.end_with_error(span, error)
            raise
        finally:
            if call.is_complete:
                self._measure(target, perf_counter() - started, call.usage)
                span.set_attributes(say.token_attributes(call.usage) if call.usage else {})
                span.end()

    def failed_attempt(self, error: ModelError, wait: float | None) -> None:
        """Record an attempt of the current call that failed."""
        attributes = say.attempt_attributes(error_name(error), error.status, wait)
        self.record_attempt(trace.get_current_span(), _CURRENT_TARGET.get(), attributes)

    def record_attempt(
        self, span: Span, target: say.CallTarget | None, attributes: say.Attributes
    ) -> None:
        """Record an attempt that failed as an event of the call's span, and count it."""
        span.add_event(say.FAILED_ATTEMPT_EVENT, attributes)
        common = target.attributes if target else {}
        self.failed_attempts.add(1, common | {say.ERROR_TYPE: attributes[say.ERROR_TYPE]})

    def _measure(
        self, target: say.CallTarget, seconds: float, usage: Usage | None = None, error: str = ""
    ) -> None:
        """Measure a call. What a server says of itself, such as its model's name, would make a
        series of its own each time.
        """
        common = target.attributes
        self.seconds.record(seconds, common | ({say.ERROR_TYPE: say.clean(error)} if error else {}))
        counts = {"input": usage.input_tokens, "output": usage.output_tokens} if usage else {}
        for kind, count in counts.items():
            if count is not None:
                self.tokens.record(count, common | {"gen_ai.token.type": kind})

    def name_request(self, id: str) -> str | None:
        """Write the ID of a request to the current span; return the ID of its trace, if it has
        one.
        """
        span = trace.get_current_span()
        span.set_attribute("redraft.trace_id", id)
        current = span.get_span_context()
        return f"{current.trace_id:032x}" if current.is_valid else None

    def _record_messages(
        self, span: Span, attributes: say.Attributes, request: Request, reply: Reply
    ) -> None:
        """Record the messages of a call where content is wanted: on its span, in an event, or in
        both.
        """
        content = {
            "gen_ai.input.messages": self.mask.mask_json(say.message_data(request.messages)),
            "gen_ai.output.messages": self.mask.mask_json(
                say.answer_data(reply.text, reply.tool_calls, reply.finish_reason)
            ),
        }
        if self.content_on_spans:
            span.set_attributes({name: say.as_json(value) for name, value in content.items()})
        if self.content_in_events and self.logger:
            details = attributes | say.reply_attributes(reply) | content
            self.logger.emit(
                event_name=say.DETAILS_EVENT,
                attributes=details,
                context=trace.set_span_in_context(span),
                severity_number=_logs.SeverityNumber.DEBUG,
            )

    # ---- refinements

    @contextmanager
    def refinement(
        self,
        latest: Callable[[], Trace],
        writer: str | None,
        fingerprint: Callable[[str], str],
        row: RowOfRun | None,
    ) -> Iterator[RecordSteps]:
        """Record the span of a refinement, and yield what makes its performer record its steps."""
        if _CURRENT_STEP.get() is not None:  # a grader that refines: part of the row that it grades
            row = None
        attributes = say.refinement_attributes(latest(), writer, *(row or ()))
        ambient = trace.get_current_span().get_span_context()
        links = [Link(ambient)] if row and ambient.is_valid else []
        span = self.tracer.start_span(
            "invoke_workflow refine", Context() if row else None, attributes=attributes, links=links
        )
        steps = RefinementSteps(self, span, latest, fingerprint)
        try:
            yield steps.record
        except BaseException as error:
            self._finish(span, latest())
            if isinstance(error, asyncio.CancelledError | GeneratorExit | KeyboardInterrupt):
                span.set_attribute("redraft.stop", str(StopReason.CANCELLED))
            self.end_with_error(span, error)
            raise
        ended = latest()
        self._finish(span, ended)
        if kind := say.outcome_error(ended):
            self._set_error(span, kind)
        span.end()

    def _finish(self, span: Span, ended: Trace) -> None:
        """Record how a refinement ended."""
        if not span.is_recording():
            return
        span.set_attributes(say.outcome_attributes(ended))
        if self.content_on_spans:
            span.set_attribute(
                "gen_ai.input.messages",
                say.as_json(self.mask.mask_json(say.message_data(ended.task.messages))),
            )
            if best := ended.best:
                answer = say.answer_data(
                    best.text, best.tool_calls, "length" if best.truncated else "stop"
                )
                span.set_attribute(
                    "gen_ai.output.messages", say.as_json(self.mask.mask_json(answer))
                )

    @contextmanager
    def run(self, name: str) -> Iterator[None]:
        """Record the span of a batch, as the current one."""
        attributes: say.Attributes = {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.agent.name": "batch",
            "redraft.run.name": say.clean(name),
        }
        with self._work("invoke_workflow batch", attributes):
            yield

    @contextmanager
    def request(self, method: str, path: str, is_route: bool) -> Iterator[Callable[[int], None]]:  # noqa: FBT001
        """Record the span of a request to a server, as the current one; yield what tells it the
        status of the reply.
        """
        attributes = say.http_attributes(method, path, is_route=is_route)
        verb = attributes["http.request.method"]
        name = f"{verb} {path}" if is_route else str(verb)
        with self._work(name, attributes, SpanKind.SERVER) as span:

            def set_status(status: int) -> None:
                span.set_attribute("http.response.status_code", status)
                if status >= 500:
                    self._set_error(span, str(status))

            yield set_status

    @contextmanager
    def _work(
        self, name: str, attributes: say.Attributes, kind: SpanKind = SpanKind.INTERNAL
    ) -> Iterator[Span]:
        """Record what happens meanwhile as the current span, which ends with its error."""
        span = self.tracer.start_span(name, kind=kind, attributes=attributes)
        try:
            with _as_current(span):
                yield span
        except BaseException as error:
            self.end_with_error(span, error)
            raise
        span.end()

    # ---- grades

    def evaluation(
        self, attributes: say.Attributes, record: Record, source: CallOfStep, step_span: Span
    ) -> None:
        """Record the evaluation event of a grade under the span of what it grades.

        A program that has no logger provider gets it as an event of the grade's own span.
        """
        if source.response_id:
            attributes["gen_ai.response.id"] = say.clean(source.response_id)
        if self.has_content and isinstance(record, Feedback) and record.reason:
            attributes["gen_ai.evaluation.explanation"] = self.mask(
                say.clean(record.reason, say.MAX_CONTENT)
            )
        if self.logger is None:
            step_span.add_event(say.EVALUATION_EVENT, attributes)
            return
        evaluated = NonRecordingSpan(source.span) if source.span else step_span
        self.logger.emit(
            event_name=say.EVALUATION_EVENT,
            attributes=attributes,
            context=trace.set_span_in_context(evaluated),
            severity_number=_logs.SeverityNumber.INFO,
        )

    # ---- errors

    def end_with_error(self, span: Span, error: BaseException) -> None:
        """End a span with an error. Its message, which may quote a prompt or an answer, is
        content.
        """
        kind = _cause_of(error)
        text = error_kind(error) if isinstance(error, ModelError) else kind
        if self.has_content:
            text = self.mask(say.clean(error_text(error), say.MAX_CHARS))
        self._set_error(span, kind, text)
        span.end()

    def _set_error(self, span: Span, kind: str, text: str | None = None) -> None:
        span.set_attribute(say.ERROR_TYPE, say.clean(kind))
        span.set_status(Status(StatusCode.ERROR, say.clean(text or kind)))

    def end_with_failure(self, span: Span, failure: Failure) -> None:
        """End the span of a step that failed."""
        status = f" (status {failure.status})" if failure.status else ""
        message = self.mask(say.clean(failure.message)) if self.has_content else ""
        self._set_error(span, failure.error, message or f"{failure.error}{status}")
        span.end()

    # ---- the context of other services

    @contextmanager
    def remote_context(self, headers: Mapping[str, str]) -> Iterator[None]:
        """Make the span that a request names current meanwhile."""
        token = attach(
            _PROPAGATOR.extract(headers, get_current()) if propagates() else get_current()
        )
        try:
            yield
        finally:
            detach(token)

    def outgoing_headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return headers with `traceparent`, unless they have one."""
        if not trace.get_current_span().get_span_context().is_valid or not propagates():
            return headers
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return {**carrier, **headers}


_RECORDER: Recorder | None = None
_LOCK = RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )


@dataclass
class RefinementSteps:
    """Records the steps of one refinement under its span."""

    recorder: Recorder
    span: Span
    latest: Callable[[], Trace]
    fingerprint: Callable[[str], str]
    sources: dict[int, CallOfStep] = field(default_factory=dict)  # of the candidates

    def record(self, perform: Perform) -> Perform:
        """Record each step that is performed as a span."""
        parent = trace.set_span_in_context(self.span)

        async def perform_recorded(step: Step) -> Record:
            if isinstance(step, Stop):
                return await perform(step)
            fingerprint = (
                self.fingerprint(step.grader) if isinstance(step, Grade | Compare) else None
            )
            attributes = say.step_attributes(step, fingerprint)
            span = self.recorder.tracer.start_span(
                say.step_name(step), parent, attributes=attributes
            )
            try:
                record, made_by = await _perform_as_current(span, perform(step))
            except BaseException as error:
                self.recorder.end_with_error(span, error)
                raise
            self._end(step, record, span, made_by, fingerprint)
            return record

        return perform_recorded

    def _end(
        self, step: Step, record: Record, span: Span, made_by: CallOfStep, fingerprint: str | None
    ) -> None:
        span.set_attributes(say.record_attributes(record))
        if isinstance(record, Candidate):
            self.sources[record.id] = (
                made_by if made_by.span else CallOfStep(span.get_span_context())
            )
        if isinstance(step, Grade):
            grader = next((each for each in self.latest().panel if each.name == step.grader), None)
            event = say.evaluation_attributes(step, record, grader, fingerprint)
            self.recorder.evaluation(
                event, record, self.sources.get(step.candidate.id, CallOfStep()), span
            )
        if isinstance(record, Failure):
            self.recorder.end_with_failure(span, record)
        else:
            span.end()


async def _perform_as_current(span: Span, work: Awaitable[Record]) -> tuple[Record, CallOfStep]:
    """Await the work of a step as the current span; return its record with the last call that was
    answered.
    """
    made_by = CallOfStep()
    token = _CURRENT_STEP.set(made_by)
    try:
        with _as_current(span):
            return await work, made_by
    finally:
        _CURRENT_STEP.reset(token)


def _cause_of(error: BaseException) -> str:
    """Return the cause of an error: its own, if it is one for a client of the gateway."""
    if not isinstance(error, Exception):  # an interruption
        return "CancelledError"
    cause = str(getattr(error, "cause", ""))
    return cause if cause in CAUSES else error_name(error)


def _records(provider: object) -> bool:
    """Whether a provider is more than what the API has before one is configured."""
    return not type(provider).__module__.startswith(API_PACKAGES)


def propagates() -> bool:
    """Whether trace contexts are taken from requests and sent with them: unless OTEL_PROPAGATORS
    leaves `tracecontext` out.
    """
    return "tracecontext" in os.environ.get("OTEL_PROPAGATORS", "tracecontext").lower()
