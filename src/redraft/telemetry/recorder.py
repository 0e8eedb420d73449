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
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from threading import RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any

from opentelemetry import _logs, baggage, metrics, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.propagators.composite import CompositePropagator
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

from ..base.checks import one_of
from ..base.error_text import error_text
from ..base.log import error_kind
from ..base.masking import Mask, secrets_in_environment
from ..base.own_code import PACKAGE
from ..errors import MODEL_CAUSES, ModelError, error_name
from ..loop.records import Candidate, Failure, Feedback, Outcome, Record, StopReason
from ..loop.steps import Compare, Grade, Step, Stop
from ..loop.trace import Trace
from ..protocols import Call, Perform, RecordSteps, Reply, Request
from . import ForwardedCall
from . import attributes as say

if TYPE_CHECKING:
    from . import RowOfRun

CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
ON_SPANS = frozenset({"true", "span_only", "span_and_event"})
IN_EVENTS = frozenset({"event_only", "span_and_event"})
OPENINFERENCE_VARIABLE = "REDRAFT_OPENINFERENCE"
SETTINGS: Mapping[str, tuple[str, ...]] = {
    CONTENT_VARIABLE: ("true", "false", "span_only", "event_only", "span_and_event", "no_content"),
    OPENINFERENCE_VARIABLE: ("true", "false"),
}  # the variables that say what is recorded, and their values
IDENTITIES = ("session.id", "user.id")  # in baggage, or in a context as OpenInference sets them
# the API's own providers record nothing
API_PACKAGES = ("opentelemetry.trace", "opentelemetry.metrics", "opentelemetry._logs")
VERSION = str(sys.modules[PACKAGE].__version__)
_PROPAGATOR = TraceContextTextMapPropagator()
_INCOMING = CompositePropagator([_PROPAGATOR, W3CBaggagePropagator()])
# no error is recorded by the API: its message may quote a prompt
_as_current = partial(trace.use_span, record_exception=False, set_status_on_exception=False)


