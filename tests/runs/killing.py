"""Kill a batch at random moments and compare its result, and what it paid for, with an undisturbed
run.

The tests and bench/kill.py share this module. A row makes one call at a time, and its answer is in
the journal before the row's next call. So a kill may cost a row the one call that it has in flight,
and nothing else. A repeated call is needless if

- no kill lies between the two,
- the answer was in the journal at the last kill before the repetition,
- the row had made its next call before the kill, or
- the answer had been sent so long before the kill that the client must have read and committed it.
  How long that takes is measured in the same run: the longest time from an answer to the next call
  of its row, at least `MIN_COMMIT_DELAY`.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from collections import defaultdict
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from operator import itemgetter
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from unittest.mock import patch
from urllib.request import urlopen

from redraft.storage import Journal
from redraft.storage.shard_merge import shard_journals
from reserved_port import reserved_port

HERE = Path(__file__).parent
LINE = 52  # bytes of a line of the logging server's log
MIN_COMMIT_DELAY = 0.25  # seconds
# the start of a request's hash, which the logging server puts into its answer
MARK = re.compile(r"\b\d{8}[0-9a-f]{4}\b")
WORDS = "rivers bridges tides clocks maps lenses kilns looms sails wells".split()


class Server:
    """A server in a process of its own. `log` is a file with a line for everything that
    happened.
    """

    def __init__(self, script, *options, log=None, port=0):
        self.command = [
            sys.executable,
            str(HERE / script),
            *map(str, options),
            *(["--log", str(log)] if log else []),
        ]
        self.log = log and Path(log)
        self.process = None
        self.start(port)

    def start(self, port=0):
        self.process = subprocess.Popen(
            [*self.command, "--port", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.rpartition(":")[2])

    def stop(self):
        """Kill it, with its calls in flight."""
        self.process.kill()
        self.process.communicate()

    def shut_down(self):
        """End it between two answers, with its calls in flight: the log has every answer that it
        sent.
        """
        self.process.communicate()  # closes its standard input

    @property
    def model(self):
        return f"{self.url}/v1#m"

    def lines(self):
        """Return the number of events in the log."""
        return self.log.stat().st_size // LINE if self.log.exists() else 0

    def entries(self, since=0):
        """Return (kind, hash, time) of all events from a line on."""
        return read_log(self.log, since)

    def counts(self):
        with urlopen(f"{self.url}/stats") as answer:
            return json.load(answer)


class ForeignServer:
    """A server that runs already. It has no log."""

    def __init__(self, url):
        self.url = url.rstrip("/")
        self.model = f"{self.url}/v1#m"

    def lines(self):
        return 0

    def entries(self, since=0):
        return []


@contextmanager
def serving(script="logging_server.py", *options, port=None, **given):
    """A server; no other program gets its port, also after it has ended."""
    with reserved_port() as reserved:
        server = Server(script, *options, port=port or reserved, **given)
        try:
            yield server
        finally:
            server.stop()


def write_rows(path, n):
    """Prompts that are all different."""
    prompts = (
        f"Explain to a newcomer, in case {i}, how {WORDS[i % 10]} and {WORDS[i // 10 % 10]} are made."
        for i in range(n)
    )
    path.write_text(
        "".join(json.dumps({"id": f"row-{i}", "prompt": p}) + "\n" for i, p in enumerate(prompts))
    )
    return path


PLANS = {
    "shipped": 'priors = "shipped"',
    "learned": 'priors = "learned"',
    "plain": "noise-aware = false",
}


def batch(source, output, model, *options, plan="shipped"):
    """Return the command that refines a file of rows by one of the plans. Model None: that of the
    environment.
    """
    given = [
        source,
        "-o",
        output,
        "--journal",
        f"{output}.journal",
        *(["--model", model] if model else []),
        *options,
    ]
    if plan:
        file = Path(f"{output}.plan.toml")
        file.write_text(PLANS[plan])
        given += ["--plan", file]
    return [sys.executable, "-m", "redraft", "batch", *map(str, given)]


def start(command, **env):
    """Start a program that receives Ctrl-C, even if the tests were started with it ignored."""
    heed = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    out, err = TemporaryFile(), TemporaryFile()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        preexec_fn=heed,
        env={**os.environ, **env},
    )
    process.files = out, err
    return process


DRIVER = """
import json, sys
from redraft.runs import batch_sync
report = batch_sync(*sys.argv[1:4], noise_aware=False, **json.loads(sys.argv[4]))
print(report.rows.done, report.stop, report.stop_note)
"""


def drive(rows, output, server, **given):
    """Start a run by a program that calls `batch_sync`."""
    command = [sys.executable, "-c", DRIVER, str(rows), str(output), server.model]
    return start([*command, json.dumps(given)])


def worker_process(output, k, of):
    """Return the process of a worker, which holds the lock of its journal; None before there is
    one.
    """
    lock = output.with_name(f"{output.name}.journal.{k}-of-{of}.lock")
    try:
        pid = json.loads(lock.read_text())["pid"]
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return None if pid == os.getpid() else pid  # which holds it while it merges the journal


def output_of(process):
    """Return what a process has written to stdout and to stderr so far."""
    return tuple(os.pread(file.fileno(), 10**8, 0).decode() for file in process.files)


@dataclass
class ProgramResult:
    """The exit code and the output of a program."""

    code: int
    out: str
    err: str


def ending(process, within=280):
    """Wait for the end of a process. Raises AssertionError if it does not end in time."""
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise AssertionError(
            f"did not end within {within} s; it said:\n{output_of(process)[1][-3000:]}"
        ) from None
    ended = ProgramResult(process.returncode, *output_of(process))
    for file in process.files:
        file.close()
    return ended


def run(command, within=280, **env):
    return ending(start(command, **env), within)


def run_here(command, **env):
    """Run a `redraft` command in this process, which saves the start of an interpreter."""
    from redraft.cli import main

    assert command[:3] == [sys.executable, "-m", "redraft"]
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    root = logging.getLogger()
    with patch.dict(os.environ, env), redirect_stdout(out), redirect_stderr(err):
        with patch.object(root, "handlers", [logging.StreamHandler(err)]):
            code = main(command[3:])
    return ProgramResult(code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())


def until(holds, process=None, within=280):
    """Wait until a condition holds."""
    end = time.monotonic() + within
    while not holds():
        if process is not None and process.poll() is not None:
            raise AssertionError(
                f"ended too soon, with {process.returncode}:\n{output_of(process)[1][-3000:]}"
            )
        assert time.monotonic() < end, f"did not come to be within {within} s"
        time.sleep(0.002)


def kill_at(moments, command, progress, dice, within=600, after_kill=lambda: None):
    """Run the command until it ends by itself, and kill it whenever the progress reaches one of the
    moments.

    Some kills hit the first second of a process instead. Return how it ended and when it was
    killed.
    """
    kills = []
    for n, moment in enumerate(moments):
        process, since, begun = start(command), time.monotonic(), progress()
        early = dice.random() < 0.15 or begun >= moment
        patience = dice.uniform(0.0, 1.0) if early else within
        goal = begun + moment / (n + 1) if early else moment
        while process.poll() is None and time.monotonic() - since < patience and progress() < goal:
            time.sleep(0.002)
        time.sleep(dice.uniform(0.0, 0.03))
        kills.append(time.monotonic())
        process.kill()
        ended = ending(process)
        if ended.code != -signal.SIGKILL:
            kills.pop()
            return ended, kills
        after_kill()
    return run(command, within), kills


def moments(whole, kills, dice):
    """Return random moments of a run with `whole` events."""
    return sorted(dice.uniform(0, 0.95 * whole) for _ in range(kills))


@dataclass
class Figures:
    """The result of a killed run. `again` counts repeated calls, `needless` those of them that the
    journal should have saved.
    """

    rows: int
    kills: int
    lost: int
    duplicated: int
    in_order: bool
    equal: bool
    calls: int
    most_in_flight: int
    again: int
    needless: int
    seconds: float

    def as_data(self):
        return asdict(self)


def compare(source, output, undisturbed, entries, kills, journaled, seconds):
    """Return the figures of a killed run. `journaled`: for each kill, the marks of the answers in
    the journal after it.
    """
    wanted, got = (
        [json.loads(line)["id"] for line in Path(path).read_text().splitlines()]
        for path in (source, output)
    )
    calls = calls_by_hash(entries)
    return Figures(
        rows=len(wanted),
        kills=len(kills),
        lost=len(set(wanted) - set(got)),
        duplicated=len(got) - len(set(got)),
        in_order=got == wanted,
        equal=Path(output).read_bytes() == Path(undisturbed).read_bytes(),
        calls=len(calls),
        most_in_flight=most_in_flight(entries),
        again=sum(len(times) - 1 for times in calls.values()),
        needless=needless_calls(calls, kills, journaled),
        seconds=seconds,
    )


def read_log(path, since=0):
    """Return (kind, hash, time) of all events in a server's log from a line on."""
    lines = Path(path).read_text().splitlines()[since:]
    return [(kind, sha, float(at)) for kind, sha, at in map(str.split, lines)]


