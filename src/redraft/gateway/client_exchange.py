"""One request of a client, from its headers to the last byte of the reply, whichever protocol it
speaks.

Everything that can be refused is refused before the status is sent: the key, the request, the
profile, the load, the budget. From then on errors are events of the stream. When the client closes
the connection, the work is cancelled at once.

This is plain ASGI: `pass/NAME` has to be fast.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import sha256
from random import Random
from time import time
from traceback import extract_tb
from typing import Any, Protocol, TypeVar

from starlette.types import Message, Receive, Scope, Send

from ..base.jsontext import dumps
from ..base.log import log
from ..base.threads import run_in_thread_if_large
from ..loop.records import Failure
from ..telemetry import ForwardedCall, name_request, record_forwarded_call
from ..telemetry.attributes import call_target
from ..telemetry.requests import STATUS_KEY
from ..usage import CallLedger, Usage
from .admission import Admission
from .answer_memory import AnswerMemory
from .bodies import BodyParser
from .config import Retention, ServedModel
from .conversations import Conversations
from .exchange import Answer, GatewayError, Progress
from .forwarded_calls import OPERATIONS, reply_of, request_of
from .idempotency import RunsInFlight
from .ignored_fields import IgnoredFields, ignored_header
from .keys import Caller, KeyReservation, KeyStore
from .metrics import GatewayMetrics
from .neutral import Begin, Request, events_of
from .outcome import outcome_headers
from .passing import FORWARDED_HEADERS, ForwardedReply
from .prepared_requests import PreparedRequest
from .protocols.protocol import ClientProtocol
from .refining import ProfileRefiner, answer_request, forwarded_body
from .request_costs import MeteredRequest, refuse_routing
from .request_store import (
    CLIENT_WENT_AWAY,
    MAX_EXCHANGE_BYTES,
    RequestEnd,
    RequestRecorder,
    RequestStore,
)
from .request_table import RequestFacts, clean_request_id
from .routing import Routing, check_forwarding

T = TypeVar("T")
KEEP_ALIVE_SECONDS = 5.0
SENT_BYTES = 256 * 1024  # of a reply, at once
_READ_HEADERS = frozenset(
    {
        b"authorization",
        b"x-api-key",
        b"idempotency-key",
        b"traceparent",
        b"x-request-id",
        *(name.encode() for name in FORWARDED_HEADERS),
    }
)
JSON, EVENT_STREAM = b"application/json", b"text/event-stream"
_IDS = Random()  # seeded by the system; asking it for each ID takes longer than all else here
gateway_log = log.getChild("gateway")


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """The first item of the work for a request: it was admitted, and is stored with this ID."""

    trace_id: str


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """The second item of the work for a request that is passed on: the headers of the model's
    reply, and the fields of the request that the model did not get.
    """

    headers: Mapping[str, str]
    is_stream: bool
    ignored: tuple[str, ...] = ()


COMPLETE: Any = object()
"""The last item of a reply that is passed on, in the same turn of the event loop as the last part.
It is sent before the request is settled and recorded; by then the request is answered, whatever its
client does.
"""


CUT_OFF = GatewayError(
    503, "shutting_down", "the gateway ended before the request was answered", retry_after=5.0
)
BUG = RequestEnd(500, "internal_error")
INTERNAL_ERROR = GatewayError(
    500, "internal_error", "the gateway failed; its log says why", should_retry=False
)


def new_trace_id() -> str:
    """Return the ID of another request."""
    return f"req-{_IDS.getrandbits(128):032x}"


class ClientDisconnected(Exception):
    """The client closed the connection."""


class SharedServices(Protocol):
    """What all requests to a gateway share."""

    routing: Routing
    keys: KeyStore
    admission: Admission
    store: RequestStore
    metrics: GatewayMetrics
    runs: RunsInFlight[Any]
    bodies: BodyParser
    answers: AnswerMemory
    conversations: Conversations
    ignored: IgnoredFields
    is_draining: bool

    def finish(
        self,
        facts: RequestFacts,
        method: str,
        path: str,
        content: Mapping[str, str],
        notice: str = "",
    ) -> None:
        """Count and log a request that ended."""
        ...


@dataclass(slots=True)
class Work:
    """The work for a request. `end`: how the request ended; None while its client gets no whole
    answer.
    """

    end: RequestEnd | None = None


class ClientExchange:
    """One request of a client to one of the protocols, and its reply."""

    def __init__(
        self,
        gateway: SharedServices,
        protocol: ClientProtocol,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self.gateway, self.protocol, self.routing = gateway, protocol, gateway.routing
        self.scope, self._receive, self._send = scope, receive, send
        self.headers = {
            name.decode(): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in _READ_HEADERS
        }
        self.trace_id = new_trace_id()
        self.otel_trace_id = name_request(self.trace_id, self.headers)
        self.client_request_id = clean_request_id(self.headers.get("x-request-id", ""))
        self.admitted: AdmittedRequest | None = (
            None  # (of another request with the same idempotency key, perhaps)
        )
        self.caller: Caller | None = None
        self.metered: MeteredRequest | None = None
        self.notice = ""  # what the client is told besides the answer
        self.ignored: Mapping[str, str] = {}  # and of its fields that were left out
        self.model = ""
        self.raw = b""
        self.facts: RequestFacts | None = None
        self.content: dict[str, str] = {}
        self._held = 0  # bytes of answers
        self._is_started = self._is_complete = self._is_disconnected = self._is_over = False

    @property
    def label(self) -> str:
        """What logs, metrics and records call the kind of the request."""
        return self.protocol.name

    async def serve(self) -> None:
        """Answer the request, whatever happens."""
        self.gateway.metrics.request_started()
        self.routing.acquire()
        watcher: asyncio.Task[None] | None = None
        end, started_at = RequestEnd(200), asyncio.get_running_loop().time()
        try:
            await self._read_request()
            watcher = asyncio.ensure_future(self._watch(asyncio.current_task()))
            await self.answer_raw()
        except GatewayError as error:
            end = self._end_of(error)
            await self.fail(error)
        except ClientDisconnected:
            end = RequestEnd(CLIENT_WENT_AWAY)
        except asyncio.CancelledError:
            if not (self._is_disconnected or self.gateway.is_draining):
                raise
            _uncancel()
            end = self._end_of_cancellation
            if not self._is_disconnected:
                await self.fail(CUT_OFF)
        except Exception as failure:  # noqa: BLE001  (a bug here is reported, and ends this request alone)
            end = BUG
            gateway_log.error("request %s failed: %s", self.trace_id, describe_bug(failure))
            await self.fail(INTERNAL_ERROR)
        finally:
            if watcher:
                watcher.cancel()
            if self.caller and self._held:
                self.gateway.answers.free(self.caller.id, self._held)
            self._is_over = True
            seconds = asyncio.get_running_loop().time() - started_at
            self._record(end, seconds)
            await self.routing.release()

    async def _read_request(self) -> None:
        """Read the request, once its key is known. It counts for the limits of the key, unless it
        joins an equal one that counted.
        """
        self.caller = self.gateway.keys.authenticate(self.headers)
        runs, key = self.gateway.runs, self.headers.get("idempotency-key")
        if key is None or not runs.may_join_freely(key, self.caller.id):
            self.gateway.keys.count_request(self.caller)
            key = None
        self.raw = await self._read_body()
        if key and runs.body_hash(key, self.caller.id) != self._body_hash:
            self.gateway.keys.count_request(self.caller)

    def _end_of(self, error: GatewayError) -> RequestEnd:
        return RequestEnd(self.protocol.error_status(error), error.code, error.cause)

    @property
    def _end_of_cancellation(self) -> RequestEnd:
        """The end of a request that is cancelled: its client left, or the gateway ends."""
        is_cut_off = self.gateway.is_draining and not self._is_disconnected
        return self._end_of(CUT_OFF) if is_cut_off else RequestEnd(CLIENT_WENT_AWAY)

    async def answer_raw(self) -> None:
        """Answer the request. Raises GatewayError as long as nothing is sent."""
        await self.answer(await self.gateway.bodies.parse(self.raw))

    async def answer(self, body: Mapping[str, Any]) -> None:
        """Answer a request with this body. Raises GatewayError as long as nothing is sent."""
        assert self.caller
        self.model = body["model"] if isinstance(body.get("model"), str) else ""
        target = self.routing.find(body.get("model"), self.caller)
        body = self._sendable_body(body, target)
        if isinstance(target, ServedModel):
            await self._relay(self._passed_items(target, body, self.routing.retention(target)))
            return
        size = len(self.raw)
        request = await run_in_thread_if_large(size, self.protocol.read_request, body)
        served = check_forwarding(self.routing, request, target.profile)
        if served:
            retention = self.routing.retention(target)
            await self._relay(
                self._passed_items(served, forwarded_body(request, served), retention)
            )
            return
        prepared = await run_in_thread_if_large(
            size, target.prepare, request, self.trace_id, self.headers
        )
        self._note_ignored(prepared.writer.ignored)
        async with aclosing(await self._join_run(self._refined_items(target, prepared))) as items:
            self.admitted = await anext(items)
            if request.is_stream:
                await self._stream_answer(request, items)
            else:
                await self._send_answer(request, items)

    def _sendable_body(
        self, body: Mapping[str, Any], target: ProfileRefiner | ServedModel
    ) -> Mapping[str, Any]:
        """Return what may be sent of a body. Raises GatewayError 400 for what a client may not
        choose, or may not pay for.
        """
        refuse_routing(body)
        assert self.caller
        if not self.caller.limits.has_usd:
            return body
        self.metered = self.routing.meter(
            target, body, self.protocol.name, self.headers.get("anthropic-beta", "")
        )
        self.notice = self.metered.notice
        return self.metered.body

    # ---- the work, which several requests with one idempotency key share

    @cached_property
    def _body_hash(self) -> str:
        """What tells whether another request with this idempotency key is the same."""
        return sha256(self.scope["path"].encode() + b"\0" + self.raw).hexdigest()

    async def _join_run(self, items: AsyncGenerator[Any, None]) -> Any:
        """Return the items of the run in flight with the same idempotency key, or those given."""
        key = self.headers.get("idempotency-key")
        if key is None:
            return items
        assert self.caller
        reader = await self.gateway.runs.join(key, self.caller.id, self._body_hash, lambda: items)
        if reader.is_joined:
            await items.aclose()
        return reader

    async def _refined_items(
        self, target: ProfileRefiner, prepared: PreparedRequest
    ) -> AsyncGenerator[Any, None]:
        """Yield that a request is admitted, its progress, and its answer."""
        gateway, caller, request = self.gateway, self.caller, prepared.request
        assert caller
        async with gateway.admission.slot(caller.id):
            gateway.answers.check(caller.id)
            cost = self.routing.refine_cost(prepared, len(self.raw), self.metered)
            reservation = gateway.keys.reserve(caller, cost=cost, calls=prepared.max_calls)
            with self._settlement(reservation, lambda: prepared.usage, prepared) as work:
                retention = self.routing.retention(target)
                prepared.log.hold = self._hold
                prepared.log.store = recorder = self.begin(
                    request.model, retention, is_stored=request.is_stored
                )
                yield AdmittedRequest(self.trace_id)
                async with aclosing(answer_request(prepared)) as items:
                    async for item in items:
                        if isinstance(item, Answer):
                            await recorder.wait_for_commit()
                        # an answer is given once its client has read it, but for the last of it
                        yield item
                        if isinstance(item, Answer):
                            work.end = RequestEnd(
                                200,
                                score=item.outcome["score"],
                                iterations=item.outcome["iterations"],
                                stop=item.outcome["stop"],
                            )

    async def _passed_items(
        self, model: ServedModel, body: Mapping[str, Any], retention: Retention
    ) -> AsyncGenerator[Any, None]:
        """Yield that a request is admitted, the head of the model's reply, and the parts of its
        body.
        """
        gateway, caller, ledger = self.gateway, self.caller, CallLedger()
        assert caller
        async with gateway.admission.slot(caller.id):
            gateway.answers.check(caller.id, is_held=not body.get("stream"))
            cost = self._pass_cost(model, body)
            reservation = gateway.keys.reserve(caller, cost=cost, calls=1)
            received = bytearray()
            with self._settlement(reservation, lambda: ledger.total_usage) as work:
                recorder = self.begin(
                    self.model, retention, is_stored=body.get("store") is not False
                )
                yield AdmittedRequest(self.trace_id)
                with self._recorded_call(model, body) as call:
                    with call.as_current(), ledger:
                        reply = await self._forward(model, body)
                    try:
                        yield ReplyHead(reply.headers, reply.is_stream, reply.ignored)
                        has_content = recorder.keeps_texts or call.has_content
                        async for part in reply:
                            if reply.is_stream:
                                call.note_chunk()
                            if has_content and len(received) <= MAX_EXCHANGE_BYTES:
                                received += part
                            yield part
                        if reply.failure is None:
                            work.end, call.is_complete = RequestEnd(200), True
                        try:
                            yield COMPLETE
                        finally:
                            if work.end is not None:
                                recorder.record_exchange(
                                    self.raw, bytes(received), ledger.total_usage
                                )
                        reply.raise_failure()
                    finally:
                        if call.is_recorded:
                            call.reply = reply_of(
                                self.protocol.name,
                                reply.fields,
                                reply.usage,
                                bytes(received) if call.has_content else b"",
                                is_stream=reply.is_stream,
                            )
                        await reply.aclose()

    def _recorded_call(
        self, model: ServedModel, body: Mapping[str, Any]
    ) -> AbstractContextManager[ForwardedCall]:
        """Record what happens meanwhile as a call of a model."""
        operation = OPERATIONS.get(self.label, self.label)
        target = call_target(model.model, model.url, model.kind, operation)
        return record_forwarded_call(target, partial(request_of, self.protocol.name, body))

    def begin(self, model: str, retention: Retention, *, is_stored: bool) -> RequestRecorder:
        """Record that the work for the request starts."""
        assert self.caller
        return self.gateway.store.begin(
            self.trace_id,
            self.caller,
            model,
            self.label,
            retention,
            is_stored=is_stored,
            otel_trace_id=self.otel_trace_id,
            client_request_id=self.client_request_id,
        )

    def _pass_cost(self, model: ServedModel, body: Mapping[str, Any]) -> float | None:
        """Return what a request that is passed on may cost in USD; None without known prices."""
        return self.routing.pass_cost(model, self.protocol.name, body, len(self.raw), self.metered)

    async def _forward(self, model: ServedModel, body: Mapping[str, Any]) -> ForwardedReply:
        """Pass a request on. Raises GatewayError."""
        return await self.routing.passing.forward(
            model, self.protocol.name, body, headers=self.headers, size=len(self.raw)
        )

    @contextmanager
    def _settlement(
        self,
        reservation: KeyReservation,
        usage_of: Callable[[], Usage],
        prepared: PreparedRequest | None = None,
    ) -> Iterator[Work]:
        """Charge and record the work for a request, however it ends, and count the calls that
        failed.
        """
        work = Work()
        try:
            yield work
        except GatewayError as error:
            work.end = self._end_of(error)
            raise
        except Exception:
            work.end = BUG
            raise
        finally:
            end = work.end or self._end_of_cancellation
            self._settle(reservation, end, usage_of())
            self._count_failures(end.cause, prepared)

    def _settle(self, reservation: KeyReservation, end: RequestEnd, usage: Usage) -> None:
        """Charge and record a request, with what the operator asks for fields and tools in each
        call that used tokens.
        """
        if self.metered and self.metered.usd and usage.tokens and usage.cost is not None:
            usage = usage.with_cost(usage.cost + self.metered.usd * usage.calls)
        reservation.settle(usage)
        self.facts = self.gateway.store.finish(self.trace_id, replace(end, usage=usage))

    def _count_failures(self, cause: str, prepared: PreparedRequest | None) -> None:
        """Count the failed calls of a request, and their attempts that failed: those of a
        refinement; else the only one, if a call failed.
        """
        causes: Iterable[str] = (cause,)
        attempts: Mapping[str, int] = {cause: 1}
        if prepared:
            attempts = prepared.refinement.session.models.failed_attempts
            records = prepared.log.trace.records if prepared.log.trace else ()
            causes = (record.error for record in records if isinstance(record, Failure))
        self.gateway.metrics.failed_attempts(self.model, attempts)
        for each in causes:
            self.gateway.metrics.upstream_error(self.model, each)

    # ---- replies

    async def _relay(self, work: AsyncGenerator[Any, None]) -> None:
        """Send the reply of a model on, part by part if it is a stream."""
        async with aclosing(await self._join_run(work)) as items:
            self.admitted = await anext(items)
            head = await anext(items)
            self._note_ignored(head.ignored)
            headers = [
                (name.encode(), value.encode("latin-1")) for name, value in head.headers.items()
            ]
            if head.is_stream:
                await self._start(
                    200, [*headers, (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
                )
                async with self._errors_told(self.protocol.error_event):
                    async for part in parts_of(items):
                        await self._send_part(part)
                await self._finish()
            else:
                parts = []
                async for part in parts_of(items):
                    self._hold(len(part))
                    parts.append(part)
                await self._send_whole(
                    200, headers, parts[0] if len(parts) == 1 else b"".join(parts)
                )
            async for _ in items:  # what is left of the work is to record it
                pass

    async def _send_answer(self, request: Request, items: Any) -> None:
        """Send the answer to a request that reads no stream."""
        async for item in items:
            if isinstance(item, Answer):
                text = item.reply.text
                self._note_content(text)
                body = await run_in_thread_if_large(len(text), self._written_answer, request, item)
                described = outcome_headers(item.outcome)
                headers = [(name.encode(), value.encode()) for name, value in described.items()]
                await self._send_whole(200, [(b"content-type", JSON), *headers], body)

    def _written_answer(self, request: Request, answer: Answer) -> bytes:
        reply = self.protocol.write_reply(request, answer.reply, int(time()), answer.outcome)
        # a copy: `dumps` returns bytes that hold several times their length
        return bytes(memoryview(dumps(reply)))

    async def _stream_answer(self, request: Request, items: Any) -> None:
        """Send the answer to a request that reads a stream, with progress and keep-alives before
        it.
        """
        assert self.admitted
        stream = self.protocol.stream_writer(request, int(time()))
        await self._start(
            200,
            [
                (b"content-type", EVENT_STREAM),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),
            ],
        )
        await self._send_part(stream.write(Begin(self.admitted.trace_id, request.model)))
        async with self._errors_told(stream.fail):
            async for item in with_pauses(items, KEEP_ALIVE_SECONDS):
                match item:
                    case None:
                        await self._send_part(stream.keep_alive())
                    case Progress():
                        await self._send_part(stream.progress(item))
                    case Answer():
                        self._note_content(item.reply.text)
                        for n, event in enumerate(events_of(item.reply, item.outcome), 1):
                            await self._send_part(stream.write(event))
                            if n % 256 == 0:
                                await asyncio.sleep(0)  # (see `_send_whole`)
                        await self._finish()

    @asynccontextmanager
    async def _errors_told(
        self, event_of: Callable[[GatewayError], bytes]
    ) -> AsyncGenerator[None, None]:
        """Send an error of the block to the client, as an event of the stream that it reads."""
        try:
            yield
        except GatewayError as error:
            await self._send_part(event_of(error))
            raise
        except asyncio.CancelledError:
            if self.gateway.is_draining and not self._is_disconnected:
                await self._send_part(event_of(CUT_OFF))
            raise
        except Exception:
            await self._send_part(event_of(INTERNAL_ERROR))
            raise

    async def fail(self, error: GatewayError) -> None:
        """Send an error, unless the status is sent already: then the stream ends, which has told
        it.
        """
        if self._is_started:
            if not self._is_complete:
                await self._finish()
            return
        headers = [
            (name.encode(), value.encode("latin-1", "replace"))
            for name, value in error.reply_headers.items()
        ]
        body = dumps(self.protocol.error_body(error))
        await self._send_whole(
            self.protocol.error_status(error), [(b"content-type", JSON), *headers], body
        )

    async def _send_whole(
        self, status: int, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> None:
        await self._start(status, [*headers, (b"content-length", str(len(body)).encode())])
        last = max(0, len(body) - 1) // SENT_BYTES * SENT_BYTES
        # each waits until the client has read most of those before
        for start in range(0, last, SENT_BYTES):
            await self._send_part(body[start : start + SENT_BYTES])
            # what is sent to a client that leaves waits for nothing: it has to be noticed
            # meanwhile
            await asyncio.sleep(0)
        self._is_complete = True
        await self._send({"type": "http.response.body", "body": body[last:] if last else body})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._is_started = True
        if self.admitted:
            headers = [*headers, (b"x-redraft-trace-id", self.admitted.trace_id.encode())]
        if self.notice:
            headers = [*headers, (b"x-redraft-notice", self.notice.encode())]
        headers += [(name.encode(), value.encode()) for name, value in self.ignored.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _send_part(self, part: bytes) -> None:
        await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def _finish(self) -> None:
        self._is_complete = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    # ---- the client

    async def _read_body(self) -> bytes:
        message: Message = await self._receive()
        body: bytes = message.get("body", b"")
        parts = [body]
        while message["type"] == "http.request" and message.get("more_body"):
            message = await self._receive()
            parts.append(message.get("body", b""))
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        return body if len(parts) == 1 else b"".join(parts)

    async def _watch(self, task: asyncio.Task[Any] | None) -> None:
        """Cancel the work when the client closes the connection."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._is_complete and task:
            self._is_disconnected = True
            task.cancel()

    def _hold(self, size: int) -> None:
        """Count bytes of an answer until the request has ended. Raises GatewayError 503."""
        # a run that other requests have joined may go on for longer
        if self.caller and not self._is_over:
            self.gateway.answers.hold(self.caller.id, size)
            self._held += size

    def _note_ignored(self, names: tuple[str, ...]) -> None:
        """Tell the client, and once the log, which fields the model does not get."""
        if names and self.caller:
            self.ignored = ignored_header(names)
            self.gateway.ignored.log(self.caller.name or self.caller.id, self.model, names)

    def _note_content(self, answer: str) -> None:
        if self.routing.config.log_content:
            self.content = {"request": self.raw.decode("utf-8", "replace"), "answer": answer}

    def _record(self, end: RequestEnd, seconds: float) -> None:
        """Count and log the end of the request."""
        self.scope[STATUS_KEY] = end.status
        caller = self.caller
        facts = self.facts or RequestFacts(
            self.trace_id,
            time() - seconds,
            key_id=caller.id if caller else "",
            key_name=caller.name if caller else "",
            model=self.model,
            wire=self.label,
            status=end.status,
            error=end.error,
            cause=end.cause,
            calls=0,
            milliseconds=round(seconds * 1000, 3),
            otel_trace_id=self.otel_trace_id,
            client_request_id=self.client_request_id,
        )
        self.gateway.finish(
            facts, self.scope["method"], self.scope["path"], self.content, self.notice
        )


