"""Runs in several processes of this machine: what only they do. `test_workers.py` has what they have
in common with workers on Ray.
"""

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import nullcontext, suppress
from pathlib import Path
from socket import SHUT_RD, socketpair
from threading import Lock

import pytest

from redraft.base.sync import run_on_uvloop, uvloop_factory
from redraft.cli.user_code import load_grader
from redraft.errors import ConfigError
from redraft.middleware import EndpointLimiter
from redraft.runs import BatchRun, EndpointLimits
from redraft.runs.executors import processes
from redraft.runs.executors.process_channel import encode, frame, receive
from redraft.runs.executors.processes import ProcessPool, ProcessWorker, is_stopped
from redraft.runs.executors.row_feed import RowFeed
from redraft.runs.executors.shard_protocol import Orders, Quota
from redraft.runs.executors.sharded import Pauses
from redraft.storage.shard_merge import shard_journals

from .killing import (
    batch,
    calls_by_hash,
    ending,
    killed_run,
    run,
    start,
    until,
    write_rows,
)
from .process_graders import Extra, brevity, crash_always, crash_once, ends_a_fork, ends_a_program

# calls are identified by their words, so this leaves out repeated drafts and grades
PLAIN = {"noise_aware": False}


def go(rows, output, model, graders=None, **given):
    return asyncio.run(BatchRun.from_arguments(rows, output, model, graders, **given).go())


def graded(n):
    return [
        {"id": f"r{i}", "prompt": "Say it.", "response": "word " * (i % 9 + 1)} for i in range(n)
    ]


@pytest.mark.slow
def test_graders_of_the_user_are_found_by_name(tmp_path):
    """Those of a module, and those of a file that the command line loads."""
    (tmp_path / "graders").mkdir()
    (tmp_path / "graders" / "polite_words.py").write_text(
        "def polite(text):\n    return float('word' in text)\n"
    )
    polite = load_grader(f"{tmp_path / 'graders' / 'polite_words.py'}:polite")
    for n in (1, 2):
        report = go(
            graded(20), tmp_path / f"{n}.jsonl", False, [brevity, polite], mode="grade", workers=n
        )
        assert report.rows.done == 20
    assert (tmp_path / "2.jsonl").read_bytes() == (tmp_path / "1.jsonl").read_bytes()


