"""Runs on a real local Ray: workers that are killed, drivers that are killed, objects that cannot
be sent.
"""

import asyncio
import json
import os
import secrets
import signal
import sys
import threading
import time
from importlib.util import find_spec

import pytest

from redraft import Budget, Feedback
from redraft.cli.user_code import load_grader
from redraft.errors import ConfigError
from redraft.runs import BatchRun, api
from redraft.runs.executors.ray import RayPool

from .killing import check_asked_once, start, until, write_rows

if not find_spec("ray"):
    pytest.skip("no Ray for this Python", allow_module_level=True)

pytestmark = pytest.mark.slow
# calls are identified by their words, so this leaves out repeated drafts and grades
PLAIN = {"noise_aware": False}
DRIVER = (
    "import sys; from redraft.runs import batch_sync; "
    f"batch_sync(*sys.argv[1:4], engine='ray', shards=2, ray_address=sys.argv[4], **{PLAIN})"
)


@pytest.fixture(scope="module")
def cluster():
    """The address of a Ray as a run starts it; the runs of these tests are connected to it
    already.
    """
    with pytest.MonkeyPatch.context() as env, asyncio.Runner() as runner:
        env.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        own = RayPool()
        runner.run(own.__aenter__())
        import ray  # takes a second, and most test runs skip these tests

        yield ray.get_runtime_context().gcs_address
        runner.run(own.__aexit__(None, None, None))


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "rows.jsonl", 30)


def local_output(rows, folder, server):
    """The output of a run in one process, and the log's length after it."""
    asyncio.run(BatchRun.from_arguments(rows, folder / "plain.jsonl", server.model, **PLAIN).go())
    return (folder / "plain.jsonl").read_bytes(), server.lines()


def worker_process(part):
    """The process that works on a shard; None before there is one."""
    lock = part.with_name(f"{part.name}.lock")
    try:
        return json.loads(lock.read_text())["pid"]
    except (FileNotFoundError, json.JSONDecodeError):
        return None


async def kill_workers(going, reached, part):
    """Kill the worker of a shard, and the one that replaces it once that works. Return when."""
    kills, killed = [], {None}
    for number in (40, 120):
        is_next = lambda: reached(number) and worker_process(part) not in killed
        await asyncio.to_thread(until, lambda: is_next() or going.done())
        assert not going.done(), "the run ended before the kill"
        killed.add(pid := worker_process(part))
        os.kill(pid, signal.SIGKILL)
        kills.append(time.monotonic())
    return kills


async def test_a_killed_worker_is_replaced(tmp_path, rows, serve, cluster):
    """After kill -9 of a worker, and of the one in its place, the run continues, the output is that
    of one process, and no call is repeated needlessly.
    """
    server = serve("--latency", 0.05)
    wanted, since = await asyncio.to_thread(local_output, rows, tmp_path, server)
    said = []
    run = BatchRun.from_arguments(
        rows, tmp_path / "out.jsonl", server.model, engine="ray", shards=2, say=said.append, **PLAIN
    )
    going = asyncio.ensure_future(run.go())
    part = tmp_path / "out.jsonl.journal.1-of-2"

    def reached(number):
        # a death is noticed between two reports of a shard
        reported = run.progress.done > 0 if number == 40 else said
        return reported and server.lines() > since + number

    kills = await kill_workers(going, reached, part)
    report = await going
    assert (report.done, report.end_reason, run.progress.done) == (30, "", 30)
    assert sum("shard 1 of 2 died" in line for line in said) == 2, said
    assert (tmp_path / "out.jsonl").read_bytes() == wanted
    check_asked_once(server.entries(since), kills)


def test_a_run_resumes_after_its_driver_was_killed(tmp_path, rows, serve, cluster):
    """Its workers die with it, twice; the same run, even with another number of shards, resumes
    from their results.
    """
    server = serve("--latency", 0.05)
    wanted, since = local_output(rows, tmp_path, server)
    output, stops = tmp_path / "out.jsonl", []
    for number in (40, 140):
        driver = start(
            [sys.executable, "-c", DRIVER, str(rows), str(output), server.model, cluster]
        )
        until(lambda: server.lines() > since + number, driver)
        driver.kill()
        driver.wait()
        killed, begun = time.monotonic(), server.lines()
        for file in driver.files:
            file.close()
        stops.append((killed, begun))
    report = asyncio.run(
        BatchRun.from_arguments(rows, output, server.model, engine="ray", shards=3, **PLAIN).go()
    )
    entries = server.entries(since)
    kills = [
        max([killed, *(at for kind, _, at in entries[: begun - since + 40] if kind == "X")])
        for killed, begun in stops
    ]
    assert (report.done, report.end_reason) == (30, "")
    assert output.read_bytes() == wanted
    check_asked_once(entries, kills)
    assert [path.name for path in tmp_path.glob("out.jsonl.journal*")] == ["out.jsonl.journal"]


