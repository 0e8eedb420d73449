"""A run in several processes of this machine: `ProcessExecutor` hands out the rows, and writes the
output as their results arrive.

This process reads the rows, decides when priors are refitted, and writes the journal and the
results, as a run in one process does; `RowFeed` has the rows that are not finished. Workers do
everything else: they are shards (see `sharded`) that receive their rows a few at a time, so that a
fast one receives more, and send what is to be committed to the journal (`RemoteJournal`). Limits
and budget are quotas that follow the work. A worker that has died is started again, with the rows
that it had not finished. What it had spent counts, as far as it is known.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import reduce
from math import inf
from pathlib import Path
from socket import socket, socketpair
from time import monotonic
from typing import Any

from ...base.descriptors import is_shortage
from ...errors import ConfigError, StoreError
from ...loop.cancellation import cancel_and_wait
from ...middleware import Budget, BudgetTracker
from ...middleware.call_costs import ZERO_AMOUNTS, add_amounts
from ...storage.journal import RowInfo
from ...storage.remote_journal import without_metadata
from ...tables.sources import Source
from ...usage import add_optional
from ..dataset import BatchRow, PendingRow
from ..job import MAX_WAITING, BatchJob, RowProcessor
from ..online_priors import RefitSchedule
from ..row_result import RowResult
from ..scheduler import SOFT_ENDS
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
    encode_code,
    receive,
)
from .shard_protocol import (
    Amounts,
    Quota,
    QuotaSplitter,
    ShardJob,
    ShardStatus,
    StopOrder,
)
from .sharded import Coordinator, RemoteEndpoints, shard_config

CHUNK = 64  # rows that are handed out together, at most
AHEAD = 256  # rows that are read before a worker requests them
SLACK = 128  # unfinished rows that a worker may have more than another
BUFFER = 2**20  # bytes of messages that are read before they are processed
EXIT_TIMEOUT = 2.0  # seconds for the exit of a worker that has ended its work
STOPPED_TIMEOUT = 10  # seconds for which a worker may be stopped by a signal
MAX_STARTS = 3  # starts of a worker in succession that fail
MAX_SHORTAGES = (
    60  # tries to start a worker while this machine is short of descriptors or processes
)
SHORTAGE_PAUSE = 1.0  # seconds between two of them
POLL = 0.25  # seconds between two checks whether the run ends
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from "
    "redraft.runs.executors.process_worker import main; main()"
)


class Pauses:
    """Until when (by `monotonic`) endpoints have asked for no call, by their addresses: what one
    worker was told, others learn.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, pauses: Mapping[str, float]) -> None:
        """Add pauses. The longest counts."""
        for address, until in pauses.items():
            self._until[address] = max(until, self._until.get(address, -inf))

    @property
    def present(self) -> dict[str, float]:
        """The pauses that are not over."""
        now = monotonic()
        return {address: until for address, until in self._until.items() if until > now}


class WorkerJournal:
    """Commits what workers write to the journal of the run.

    `spent`: what each of them has spent and reserved, with its earlier processes.
    """

    def __init__(self, job: BatchJob, workers: int) -> None:
        self._job = job
        self._before = dict(job.session.budget_tracker.spent)
        self.spent: list[Amounts] = [ZERO_AMOUNTS] * workers

    @property
    def total_spent(self) -> dict[str, float]:
        """What the run has spent, and what is reserved."""
        return reduce(add_amounts, self.spent, self._before)

    def write(self, k: int, request: CommitRequest) -> None:
        """Write what worker k has written to the journal, with its spending. Raises StoreError."""
        job = self._job
        changes, metadata = without_metadata(request.changes)
        if spent := metadata.get("spent"):
            self.spent[k] = spent
            if job.session.budget_tracker.is_limited:
                job.note(spent=self.total_spent)
        if capabilities := metadata.get("capabilities"):
            job.session.capabilities.restore(capabilities)
            job.note(capabilities=job.session.capabilities.as_data())
        job.journal.write_changes(changes)

    async def wait_for_commit(self) -> CommitAnswer:
        """Wait until everything written so far is committed; return the answer to the worker."""
        try:
            await self._job.journal.wait_for_commit()
        except StoreError as error:
            return CommitAnswer(str(error))
        return CommitAnswer()


class ProcessEndpoints(RemoteEndpoints):
    """The endpoints of all workers together."""

    def __init__(self, journal: WorkerJournal) -> None:
        super().__init__(len(journal.spent))
        self._journal = journal

    def spent_if_killed(self, tracker: BudgetTracker) -> dict[str, float]:
        return self._journal.total_spent


