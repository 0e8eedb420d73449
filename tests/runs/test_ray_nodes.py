"""A Ray cluster of two nodes, one of which is lost. In a file of its own, because only one Ray runs
at a time, and `cluster` lasts as long as its module.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from redraft.runs import BatchRun

from .conftest import one_ray
from .killing import check_asked_once, drive, ending, until, worker_process, write_rows

if not find_spec("ray"):
    pytest.skip("no Ray for this Python", allow_module_level=True)

pytestmark = pytest.mark.slow
# calls are identified by their words, so this leaves out repeated drafts and grades
PLAIN = {"noise_aware": False}


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "rows.jsonl", 30)


def parent_of(pid):
    """Return the process that has started another one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


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
    with (
        one_ray(),
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process,
    ):
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
