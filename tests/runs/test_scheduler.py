"""The scheduler alone, with a fake clock: which row starts when, and how a run ends."""

import asyncio

import pytest

from fake_clock import FakeClock
from redraft import Feedback
from redraft.errors import StoreError
from redraft.loop.records import Usage
from redraft.protocols import Reply
from redraft.runs import BatchRun
from redraft.runs.progress import BatchProgress
from redraft.runs.scheduler import ROWS_PER_TURN, SOFT_ENDS, Scheduler
from redraft.storage.journal import Journal


class Endpoints:
    """Endpoints with a number of slots for calls; every call that starts, waits and ends is
    logged.
    """

    def __init__(self, log, room=10**6):
        self.log, self.size, self.calls, self.closed = log, room, 0, None
        self.change, self.idle = asyncio.Event(), asyncio.Event()

    @property
    def limit(self):
        return self.size

    @property
    def free_slots(self):
        return self.size - self.calls

    async def wait_for_free_slots(self):
        await self.change.wait()

    async def call(self, row, seconds):
        """A call of a row; once closed it never starts."""
        if self.closed is not None:
            await asyncio.get_running_loop().create_future()
        self.calls += 1
        self.log.append(f"{row} asks")
        try:
            await asyncio.sleep(seconds)
            self.log.append(f"{row} hears")
        finally:
            self.calls -= 1
            self.change.set()
            self.change = asyncio.Event()
            if not self.calls:
                self.idle.set()

    def close(self, *, now=False):
        self.closed = now
        self.log.append("closed now" if now else "closed")
        if now or not self.calls:
            self.idle.set()

    async def wait_until_quiet(self):
        await self.idle.wait()
        await asyncio.sleep(0)
        self.log.append("quiet")


class Rows:
    """A handler whose rows make calls with these durations in seconds, one after the other."""

    has_capacity = True

    def __init__(self, endpoints, calls, finished=()):
        self.endpoints, self.calls, self.finished, self.log = (
            endpoints,
            calls,
            finished,
            endpoints.log,
        )
        self.saved = asyncio.Event()

    async def read(self):
        for row in self.calls:
            yield row

    async def visit(self, row):
        self.log.append(f"{row} seen")
        return row not in self.finished

    async def run(self, row):
        self.log.append(f"{row} starts")
        try:
            for seconds in self.calls[row]:
                if isinstance(seconds, Exception):
                    raise seconds
                await self.endpoints.call(row, seconds)
        except asyncio.CancelledError:
            self.log.append(f"{row} cancelled")
            raise
        self.log.append(f"{row} ends")

    async def skip(self, row):
        self.log.append(f"{row} skipped")

    async def wait_for_capacity(self):
        await asyncio.Event().wait()


def play(calls, *, room=10**6, max_rows=100, finished=(), meanwhile=None):
    """Run rows by the fake clock; return the log, the scheduler and the time that it took."""

    async def main():
        log = []
        endpoints = Endpoints(log, room)
        rows = Rows(endpoints, calls, finished)
        scheduler = Scheduler(endpoints, BatchProgress(), lambda: max_rows)
        work = asyncio.ensure_future(scheduler.run(scheduler.process(rows.read(), rows)))
        if meanwhile:
            await meanwhile(scheduler, work)
        await asyncio.wait([work])
        if not work.cancelled():
            await work
        assert scheduler.progress.under_way == 0
        return log, scheduler, asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=FakeClock) as runner:
        return runner.run(main())


def of(log, *words):
    return [line for line in log if line.split()[-1] in words]


def test_rows_start_in_order_and_all_end():
    """In the order of the data, however long each takes; the run ends with the last."""
    log, scheduler, seconds = play({"a": [3], "b": [1], "c": [2]})
    assert of(log, "starts") == ["a starts", "b starts", "c starts"]
    assert of(log, "ends") == ["b ends", "c ends", "a ends"]
    assert (scheduler.reason, seconds) == ("", 3)


def test_finished_rows_are_seen_and_not_run():
    """In their turn, like all others."""
    log, _, _ = play({"a": [1], "b": [1], "c": [1]}, finished={"b"})
    assert of(log, "seen") == ["a seen", "b seen", "c seen"]
    assert of(log, "starts") == ["a starts", "c starts"]


