"""Runs with several workers, as one table over both kinds of them: processes of this machine, and
actors on a real local Ray where that is installed. Real processes, real kills.
"""

import asyncio
import json
import os
import signal
import time
from contextlib import closing, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from redraft import Budget
from redraft.cli.user_code import load_grader
from redraft.errors import ConfigError
from redraft.runs import BatchRun
from redraft.storage.journal import Journal
from redraft.storage.shard_merge import shard_journals

from .killing import (
    calls_by_hash,
    check_asked_once,
    drive,
    most_in_flight,
    until,
    worker_process,
    write_rows,
)

# calls are identified by their words, so this leaves out repeated drafts and grades
PLAIN = {"noise_aware": False}
RAY = pytest.mark.skipif(not find_spec("ray"), reason="no Ray for this Python")


@pytest.fixture(params=["processes", pytest.param("ray", marks=[RAY, pytest.mark.slow])])
def kind(request):
    """The settings that say where workers run."""
    return {} if request.param == "processes" else {"ray": request.getfixturevalue("cluster")}


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "rows.jsonl", 30)


def made(rows, output, model, graders=None, **given):
    return BatchRun.from_arguments(rows, output, model, graders, **given)


def go(*roles, **given):
    return asyncio.run(made(*roles, **given).go())


def journal_content(journal, run):
    with closing(Journal(journal, read_only=True)) as opened:
        return [
            (info, [record_without_time(record) for record in trace.records])
            for info, trace in opened.traces(run)
        ]


def record_without_time(record):
    return replace(record, seconds=0.0) if hasattr(record, "seconds") else record


def shards_of(output):
    return shard_journals(output.with_name(f"{output.name}.journal"))


async def kill_worker(going, output, k, reached):
    """Kill a worker, and the one that replaces it, whenever one of these holds. Return when."""
    kills, killed = [], {None}
    for holds in reached:
        is_next = lambda holds=holds: holds() and worker_process(output, k, 2) not in killed
        await asyncio.to_thread(until, lambda is_next=is_next: is_next() or going.done())
        assert not going.done(), "the run ended before the kill"
        killed.add(pid := worker_process(output, k, 2))
        kills.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)
    return kills


@pytest.mark.slow
def test_workers_give_the_result_of_one_process(tmp_path, rows, serve, kind):
    """The output and the journal are the same, and so are the figures of the report. A finished run
    starts no worker.
    """
    server, output = serve("--latency", 0.02), tmp_path / "b.jsonl"
    # 2**-10 USD a token: sums are exact in any order
    given = {**PLAIN, "prices": {"m": (976.5625, 976.5625)}}
    one = go(rows, tmp_path / "a.jsonl", server.model, **given)
    begun = server.lines()
    many = go(rows, output, server.model, workers=2, **kind, **given)
    assert output.read_bytes() == (tmp_path / "a.jsonl").read_bytes()
    assert journal_content(tmp_path / "b.jsonl.journal", "b-jsonl") == journal_content(
        tmp_path / "a.jsonl.journal", "a-jsonl"
    )
    assert (many.rows.done, many.rows.reused, many.spending.usage, many.scores.uplift) == (
        one.rows.done,
        0,
        one.spending.usage,
        pytest.approx(one.scores.uplift),
    )
    assert shards_of(output) == []
    assert (
        calls_by_hash(server.entries(begun)).keys()
        == calls_by_hash(server.entries()[:begun]).keys()
    )
    begun = server.lines()
    again = go(rows, output, server.model, workers=2, **kind, **given)
    assert (again.rows.reused, server.lines()) == (30, begun)
    # the rows are redone
    cached = go(rows, output, server.model, workers=2, min_delta=0.02, **kind, **given)
    assert (cached.rows.reused, cached.spending.usage.calls, cached.spending.cache_savings) == (
        0,
        0,
        cached.spending.usage.answer_cost,
    )
    assert (
        cached.spending.cache_savings
        > 0
        == many.spending.cache_savings
        == again.spending.cache_savings
    )


