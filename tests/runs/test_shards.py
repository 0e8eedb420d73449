"""Runs in several shards, here in one process: how work is divided, how it ends, how results are
merged.
"""

import asyncio
import json
import pickle
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import dataclass, field, replace
from shutil import copyfile
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft import Budget, Feedback, Task
from redraft.errors import BudgetExhaustedError, ConfigError, ModelError, StoreError
from redraft.loop.trace import Trace
from redraft.middleware import EndpointLimiter
from redraft.middleware.call_costs import ZERO_AMOUNTS
from redraft.protocols import Reply
from redraft.runs import BatchRun, EndpointLimits, api
from redraft.runs.dataset import BatchRow, PendingRow
from redraft.runs.endpoints import LimitedEndpoints
from redraft.runs.executors.shard_protocol import (
    COUNTED,
    AssignedRow,
    Orders,
    Quota,
    QuotaSplitter,
    QuotaUse,
    Refusal,
    ShardStatus,
)
from redraft.runs.executors.shard_worker import ReceivedRows, ShardBudget, ShardWorker
from redraft.runs.executors.sharded import Coordinator, RemoteEndpoints, merge_shards
from redraft.runs.progress import BatchProgress
from redraft.session.options import Options
from redraft.storage.journal import Journal, RowInfo
from redraft.storage.shard_merge import shard_journals
from redraft.usage import Usage

ROWS = 24


class RecordingModel:
    """A model that answers by the prompt alone and records the prompts."""

    name, identity, formats = "m", "m", ("text",)

    def __init__(self, pause=0.001):
        self.asked, self.pause, self.now, self.most = [], pause, 0, 0

    async def complete(self, request):
        words = request.messages[-1]["content"]
        self.asked.append(words)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.pause)
        finally:
            self.now -= 1
        return Reply(f"{len(words)} {words[::-1]}"[:200], Usage(1, 10, 5, cost=2**-10))


class HeldModel(RecordingModel):
    """Answers twenty calls at once; later calls wait until the run was stopped, and then take
    long.
    """

    def __init__(self):
        super().__init__()
        self.stopped = threading.Event()

    async def complete(self, request):
        reply = await super().complete(request)
        if len(self.asked) > 20:
            while not self.stopped.is_set():
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.3)
        return reply


class RefusingModel(RecordingModel):
    """Refuses requests with a system role or a temperature."""

    def __init__(self):
        super().__init__()
        self.refused = []

    async def complete(self, request):
        if any(message["role"] == "system" for message in request.messages):
            self.refuse("System role not supported")
        if request.temperature is not None and "temperature" not in request.unsupported_parameters:
            self.refuse("Unsupported parameter: 'temperature' is not supported with this model.")
        return await super().complete(request)

    def refuse(self, words):
        self.refused.append(words)
        raise ModelError(words, status=400, usage=Usage(1, 0, 0, cost=0.0))


def length(text):
    """A score that grows with the length, up to a limit."""
    return Feedback(score=min(1.0, len(text) / 100), actions=("say more",))


class LocalWorker(ShardWorker):
    """A worker in this process."""

    def _load(self, rows):
        return rows.value if rows else ()


class LocalPool:
    """Workers in this process."""

    worker, setting = LocalWorker, "ray"

    def __init__(self, address, workers):
        self.size = workers or 3

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    def dumps(self, value):
        return Held(value)

    def start_worker(self):
        return self.worker()


@dataclass(frozen=True)
class Held:
    """A value that is not pickled."""

    value: object


class DyingWorker:
    """Dies after each answer, and is started again."""

    async def run(self, shard):
        self.gone = asyncio.Event()
        await self.gone.wait()
        return await ShardWorker().exchange(Orders(1, "", Quota()))

    async def exchange(self, orders):
        if orders.stop:
            self.gone.set()
        return await ShardWorker().exchange(replace(orders, process=""))


class DyingPool(LocalPool):
    worker = DyingWorker


@pytest.fixture
def local_shards(monkeypatch):
    monkeypatch.setattr(api, "RayPool", LocalPool)


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(
            json.dumps({"id": f"r{n}", "prompt": "word " * (n % 7 + 1) + str(n)}) + "\n"
            for n in range(ROWS)
        )
    )
    return path


def go(rows, output, model, **given):
    run = BatchRun.from_arguments(
        rows, output, model, length, **{"ray": "local", "workers": 3, **given}
    )
    report = asyncio.run(run.go())
    assert_progress_is_final(run.progress, report)
    return report