def calls_by_hash(entries):
    """Return hash -> [(asked at, answered at or None)], in the order of asking."""
    calls, pending = defaultdict(list), defaultdict(list)
    for kind, sha, at in entries:
        if kind == "B":
            pending[sha].append(len(calls[sha]))
            calls[sha].append((at, None))
        else:
            n = pending[sha].pop(0)
            calls[sha][n] = (calls[sha][n][0], at if kind == "E" else None)
    return calls


def needless_calls(calls, kills, journaled=None):
    """Return how many repeated calls no kill can explain, see the module's docstring. `kills` are
    in order.
    """
    starts = defaultdict(list)
    for sha, times in calls.items():
        starts[row_of(sha)] += [at for at, _ in times]
    delay = commit_delay(calls, kills)
    journaled = journaled or [set()] * len(kills)
    return sum(
        needless(
            times, kills, delay, starts[row_of(sha)], [sha[:12] in answers for answers in journaled]
        )
        for sha, times in calls.items()
    )


def row_of(sha):
    """Return the number of the row with which the server's hash of a request begins."""
    return sha[:8]


def commit_delay(calls, kills):
    """Return the longest time from an answer to the next call of its row, kills aside; at least
    `MIN_COMMIT_DELAY`.
    """
    by_row = defaultdict(list)
    for sha, times in calls.items():
        by_row[row_of(sha)] += times
    pairs = [
        pair for times in by_row.values() for pair in pairwise(sorted(times, key=itemgetter(0)))
    ]
    undisturbed = [
        pair for pair in pairs if not any(pair[0][0] < kill < pair[1][0] for kill in kills)
    ]
    return max(
        [
            MIN_COMMIT_DELAY,
            *(after - answered for (_, answered), (after, _) in undisturbed if answered),
        ]
    )