@pytest.mark.slow
def test_later_rows_learn_from_earlier_ones_of_other_workers(tmp_path, serve, kind):
    """Refits and second looks are those of a run in one process."""
    rows, server = write_rows(tmp_path / "rows.jsonl", 140), serve("--latency", 0.005)
    one = go(rows, tmp_path / "1.jsonl", server.model, max_iterations=1)
    many = go(rows, tmp_path / "2.jsonl", server.model, max_iterations=1, workers=2, **kind)
    assert (tmp_path / "2.jsonl").read_bytes() == (tmp_path / "1.jsonl").read_bytes()
    assert [refit["from"] for refit in one.priors.refits] == [32, 64, 128]
    assert (many.priors.refits, many.priors.second_looks) == (
        one.priors.refits,
        one.priors.second_looks,
    )
    assert journal_content(tmp_path / "2.jsonl.journal", "2-jsonl") == journal_content(
        tmp_path / "1.jsonl.journal", "1-jsonl"
    )


@pytest.mark.slow
async def test_the_output_grows_while_workers_go_on(tmp_path, rows, serve, kind):
    """Rows are in it, in order, before the last ones have begun."""
    server, output = serve("--latency", 0.05), tmp_path / "out.jsonl"
    run = made(rows, output, server.model, workers=2, max_in_flight=2, **kind, **PLAIN)
    going = asyncio.ensure_future(run.go())
    written = lambda: output.read_text().splitlines() if output.exists() else []
    await asyncio.to_thread(until, lambda: len(written()) > 2 or going.done())
    early = [json.loads(line)["id"] for line in written()[:3]]
    assert not going.done() and early == ["row-0", "row-1", "row-2"]
    assert (await going).rows.done == 30


@pytest.mark.slow
async def test_killed_workers_are_replaced(tmp_path, serve, kind):
    """After kill -9 of a worker, and of the one in its place, the output is that of one process, and
    no call is repeated but those in flight.
    """
    rows, said = write_rows(tmp_path / "rows.jsonl", 60), []
    server, output = serve("--latency", 0.05), tmp_path / "out.jsonl"
    await made(rows, tmp_path / "plain.jsonl", server.model, **PLAIN).go()
    since = server.lines()
    run = made(rows, output, server.model, workers=2, say=said.append, **kind, **PLAIN)
    going = asyncio.ensure_future(run.go())
    # a death is noticed between two statuses of a worker
    reached = [
        lambda: run.progress.done > 0 and server.lines() > since + 40,
        lambda: any("died" in line for line in said) and server.lines() > since + 160,
    ]
    kills = await kill_worker(going, output, 1, reached)
    report = await going
    assert (report.rows.done, report.rows.reused, report.stop, run.progress.done) == (60, 0, "", 60)
    assert sum("worker 1 of 2 died" in line for line in said) == 2, said
    assert output.read_bytes() == (tmp_path / "plain.jsonl").read_bytes()
    check_asked_once(server.entries(since), kills)


@pytest.mark.slow
def test_a_run_resumes_after_its_process_was_killed(tmp_path, rows, serve, kind):
    """Its workers die with it, twice; the same run, also with another number of workers or with
    none, resumes from what they have done.
    """
    server, output, stops = serve("--latency", 0.05), tmp_path / "out.jsonl", []
    go(rows, tmp_path / "plain.jsonl", server.model, **PLAIN)
    since = server.lines()
    for workers, number in ((2, 40), (3, 140)):
        driver = drive(rows, output, server, workers=workers, **kind)
        until(lambda number=number: server.lines() > since + number, driver)
        pids = [worker_process(output, k + 1, workers) for k in range(workers)]
        driver.kill()
        driver.wait()
        killed, begun = time.monotonic(), server.lines()
        until(lambda pids=pids: not any(is_alive(pid) for pid in pids if pid), within=60)
        for file in driver.files:
            file.close()
        stops.append((killed, begun))
    report = go(rows, output, server.model, workers=2, **kind, **PLAIN)
    entries = server.entries(since)
    # calls of workers that have not noticed yet are cut off a little later
    kills = [
        max([killed, *(at for kind, _, at in entries[: begun - since + 40] if kind == "X")])
        for killed, begun in stops
    ]
    assert (report.rows.done, report.stop) == (30, "")
    assert output.read_bytes() == (tmp_path / "plain.jsonl").read_bytes()
    check_asked_once(entries, kills)
    assert [path.name for path in tmp_path.glob("out.jsonl.journal*")] == ["out.jsonl.journal"]
    begun = server.lines()
    assert go(rows, output, server.model, **PLAIN).rows.reused == 30
    assert server.lines() == begun