def assert_progress_is_final(progress, report):
    """Whoever shows the progress shows the figures of the report once the run has ended, however it
    ended.
    """
    names = ("done", "failed", "reused", "unfinished", "not_started", "bad")
    assert {name: getattr(progress, name) for name in names} == {
        name: getattr(report.rows, name) for name in names
    }
    paid = report.spending
    assert (progress.usage, progress.cache_savings) == (paid.usage, paid.cache_savings)
    assert (progress.state, progress.in_flight, progress.ended_at is None) == (
        report.stop or "finished",
        0,
        False,
    )


def journal_content(journal, run):
    with closing(Journal(journal, read_only=True)) as opened:
        return [(note, trace.records) for note, trace in opened.traces(run)]


def test_shards_give_the_result_of_one_process(tmp_path, rows, local_shards):
    """The output is the same byte for byte, the journal has the same rows and records, the report
    the same figures.
    """
    alone, shared = RecordingModel(), RecordingModel()
    one = go(rows, tmp_path / "a.jsonl", alone, ray=None, workers=None)
    many = go(rows, tmp_path / "b.jsonl", shared)
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()
    assert sorted(alone.asked) == sorted(shared.asked)
    assert [row for row, _ in journal_content(tmp_path / "b.jsonl.journal", "b-jsonl")] == [
        row for row, _ in journal_content(tmp_path / "a.jsonl.journal", "a-jsonl")
    ]
    assert (many.rows.done, many.rows.reused, many.spending.usage, many.scores.uplift) == (
        one.rows.done,
        0,
        one.spending.usage,
        pytest.approx(one.scores.uplift),
    )
    assert shard_journals(tmp_path / "b.jsonl.journal") == []


def test_a_finished_run_makes_no_call(tmp_path, rows, local_shards):
    """It makes none with or without shards, however it ran before."""
    model = RecordingModel()
    go(rows, tmp_path / "a.jsonl", model)
    written, asked = (tmp_path / "a.jsonl").read_bytes(), len(model.asked)
    for how in [dict(), dict(workers=5), dict(ray=None, workers=None)]:
        report = go(rows, tmp_path / "a.jsonl", model, **how)
        assert (report.rows.reused, len(model.asked), (tmp_path / "a.jsonl").read_bytes()) == (
            ROWS,
            asked,
            written,
        )


@pytest.mark.slow
@pytest.mark.parametrize("after", [dict(workers=2), dict(workers=5), dict(ray=None, workers=None)])
def test_an_interrupted_run_resumes_with_any_number_of_shards(tmp_path, rows, local_shards, after):
    """Finished rows are written at once, no call is repeated, and the result is the same."""
    whole, model = RecordingModel(), HeldModel()
    go(rows, tmp_path / "whole.jsonl", whole, ray=None, workers=None)

    async def stop_and_wait():
        run = BatchRun.from_arguments(
            rows, tmp_path / "a.jsonl", model, length, ray="local", workers=3, max_in_flight=3
        )
        going = asyncio.ensure_future(run.go())
        while len(model.asked) < 20 and not going.done():
            await asyncio.sleep(0.005)
        run.stop()
        model.stopped.set()
        report = await going
        assert_progress_is_final(run.progress, report)
        return report

    report = asyncio.run(stop_and_wait())
    assert (report.stop, report.resumable) == ("interrupted", True), report.stop_note
    written = len((tmp_path / "a.jsonl").read_text().splitlines())
    assert 0 < report.rows.done <= written == report.rows.done + report.rows.unfinished < ROWS
    assert go(rows, tmp_path / "a.jsonl", model, **after).stop == ""
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert sorted(model.asked) == sorted(whole.asked)


def test_the_progress_of_a_run_has_what_its_shards_have_done(tmp_path, rows, local_shards):
    """While they go on: here all calls but about twenty are held until it does."""
    model = HeldModel()

    async def watch():
        run = BatchRun.from_arguments(
            rows,
            tmp_path / "a.jsonl",
            model,
            length,
            ray="local",
            workers=3,
            max_in_flight=3,
            max_iterations=0,
        )
        going = asyncio.ensure_future(run.go())
        async with asyncio.timeout(60):
            while (seen := run.progress).usage.calls < 15 or not seen.done:
                await asyncio.sleep(0.005)
            assert (seen.ended_at, seen.done + seen.under_way <= ROWS) == (None, True)
            # (the means of shards in this process are those of now)
            assert min(seen.first.n, seen.best.n) >= seen.done
            assert seen.usage.cost == seen.usage.calls * 2**-10
            model.stopped.set()
            assert (await going).rows.done == ROWS

    asyncio.run(watch())


