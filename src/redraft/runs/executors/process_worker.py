"""A worker process of a run on this machine: it processes the rows that it receives, and sends their results back.

The process of the run starts it with a socket as standard input. It ends at once when that socket is closed, so it never outlives
the run. Ctrl-C and SIGTERM are left to the process of the run.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from socket import socket
from threading import Thread

from ...error_text import error_text
from ...errors import StoreError
from ...storage.journal import Journal
from ...sync import uvloop_factory
from ..dataset import PendingRow
from ..job import BatchJob, Executor, RowProcessor, RowSource
from ..online_priors import OnlinePriors, RefitSchedule
from ..row_result import RowResult
from .process_channel import AssignedChunk, FinishedRows, QuotaMessage, RowRequest, WorkerEnd, encode, messages
from .shard_protocol import AssignedRow, ShardJob, ShardStatus
from .shard_worker import AssignedRows, ShardWorker

LOW = 32  # rows that have not started when more are requested
MAX_RESULTS = 64  # results that are sent together
RESULT_DELAY = 0.02  # seconds that a result waits for others


@dataclass
class ReceivedRows(AssignedRows):
    """The rows as they are received. `request` asks for more."""

    request: Callable[[], object] = int
    _rows: deque[PendingRow] = field(default_factory=deque)
    _change: asyncio.Event = field(default_factory=asyncio.Event)
    _is_requested: bool = False
    _is_complete: bool = False

    def receive(self, rows: Sequence[AssignedRow]) -> None:
        """Add rows; none: there are no more."""
        self._rows.extend(self.with_journal(rows))
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

    def save(self, row: PendingRow, result: RowResult, *, reused: bool) -> None:
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
        await job.scheduler.process(job.rows.read(), SendingProcessor(job, self.results))


class ProcessWorker(ShardWorker):
    """Processes the rows of a shard as they arrive, with the priors that the process of the run has fitted."""

    has_own_machine = False

    def __init__(self, send: Callable[[object], None]) -> None:
        super().__init__()
        self.results = RowSender(send)
        self._send = send
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
                try:
                    self._add(self._received, message)
                except StoreError as error:
                    self._halt("disk", str(error))
                    self._received.receive(())
            case AssignedChunk():
                self._chunks.append(message)

    def _add(self, received: ReceivedRows, chunk: AssignedChunk) -> None:
        if self._schedule:
            self._schedule.refits.update(chunk.refits)
        received.receive(chunk.rows)

    def _executor(self) -> Executor:
        return ReceivedRowsExecutor(self.results)

    def _rows(self, shard: ShardJob, journal: Journal) -> RowSource:
        self._received = ReceivedRows((), journal, shard.config.name, lambda: self._send(RowRequest()))
        return self._received

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
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def send(message: object) -> None:
        connection.sendall(encode(message))

    def receive(message: object) -> None:
        task = loop.create_task(worker.receive(message))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def read() -> None:
        try:
            for data in incoming:
                loop.call_soon_threadsafe(receive, pickle.loads(data))  # noqa: S301  (from the process of the run)
        finally:
            os._exit(1)  # that process has ended

    worker = ProcessWorker(send)
    Thread(target=read, name="redraft-worker", daemon=True).start()
    status = await worker.run(shard)
    worker.results.flush()
    send(WorkerEnd(status, worker.second_looks))


def main() -> None:
    """Receive a shard over standard input, and process it."""
    _leave_signals()
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
        connection.sendall(encode(WorkerEnd(ShardStatus("", reason="fatal", message=problem), 0)))
        return
    with asyncio.Runner(loop_factory=uvloop_factory() if loop == "uvloop" else None) as runner:
        runner.run(serve(connection, incoming, shard))


def _leave_signals() -> None:
    """Do nothing on Ctrl-C and SIGTERM. The processes that graders start receive them as usual: also those that are forked."""
    worker, numbers = os.getpid(), {signal.SIGINT, signal.SIGTERM}
    usual = {number: signal.getsignal(number) for number in numbers}

    def leave(number: int, _: object) -> None:
        if os.getpid() != worker:
            signal.signal(number, usual[signal.Signals(number)])
            signal.raise_signal(number)

    for number in numbers:
        signal.signal(number, leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # blocked until now
