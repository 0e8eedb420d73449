"""Computation in worker processes: what a worker returns, what stops it, and what happens then."""

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
from redraft.errors import ComputeLimitError, ConfigError, RedraftError
from redraft.workers import pool
from redraft.workers.pool import run, run_sync

SAID = dict(failure_text="it could not be done", text_length=12_345)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        7,
        1.5,
        "é\n\x00",
        "\ud800",
        10**30,
        ["a", {"b": []}],
        "x" * 300_000,
        "中" * 300_000,
    ],
    ids=lambda v: ascii(v)[:20],
)
def test_values_are_returned_unchanged(value):
    """This holds for any JSON, also with lone surrogates and long texts."""
    assert run_sync(jobs.echo, value, **SAID) == value


@pytest.mark.slow(but_each=6)
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
def test_a_job_beyond_a_limit_is_an_error_that_names_the_limit(job, argument, limit):
    """A job that takes too long or too much memory or crashes is stopped, whatever holds the
    interpreter's lock; the next job works.
    """
    with pytest.raises(ComputeLimitError) as caught:
        run_sync(job, argument, seconds=0.2, **SAID)
    assert str(caught.value) == f"it could not be done {limit} (12,345 characters)"
    assert run_sync(jobs.echo, 1, **SAID) == 1


def test_errors_of_the_function_keep_their_kind():
    """A configuration error is raised as one; others have their name in the message."""
    with pytest.raises(ConfigError, match="no reference"):
        run_sync(jobs.fail, "ConfigError", "no reference", **SAID)
    with pytest.raises(RuntimeError, match="^ValueError: odd$"):
        run_sync(jobs.fail, "ValueError", "odd", **SAID)
    with pytest.raises(TypeError):
        run_sync(jobs.echo, object(), **SAID)
    assert run_sync(jobs.echo, 1, **SAID) == 1


def test_a_worker_has_no_keys(monkeypatch):
    """It gets only the environment that an interpreter needs."""
    forget_workers()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("MY_TOKEN", "secret")
    assert not {"OPENAI_API_KEY", "MY_TOKEN"} & set(run_sync(jobs.environment, **SAID))


def test_a_worker_starts_nothing_and_reaches_nothing():
    """On Linux it has the sandbox's filter of system calls: no process, no program, no connection,
    no signal.
    """
    if not pool._restrictions()["filter"] or sys.platform != "linux":
        pytest.skip("no filter of system calls")
    refused = run_sync(jobs.refused, **SAID)
    assert {name: error for name, error in refused.items() if error != "PermissionError"} == {}


def test_a_job_that_computes_again_stays_in_its_worker():
    """The worker could start no other, and its limits hold for both."""
    outer, inner, value = run_sync(jobs.compute_again, 7, **SAID)
    assert (outer, value) == (inner, 7)


def test_an_idle_worker_that_died_is_replaced():
    """The next job succeeds."""
    first = run_sync(jobs.process, **SAID)
    os.kill(first, signal.SIGKILL)
    assert run_sync(jobs.process, **SAID) != first


def test_the_output_of_a_job_is_not_its_answer():
    """This holds for output of Python and of C."""
    assert run_sync(jobs.shout, "{}", **SAID) == "{}"


def test_many_threads_and_loops_can_compute_at_once():
    """Each gets its own answer."""
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda i: run_sync(jobs.echo, i, **SAID), range(40))) == list(
            range(40)
        )
        assert list(
            threads.map(lambda i: asyncio.run(run(jobs.echo, i, **SAID)), range(20))
        ) == list(range(20))


@pytest.mark.slow
async def test_a_job_does_not_block_the_event_loop():
    """The job never releases its interpreter's lock."""
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
    """A deadline or a timeout around a job stops the computation, not only the wait."""
    worker = await run(jobs.process, **SAID)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await asyncio.gather(
                *(
                    run(jobs.hold_the_lock, 60, seconds=60, **SAID)
                    for _ in range(2 * pool.POOL_SIZE)
                )
            )
    await wait_until_ended(worker)
    assert await run(jobs.echo, 1, **SAID) == 1


async def test_workers_are_reused():
    """A second job starts no second process."""
    assert await run(jobs.process, **SAID) == await run(jobs.process, **SAID)