def test_rows_under_way_come_first():
    """With room for one call, a row makes its second before another row starts."""
    log, _, seconds = play({"a": [1, 1], "b": [1, 1]}, room=1)
    assert log.index("a ends") < log.index("b starts")
    assert seconds == 4


@pytest.mark.parametrize(("slots", "seconds"), [(1, 100), (10, 10), (100, 1)])
def test_as_many_rows_start_in_a_turn_as_there_are_free_slots(slots, seconds):
    """Up to 32 of them; no row starts before there is a slot for its call, and no slot stays
    free.
    """
    log, _, took = play({f"r{n}": [1] for n in range(100)}, room=slots)
    # tasks run when the scheduler waits: rows before this line were seen in the same turn
    group = log.index("r0 starts")
    assert (group, took) == (min(slots, ROWS_PER_TURN), seconds)
    under_way = most = 0
    for line in of(log, "starts", "ends"):
        under_way += 1 if line.endswith("starts") else -1
        most = max(most, under_way)
    assert most == slots


@pytest.mark.parametrize(("max_rows", "seconds"), [(1, 6), (2, 3), (6, 1)])
def test_no_more_rows_are_under_way_than_may_be(max_rows, seconds):
    """Each start waits for an end."""
    log, _, took = play({f"r{n}": [1] for n in range(6)}, max_rows=max_rows)
    under_way = most = 0
    for line in of(log, "starts", "ends"):
        under_way += 1 if line.endswith("starts") else -1
        most = max(most, under_way)
    assert (most, took) == (max_rows, seconds)


@pytest.mark.parametrize("reason", sorted(SOFT_ENDS))
def test_when_budget_or_time_is_exhausted_rows_under_way_end_by_themselves(reason):
    """No endpoint is closed; rows that have not started are skipped, in order."""

    async def meanwhile(scheduler, _):
        await asyncio.sleep(0.5)
        scheduler.end(reason, "too little")

    log, scheduler, seconds = play(
        {"a": [2], "b": [1], "c": [1], "d": [1]}, max_rows=2, meanwhile=meanwhile
    )
    assert of(log, "starts", "skipped") == ["a starts", "b starts", "c skipped", "d skipped"]
    assert of(log, "ends") == ["b ends", "a ends"]
    assert not [line for line in log if "closed" in line]
    assert (scheduler.reason, scheduler.message, seconds) == (reason, "too little", 2)


@pytest.mark.parametrize("reason", ["interrupted", "outage", "fatal"])
def test_a_hard_end_closes_the_endpoints_waits_for_calls_and_then_cancels_rows(reason):
    """In that order: a call in flight is heard, its row asks nothing more, and no row starts or is
    skipped.
    """

    async def meanwhile(scheduler, _):
        await asyncio.sleep(0.5)
        scheduler.end(reason, "why")

    log, scheduler, seconds = play(
        {"a": [2, 9], "b": [1, 9], "c": [1]}, max_rows=2, meanwhile=meanwhile
    )
    end = log[log.index("closed") :]
    assert end[:4] == ["closed", "b hears", "a hears", "quiet"]
    assert sorted(end[4:]) == ["a cancelled", "b cancelled"]
    assert not of(log, "skipped") and "c starts" not in log
    assert (scheduler.reason, seconds) == (reason, 2)


def test_a_second_stop_does_not_wait_for_calls():
    """Rows are cancelled at once."""

    async def meanwhile(scheduler, _):
        await asyncio.sleep(0.5)
        scheduler.end("interrupted", "")
        await asyncio.sleep(0.25)
        scheduler.end("interrupted", "", now=True)

    log, _, seconds = play({"a": [5]}, meanwhile=meanwhile)
    assert "a hears" not in log and "a cancelled" in log
    assert seconds == 0.75


def test_cancellation_ends_the_run_at_once():
    """It is raised again, after the rows were cancelled."""

    async def meanwhile(_, work):
        await asyncio.sleep(0.5)
        work.cancel()

    log, scheduler, seconds = play({"a": [5], "b": [5]}, meanwhile=meanwhile)
    assert sorted(of(log, "cancelled")) == ["a cancelled", "b cancelled"]
    assert log.index("quiet" if "quiet" in log else "closed now") < log.index("a cancelled")
    assert (scheduler.reason, seconds) == ("interrupted", 0.5)


