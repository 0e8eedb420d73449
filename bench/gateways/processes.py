"""The gateways as processes: how each is started in front of an upstream, and what its processes
use.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
START_SECONDS = 180.0
KEY = "sk-bench-6f1d0a9c4be84f25b7d3"
TICK = os.sysconf("SC_CLK_TCK")

REDRAFT = """
[gateway]
port = {port}
folder = "{folder}"
max-concurrent = 2000
max-queue = 2000

[models.loopback]
url = "{upstream}/v1"
model = "loopback"

[profiles.plain]
model = "loopback"
graders = ["words:1-"]
max-iterations = 0
"""
LITELLM = """
model_list:
  - model_name: loopback
    litellm_params:
      model: openai/loopback
      api_base: {upstream}/v1
      api_key: none
litellm_settings:
  num_retries: 0
  set_verbose: false
"""


class Gateway:
    """A running gateway: its `name`, where it listens, the name that it has for the upstream's
    model, and a key for it.
    """

    def __init__(self, name, port, model, process, key):
        self.name, self.port, self.model, self.key = name, port, model, key
        self.host, self.pid = "127.0.0.1", process.pid
        self.send, self.wait = process.send_signal, process.wait

    def usage(self):
        """Return what its processes use, together: CPU seconds, megabytes of memory, file
        descriptors and threads.
        """
        return process_usage(self.pid)


@contextmanager
def upstream(*options):
    """Run the model for the duration of the block."""
    command = [sys.executable, HERE / "upstream.py", *options]
    process = subprocess.Popen(
        [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        port = int(process.stdout.readline().rpartition(":")[2])
        yield Gateway("upstream", port, "loopback", process, "none")
    finally:
        process.communicate()


@contextmanager
def redraft(
    folder,
    source,
    config=REDRAFT,
    wrapper=("-m", "redraft"),
    *,
    values=None,
    key=None,
    name="redraft pass/",
    tree=None,
):
    """Run `redraft serve`; of another checkout if `tree` is its folder."""
    own = {} if tree is None else {"PYTHONPATH": str(Path(tree).absolute() / "src")}
    port = free_port()
    path = folder / "gateway.toml"
    state = folder / "gateway"
    path.write_text(
        config.format(port=port, folder=state, upstream=url_of(source), **(values or {}))
    )
    key = key or add_key(folder, state, environment=own)
    command = [sys.executable, *wrapper, "serve", "--config", path]
    with running(name, command, port, "pass/loopback", folder, key=key, **own) as gateway:
        yield gateway


def add_key(folder, state, *options, name="bench", environment=None):
    """Return a new key of Redraft's gateway."""
    command = [sys.executable, "-m", "redraft", "keys", "add", name, "--folder", state, *options]
    own = {**environment_of(folder), **(environment or {})}
    done = subprocess.run(
        [str(part) for part in command], env=own, capture_output=True, text=True, check=False
    )
    if not (found := re.search(r"\brd-[\w-]+", done.stdout)):
        sys.exit(f"redraft keys add failed:\n{done.stdout[-500:]}{done.stderr[-3000:]}")
    return found[0]


@contextmanager
def litellm(python, folder, source):
    """Run litellm's proxy with one worker, as its documentation says for production, without a
    database.
    """
    port = free_port()
    path = folder / "litellm.yaml"
    path.write_text(LITELLM.format(upstream=url_of(source)))
    command = [
        Path(python).parent / "litellm",
        "--config",
        path,
        "--host",
        "127.0.0.1",
        "--port",
        port,
        "--num_workers",
        1,
    ]
    quiet = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MODE": "PRODUCTION",
    }
    with running(
        "litellm proxy", command, port, "loopback", folder, key=KEY, **quiet, LITELLM_MASTER_KEY=KEY
    ) as gateway:
        yield gateway


@contextmanager
def optillm(python, folder, source):
    """Run optillm, which passes a request on when no technique is asked for."""
    port = free_port()
    command = [
        Path(python).parent / "optillm",
        "--approach",
        "none",
        "--host",
        "127.0.0.1",
        "--port",
        port,
        "--log",
        "error",
    ]
    command += ["--base-url", f"{url_of(source)}/v1"]
    with running(
        "optillm", command, port, "none-loopback", folder, OPENAI_API_KEY="none"
    ) as gateway:
        yield gateway


@contextmanager
def running(name, command, port, model, folder, *, key="none", **environment):
    """Run a server for the duration of the block, from when it answers. Ends the benchmark if it
    never does.
    """
    log = folder / f"{name.split()[0]}.log"
    with log.open("ab") as file:
        own = {**environment_of(folder), **environment}
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=own,
            cwd=folder,
        )
    try:
        wait_until_ready(name, process, port, log)
        yield Gateway(name, port, model, process, key)
    finally:
        process.terminate()
        try:
            process.wait(90)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def environment_of(folder):
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "REDRAFT_HOME": str(folder / "home")}


def wait_until_ready(name, process, port, log):
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5).close()
        except urllib.error.HTTPError:
            return  # it answers, and wants a key
        except OSError:
            time.sleep(0.1)
        else:
            return
    sys.exit(f"{name} does not answer:\n{log.read_text(errors='replace')[-3000:]}")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def url_of(source):
    return f"http://{source.host}:{source.port}"


def stats(source):
    """Return what the upstream counted."""
    with urllib.request.urlopen(f"{url_of(source)}/stats", timeout=10) as reply:
        return json.load(reply)


def process_usage(pid):
    """Return the CPU seconds, megabytes, file descriptors and threads of a process and its
    children; None without /proc.
    """
    if not Path("/proc/self/stat").exists():
        return None
    used = {"cpu_s": 0.0, "mb": 0.0, "descriptors": 0, "threads": 0}
    for each in [pid, *descendants(pid)]:
        for name, value in usage_of(each).items():
            used[name] += value
    return used


def usage_of(pid):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        memory = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208
    except (OSError, ValueError):
        return {}
    return {
        "cpu_s": sum(map(int, fields[11:15])) / TICK,  # with children that have ended
        "mb": int(memory["VmRSS"].split()[0]) / 1024,
        "descriptors": descriptors,
        "threads": int(memory["Threads"]),
    }


def descendants(pid):
    try:
        children = [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [each for child in children for each in (child, *descendants(child))]
