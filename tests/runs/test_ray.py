"""Runs on a real Ray, of this machine: processes that are killed, drivers that are killed, what cannot be sent."""

import asyncio
import json
import os
import secrets
import signal
import sys
import threading
import time

import pytest

from redraft import Budget, Feedback
from redraft.errors import ConfigError
from redraft.runs import BatchRun
from redraft.runs import api
from redraft.runs.executors.ray import RayPool

from .killing import GRACE, asked, most_in_flight, needless, start, until, write_rows

ray = pytest.importorskip("ray", reason="Ray has no wheel for this Python", exc_type=ImportError)

pytestmark = pytest.mark.slow
PLAIN = {"noise_aware": False}  # calls are told apart by their words, so drafts anew and further looks are left out
DRIVER = (
    "import sys; from redraft.runs import batch_sync; "
    f"batch_sync(*sys.argv[1:4], engine='ray', shards=2, ray_address=sys.argv[4], **{PLAIN})"
)


@pytest.fixture(scope="module")
def cluster():
    """A Ray as a run starts it for itself; its address. The runs of these tests find that they are connected already."""
    with pytest.MonkeyPatch.context() as env, asyncio.Runner() as runner:
        env.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        own = RayPool()
        runner.run(own.__aenter__())
        yield ray.get_runtime_context().gcs_address
        runner.run(own.__aexit__(None, None, None))


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "rows.jsonl", 30)


def plain(rows, folder, server):
    """The output of a run in one process, and the log's length after it."""
    asyncio.run(BatchRun.of(rows, folder / "plain.jsonl", server.model, **PLAIN).go())
    return (folder / "plain.jsonl").read_bytes(), server.lines()


def holder(part):
    """The process that works on a shard; None before there is one."""
    lock = part.with_name(f"{part.name}.lock")
    try:
        return json.loads(lock.read_text())["pid"]
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def check_asked_once(server, since, kills):
    """Nothing that had been answered for a while was asked again, and nothing else but what was in flight or just answered."""
    entries = server.entries(since)
    calls = asked(entries).values()
    assert sum(needless(times, kills, GRACE) for times in calls) == 0
    assert sum(len(times) - 1 for times in calls) <= len(kills) * most_in_flight(entries, settling=GRACE)


async def test_a_killed_worker_comes_again(tmp_path, rows, serve, cluster):
    """kill -9 of a shard's process: the run goes on, the output is that of one process, nothing is asked twice without need."""
    server = serve("--latency", 0.05)
    wanted, since = await asyncio.to_thread(plain, rows, tmp_path, server)
    said = []
    run = BatchRun.of(rows, tmp_path / "out.jsonl", server.model, engine="ray", shards=2, say=said.append, **PLAIN)
    going = asyncio.ensure_future(run.go())
    part = tmp_path / "out.jsonl.journal.1-of-2"
    await asyncio.to_thread(until, lambda: (server.lines() > since + 60 and holder(part)) or going.done())
    os.kill(holder(part), signal.SIGKILL)
    kills = [time.monotonic()]
    report = await going
    assert (report.done, report.end_reason, run.progress.done) == (30, "", 30)
    assert any("shard 1 of 2 died" in line for line in said)
    assert (tmp_path / "out.jsonl").read_bytes() == wanted
    check_asked_once(server, since, kills)


def test_a_killed_driver_is_started_again(tmp_path, rows, serve, cluster):
    """Its workers die with it; the same run, even in another number of shards, takes what they left and goes on from there."""
    server = serve("--latency", 0.05)
    wanted, since = plain(rows, tmp_path, server)
    output = tmp_path / "out.jsonl"
    driver = start([sys.executable, "-c", DRIVER, str(rows), str(output), server.model, cluster])
    until(lambda: server.lines() > since + 60, driver)
    driver.kill()
    driver.wait()
    killed = time.monotonic()
    for file in driver.files:
        file.close()
    begun = server.lines()
    report = asyncio.run(BatchRun.of(rows, output, server.model, engine="ray", shards=3, **PLAIN).go())
    stopped = max([killed, *(at for kind, _, at in server.entries(since)[: begun - since + 40] if kind == "X")])
    assert (report.done, report.end_reason) == (30, "")
    assert output.read_bytes() == wanted
    check_asked_once(server, since, [stopped])
    assert [path.name for path in tmp_path.glob("out.jsonl.journal*")] == ["out.jsonl.journal"]


async def test_no_death_makes_money_be_forgotten(tmp_path, rows, serve, cluster):
    """With a budget, calls that were out when their worker was killed count as spent."""
    server = serve("--latency", 0.05)
    given = {"engine": "ray", "shards": 2, "budget": Budget(calls=80), "max_in_flight": 8, **PLAIN}
    run = BatchRun.of(rows, tmp_path / "out.jsonl", server.model, **given)
    going = asyncio.ensure_future(run.go())
    part = tmp_path / "out.jsonl.journal.2-of-2"
    await asyncio.to_thread(until, lambda: (server.lines() > 60 and holder(part)) or going.done())
    os.kill(holder(part), signal.SIGKILL)
    report = await going
    assert report.end_reason == "budget"
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 30
    assert 70 <= [kind for kind, *_ in server.entries()].count("B") <= 80


async def test_a_worker_that_ray_gives_up_ends_the_run(tmp_path, rows, serve, cluster, monkeypatch):
    """It is said, and the same run goes on from there."""
    started = []

    class Watched(RayPool):
        def start_worker(self):
            started.append(super().start_worker())
            return started[-1]

    monkeypatch.setattr(api, "RayPool", Watched)
    server = serve("--latency", 0.05)
    run = BatchRun.of(rows, tmp_path / "out.jsonl", server.model, engine="ray", shards=2)
    going = asyncio.ensure_future(run.go())
    await asyncio.to_thread(until, lambda: server.lines() > 40 or going.done())
    ray.kill(started[0].actor, no_restart=True)
    report = await going
    assert (report.end_reason, report.resumable) == ("fatal", True)
    assert report.message.startswith("a shard cannot be run by Ray: ")


async def test_graders_of_your_own_go_along(tmp_path, rows, serve, cluster):
    """A function with all that it holds is sent to the workers; rows they finish keep the order of the input; a stop ends all."""
    best = 60

    def short(text):
        return Feedback(score=min(1.0, best / len(text)), actions=("be brief",))

    server = serve("--latency", 0.2)
    run = BatchRun.of(rows, tmp_path / "out.jsonl", server.model, short, engine="ray", shards=2, max_in_flight=8)
    going = asyncio.ensure_future(run.go())
    await asyncio.to_thread(until, lambda: server.lines() > 20 or going.done())
    run.stop()
    report = await going
    assert (report.end_reason, report.resumable) == ("interrupted", True)
    done = [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert done == sorted(done, key=lambda id: int(id.removeprefix("row-")))
    assert [kind for kind, *_ in server.entries()].count("X") == 0


def test_what_cannot_be_sent_is_named(tmp_path, rows, cluster):
    """Before anything is asked."""

    class Held:
        name, identity, formats = "held", "held", ("text",)

        def __init__(self):
            self.lock = threading.Lock()

        async def complete(self, request):
            raise AssertionError

    with pytest.raises(ConfigError, match="model: a Held cannot be sent to other processes .*; give it by its name"):
        asyncio.run(BatchRun.of(rows, tmp_path / "out.jsonl", Held(), len, engine="ray", shards=2).go())