async def test_calls_of_a_killed_worker_count_against_the_budget(tmp_path, rows, serve, cluster):
    """Calls in flight when their worker was killed count as spent, each time."""
    server = serve("--latency", 0.05)
    given = {"engine": "ray", "shards": 2, "budget": Budget(calls=80), "max_in_flight": 8, **PLAIN}
    run = BatchRun.from_arguments(rows, tmp_path / "out.jsonl", server.model, **given)
    going = asyncio.ensure_future(run.go())
    part = tmp_path / "out.jsonl.journal.2-of-2"
    await kill_workers(going, lambda number: server.lines() > number, part)
    report = await going
    assert report.end_reason == "budget"
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 30
    assert 60 <= [kind for kind, *_ in server.entries()].count("B") <= 80


async def test_a_worker_that_ray_gives_up_ends_the_run(tmp_path, rows, serve, cluster, monkeypatch):
    """The message says so, and the same run resumes."""
    started = []

    class WatchedExecutor(RayPool):
        def start_worker(self):
            started.append(super().start_worker())
            return started[-1]

    monkeypatch.setattr(api, "RayPool", WatchedExecutor)
    server = serve("--latency", 0.05)
    run = BatchRun.from_arguments(
        rows, tmp_path / "out.jsonl", server.model, engine="ray", shards=2
    )
    going = asyncio.ensure_future(run.go())
    await asyncio.to_thread(until, lambda: server.lines() > 40 or going.done())
    import ray

    ray.kill(started[0].actor, no_restart=True)
    report = await going
    assert (report.end_reason, report.resumable) == ("fatal", True)
    assert report.message.startswith("a shard cannot be run by Ray: ")


async def test_workers_receive_a_users_own_graders(tmp_path, rows, serve, cluster):
    """A function is sent with its closure; the output keeps the order of the input; a stop ends all
    workers.
    """
    best = 60

    def short_grader(text):
        return Feedback(score=min(1.0, best / len(text)), actions=("be brief",))

    server = serve("--latency", 0.2)
    run = BatchRun.from_arguments(
        rows,
        tmp_path / "out.jsonl",
        server.model,
        short_grader,
        engine="ray",
        shards=2,
        max_in_flight=8,
    )
    going = asyncio.ensure_future(run.go())
    await asyncio.to_thread(until, lambda: server.lines() > 20 or going.done())
    run.stop()
    report = await going
    assert (report.end_reason, report.resumable) == ("interrupted", True)
    done = [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert done == sorted(done, key=lambda id: int(id.removeprefix("row-")))
    assert [kind for kind, *_ in server.entries()].count("X") == 0


async def test_workers_receive_a_grader_from_a_file(tmp_path, cluster):
    """The command line loads FILE.py:NAME as a module that a worker, in another folder, could not
    import.
    """
    (tmp_path / "graders").mkdir()
    (tmp_path / "graders" / "polite_words.py").write_text(
        "def polite(text):\n    return float('please' in text)\n"
    )
    grader = load_grader(f"{tmp_path / 'graders' / 'polite_words.py'}:polite")
    data = [
        {"id": str(n), "prompt": "q", "response": text}
        for n, text in enumerate(["please", "no", "please do"])
    ]
    run = BatchRun.from_arguments(
        data, tmp_path / "out.jsonl", False, grader, mode="grade", engine="ray", shards=2
    )
    report = await run.go()
    scores = [
        json.loads(line)["best_score"] for line in (tmp_path / "out.jsonl").read_text().splitlines()
    ]
    assert (report.done, scores) == (3, [1.0, 0.0, 1.0])


async def test_code_runs_in_the_sandbox_of_the_workers(tmp_path, cluster):
    """With the settings of the run, and with the results of a run in one process."""
    tests = [{"input": [n], "output": n + 1} for n in range(4)]
    data = [
        {
            "id": str(n),
            "prompt": "f",
            "response": f"def f(x):\n    return x + 1 if x < {n} else None",
            "tests": tests,
        }
        for n in range(5)
    ]
    settings = {"answer": "code:python", "mode": "grade", "sandbox": "unsafe"}
    outputs = []
    for engine in ({}, {"engine": "ray", "shards": 2}):
        output = tmp_path / f"{len(engine)}.jsonl"
        await BatchRun.from_arguments(data, output, False, **settings, **engine).go()
        outputs.append(output.read_bytes())
    scores = [json.loads(line)["best_score"] for line in outputs[0].splitlines()]
    assert outputs[0] == outputs[1] and scores == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_objects_that_cannot_be_sent_are_named(tmp_path, rows, cluster):
    """The error comes before any call."""

    class Held:
        name, identity, formats = "held", "held", ("text",)

        def __init__(self):
            self.lock = threading.Lock()

        async def complete(self, request):
            raise AssertionError

    with pytest.raises(
        ConfigError, match="model: a Held cannot be sent to other processes .*; give it by its name"
    ):
        asyncio.run(
            BatchRun.from_arguments(
                rows, tmp_path / "out.jsonl", Held(), len, engine="ray", shards=2
            ).go()
        )
