"""Mixed load on Redraft's gateway for a long time, before a model that fails in every way, with a
`kill -9` in the middle.

Three quarters of the time are for leaks: memory, tasks and file descriptors of the idle gateway
after a warm-up and at the end. Then the gateway is killed under load, started again on the same
folder, and ended by SIGTERM under load.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gateways import processes
from gateways.load import Connection, post
from redraft.storage.journal import Journal

CONFIG = """
[gateway]
port = {port}
folder = "{folder}"
max-concurrent = {max_concurrent}
max-queue = 64
queue-seconds = 5
deadline = 30
drain-seconds = 20
require-keys = true
store = "full"
keep-mb = 5000

[models.steady]
url = "{upstream}/v1"
model = "steady"

[models.faulty]
url = "{upstream}/v1"
model = "faulty"
timeout = 4

[models.slow]
url = "{upstream}/v1"
model = "slow-100"

[profiles.fast]
model = "steady"
graders = ["words:5-50"]
max-iterations = 2
store = "full"
keep-mb = 5000

[profiles.judged]
model = "steady"
max-iterations = 2
store = "full"
keep-mb = 2

[profiles.faulty]
model = "faulty"
judge = "steady"
max-iterations = 2
deadline = 8.0
retries = 1

[profiles.unkept]
model = "steady"
graders = ["words:1-"]
max-iterations = 0
store = "off"

