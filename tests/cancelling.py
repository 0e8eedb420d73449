"""Cancel work at random moments: a server that counts and holds requests, the ways to cancel, and
what must hold afterwards.

The tests take a seeded twentieth of the points of bench/cancellation.py.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import redraft
from descriptors import open_files
from redraft.graders import Jury
from redraft.models import Chat
from redraft.runs import BatchRun
from redraft.storage import JsonlStore, read_trace
from redraft.storage.journal import Journal
from redraft.usage import NO_USAGE

WAYS = {
    "timeout": "asyncio.timeout",
    "nested": "asyncio.timeout in asyncio.timeout",
    "wait_for": "asyncio.wait_for",
    "cancel": "task.cancel()",
    "twice": "task.cancel(), twice",
    "gather": "a gather that is cancelled",
    "group": "a sibling in a TaskGroup fails",
    "callback": "cancelled while on_record raises",
    "stream": "stream under asyncio.timeout",
    "closed": "stream left half-way",
    "many": "refine_many under asyncio.timeout",
    "deadline": "deadline=",
    "batch": "batch under asyncio.timeout",
    "stop": "a batch that is stopped twice",
    "sigint": "refine_sync and Ctrl-C",
    "inside": "refine_sync in a running loop and Ctrl-C",
}
BY_SIGNAL = ("sigint", "inside")
LONGEST = 0.35  # seconds until the cancellation at most


@dataclass
class Case:
    """The requests of one refinement or batch, and the tokens of their answers."""

    dice: Random
    asked: int = 0
    tokens: int | None = 0
    faults: bool = True


class Server:
    """Answers chat completions at /CASE/v1 from a thread of its own: correctly, late, never, with
    503, or by closing the connection.
    """

    def __init__(self):
        self.cases: dict[str, Case] = {}
        self._ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        assert self._ready.wait(60)

    async def _serve(self):
        loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._loop = loop
        server = await loop.create_server(lambda: Connection(self), "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        server.close()

    def begin(self, name, seed):
        """Return the URL for one case."""
        self.cases[name] = Case(Random(seed))
        return f"http://127.0.0.1:{self.port}/{name}/v1"

    def wait_until_read(self):
        """Wait until the server has read every request that was sent before."""
        for _ in range(3):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), self._loop).result(10)

    def close(self):
        self._loop.call_soon_threadsafe(self._end.set)


class Connection(asyncio.Protocol):
    """One connection. A request counts once its last byte has arrived."""

    def __init__(self, server):
        self.server, self.buffer = server, b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].decode("latin-1")
            fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:])
            length = int(fields.get("content-length", 0))
            if len(self.buffer) < end + 4 + length:
                return
            body, self.buffer = (
                self.buffer[end + 4 : end + 4 + length],
                self.buffer[end + 4 + length :],
            )
            self.answer(self.server.cases[head.split(" ")[1].split("/")[1]], json.loads(body))

    def answer(self, case, asked):
        case.asked += 1
        text = (
            verdict(case.dice)
            if "criteria" in json.dumps(asked["messages"])
            else f"draft {case.asked}"
        )
        what = case.dice.random() if case.faults else 0.0
        loop = asyncio.get_running_loop()
        if what < 0.65:
            loop.call_later(case.dice.uniform(0, 0.03), self.say, case, completion(text))
        elif what < 0.75:
            self.say(case, http({"error": {"message": "busy"}}, 503), tokens=0)
        elif what < 0.82:
            case.tokens = None
            self.transport.abort()
        elif what < 0.88:
            case.tokens = None
            self.transport.write(completion(text)[:60])
        elif what < 0.92:
            case.tokens = None
            self.say(case, http({"nothing": "of use"}), tokens=0)
        else:
            case.tokens = None  # no answer at all

    def say(self, case, answer, tokens=15):
        if self.transport.is_closing():
            case.tokens = None
            return
        if case.tokens is not None:
            case.tokens += tokens
        self.transport.write(answer)


def http(body, status=200):
    data = json.dumps(body).encode()
    return (
        b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % (status, len(data))
        + data
    )


def completion(text):
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": text},
    }
    return http(
        {
            "id": "x",
            "choices": [choice],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }
    )


def verdict(dice):
    row = {"evidence": "", "change": "say more", "score": dice.randint(1, 4)}
    return json.dumps({"reason": "It is so.", "criteria": {"truth": row}, "done": False})


# ---- the work


def judge():
    return redraft.Judge({"truth": "It is true. (criteria)"})


async def unjoined_calls(text, llm):
    """Makes two calls at once and does not cancel one when the other fails."""
    await asyncio.gather(llm("criteria: is it short?"), llm("criteria: is it long?"))
    return 0.5


GRADERS = (
    judge,
    lambda: [judge(), unjoined_calls],
    lambda: unjoined_calls,
    lambda: Jury([judge(), judge()]),
)


@dataclass
class Point:
    """One moment at which one refinement or batch is cancelled in one way."""

    way: str
    seed: int
    server: Server
    folder: Path
    misses: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.dice = Random(self.seed)
        self.name = f"{self.way}-{self.seed}"
        self.url = self.server.begin(self.name, self.seed)
        self.after = self.dice.uniform(0, LONGEST)
        self.grader = self.dice.randrange(len(GRADERS))
        self.records = []
        self.path = self.folder / f"{self.name}.jsonl"

    @property
    def case(self):
        return self.server.cases[self.name]

    def settings(self):
        dice = Random(self.seed + 1)
        return {
            "graders": GRADERS[self.grader](),
            "drafts": dice.randint(1, 3),
            "max_in_flight": dice.choice([1, 3, 64]),
            "timeout": dice.choice([0.05, 600.0]),
            "cache": dice.choice([None, {}]),
            "budget": dice.choice([None, redraft.Budget(calls=100)]),
            "patience": 9,
            "max_iterations": 9,
            "min_expected_gain": 0,
        }

    def model(self):
        return Chat("m", self.url)

    def miss(self, holds, what):
        if not holds:
            self.misses.append(f"{self.name}: {what}")

    def run(self):
        """Cancel the work and return the list of failed checks."""
        files, noise = open_files(), []
        with collect_warnings(noise):
            if self.way in BY_SIGNAL:
                self.by_signal()
            else:
                asyncio.run(self.in_loop())
            gc.collect()
        self.miss(not noise, f"warned of {noise}")
        for _ in range(500):  # the server, in this process too, must notice the closed connection
            if open_files() <= files:
                return self.misses
            time.sleep(0.01)
        self.miss(False, f"left files open: {open_files() - files}")
        return self.misses

    # ---- in this process

    async def in_loop(self):
        others = asyncio.all_tasks()
        with JsonlStore(self.path) as store:
            self.store = store
            try:
                usage = await getattr(self, f"_{self.way}")()
            except redraft.errors.RedraftError as error:  # it failed before it was cancelled
                usage = error.usage
        self.miss(asyncio.all_tasks() == others, f"left tasks: {asyncio.all_tasks() - others}")
        if usage is not None:
            self.check(usage)
        if self.way not in {"many", "batch", "stop"} and self.path.stat().st_size:
            await self.check_resumed()

    def work(self):
        return redraft.refine(
            "q", self.model(), store=self.store, on_record=self.on_record, **self.settings()
        )

    def on_record(self, record):
        self.records.append(record)

    def check(self, usage):
        """The reported calls and tokens are those that the server counted."""
        self.server.wait_until_read()
        case = self.case
        self.miss(usage.calls == case.asked, f"says {usage.calls} calls, there were {case.asked}")
        self.miss(
            usage.tokens is None or usage.tokens == case.tokens,
            f"says {usage.tokens} tokens, there were {case.tokens}",
        )

    def check_kept(self, trace, stop="cancelled"):
        self.miss(
            trace.outcome is not None and trace.outcome.reason == stop,
            f"ended with {trace.outcome}",
        )
        self.miss(
            list(trace.records) == self.records,
            f"told of {len(self.records)} records of {len(trace.records)}",
        )
        self.miss(read_trace(self.path).records == trace.records, "the store has other records")

    async def check_resumed(self):
        """The stored trace can be resumed, and its usage continues."""
        kept = read_trace(self.path)
        asked = self.case.asked
        self.miss(
            kept.usage.calls == asked,
            f"the store says {kept.usage.calls} calls, there were {asked}",
        )
        self.case.faults = False
        settings = self.settings() | {"max_iterations": 1, "timeout": 600.0, "budget": None}
        result = await redraft.refine(kept, self.model(), **settings)
        self.server.wait_until_read()
        self.miss(result.stop != "cancelled", "does not resume")
        self.miss(
            result.usage.calls == self.case.asked,
            f"then says {result.usage.calls} calls, there were {self.case.asked}",
        )

    def result_of(self, cut, what="result"):
        self.miss(isinstance(cut, asyncio.CancelledError), f"raised {cut!r}")
        self.miss(hasattr(cut, what), f"{cut!r} carries no {what}")
        return getattr(cut, what, None)

    def usage_of(self, cut):
        """Check the trace that a cancellation carries and return its usage."""
        result = self.result_of(cut)
        if result is None:
            return None
        self.check_kept(result.trace)
        return result.usage

    async def _timeout(self):
        try:
            async with asyncio.timeout(self.after):
                return (await self.work()).usage
        except TimeoutError as late:
            return self.usage_of(late.__context__)

    async def _nested(self):
        try:
            async with asyncio.timeout(self.after):
                async with asyncio.timeout(self.after + self.dice.choice([0, 0.001, 5])):
                    return (await self.work()).usage
        except TimeoutError as late:
            cut = late.__context__
            return self.usage_of(cut.__context__ if isinstance(cut, TimeoutError) else cut)

    async def _wait_for(self):
        try:
            return (await asyncio.wait_for(self.work(), self.after)).usage
        except TimeoutError as late:
            return self.usage_of(late.__context__)

    async def _cancel(self, again=None):
        task = asyncio.ensure_future(self.work())
        await asyncio.sleep(self.after)
        task.cancel()
        if again is not None:
            await asyncio.sleep(again)
            task.cancel()
        try:
            return (await task).usage
        except asyncio.CancelledError as cut:
            return self.usage_of(cut)

    async def _twice(self):
        return await self._cancel(self.dice.choice([0, 0, 0.001]))

    async def _gather(self):
        work = asyncio.ensure_future(self.work())
        both = asyncio.gather(work, asyncio.sleep(60))
        asyncio.get_running_loop().call_later(self.after, both.cancel)
        try:
            await both
        except asyncio.CancelledError:
            await asyncio.wait([work])  # gather continues when the first has ended
            return read_trace(self.path).usage
        self.miss(False, "was not cancelled")

    async def _group(self):
        async def fail():
            await asyncio.sleep(self.after)
            raise ZeroDivisionError

        try:
            async with asyncio.TaskGroup() as group:
                work = group.create_task(self.work())
                group.create_task(fail())
        except* (ZeroDivisionError, redraft.errors.RedraftError):
            pass
        if work.cancelled():
            self.check_kept(read_trace(self.path))
        return read_trace(self.path).usage

    async def _callback(self):
        keep = self.on_record

        def raising(record):
            keep(record)
            if (
                getattr(record, "error_reason", None) == "cancelled"
                or getattr(record, "error", None) == "CancelledError"
            ):
                raise ZeroDivisionError

        self.on_record = raising
        try:
            async with asyncio.timeout(self.after):
                return (await self.work()).usage
        except (ZeroDivisionError, TimeoutError):
            kept = read_trace(self.path)
            self.miss(
                kept.outcome is not None and kept.outcome.reason == "cancelled",
                f"ended with {kept.outcome}",
            )
        return read_trace(self.path).usage

    async def _stream(self):
        work = redraft.stream(
            "q", self.model(), store=self.store, on_record=self.on_record, **self.settings()
        )
        try:
            async with asyncio.timeout(self.after):
                async for trace in work:
                    usage = trace.usage
            return usage
        except TimeoutError as late:
            return self.usage_of(late.__context__)

    async def _closed(self):
        settings = self.settings() | {"timeout": 0.05}
        work = redraft.stream(
            "q", self.model(), store=self.store, on_record=self.on_record, **settings
        )
        wanted = self.dice.randint(1, 6)
        async for trace in work:
            if len(trace.records) >= wanted:
                break
        await work.aclose()
        self.check_kept(
            read_trace(self.path), trace.outcome.reason if trace.outcome else "cancelled"
        )
        return read_trace(self.path).usage

    async def _many(self):
        try:
            async with asyncio.timeout(self.after):
                results = await redraft.refine_many(
                    ["q1", "q2", "q3"], self.model(), **self.settings()
                )
        except TimeoutError as late:
            results = self.result_of(late.__context__, "results") or []
            self.miss(len(results) == 3, f"{len(results)} results of 3")
        return sum((result.usage for result in results), NO_USAGE)

    async def _deadline(self):
        try:
            settings = self.settings() | {"deadline": self.after}
            return (
                await redraft.refine(
                    "q", self.model(), store=self.store, on_record=self.on_record, **settings
                )
            ).usage
        except redraft.errors.RedraftError:
            return read_trace(self.path).usage

    def _run(self):
        rows = [{"id": n, "prompt": f"Say {n}."} for n in range(4)]
        settings = self.settings() | {
            "cache": None,
            "max_in_flight": 8,
            "retries": 2,
            "learn": False,
        }
        graders = settings.pop("graders")
        return BatchRun.from_arguments(
            rows, self.folder / f"{self.name}.out.jsonl", self.model(), graders, **settings
        )

    def _usage_of_journal(self, report):
        with Journal(self.folder / f"{self.name}.out.jsonl.journal", read_only=True) as journal:
            kept = sum(
                (trace.usage for run in journal.runs() for _, trace in journal.traces(run.name)),
                NO_USAGE,
            )
        self.miss(
            kept.calls == report.spending.calls,
            f"the journal says {kept.calls} calls, the report {report.spending.calls}",
        )
        return report.spending.usage

    async def _batch(self):
        try:
            async with asyncio.timeout(self.after + 0.5):
                report = await self._run().go()
        except TimeoutError as late:
            report = self.result_of(late.__context__)
            if report is None:
                return None
        return self._usage_of_journal(report)

    async def _stop(self):
        run = self._run()
        loop = asyncio.get_running_loop()
        loop.call_later(self.after + 0.5, run.stop)
        loop.call_later(self.after + 0.5 + self.dice.uniform(0, 0.05), lambda: run.stop(now=True))
        return self._usage_of_journal(await run.go())

    # ---- in a process of its own

    def by_signal(self):
        command = [sys.executable, __file__, self.way, str(self.seed), self.url, str(self.path)]
        program = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        with program:
            while not self.case.asked and program.poll() is None:
                time.sleep(0.01)
            time.sleep(self.after)
            program.send_signal(signal.SIGINT)
            try:
                out, err = program.communicate(timeout=60)  # (some calls are never answered)
            except subprocess.TimeoutExpired:
                program.kill()
                out, err = program.communicate()
        said = json.loads(out) if out else {}
        if said.get("ended"):  # before it was interrupted
            return
        self.miss(
            program.returncode == 0 and not err,
            f"ended with {program.returncode}, said {err[-500:]}",
        )
        self.miss(said.get("raised") == "KeyboardInterrupt", f"raised {said.get('raised')}")
        if said.get("calls") is not None:
            self.server.wait_until_read()
            self.miss(
                said["calls"] == self.case.asked,
                f"says {said['calls']} calls, there were {self.case.asked}",
            )
            self.miss(said["stop"] == "cancelled" and said["kept"], "kept something else")


def program(way, seed, url, path):
    """Run one point in a process of its own and print the result as JSON."""
    point = Point(way, int(seed), RemoteServer(url), Path(path).parent)

    def work():
        with JsonlStore(path) as store:
            return redraft.refine_sync("q", point.model(), store=store, **point.settings())

    async def inside():
        return work()

    try:
        asyncio.run(inside()) if way == "inside" else work()
        said = {"ended": True}
    except redraft.errors.RedraftError:
        said = {"ended": True}
    except KeyboardInterrupt as interrupt:
        result = interrupt.result
        said = {
            "raised": "KeyboardInterrupt",
            "calls": result and result.usage.calls,
            "stop": result and str(result.stop),
        }
        said["kept"] = result is not None and read_trace(path).records == result.trace.records
    print(json.dumps(said), flush=True)


class RemoteServer:
    """The server, which runs in another process."""

    def __init__(self, url):
        self.url = url

    def begin(self, name, seed):
        return self.url


@contextmanager
def collect_warnings(noise):
    """Collect Python's warnings: open files, tasks destroyed while pending, exceptions never
    retrieved.
    """
    before = sys.unraisablehook
    sys.unraisablehook = lambda about: noise.append(repr(about.exc_value))
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        noise += [
            str(w.message)
            for w in caught
            if issubclass(w.category, ResourceWarning | RuntimeWarning)
        ]
    finally:
        sys.unraisablehook = before


def points(number, seed=0):
    """Spread `count` points over all ways; ways by signal, which take a process each, get a few."""
    ways = [way for way in WAYS if way not in BY_SIGNAL]
    few = max(1, number // 25)
    chosen = [*BY_SIGNAL * few, *(ways[n % len(ways)] for n in range(number))][:number]
    return [(way, seed * 100_000 + n) for n, way in enumerate(chosen)]


if __name__ == "__main__":
    program(*sys.argv[1:])
