"""Runs that are killed: the servers and programs that it takes, and what must hold afterwards.

The tests and bench/kill.py share it. A call counts as asked again without need when its answer must have been in the
journal before the kill: its row had gone on to the next call, or it had been sent long before.
"""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from collections import defaultdict
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from unittest.mock import patch
from urllib.request import urlopen

HERE = Path(__file__).parent
LINE = 52  # bytes of a line of the logging server's log
GRACE = 0.25
COMMIT_GRACE = 2.0  # seconds that a busy machine may need to read the last answer of a row, and to commit it
WORDS = "rivers bridges tides clocks maps lenses kilns looms sails wells".split()


class Server:
    """A server in a process of its own. `log` is a file with a line for everything that happened."""

    def __init__(self, script, *options, log=None, port=0):
        self.command = [sys.executable, str(HERE / script), *map(str, options), *(["--log", str(log)] if log else [])]
        self.log = log and Path(log)
        self.process = None
        self.start(port)

    def start(self, port=0):
        self.process = subprocess.Popen(
            [*self.command, "--port", str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.rpartition(":")[2])

    def stop(self):
        """At once, with whatever is in flight."""
        self.process.kill()
        self.process.communicate()

    @property
    def model(self):
        return f"{self.url}/v1#m"

    def lines(self):
        """How much is in the log."""
        return self.log.stat().st_size // LINE if self.log.exists() else 0

    def entries(self, since=0):
        """(kind, hash, time) of everything that happened, from a line on."""
        return read_log(self.log, since)

    def counts(self):
        with urlopen(f"{self.url}/stats") as answer:
            return json.load(answer)


class Elsewhere:
    """A server that somebody else started. What happens on it is not known."""

    def __init__(self, url):
        self.url = url.rstrip("/")
        self.model = f"{self.url}/v1#m"

    def lines(self):
        return 0

    def entries(self, since=0):
        return []


@contextmanager
def serving(script="logging_server.py", *options, **given):
    server = Server(script, *options, **given)
    try:
        yield server
    finally:
        server.stop()


def write_rows(path, n):
    """Prompts that are all different."""
    prompts = (f"Explain to a newcomer, in case {i}, how {WORDS[i % 10]} and {WORDS[i // 10 % 10]} are made." for i in range(n))
    path.write_text("".join(json.dumps({"id": f"row-{i}", "prompt": p}) + "\n" for i, p in enumerate(prompts)))
    return path


def batch(source, output, model, *options):
    """The command that refines a file of rows, whatever earlier runs taught. (Model None: what the environment says.)"""
    given = [source, "-o", output, "--journal", f"{output}.journal", *(["--model", model] if model else []), *options]
    given += [] if "--no-noise-aware" in options else ["--priors", "shipped"]
    return [sys.executable, "-m", "redraft", "batch", *map(str, given)]


def start(command, **env):
    """The program, heeding Ctrl-C even where we were started in the background."""
    heed = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    out, err = TemporaryFile(), TemporaryFile()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, preexec_fn=heed, env={**os.environ, **env}
    )
    process.files = out, err
    return process


def told(process):
    """What a process has written to stdout and to stderr so far."""
    return tuple(os.pread(file.fileno(), 10**8, 0).decode() for file in process.files)


@dataclass
class Ended:
    """What a program left behind."""

    code: int
    out: str
    err: str


def ending(process, within=280):
    """How a process ends by itself; one that does not is an error."""
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise AssertionError(f"did not end within {within} s; it said:\n{told(process)[1][-3000:]}") from None
    ended = Ended(process.returncode, *told(process))
    for file in process.files:
        file.close()
    return ended


def run(command, within=280, **env):
    return ending(start(command, **env), within)


def run_here(command, **env):
    """The same for a `redraft` command that nobody interrupts, in this process: no interpreter has to start for it."""
    from redraft.cli import main

    assert command[:3] == [sys.executable, "-m", "redraft"]
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    root = logging.getLogger()
    with patch.dict(os.environ, env), redirect_stdout(out), redirect_stderr(err):
        with patch.object(root, "handlers", [logging.StreamHandler(err)]):
            code = main(command[3:])
    return Ended(code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())


def until(holds, process=None, within=280):
    """Waits until something holds."""
    end = time.monotonic() + within
    while not holds():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"ended too soon, with {process.returncode}:\n{told(process)[1][-3000:]}")
        assert time.monotonic() < end, f"did not come to be within {within} s"
        time.sleep(0.002)


