"""Runs that are cut short by kill -9, signals, a wrong key or an outage, and are then resumed."""

import json
import signal
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from redraft.storage.journal import Journal

from .killing import (
    batch,
    commit_delay,
    ending,
    killed_run,
    needless,
    output_of,
    run,
    run_here,
    start,
    until,
    write_rows,
)

RESULTS = (
    *(
        "best",
        "tool_calls",
        "initial_score",
        "best_score",
        "score_low",
        "score_high",
        "score_basis",
        "judge_score",
    ),
    *("iterations", "stop", "diagnosis", "calls", "tokens", "cost", "error", "broken", "note"),
)


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "rows.jsonl", 40)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_killed_at_random_moments_loses_nothing_and_pays_for_nothing_twice(tmp_path, serve):
    """200 rows, killed 9 times: the output equals that of an undisturbed run, and no call is
    repeated needlessly (see `killing`).
    """
    few = ("--initial-in-flight", 16, "--max-in-flight", 16)
    figures = killed_run(tmp_path, 200, 9, serve("--latency", 0.03), seed=11, options=few)
    assert (figures.lost, figures.duplicated, figures.in_order, figures.equal) == (
        0,
        0,
        True,
        True,
    ), figures
    assert figures.kills > 5, figures
    assert figures.needless == 0, figures


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", [(), ("--formats",)], ids=["takes no formats", "takes formats"])
def test_a_killed_run_makes_the_calls_of_an_undisturbed_one(tmp_path, serve, options):
    """What a run learns of an endpoint, and when, does not change the output, and a resumed run
    still knows it.

    The endpoint refuses system roles and formats, fails now and then, and judges some texts in
    prose.
    """
    server = serve("--latency", 0.02, *options, script="picky_server.py")
    few = ("--initial-in-flight", 4, "--max-in-flight", 4)
    figures = killed_run(tmp_path, 60, 5, server, seed=3, options=few)
    assert (figures.lost, figures.duplicated, figures.in_order, figures.equal) == (
        0,
        0,
        True,
        True,
    ), figures
    assert figures.kills > 2, figures
    # at the start, and what the four calls in flight have learned in vain before each kill
    most = (1 + (not options)) * 2 * 2 * 4 + 4 * figures.kills
    assert server.counts()["refused"] <= most, server.counts()


@pytest.mark.slow
def test_an_undisturbed_run_makes_every_call_once(tmp_path, rows, serve):
    """Each call that a row counts is sent once or answered by the cache; a finished run makes no
    call when it is repeated.
    """
    server, output = serve("--latency", 0.01), tmp_path / "out.jsonl"
    command = batch(rows, output, server.model)
    assert run_here(command).code == 0
    written, calls = output.read_bytes(), times(server)
    found = list(map(json.loads, written.splitlines()))
    assert [list(row) for row in found] == [["id", "prompt", *RESULTS]] * 40
    with closing(Journal(Path(f"{output}.journal"))) as journal:
        cached = journal.run("out-jsonl").metadata["report"]["spending"]["cached_calls"]
    assert sum(row["calls"] for row in found) == calls.total() + cached
    assert cached < 10  # this server gives the same answer to a request for a new draft

    assert run_here(command).code == 0
    assert output.read_bytes() == written
    assert times(server) == calls


@pytest.mark.slow
@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM])
def test_after_one_signal_a_run_waits_for_the_calls_in_flight(tmp_path, rows, serve, ends):
    """No call in flight is lost, and the message says how to resume; the resumed run repeats no
    call and writes the same bytes.
    """
    server = serve("--latency", 0.1)
    assert run_here(batch(rows, tmp_path / "plain.jsonl", server.model)).code == 0
    begun, whole = server.lines(), times(server)
    command = batch(rows, tmp_path / "out.jsonl", server.model)
    process = start(command)
    until(lambda: server.lines() > begun + 60, process)
    process.send_signal(ends)
    ended = ending(process)
    assert ended.code == 130 and "same command" in ended.err and "Traceback" not in ended.err, (
        ended.err
    )
    entries = server.entries(begun)
    assert not [entry for entry in entries if entry[0] == "X"]
    assert len(entries) < begun

    assert run_here(command).code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "plain.jsonl").read_bytes()
    assert times(server, begun) == whole