def configured_recorder() -> Recorder | None:
    """Return the recorder for what the program has configured; None if nothing records. Raises
    ConfigError for a value of SETTINGS that does not exist.
    """
    global _RECORDER  # noqa: PLW0603  (it is replaced when the program configures other providers)
    key = (
        trace.get_tracer_provider(),
        metrics.get_meter_provider(),
        _logs.get_logger_provider(),
        *(os.environ.get(name, "").strip().lower() for name in SETTINGS),
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
    """Records spans, events and metrics with the providers in `key`, as the values of SETTINGS in
    its last parts say.
    """

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.key = key
        self.send_spans: Callable[[], object] = getattr(key[0], "force_flush", int)
        """Has the provider of spans send those that have ended."""
        tracers, meters, loggers, content, openinference = key
        self.is_active = any(map(_records, (tracers, meters, loggers)))
        for name, value in zip(SETTINGS, (content, openinference), strict=True):
            if self.is_active and value:
                one_of(name, value, SETTINGS[name])
        self.content_on_spans, self.content_in_events = content in ON_SPANS, content in IN_EVENTS
        self.has_openinference = openinference == "true"
        self.has_values = self.has_openinference and self.content_on_spans
        self.tracer: trace.Tracer = tracers.get_tracer(PACKAGE, VERSION, say.SCHEMA_URL)
        is_logged = _records(loggers)
        self.logger: _logs.Logger | None = (
            loggers.get_logger(PACKAGE, VERSION, say.SCHEMA_URL) if is_logged else None
        )
        meter: metrics.Meter = meters.get_meter(PACKAGE, VERSION, say.SCHEMA_URL)
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
        self.seconds_to_first_chunk = meter.create_histogram(
            "gen_ai.client.operation.time_to_first_chunk",
            "s",
            "Time from the request to the first chunk of its reply.",
            explicit_bucket_boundaries_advisory=say.SECONDS_BUCKETS,
        )
        self.request_seconds = meter.create_histogram(
            "http.server.request.duration",
            "s",
            "Duration of HTTP server requests.",
            explicit_bucket_boundaries_advisory=say.REQUEST_BUCKETS,
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

    def start_span(
        self,
        name: str,
        attributes: say.Attributes,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Link] = (),
    ) -> Span:
        """Start a span, with the IDs of the user and the session that the current context names,
        and its kind by OpenInference if the program wants that.
        """
        named: Mapping[str, object] = {**get_current(), **baggage.get_all()}
        more = {name: say.clean(named[name], 200) for name in IDENTITIES if named.get(name)}
        if self.has_openinference:
            more["openinference.span.kind"] = say.openinference_kind(attributes)
        return self.tracer.start_span(name, context, kind, {**attributes, **more}, links)

    # ---- calls

    async def call(
        self, call: Call, request: Request, model: str, address: object, operation: str
    ) -> Reply:
        """Make a call, and record it."""
        target = say.call_target(model, address, operation=operation)
        with self.forwarded_call(target, request) as made, made.as_current():
            made.reply = reply = await call(request)
            made.seconds_to_first_chunk = reply.first_chunk_seconds
            if step := _CURRENT_STEP.get():
                step.span = trace.get_current_span().get_span_context()
                step.response_id = reply.response_id
        return reply

    @contextmanager
    def forwarded_call(self, target: say.CallTarget, request: Request) -> Iterator[ForwardedCall]:
        """Record a call whose request and reply are passed on."""
        kind = SpanKind.CLIENT if target.host else SpanKind.INTERNAL
        span = self.start_span(target.span_name, say.request_attributes(target, request), kind=kind)
        as_current = partial(_as_current_call, span, target)
        call = ForwardedCall(is_recorded=True, has_content=self.has_content, as_current=as_current)
        try:
            yield call
            call.is_complete = True
        except BaseException as error:
            if not call.is_complete:
                self._end_call(span, target, request, call, error)
                is_attempt = isinstance(error, Exception) and not isinstance(error, ModelError)
                if is_attempt and error_name(error) in MODEL_CAUSES:
                    with call.as_current():
                        status = getattr(error, "upstream_status", None)
                        self.failed_attempt(error_name(error), status, None)
                self.end_with_error(span, error)
            raise
        finally:
            if call.is_complete:
                self._end_call(span, target, request, call)
                span.end()

    def failed_attempt(self, cause: str, status: int | None, wait: float | None) -> None:
        """Record an attempt of the current call that failed as an event of its span, and count it.
        The next one is made after `wait` seconds.
        """
        values = {say.ERROR_TYPE: cause, say.HTTP_STATUS: status, "redraft.retry.wait": wait}
        trace.get_current_span().add_event(say.FAILED_ATTEMPT_EVENT, say.without_unknown(values))
        target = _CURRENT_TARGET.get()
        common = target.attributes if target else {}
        self.failed_attempts.add(1, common | {say.ERROR_TYPE: cause})

    def _end_call(
        self,
        span: Span,
        target: say.CallTarget,
        request: Request,
        call: ForwardedCall,
        error: BaseException | None = None,
    ) -> None:
        """Measure a call that has ended, and record what it said: of itself on its span, and its
        messages where content is wanted, on its span, in an event, or in both.

        What a server says of itself, such as its model's name, would make a series of its own each
        time.
        """
        common, reply, first = target.attributes, call.reply, call.seconds_to_first_chunk
        self.seconds.record(
            perf_counter() - call.started,
            common | ({say.ERROR_TYPE: say.clean(error_name(error))} if error else {}),
        )
        answered = say.reply_attributes(reply) if reply else {}
        if isinstance(error, ModelError):
            answered |= say.token_attributes(error.usage)
        if first is not None:
            self.seconds_to_first_chunk.record(first, common)
            answered["gen_ai.response.time_to_first_chunk"] = first
        for kind in () if error else ("input", "output"):
            if isinstance(count := answered.get(f"gen_ai.usage.{kind}_tokens"), int):
                self.tokens.record(count, common | {"gen_ai.token.type": kind})
        span.set_attributes(answered)
        if self.has_content:
            answer = (
                say.answer_data(reply.text, reply.tool_calls, reply.finish_reason) if reply else []
            )
            content = self._set_messages(span, say.message_data(request.messages), answer)
            if self.content_in_events and self.logger:
                self.logger.emit(
                    event_name=say.DETAILS_EVENT,
                    attributes={**say.request_attributes(target, request), **answered, **content},
                    context=trace.set_span_in_context(span),
                    severity_number=_logs.SeverityNumber.DEBUG,
                )

    def name_request(self, id: str) -> str | None:
        """Write the ID of a request to the current span; return the ID of its trace, if it has
        one.
        """
        span = trace.get_current_span()
        span.set_attribute("redraft.trace_id", id)
        current = span.get_span_context()
        return f"{current.trace_id:032x}" if current.is_valid else None

    def _set_messages(
        self, span: Span, asked: list[Any], answer: list[Any]
    ) -> dict[str, list[Any]]:
        """Return messages by their names, without secrets; set them on a span, if content is wanted
        there, and on that of the request to a server that they answer.
        """
        content = {
            f"gen_ai.{name}.messages": self.mask.mask_json(messages)
            for name, messages in (("input", asked), ("output", answer))
            if messages
        }
        if self.content_on_spans:
            span.set_attributes({name: say.as_json(value) for name, value in content.items()})
        if self.has_values:
            parent = trace.get_current_span()
            is_request = getattr(parent, "kind", None) is SpanKind.SERVER
            for each in (span, parent) if is_request else (span,):
                self.set_values(each, asked or None, answer or None)
        return content

    def set_values(self, span: Span, *values: Any) -> None:
        """Set what went into the work of a span and what came of it, as OpenInference names them:
        texts, or what becomes JSON; None for what there is not.
        """
        for name, value in zip(("input", "output"), self.mask.mask_json(values), strict=True):
            if value is not None and span.is_recording():
                is_text = isinstance(value, str)
                text = say.clean(value, say.MAX_CONTENT) if is_text else say.as_json(value)
                kind = "text/plain" if is_text else "application/json"
                span.set_attributes({f"{name}.value": text, f"{name}.mime_type": kind})

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
        context = Context() if row else None
        span = self.start_span("invoke_workflow refine", attributes, context, links=links)
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
            answer = []
            if best := ended.best:
                finish = "length" if best.truncated else "stop"
                answer = say.answer_data(best.text, best.tool_calls, finish)
            asked = say.message_data(ended.task.messages)
            self._set_messages(span, asked, answer)

    @contextmanager
    def run(self, name: str) -> Iterator[None]:
        """Record the span of a batch, as the current one."""
        attributes = {**say.workflow_attributes("batch"), "redraft.run.name": say.clean(name)}
        with self._work("invoke_workflow batch", attributes):
            yield

    @contextmanager
    def request(
        self, method: str, path: str, scheme: str, *, is_route: bool
    ) -> Iterator[say.Attributes]:
        """Record the span of a request to a server, as the current one, and its duration. The value
        takes what is said of the reply.
        """
        attributes = say.http_attributes(method, path, scheme, is_route=is_route)
        series = {name: value for name, value in attributes.items() if name != "url.path"}
        verb, started = attributes["http.request.method"], perf_counter()
        name = f"{verb} {path}" if is_route else str(verb)
        try:
            with self._work(name, attributes, SpanKind.SERVER) as span:
                try:
                    yield series
                finally:
                    span.set_attributes(series)
                status = series.get(say.HTTP_STATUS)
                if isinstance(status, int) and status >= 500:
                    self._set_error(span, str(status))
                    series[say.ERROR_TYPE] = str(status)
        except BaseException as error:
            series[say.ERROR_TYPE] = error_name(error)
            raise
        finally:
            self.request_seconds.record(perf_counter() - started, series)

    @contextmanager
    def _work(
        self, name: str, attributes: say.Attributes, kind: SpanKind = SpanKind.INTERNAL
    ) -> Iterator[Span]:
        """Record what happens meanwhile as the current span, which ends with its error."""
        span = self.start_span(name, attributes, kind=kind)
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
        kind = error_name(error)
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
        token = attach(_INCOMING.extract(headers, get_current()) if propagates() else get_current())
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
                return _with_span(await perform(step), self.span.get_span_context())
            fingerprint = (
                self.fingerprint(step.grader) if isinstance(step, Grade | Compare) else None
            )
            attributes = say.step_attributes(step, fingerprint)
            span = self.recorder.start_span(say.step_name(step), attributes, parent)
            try:
                record, made_by = await _perform_as_current(span, perform(step))
            except BaseException as error:
                self.recorder.end_with_error(span, error)
                raise
            return self._end(step, record, span, made_by, fingerprint)

        return perform_recorded

    def _end(
        self, step: Step, record: Record, span: Span, made_by: CallOfStep, fingerprint: str | None
    ) -> Record:
        """End the span of a step; return its record, a grade with the span that it belongs to."""
        span.set_attributes(say.record_attributes(record))
        if self.recorder.has_values:
            self.recorder.set_values(span, *say.step_content(step, record))
        if isinstance(record, Candidate):
            self.sources[record.id] = (
                made_by if made_by.span else CallOfStep(span.get_span_context())
            )
        if isinstance(step, Grade):
            grader = next((each for each in self.latest().panel if each.name == step.grader), None)
            event = say.evaluation_attributes(step, record, grader, fingerprint)
            source = self.sources.get(step.candidate.id, CallOfStep())
            self.recorder.evaluation(event, record, source, span)
            record = _with_span(record, source.span or span.get_span_context())
        if isinstance(record, Failure):
            self.recorder.end_with_failure(span, record)
        else:
            span.end()
        return record


def _with_span(record: Record, span: SpanContext) -> Record:
    """Return a grade or an outcome with the span that shows it, if there is one."""
    if not isinstance(record, Feedback | Failure | Outcome) or not span.is_valid:
        return record
    ids = f"{span.trace_id:032x}-{span.span_id:016x}"
    return replace(record, traceparent=f"00-{ids}-{span.trace_flags:02x}")


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


@contextmanager
def _as_current_call(span: Span, target: say.CallTarget) -> Iterator[None]:
    """Make the span of a call current meanwhile."""
    token = _CURRENT_TARGET.set(target)
    try:
        with _as_current(span):
            yield
    finally:
        _CURRENT_TARGET.reset(token)


def _records(provider: object) -> bool:
    """Whether a provider is more than what the API has before one is configured."""
    return not type(provider).__module__.startswith(API_PACKAGES)


def propagates() -> bool:
    """Whether trace contexts are taken from requests and sent with them: unless OTEL_PROPAGATORS
    leaves `tracecontext` out.
    """
    return "tracecontext" in os.environ.get("OTEL_PROPAGATORS", "tracecontext").lower()
