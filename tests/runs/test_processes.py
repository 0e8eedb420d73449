"""Runs in several processes: their results, limits and ends, with real processes and real kills."""

import asyncio
import errno
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from socket import SHUT_RD, socketpair
from threading import Lock
from types import SimpleNamespace

import pytest

from redraft import Budget
from redraft.base.sync import run_on_uvloop, uvloop_factory
from redraft.cli.user_code import load_grader
from redraft.errors import ConfigError
from redraft.middleware import BudgetTracker, EndpointLimiter
from redraft.middleware.call_costs import ZERO_AMOUNTS
from redraft.runs import BatchRun, EndpointLimits
from redraft.runs.dataset import PendingRow
from redraft.runs.executors import processes
from redraft.runs.executors.process_channel import (
    AssignedChunk,
    CommitRequest,
    EarlierWork,
    QuotaMessage,
    encode,
    encode_code,
    receive,
)
from redraft.runs.executors.processes import (
    Pauses,
    ReadyProcesses,
    WorkerJournal,
    WorkerProcess,
    _with_journal,
    is_stopped,
)
from redraft.runs.executors.shard_protocol import Quota, QuotaUse, ShardStatus
from redraft.storage.journal import Journal, RowInfo
from redraft.storage.remote_journal import UPDATE_RUN
from redraft.storage.shard_merge import shard_journals

