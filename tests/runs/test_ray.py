"""Runs on a real local Ray: what only they do. `test_workers.py` has what they have in common with
processes of this machine.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from redraft import Feedback
from redraft.runs import BatchRun, api
from redraft.runs.executors.ray import RayPool

from .killing import check_asked_once, drive, ending, until, worker_process, write_rows

if not find_spec("ray"):
    pytest.skip("no Ray for this Python", allow_module_level=True)

pytestmark = pytest.mark.slow
# calls are identified by their words, so this leaves out repeated drafts and grades
PLAIN = {"noise_aware": False}


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "rows.jsonl", 30)


NODES = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
pids = [node.all_processes["raylet"][0].process.pid for node in nodes]
print("NODES", cluster.address, *pids, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture
def two_nodes():
    """The address of a cluster, and the processes of its two nodes that have processors, beside its
    head, which has none.
    """
    command = [sys.executable, "-c", NODES]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        line = next(line for line in process.stdout if line.startswith("NODES"))
        _, address, *pids = line.split()
        yield address, [*map(int, pids)]
        process.communicate()


@pytest.mark.timeout(400)
def test_a_run_survives_the_loss_of_a_node(tmp_path, rows, serve, two_nodes):
    """Kill -9 of a node in the middle, with the workers on it: the other node takes them over, the
    output is that of one process, and no call is repeated but those in flight.
    """
    address, nodes = two_nodes
    server, output = serve("--latency", 0.1), tmp_path / "out.jsonl"
    asyncio.run(BatchRun.from_arguments(rows, tmp_path / "plain.jsonl", server.model, **PLAIN).go())
    since = server.lines()
    driver = drive(rows, output, server, workers=2, ray=address)
    until(lambda: server.lines() > since + 60 and worker_process(output, 1, 2), driver)
    node = parent_of(worker_process(output, 1, 2))
    assert node in nodes
    kills = [time.monotonic()]
    os.kill(node, signal.SIGKILL)
    ended = ending(driver)
    last = ended.out.splitlines()[-1]  # after what Ray says
    assert last.split() == ["30"], (ended.out, ended.err[-3000:])
    assert output.read_bytes() == (tmp_path / "plain.jsonl").read_bytes()
    entries = server.entries(since)
    # its workers notice a little later that their node has gone
    check_asked_once(entries, [max([*kills, *(at for kind, _, at in entries if kind == "X")])])


def parent_of(pid):
    """Return the process that has started another one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_a_worker_that_ray_gives_up_ends_the_run(tmp_path, rows, serve, cluster, monkeypatch):
    """The message says so, and the same run resumes."""
    started = []

    class WatchedPool(RayPool):
        def start_worker(self):
            started.append(super().start_worker())
            return started[-1]

    monkeypatch.setattr(api, "RayPool", WatchedPool)
    server = serve("--latency", 0.05)
    run = BatchRun.from_arguments(
        rows, tmp_path / "out.jsonl", server.model, ray="local", workers=2
    )
    going = asyncio.ensure_future(run.go())
    await asyncio.to_thread(until, lambda: server.lines() > 40 or going.done())
    import ray

    ray.kill(started[0].actor, no_restart=True)
    report = await going
    assert (report.stop, report.resumable) == ("fatal", True)
    assert report.stop_note.startswith("a worker cannot be run by Ray: ")


async def test_workers_receive_a_users_own_graders(tmp_path, rows, serve, cluster):
    """A function is sent with its closure; the output keeps the order of the input; a stop ends all
    workers.
    """
    best = 60

    def short_grader(text):
        return Feedback(score=min(1.0, best / len(text)), actions=("be brief",))

    server = serve("--latency", 0.2)
    run = BatchRun.from_arguments(
        rows,
        tmp_path / "out.jsonl",
        server.model,
        short_grader,
        ray="local",
        workers=2,
        max_in_flight=8,
    )
    going = asyncio.ensure_future(run.go())
    await asyncio.to_thread(until, lambda: server.lines() > 20 or going.done())
    run.stop()
    report = await going
    assert (report.stop, report.resumable) == ("interrupted", True)
    done = [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert done == sorted(done, key=lambda id: int(id.removeprefix("row-")))
    assert [kind for kind, *_ in server.entries()].count("X") == 0


async def test_code_runs_in_the_sandbox_of_the_workers(tmp_path, cluster):
    """With the settings of the run, and with the results of a run in one process."""
    tests = [{"input": [n], "output": n + 1} for n in range(4)]
    data = [
        {
            "id": str(n),
            "prompt": "f",
            "response": f"def f(x):\n    return x + 1 if x < {n} else None",
            "tests": tests,
        }
        for n in range(5)
    ]
    settings = {"answer": "code:python", "mode": "grade", "sandbox": "unsafe"}
    outputs = []
    for engine in ({}, {"ray": "local", "workers": 2}):
        output = tmp_path / f"{len(engine)}.jsonl"
        await BatchRun.from_arguments(data, output, False, **settings, **engine).go()
        outputs.append(output.read_bytes())
    scores = [json.loads(line)["best_score"] for line in outputs[0].splitlines()]
    assert outputs[0] == outputs[1] and scores == [0.0, 0.25, 0.5, 0.75, 1.0]