def needless(times, kills, delay, starts=(), journaled=()):
    """Return how many repetitions of one call are needless.

    `times`: of each repetition, when it was asked and answered (None: its client left before).
    `starts`: when the row made its calls, this one and others. `journaled`: for each kill, whether
    the answer was in the journal then.
    """
    return sum(
        not _explains(before, after, kills, delay, starts, journaled)
        for before, (after, _) in pairwise(times)
    )


def _explains(before, again_at, kills, delay, starts, journaled):
    asked_at, answered_at = before
    last = bisect_left(kills, again_at)  # the number of kills before the repetition
    if last and journaled and journaled[last - 1]:
        return False
    # The log has the server's times: a request that was on its way at the kill is logged a little
    # later.
    between = kills[bisect_left(kills, asked_at - delay) : last]
    if answered_at is None:
        return bool(between)
    return any(
        answered_at > kill - delay and not any(answered_at < start < kill for start in starts)
        for kill in between
    )


def journaled_marks(path):
    """Return the marks of all answers in the response caches of a journal and its shards."""
    return set().union(*map(_marks_in, [Path(path), *shard_journals(Path(path))]))


def _marks_in(path):
    if not path.exists() or not path.stat().st_size:
        return set()
    with Journal(path, read_only=True) as journal:
        return {
            mark for reply in journal.response_cache.values() for mark in MARK.findall(reply.text)
        }


def most_in_flight(entries, settling=0.0):
    """The most calls out at once, where a call stays out until `settling` seconds after its end."""
    changes = sorted((at, 1) if kind == "B" else (at + settling, -1) for kind, _, at in entries)
    return max(accumulate(change for _, change in changes), default=0)


def check_asked_once(entries, kills):
    """Check that only calls that were in flight at a kill, or just answered, were made again: no
    more than that many at each.
    """
    calls = calls_by_hash(entries)
    assert needless_calls(calls, kills) == 0
    again = sum(len(times) - 1 for times in calls.values())
    assert again <= len(kills) * most_in_flight(entries, settling=commit_delay(calls, kills))


def killed_run(folder, rows, kills, server, *, seed=0, options=(), say=lambda _: None):
    """Make an undisturbed run, then the same with kills, and return the figures.

    Calls are identified by their content, so the run is one that never makes the same call twice.
    """
    source = write_rows(folder / "rows.jsonl", rows)
    plain, disturbed = folder / "plain.jsonl", folder / "killed.jsonl"
    begun, began = server.lines(), time.monotonic()
    first = run(batch(source, plain, server.model, *options, plan="plain"), within=3600)
    assert first.code == 0, first.err[-3000:]
    lines, seconds = server.lines() - begun, time.monotonic() - began
    say(f"undisturbed: {lines // 2 or '?'} calls in {seconds:.1f} s; now with {kills} kills")
    dice, since, began = Random(seed), server.lines(), time.monotonic()
    whole, progress = lines, lambda: server.lines() - since
    if not lines:  # a server whose log is not ours to read: by the clock
        whole, progress = seconds + kills, lambda: time.monotonic() - began
    command, journaled = batch(source, disturbed, server.model, *options, plan="plain"), []
    save = lambda: journaled.append(journaled_marks(f"{disturbed}.journal"))
    last, at = kill_at(moments(whole, kills, dice), command, progress, dice, after_kill=save)
    assert last.code == 0, last.err[-3000:]
    return compare(
        source, disturbed, plain, server.entries(since), at, journaled, time.monotonic() - began
    )