@pytest.mark.parametrize(
    ("error", "reason", "message"),
    [
        (StoreError("no room"), "disk", "no room"),
        (RuntimeError("a fault"), "fatal", "RuntimeError"),
    ],
)
def test_an_error_that_a_row_raises_ends_the_run(error, reason, message):
    """An error outside the row's result ends all rows; calls in flight are not awaited. Its text
    may be that of a row.
    """
    log, scheduler, seconds = play({"a": [1, error], "b": [9]})
    assert "b cancelled" in log
    assert (scheduler.reason, scheduler.message, scheduler.detail, seconds) == (
        reason,
        message,
        str(error),
        1,
    )


@pytest.mark.parametrize(
    ("ends", "counts"),
    [
        (["budget", "interrupted"], "interrupted"),
        (["interrupted", "budget"], "interrupted"),
        (["budget", "deadline"], "budget"),
    ],
)
def test_the_first_end_counts_unless_a_hard_end_follows(ends, counts):
    """A hard end replaces a soft one."""

    async def meanwhile(scheduler, _):
        await asyncio.sleep(0.5)
        for reason in ends:
            scheduler.end(reason, reason)

    _, scheduler, _ = play({"a": [1]}, meanwhile=meanwhile)
    assert (scheduler.reason, scheduler.message) == (counts, counts)


def test_a_lost_file_is_the_reason_whatever_else_has_ended_the_run():
    """The user has to act on it."""

    async def meanwhile(scheduler, _):
        await asyncio.sleep(0.5)
        scheduler.end("interrupted", "")
        scheduler.replace_end("disk", "it is gone")

    _, scheduler, _ = play({"a": [1]}, meanwhile=meanwhile)
    assert (scheduler.reason, scheduler.message) == ("disk", "it is gone")


@pytest.mark.parametrize(("seconds", "met", "took"), [(10, True, 2), (1, False, 1)])
def test_waiting_for_rows_ends_with_the_condition_or_the_time(seconds, met, took):
    """It ends when the rows have met the condition or when the time is over."""
    outcome = {}

    async def meanwhile(scheduler, _):
        done = asyncio.Event()
        asyncio.get_running_loop().call_later(2, done.set)
        clock = asyncio.get_running_loop().time
        asyncio.get_running_loop().call_later(2, scheduler._change.set)
        await scheduler.wait_until(done.is_set, seconds)
        outcome.update(met=done.is_set(), took=clock())

    play({"a": [5]}, meanwhile=meanwhile)
    assert outcome == {"met": met, "took": took}


class Logging:
    """A model that logs its calls; every answer is paid for."""

    name = identity = "m"

    def __init__(self, log):
        self.log = log

    async def complete(self, request):
        self.log.append("ask")
        await asyncio.sleep(0)
        return Reply(f"answer {len(self.log)}", Usage(1, 1, 1, cost=0.001))


async def test_an_answer_is_saved_before_the_next_call_of_its_row(tmp_path, monkeypatch):
    """Between two calls of a row its records are appended and committed."""
    log, append_records, wait_for_commit = [], Journal.append_records, Journal.wait_for_commit

    def logged_append(self, *given):
        log.append("append")
        return append_records(self, *given)

    async def logged_commit(self):
        await wait_for_commit(self)
        log.append("commit")

    monkeypatch.setattr(Journal, "append_records", logged_append)
    monkeypatch.setattr(Journal, "wait_for_commit", logged_commit)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "say something"}\n')
    run = BatchRun.from_arguments(
        tmp_path / "rows.jsonl",
        None,
        Logging(log),
        lambda _: Feedback(0.1, "", ("more",)),
        journal=tmp_path / "j",
    )
    report = await run.go()
    calls = [i for i, what in enumerate(log) if what == "ask"]
    assert (report.rows.done, len(calls) > 1) == (1, True)
    for before, after in zip(calls, calls[1:], strict=False):
        between = log[before + 1 : after]
        assert "commit" in between[between.index("append") :]