class LongAnswerModel(RecordingModel):
    """Writes as many tokens as allowed and counts them."""

    formats = ("text",)
    written = read = 0

    async def complete(self, request):
        await super().complete(request)
        written, read = (
            min(3000, request.max_tokens or 3000),
            len(request.messages[-1]["content"]) // 4 + 4,
        )
        self.written, self.read = self.written + written, self.read + read
        return Reply(
            f"{len(self.asked)} " + "word" * 5, Usage(1, read, written, cost=None), "length"
        )


@pytest.mark.parametrize("limit", ["output_tokens", "tokens"])
@pytest.mark.parametrize("shards", [1, 3, 8])
@pytest.mark.slow(but_each=3)
def test_shards_keep_a_token_budget(tmp_path, rows, local_shards, limit, shards):
    """With the longest possible answers the limit is not exceeded, and the report has the tokens
    spent.
    """
    model = LongAnswerModel()
    report = go(
        rows,
        tmp_path / "a.jsonl",
        model,
        workers=shards,
        budget=Budget(**{limit: 20_000}),
        max_in_flight=24,
    )
    assert report.stop == "budget"
    assert 10_000 < model.written + model.read * (limit == "tokens") <= 20_000
    assert report.spending.usage.tokens == model.written + model.read
    assert not report.spending.excess


@pytest.mark.slow
def test_shards_share_one_budget(tmp_path, rows, local_shards):
    """It is spent to the last call by the shards that need it; every row is in the output, and a
    larger budget resumes the run.
    """
    whole, model = RecordingModel(), RecordingModel()
    go(rows, tmp_path / "whole.jsonl", whole, ray=None, workers=None)
    most = len(whole.asked) // 2
    report = go(rows, tmp_path / "a.jsonl", model, budget=Budget(calls=most), max_in_flight=6)
    assert (report.stop, len(model.asked)) == ("budget", most)
    assert report.stop_note.startswith(f"the budget of {most} calls is used up")
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == ROWS
    assert report.rows.done > 0
    assert report.rows.not_started > 0
    report = go(rows, tmp_path / "a.jsonl", model, budget=Budget(calls=len(whole.asked)))
    assert (report.stop, len(model.asked)) == ("", len(whole.asked))
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_shards_share_one_deadline(tmp_path, rows, local_shards):
    """Every row is in the output when the time is up."""
    report = go(rows, tmp_path / "a.jsonl", RecordingModel(0.4), deadline=1.0, max_in_flight=6)
    assert report.stop == "deadline"
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == ROWS


def test_a_journal_that_a_worker_cannot_reach_is_named(tmp_path, rows, monkeypatch):
    """Where the machines share no file system, the error says so before any call."""

    class RemoteWorker(LocalWorker):
        async def run(self, shard):
            return await super().run(replace(shard, journal=tmp_path / "nowhere" / "j.1-of-3"))

    class RemotePool(LocalPool):
        worker = RemoteWorker

    monkeypatch.setattr(api, "RayPool", RemotePool)
    model = RecordingModel()
    report = go(rows, tmp_path / "a.jsonl", model)
    assert (report.stop, model.asked) == ("disk", [])
    assert (
        "nowhere" in report.stop_note
        and "a file system that all machines share" in report.stop_note
    )


async def test_a_limiter_is_resized_while_calls_wait():
    """A lower limit cancels no call and lets none start; a higher one lets calls start, and new
    rates apply from then on.
    """
    gate = EndpointLimiter("m", initial=4, maximum=4, queue_seconds=0, rpm=1_000_000)
    places = [await gate.acquire() for _ in range(3)]
    gate.resize(1, 1_000_000, None)
    waiting = asyncio.ensure_future(gate.acquire())
    await asyncio.sleep(0)
    assert (gate.in_flight, gate.queue_length, gate.limit) == (3, 1, 1)
    gate.resize(8, 60, None)
    for place in places:
        gate.record_success(place, Reply("a"))
        gate.release()
    gate.record_success(await asyncio.wait_for(waiting, 60), Reply("a"))
    gate.release()
    assert gate.limit == 2
    # a second's worth is one call now
    late = [asyncio.ensure_future(gate.acquire()) for _ in range(2)]
    await asyncio.sleep(0.05)
    assert gate.queue_length >= 1
    for one in late:
        one.cancel()


def test_shards_share_the_limit_of_calls_in_flight(tmp_path, rows, local_shards):
    """All shards together never have more in flight than the run may."""
    model = RecordingModel(0.01)
    go(
        rows,
        tmp_path / "a.jsonl",
        model,
        max_in_flight=4,
        limits=EndpointLimits(initial_in_flight=64, min_in_flight=2),
    )
    assert model.most <= 4