SCRIPT = """
import sys
from pathlib import Path

import redraft

sys.path.append(Path())  # which an import ignores
FACTOR = float(sys.argv[1])

def brevity(text):
    return FACTOR / len(text)

def main():
    rows = [{"id": n, "prompt": "Say it.", "response": "Well." * (n + 1)} for n in range(8)]
    report = redraft.batch_sync(rows, "out.jsonl", False, brevity, mode="grade", workers=2)
    print(report.rows.done, report.stop_note)

"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "said"),
    [
        ('if __name__ == "__main__":\n    main()', "8 \n"),
        ("main()", "put the call under `if __name__"),
    ],
)
def test_functions_of_a_script_work_behind_a_main_block(tmp_path, end, said):
    """Without one the error says what to do. A script finds its arguments in every process."""
    (tmp_path / "script.py").write_text(SCRIPT + end)
    done = subprocess.run(
        [sys.executable, "script.py", "0.5"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert said in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (dict(workers=0), "workers must be a whole number >= 1 or None, got 0"),
        (
            dict(workers=10_000),
            f"workers must be a whole number from 1 to {4 * os.cpu_count()} on this machine, got 10000",
        ),
        (
            dict(workers=2, engine="provider-batch"),
            "workers needs engine 'local', got engine 'provider-batch'",
        ),
        (
            dict(workers=2, on_record=print),
            "on_record is not possible with workers=2: rows are processed in other processes",
        ),
    ],
)
def test_invalid_settings_are_refused_at_once(given, said):
    """The error comes before the data are read."""
    with pytest.raises(ConfigError) as raised:
        BatchRun.from_arguments("rows.jsonl", "a.jsonl", **given)
    assert said in str(raised.value)


def test_what_cannot_be_sent_is_named(tmp_path):
    """The error comes before any process is started, and says what to do."""
    with pytest.raises(
        ConfigError,
        match="graders: a function cannot be sent to other processes .*at the top level of a file",
    ):
        go(graded(4), tmp_path / "a.jsonl", False, lambda text: 1.0, mode="grade", workers=2)


@pytest.mark.slow
def test_functions_of_a_script_from_standard_input_are_refused(tmp_path):
    """No worker could find them."""
    done = subprocess.run(
        [sys.executable, "-", "1"],
        input=SCRIPT + "main()",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "brevity is defined in no file" in done.stderr, done.stdout + done.stderr


@pytest.mark.slow
def test_rows_have_objects_of_the_user(tmp_path):
    """Their classes are found as those of graders are."""
    rows = [row | {"extra": Extra(n)} for n, row in enumerate(graded(4))]
    assert go(rows, tmp_path / "a.jsonl", False, brevity, mode="grade", workers=2).rows.done == 4


class Kept:
    """An object that refuses to be sent."""

    def __reduce__(self):
        raise RuntimeError("this stays here")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "what"),
    [
        (Lock(), "a lock cannot be sent to other processes (cannot pickle"),
        (lambda: 1, "a function cannot be sent to other processes ("),
        (Extra(Lock()), "a Extra cannot be sent to other processes (cannot pickle"),
        (Kept(), "a Kept cannot be sent to other processes (this stays here)"),
    ],
    ids=["lock", "lambda", "lock in an object", "object that refuses"],
)
def test_a_row_that_cannot_be_sent_ends_the_run(tmp_path, extra, what):
    """With the reason, and what to do; no process does its work instead."""
    rows = graded(4)
    rows[2]["extra"] = extra
    report = go(rows, tmp_path / "a.jsonl", False, brevity, mode="grade", workers=2)
    assert (report.stop, report.stop_note.partition(what)[0]) == (
        "fatal",
        "extra of row r2: ",
    )
    assert report.stop_note.endswith("or leave out `workers`")
    assert report.rows.done < 4


@pytest.mark.slow
def test_what_a_grader_starts_can_be_terminated(tmp_path):
    """The processes that it starts do not inherit that workers leave SIGTERM to the process of the
    run.
    """
    report = go(
        graded(2),
        tmp_path / "a.jsonl",
        False,
        [ends_a_program, ends_a_fork],
        mode="grade",
        workers=2,
    )
    assert (report.rows.done, report.scores.best) == (2, 1.0)


def test_a_process_that_cannot_be_started_ends_the_run(tmp_path, monkeypatch):
    """The message says why; no socket is left open."""

    def fail(*_, **__):
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(subprocess, "Popen", fail)
    report = go(graded(4), tmp_path / "a.jsonl", False, brevity, mode="grade", workers=2)
    assert (report.stop, report.stop_note) == (
        "fatal",
        "a worker process cannot be started: too many processes",
    )


@pytest.mark.slow
def test_processes_share_the_rate(tmp_path, serve):
    """Together they make as many calls a minute as the run may."""
    rows, server = write_rows(tmp_path / "rows.jsonl", 20), serve("--latency", 0.01)
    limits = EndpointLimits(rpm=600)
    go(
        rows,
        tmp_path / "a.jsonl",
        server.model,
        workers=2,
        limits=limits,
        max_iterations=0,
        editor=False,
        **PLAIN,
    )
    starts = [at for kind, _, at in server.entries() if kind == "B"]
    assert len(starts) >= 20
    # ten a second, after as many at once as a second allows
    assert max(starts) - min(starts) > (len(starts) - 12) / 10 - 0.1


# ---- deaths


def workers_of(pid):
    """The workers of the run in a process, in the order of their starts."""
    pids, workers = [], []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended by now
            pids += map(int, file.read_text().split())
    for child in sorted(pids):
        with suppress(FileNotFoundError, ProcessLookupError):
            workers += (
                [child] if b"process_worker" in Path(f"/proc/{child}/cmdline").read_bytes() else []
            )
    return workers


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_run_loses_nothing_and_pays_for_nothing_twice(tmp_path, serve):
    """The workers end with the process that has started them; the same command resumes from their
    journals.
    """
    few = ("--workers", 2, "--initial-in-flight", 16, "--max-in-flight", 16)
    figures = killed_run(tmp_path, 200, 5, serve("--latency", 0.03), seed=5, options=few)
    assert (figures.lost, figures.duplicated, figures.in_order, figures.equal) == (
        0,
        0,
        True,
        True,
    ), figures
    assert figures.kills > 2, figures
    assert figures.needless == 0, figures


@pytest.mark.slow
@pytest.mark.parametrize("whole_group", [False, True])
def test_after_one_signal_a_run_waits_for_the_calls_in_flight(tmp_path, serve, whole_group):
    """A terminal sends Ctrl-C to all processes. No call in flight is lost; the resumed run repeats
    none.
    """
    rows, server = write_rows(tmp_path / "rows.jsonl", 40), serve("--latency", 0.1)
    command = batch(rows, tmp_path / "out.jsonl", server.model, "--workers", 2, plan="plain")
    process = start(["setsid", *command])
    until(lambda: server.lines() > 60, process)
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    ended = ending(process)
    assert ended.code == 130 and "same command" in ended.err and "Traceback" not in ended.err, (
        ended.err
    )
    assert [kind for kind, *_ in server.entries()].count("X") == 0
    assert run(command).code == 0
    assert max(len(times) for times in calls_by_hash(server.entries()).values()) == 1
    assert [
        json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()
    ] == [f"row-{n}" for n in range(40)]


@pytest.mark.slow
def test_after_two_signals_a_run_ends_at_once(tmp_path, serve):
    """It does not wait for calls that would take an hour, and no process is left."""
    rows, server = write_rows(tmp_path / "rows.jsonl", 20), serve("--latency", 3600, "--jitter", 0)
    process = start(batch(rows, tmp_path / "out.jsonl", server.model, "--workers", 2))
    until(lambda: server.lines() >= 6, process)  # how many calls begin without an answer differs
    workers = workers_of(process.pid)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    ended = ending(process, within=60)
    assert ended.code == 130 and "Traceback" not in ended.err, ended.err
    until(lambda: not any(map(is_alive, workers)), within=60)


@pytest.mark.slow
def test_a_grader_that_kills_its_process_once_is_survived(tmp_path, monkeypatch):
    """The process that replaces the dead one gets the rows that were not finished, and no other."""
    handed_out, finished, again = [], [], []
    take, take_again, finish = RowFeed.take, RowFeed.take_again, RowFeed.finish

    async def note_taken(feed, k, seconds):
        rows = await take(feed, k, seconds)
        handed_out.extend((k, row.n) for row, _ in rows)
        return rows

    def note_finished(feed, k, results, observations):
        finished.extend((k, n) for n in results)
        finish(feed, k, results, observations)

    def note_taken_again(feed, k):
        rows = take_again(feed, k)
        unfinished = {row for row in handed_out if row[0] == k} - set(finished)
        again.append((unfinished, {(k, row.n) for row, _ in rows}))
        return rows

    monkeypatch.setattr(RowFeed, "take", note_taken)
    monkeypatch.setattr(RowFeed, "finish", note_finished)
    monkeypatch.setattr(RowFeed, "take_again", note_taken_again)
    monkeypatch.setenv("CRASH_MARK", str(tmp_path / "mark"))
    report = go(graded(40), tmp_path / "a.jsonl", False, crash_once, mode="grade", workers=2)
    assert (report.rows.done, report.stop) == (40, "")
    assert (tmp_path / "mark").exists()
    ((unfinished, rows),) = again
    assert rows == unfinished
    assert any(n % 9 == 4 for _, n in rows)


@pytest.mark.slow
def test_a_row_that_kills_every_process_ends_the_run(tmp_path):
    """It is not tried for ever."""
    report = go(graded(4), tmp_path / "a.jsonl", False, crash_always, mode="grade", workers=2)
    assert report.stop == "fatal"
    assert "died" in report.stop_note or "ended at its start" in report.stop_note


@pytest.mark.slow
async def test_a_stopped_worker_is_replaced(tmp_path, serve, monkeypatch):
    """A signal has stopped it, and nobody continues it."""
    monkeypatch.setattr("redraft.runs.executors.processes.STOPPED_TIMEOUT", 1)
    rows, server = write_rows(tmp_path / "rows.jsonl", 30), serve("--latency", 0.05)
    run = BatchRun.from_arguments(rows, tmp_path / "out.jsonl", server.model, workers=2, **PLAIN)
    going = asyncio.ensure_future(run.go())
    await asyncio.to_thread(until, lambda: server.lines() > 60 or going.done())
    os.kill(workers_of(os.getpid())[0], signal.SIGSTOP)
    report = await going
    assert (report.rows.done, report.stop) == (30, "")


def test_a_stopped_process_is_noticed(monkeypatch):
    """Where the system can tell; elsewhere it counts as running."""
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        until(lambda: is_stopped(process.pid), within=60)
        monkeypatch.delattr(os, "waitid")
        assert not is_stopped(process.pid)
        process.kill()


async def test_first_messages_of_a_process_come_first():
    """Also if orders are sent at once. A process that takes the place of another gets the orders
    that are not answered.
    """
    worker = ProcessWorker(ProcessPool(1))
    first, orders = frame(b"shard"), Orders(7, "", Quota(1))
    exchange = asyncio.ensure_future(worker.exchange(orders))
    await asyncio.sleep(0)  # it has begun
    for _ in range(2):
        ours, theirs = socketpair()
        serving = asyncio.ensure_future(worker._serve(ours, first))
        theirs.setblocking(False)
        size = len(first) + len(encode(orders))
        received = await asyncio.get_running_loop().sock_recv(theirs, size + 1)
        assert received == first + encode(orders)
        theirs.close()
        assert await serving is None
    exchange.cancel()


@pytest.mark.parametrize(
    ("rows", "started"),
    [
        (graded(1), [1]),
        pytest.param(graded(9), [2], marks=pytest.mark.slow),
        ([{"prompt": "Say it."}], []),
    ],
)
def test_processes_are_started_for_rows_that_can_be_processed(tmp_path, monkeypatch, rows, started):
    """No more than there are rows, and none for a command that is refused."""
    counts, start = [], ProcessPool.start
    monkeypatch.setattr(
        ProcessPool, "start", lambda self, count: (counts.append(count), start(self, count))
    )
    with nullcontext() if started else pytest.raises(ConfigError, match="no response to grade"):
        assert go(
            rows, tmp_path / "a.jsonl", False, brevity, mode="grade", workers=2
        ).rows.done == len(rows)
    assert counts == started


@pytest.mark.slow
def test_what_graders_print_goes_to_stderr(tmp_path):
    """The rows may go to stdout."""
    script = (
        SCRIPT.replace("    return FACTOR", "    print('said')\n    return FACTOR")
        .replace("out.jsonl", "-")
        .replace("mode=", "journal='j', mode=")
    )
    (tmp_path / "script.py").write_text(
        script.replace("print(report.rows.done, report.stop_note)", "assert report.rows.done")
        + 'if __name__ == "__main__":\n    main()'
    )
    done = subprocess.run(
        [sys.executable, "script.py", "0.5"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [*range(8)], done.stderr
    assert done.stderr.count("said") == 8


# ---- event loops


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_cancelled_run_saves_everything(tmp_path, serve, loop, workers):
    """On either event loop the error has the report, and the same run continues."""
    factory = uvloop_factory() if loop == "uvloop" else None
    assert (factory is None) == (loop == "asyncio")
    rows, server = write_rows(tmp_path / "rows.jsonl", 30), serve("--latency", 0.05)

    async def cancel():
        run = BatchRun.from_arguments(
            rows, tmp_path / "a.jsonl", server.model, workers=workers, **PLAIN
        )
        going = asyncio.ensure_future(run.go())
        await asyncio.to_thread(until, lambda: server.lines() > 60 or going.done())
        going.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await going
        return cancelled.value.result

    with asyncio.Runner(loop_factory=factory) as runner:
        report = runner.run(cancel())
        assert (report.stop, report.resumable) == ("interrupted", True)
        assert shard_journals(tmp_path / "a.jsonl.journal") == []
        run = BatchRun.from_arguments(
            rows, tmp_path / "a.jsonl", server.model, workers=workers, **PLAIN
        )
        assert runner.run(run.go()).rows.done == 30


def test_without_uvloop_the_event_loop_is_that_of_asyncio(monkeypatch):
    """It is an optional extra."""
    monkeypatch.setitem(sys.modules, "uvloop", None)

    async def loop():
        return type(asyncio.get_running_loop()).__module__

    assert run_on_uvloop(loop()).startswith("asyncio")


def test_workers_learn_the_pauses_of_others(monkeypatch):
    """A pause does not grow by the time that messages take; what is over is forgotten."""
    now = [100.0]
    monkeypatch.setattr("redraft.runs.executors.sharded.time.time", lambda: now[0])
    pauses = Pauses()
    pauses.add({"a": 110.0})
    pauses.add({"a": 109.0, "b": 101.0})
    assert pauses.present == {"a": 110.0, "b": 101.0}
    now[0] += 5
    assert pauses.present == {"a": 110.0}


async def test_an_endpoint_that_paused_elsewhere_is_not_called():
    """Its other limits are unchanged."""
    limiter = EndpointLimiter("m", initial=4)
    assert limiter.pause_left <= 0
    limiter.pause(30)
    assert 29 < limiter.pause_left <= 30
    assert (limiter.free_slots, limiter.limit) == (0, 4)


@pytest.mark.slow
@pytest.mark.parametrize("messages", [0, 1, 2, 3, 4, 6, 9])
def test_a_worker_that_loses_the_run_while_it_writes_ends_silently(
    tmp_path, serve, monkeypatch, capfd, messages
):
    """Whatever it sends first that nobody can receive, it writes nothing to stderr, and the run
    goes on with another worker.
    """
    rows, server = write_rows(tmp_path / "rows.jsonl", 12), serve("--latency", 0.01)
    start, started, received, lost = processes.start_process, {}, Counter(), []

    def start_noted():
        process, connection = start()
        started[connection.fileno()] = process
        return process, connection

    async def receive_some(reader):
        connection = reader._transport.get_extra_info("socket")
        process = started[connection.fileno()]
        if received[process] < messages or lost:
            received[process] += 1
            return await receive(reader)
        lost.append(process)
        connection.shutdown(SHUT_RD)  # it can still read, and not write
        with suppress(TimeoutError):  # what it waits for may be an answer
            async with asyncio.timeout(3):
                while process.poll() is None:
                    await asyncio.sleep(0.01)
        return None

    monkeypatch.setattr(processes, "start_process", start_noted)
    monkeypatch.setattr(processes, "receive", receive_some)
    report = go(rows, tmp_path / "a.jsonl", server.model, workers=2, **PLAIN)
    assert (report.rows.done, report.rows.failed, len(lost)) == (12, 0, 1)
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_worker_waits_while_no_process_can_be_started(tmp_path, serve, monkeypatch):
    """A shortage of processes or descriptors ends no run."""
    rows, server = write_rows(tmp_path / "rows.jsonl", 3), serve("--latency", 0.01)
    start, tries = processes.start_process, []

    def start_later():
        tries.append(1)
        if len(tries) <= 4:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return start()

    monkeypatch.setattr(processes, "start_process", start_later)
    monkeypatch.setattr(processes, "SHORTAGE_PAUSE", 0.0)
    assert go(rows, tmp_path / "a.jsonl", server.model, workers=2, **PLAIN).rows.done == 3