def is_alive(pid):
    """Whether a process runs. One that has ended may wait for its parent to notice."""
    with suppress(FileNotFoundError, ProcessLookupError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.slow
async def test_a_budget_holds_across_kills(tmp_path, serve, kind):
    """Calls in flight when their worker was killed count as spent, each time; the limit of calls in
    flight holds as well.
    """
    rows = write_rows(tmp_path / "rows.jsonl", 60)
    server, output = serve("--latency", 0.05), tmp_path / "out.jsonl"
    given = {"workers": 2, "budget": Budget(calls=200), "max_in_flight": 8, **kind, **PLAIN}
    going = asyncio.ensure_future(made(rows, output, server.model, **given).go())
    reached = [lambda number=number: server.lines() > number for number in (60, 120)]
    await kill_worker(going, output, 2, reached)
    report = await going
    assert report.stop == "budget", report.stop_note
    assert len(output.read_text().splitlines()) == 60
    # what was in flight may not have reached the server
    assert 200 - 2 * 8 <= [event for event, *_ in server.entries()].count("B") <= 200


@pytest.mark.slow
async def test_what_killed_workers_have_spent_counts(tmp_path, serve, kind):
    """Also in a run without a budget, for a later one that has one: each call at least once, and all
    that the report has. What the server got more often was in flight at a kill, or just answered.
    """
    rows, server = write_rows(tmp_path / "rows.jsonl", 60), serve("--latency", 0.05)
    output = tmp_path / "out.jsonl"
    going = asyncio.ensure_future(made(rows, output, server.model, workers=2, **kind, **PLAIN).go())
    reached = [lambda number=number: server.lines() > number for number in (60, 240)]
    kills = await kill_worker(going, output, 1, reached)
    usage = (await going).spending.usage
    with closing(Journal(tmp_path / "out.jsonl.journal", read_only=True)) as journal:
        spent = journal.run("out-jsonl").metadata["spent"]["calls"]
    assert max(usage.calls, len(calls_by_hash(server.entries()))) <= spent <= server.counts()["B"]
    check_asked_once(server.entries(), kills)


def test_workers_share_one_budget(tmp_path, rows, serve, kind):
    """It is spent to the last call and not beyond; every row is in the output, and a larger budget
    resumes the run.
    """
    server, output = serve("--latency", 0.02), tmp_path / "a.jsonl"
    given = {"workers": 2, **kind, **PLAIN}
    report = go(rows, output, server.model, budget=Budget(calls=60), max_in_flight=6, **given)
    assert (report.stop, report.spending.usage.calls) == ("budget", 60), report.stop_note
    entries = server.entries()
    assert [event for event, *_ in entries].count("B") == 60
    assert most_in_flight(entries) <= 6
    assert len(output.read_text().splitlines()) == 30
    assert go(rows, output, server.model, budget=Budget(calls=1000), **given).rows.done == 30
    go(rows, tmp_path / "whole.jsonl", server.model, **PLAIN)
    assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.slow
def test_workers_share_one_deadline(tmp_path, serve, kind):
    """Every row is in the output when the time is up."""
    rows, server = write_rows(tmp_path / "rows.jsonl", 60), serve("--latency", 0.3)
    given = {"workers": 2, "deadline": 3, "max_in_flight": 4, **kind, **PLAIN}
    report = go(rows, tmp_path / "a.jsonl", server.model, **given)
    assert report.stop == "deadline"
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 60


@pytest.mark.slow
def test_an_error_of_an_endpoint_is_reported_once(tmp_path, rows, serve, kind):
    """As in one process."""
    server, ends = serve("--refuse", 401), []
    for n, given in enumerate(({}, {"workers": 2, **kind})):
        report = go(rows, tmp_path / f"{n}.jsonl", server.model, **given, **PLAIN)
        ends.append((report.stop, report.stop_note, report.rows.done))
    assert ends[0] == ends[1]
    assert ends[0][0] == "fatal"


@pytest.mark.slow
async def test_a_run_that_is_stopped_waits_for_the_calls_in_flight(tmp_path, rows, serve, kind):
    """No call is cut off; the same run repeats none, and the output has the order of the input."""
    server, output = serve("--latency", 0.2), tmp_path / "out.jsonl"
    given = {"workers": 2, "max_in_flight": 8, **kind, **PLAIN}
    run = made(rows, output, server.model, **given)
    going = asyncio.ensure_future(run.go())
    await asyncio.to_thread(until, lambda: server.lines() > 20 or going.done())
    run.stop()
    report = await going
    assert (report.stop, report.resumable) == ("interrupted", True)
    assert [event for event, *_ in server.entries()].count("X") == 0
    numbers = [int(json.loads(line)["id"][4:]) for line in output.read_text().splitlines()]
    assert numbers == sorted(numbers)
    assert (await made(rows, output, server.model, **given).go()).rows.done == 30
    assert max(len(times) for times in calls_by_hash(server.entries()).values()) == 1


@pytest.mark.slow
def test_workers_receive_a_grader_from_a_file(tmp_path, kind):
    """The command line loads FILE.py:NAME as a module that a worker, in another folder, could not
    import.
    """
    (tmp_path / "graders").mkdir()
    (tmp_path / "graders" / "polite_words.py").write_text(
        "def polite(text):\n    return float('please' in text)\n"
    )
    grader = load_grader(f"{tmp_path / 'graders' / 'polite_words.py'}:polite")
    texts = ["please", "no", "please do"]
    data = [{"id": str(n), "prompt": "q", "response": text} for n, text in enumerate(texts)]
    report = go(data, tmp_path / "out.jsonl", False, grader, mode="grade", workers=2, **kind)
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert (report.rows.done, [json.loads(line)["best_score"] for line in lines]) == (
        3,
        [1.0, 0.0, 1.0],
    )


class Unsendable:
    """A model that cannot be sent."""

    name, identity, formats = "held", "held", ("text",)

    def __reduce__(self):
        raise RuntimeError("this stays here")

    async def complete(self, request):
        raise AssertionError


@pytest.mark.slow(but_each=2)
def test_what_cannot_be_sent_is_named(tmp_path, rows, kind):
    """The error comes before any call, and says what to do, by the setting that was given."""
    said = (
        r"model: a Unsendable cannot be sent to other processes \(this stays here\); define it .* or "
        f"leave out `{next(iter(kind), 'workers')}`$"
    )
    with pytest.raises(ConfigError, match=said):
        go(rows, tmp_path / "out.jsonl", Unsendable(), len, workers=2, **kind)


FORMER = {
    "processes": (dict(processes=2), "processes=2 is now workers=2", (2, None)),
    "shards": (
        dict(engine="ray", shards=3),
        "engine='ray', shards=3 is now ray='local', workers=3",
        (3, "local"),
    ),
    "engine": (dict(engine="ray"), "engine='ray' is now ray='local'", (None, "local")),
    "address": (
        dict(engine="ray", ray_address="auto"),
        "engine='ray', ray_address='auto' is now ray='auto'",
        (None, "auto"),
    ),
}


@pytest.mark.parametrize(("given", "said", "present"), FORMER.values(), ids=FORMER)
def test_former_names_of_settings_still_work(given, said, present):
    """One warning says the present spelling."""
    with pytest.warns(FutureWarning) as warned:
        config = made("rows.jsonl", "a.jsonl", False, **given).config
    assert [str(warning.message) for warning in warned] == [said]
    assert (config.workers, config.ray, config.engine) == (*present, "local")
    assert (config.processes, config.shards, config.ray_address) == (None, None, None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            dict(workers=2, processes=3),
            "processes=3 is a former name of workers, which is given, too: leave it out",
        ),
        (
            dict(processes=2, shards=2),
            "shards=2 is a former name of workers, which is given, too: leave it out",
        ),
        (dict(ray=" "), "ray must be auto, local or HOST:PORT, got ' '"),
        (
            dict(ray="auto", ray_address="auto"),
            "ray_address='auto' is a former name of ray, which is given, too: leave it out",
        ),
    ],
)
def test_a_setting_is_given_by_one_name(given, said):
    """Whatever the values."""
    with pytest.raises(ConfigError, match=said):
        made("rows.jsonl", "a.jsonl", False, **given)