def test_all_shards_use_cached_answers_of_earlier_runs(tmp_path, rows, local_shards):
    """Rows that are redone for a changed setting use the journal's call cache."""
    model = RecordingModel()
    paid = go(rows, tmp_path / "a.jsonl", model, max_iterations=1)
    before = len(model.asked)
    report = go(rows, tmp_path / "a.jsonl", model, max_iterations=1, min_delta=0.02)
    assert (len(model.asked), report.rows.reused, report.spending.usage.cached_calls) == (
        before,
        0,
        before,
    )
    assert (paid.spending.cache_savings, report.spending.cache_savings) == (
        0,
        paid.spending.usage.cost,
    )
    assert paid.spending.usage.cost > 0 == report.spending.usage.cost


def test_shards_retry_failed_rows(tmp_path, rows, local_shards):
    """`retry` works in shards, and only for those rows."""
    working = RecordingModel()

    class FailingModel(RecordingModel):
        async def complete(self, request):
            if request.messages[0]["content"].endswith("3"):
                raise ValueError("no threes")
            return await working.complete(request)

    report = go(rows, tmp_path / "a.jsonl", FailingModel())
    assert (report.rows.failed, report.stop) == (3, "")
    report = go(rows, tmp_path / "a.jsonl", working, retry=["failed"])
    assert (report.rows.failed, report.rows.done, report.rows.reused) == (0, ROWS, ROWS - 3)


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("first", [dict(ray=None, workers=None), dict(workers=1), dict(workers=4)])
def test_shards_know_what_endpoints_have_refused(tmp_path, local_shards, first):
    """Neither a system role nor a temperature is tried again in a later start of the run, however
    it ran before.
    """
    rows = [
        {
            "id": f"r{n}",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": f"Task {n}"},
            ],
        }
        for n in range(12)
    ]
    model, output = RefusingModel(), tmp_path / "a.jsonl"
    given = dict(temperature=0.5, max_iterations=0)
    assert go(rows[:6], output, model, **first, **given).rows.done == 6
    assert {words[:11] for words in model.refused} == {"System role", "Unsupported"}
    model.refused.clear()
    report = go(rows, output, model, workers=3, **given)
    assert (report.rows.done, report.rows.reused, model.refused) == (12, 6, [])


def test_unreadable_rows_are_reported_once(tmp_path, rows, local_shards):
    """They are in the errors file, and the shards continue."""
    rows.write_text(rows.read_text() + "{broken\n")
    report = go(rows, tmp_path / "a.jsonl", RecordingModel())
    assert (report.rows.bad, report.rows.done) == (1, ROWS)
    assert len((tmp_path / "a.jsonl.errors.jsonl").read_text().splitlines()) == 1


def test_a_shard_that_keeps_dying_ends_the_run(tmp_path, rows, monkeypatch):
    """A row or a machine that kills every worker is not retried for ever."""
    monkeypatch.setattr(api, "RayPool", DyingPool)
    report = go(rows, tmp_path / "a.jsonl", RecordingModel())
    assert report.stop == "fatal"
    assert "has died" in report.stop_note


def test_the_results_of_a_shard_are_merged_once(tmp_path, rows, local_shards):
    """A shard file that was merged but not removed changes nothing when found again, least of all
    the amount spent.
    """
    with Journal(tmp_path / "j") as whole:
        whole.update_run("r", spent={"calls": 2.0})
        with Journal(tmp_path / "j.1-of-2") as part:
            part.update_run("r", leg="x", spent={"calls": 5.0})
            part.begin_row("r", "a", 0, "key", {}, "{}")
            part.finish_row("r", "a", "done", {"b": 1})
        copyfile(tmp_path / "j.1-of-2", tmp_path / "copy")
        merge_shards(whole)
        copyfile(tmp_path / "copy", tmp_path / "j.1-of-2")
        merge_shards(whole)
        assert whole.run("r").metadata["spent"]["calls"] == 7
        assert whole.run("r").counts == {"open": 0, "done": 1, "failed": 0}
        assert shard_journals(tmp_path / "j") == []


def test_a_locked_shard_file_is_waited_for_and_then_named(tmp_path, monkeypatch):
    """It may belong to a worker of a run whose driver died."""
    monkeypatch.setattr("redraft.storage.shard_merge.LOCK_TIMEOUT", 0.2)
    with Journal(tmp_path / "j") as whole, Journal(tmp_path / "j.1-of-2"):
        whole.update_run("r")
        with Journal(tmp_path / "j.2-of-2") as part:
            part.update_run("r")
            with pytest.raises(StoreError, match="j.1-of-2.*is held by"):
                merge_shards(whole)


