"""The real Phoenix and MLflow, each a server in a folder, from the programs `phoenix` and `mlflow`
on the PATH.
"""

import os
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from require import require_program

START_SECONDS = 300


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def running(command, folder, url, variables=()):
    """Run a server until the block ends; it is ready when it answers at the URL."""
    with (folder / "server.log").open("wb") as log:
        environment = {**os.environ, **dict(variables)}
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        wait_until_ready(process, folder, url)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until_ready(process, folder, url):
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise AssertionError((folder / "server.log").read_text()[-2000:])


@contextmanager
def phoenix(folder):
    """Run Phoenix; yield its URL and what sends spans to it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    variables = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    with running([require_program("phoenix"), "serve"], folder, f"{url}/healthz", variables):
        yield url, OTLPSpanExporter(f"{url}/v1/traces", timeout=60)


@contextmanager
def mlflow(folder):
    """Run MLflow; yield its URL and what sends spans to its first experiment."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [require_program("mlflow"), "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}", "--workers", "1"]
    with running(command, folder, f"{url}/health"):
        headers = {"x-mlflow-experiment-id": "0"}
        yield url, OTLPSpanExporter(f"{url}/v1/traces", headers=headers, timeout=60)
