"""Runs on a real local Ray: what only they do. `test_workers.py` has what they have in common with
processes of this machine.
"""

import asyncio
import json
from importlib.util import find_spec

import pytest

from redraft import Feedback
from redraft.runs import BatchRun, api
from redraft.runs.executors.ray import RayPool

from .killing import until, write_rows

if not find_spec("ray"):
    pytest.skip("no Ray for this Python", allow_module_level=True)

pytestmark = pytest.mark.slow
# calls are identified by their words, so this leaves out repeated drafts and grades
PLAIN = {"noise_aware": False}


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "rows.jsonl", 30)


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
