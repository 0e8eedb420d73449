"""Computing that can be stopped: what a worker returns, what stops it, and what becomes of it."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import compute_jobs as jobs
from redraft.compute import pool, run, run_sync
from redraft.errors import ComputeLimitError, ConfigError, RedraftError

SAID = dict(what="it could not be done", size=12_345)


@pytest.mark.parametrize(
    "value",
    [None, True, 7, 1.5, "é\n\x00", "\ud800", 10**30, ["a", {"b": []}], "x" * 300_000, "中" * 300_000],
    ids=lambda v: ascii(v)[:20],
)
def test_values_come_back_as_they_are(value):
    """Any JSON survives, half surrogate pairs and long texts included."""
    assert run_sync(jobs.echo, value, **SAID) == value


@pytest.mark.parametrize(
    ("job", "argument", "limit"),
    [
        (jobs.spin, 60, "within 0.2 s"),
        (jobs.hold_the_lock, 60, "within 0.2 s"),
        (jobs.sleep, 60, "within 0.2 s"),
        (jobs.eat, 2**40, "in 2 GiB of memory"),
        (jobs.nest, 10**6, "without nesting too deep"),
        (jobs.abort, signal.SIGABRT, "without a crash of the worker process"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_over_a_limit_is_an_error_that_names_it(job, argument, limit):
    """What takes too long, too much memory or crashes is stopped, whatever holds the interpreter's lock; the next job works."""
    with pytest.raises(ComputeLimitError) as caught:
        run_sync(job, argument, seconds=0.2, **SAID)
    assert str(caught.value) == f"it could not be done {limit} (12,345 characters)"
    assert run_sync(jobs.echo, 1, **SAID) == 1


def test_errors_of_the_function_are_told_by_their_kind():
    """A configuration error is one here, too; others say their name."""
    with pytest.raises(ConfigError, match="no reference"):
        run_sync(jobs.fail, "ConfigError", "no reference", **SAID)
    with pytest.raises(RuntimeError, match="^ValueError: odd$"):
        run_sync(jobs.fail, "ValueError", "odd", **SAID)
    with pytest.raises(TypeError):
        run_sync(jobs.echo, object(), **SAID)
    assert run_sync(jobs.echo, 1, **SAID) == 1


def test_a_worker_has_no_keys(monkeypatch):
    """Of the environment it gets what an interpreter needs."""
    for worker in list(pool._idle):
        worker.process.kill()
        worker.process.wait()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("MY_TOKEN", "secret")
    assert not {"OPENAI_API_KEY", "MY_TOKEN"} & set(run_sync(jobs.environment, **SAID))


def test_an_idle_worker_that_died_is_replaced():
    """Nobody notices."""
    first = run_sync(jobs.process, **SAID)
    os.kill(first, signal.SIGKILL)
    assert run_sync(jobs.process, **SAID) != first


def test_what_a_job_prints_is_no_answer():
    """Neither from Python nor from below it."""
    assert run_sync(jobs.shout, "{}", **SAID) == "{}"


def test_it_works_from_many_threads_and_loops_at_once():
    """Each gets its own answer."""
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda i: run_sync(jobs.echo, i, **SAID), range(40))) == list(range(40))
        assert list(threads.map(lambda i: asyncio.run(run(jobs.echo, i, **SAID)), range(20))) == list(range(20))


async def test_the_event_loop_goes_on_meanwhile():
    """A job that never lets go of the interpreter's lock holds up nobody else."""
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    with pytest.raises(ComputeLimitError):
        await run(jobs.hold_the_lock, 60, seconds=0.5, **SAID)
    ticking.cancel()
    assert ticks > 10


async def test_cancelling_ends_the_worker():
    """A deadline or a timeout around a job stops the computing, not only the waiting."""
    worker = await run(jobs.process, **SAID)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await asyncio.gather(*(run(jobs.hold_the_lock, 60, seconds=60, **SAID) for _ in range(2 * pool.SIZE)))
    await gone(worker)
    assert await run(jobs.echo, 1, **SAID) == 1


async def test_workers_are_used_again():
    """A second job starts no second process."""
    assert await run(jobs.process, **SAID) == await run(jobs.process, **SAID)


PARENT = """
import sys, threading
sys.path.insert(0, {tests!r})
import compute_jobs as jobs
from redraft.compute import run_sync
print(run_sync(jobs.process, what="", size=0), flush=True)
threading.Thread(target=run_sync, args=(jobs.{job}, 60), kwargs=dict(what="", size=0, seconds={seconds}), daemon=True).start()
sys.stdin.readline()
"""


@pytest.mark.parametrize(("job", "seconds", "end"), [("echo", 60, "kill"), ("hold_the_lock", 1, "kill"), ("echo", 60, "exit")])
def test_a_worker_ends_with_its_parent(job, seconds, end):
    """Idle or at work, though the parent was killed; a worker at work has its own limit."""
    script = PARENT.format(tests=str(Path(__file__).parent), job=job, seconds=seconds)
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        parent.kill() if end == "kill" else parent.stdin.close()
        parent.wait()
    asyncio.run(gone(worker))


def test_interrupting_a_waiting_thread_ends_the_job():
    """Ctrl-C is not kept waiting for the limit."""
    threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        run_sync(jobs.hold_the_lock, 60, seconds=60, **SAID)
    assert run_sync(jobs.echo, 1, **SAID) == 1


def test_a_worker_that_cannot_start_is_an_error_of_its_own(monkeypatch):
    """It says nothing of the text."""
    for worker in list(pool._idle):
        worker.process.kill()
        worker.process.wait()
    monkeypatch.setattr(pool, "command", lambda: [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(RedraftError, match="did not start") as caught:
        run_sync(jobs.echo, 1, **SAID)
    assert not isinstance(caught.value, ComputeLimitError)


async def gone(process):
    """Wait until a process has ended: a minute is a failure."""
    ends = time.monotonic() + 60
    while alive(process):
        assert time.monotonic() < ends, "the worker lives on"
        await asyncio.sleep(0.02)


def alive(process):
    try:
        os.kill(process, 0)
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text() if Path("/proc/self").exists() else True
    except (ProcessLookupError, FileNotFoundError):
        return False
