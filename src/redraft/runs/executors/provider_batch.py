"""Calls through a provider's batch API: `BatchEndpoints` takes the place of `LimitedEndpoints`.

Rows run in this process as usual, but a call is put into the queue of its model instead of being
sent, and waits. When every row under way waits, each queue is submitted as a batch; each answer
resumes its row, and the next calls of the rows make up the next batch. It does not matter which
requests share a batch: an answer is identified by the cache key of its request.

Before a batch is created it is saved in the journal (`SubmissionLog`), where it stays until all
rows have received their answers. After a crash the next process finds the batches there, takes
their answers, and submits nothing twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from time import monotonic
from typing import Any, NoReturn, TypeVar

from ...base.log import error_summary
from ...errors import ConfigError, ModelError, StoreError
from ...middleware import BudgetTracker
from ...middleware.cache import cache_key
from ...middleware.endpoint_errors import is_fatal, refused_part
from ...middleware.endpoint_limiter import MAX_PAUSE
from ...middleware.messages import has_images
from ...models import Chat, connect
from ...models.openai_batches import (
    STATUSES,
    BatchClient,
    BatchItemResult,
    ProviderBatch,
    missing_answer_error,
)
from ...protocols import FORMATS, Call, Model, Reply, Request
from ...session.session import Session
from ...settings import EndpointLimits
from ...storage.journal import Journal
from ...usage import current_entry
from ..endpoints import ROW, CallGate
from ..progress import BatchProgress
from ..row_key import short_hash
from .batch_queue import (
    MAX_REQUESTS,
    ModelQueue,
    QueuedRequest,
    SubmissionLog,
    SubmittedBatch,
)

ROWS = 10_000  # rows under way at a time
# seconds between two checks of a batch: at first, at most, and their growth factor
POLL, MAX_POLL, POLL_GROWTH = (1.0, 60.0, 1.5)
MAX_IDLE = 60.0  # seconds after which a batch is submitted although a row makes no call

T = TypeVar("T")


@dataclass(frozen=True)
class BatchedModel:
    """A chat model whose calls go out in batches."""

    chat: Chat
    complete: Call
    formats = FORMATS

    @property
    def name(self) -> str:
        return self.chat.name

    @property
    def identity(self) -> str:
        return self.chat.identity

    @property
    def base_url(self) -> str:
        return self.chat.base_url

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self.chat.tools

    @property
    def tool_choice(self) -> Any:
        return self.chat.tool_choice


@dataclass
class BatchEndpoints:
    """Endpoints with a batch API. A call has no timeout, except that an endpoint may be silent only
    for `limits.give_up_after` s.

    Calls `halt(reason, message, detail)` if an endpoint has failed for good, and `say` with
    messages about batches. `poll` is the time between two checks of a batch, in seconds.
    """

    limits: EndpointLimits
    halt: Callable[[str, str, str], object]
    say: Callable[[str], object]
    journal: Journal
    run: str
    progress: BatchProgress
    poll: float = POLL
    has_all_rows: bool = True  # if not, answers that no row has asked for are kept for a later run
    free_slots = MAX_REQUESTS
    limit = MAX_REQUESTS
    gate: CallGate = field(default_factory=CallGate)
    submissions: SubmissionLog = field(init=False)
    queues: dict[str, ModelQueue] = field(default_factory=dict)
    calls_by_row: Counter[str] = field(default_factory=Counter)  # that wait for an answer
    active: dict[str, tuple[SubmittedBatch, ProviderBatch | None]] = field(default_factory=dict)
    error_message: str = ""
    _billed: dict[str, float] = field(default_factory=dict)
    _events: int = 0
    _answered: list[str] = field(default_factory=list)  # batches whose answers have arrived
    _recovered: list[str] = field(default_factory=list)  # the same, of earlier processes
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.submissions = SubmissionLog(self.journal, self.run)

    # ---- for the run

    def session(self, session: Session) -> Session:
        """Return the session with models that call these endpoints."""
        # the job starts twice as many rows
        options = replace(session.options, max_in_flight=ROWS // 2, timeout=None)
        return Session(
            options,
            session.writer,
            session.graders,
            session.judge,
            session.limit_calls,
            connect=self._connect,
            watch=self._watch,
        )

    def hold(self, call: Call, model: Model, *, has_fallback: bool = False) -> Call:
        """Return a model's call behind the gate."""
        return partial(self.gate.enter, call)

    @property
    def in_flight(self) -> int:
        return self.gate.in_flight

    @property
    def calls_made(self) -> int:
        return self.gate.calls_made

    async def wait_for_free_slots(self) -> None:
        """Do nothing: a queue has no slots."""

    async def wait_until_quiet(self) -> None:
        await self.gate.wait_until_quiet()

    @property
    def state(self) -> str:
        """The batches under way and the last error of the endpoint, for people."""
        return "; ".join(
            [
                *(_describe(*each) for each in self.active.values()),
                *filter(None, [self.error_message]),
            ]
        )

    def spent_if_killed(self, tracker: BudgetTracker) -> dict[str, float]:
        """Return what was spent. Waiting calls do not count: a resumed run makes them again, and
        reserves for them then.
        """
        if not (self.gate.closed and self._billed):
            self._billed = dict(tracker.spent)
        return self._billed

    def close(self, *, now: bool = False) -> None:
        """Let no further call start, and wait for none: the next run takes the answers of batches
        at the provider.
        """
        if not self.gate.closed:
            for batch in (
                batch for _, batch in self.active.values() if batch and not batch.is_ended
            ):
                self.say(
                    f"batch {batch.id} continues at the provider; the same command takes its "
                    "answers"
                )
        for task in self._tasks:
            task.cancel()
        self.gate.close(now=True)

    async def aclose(self) -> None:
        """Stop all background tasks; remove batches from the log whose answers no row will ask for
        any more.
        """
        if not self.gate.closed and not self.active:
            with suppress(StoreError):
                self._drop_delivered()
                self.submissions.drop(self._recovered if self.has_all_rows else ())
        self.close(now=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- a call

    def _connect(self, model: Any) -> Any:
        chat = as_chat(connect(model))
        return BatchedModel(chat, partial(self._complete, self._queue(chat)))

    def _watch(self, call: Call) -> Call:
        async def watch(request: Request) -> Reply:
            row = ROW.get()
            self.calls_by_row[row] += 1
            self._start_loop()
            try:
                return await call(request)
            finally:
                self._events += 1
                self.calls_by_row[row] -= 1
                if not self.calls_by_row[row]:
                    del self.calls_by_row[row]

        return watch

    async def _complete(self, queue: ModelQueue, request: Request) -> Reply:
        self._events += 1
        entry = current_entry()
        # a call that is cancelled while it waits is counted by the process that resumes the run
        entry.start_counting()
        key = cache_key(queue.batches.chat.identity, request)
        answer = queue.unclaimed.pop(key, None) or await self._wait_for(queue, key, request)
        entry.count_request()
        try:
            return queue.batches.parse_reply(answer)
        except ModelError as error:
            is_fault_of_row = (
                error.inferred
                or refused_part(error, request)
                or (error.status == 404 and has_images(request.messages))
            )
            if is_fatal(error) and not is_fault_of_row:
                await self._give_up("fatal", error)
            raise

    async def _wait_for(self, queue: ModelQueue, key: str, request: Request) -> BatchItemResult:
        item = queue.request(key, request)
        waiter: asyncio.Future[BatchItemResult] = asyncio.get_running_loop().create_future()
        item.waiters.append(waiter)
        if queue.is_full and queue.can_submit:
            self._submit_queue(queue)
        try:
            return await waiter
        finally:
            item.waiters.remove(waiter)

    def _queue(self, model: Chat) -> ModelQueue:
        if model.identity not in self.queues:
            name = short_hash(model.identity)
            recovered = [
                submitted for submitted in self.submissions.open.values() if submitted.model == name
            ]
            self.queues[model.identity] = ModelQueue(BatchClient(model), name, recovered)
        return self.queues[model.identity]

    # ---- submission

    def _start_loop(self) -> None:
        if not self._tasks and not self.gate.closed:
            self._start(self._submit_regularly())

    async def _submit_regularly(self) -> None:
        """Submit the queues when every row waits, or when nothing has happened for MAX_IDLE
        seconds.
        """
        seen, since = None, monotonic()
        while True:
            await asyncio.sleep(min(self.poll, POLL) / 4)
            now = self._events, self.progress.under_way, self.progress.remaining
            if now != seen:
                seen, since = now, monotonic()
            elif self._all_rows_wait:
                self._drop_delivered()
                self._submit_all()
            elif monotonic() - since > MAX_IDLE:
                self._submit_all()

    def _drop_delivered(self) -> None:
        """Drop answered batches from the log. Every row waits for its next answer or has ended: the
        journal has the earlier ones.

        Answers of earlier processes that no row has asked for yet stay: this one may have only some
        of the rows.
        """
        self.submissions.drop(self._answered)
        self._answered.clear()
        if self._recovered and not any(queue.unclaimed for queue in self.queues.values()):
            self.submissions.drop(self._recovered)
            self._recovered.clear()

    @property
    def _all_rows_wait(self) -> bool:
        """Whether every row that can be under way is, and waits for an answer."""
        rows, left = self.progress.under_way, self.progress.remaining
        return len(self.calls_by_row) >= rows and (
            rows >= ROWS or (left is not None and left <= rows)
        )

    def _submit_all(self) -> None:
        for queue in self.queues.values():
            if queue.recovered and not queue.recovering:
                queue.recovering = True
                self._start(self._recover(queue))
            while queue.can_submit:
                self._submit_queue(queue)

    def _submit_queue(self, queue: ModelQueue) -> None:
        if items := queue.take():
            self._start(self._run_batch(queue, items))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.halt(
                "disk" if isinstance(error, StoreError) else "fatal",
                error_summary(error),
                str(error),
            )

    # ---- one batch

    async def _run_batch(self, queue: ModelQueue, items: list[QueuedRequest]) -> None:
        """Submit requests as a batch, and deliver the answers."""
        submitted = self.submissions.begin(queue.model, len(items))
        self.active[submitted.id] = submitted, None
        await self.submissions.save(submitted)
        file = await self._retry(partial(queue.batches.upload, [item.line for item in items]))
        batch = await self._create(queue, file, submitted)
        batch = await self._follow(queue, submitted, batch)
        if batch.error and is_fatal(error := missing_answer_error(batch.error)):
            await self._give_up("fatal", error)
        max_requests = queue.max_requests
        queue.requeue_unanswered(items, batch)
        if queue.max_requests < max_requests:
            self.say(
                f"batch {batch.id} was too large; now at most {queue.max_requests:,} requests a "
                "batch, one at a time"
            )

    async def _create(
        self, queue: ModelQueue, file: str, submitted: SubmittedBatch
    ) -> ProviderBatch:
        """Create a batch. After an error, check first whether the batch was created
        nevertheless.
        """
        metadata, is_repeated = self.submissions.metadata(submitted), False

        async def create() -> ProviderBatch:
            nonlocal is_repeated
            existing = await queue.batches.find_by_metadata(metadata) if is_repeated else None
            is_repeated = True
            return existing or await queue.batches.create(file, metadata)

        return await self._retry(create)

    async def _recover(self, queue: ModelQueue) -> None:
        """Take the answers of batches that earlier processes have submitted, in the order of
        submission.
        """
        for submitted in list(queue.recovered):
            if batch := await self._retry(partial(self._find, queue, submitted)):
                await self._follow(queue, submitted, batch, recovered=True)
            else:
                self.submissions.drop([submitted.id])
            queue.recovered.remove(submitted)
            self._events += 1

    async def _find(self, queue: ModelQueue, submitted: SubmittedBatch) -> ProviderBatch | None:
        if submitted.batch is None:
            return await queue.batches.find_by_metadata(self.submissions.metadata(submitted))
        try:
            return await queue.batches.retrieve(submitted.batch)
        except ModelError as error:
            if error.status != 404:
                raise
            self.say(
                f"batch {submitted.batch} does not exist any more: its requests are made again"
            )
            return None

    async def _follow(
        self,
        queue: ModelQueue,
        submitted: SubmittedBatch,
        batch: ProviderBatch,
        *,
        recovered: bool = False,
    ) -> ProviderBatch:
        """Poll a batch until it has ended, and deliver its answers."""
        submitted, pause = replace(submitted, batch=batch.id), self.poll
        await self.submissions.save(submitted)
        while not batch.is_ended:
            self.active[submitted.id] = submitted, batch
            await asyncio.sleep(max(pause, min(batch.retry_after or 0.0, MAX_PAUSE)))
            pause = min(POLL_GROWTH * pause, MAX_POLL)
            batch = await self._retry(partial(queue.batches.retrieve, batch.id))
        self.active[submitted.id] = submitted, batch
        for file in batch.files:
            await self._deliver(queue, file, recovered=recovered)
        del self.active[submitted.id]
        (self._recovered if recovered else self._answered).append(submitted.id)
        return batch

    async def _deliver(self, queue: ModelQueue, file: str, *, recovered: bool) -> None:
        """Deliver the answers in a file, each once, even if the download is repeated. A file that
        is gone has no answers.
        """
        delivered_count = 0

        async def download() -> None:
            nonlocal delivered_count
            n = 0
            try:
                async with aclosing(queue.batches.download_results(file)) as answers:
                    async for key, answer in answers:
                        n += 1
                        if n > delivered_count:
                            delivered_count = n
                            self._events += 1
                            queue.deliver(key, answer, keep=recovered)
            except ModelError as error:
                if error.status != 404:
                    raise

        await self._retry(download)

    # ---- errors of the endpoint

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call. Repeat it until an error is final, or `limits.give_up_after`
        seconds have passed.
        """
        since, pause = inf, self.poll
        while True:
            try:
                result = await call()
            except ModelError as error:
                if not error.retryable:
                    await self._give_up("fatal", error)
                since = min(since, monotonic())
                if monotonic() - since > self.limits.give_up_after:
                    await self._give_up("outage", error)
                self.error_message = error_summary(error)
                await asyncio.sleep(max(pause, min(error.retry_after or 0.0, MAX_PAUSE)))
                pause = min(2 * pause, MAX_POLL)
            else:
                self.error_message = ""
                return result

    async def _give_up(self, reason: str, error: ModelError) -> NoReturn:
        """End the run, and wait until cancelled."""
        self.halt(reason, error_summary(error), str(error))
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")


def as_chat(model: Model) -> Chat:
    """Return the model if its endpoint can have a batch API. Raises ConfigError."""
    if isinstance(model, Chat):
        return model
    raise ConfigError(
        "engine 'provider-batch' needs models behind an OpenAI-compatible URL with a batch API, "
        f"such as openai:NAME or http://host/v1#NAME; got {model.name!r}"
    )


def check_batch_model(call: Call, model: Model, *, has_fallback: bool = False) -> Call:
    """Return the call unchanged. Raises ConfigError for a model whose endpoint cannot have a batch
    API, and for several models.
    """
    if has_fallback:
        raise ConfigError("engine: a provider batch asks one model, so `model` cannot be a list")
    as_chat(model)
    return call


def _describe(submitted: SubmittedBatch, batch: ProviderBatch | None) -> str:
    known = (
        batch.status.replace("_", " ")
        if batch and batch.status in STATUSES
        else "in an unknown state"
    )
    status = f"{batch.id} {known} ({batch.answered_count:,} done)" if batch else "being submitted"
    return f"batch {submitted.number}: {submitted.requests:,} requests, {status}"