@pytest.mark.parametrize("held", [False, True])
def test_a_lock_without_a_shard_file_is_removed(tmp_path, held):
    """A worker may be killed before it has created its journal, or be about to end when the next
    run begins.
    """
    hold = "import sys, pathlib; from redraft.storage.secure_files import PathLock; lock = PathLock(pathlib.Path(sys.argv[1]), 'it'); print(flush=True)"
    with Journal(tmp_path / "j") as whole:
        whole.update_run("r")
        command = [sys.executable, "-c", hold + "; input()", str(tmp_path / "j.2-of-2")]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        worker.stdout.readline()
        killing = threading.Timer(0.3 if held else 0.0, worker.kill)
        killing.start()
        if not held:
            worker.wait()
        merge_shards(whole)
        worker.communicate()
        assert sorted(path.name for path in tmp_path.glob("j*.lock")) == ["j.lock"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (dict(engine="spark"), "engine must be one of local, ray, provider-batch, got 'spark'"),
        (dict(ray="local", workers=0), "workers must be a whole number >= 1 or None, got 0"),
        (dict(ray="local", on_record=print), "on_record is not possible with ray: rows are"),
        (dict(ray="local", pilot=2), "pilot is not possible with ray: leave out one of them"),
        (dict(ray="auto", engine="provider-batch"), "ray needs engine 'local', got engine 'prov"),
    ],
)
def test_invalid_settings_are_refused_at_once(given, said):
    """The error comes before the data are read."""
    with pytest.raises(ConfigError) as raised:
        BatchRun.from_arguments("rows.jsonl", "a.jsonl", **given)
    assert said in str(raised.value)


# ---- quotas

demands = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans()), max_size=60)


class SimulatedShards:
    """Shards that use their quota at any moment and receive new quotas late or never."""

    def __init__(self, shares, of):
        self.shares, self.sent, self.keeps = shares, [None] * of, [Quota()] * of
        self.taken, self.flying, self.waiting = [0] * of, [0] * of, [None] * of

    def step(self, k, wish, arrives):
        share = self.sent[k]
        if share is None:
            self.sent[k] = self.shares.next(k)
        elif arrives:
            self.keeps[k], self.sent[k] = share, None
            self.use(k, wish)
            short = dict.fromkeys(("input_tokens", "output_tokens", "tokens", "usd"), 0.0) | {
                "calls": 1.0
            }
            money = {"calls": float(self.taken[k])}
            self.shares.update(
                k,
                QuotaUse(
                    share,
                    self.flying[k],
                    wish > 0,
                    money,
                    money,
                    short if self.waiting[k] else None,
                ),
            )

    def use(self, k, wish):
        may = int(self.keeps[k].amounts["calls"]) - self.taken[k]
        self.flying[k] = min(wish, self.keeps[k].in_flight)
        self.taken[k] += min(wish, max(0, may))
        self.waiting[k] = wish > may


@given(st.integers(1, 4), st.integers(4, 20), st.integers(0, 30), demands)
def test_quotas_never_exceed_the_total(of, in_flight, calls, demands):
    """However late quotas arrive, all shards together stay within the total."""
    world = SimulatedShards(QuotaSplitter([1] * of, in_flight, budget=Budget(calls=calls)), of)
    for k, wish, arrives in demands:
        world.step(k % of, wish, arrives)
        assert sum(world.taken) <= calls
        assert sum(share.in_flight for share in world.keeps) <= in_flight


@given(st.integers(1, 4), st.integers(0, 30))
def test_a_busy_shard_gets_what_idle_shards_leave(of, calls):
    """The total is used to the last call."""
    world = SimulatedShards(QuotaSplitter([1] * of, 8, budget=Budget(calls=calls)), of)
    for _ in range(8 * (calls + 2)):
        for k in range(of):
            world.step(k, 3 if k == 0 else 0, arrives=True)
    assert world.taken[0] == calls
    end = "used up" if calls else "too small"
    assert world.keeps[0].refusal.message.startswith(
        f"the budget of {calls} call{'s' * (calls != 1)} is {end}"
    )