class RowFeed:
    """The rows of a run that are not finished: those to be handed out, and those that each worker
    has.

    `fill` reads the rows, and saves the results of those that are finished already.
    """

    def __init__(self, job: BatchJob, rows: AsyncGenerator[PendingRow, None], workers: int) -> None:
        self.job = job
        self.processor = RowProcessor(job)
        self.pending: list[dict[int, PendingRow]] = [{} for _ in range(workers)]
        self.is_read = False
        self._rows = rows
        self._ready: deque[PendingRow] = deque()
        self._cut_short: list[tuple[PendingRow, RowResult]] = []
        self._seen = 0
        self._change = asyncio.Event()

    @property
    def refits(self) -> RefitSchedule | None:
        """The schedule of refits, if priors are learned online."""
        online = self.job.online_priors
        return online.schedule if online and online.schedule.enabled else None

    async def fill(self) -> None:
        """Read rows to the end, or until the run ends, but not far ahead of the workers."""
        try:
            async for row in self._rows:
                self._seen += 1
                if await self.processor.visit(row):
                    self._ready.append(row.as_unfinished)
                    self._change.set()
                await self.wait_until(self._has_room)
                if self.job.scheduler.reason:
                    return
            self.is_read = True
        finally:
            self._change.set()

    def _has_room(self) -> bool:
        return len(self._ready) < AHEAD and self.job.output.pending_count < MAX_WAITING

    async def wait_until(self, condition: Callable[[], bool], seconds: float = inf) -> None:
        """Wait until a condition holds, the run ends, or `seconds` are over."""
        end = monotonic() + seconds
        while not (condition() or self.job.scheduler.reason or monotonic() > end):
            self._change.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._change.wait(), POLL)

    async def has_rows(self, filling: asyncio.Future[None]) -> bool:
        """Wait for the first row that must run, and return whether there is one."""
        await self.wait_until(lambda: bool(self._ready) or filling.done())
        return bool(self._ready) and not self.job.scheduler.reason

    async def take(self, k: int, filling: asyncio.Future[None]) -> list[PendingRow]:
        """Return the next rows for worker k; none if there are no more, or the run ends."""
        await self.wait_until(lambda: filling.done() if not self._ready else self._is_next(k))
        if self.job.scheduler.reason:
            return []
        left = len(self._ready) if self.is_read else max(0, self.job.summary.total - self._seen)
        count = min(CHUNK, len(self._ready), max(1, left // (4 * len(self.pending))))
        rows = [self._ready.popleft() for _ in range(count)]
        self.pending[k].update((row.n, row) for row in rows)
        self._change.set()
        return rows

    def _is_next(self, k: int) -> bool:
        return len(self.pending[k]) <= min(map(len, self.pending)) + SLACK

    def finish(self, k: int, finished: FinishedRows) -> int:
        """Save the results of worker k, and return their number."""
        online, saved = self.job.online_priors, 0
        for n, result in finished.results:
            row = self.pending[k].pop(n, None)
            if row is None:  # an earlier process of this worker had sent it
                continue
            if result.status == "open":
                self._cut_short.append((row, result))
            else:
                self.processor.save(row, result, reused=False)
                saved += 1
            if online:
                online.row_saved(row)
        self._change.set()
        return saved

    def end(self) -> None:
        """Save the results of rows that were cut short, if the run ends; otherwise they are not
        finished.
        """
        for row, result in self._cut_short:
            if self.job.scheduler.reason:
                self.processor.save(row, result, reused=False)
            else:
                self._ready.append(row)

    def chunk(self, rows: Iterable[PendingRow]) -> AssignedChunk:
        """Return rows as a worker receives them: without the columns that only the output needs."""
        refits = self.refits
        return AssignedChunk([*map(_without_columns, rows)], refits.refits if refits else {})

    def chunk_again(self, k: int) -> AssignedChunk | None:
        """Return the rows of worker k that are not finished, with what the journal has of them now;
        None if there are none.
        """
        rows, job = self.pending[k], self.job
        if not rows:
            return None
        infos = job.journal.rows_by_id(
            job.config.name, [row.id for row in rows.values()], key_parts=False
        )
        return self.chunk(_with_journal(row, infos.get(row.id)) for row in rows.values())

    async def unfinished_rows(self) -> AsyncGenerator[PendingRow, None]:
        """Yield the rows that no worker has finished, with what the journal has of them now."""
        job = self.job
        rows = {
            row.n: row
            for rows in (*self.pending, {row.n: row for row in self._ready})
            for row in rows.values()
        }
        self.processor.finished_now = rows.keys()
        for _, row in sorted(rows.items()):
            yield row._replace(info=job.journal.rows_by_id(job.config.name, [row.id]).get(row.id))
        if not self.is_read:
            async for row in self._rows:
                yield row


def _without_columns(row: PendingRow) -> PendingRow:
    entry = row.entry
    return row._replace(entry=BatchRow(entry.n, entry.location, {}, entry.task))


def _with_journal(row: PendingRow, info: RowInfo | None) -> PendingRow:
    """Return a row with what the journal has of it now.

    A row to be reopened is "open" only here (`PendingRow.as_unfinished`): it stays so while the
    journal has the same result.
    """
    before = row.info
    if info and before and (info.key, info.result) == (before.key, before.result):
        return row
    return row._replace(info=info)


@dataclass
class ProcessExecutor:
    """Has `processes` workers process the rows. `models`: the writer, the graders and the judge
    that they receive.
    """

    has_one_price = False

    processes: int
    models: tuple[Any, Any, Any]
    say: Callable[[str], object]
    ready: ReadyProcesses

    async def work(self, job: BatchJob) -> None:
        """Process all rows."""
        await job.scan_stopped_rows()
        workers = max(1, min(self.processes, job.summary.total))
        async with aclosing(job.rows.read()) as rows:
            feed = RowFeed(job, rows, workers)
            if online := job.online_priors:
                online.wait_until = feed.wait_until
            filling = asyncio.ensure_future(feed.fill())
            try:
                if await feed.has_rows(filling):
                    await self._run_workers(job, feed, filling)
                await filling
            finally:
                await cancel_and_wait([filling])
            feed.end()
            await self._process_others(job, feed)

    async def _run_workers(
        self, job: BatchJob, feed: RowFeed, filling: asyncio.Future[None]
    ) -> None:
        """Run the workers to their end."""
        await job.journal.wait_for_commit()  # they read the metadata of the run
        shards = self._shards(job, len(feed.pending))
        code = [_encode_shard(shard) for shard in shards]
        budget, options, limits = job.session.options.budget, job.config.options, job.config.limits
        spent = dict(job.session.budget_tracker.spent)
        quotas = QuotaSplitter(
            [shard.rows for shard in shards],
            options.max_in_flight,
            limits.rpm,
            limits.tpm,
            budget,
            spent,
        )
        journal, pauses = WorkerJournal(job, len(shards)), Pauses()
        remote, own = ProcessEndpoints(journal), job.scheduler.endpoints
        coordinator = ProcessCoordinator(job.scheduler, quotas, remote, job.progress, self.say)
        workers = [
            WorkerProcess(k, data, feed, filling, pauses, journal, self.ready)
            for k, data in enumerate(code)
        ]
        job.scheduler.endpoints = remote
        try:
            await coordinator.follow(list(zip(workers, shards, strict=True)))
        finally:
            job.scheduler.endpoints = own
            job.session.budget_tracker.spent.update(journal.total_spent)
            if online := job.online_priors:
                online.second_looks += sum(worker.second_looks for worker in workers)

    def _shards(self, job: BatchJob, workers: int) -> list[ShardJob]:
        writer, graders, judge = self.models
        config = shard_config(job, workers)
        config = replace(
            config, options=replace(config.options, budget=config.options.budget or Budget())
        )
        online = job.online_priors
        schedule = online.schedule if online else None
        return [
            ShardJob(
                config=config,
                dataset=replace(job.dataset, source=Source(job.dataset.source.name, _no_rows)),
                model=writer,
                graders=graders,
                judge=judge,
                journal=job.journal.path.absolute(),
                run_journal=None,
                chunks=(),
                attempt="",
                folder=str(Path.cwd()),
                ends_at=None if job.ends_at is None else time.time() + job.ends_at - monotonic(),
                rows=-(-job.share.rows_left() // workers),
                capabilities=job.session.capabilities.as_data(),
                schedule=schedule
                and replace(schedule, refits=dict(schedule.refits), _ids={}, _unfinished=set()),
            )
            for _ in range(workers)
        ]

    async def _process_others(self, job: BatchJob, feed: RowFeed) -> None:
        """Process the rows that no worker has finished; if the run has ended softly, save their
        best answers so far.
        """
        reason = job.scheduler.reason
        if not reason:
            await job.scheduler.process(feed.unfinished_rows(), feed.processor)
        elif reason in SOFT_ENDS:
            async with aclosing(feed.unfinished_rows()) as rows:
                async for row in rows:
                    if await feed.processor.visit(row):
                        await feed.processor.skip(row)


def _no_rows(_: Any) -> Any:
    return iter(())


def _encode_shard(shard: ShardJob) -> bytes:
    """Return a shard as bytes. Raises ConfigError for a value that cannot be sent to another
    process.
    """
    try:
        return encode_code(shard)
    except Exception:  # an object may raise anything when it is pickled
        for name in ("model", "graders", "judge", "config"):
            _check_sendable(name, getattr(shard, name))
        raise


def _encode_rows(chunk: AssignedChunk) -> bytes:
    """Return rows as bytes. Raises ConfigError for one that cannot be sent to another process."""
    try:
        return encode_code(chunk)
    except Exception as error:  # an object may raise anything when it is pickled
        for row in chunk.rows:
            for name, value in row.entry.task.metadata.items():
                _check_sendable(f"{name} of row {row.id}", value)
        raise ConfigError(
            f"rows cannot be sent to other processes: {error}; leave out processes"
        ) from error


def _check_sendable(name: str, value: Any) -> None:
    try:
        encode_code(value)
    except Exception as error:  # an object may raise anything when it is pickled
        what = type(value[0] if isinstance(value, (list, tuple)) and value else value).__name__
        why = str(error).strip() or type(error).__name__
        raise ConfigError(
            f"{name}: a {what} cannot be sent to other processes ({why}); define it at the top "
            "level of a file, give it by its name, or leave out processes"
        ) from error


class ProcessCoordinator(Coordinator):
    """Follows worker processes. Their results are counted when they arrive (`RowFeed.finish`)."""

    def _update(self, k: int, status: ShardStatus, *, finished: bool = False) -> None:
        super()._update(k, status, finished=finished)
        if self.quotas.exhaustion and not self.scheduler.reason:
            self.scheduler.end("budget", self.quotas.exhaustion)

    def _sum_up(self) -> None:
        statuses = self.remote.statuses.values()
        self.progress.usage = self._before.usage + self.usage
        self.progress.cache_savings = add_optional(self._before.cache_savings, self.cache_savings)
        self.progress.under_way = sum(status.counts["under_way"] for status in statuses)
        self.remote.in_flight = sum(status.counts["in_flight"] for status in statuses)
        self.remote.calls_made = sum(status.counts["calls_made"] for status in statuses)


class ReadyProcesses:
    """Processes for workers, started before there is work for them, so that they import
    meanwhile.
    """

    def __init__(self) -> None:
        self._ready: deque[tuple[subprocess.Popen[bytes], socket]] = deque()

    def start(self, count: int) -> None:
        """Start processes. If that fails, `take` tries again."""
        with suppress(OSError):
            self._ready.extend(start_process() for _ in range(count))

    def take(self) -> tuple[subprocess.Popen[bytes], socket]:
        """Return a process, and the socket to it. Raises OSError if none is ready and none can be
        started.
        """
        return self._ready.popleft() if self._ready else start_process()

    def close(self) -> None:
        """End those that nobody has taken."""
        while self._ready:
            process, connection = self._ready.popleft()
            connection.close()
            process.kill()
            process.wait()


@dataclass
class WorkerProcess:
    """Worker k in a process. If that dies, another one gets its shard and the rows that it had not
    finished.
    """

    k: int
    shard: bytes
    feed: RowFeed
    filling: asyncio.Future[None]
    pauses: Pauses
    journal: WorkerJournal
    ready: ReadyProcesses
    second_looks: int = 0
    finished: int = 0
    _message: QuotaMessage | None = None  # that the process has not answered
    _answer: asyncio.Future[ShardStatus] | None = None
    _writer: asyncio.StreamWriter | None = None
    _failed_starts: int = 0
    _shortages: int = 0  # of descriptors or processes, which let no process start

    async def run(self, shard: ShardJob) -> ShardStatus:
        """Process the shard, and return the final status."""
        while True:
            try:
                process, connection = self.ready.take()
            except OSError as error:
                if is_shortage(error) and self._shortages < MAX_SHORTAGES:
                    self._shortages += 1
                    await asyncio.sleep(SHORTAGE_PAUSE)
                    continue
                return ShardStatus(
                    "", reason="fatal", message=f"a worker process cannot be started: {error}"
                )
            watching = asyncio.ensure_future(kill_if_stopped(process))
            try:
                if end := await self._serve(connection):
                    self.second_looks += end.second_looks
                    if use := end.status.use:
                        self.journal.spent[self.k] = use.spent
                    return end.status
            finally:
                process.kill()
                process.wait()
                await cancel_and_wait([watching])
            self._failed_starts += 1
            if self._failed_starts >= MAX_STARTS:
                status = (
                    f"a worker process ended at its start {MAX_STARTS} times, with exit status "
                    f"{process.returncode}"
                )
                return ShardStatus("", reason="fatal", message=status)

    async def exchange_quota(self, quota: Quota, order: StopOrder | None) -> ShardStatus:
        """Send a quota and an order, and return the status."""
        self._message = QuotaMessage(quota, order, self.pauses.present)
        self._answer = asyncio.get_running_loop().create_future()
        await self._send(encode(self._message))
        return await self._answer

    async def _send(self, data: bytes) -> None:
        """Send a message. If the process has died, another one will receive it."""
        if self._writer:
            with suppress(ConnectionError):
                self._writer.write(data)
                await self._writer.drain()

    async def _serve(self, connection: socket) -> WorkerEnd | None:
        """Exchange messages with a process until it has ended its work; return None if it dies
        before.
        """
        reader, writer = await asyncio.open_connection(sock=connection, limit=BUFFER)
        answering = dict[type, asyncio.Future[None]]()
        try:
            first = await self._first_messages()
            self._writer = writer  # not before: nothing may overtake the first messages
            await self._send(first)
            while (message := await receive(reader)) is not None:
                match message:
                    case ShardStatus():
                        self._receive_status(message)
                    case CommitRequest():
                        with suppress(StoreError):  # the answer has it
                            self.journal.write(self.k, message)
                        answering[CommitRequest] = asyncio.ensure_future(self._confirm())
                    case FinishedRows():
                        self.finished += self.feed.finish(self.k, message)
                    case RowRequest():
                        answering[RowRequest] = asyncio.ensure_future(self._feed())
                    case WorkerEnd():
                        with suppress(TimeoutError):
                            await asyncio.wait_for(receive(reader), EXIT_TIMEOUT)  # its exit
                        return message
            return None
        finally:
            self._writer = None
            await cancel_and_wait(answering.values())
            writer.close()

    async def _confirm(self) -> None:
        await self._send(encode(await self.journal.wait_for_commit()))

    async def _first_messages(self) -> bytes:
        """Return what a process needs first; the second one also needs what the first one has not
        answered or finished.
        """
        await self.feed.job.journal.wait_for_commit()  # of what the first one has written
        earlier = EarlierWork(self.journal.spent[self.k], self.finished)
        again = filter(None, (earlier, self._message, self.feed.chunk_again(self.k)))
        return encode(sys.argv) + self.shard + b"".join(map(encode_code, again))

    def _receive_status(self, status: ShardStatus) -> None:
        self._message, self._failed_starts = None, 0
        self.pauses.add(status.pauses)
        if self._answer and not self._answer.done():
            self._answer.set_result(status)

    async def _feed(self) -> None:
        """Send the next rows. If that cannot be done, end the run: a worker that gets none ends."""
        rows = await self.feed.take(self.k, self.filling)
        try:
            data = _encode_rows(self.feed.chunk(rows))
        except ConfigError as error:
            self.feed.job.scheduler.end("fatal", str(error), now=True)
            data = encode(AssignedChunk((), {}))
        await self._send(data)


async def kill_if_stopped(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that was stopped by a signal and is not continued, so that another one gets
    its rows.
    """
    seconds = 0
    # counted here: while this process is stopped as well, as by Ctrl-Z, none passes
    while seconds < STOPPED_TIMEOUT:
        await asyncio.sleep(1)
        seconds = seconds + 1 if is_stopped(process.pid) else 0
    process.kill()


def is_stopped(pid: int) -> bool:
    """Return whether a child of this process was stopped by a signal; False where the system cannot
    tell.
    """
    if hasattr(os, "waitid"):
        with suppress(ChildProcessError):
            return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    return False


def start_process() -> tuple[subprocess.Popen[bytes], socket]:
    """Start a worker; return its process, and the socket to it."""
    ours, theirs = socketpair()
    loop = (
        "uvloop" if type(asyncio.get_running_loop()).__module__.startswith("uvloop") else "asyncio"
    )
    # as an import reads it
    path = json.dumps([folder or str(Path.cwd()) for folder in sys.path if isinstance(folder, str)])
    with theirs:
        # until the process ignores them
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            process = subprocess.Popen(  # noqa: S603  (our own code)
                [sys.executable, "-P", "-c", START, loop, path], stdin=theirs.fileno()
            )
        except OSError:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return process, ours