def describe_bug(failure: Exception) -> str:
    """Return the kind of an unexpected error and where it was raised, without its message, which
    may hold parts of a prompt.
    """
    places = [
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
        for frame in extract_tb(failure.__traceback__)[-3:]
    ]
    return f"{type(failure).__name__} at {', '.join(places)}"


async def parts_of(items: AsyncIterator[Any]) -> AsyncGenerator[bytes, None]:
    """Yield the parts of a reply that is passed on, up to the item after the last."""
    async for item in items:
        if item is COMPLETE:
            return
        yield item


async def with_pauses(
    items: AsyncGenerator[T, None], seconds: float
) -> AsyncGenerator[T | None, None]:
    """Yield the items, and None whenever none came for so many seconds.

    One task produces all of them, and closes them at the end: what they keep in context variables
    belongs to it.
    """
    queue: asyncio.Queue[T | BaseException | None] = asyncio.Queue(1)

    async def produce() -> None:
        try:
            async with aclosing(items):
                async for item in items:
                    await queue.put(item)
                    await queue.join()  # until it has been dealt with
            await queue.put(None)
        except asyncio.CancelledError:
            # else the task would keep the error, which keeps the frames that it passed, and one
            # of them the task
            pass
        except Exception as error:  # noqa: BLE001  (it is raised below)
            await queue.put(error)

    producer = asyncio.create_task(produce())
    try:
        while True:
            try:
                async with asyncio.timeout(seconds):
                    item = await queue.get()
            except TimeoutError:
                yield None
                continue
            if item is None:
                return
            if isinstance(item, BaseException):
                try:
                    raise item
                finally:
                    del item  # which keeps this frame
            yield item
            queue.task_done()
    finally:
        producer.cancel()
        await asyncio.wait({producer})


def _uncancel() -> None:
    """Let the current task go on after it was cancelled."""
    if task := asyncio.current_task():
        task.uncancel()
