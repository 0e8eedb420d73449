"""What the gateway keeps of requests: facts in requests.db, and traces in gateway.journal, for as
long as each profile allows.

| level | facts | trace |
|---|---|---|
| off | no | no |
| metadata | yes | no |
| full | yes | yes, with the prompt, the answers and the grades |

A request with `store: false` is kept at level "metadata" at most. Facts hold no text of a request
(see `request_table`). The journal has one run for each model that clients name, so `redraft view`
shows it, also while the gateway runs. Its lock lets one process at a time use the folder.

A request whose facts have an outcome has its whole trace in the journal: the last facts are written
after it, except once the journal cannot be written.

Nothing here makes a request fail: errors are counted, logged once a minute, and tell
`RequestStore.problem` until writing works again, which is tried every few seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from ..base.jsontext import dumps_text
from ..base.log import log
from ..base.threads import run_in_thread
from ..errors import StoreError
from ..loop.records import Candidate, Outcome, StopReason
from ..loop.serialize import record_to_json
from ..loop.task import Task
from ..loop.trace import Trace
from ..plans.quality.result_facts import ResultFacts
from ..runs.row_result import row_result
from ..storage.journal import Journal
from ..storage.secure_files import make_folder
from ..usage import Usage, unknown_usage
from .config import GatewayConfig, Retention
from .keys import Caller
from .request_table import (
    USAGE_FACTS,
    RequestFacts,
    RequestOutcomeName,
    RequestTable,
    find_requests,
)

JOURNAL = "gateway.journal"
TABLE = "requests.db"
COMPANIONS = ("", "-wal", "-shm", ".pending")
"""The ends of the names of the files that limits count; others beside them are none of the
store's.
"""
HOUR, DAY = 3600.0, 86_400.0
MEGABYTE = 10**6
MAINTENANCE_SECONDS = 60.0
RECOVERY_SECONDS = 5.0
WARNING_SECONDS = 60.0
COMPACT_BYTES = 64 * 2**20
"""A journal up to this size is written again after each deletion, in about half a second; a larger
one a day after the first.
"""
REMAINS = "remains_since"
"""The key of the metadata of a run that says since when its file may have remains of deleted texts,
in seconds of the epoch.
"""
CLIENT_WENT_AWAY = 499
"""The status of a request whose client closed the connection, as in nginx."""
RESULT_BYTES = 500  # of the result of a trace besides its text, roughly
MAX_FOUND = 100  # requests with one ID of a client, or of one trace
MAX_EXCHANGE_BYTES = 2**20
"""Bytes of a request, and of a reply, that was passed on and is kept."""
store_log = log.getChild("gateway.store")


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """How a request ended. What is None or "" is taken from the trace, if there is one, else
    unknown.

    `status`: the HTTP status; 499 if the client went away. `usage`: that of all calls. `error`: the
    code of the error, `cause`: why the work failed (see `RequestFacts`).
    """

    status: int
    error: str = ""
    cause: str = ""
    usage: Usage | None = None
    score: float | None = None
    iterations: int | None = None
    stop: str = ""

    @property
    def outcome(self) -> RequestOutcomeName:
        if self.status == CLIENT_WENT_AWAY:
            return "cancelled"
        return "failed" if self.error or self.status >= 400 else "answered"


def retentions(config: GatewayConfig) -> dict[str, Retention]:
    """Return the retention of each model that clients can name."""
    refined = {f"refine/{name}": profile.retention for name, profile in config.profiles.items()}
    return refined | {f"pass/{name}": config.passed_retention for name in config.models}


class RequestStore:
    """The store of one gateway, in a folder. Raises StoreError if it cannot be opened, or another
    process has it open.

    `retentions`: by model, see `retentions`; requests for other models are kept as `Retention()`
    says. It may be replaced at any time. `on_error` is called once for each error, from any thread.
    Requests that an earlier process did not finish get the outcome "interrupted".
    """

    def __init__(
        self,
        folder: Path,
        retentions: Mapping[str, Retention] | None = None,
        on_error: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder, self.retentions, self._on_error = folder, retentions or {}, on_error
        self._warned_at = -inf
        self._is_warned = False  # and not told yet that writing works again
        make_folder(folder)
        with ExitStack() as opened:  # nothing stays open after an error
            self._journal = opened.enter_context(closing(_open_journal(folder / JOURNAL)))
            self._table = opened.enter_context(closing(RequestTable(folder / TABLE, self.report)))
            self._purge_error: StoreError | None = None
            self._open_requests: dict[str, RequestRecorder] = {}
            runs = self._journal.runs()
            self._positions = {run.name: _last_position(self._journal, run.name) for run in runs}
            # by model
            self._remains = {run.name: at for run in runs if (at := run.metadata.get(REMAINS))}
            self._compact_after = -inf
            self._close_interrupted()
            opened.pop_all()

    @property
    def problem(self) -> str:
        """Why something cannot be written or deleted at present; "" if all is well."""
        error = self._table.error or self._journal.write_error or self._purge_error
        return str(error) if error else ""

    def begin(
        self,
        trace_id: str,
        owner: Caller,
        model: str,
        wire: str,
        retention: Retention,
        *,
        is_stored: bool = True,
        otel_trace_id: str | None = None,
        client_request_id: str | None = None,
    ) -> RequestRecorder:
        """Record that a request started. Returns at once.

        The result is what `refine` takes as `store`. `is_stored`: False if the client asks that
        nothing of it be kept. The last two: see `RequestFacts`.
        """
        level = "metadata" if retention.level == "full" and not is_stored else retention.level
        facts = RequestFacts(
            trace_id,
            time.time(),
            owner.id,
            owner.name,
            model,
            wire,
            level,
            otel_trace_id=otel_trace_id,
            client_request_id=client_request_id,
        )
        recorder = self._open_requests[trace_id] = RequestRecorder(self, facts)
        if level != "off":
            self._table.put(facts)
        return recorder

    def finish(self, trace_id: str, end: RequestEnd) -> RequestFacts:
        """Record how a request ended, and return its facts. Returns at once."""
        return self._open_requests[trace_id].finish(end)

    async def wait_for_commit(self) -> None:
        """Wait until what was recorded before is committed, so that it survives `kill -9`. Returns
        even if that fails.
        """
        # in this order: the commit of one puts rows in the other
        for part in (self._journal, self._table):
            try:
                await part.wait_for_commit()
            except StoreError as error:
                self.report(error)

    def find(self, trace_id: str) -> StoredRequest | None:
        """Return a request; None if the store has none of that ID. Blocks."""
        with suppress(StoreError):  # what could not be committed is in no file
            self._journal.flush()
        facts = self._table.find(trace_id)
        return StoredRequest(facts, _stored_trace(self._journal, facts)) if facts else None

    def purge(self) -> int:
        """Delete what its retention no longer allows, and return the number of requests. Blocks:
        call it in another thread.

        Afterwards the files together have no more bytes than the largest retention allows. Requests
        in progress are not deleted.
        """
        count = 0
        for model in self._table.models():
            retention = self.retentions.get(model, Retention())
            ids = self._table.surplus_ids(
                model, time.time() - retention.days * DAY, retention.megabytes * MEGABYTE
            )
            count += self._delete(model, ids)
        self._remove_remains()
        return count + self._fit_folder()

    def _delete(self, model: str, ids: list[str]) -> int:
        """Delete requests for a model, and return their number."""
        if ids and self._journal.has_run(model):
            if model not in self._remains:
                self._journal.update_run(model, **{REMAINS: (now := time.time())})
                self._remains[model] = now
            self._journal.erase(model, ids)
        if ids:
            self._table.delete(ids)
        return len(ids)

    def _fit_folder(self) -> int:
        """Delete the oldest requests until the files are small enough, and return their number."""
        limit = (
            max(
                (each.megabytes for each in self.retentions.values()), default=Retention().megabytes
            )
            * MEGABYTE
        )
        count = 0
        while (excess := self._bytes_without_logs() - limit) > 0:
            # few rounds: what is freed is whole pages
            oldest = self._table.oldest_ids(max(excess, limit / 100))
            if not oldest:
                break
            for model, ids in oldest.items():
                count += self._delete(model, ids)
            self._remove_remains()
        if sum(self._file_sizes().values()) > limit:
            self._journal.empty_log()
            self._table.delete([])
        return count

    def _bytes_without_logs(self) -> int:
        """Return how many bytes the files have once their logs are written into them, also while
        another process prevents that.
        """
        others = self._file_sizes()
        for name in (JOURNAL, TABLE):
            others.pop(name, None)
            others.pop(f"{name}-wal", None)
        return self._journal.size + self._table.size + sum(others.values())

    def _file_sizes(self) -> dict[str, int]:
        return {
            f"{name}{end}": size_of(self.folder / f"{name}{end}")
            for name in (JOURNAL, TABLE)
            for end in COMPANIONS
        }

    def _remove_remains(self) -> None:
        """Write the journal again if something of it was deleted: `erase` leaves copies that SQLite
        made of a text earlier.
        """
        now, is_small = time.time(), self._journal.size <= COMPACT_BYTES
        if not self._remains or not (
            is_small or now >= max(self._compact_after, min(self._remains.values()) + DAY)
        ):
            return
        self._compact_after = now + HOUR  # if it fails
        self._journal.compact()
        for model in filter(self._journal.has_run, self._remains):  # (the journal may be a new one)
            self._journal.update_run(model, **{REMAINS: None})
        self._journal.flush()  # which makes its log longer: before the files are measured
        self._remains.clear()

    async def maintain(self) -> None:
        """Purge now and every minute; after an error, try every few seconds until writing works
        again. Runs until cancelled.
        """
        due_at = -inf
        while True:
            if self.problem or time.monotonic() >= due_at:
                await run_in_thread(self._maintain_once)
                due_at = time.monotonic() + MAINTENANCE_SECONDS
            await asyncio.sleep(RECOVERY_SECONDS)

    def _maintain_once(self) -> None:
        """Open the journal again if that is needed, and purge."""
        try:
            self._reopen_journal()
            self.purge()
            self._purge_error = None
        except StoreError as error:
            self._purge_error = error
            self.report(error)
        if self._is_warned and not self.problem:
            self._is_warned = False
            store_log.warning("the store in %r can be written again", str(self.folder))

    def close(self) -> None:
        """Commit everything and release the files. Requests without an outcome get
        "interrupted".
        """
        for recorder in list(self._open_requests.values()):
            recorder.interrupt()
        self._journal.close()
        self._table.close()

    # --- for RequestRecorder ---

    @property
    def journal(self) -> Journal:
        """The journal that is open at present."""
        return self._journal

    def next_position(self, journal: Journal, model: str) -> int:
        """Return the position of a new row, and create its run if there is none."""
        if not journal.has_run(model):
            _write_run(journal, model)
        self._positions[model] = position = self._positions.get(model, -1) + 1
        return position

    def end(self, facts: RequestFacts, journal: Journal | None) -> None:
        """Record the last facts of a request, once the journal that has its trace, if there is one,
        has committed it.
        """
        self._open_requests.pop(facts.trace_id, None)
        if journal:
            self._table.announce(facts)
            journal.call_after_commit(partial(self._put_after_commit, facts, journal))
        elif facts.level != "off":
            self._table.put(facts)

    def _put_after_commit(self, facts: RequestFacts, journal: Journal) -> None:
        if journal.write_error:
            self.report(journal.write_error)
        self._table.put(facts)

    def report(self, error: StoreError) -> None:
        """Count an error, and log it unless one was logged within the last minute. May be called
        from any thread.
        """
        self._on_error()
        if (now := time.monotonic()) >= self._warned_at + WARNING_SECONDS:
            self._warned_at, self._is_warned = now, True
            # the rest of an error of a journal is about batches
            store_log.warning("%s", str(error).partition("; ")[0])

    def _reopen_journal(self) -> None:
        """Open the journal again if writing failed; requests in progress write their whole trace
        into it.

        Something is written to it, so that `problem` says whether that works.
        """
        if self._journal.write_error:
            self._journal.close()
            self._journal = _open_journal(self.folder / JOURNAL)
            # the run of the first request may not have been written
            for model in list(self._positions)[:1]:
                _write_run(self._journal, model)
            self._journal.flush()

    def _close_interrupted(self) -> None:
        """Give an outcome to what an earlier process left without: rows of the table, and traces
        that have no row there.
        """
        for facts in self._table.in_progress():
            self._table.put(self._last_facts(facts))
        for run in self._journal.runs():
            for id in self._table.missing_ids(self._journal.row_ids(run.name)):
                self._table.put(
                    self._last_facts(RequestFacts(id, time.time(), model=run.name, level="full"))
                )
        self._table.forget_announced()
        self._table.flush()

    def _last_facts(self, facts: RequestFacts) -> RequestFacts:
        """Return the last facts of a request of an earlier process: those announced, if its trace
        is complete.
        """
        announced, trace = (
            self._table.announced.get(facts.trace_id),
            _stored_trace(self._journal, facts),
        )
        if announced and trace and (trace.outcome or self._has_result(facts)):
            return announced
        return _interrupted_request(facts, trace)

    def _has_result(self, facts: RequestFacts) -> bool:
        """Return whether the journal has the result of a request, which is written last."""
        rows = self._journal.rows_by_id(facts.model, [facts.trace_id])
        return any(row.result is not None for row in rows.values())


def _write_run(journal: Journal, model: str) -> None:
    """Write the run of a model, whether it is a new one or not."""
    journal.update_run(model, model=model, invocation=1)


class RequestRecorder:
    """Records one request; `append` makes it a store for `refine`."""

    def __init__(self, store: RequestStore, facts: RequestFacts) -> None:
        self.facts = facts
        self._store, self._started = store, time.monotonic()
        self._trace: Trace | None = None
        self._journal: Journal | None = None
        self._record_count = 0
        self._trace_bytes = 0

    def append(self, trace: Trace) -> None:
        """Record the new records of a trace. Returns at once."""
        self._trace = trace
        if self.keeps_texts:
            try:
                self._write(trace)
            except StoreError as error:
                self._store.report(error)

    @property
    def keeps_texts(self) -> bool:
        """Whether the texts of the request are kept."""
        return self.facts.level == "full"

    async def wait_for_commit(self) -> None:
        """Wait until the texts that were recorded survive `kill -9`. Returns even if that fails,
        and at once if none are kept.
        """
        if self.keeps_texts:
            await self._store.wait_for_commit()

    def record_exchange(self, request: bytes, reply: bytes, usage: Usage | None = None) -> None:
        """Record a request that was passed on and its reply as they are, each up to
        MAX_EXCHANGE_BYTES. Returns at once.
        """
        if self.keeps_texts:
            trace = exchange_trace(request, reply, self.facts.model, usage or unknown_usage())
            try:
                self._write(trace)
                self._write_result(replace(row_result(trace), status="done"))
            except StoreError as error:
                self._store.report(error)

    def finish(self, end: RequestEnd) -> RequestFacts:
        """Record how the request ended, and return its facts. A second call changes nothing."""
        if self.facts.outcome is None:
            self._finish_row()
            changes = trace_facts(self._trace) | usage_facts(end.usage)
            changes |= {
                name: value
                for name in ("score", "iterations", "stop")
                if (value := getattr(end, name)) not in {None, ""}
            }
            changes |= {"status": end.status, "error": end.error, "cause": end.cause}
            self._end(changes, end.outcome)
        return self.facts

    def interrupt(self) -> None:
        """Record that the gateway ends before the request."""
        self._end(trace_facts(self._trace), "interrupted")

    def _end(self, changes: dict[str, Any], outcome: RequestOutcomeName) -> None:
        milliseconds = round((time.monotonic() - self._started) * 1000, 3)
        self.facts = replace(
            self.facts,
            outcome=outcome,
            milliseconds=milliseconds,
            trace_bytes=self._trace_bytes,
            **changes,
        )
        self._store.end(self.facts, self._journal)

    def _write(self, trace: Trace) -> None:
        """Write new records; all of them if the journal was opened again since the last call."""
        journal, id, model = self._store.journal, self.facts.trace_id, self.facts.model
        if journal is not self._journal:
            position = self._store.next_position(journal, model)
            header = dumps_text(trace.header())
            journal.begin_row(model, id, position, "", {}, header)
            self._journal, self._record_count, self._trace_bytes = journal, 0, len(header)
        lines = [record_to_json(record) for record in trace.records[self._record_count :]]
        if lines:
            journal.append_records(model, id, self._record_count, lines)
            self._record_count += len(lines)
            self._trace_bytes += sum(map(len, lines))

    def _finish_row(self) -> None:
        if self._trace is not None and self.keeps_texts:
            try:
                self._write(self._trace)
                self._write_result(row_result(self._trace))
            except StoreError as error:
                self._store.report(error)

    def _write_result(self, result: ResultFacts) -> None:
        """Write the result of a trace, so that `redraft view` shows its figures."""
        self._trace_bytes += len(result.answer or "") + RESULT_BYTES
        assert self._journal
        self._journal.finish_row(
            self.facts.model, self.facts.trace_id, result.status, result.to_data()
        )


def exchange_trace(request: bytes, reply: bytes, model: str, usage: Usage) -> Trace:
    """Return the trace of a request that was passed on: the bodies of the request and of the reply
    as texts.
    """
    prompt, text = (body[:MAX_EXCHANGE_BYTES].decode(errors="replace") for body in (request, reply))
    answer = Candidate(
        0, text, by=model, role="generate", truncated=len(reply) > MAX_EXCHANGE_BYTES, usage=usage
    )
    return (
        Trace(Task(prompt)) + answer + Outcome(0, StopReason.MAX_ITERATIONS, "passed on unrefined")
    )


@dataclass(frozen=True)
class StoredRequest:
    """A request of the store. `trace`: None if only the facts were kept."""

    facts: RequestFacts
    trace: Trace | None = field(default=None, repr=False)


def find_stored_requests(folder: Path, id: str) -> list[StoredRequest]:
    """Return the requests in the folder of a gateway, which may be running, that have an ID of one
    of the three kinds (see `find_requests`): one with its trace, or up to MAX_FOUND without. Raises
    StoreError.
    """
    found = find_requests(folder / TABLE, id, MAX_FOUND)
    if found and found[0].trace_id == id:
        del found[1:]
    if len(found) != 1 or found[0].level != "full" or not (folder / JOURNAL).is_file():
        return [StoredRequest(facts) for facts in found]
    with Journal(folder / JOURNAL, read_only=True) as journal:
        return [StoredRequest(found[0], _stored_trace(journal, found[0]))]


def _stored_trace(journal: Journal, facts: RequestFacts) -> Trace | None:
    return journal.trace(facts.model, facts.trace_id) if journal.has_run(facts.model) else None


def size_of(path: Path) -> int:
    """Return the bytes of a file; 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _open_journal(path: Path) -> Journal:
    journal = Journal(path)
    try:
        journal.use_incremental_vacuum()
    except BaseException:
        journal.close()
        raise
    return journal


def _last_position(journal: Journal, run: str) -> int:
    return max((position for position, *_ in journal.row_states(run).values()), default=-1)


def _interrupted_request(facts: RequestFacts, trace: Trace | None) -> RequestFacts:
    texts = [dumps_text(trace.header()), *map(record_to_json, trace.records)] if trace else []
    return replace(
        facts, outcome="interrupted", trace_bytes=sum(map(len, texts)), **trace_facts(trace)
    )


def trace_facts(trace: Trace | None) -> dict[str, Any]:
    """Return the facts that a trace tells."""
    if trace is None:
        return {}
    stop = str(trace.outcome.reason) if trace.outcome else ""
    return {
        "score": trace.score,
        "iterations": trace.iterations,
        "stop": stop,
        **usage_facts(trace.usage),
    }


def usage_facts(usage: Usage | None) -> dict[str, Any]:
    """Return the facts that a usage tells; none if there is no usage."""
    return {name: getattr(usage, name) for name in USAGE_FACTS} if usage is not None else {}