def kill_at(moments, command, progress, dice, within=600):
    """Runs the command until it ends by itself, killing it when the progress has come to the moments given.

    Some kills hit the first second of a process instead. Returns the ending and when it was killed.
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
    return run(command, within), kills


def moments(whole, kills, dice):
    """Random moments of a run whose progress comes to so much."""
    return sorted(dice.uniform(0, 0.95 * whole) for _ in range(kills))


@dataclass
class Figures:
    """What a killed run came to. `again` counts calls asked more than once, `needless` those among them that were known."""

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


def compare(source, output, undisturbed, entries, kills, seconds):
    """The figures of a run that was killed, beside an undisturbed one."""
    wanted, got = ([json.loads(line)["id"] for line in Path(path).read_text().splitlines()] for path in (source, output))
    asks, starts = asked(entries), defaultdict(list)
    for kind, sha, at in entries:
        if kind == "B":
            starts[sha[:8]].append(at)
    return Figures(
        rows=len(wanted),
        kills=len(kills),
        lost=len(set(wanted) - set(got)),
        duplicated=len(got) - len(set(got)),
        in_order=got == wanted,
        equal=Path(output).read_bytes() == Path(undisturbed).read_bytes(),
        calls=len(asks),
        most_in_flight=most_in_flight(entries),
        again=sum(len(times) - 1 for times in asks.values()),
        needless=sum(needless(times, sorted(kills), COMMIT_GRACE, starts[sha[:8]]) for sha, times in asks.items()),
        seconds=seconds,
    )


def read_log(path, since=0):
    """(kind, hash, time) of everything that happened, from a line on."""
    lines = Path(path).read_text().splitlines()[since:]
    return [(kind, sha, float(at)) for kind, sha, at in map(str.split, lines)]


def asked(entries):
    """hash -> [(asked at, answered at or None)], in the order of asking."""
    found, open_ = defaultdict(list), defaultdict(list)
    for kind, sha, at in entries:
        if kind == "B":
            open_[sha].append(len(found[sha]))
            found[sha].append((at, None))
        else:
            n = open_[sha].pop(0)
            found[sha][n] = (found[sha][n][0], at if kind == "E" else None)
    return found


def needless(times, kills, grace, starts=()):
    """How often a call was asked again though no kill can have cost its answer.

    An answer that came less than `grace` before a kill need not be in the journal yet, unless the row had gone on to its next
    call: `starts` are the times of all calls of the row, which asks one after the other.
    """
    return sum(not _excused(before, after[0], kills, grace, starts) for before, after in zip(times, times[1:], strict=False))


def _excused(before, again_at, kills, grace, starts):
    began, answered = before  # (as the server saw it: what was on its way at the kill came a little after it)
    if answered is None:  # its client was gone
        return any(kill < again_at for kill in kills)
    between = kills[bisect_left(kills, began - GRACE) : bisect_left(kills, again_at)]
    return any(answered > kill - grace and not any(answered < start < kill for start in starts) for kill in between)


def most_in_flight(entries, settling=0.0):
    """The most calls out at once, where a call stays out until `settling` seconds after its end."""
    changes = sorted((at, 1) if kind == "B" else (at + settling, -1) for kind, _, at in entries)
    return max(accumulate(change for _, change in changes), default=0)


def killed_run(folder, rows, kills, server, *, seed=0, options=(), say=lambda _: None):
    """An undisturbed run, then the same with kills. Returns the figures.

    Calls are told apart by their words, so drafts anew and further looks, which repeat those, are left out.
    """
    source, options = write_rows(folder / "rows.jsonl", rows), (*options, "--no-noise-aware")
    plain, disturbed = folder / "plain.jsonl", folder / "killed.jsonl"
    begun, began = server.lines(), time.monotonic()
    first = run(batch(source, plain, server.model, *options), within=3600)
    assert first.code == 0, first.err[-3000:]
    lines, seconds = server.lines() - begun, time.monotonic() - began
    say(f"undisturbed: {lines // 2 or '?'} calls in {seconds:.1f} s; now with {kills} kills")
    dice, since, began = Random(seed), server.lines(), time.monotonic()
    whole, progress = lines, lambda: server.lines() - since
    if not lines:  # a server whose log is not ours to read: by the clock
        whole, progress = seconds + kills, lambda: time.monotonic() - began
    last, at = kill_at(moments(whole, kills, dice), batch(source, disturbed, server.model, *options), progress, dice)
    assert last.code == 0, last.err[-3000:]
    return compare(source, disturbed, plain, server.entries(since), at, time.monotonic() - began)
