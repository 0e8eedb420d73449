"""Waves: the calls of a run by a provider's batch API, in place of one request each.

Rows run in the ordinary engine. Only where a call would leave for its endpoint it goes into the wave of its model instead,
and waits. When every row under way waits, the waves go out, one batch each; every answer wakes its row, and what
the rows ask next is the next wave. Nothing depends on what went out together: answers are known by the key of their call.

What was sent is in the journal before its answers are waited for (see `lanes`), and stays there until every row has gone on
with them: a process that was killed finds the batches of the one before it, and sends nothing twice.
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

from ..errors import ConfigError, ModelError, StoreError
from ..ledger import current_entry
from ..middleware import BudgetTracker
from ..middleware.cache import cache_key
from ..middleware.endpoint_limiter import MAX_PAUSE, is_fatal
from ..middleware.messages import has_images
from ..middleware.refusals import refused_part
from ..models import Chat, connect
from ..models.openai_batches import BatchClient, BatchItemResult, ProviderBatch, missing_answer_error
from ..perform import ModelClient
from ..protocols import FORMATS, Call, Model, Reply, Request
from ..session import Session
from ..storage.journal import Journal
from .endpoints import ROW, Endpoints
from .keys import short
from .lanes import REQUESTS, Item, Lane, Ledger, Sent, because
from .progress import Progress

ROWS = 10_000  # under way at once
POLL, SLOWEST, SLOWER = 1.0, 60.0, 1.5  # seconds between two looks at a batch: at first, at most, and how that grows
PATIENCE = 60.0  # seconds for which a row that asks nothing holds up a wave

T = TypeVar("T")


@dataclass(frozen=True)
class Waved:
    """A chat model that is asked by way of its waves."""

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
class Watched(Session):
    """A desk whose models are `waved`, and where every call is watched from its beginning, whatever it waits for: money, say,
    or the same call of another row.
    """

    waved: Callable[[Any], Waved] = field(kw_only=True)
    watch: Callable[[Call], Call] = field(kw_only=True)
    _watched: dict[int, tuple[Any, ModelClient]] = field(default_factory=dict)

    def line(self, model: Any) -> ModelClient:
        if id(model) not in self._watched:
            line = super().client_for(self.waved(model))
            self._watched[id(model)] = model, replace(line, call=self.watch(line.call))
        return self._watched[id(model)][1]


@dataclass
class Waves(Endpoints):
    """Endpoints that are asked in waves. A call waits as long as it takes: its timeout does not count, `limits.outage` does."""

    journal: Journal = field(kw_only=True)
    run: str = field(kw_only=True)
    progress: Progress = field(kw_only=True)
    poll: float = field(default=POLL, kw_only=True)
    ledger: Ledger = field(init=False)
    lanes: dict[str, Lane] = field(default_factory=dict)
    asking: Counter[str] = field(default_factory=Counter)  # calls under way, by row
    shown: dict[str, tuple[Sent, ProviderBatch | None]] = field(default_factory=dict)
    trouble: str = ""
    _billed: dict[str, float] = field(default_factory=dict)
    _news: int = 0
    _read: list[str] = field(default_factory=list)  # waves whose answers have come
    _found: list[str] = field(default_factory=list)  # the same, of an earlier process
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.journal, self.run)

    # ---- what the run sees

    def watched(self, desk: Session) -> Session:
        """The desk as this needs it, before anybody is seated there."""
        options = replace(desk.options, max_in_flight=ROWS // 2, timeout=None)  # (the engine has twice as many rows under way)
        return Watched(options, desk.writer, desk.graders, desk.judge, desk.limit_calls, waved=self._waved, watch=self._watch)

    def hold(self, call: Call, model: Model) -> Call:
        """A model's call, as long as calls may begin."""
        return partial(self._through_the_door, call)

    @property
    def limit(self) -> int:
        return REQUESTS

    @property
    def state(self) -> str:
        """The waves that are out, and what stands in their way."""
        return "; ".join([*(_said(*each) for each in self.shown.values()), *filter(None, [self.trouble])])

    def billed(self, purse: BudgetTracker) -> dict[str, float]:
        """Without what waits: a process that goes on from here asks for the same, and reserves it then."""
        if not (self._closed and self._billed):
            self._billed = dict(purse.spent)
        return self._billed

    def close(self, *, now: bool = False) -> None:
        """Let no call begin any more, and wait for none: the batches that are out can be waited for another time."""
        if not self._closed:
            for batch in (batch for _, batch in self.shown.values() if batch and not batch.is_ended):
                self.say(f"batch {batch.id} goes on at the provider; the same command takes its answers")
        for task in self._tasks:
            task.cancel()
        super().close(now=True)

    async def aclose(self) -> None:
        """The end of the run."""
        if not self._closed and not self.shown:
            with suppress(StoreError):
                self.ledger.drop([*self._read, *self._found])
        self.close(now=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- a call

    def _waved(self, model: Any) -> Waved:
        chat = as_chat(connect(model))
        return Waved(chat, partial(self._asked, self._lane(chat)))

    def _watch(self, call: Call) -> Call:
        async def watched(request: Request) -> Reply:
            row = ROW.get()
            self.asking[row] += 1
            self._begin()
            try:
                return await call(request)
            finally:
                self._news += 1
                self.asking[row] -= 1
                if not self.asking[row]:
                    del self.asking[row]

        return watched

    async def _asked(self, lane: Lane, request: Request) -> Reply:
        self._news += 1
        entry = current_entry()
        entry.start_counting()  # cut off while it waits, it is asked, and counted, by the process that goes on from here
        key = cache_key(lane.batches.chat.identity, request)
        answer = lane.early.pop(key, None) or await self._waited(lane, key, request)
        entry.count_request()
        try:
            return lane.batches.parse_reply(answer)
        except ModelError as error:
            if is_fatal(error) and not (refused_part(error, request) or (error.status == 404 and has_images(request.messages))):
                await self._give_up("fatal", error)
            raise

    async def _waited(self, lane: Lane, key: str, request: Request) -> BatchItemResult:
        item = lane.item(key, request)
        waiter: asyncio.Future[BatchItemResult] = asyncio.get_running_loop().create_future()
        item.waiting.append(waiter)
        if lane.full and lane.free:
            self._send(lane)
        try:
            return await waiter
        finally:
            item.waiting.remove(waiter)

    def _lane(self, model: Chat) -> Lane:
        if model.identity not in self.lanes:
            name = short(model.identity)
            left = [sent for sent in self.ledger.open.values() if sent.model == name]
            self.lanes[model.identity] = Lane(BatchClient(model), name, left)
        return self.lanes[model.identity]

    # ---- when waves go out

    def _begin(self) -> None:
        if not self._tasks and not self._closed:
            self._start(self._keep_watch())

    async def _keep_watch(self) -> None:
        """Send what waits when nobody can go on without it; when nothing has happened for long, don't wait for those who could."""
        seen, since = None, monotonic()
        while True:
            await asyncio.sleep(min(self.poll, POLL) / 4)
            now = self._news, self.progress.under_way, self.progress.left
            if now != seen:
                seen, since = now, monotonic()
            elif self._stuck:
                self._forget()
                self._send_all()
            elif monotonic() - since > PATIENCE:
                self._send_all()

    def _forget(self) -> None:
        """Every row has gone on with the answers that came, so that they are in the journal."""
        self.ledger.drop(self._read)
        self._read.clear()
        if self._found and not any(lane.early for lane in self.lanes.values()):
            self.ledger.drop(self._found)
            self._found.clear()

    @property
    def _stuck(self) -> bool:
        """Whether every row that can be under way is, and waits for an answer."""
        rows, left = self.progress.under_way, self.progress.left
        return len(self.asking) >= rows and (rows >= ROWS or (left is not None and left <= rows))

    def _send_all(self) -> None:
        for lane in self.lanes.values():
            if lane.left and not lane.recovering:
                lane.recovering = True
                self._start(self._recover(lane))
            while lane.free:
                self._send(lane)

    def _send(self, lane: Lane) -> None:
        if items := lane.take():
            self._start(self._carry(lane, items))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.halt("disk" if isinstance(error, StoreError) else "fatal", str(error) or type(error).__name__)

    # ---- one wave

    async def _carry(self, lane: Lane, items: list[Item]) -> None:
        """A wave from here to the provider, until its answers are with those who asked."""
        sent = self.ledger.begin(lane.model, len(items))
        self.shown[sent.wave] = sent, None
        await self.ledger.put(sent)
        file = await self._patiently(partial(lane.batches.upload, [item.line for item in items]))
        batch = await self._patiently(self._creation(lane, file, sent))
        batch = await self._follow(lane, sent, batch)
        if batch.error and is_fatal(error := missing_answer_error(batch.error)):
            await self._give_up("fatal", error)
        most = lane.most
        lane.missed(items, batch)
        if lane.most < most:
            self.say(f"batch {batch.id}{because(batch)}; from now on at most {lane.most:,} requests a wave, one after another")

    def _creation(self, lane: Lane, file: str, sent: Sent) -> Callable[[], Awaitable[ProviderBatch]]:
        """What makes a batch. Called again, it looks first whether the last time succeeded after all."""
        metadata, again = self.ledger.metadata(sent), False

        async def create() -> ProviderBatch:
            nonlocal again
            known = await lane.batches.find_by_metadata(metadata) if again else None
            again = True
            return known or await lane.batches.create(file, metadata)

        return create

    async def _recover(self, lane: Lane) -> None:
        """Take the answers of what an earlier process has sent, in the order of sending."""
        for sent in list(lane.left):
            if batch := await self._patiently(partial(self._sought, lane, sent)):
                await self._follow(lane, sent, batch, early=True)
            else:
                self.ledger.drop([sent.wave])
            lane.left.remove(sent)
            self._news += 1

    async def _sought(self, lane: Lane, sent: Sent) -> ProviderBatch | None:
        if sent.batch is None:
            return await lane.batches.find_by_metadata(self.ledger.metadata(sent))
        try:
            return await lane.batches.retrieve(sent.batch)
        except ModelError as error:
            if error.status != 404:
                raise
            self.say(f"batch {sent.batch} is not there any more: what it was to answer is asked again")
            return None

    async def _follow(self, lane: Lane, sent: Sent, batch: ProviderBatch, *, early: bool = False) -> ProviderBatch:
        """Look at a batch until it has ended, and take its answers."""
        sent, pause = replace(sent, batch=batch.id), self.poll
        await self.ledger.put(sent)
        while not batch.is_ended:
            self.shown[sent.wave] = sent, batch
            await asyncio.sleep(max(pause, min(batch.retry_after or 0.0, MAX_PAUSE)))
            pause = min(SLOWER * pause, SLOWEST)
            batch = await self._patiently(partial(lane.batches.retrieve, batch.id))
        self.shown[sent.wave] = sent, batch
        for file in batch.files:
            await self._take(lane, file, early=early)
        del self.shown[sent.wave]
        (self._found if early else self._read).append(sent.wave)
        return batch

    async def _take(self, lane: Lane, file: str, *, early: bool) -> None:
        """Deliver the answers in a file, each once, however often the connection breaks."""
        taken = 0

        async def read() -> None:
            nonlocal taken
            n = 0
            async with aclosing(lane.batches.download_results(file)) as answers:
                async for key, answer in answers:
                    n += 1
                    if n > taken:
                        taken = n
                        self._news += 1
                        lane.deliver(key, answer, early=early)

        await self._patiently(partial(_unless_gone, read))

    # ---- when the endpoint is in trouble

    async def _patiently(self, do: Callable[[], Awaitable[T]]) -> T:
        """The result, however often it takes: until the endpoint has not answered for `limits.outage` seconds, or says no."""
        since, pause = inf, self.poll
        while True:
            try:
                result = await do()
            except ModelError as error:
                if not error.retryable:
                    await self._give_up("fatal", error)
                since = min(since, monotonic())
                if monotonic() - since > self.limits.outage:
                    await self._give_up("outage", error)
                self.trouble = str(error)
                await asyncio.sleep(max(pause, min(error.retry_after or 0.0, MAX_PAUSE)))
                pause = min(2 * pause, SLOWEST)
            else:
                self.trouble = ""
                return result

    async def _give_up(self, ended: str, error: ModelError) -> NoReturn:
        self.halt(ended, str(error))
        await _never()


def as_chat(model: Model) -> Chat:
    """The model, if it can have a batch API. Raises ConfigError."""
    if isinstance(model, Chat):
        return model
    raise ConfigError(
        "engine 'provider-batch' needs models behind an OpenAI-compatible URL with a batch API, "
        f"such as openai:NAME or http://host/v1#NAME; got {model.name!r}"
    )


def rehearsed(call: Call, model: Model) -> Call:
    """The call, which will not be made, of a model that could be asked in waves. Raises ConfigError."""
    as_chat(model)
    return call


async def _never() -> NoReturn:
    """Wait until cancelled."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("unreachable: nobody answers")


async def _unless_gone(read: Callable[[], Awaitable[None]]) -> None:
    """A file that is not there any more holds no answers."""
    try:
        await read()
    except ModelError as error:
        if error.status != 404:
            raise


def _said(sent: Sent, batch: ProviderBatch | None) -> str:
    how = f"{batch.id} {batch.status.replace('_', ' ')} ({batch.answered_count:,} done)" if batch else "being sent"
    return f"wave {sent.number}: {sent.requests:,} requests, {how}"
