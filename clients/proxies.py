"""A real proxy of litellm, before or behind the gateway."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_SECONDS = 180
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}


def deployment(name: str, model: str, address: str) -> dict[str, Any]:
    """Return how a proxy reaches a model; `model` begins with the protocol, as in "openai/gpt"."""
    settings = {"model": model, "api_base": address, "api_key": "none"}
    return {"model_name": name, "litellm_params": settings}


@contextmanager
def proxy(program: Path, deployments: list[dict[str, Any]]) -> Iterator[str]:
    """Run a proxy that asks for no key; yields its address."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="litellm-") as folder:
        config, log = Path(folder) / "config.yaml", Path(folder) / "log"
        settings = {
            "model_list": deployments,
            "litellm_settings": {"num_retries": 0},
            "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},
        }
        config.write_text(json.dumps(settings))
        command = [program, "--config", config, "--host", "127.0.0.1", "--port", str(port)]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, env={**os.environ, **QUIET}, stdout=file, stderr=file, cwd=folder
            )
        try:
            wait_until_ready(process, f"http://127.0.0.1:{port}/health/readiness", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"the proxy does not answer:\n{log.read_text()[-3000:]}")