class PlanningShards:
    """Shards of `rows` rows, of which each needs a call in any case and may plan more. They die,
    and quotas arrive late or never.
    """

    def __init__(self, rows, calls):
        n = len(rows)
        self.quotas, self.sent = QuotaSplitter(rows, 4 * n, budget=Budget(calls=calls)), [None] * n
        self.quota, self.is_open = [Quota()] * n, [True] * n
        self.is_exchanging, self.answers = [False] * n, [None] * n
        self.rows, self.spent, self.reserved, self.extra = list(rows), [0] * n, [0] * n, [0] * n

    def planned(self, k):
        return self.spent[k] + self.reserved[k] + self.rows[k] + self.extra[k]

    def committed(self, k):
        return self.spent[k] + self.reserved[k]

    def is_short(self, k):
        return bool(self.rows[k] or self.extra[k]) and self.committed(k) + 1 > self.quota[
            k
        ].amounts.get("calls", 0)

    def send(self, k):
        if not self.is_exchanging[k]:
            self.is_exchanging[k], self.sent[k], self.answers[k] = True, self.quotas.next(k), None

    def obey(self, k):
        """Apply the quota that was sent, and answer. A worker that has not opened its journal does
        not know its use.
        """
        if self.sent[k] is None:
            return
        self.quota[k], self.sent[k] = self.sent[k], None
        assert self.quota[k].refusal is None
        if self.is_open[k]:
            spent, committed, planned = (
                {"calls": amount} for amount in (self.spent[k], self.committed(k), self.planned(k))
            )
            short = {**ZERO_AMOUNTS, "calls": 1} if self.is_short(k) else None
            self.answers[k] = QuotaUse(
                self.quota[k], 0, True, spent, committed, short, planned, self.rows[k]
            )

    def receive(self, k):
        """Receive the answer."""
        if self.is_exchanging[k] and self.sent[k] is None:
            self.is_exchanging[k] = False
            if self.answers[k]:
                self.quotas.update(k, self.answers[k])

    def plan(self, k):
        """Plan as many more calls as the share has room for."""
        if self.is_open[k]:
            self.extra[k] += max(0, int(self.quota[k].share.get("calls", 0) - self.planned(k)))

    def call(self, k):
        """Make as many of the planned calls, and then of those that rows need, as the quota has
        room for.
        """
        while self.is_open[k] and (self.rows[k] or self.extra[k]) and not self.is_short(k):
            self.reserved[k] += 1
            if self.extra[k]:
                self.extra[k] -= 1
            else:
                self.rows[k] -= 1

    def settle(self, k):
        """End all calls; every other one turns out to cost nothing."""
        self.spent[k], self.reserved[k] = self.spent[k] + self.reserved[k] // 2, 0

    def give_up(self, k):
        """Plan no more than what the rows need."""
        self.extra[k] = 0

    def die(self, k):
        """Start again with what the journal has: what was reserved counts as spent. An answer is
        lost.
        """
        self.spent[k], self.reserved[k], self.extra[k], self.is_open[k] = (
            self.committed(k),
            0,
            0,
            False,
        )
        self.answers[k] = None

    def open(self, k):
        self.is_open[k] = True


ACTIONS = ("send", "obey", "receive", "plan", "call", "settle", "give_up", "die", "open")
actions = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([*ACTIONS, *ACTIONS[:5] * 2])),
    min_size=60,
    max_size=150,
)


@settings(max_examples=100)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=3), st.integers(0, 20), actions)
@pytest.mark.slow
def test_no_shard_spends_what_rows_of_another_need(rows, more, steps):
    """In any order of messages, calls and deaths, all shards keep within the budget, and every row
    gets the call that it needs.

    When nothing is late any more, all rows end: no quota or share of another shard keeps a row from
    its call.
    """
    calls = sum(rows) + more
    world, shards = PlanningShards(rows, calls), range(len(rows))
    for k, action in steps:
        getattr(world, action)(k % len(rows))
        assert sum(map(world.committed, shards)) <= calls
        assert sum(map(world.planned, shards)) <= calls
    for action in ("open", "send", "obey", "receive", "call") * (4 * calls):
        for k in shards:
            getattr(world, action)(k)
    assert sum(world.rows) == 0
    assert sum(map(world.committed, shards)) <= calls


def test_a_share_grows_only_when_other_shards_have_confirmed_smaller_ones():
    """A shard that has spent much gets no larger share while the others may still plan with what
    they have.
    """
    quotas = QuotaSplitter([10, 10], 8, budget=Budget(calls=80))
    first, second = quotas.next(0), quotas.next(1)
    assert (first.share, second.share) == ({"calls": 40.0}, {"calls": 40.0})
    spent = {"calls": 30.0}
    quotas.update(0, QuotaUse(first, 4, True, spent, spent, None, {"calls": 40.0}, 10))
    assert quotas.next(0).share == {"calls": 40.0}
    quotas.update(0, QuotaUse(quotas.next(0), 4, True, spent, spent, None, {"calls": 40.0}, 10))
    quotas.update(1, QuotaUse(second, 4, True, {}, {}, None, {"calls": 10.0}, 1))
    assert quotas.next(1).share["calls"] < 20
    assert quotas.next(0).share == {"calls": 40.0}  # the second shard has not confirmed yet
    quotas.update(1, QuotaUse(quotas.next(1), 4, True, {}, {}, None, {"calls": 10.0}, 1))
    quotas.update(0, QuotaUse(quotas.next(0), 4, True, spent, spent, None, {"calls": 40.0}, 10))
    assert quotas.next(0).share["calls"] > 60