@pytest.mark.slow
def test_after_two_signals_a_run_ends_at_once(tmp_path, rows, serve):
    """It does not wait for calls that would take an hour; the same command resumes it."""
    slow = serve("--latency", 3600, "--jitter", 0)
    command = batch(rows, tmp_path / "out.jsonl", slow.model)
    process = start(command)
    until(lambda: slow.lines() >= 10, process)
    process.send_signal(signal.SIGINT)
    until(lambda: "waiting for the calls in flight" in output_of(process)[1], process)
    process.send_signal(signal.SIGINT)
    ended = ending(process, within=100)
    assert ended.code == 130 and "same command" in ended.err and "Traceback" not in ended.err, (
        ended.err
    )

    slow.stop()
    fast = serve("--latency", 0.01, port=slow.port)
    assert run_here(command).code == 0
    assert run_here(batch(rows, tmp_path / "plain.jsonl", fast.model)).code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "plain.jsonl").read_bytes()


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("twice", [False, True])
def test_ctrl_c_in_a_script_raises_with_the_report(tmp_path, rows, serve, twice):
    """The first Ctrl-C waits for calls in flight, the second does not; every call is in the report
    and in the journal.
    """
    server = serve("--latency", 3600 if twice else 0.2, "--jitter", 0)
    process = start(
        [sys.executable, "-c", SCRIPT, str(rows), str(tmp_path / "out.jsonl"), server.model]
    )
    until(lambda: server.lines() >= 10, process)
    process.send_signal(signal.SIGINT)
    if twice:
        until(lambda: "stopping" in output_of(process)[0], process)
        process.send_signal(signal.SIGINT)
    ended = ending(process, within=100)
    assert not ended.err
    report = json.loads(ended.out.splitlines()[-1])
    assert report["raised"] == "KeyboardInterrupt" and report["stop"] == "interrupted"
    kinds = [kind for kind, *_ in server.entries()]
    paid = report["spending"]
    assert paid["calls"] == report["journalled"] == kinds.count("B") > 0
    assert ("X" in kinds) == twice == (paid["tokens"] is None)


SCRIPT = """
import json, sys
import redraft
from redraft.storage.journal import Journal

def show(progress):
    print(progress.state, flush=True)

source, output, model = sys.argv[1:]
try:
    report, raised = redraft.batch_sync(source, output, model, on_progress=show), None
except KeyboardInterrupt as interrupt:
    report, raised = interrupt.result, "KeyboardInterrupt"
with Journal(f"{output}.journal", read_only=True) as journal:
    kept = sum(trace.usage.calls for run in journal.runs() for _, trace in journal.traces(run.name))
print(json.dumps({"raised": raised, "journalled": kept, **report.as_data()}))
"""


@pytest.mark.slow
def test_with_few_descriptors_only_what_was_sent_is_counted(tmp_path, serve):
    """A connection that cannot be opened is no call: the report counts as many as the server."""
    source, server = write_rows(tmp_path / "rows.jsonl", 120), serve("--latency", 0.05)
    command = batch(
        source,
        tmp_path / "out.jsonl",
        server.model,
        "--initial-in-flight",
        64,
        "--max-iterations",
        0,
        "--json",
    )
    ended = run(["sh", "-c", 'ulimit -n 40; exec "$@"', "sh", *command])
    assert "Traceback" not in ended.err, ended.err
    report = json.loads(ended.out.splitlines()[-1])
    assert report["spending"]["calls"] == server.counts()["B"] > 0


@pytest.mark.slow
def test_a_wrong_key_stops_the_run_at_once(tmp_path, serve):
    """There is one error for the run, which says what to do, not one for each row; with the right
    key the run resumes.
    """
    source, refusing = write_rows(tmp_path / "rows.jsonl", 60), serve("--refuse", 401)
    command = batch(source, tmp_path / "out.jsonl", refusing.model)
    ended = run_here(command)
    assert (
        ended.code == 1
        and "401" in ended.err
        and "key" in ended.err
        and "Traceback" not in ended.err
    ), ended.err
    assert refusing.lines() // 2 <= 32

    refusing.stop()
    fast = serve("--latency", 0.01, port=refusing.port)
    assert run_here(command).code == 0
    assert run_here(batch(source, tmp_path / "plain.jsonl", fast.model)).code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "plain.jsonl").read_bytes()