[profiles.slow]
model = "slow"
graders = ["words:500-"]
max-iterations = 8
"""
COUNTED = Path(__file__).with_name("counted.py")
WORKERS = 24
# of which requests are deleted above a few megabytes, or never stored
UNSTORED = {"refine/judged", "refine/unkept"}
TRACES = 300  # stored traces that are read
# files and connections that are opened when they are first needed; a leak would be one for a
# request
MORE_DESCRIPTORS = 16
QUIET_SECONDS = 12.0  # unused connections are kept for 4 to 5 seconds, and free memory for 10
WARM_SHARE, LEAK_SHARE = 0.25, 0.75
GROWTH_MB = 30.0  # the pages of the files that are kept in memory take up to 22 MB
LATE_GROWTH_MB, LATE_SECONDS = 4.0, 300.0  # in the second half of a long soak, when they are full
SAMPLES = 200
SETTLED_SECONDS = 1.0
PROMPT = "What do the notes say about the river, and who wrote them? " * 8
FAULTY = {200, 429, 500, 502, 503, 504}


@dataclass(frozen=True)
class Kind:
    """A kind of request: how often it is sent, to which path, with which body, and the statuses
    that it may get.

    `seconds`: the client leaves after that time at most. `key`: which key it has.
    """

    name: str
    weight: int
    path: str
    body: dict
    statuses: frozenset
    seconds: float | None = None
    key: str = "mixed"
    is_counted: bool = True  # has a trace whenever it gets 200


def chat(model, **fields):
    return {"model": model, "messages": [{"role": "user", "content": PROMPT}], **fields}


def large(model, **fields):
    return {
        "model": model,
        "messages": [{"role": "user", "content": "Answer at great length."}],
        **fields,
    }


def claude(model, **fields):
    return chat(model, max_tokens=256, **fields)


def kind(name, weight, path, body, statuses=(200,), **fields):
    return Kind(name, weight, f"/v1/{path}", body, frozenset({*statuses, 503, 529}), **fields)


CHAT, MESSAGES, RESPONSES = "chat/completions", "messages", "responses"
KINDS = (
    kind("pass, billed", 20, CHAT, chat("pass/steady"), key="billed"),
    kind("pass stream", 10, CHAT, chat("pass/steady", stream=True)),
    kind("pass messages", 5, MESSAGES, claude("pass/steady")),
    kind("pass messages stream", 5, MESSAGES, claude("pass/steady", stream=True)),
    kind("pass responses", 5, RESPONSES, {"model": "pass/steady", "input": PROMPT}),
    kind("refine", 10, CHAT, chat("refine/fast")),
    kind(
        "refine stream",
        10,
        CHAT,
        chat("refine/judged", stream=True, stream_options={"include_usage": True}),
    ),
    kind("refine messages", 5, MESSAGES, claude("refine/judged")),
    kind("refine messages stream", 5, MESSAGES, claude("refine/fast", stream=True)),
    kind(
        "refine responses stream",
        5,
        RESPONSES,
        {"model": "refine/fast", "input": PROMPT, "stream": True},
    ),
    kind("faulty pass", 6, CHAT, chat("pass/faulty"), FAULTY),
    kind("faulty pass stream", 6, CHAT, chat("pass/faulty", stream=True), FAULTY),
    kind("faulty refine", 6, CHAT, chat("refine/faulty"), FAULTY),
    kind("faulty refine stream", 6, CHAT, chat("refine/faulty", stream=True), FAULTY),
    kind("client leaves", 6, CHAT, chat("refine/slow"), seconds=0.5),
    kind("client leaves a stream", 6, CHAT, chat("pass/slow", stream=True), seconds=0.5),
    kind("client leaves messages", 4, MESSAGES, claude("refine/slow", stream=True), seconds=0.5),
    kind("not kept", 4, CHAT, chat("refine/fast", store=False)),
    kind("wrong field", 3, CHAT, chat("refine/fast", n=5), (400,)),
    kind("wrong model", 3, CHAT, chat("refine/none"), (404,)),
    kind("wrong key", 3, CHAT, chat("refine/fast"), (401,), key="unknown"),
    # 429: other requests have reserved the rest
    kind("poor key", 3, CHAT, chat("pass/steady"), (200, 402, 429), key="poor"),
    kind("large pass", 1, CHAT, large("pass/steady")),
    kind("large refine", 1, CHAT, large("refine/unkept", store=False)),
    kind("client leaves a large answer", 1, CHAT, large("refine/unkept", store=False), seconds=0.5),
    kind("count", 3, "messages/count_tokens", claude("pass/steady"), is_counted=False),
)


@dataclass
class Seen:
    """What the clients saw: replies by kind and status, unexpected ones, and the traces of replies
    with the times of their ends.
    """

    sent: Counter = field(default_factory=Counter)
    replies: Counter = field(default_factory=Counter)
    unexpected: list = field(default_factory=list)
    traces: dict = field(default_factory=dict)
    billed_answers: int = 0
    is_over: bool = False  # nothing is expected any more, because the gateway is being ended
    is_paused: bool = False

    def add(self, what, reply):
        left = what.seconds is not None and not reply.is_complete
        self.replies[f"{what.name}: {'left' if left else reply.status}"] += 1
        if reply.status == 200 and reply.is_complete and what.key == "billed":
            self.billed_answers += 1
        if reply.trace_id and reply.is_complete and what.body["model"] not in UNSTORED:
            self.traces[reply.trace_id] = time.time()
        elif what.is_counted and reply.status == 200 and reply.is_complete and not reply.trace_id:
            self.note(what, reply, "no trace id")
        if left or self.is_over:
            return
        if reply.status not in what.statuses:
            self.note(what, reply, f"status {reply.status}")
        elif not reply.is_complete and "faulty" not in what.name:
            self.note(what, reply, "cut off")

    def note(self, what, reply, problem):
        if len(self.unexpected) < 100:
            self.unexpected.append(
                {
                    "kind": what.name,
                    "problem": problem,
                    "body": reply.body[-300:].decode(errors="replace"),
                }
            )


async def work(gateway, keys, seen, chance):
    """Send requests of random kinds until `is_paused`."""
    connections = {
        what.path + str(what.seconds): Connection(gateway.host, gateway.port) for what in KINDS
    }
    weights = [what.weight for what in KINDS]
    while not seen.is_paused:
        (what,) = chance.choices(KINDS, weights)
        request = post(
            gateway.host, gateway.port, what.path, what.body, **headers(what, keys, chance)
        )
        seen.sent[what.key] += 1
        leave_after = None if what.seconds is None else chance.uniform(0.01, what.seconds)
        try:
            seen.add(
                what, await connections[what.path + str(what.seconds)].ask(request, leave_after)
            )
        except OSError as error:
            if not seen.is_over:
                seen.unexpected.append({"kind": what.name, "problem": repr(error), "body": ""})
            await asyncio.sleep(0.05)
        await asyncio.sleep(chance.expovariate(50))
    for connection in connections.values():
        connection.close()


def headers(what, keys, chance):
    found = {"Authorization": f"Bearer {keys[what.key]}"}
    # large ones fill the memory for replays
    if "refine" in what.name and "large" not in what.name and chance.random() < 0.1:
        found["Idempotency_Key"] = f"{what.name.replace(' ', '-')}-{chance.randrange(8)}"
    return found


class Load:
    """The clients, which can be paused."""

    def __init__(self, keys):
        self.keys, self.seen = keys, Seen()
        self.chance = random.Random(16)
        self.tasks = []

    def begin(self, gateway):
        self.seen.is_paused = self.seen.is_over = False
        self.tasks = [
            asyncio.create_task(work(gateway, self.keys, self.seen, self.chance))
            for _ in range(WORKERS)
        ]

    async def pause(self):
        self.seen.is_paused = True
        await asyncio.gather(*self.tasks)


@contextmanager
def started(folder, source, counts, *, max_concurrent=64):
    wrapper = (COUNTED, counts)
    with processes.redraft(
        folder, source, CONFIG, wrapper, values={"max_concurrent": max_concurrent}, key="unused"
    ) as gateway:
        yield gateway


async def idle_usage(gateway, counts):
    """Return what the gateway uses once nothing is in progress any more: when it has become no less
    for QUIET_SECONDS.
    """
    least, unchanged = await usage_with_tasks(gateway, counts), 0.0
    for _ in range(60):
        await asyncio.sleep(0.5)
        now = await usage_with_tasks(gateway, counts)
        is_less = now["tasks"] < least["tasks"] or now["descriptors"] < least["descriptors"]
        least, unchanged = now, 0.0 if is_less else unchanged + 0.5
        if unchanged >= QUIET_SECONDS:
            break
    return least


async def usage_with_tasks(gateway, counts):
    counts.unlink(missing_ok=True)
    gateway.send(signal.SIGUSR1)
    for _ in range(1000):
        if counts.exists():
            break
        await asyncio.sleep(0.01)
    return gateway.usage() | {"tasks": int(counts.read_text())}


async def leak_phase(gateway, load, seconds, counts):
    """Return what the idle gateway uses after the warm-up and after everything, and the memory
    under load.
    """
    load.begin(gateway)
    await asyncio.sleep(seconds * WARM_SHARE)
    await load.pause()
    before = await idle_usage(gateway, counts)
    load.begin(gateway)
    under_load = []
    for _ in range(SAMPLES):
        await asyncio.sleep(seconds * (1 - WARM_SHARE) / SAMPLES)
        under_load.append(gateway.usage()["mb"])
    await load.pause()
    return {
        "before": before,
        "after": await idle_usage(gateway, counts),
        "mb_under_load": under_load,
    }


async def kill_phase(gateway, load, seconds):
    """Kill the gateway under load; return the time of it."""
    load.begin(gateway)
    await asyncio.sleep(seconds)
    load.seen.is_over = load.seen.is_paused = True
    gateway.send(signal.SIGKILL)
    killed = time.time()
    await load.pause()
    return killed


async def end_phase(gateway, load, seconds):
    """End the gateway with SIGTERM under load; return its exit code and the seconds until then."""
    load.begin(gateway)
    await asyncio.sleep(seconds)
    load.seen.is_over = load.seen.is_paused = True
    began = time.monotonic()
    gateway.send(signal.SIGTERM)
    code = await asyncio.to_thread(gateway.wait)
    await load.pause()
    return {"exit_code": code, "seconds": time.monotonic() - began}


# ---- what the files say


def rows_of(state):
    with closing(sqlite3.connect(f"file:{state / 'requests.db'}?mode=ro", uri=True)) as db:
        db.row_factory = sqlite3.Row
        return {row["trace_id"]: dict(row) for row in db.execute("SELECT * FROM requests")}


def without_trace(state, rows, chance):
    """Return the answered requests without a stored trace that has ended, of some that must have
    one.
    """
    full = [
        id
        for id, row in rows.items()
        if row["level"] == "full" and row["outcome"] == "answered" and row["model"] not in UNSTORED
    ]
    with Journal(state / "gateway.journal", read_only=True) as journal:
        traces = {
            id: journal.trace(rows[id]["model"], id)
            for id in chance.sample(full, min(TRACES, len(full)))
        }
    return [id for id, trace in traces.items() if trace is None or trace.outcome is None]


def billed_calls(folder, state):
    """Return what `redraft keys list` says of each key."""
    command = [sys.executable, "-m", "redraft", "keys", "list", "--json", "--folder", str(state)]
    done = subprocess.run(
        command, env=processes.environment_of(folder), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def calls_of(listed, name):
    (found,) = [
        each
        for each in (listed if isinstance(listed, list) else listed["keys"])
        if each["name"] == name
    ]
    return found["today"]["calls"]


async def run(seconds, folder):
    """Return the figures of a soak."""
    state, counts = folder / "gateway", folder / "tasks"
    limits = {"billed": ("--calls-per-day", 10**8), "mixed": (), "poor": ("--calls-per-day", 20)}
    keys = {
        name: processes.add_key(folder, state, *options, name=name)
        for name, options in limits.items()
    }
    load = Load({**keys, "unknown": "rd-unknown"})
    results = {"seconds": seconds}
    with processes.upstream("--interval", "0.005") as source:
        with started(folder, source, counts) as gateway:
            results["leaks"] = await leak_phase(gateway, load, seconds * LEAK_SHARE, counts)
            results["killed_at"] = await kill_phase(gateway, load, seconds * (1 - LEAK_SHARE) / 2)
        sent_before_kill = load.seen.sent["billed"]
        with started(folder, source, counts) as gateway:
            first = calls_of(billed_calls(folder, state), "billed")
            gateway.send(signal.SIGKILL)  # without any work since
        with started(folder, source, counts) as gateway:
            again = calls_of(billed_calls(folder, state), "billed")
            results["end"] = await end_phase(gateway, load, seconds * (1 - LEAK_SHARE) / 2)
        results["upstream"] = processes.stats(source)
    results["billing"] = {
        "answers": load.seen.billed_answers,
        "sent": load.seen.sent["billed"],
        "sent_before_kill": sent_before_kill,
        "after_kill": first,
        "after_second_kill": again,
        "at_end": calls_of(billed_calls(folder, state), "billed"),
    }
    rows = rows_of(state)
    results["requests"] = request_figures(rows, load.seen, results["killed_at"])
    results["requests"]["without_trace"] = without_trace(state, rows, load.chance)
    results["replies"] = dict(sorted(load.seen.replies.items()))
    results["unexpected"] = load.seen.unexpected
    return results


def request_figures(rows, seen, killed_at):
    """Compare the stored requests with what the clients saw. What ended right before the kill was
    possibly not recorded yet.
    """
    absent = {trace: at for trace, at in seen.traces.items() if trace not in rows}
    late = [
        trace for trace, at in absent.items() if killed_at - SETTLED_SECONDS < at <= killed_at + 1
    ]
    return {
        "stored": len(rows),
        "traces_seen": len(seen.traces),
        "missing": [trace for trace in absent if trace not in late],
        "missing_just_before_kill": late,
        "without_outcome": [trace for trace, row in rows.items() if row["outcome"] is None],
        "outcomes": dict(Counter(row["outcome"] for row in rows.values())),
    }


def late_memory(results):
    """Return the goal that memory under load no longer grows in the second half of the time; none
    for a short soak.
    """
    if results["seconds"] < LATE_SECONDS:
        return []
    samples = results["leaks"]["mb_under_load"]
    first, second = min(samples[: len(samples) // 2]), min(samples[len(samples) // 2 :])
    text = (
        f"memory under load, the least in each half: {first:.0f} MB, then {second:.0f}, at most "
        f"{LATE_GROWTH_MB:g} more"
    )
    return [(text, second - first <= LATE_GROWTH_MB)]


def goals(results):
    """Return what was to be reached: a sentence with the figure, and whether it is met."""
    before, after = results["leaks"]["before"], results["leaks"]["after"]
    requests, billing = results["requests"], results["billing"]
    grown = after["mb"] - before["mb"]
    same_after_kill = (
        billing["after_kill"] == billing["after_second_kill"] <= billing["sent_before_kill"]
    )
    is_flat = {
        "mb": grown <= GROWTH_MB,
        "tasks": after["tasks"] <= before["tasks"] + 2,
        "descriptors": after["descriptors"] <= before["descriptors"] + MORE_DESCRIPTORS,
    }
    halves = late_memory(results)
    ended, without = results["end"], len(requests["missing"])
    lost = len(requests["without_trace"])
    return [
        (
            (
                f"memory of the idle gateway: {before['mb']:.0f} MB, then {after['mb']:.0f}, at most "  # noqa: E501
                f"{GROWTH_MB:g} more"
            ),
            is_flat["mb"],
        ),
        *halves,
        (f"tasks: {before['tasks']}, then {after['tasks']}", is_flat["tasks"]),
        (
            f"file descriptors: {before['descriptors']}, then {after['descriptors']}",
            is_flat["descriptors"],
        ),
        (
            f"every reply is as expected: {len(results['unexpected'])} are not",
            not results["unexpected"],
        ),
        (
            f"every one of {requests['stored']} requests has an outcome",
            not requests["without_outcome"],
        ),
        (
            f"each answer that is kept has its trace: {lost} of at most {TRACES} have none",
            lost == 0,
        ),
        (
            (
                f"each of {requests['traces_seen']} replies has a stored request, also after kill -9: "  # noqa: E501
                f"{without} have none"
            ),
            without == 0,
        ),
        (
            (
                f"no key is billed twice: {billing['answers']} answers, {billing['at_end']} calls "
                f"billed, {billing['sent']} requests"
            ),
            billing["answers"] <= billing["at_end"] <= billing["sent"] and same_after_kill,
        ),
        (
            (
                f"SIGTERM under load ends it with 0: {ended['exit_code']} after "
                f"{ended['seconds']:.1f} s"
            ),
            ended["exit_code"] == 0,
        ),
    ]