async def test_a_worker_that_starts_again_confirms_no_quota(tmp_path):
    """Until it has opened its journal it does not know what was spent, so nothing of its quota is
    granted to others.
    """
    quotas = QuotaSplitter([1, 1], 8, budget=Budget(calls=10))
    status = await ShardWorker().exchange(Orders(1, "", quotas.next(0)))
    assert status.use is None
    spent = {"calls": 5.0}
    quotas.update(1, QuotaUse(quotas.next(1), 4, True, spent, spent, {**ZERO_AMOUNTS, "calls": 1}))
    assert [quotas.next(k).amounts for k in (0, 1)] == [{"calls": 5}, {"calls": 5}]


async def test_a_refusal_holds_only_for_calls_that_need_as_much():
    """A call that needs less waits for its own answer."""
    budget = ShardBudget()
    budget.set_budget(Budget(calls=0))
    budget.refusal = Refusal("calls", 2, "used up")
    budget.check({**ZERO_AMOUNTS, "calls": 1})
    with pytest.raises(BudgetExhaustedError, match="used up"):
        budget.check({**ZERO_AMOUNTS, "calls": 2})


def test_a_shortage_is_that_of_the_call_which_is_served_next(monkeypatch):
    """If the coordinator refused what another one needs, the next one would wait for ever, and all
    behind it.
    """
    budget = ShardBudget()
    budget.set_budget(Budget(calls=0))
    first = {**ZERO_AMOUNTS, "calls": 1, "tokens": 900}
    behind = {**ZERO_AMOUNTS, "calls": 2, "tokens": 9}
    monkeypatch.setattr(ShardBudget, "waiting_minimums", [first, behind])
    assert budget.shortage == first


@dataclass
class ToldWorker:
    """A worker that says one status after another, and then ends with the last one."""

    statuses: list[ShardStatus]
    said: int = 0
    _has_said_all: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, shard):
        await self._has_said_all.wait()
        return self.statuses[-1]

    async def exchange(self, orders):
        self.said = min(self.said + 1, len(self.statuses))
        if self.said == len(self.statuses):
            self._has_said_all.set()
        return self.statuses[self.said - 1]


NUMBERS = st.integers(0, 50)
STATUSES = st.builds(
    ShardStatus,
    process=st.sampled_from(["p", "q", "r"]),
    counts=st.fixed_dictionaries(dict.fromkeys(COUNTED, NUMBERS)),
    usage=st.builds(Usage, NUMBERS, NUMBERS, NUMBERS, NUMBERS, cost=NUMBERS.map(lambda n: n / 8)),
    cache_savings=st.none() | NUMBERS.map(lambda n: n / 8),
    second_looks=NUMBERS,
)


@settings(max_examples=25)
@given(
    st.lists(st.lists(STATUSES, min_size=1, max_size=3), min_size=1, max_size=3),
    st.builds(BatchProgress, total=NUMBERS, done=NUMBERS, failed=NUMBERS, reused=NUMBERS),
)
def test_the_progress_is_that_of_all_workers(said, progress):
    """Rows and calls under way are those of the present processes together; usage, savings and
    second looks also have those of processes that have died.
    """
    before = replace(progress)
    coordinator = Coordinator(
        SimpleNamespace(reason="", message="", end=lambda *given: None),
        QuotaSplitter([1] * len(said), 8),
        RemoteEndpoints(len(said)),
        progress,
        SimpleNamespace(refits={}, finish=lambda *given: None),
        LocalPool(None, len(said)),
        lambda line: None,
    )
    asyncio.run(coordinator.follow([(ToldWorker(statuses), None) for statuses in said]))
    last = [statuses[-1] for statuses in said]
    paid = [
        status
        for statuses in said
        for status in {status.process: status for status in statuses}.values()
    ]
    sums = {name: sum(status.counts[name] for status in last) for name in COUNTED}
    assert progress.under_way == sums["under_way"]
    remote = coordinator.remote
    assert (remote.in_flight, remote.calls_made) == (sums["in_flight"], sums["calls_made"])
    savings = [status.cache_savings for status in paid]
    assert progress.usage == sum((status.usage for status in paid), Usage(0, 0, 0, cost=0.0))
    assert progress.cache_savings == (None if None in savings else sum(savings))
    assert coordinator.second_looks == sum(status.second_looks for status in paid)
    assert (progress.total, progress.done) == (before.total, before.done)