@pytest.mark.slow
def test_a_run_waits_for_an_endpoint_that_is_not_up_yet(tmp_path, rows, serve, closed_url):
    """It says that the endpoint is down, and starts when it is up."""
    process = start(batch(rows, tmp_path / "out.jsonl", f"{closed_url}#m"))
    until(lambda: "down since" in output_of(process)[1], process)
    server = serve("--latency", 0.01, port=urlsplit(closed_url).port)
    assert ending(process).code == 0
    assert run_here(batch(rows, tmp_path / "plain.jsonl", server.model)).code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "plain.jsonl").read_bytes()


@pytest.mark.slow
def test_a_run_waits_for_an_endpoint_that_goes_down(tmp_path, rows, serve):
    """Its calls in flight are lost and repeated, no others are, and no row ends in an error."""
    server = serve("--latency", 0.1)
    process = start(batch(rows, tmp_path / "out.jsonl", server.model))
    until(lambda: server.lines() > 60, process)
    server.shut_down()
    until(lambda: "down since" in output_of(process)[1], process)
    again = serve("--latency", 0.01, port=server.port)
    assert ending(process).code == 0
    answered = Counter(sha for kind, sha, _ in server.entries() if kind == "E")
    begun, rest = again.lines(), times(again)
    assert run_here(batch(rows, tmp_path / "plain.jsonl", again.model)).code == 0
    assert answered + rest == times(again, begun)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "plain.jsonl").read_bytes()


def times(server, since=0):
    """How often each call was made."""
    return Counter(sha for kind, sha, _ in server.entries(since) if kind == "B")


def test_which_repeated_calls_are_needless():
    """A kill explains a repetition if it came before the answer, or so soon after it that the
    answer need not be saved yet.
    """
    for times, kills, count in [
        ([(1.0, 2.0)], [], 0),
        ([(1.0, 2.0), (3.0, 4.0)], [], 1),
        ([(1.0, None), (3.0, 4.0)], [2.0], 0),
        ([(1.0, None), (3.0, 4.0)], [0.5], 1),
        ([(1.0, None), (3.0, 4.0)], [0.999], 0),
        ([(1.0, 2.0), (3.0, 4.0)], [2.2], 0),
        ([(1.0, 2.0), (3.0, 4.0)], [2.3], 1),
        ([(1.0, None), (3.0, 4.0), (5.0, 6.0)], [2.0], 1),
        ([(1.0, 2.0), (3.0, 4.0)], [0.5, 3.5], 1),
    ]:
        assert needless(times, kills, 0.25) == count, (times, kills)


@pytest.mark.parametrize(("next_call", "count"), [(2.04, 1), (2.06, 0), (1.9, 0)])
def test_an_answer_must_be_saved_before_its_row_makes_the_next_call(next_call, count):
    """A kill right after the next call does not explain that the answer is missing."""
    assert needless([(1.0, 2.0), (3.0, 4.0)], [2.05], 0.25, [1.0, next_call, 3.0]) == count


@pytest.mark.parametrize(
    ("journaled", "count"), [([True, True], 1), ([False, True], 1), ([False, False], 0), ([], 0)]
)
def test_an_answer_in_the_journal_must_not_be_paid_for_again(journaled, count):
    """No kill explains the repetition of a call whose answer was in the journal when the run was
    resumed.
    """
    assert needless([(1.0, 2.0), (3.0, 4.0)], [0.5, 2.05], 0.25, [], journaled) == count


def test_the_commit_delay_is_the_longest_from_an_answer_to_the_next_call_of_its_row():
    """Pauses that a kill explains do not count, nor does the time between calls of two rows."""
    row, other = "00000001", "00000002"
    calls = {
        f"{row}a": [(1.0, 2.0)],
        f"{row}b": [(2.5, 3.0), (5.0, 6.0)],
        f"{other}c": [(9.0, 9.5)],
    }
    assert commit_delay(calls, []) == 2.0
    assert commit_delay(calls, [4.0]) == commit_delay(calls, [2.9]) == 0.5
