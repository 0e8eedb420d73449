"""Two servers for the tests: llama.cpp's own, and one that misbehaves on demand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest
import trustme

from redraft.protocols import Request

from . import tiny
from .fault_server import FaultServer

KEY = "sk-canary-4711"


@dataclass(frozen=True)
class Real:
    url: str
    key: str
    name: str = "tiny"


@pytest.fixture(scope="session")
def real(gguf_file):
    """A real llama.cpp server with that model, which requires a key."""
    command = [sys.executable, tiny.__file__, str(gguf_file), KEY]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield Real(f"{process.stdout.readline().strip()}/v1", KEY)
        finally:
            process.kill()


@pytest.fixture
async def faults():
    """A server that follows a script of faults."""
    async with FaultServer() as server:
        yield server


@pytest.fixture
def ask():
    """Return a function that makes a request of one user message."""

    def make_request(text="hello", **kwargs):
        return Request(({"role": "user", "content": text},), **kwargs)

    return make_request


@pytest.fixture(scope="session")
def authority():
    """A certificate authority."""
    return trustme.CA()


@pytest.fixture
def trusted(authority, tmp_path, monkeypatch):
    """Trust the authority."""
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