PARENT = """
import sys, threading, time
sys.path.insert(0, {tests!r})
import compute_jobs as jobs
from redraft.workers import pool
from redraft.workers.pool import run_sync
said = dict(failure_text="", text_length=0)
print(run_sync(jobs.process, **said), flush=True)
for _ in range({busy}):
    threading.Thread(target=run_sync, args=(jobs.hold_the_lock, 60), kwargs=dict(said, seconds=60), daemon=True).start()
while len(pool._workers) < max(1, {busy}):
    time.sleep(0.01)
print(*(worker.process.pid for worker in pool._workers), flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow(but_each=2)
@pytest.mark.skipif(sys.platform != "linux", reason="not Linux")
@pytest.mark.parametrize(
    ("end", "busy"),
    [("kill", 0), ("kill", 1), ("kill", pool.POOL_SIZE), ("exit", 0)],
    ids=["idle", "one", "all", "exit"],
)
def test_workers_end_with_their_parent(end, busy):
    """They end long before their jobs would, though the parent was killed, idle or in a
    backtracking pattern.
    """
    script = PARENT.format(tests=str(Path(__file__).parent), busy=busy)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        parent.stdout.readline()
        workers = [int(process) for process in parent.stdout.readline().split()]
        for worker in workers[:busy]:
            wait_for(lambda worker=worker: busy == 0 or cpu_time(worker) > 0.3)
        parent.kill() if end == "kill" else parent.stdin.close()
        parent.wait()
    wait_for(lambda: not any(map(is_alive, workers)))


@pytest.mark.skipif(sys.platform != "linux", reason="not Linux")
def test_a_worker_inherits_neither_keys_nor_files(monkeypatch, tmp_path):
    """The kernel shows an environment from a short list, and no file of the parent."""
    forget_workers()
    for name in (
        "OPENAI_API_KEY",
        "MY_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "DATABASE_URL",
        "HTTPS_PROXY",
    ):
        monkeypatch.setenv(name, "canary")
    held = os.open(tmp_path / "private", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(held, True)
    try:
        worker = Path(f"/proc/{run_sync(jobs.process, **SAID)}")
    finally:
        os.close(held)
    environment = worker.joinpath("environ").read_bytes()
    assert b"canary" not in environment
    assert {line.partition(b"=")[0].decode() for line in environment.split(b"\0") if line} <= {
        *pool.ENVIRONMENT,
        "OPENBLAS_NUM_THREADS",
    }
    opened = {os.readlink(link) for link in worker.joinpath("fd").iterdir()}
    assert str(tmp_path / "private") not in opened
    assert {name.partition(":")[0] for name in opened} == {"pipe", "/dev/null"}


FORK = """
import asyncio, os, signal, sys, threading, time
sys.path.insert(0, {tests!r})
import compute_jobs as jobs
from redraft import Budget, ScriptedModel, refine_sync
from redraft.workers import pool
from redraft.workers.pool import IN_PROCESS, run_sync
from redraft.requirements import parse
said = dict(failure_text="", text_length=0)
LONG = "Some words of it. " * IN_PROCESS


def work():
    assert run_sync(jobs.echo, 7, **said) == 7
    assert parse("words:>3").check(LONG).ok
    assert refine_sync("q", ScriptedModel(["one two"]), graders=["words:1-3"]).value == "one two"
    return len(pool._workers)


work()  # (a module that another thread is just importing is locked in a child for ever, whoever imports)
for _ in range(2 * pool.POOL_SIZE):  # all places are taken, and as many wait
    threading.Thread(target=run_sync, args=(jobs.sleep, 1), kwargs=dict(said, seconds=60), daemon=True).start()
parents = [worker.process.pid for worker in pool._workers]
{how}
"""
OS_FORK = """
children = []
for _ in range(4):
    child = os.fork()
    if not child:
        signal.alarm(120)
        try:
            own = work()
            os._exit(0 if 0 < own <= pool.POOL_SIZE else 3)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(4)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
assert codes == [0] * 4, codes
work()
"""
MULTIPROCESSING = """
import multiprocessing
with multiprocessing.get_context("fork").Pool(2) as processes:
    assert all(processes.apply_async(work).get(20) for _ in range(4))
work()
"""
UNDER_WAY = """
def grade(text):
    child = os.fork()
    if not child:
        signal.alarm(120)
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(4)
    return float(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0)
result = refine_sync("q", ScriptedModel(["one two"]), graders=[grade, "words:1-3"])
assert result.score == 1.0, result
"""
STARTING = (
    """
def start():
    while True:
        with pool._spawn_lock:  # as if it took long to start a worker
            time.sleep(0.02)
threading.Thread(target=start, daemon=True).start()
"""
    + OS_FORK
)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork")
@pytest.mark.parametrize(
    "how",
    [OS_FORK, MULTIPROCESSING, UNDER_WAY, STARTING],
    ids=["fork", "multiprocessing", "in a grader", "starting"],
)
def test_a_forked_child_has_workers_of_its_own(how):
    """Forked at any moment, also while every worker is busy, it computes, checks and refines; its
    parent continues.
    """
    script = FORK.format(tests=str(Path(__file__).parent), how=how)
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="not Linux")
def test_a_forked_child_holds_no_pipe_of_a_worker():
    """Otherwise the workers of a killed parent would live as long as the child."""
    run_sync(jobs.process, **SAID)
    mine = {
        os.readlink(f"/proc/self/fd/{pipe.fileno()}")
        for w in pool._workers
        for pipe in (w.process.stdin, w.process.stdout)
        if not pipe.closed
    }
    assert mine
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        held = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
        os.write(writer, b"0" if mine & held else b"1")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"1"
    os.close(reader), os.close(writer)


def test_interrupting_a_waiting_thread_ends_the_job():
    """Ctrl-C does not wait for the limit."""
    threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        run_sync(jobs.hold_the_lock, 60, seconds=60, **SAID)
    assert run_sync(jobs.echo, 1, **SAID) == 1


def test_a_worker_that_cannot_start_is_an_error_of_its_own(monkeypatch):
    """The error does not blame the text."""
    forget_workers()
    monkeypatch.setattr(
        pool, "worker_command", lambda: [sys.executable, "-c", "raise SystemExit(3)"]
    )
    with pytest.raises(RedraftError, match="did not start") as caught:
        run_sync(jobs.echo, 1, **SAID)
    assert not isinstance(caught.value, ComputeLimitError)


def forget_workers():
    """Make the next job start a worker."""
    for worker in list(pool._idle):
        worker.process.kill()
        worker.process.wait()


def wait_for(condition, seconds=60):
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"not within {seconds} s"
        time.sleep(0.01)


def cpu_time(process):
    """Return the CPU seconds of a process (fields 14 and 15 of its stat)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def wait_until_ended(process):
    """Wait up to a minute until a process has ended."""
    ends = time.monotonic() + 60
    while is_alive(process):
        assert time.monotonic() < ends, "the worker lives on"
        await asyncio.sleep(0.02)


def is_alive(process):
    try:
        os.kill(process, 0)
        return (
            "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
            if Path("/proc/self").exists()
            else True
        )
    except (ProcessLookupError, FileNotFoundError):
        return False