def test_rates_and_concurrency_follow_the_work():
    """Two shards begin with half each, a busy one gets nearly all, and all when the other is
    finished.
    """
    shares = QuotaSplitter([1, 1], 100, rpm=60)
    for _ in range(3):
        first, second = shares.next(0), shares.next(1)
        shares.update(0, QuotaUse(first, 50, is_saturated=True))
        shares.update(1, QuotaUse(second, 50, is_saturated=True))
    assert (first.in_flight, second.in_flight, first.rpm) == (50, 50, 30)
    for _ in range(3):
        shares.update(1, QuotaUse(shares.next(1), 1, is_saturated=False))
        shares.update(0, QuotaUse(shares.next(0), 50, is_saturated=True))
    assert shares.next(0).in_flight > 80
    assert shares.next(0).rpm > 50
    shares.update(0, QuotaUse(shares.next(0), 50))
    shares.update(1, QuotaUse(), finished=True)
    assert (shares.next(0).in_flight, shares.next(0).rpm) == (100, 60)


async def test_what_a_worker_has_said_is_sent_again_until_new_orders_arrive():
    """Orders may arrive twice, as Ray repeats a call whose answer was lost; what ends in between is
    in the next status.
    """
    worker = ShardWorker()
    results = lambda orders: worker.exchange(orders)
    worker._job, worker._endpoints = (
        open_job(),
        LimitedEndpoints(EndpointLimits(), 4, print, print, None),
    )
    process = (await results(Orders(1, "", Quota(1)))).process
    worker._send(0, "first")
    assert [(await results(Orders(2, process, Quota(1)))).results for _ in range(2)] == [
        {0: "first"},
        {0: "first"},
    ]
    worker._send(1, "second")  # after the status, before the next orders
    assert (await results(Orders(3, process, Quota(1)))).results == {1: "second"}
    assert (await results(Orders(4, process, Quota(1)))).results == {}


def open_job():
    """What a status reads of a job."""
    return SimpleNamespace(
        progress=BatchProgress(),
        online_priors=None,
        budget=SimpleNamespace(allocator=None),
        scheduler=SimpleNamespace(reason="", message=""),
        session=SimpleNamespace(options=Options()),
    )


async def test_rows_are_for_one_process_and_arrive_once(tmp_path):
    """A process that takes the place of another ignores the rows of that; orders that arrive again
    bring no row again.
    """
    worker, row = (
        ShardWorker(),
        AssignedRow(PendingRow(BatchRow(0, "", {}, Task("x")), "k", {}, None), None),
    )
    with Journal(tmp_path / "j") as journal:
        worker._received = ReceivedRows(journal, "r", True, lambda: None)
        orders = Orders(1, worker._process, Quota(1), rows=pickle.dumps([row]), is_last=True)
        for each in (
            replace(orders, process="other"),
            replace(orders, number=2),
            replace(orders, number=2),
        ):
            await worker.exchange(each)
        assert [row.n async for row in worker._received.read()] == [0]


BEFORE = RowInfo("r", 0, "k", {}, "done", {"a": 1})
HAD = {  # what the run's journal has of a row, and what that of the shard has
    "nothing": (None, None),
    "begun": (replace(BEFORE, status="open", result=None), None),
    "to be reopened": (replace(BEFORE, status="open"), None),
    "finished by an earlier process": (None, BEFORE),
    "reopened, and finished by an earlier process": (
        replace(BEFORE, status="open"),
        replace(BEFORE, result={"a": 2}),
    ),
}


@pytest.mark.parametrize(("run_has", "shard_has"), HAD.values(), ids=HAD)
async def test_a_row_has_what_the_journal_of_its_shard_has(tmp_path, run_has, shard_has):
    """What the run's journal has of it is copied there, for a process that takes the place of this
    one.
    """
    task = Task("x", id="r")
    row = AssignedRow(
        PendingRow(BatchRow(0, "", {}, task), "k", {}, run_has), run_has and Trace(task)
    )
    with Journal(tmp_path / "j") as journal:
        journal.update_run("run")
        if shard_has:
            journal.begin_row("run", "r", 0, "k", {}, "{}")
            journal.finish_row("run", "r", shard_has.status, shard_has.result)
        for is_new in (not shard_has, False):
            received = ReceivedRows(journal, "run", is_new, lambda: None)
            received.receive([row], is_last=True)
            assert [row.info async for row in received.read()] == [shard_has or run_has]


def test_a_journal_of_a_shard_that_fails_ends_the_run(tmp_path, rows, local_shards, monkeypatch):
    """The report says why."""

    def fail(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("redraft.storage.transaction._write_rows", fail)
    report = go(rows, tmp_path / "a.jsonl", RecordingModel())
    assert (report.stop, report.rows.done) == ("disk", 0)
    assert "disk is full" in report.stop_note
