"""A real `redraft serve` process for tests of clients."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CONFIG = """
[gateway]
port = 0
folder = {folder}
store = "full"
deadline = 60
{gateway}
{models}
{profiles}
"""
START_SECONDS = 180
SETTLED_SECONDS = 0.3
LISTENING = re.compile(r'^\{.*"url": "http://127\.0\.0\.1:(\d+)/v1"', re.MULTILINE)


@dataclass
class GatewayProcess:
    """A running gateway: `url` as OpenAI's clients take it, without /v1 as Anthropic's do in
    `root`; what it logs in `log`.
    """

    port: int
    folder: Path
    log: Path
    process: subprocess.Popen
    config: Path
    environment: dict = field(repr=False, default_factory=dict)

    @property
    def root(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self):
        return f"{self.root}/v1"

    def add_key(self, name="ann", *options):
        """Return a new key, by `redraft keys add`."""
        done = self.redraft("keys", "add", name, "--folder", str(self.folder), *options)
        assert done.returncode == 0, done.stderr
        return re.search(r"\brd-[\w-]+", done.stdout)[0]

    def redraft(self, *arguments):
        """Run a command of Redraft with the gateway's environment."""
        command = [sys.executable, "-m", "redraft", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, env=self.environment, check=False
        )

    def logged_requests(self, path):
        """Return the lines of the access log for requests to a path."""
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [each for line in lines if (each := json.loads(line)).get("path") == path]

    def count_requests(self, path, at_least=1):
        """Return how many requests to a path were served, once there are `at_least` and no further
        one follows.

        A request is logged shortly after its reply.
        """
        end = time.monotonic() + 60
        count, since = len(self.logged_requests(path)), time.monotonic()
        while time.monotonic() < end and (
            count < at_least or time.monotonic() - since < SETTLED_SECONDS
        ):
            time.sleep(0.02)
            if (now := len(self.logged_requests(path))) != count:
                count, since = now, time.monotonic()
        return count

    def get(self, path, **headers):
        with urllib.request.urlopen(
            urllib.request.Request(self.root + path, headers=headers), timeout=60
        ) as reply:
            return reply.read().decode()

    def end(self, how=signal.SIGTERM):
        """End the process with a signal; return its exit code."""
        self.process.send_signal(how)
        return self.process.wait(30)


@contextmanager
def serving(folder, models, profiles="", gateway="", *, require_keys=False):
    """Run a gateway with a configuration for the duration of the block."""
    config = folder / "gateway.toml"
    gateway += f"require-keys = {json.dumps(require_keys)}\n"
    state = folder / "state"
    config.write_text(
        CONFIG.format(
            folder=json.dumps(str(state)),
            gateway=gateway,
            models=models,
            profiles=profiles,
        )
    )
    environment = {**os.environ, "REDRAFT_HOME": str(folder / "home")}
    log = folder / "gateway.log"
    with log.open("wb") as file:
        command = [
            sys.executable,
            "-m",
            "redraft",
            "serve",
            "--log-format",
            "json",
            "--config",
            str(config),
        ]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment
        )
    try:
        port = wait_for_port(process, log)
        yield GatewayProcess(port, state, log, process, config, environment)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def wait_for_port(process, log):
    """Return the port that the gateway chose; it logs the address once it listens there."""
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if listening := LISTENING.search(log.read_text()):
            return int(listening[1])
        time.sleep(0.02)
    raise AssertionError(f"the gateway does not answer:\n{log.read_text()[-3000:]}")
