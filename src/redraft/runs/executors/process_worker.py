"""A worker process of a run on this machine: it processes the rows that it receives, and sends
their results back.

The process of the run starts it with a socket as standard input. It ends at once when that socket
is closed, so it never outlives the run. Ctrl-C and SIGTERM are left to the process of the run.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from socket import socket
from threading import Lock, Thread

from ...base.error_text import error_text
from ...base.sync import reset_in_children, uvloop_factory
from ...errors import StoreError
from ...middleware.call_costs import ZERO_AMOUNTS
from ...storage.journal import Journal
from ...storage.remote_journal import UPDATE_RUN, RemoteJournal
from ...storage.transaction import TransactionData
from ..dataset import PendingRow
from ..job import BatchJob, Executor, RowProcessor, RowSource
from ..online_priors import OnlinePriors, RefitSchedule
from ..row_result import RowResult
from .process_channel import (
    AssignedChunk,
    CommitAnswer,
    CommitRequest,
    EarlierWork,
    FinishedRows,
    QuotaMessage,
    RowRequest,
    WorkerEnd,
    encode,
    messages,
)
from .shard_protocol import Amounts, ShardJob, ShardStatus
from .shard_worker import ShardWorker

LOW = 32  # rows that have not started when more are requested
MAX_RESULTS = 64  # results that are sent together
RESULT_DELAY = 0.02  # seconds that a result waits for others
SHARED_METADATA = ("spent", "capabilities")  # of the run that workers change


@dataclass
class ReceivedRows:
    """The rows as they are received. `request` asks for more."""

    request: Callable[[], object]
    _rows: deque[PendingRow] = field(default_factory=deque)
    _change: asyncio.Event = field(default_factory=asyncio.Event)
    _is_requested: bool = False
    _is_complete: bool = False

    def receive(self, rows: Sequence[PendingRow]) -> None:
        """Add rows; none: there are no more."""
        self._rows.extend(rows)
        self._is_requested, self._is_complete = False, self._is_complete or not rows
        self._change.set()

    async def read(self, *, reject: bool = True) -> AsyncGenerator[PendingRow, None]:
        """Yield all rows."""
        while self._rows or not self._is_complete:
            if len(self._rows) <= LOW and not (self._is_requested or self._is_complete):
                self._is_requested = True
                self.request()
            if self._rows:
                yield self._rows.popleft()
            else:
                self._change.clear()
                await self._change.wait()


@dataclass
class RowSender:
    """Sends results, a few at a time."""

    send: Callable[[object], None]
    _results: list[tuple[int, RowResult]] = field(default_factory=list)

    def add(self, n: int, result: RowResult) -> None:
        """Send a result soon."""
        self._results.append((n, result))
        if len(self._results) >= MAX_RESULTS:
            self.flush()
        elif len(self._results) == 1:
            asyncio.get_running_loop().call_later(RESULT_DELAY, self.flush)

    def flush(self) -> None:
        """Send all results now."""
        if self._results:
            self.send(FinishedRows(self._results))
            self._results = []


class SendingProcessor(RowProcessor):
    """Sends results to the process of the run, which writes the output and the report."""

    def __init__(self, job: BatchJob, results: RowSender) -> None:
        super().__init__(job)
        self._results = results

    def save(self, row: PendingRow, result: RowResult, *, reused: bool = False) -> None:
        """Count a result, and send it."""
        self.job.progress.count(result, reused=reused)
        self._results.add(row.n, result)


@dataclass(frozen=True)
class ReceivedRowsExecutor:
    """Processes the rows that the worker receives."""

    results: RowSender
    has_one_price = True

    async def work(self, job: BatchJob) -> None:
        """Process rows until there are no more."""
        job.budget.was_raised = False  # the process of the run has decided which rows are reopened
        await job.scheduler.process(job.rows.read(), SendingProcessor(job, self.results))


class ProcessWorker(ShardWorker):
    """Processes the rows of a shard as they arrive, with the priors that the process of the run has
    fitted.

    Its journal is that of the run: `send` also requests commits.
    """

    def __init__(self, send: Callable[[object], None]) -> None:
        super().__init__()
        self.results = RowSender(send)
        self.commit_answers = SimpleQueue[CommitAnswer]()  # the answers to the requests
        self._send = send
        self._earlier = EarlierWork(ZERO_AMOUNTS, 0)
        self._chunks: list[AssignedChunk] = []  # that arrived before the journal was open
        self._received: ReceivedRows | None = None
        self._schedule: RefitSchedule | None = None

    async def receive(self, message: object) -> None:
        """Obey a message."""
        match message:
            case QuotaMessage(quota, order, pauses):
                if self._endpoints:
                    self._endpoints.pause(pauses)
                self._send(await self.exchange_quota(quota, order))
            case AssignedChunk() if self._received:
                self._add(self._received, message)
            case AssignedChunk():
                self._chunks.append(message)
            case EarlierWork():
                self._earlier = message

    def _add(self, received: ReceivedRows, chunk: AssignedChunk) -> None:
        if self._schedule:
            self._schedule.refits.update(chunk.refits)
        received.receive(chunk.rows)

    def _executor(self) -> Executor:
        return ReceivedRowsExecutor(self.results)

    def _rows(self, shard: ShardJob, journal: Journal) -> RowSource:
        self._received = ReceivedRows(lambda: self._send(RowRequest()))
        return self._received

    async def _open_journal(self, shard: ShardJob) -> Journal:
        return await asyncio.to_thread(RemoteJournal, shard.journal, self._commit, SHARED_METADATA)

    def _commit(self, changes: TransactionData) -> None:
        """Have the process of the run commit changes to the journal, with what this one has spent.
        Blocks.
        """
        statements, rows, replies = changes
        if not self._budget.is_limited:  # else every change of it is a statement
            statements = [*statements, (UPDATE_RUN, ({"spent": dict(self._budget.spent)},))]
        self._send(CommitRequest((statements, rows, replies)))
        if error := self.commit_answers.get().error:
            raise StoreError(error)

    def _spent_before(self, name: str, journal: Journal) -> Amounts:
        return self._earlier.spent

    def _finished_before(self, name: str, journal: Journal) -> int:
        return self._earlier.finished

    async def _open(self, shard: ShardJob, resources: AsyncExitStack) -> BatchJob:
        job = await super()._open(shard, resources)
        if schedule := shard.schedule:
            self._schedule, scheduler = schedule, job.scheduler
            job.online_priors = OnlinePriors(
                schedule,
                job.journal,
                job.config.name,
                job.keys.shared,
                scheduler.wait_until,
                lambda: bool(scheduler.reason),
                self._messages.append,
            )
            job.budget.priors_for = lambda row: schedule.priors(row.n)
        if self._received:
            for chunk in self._chunks:
                self._add(self._received, chunk)
        return job

    @property
    def second_looks(self) -> int:
        """The number of grades for second looks."""
        online = self._job.online_priors if self._job else None
        return online.second_looks if online else 0


async def serve(connection: socket, incoming: Iterator[bytes], shard: ShardJob) -> None:
    """Process a shard to its end."""
    loop, tasks, sending = asyncio.get_running_loop(), set[asyncio.Task[None]](), Lock()

    def send(message: object) -> None:
        data = encode(message)
        with sending:  # the journal has a thread of its own
            _send(connection, data)

    def receive(message: object) -> None:
        task = loop.create_task(worker.receive(message))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def read() -> None:
        try:
            for data in incoming:
                message = pickle.loads(data)  # noqa: S301  (from the process of the run)
                if isinstance(message, CommitAnswer):
                    worker.commit_answers.put(message)
                else:
                    loop.call_soon_threadsafe(receive, message)
        finally:
            os._exit(1)  # that process has ended

    worker = ProcessWorker(send)
    Thread(target=read, name="redraft-worker", daemon=True).start()
    status = await worker.run(shard)
    worker.results.flush()
    send(WorkerEnd(status, worker.second_looks))


def _send(connection: socket, data: bytes) -> None:
    """Send a message. If the process of the run has ended, so does this one: nobody needs its work,
    or an account of the loss.
    """
    try:
        connection.sendall(data)
    except OSError:
        os._exit(1)


def main() -> None:
    """Receive a shard over standard input, and process it."""
    with _leave_signals():
        _work()


def _work() -> None:
    """Process a shard. What graders print goes to stderr: stdout may be the output."""
    os.dup2(2, 1)
    gc.freeze()  # what was imported stays
    gc.set_threshold(50_000, 20, 100)  # as in `redraft batch`
    connection = socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123  (a descriptor)
        os.dup2(nothing.fileno(), 0)
    incoming, loop = messages(connection), sys.argv[1]
    arguments, first = next(incoming, None), next(incoming, None)
    if arguments is None or first is None:
        return
    sys.argv[:] = pickle.loads(arguments)  # noqa: S301  (those of the script, which may read them)
    try:
        shard = pickle.loads(first)  # noqa: S301  (from the process of the run)
    except Exception as error:  # noqa: BLE001  (code of the user, which is imported or run here)
        problem = f"a worker process cannot load the models and graders: {error_text(error)}"
        _send(connection, encode(WorkerEnd(ShardStatus("", reason="fatal", message=problem), 0)))
        return
    with asyncio.Runner(loop_factory=uvloop_factory() if loop == "uvloop" else None) as runner:
        runner.run(serve(connection, incoming, shard))


@contextmanager
def _leave_signals() -> Iterator[None]:
    """Do nothing on Ctrl-C and SIGTERM. The processes that graders start receive them as usual:
    also those that are forked.
    """
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)

    with reset_in_children(restore):
        for number in usual:
            # which, unlike SIG_IGN, a program that is started does not inherit
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, usual)  # blocked until now
        yield