from .killing import (
    batch,
    calls_by_hash,
    check_asked_once,
    ending,
    killed_run,
    most_in_flight,
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


def journal_content(journal, run):
    with closing(Journal(journal, read_only=True)) as opened:
        return [
            (info, [record_without_time(record) for record in trace.records])
            for info, trace in opened.traces(run)
        ]


def record_without_time(record):
    return replace(record, seconds=0.0) if hasattr(record, "seconds") else record


def graded(n):
    return [
        {"id": f"r{i}", "prompt": "Say it.", "response": "word " * (i % 9 + 1)} for i in range(n)
    ]


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("processes", [2, 3])
def test_processes_give_the_result_of_one(tmp_path, serve, processes):
    """The output and the journal are the same, and so are the figures of the report. A finished run
    starts no process.
    """
    rows, server = write_rows(tmp_path / "rows.jsonl", 30), serve("--latency", 0.02)
    # 2**-10 USD a token: sums are exact in any order
    given = {**PLAIN, "prices": {"m": (976.5625, 976.5625)}}
    one = go(rows, tmp_path / "a.jsonl", server.model, **given)
    begun = server.lines()
    many = go(rows, tmp_path / "b.jsonl", server.model, processes=processes, **given)
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()
    assert journal_content(tmp_path / "b.jsonl.journal", "b-jsonl") == journal_content(
        tmp_path / "a.jsonl.journal", "a-jsonl"
    )
    assert (many.done, many.reused, many.usage, many.uplift) == (
        one.done,
        0,
        one.usage,
        pytest.approx(one.uplift),
    )
    assert shard_journals(tmp_path / "b.jsonl.journal") == []
    assert (
        calls_by_hash(server.entries(begun)).keys()
        == calls_by_hash(server.entries()[:begun]).keys()
    )
    begun = server.lines()
    again = go(rows, tmp_path / "b.jsonl", server.model, processes=processes, **given)
    assert (again.reused, server.lines()) == (30, begun)
    # the rows are redone
    cached = go(
        rows, tmp_path / "b.jsonl", server.model, processes=processes, min_delta=0.02, **given
    )
    assert (cached.reused, cached.usage.calls, cached.cache_savings) == (
        0,
        0,
        cached.usage.answer_cost,
    )
    assert cached.cache_savings > 0 == many.cache_savings == again.cache_savings


@pytest.mark.slow
def test_later_rows_learn_from_earlier_ones_of_other_processes(tmp_path, serve):
    """Refits and second looks are those of a run in one process."""
    rows, server = write_rows(tmp_path / "rows.jsonl", 140), serve("--latency", 0.005)
    one, many = (
        go(rows, tmp_path / f"{n}.jsonl", server.model, processes=n, max_iterations=1)
        for n in (1, 2)
    )
    assert (tmp_path / "2.jsonl").read_bytes() == (tmp_path / "1.jsonl").read_bytes()
    assert [refit["from"] for refit in one.prior_refits] == [32, 64, 128]
    assert (many.prior_refits, many.second_looks) == (one.prior_refits, one.second_looks)
    assert journal_content(tmp_path / "2.jsonl.journal", "2-jsonl") == journal_content(
        tmp_path / "1.jsonl.journal", "1-jsonl"
    )


def test_graders_of_the_user_are_found_by_name(tmp_path):
    """Those of a module, and those of a file that the command line loads."""
    (tmp_path / "graders").mkdir()
    (tmp_path / "graders" / "polite_words.py").write_text(
        "def polite(text):\n    return float('word' in text)\n"
    )
    polite = load_grader(f"{tmp_path / 'graders' / 'polite_words.py'}:polite")
    for n in (1, 2):
        report = go(
            graded(20), tmp_path / f"{n}.jsonl", False, [brevity, polite], mode="grade", processes=n
        )
        assert report.done == 20
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
    report = redraft.batch_sync(rows, "out.jsonl", False, brevity, mode="grade", processes=2)
    print(report.done, report.message)

"""


@pytest.mark.slow(but_each=2)
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
        (dict(processes=0), "processes must be a whole number >= 1, got 0"),
        (
            dict(processes=10_000),
            f"processes must be a whole number from 1 to {4 * os.cpu_count()} on this machine, got 10000",
        ),
        (dict(processes=2, engine="ray"), "processes needs engine 'local', got engine 'ray'"),
        (
            dict(processes=2, engine="provider-batch"),
            "processes needs engine 'local', got engine 'provider-batch'",
        ),
        (
            dict(processes=2, on_record=print),
            "on_record is not possible with processes=2: rows are processed in other processes",
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
        go(graded(4), tmp_path / "a.jsonl", False, lambda text: 1.0, mode="grade", processes=2)


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
    assert go(rows, tmp_path / "a.jsonl", False, brevity, mode="grade", processes=2).done == 4


class Kept:
    """An object that refuses to be sent."""

    def __reduce__(self):
        raise RuntimeError("this stays here")


@pytest.mark.slow(but_each=4)
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
    report = go(rows, tmp_path / "a.jsonl", False, brevity, mode="grade", processes=2)
    assert (report.end_reason, report.message.partition(what)[0]) == (
        "fatal",
        "extra of row r2: ",
    )
    assert "leave out processes" in report.message
    assert report.done < 4


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
        processes=2,
    )
    assert (report.done, report.mean_best) == (2, 1.0)


def test_a_process_that_cannot_be_started_ends_the_run(tmp_path, monkeypatch):
    """The message says why; no socket is left open."""

    def fail(*_, **__):
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(subprocess, "Popen", fail)
    report = go(graded(4), tmp_path / "a.jsonl", False, brevity, mode="grade", processes=2)
    assert (report.end_reason, report.message) == (
        "fatal",
        "a worker process cannot be started: too many processes",
    )


def test_processes_share_one_budget(tmp_path, serve):
    """It is spent to the last call and not beyond; every row is in the output, and a larger budget
    resumes the run.
    """
    rows, server = write_rows(tmp_path / "rows.jsonl", 30), serve("--latency", 0.02)
    report = go(
        rows,
        tmp_path / "a.jsonl",
        server.model,
        processes=2,
        budget=Budget(calls=60),
        max_in_flight=6,
        **PLAIN,
    )
    assert (report.end_reason, report.usage.calls) == ("budget", 60), report.message
    entries = server.entries()
    assert [kind for kind, *_ in entries].count("B") == 60
    assert most_in_flight(entries) <= 6
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 30
    assert (
        go(
            rows,
            tmp_path / "a.jsonl",
            server.model,
            processes=2,
            budget=Budget(calls=1000),
            **PLAIN,
        ).done
        == 30
    )
    go(rows, tmp_path / "whole.jsonl", server.model, **PLAIN)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.slow
def test_processes_share_the_rate(tmp_path, serve):
    """Together they make as many calls a minute as the run may."""
    rows, server = write_rows(tmp_path / "rows.jsonl", 20), serve("--latency", 0.01)
    limits = EndpointLimits(rpm=600)
    go(
        rows,
        tmp_path / "a.jsonl",
        server.model,
        processes=2,
        limits=limits,
        max_iterations=0,
        editor=False,
        **PLAIN,
    )
    starts = [at for kind, _, at in server.entries() if kind == "B"]
    assert len(starts) >= 20
    # ten a second, after as many at once as a second allows
    assert max(starts) - min(starts) > (len(starts) - 12) / 10 - 0.1


def test_processes_share_one_deadline(tmp_path, serve):
    """Every row is in the output when the time is up."""
    rows, server = write_rows(tmp_path / "rows.jsonl", 60), serve("--latency", 0.3)
    report = go(
        rows, tmp_path / "a.jsonl", server.model, processes=2, deadline=3, max_in_flight=4, **PLAIN
    )
    assert report.end_reason == "deadline"
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 60


def test_an_error_of_an_endpoint_is_reported_once(tmp_path, serve):
    """As without processes."""
    rows, server = write_rows(tmp_path / "rows.jsonl", 20), serve("--refuse", 401)
    ends = []
    for n in (1, 2):
        said = []
        report = go(
            rows, tmp_path / f"{n}.jsonl", server.model, processes=n, say=said.append, **PLAIN
        )
        ends.append((report.end_reason, report.message, report.done))
    assert ends[0] == ends[1]
    assert ends[0][0] == "fatal"


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


async def kill_workers(going, reached, numbers):
    """Kill the oldest worker whenever the server's log has reached one of these lengths. Return
    when.

    The second one may be killed before the first one's successor works: the run might end until
    then.
    """
    kills, killed = [], set()
    oldest = lambda: next((pid for pid in workers_of(os.getpid()) if pid not in killed), None)
    for number in numbers:
        await asyncio.to_thread(until, lambda: (reached(number) and oldest()) or going.done())
        assert not going.done(), "the run ended before the kill"
        killed.add(pid := oldest())
        kills.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)
    return kills


@pytest.mark.slow
async def test_killed_workers_are_replaced(tmp_path, serve):
    """First one, then the other: the output is that of one process, and no call is repeated but
    those in flight.
    """
    rows, server = write_rows(tmp_path / "rows.jsonl", 100), serve("--latency", 0.05)
    await BatchRun.from_arguments(rows, tmp_path / "plain.jsonl", server.model, **PLAIN).go()
    said, since = [], server.lines()
    run = BatchRun.from_arguments(
        rows, tmp_path / "out.jsonl", server.model, processes=2, say=said.append, **PLAIN
    )
    going = asyncio.ensure_future(run.go())
    kills = await kill_workers(going, lambda number: server.lines() > since + number, (60, 400))
    report = await going
    assert (report.done, report.reused, report.end_reason, run.progress.done) == (100, 0, "", 100)
    assert any("of 2 died" in line for line in said), said
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "plain.jsonl").read_bytes()
    check_asked_once(server.entries(since), kills)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_run_loses_nothing_and_pays_for_nothing_twice(tmp_path, serve):
    """The workers end with the process that has started them; the same command resumes from their
    journals.
    """
    few = ("--processes", 2, "--initial-in-flight", 16, "--max-in-flight", 16)
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
def test_a_run_resumes_with_another_number_of_processes(tmp_path, serve):
    """Workers end when the process of the run is killed, also one that has resumed it with more; no
    call is repeated needlessly.
    """
    rows, server = write_rows(tmp_path / "rows.jsonl", 60), serve("--latency", 0.05)
    output, kills = tmp_path / "out.jsonl", []
    for count, number in ((2, 60), (3, 240)):
        process = start(batch(rows, output, server.model, "--processes", count, plan="plain"))
        until(lambda: server.lines() > number, process)
        workers = workers_of(process.pid)
        kills.append(time.monotonic())
        process.kill()
        ending(process)
        until(lambda: not any(map(is_alive, workers)), within=60)
    for count in (1, 2):
        assert run(batch(rows, output, server.model, "--processes", count, plan="plain")).code == 0
    check_asked_once(server.entries(), kills)
    assert run(batch(rows, tmp_path / "plain.jsonl", server.model, plan="plain")).code == 0
    assert output.read_bytes() == (tmp_path / "plain.jsonl").read_bytes()
    assert [path.name for path in tmp_path.glob("out.jsonl.journal*")] == ["out.jsonl.journal"]


@pytest.mark.slow
@pytest.mark.parametrize("whole_group", [False, True])
def test_after_one_signal_a_run_waits_for_the_calls_in_flight(tmp_path, serve, whole_group):
    """A terminal sends Ctrl-C to all processes. No call in flight is lost; the resumed run repeats
    none.
    """
    rows, server = write_rows(tmp_path / "rows.jsonl", 40), serve("--latency", 0.1)
    command = batch(rows, tmp_path / "out.jsonl", server.model, "--processes", 2, plan="plain")
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
    process = start(batch(rows, tmp_path / "out.jsonl", server.model, "--processes", 2))
    until(lambda: server.lines() >= 10, process)
    workers = workers_of(process.pid)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    ended = ending(process, within=60)
    assert ended.code == 130 and "Traceback" not in ended.err, ended.err
    until(lambda: not any(map(is_alive, workers)), within=60)


def test_a_grader_that_kills_its_process_once_is_survived(tmp_path, monkeypatch):
    """The process that replaces the dead one gets the rows that were not finished, and learns how
    many were.
    """
    sent = []
    monkeypatch.setattr(
        "redraft.runs.executors.processes.encode_code",
        lambda what: (sent.append(what), encode_code(what))[1],
    )
    monkeypatch.setenv("CRASH_MARK", str(tmp_path / "mark"))
    report = go(graded(40), tmp_path / "a.jsonl", False, crash_once, mode="grade", processes=2)
    assert (report.done, report.end_reason) == (40, "")
    assert (tmp_path / "mark").exists()
    starts = [n for n, message in enumerate(sent) if isinstance(message, EarlierWork)]
    third = starts[2]
    again = next(message for message in sent[third:] if isinstance(message, AssignedChunk))
    handed_out = [
        {row.n for row in message.rows}
        for message in sent[:third]
        if isinstance(message, AssignedChunk)
    ]
    assert [sent[n].finished for n in starts[:2]] == [0, 0]
    assert any(row.n % 9 == 4 for row in again.rows)
    assert {row.n for row in again.rows} <= set().union(*handed_out)
    assert len(again.rows) + sent[third].finished <= sum(map(len, handed_out))


@pytest.mark.slow
def test_a_row_that_kills_every_process_ends_the_run(tmp_path):
    """It is not tried for ever."""
    report = go(graded(4), tmp_path / "a.jsonl", False, crash_always, mode="grade", processes=2)
    assert report.end_reason == "fatal"
    assert "died" in report.message or "ended at its start" in report.message


@pytest.mark.slow
async def test_what_killed_workers_have_spent_counts(tmp_path, serve):
    """Also in a run without a budget, for a later one that has one: each call at least once, and all
    that the report has. What the server got more often was in flight at a kill, or just answered.
    """
    rows, server = write_rows(tmp_path / "rows.jsonl", 60), serve("--latency", 0.05)
    run = BatchRun.from_arguments(rows, tmp_path / "out.jsonl", server.model, processes=2, **PLAIN)
    going = asyncio.ensure_future(run.go())
    kills = await kill_workers(going, lambda number: server.lines() > number, (60, 240))
    usage = (await going).usage
    with closing(Journal(tmp_path / "out.jsonl.journal", read_only=True)) as journal:
        spent = journal.run("out-jsonl").metadata["spent"]["calls"]
    assert max(usage.calls, len(calls_by_hash(server.entries()))) <= spent <= server.counts()["B"]
    check_asked_once(server.entries(), kills)


@pytest.mark.slow
async def test_a_stopped_worker_is_replaced(tmp_path, serve, monkeypatch):
    """A signal has stopped it, and nobody continues it."""
    monkeypatch.setattr("redraft.runs.executors.processes.STOPPED_TIMEOUT", 1)
    rows, server = write_rows(tmp_path / "rows.jsonl", 30), serve("--latency", 0.05)
    run = BatchRun.from_arguments(rows, tmp_path / "out.jsonl", server.model, processes=2, **PLAIN)
    going = asyncio.ensure_future(run.go())
    await asyncio.to_thread(until, lambda: server.lines() > 60 or going.done())
    os.kill(workers_of(os.getpid())[0], signal.SIGSTOP)
    report = await going
    assert (report.done, report.end_reason) == (30, "")


def test_a_journal_that_fails_ends_the_run(tmp_path, monkeypatch):
    """Here it fails when the process of the run commits the first rows of its workers. The report
    says why.
    """

    def fail(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("redraft.storage.transaction._write_rows", fail)
    report = go(graded(8), tmp_path / "a.jsonl", False, brevity, mode="grade", processes=2)
    assert (report.end_reason, report.done) == ("disk", 0)
    assert "disk is full" in report.message


BEFORE, REOPENED = (
    RowInfo("r", 0, "k", {}, "done", {"a": 1}),
    RowInfo("r", 0, "k", {}, "open", {"a": 1}),
)
CHANGES = {  # what the journal had of a row when it was read, and what it has now
    "nothing": (None, None),
    "begun": (None, replace(BEFORE, status="open", result=None)),
    "finished": (None, BEFORE),
    "deleted": (BEFORE, None),
    "begun with another key": (BEFORE, replace(BEFORE, key="other", status="open", result=None)),
    "finished once more": (REOPENED, replace(BEFORE, result={"a": 2})),
}


@pytest.mark.parametrize(("before", "now"), CHANGES.values(), ids=CHANGES)
def test_a_row_has_what_the_journal_has_of_it_now(before, now):
    """Of a row that was handed out before."""
    assert _with_journal(PendingRow(None, "k", {}, before), now).info == now


def test_a_row_to_be_reopened_stays_so():
    """The journal has it as finished until it begins again."""
    assert _with_journal(PendingRow(None, "k", {}, REOPENED), BEFORE).info == REOPENED


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
    """Here the quota is due before the journal has committed what an earlier process wrote. Its
    rows and figures follow.
    """
    waiting, committed, spent = asyncio.Event(), asyncio.Event(), {"calls": 3.0}

    async def wait_for_commit():
        waiting.set()
        await committed.wait()

    journal, rows = (
        SimpleNamespace(wait_for_commit=wait_for_commit, spent=[spent]),
        AssignedChunk(["row"], {}),
    )
    feed = SimpleNamespace(job=SimpleNamespace(journal=journal), chunk_again=lambda k: rows)
    worker = WorkerProcess(0, encode_code("shard"), feed, None, Pauses(), journal, None, finished=2)
    ours, theirs = socketpair()
    serving = asyncio.ensure_future(worker._serve(ours))
    await waiting.wait()
    exchange = asyncio.ensure_future(worker.exchange_quota(Quota(1), None))
    await asyncio.sleep(0)  # it has begun
    committed.set()
    reader, writer = await asyncio.open_connection(sock=theirs)
    received = [await receive(reader) for _ in range(5)]
    assert received == [
        sys.argv,
        "shard",
        EarlierWork(spent, 2),
        QuotaMessage(Quota(1), None, {}),
        rows,
    ]
    writer.close()
    assert await serving is None
    exchange.cancel()


async def test_what_a_worker_said_before_it_died_counts():
    """It had not written the records of its last calls, and what it had written arrived later."""

    async def wait_for_commit():
        pass

    said, written = ({**ZERO_AMOUNTS, "calls": calls} for calls in (5.0, 3.0))
    tracker, changes = BudgetTracker(), ([(UPDATE_RUN, ({"spent": written},))], {}, [])
    job = SimpleNamespace(
        session=SimpleNamespace(models=SimpleNamespace(budget_tracker=tracker)),
        journal=SimpleNamespace(
            wait_for_commit=wait_for_commit, write_changes=lambda changes: None
        ),
    )
    feed = SimpleNamespace(job=job, chunk_again=lambda k: None)
    journal, (ours, theirs) = WorkerJournal(job, 1), socketpair()
    worker = WorkerProcess(0, encode_code("shard"), feed, None, Pauses(), journal, None)
    serving = asyncio.ensure_future(worker._serve(ours))
    reader, writer = await asyncio.open_connection(sock=theirs)
    for _ in range(3):  # the first messages
        await receive(reader)
    writer.write(encode(ShardStatus("p", QuotaUse(spent=said))) + encode(CommitRequest(changes)))
    await receive(reader)
    writer.close()
    assert await serving is None
    assert journal.total_spent == said


@pytest.mark.parametrize(
    ("rows", "started"), [(graded(1), [1]), (graded(9), [2]), ([{"prompt": "Say it."}], [])]
)
def test_processes_are_started_for_rows_that_can_be_processed(tmp_path, monkeypatch, rows, started):
    """No more than there are rows, and none for a command that is refused."""
    counts, start = [], ReadyProcesses.start
    monkeypatch.setattr(
        ReadyProcesses, "start", lambda self, count: (counts.append(count), start(self, count))
    )
    with nullcontext() if started else pytest.raises(ConfigError, match="no response to grade"):
        assert go(
            rows, tmp_path / "a.jsonl", False, brevity, mode="grade", processes=2
        ).done == len(rows)
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
        script.replace("print(report.done, report.message)", "assert report.done")
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


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_cancelled_run_saves_everything(tmp_path, serve, loop, processes):
    """On either event loop the error has the report, and the same run continues."""
    factory = uvloop_factory() if loop == "uvloop" else None
    assert (factory is None) == (loop == "asyncio")
    rows, server = write_rows(tmp_path / "rows.jsonl", 30), serve("--latency", 0.05)

    async def cancel():
        run = BatchRun.from_arguments(
            rows, tmp_path / "a.jsonl", server.model, processes=processes, **PLAIN
        )
        going = asyncio.ensure_future(run.go())
        await asyncio.to_thread(until, lambda: server.lines() > 60 or going.done())
        going.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await going
        return cancelled.value.result

    with asyncio.Runner(loop_factory=factory) as runner:
        report = runner.run(cancel())
        assert (report.end_reason, report.resumable) == ("interrupted", True)
        run = BatchRun.from_arguments(
            rows, tmp_path / "a.jsonl", server.model, processes=processes, **PLAIN
        )
        assert runner.run(run.go()).done == 30


def test_without_uvloop_the_event_loop_is_that_of_asyncio(monkeypatch):
    """It is an optional extra."""
    monkeypatch.setitem(sys.modules, "uvloop", None)

    async def loop():
        return type(asyncio.get_running_loop()).__module__

    assert run_on_uvloop(loop()).startswith("asyncio")


def test_workers_learn_the_pauses_of_others(monkeypatch):
    """A pause does not grow by the time that messages take; what is over is forgotten."""
    now = [100.0]
    monkeypatch.setattr("redraft.runs.executors.processes.monotonic", lambda: now[0])
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


@pytest.mark.slow(but_each=7)
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
    report = go(rows, tmp_path / "a.jsonl", server.model, processes=2, **PLAIN)
    assert (report.done, report.failed, len(lost)) == (12, 0, 1)
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
    assert go(rows, tmp_path / "a.jsonl", server.model, processes=2, **PLAIN).done == 3
