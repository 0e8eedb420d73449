"""What every test shares: no network beyond this machine, no keys from outside, and a real model server."""

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

# For properties that do not say how many examples they want. No deadline: it would time the machine, which other tests load.
settings.register_profile("suite", max_examples=50, deadline=None)
settings.load_profile("suite")

TINY = Path(__file__).parent / "wire" / "tiny.py"
LOCAL = ("127.", "::1", "localhost")
FOREIGN = ("REDRAFT_", "OPENAI_", "ANTHROPIC_", "OLLAMA_")


@pytest.fixture(autouse=True, scope="session")
def no_network():
    """Refuse every connection that would leave this machine."""
    connect = socket.socket.connect

    def guarded(self, address):
        if isinstance(address, tuple) and not str(address[0]).startswith(LOCAL):
            raise OSError(f"tests do not leave this machine, asked for {address[0]!r}")
        return connect(self, address)

    socket.socket.connect = guarded
    yield
    socket.socket.connect = connect


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch, tmp_path_factory):
    """Take away whatever would make Redraft find a model, a setting or a card of the machine it is tested on."""
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path_factory.mktemp("home", numbered=True)))


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory):
    """A tiny model with random weights, in a file."""
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", "TEMPLATE")


@pytest.fixture(scope="session")
def strict_gguf_file(tmp_path_factory):
    """The same with a chat template that takes no system role, and only turns that alternate."""
    return write_model(tmp_path_factory.mktemp("model") / "strict.gguf", "STRICT")


def write_model(path, template):
    make = f"import sys; sys.path.insert(0, {str(TINY.parent)!r}); import tiny; tiny.make({str(path)!r}, tiny.{template})"
    subprocess.run([sys.executable, "-c", make], check=True)
    return path


@pytest.fixture(scope="session")
def plain_server(gguf_file):
    """The name of a model on a real llama.cpp server that asks for no key."""
    with llama_server(gguf_file) as name:
        yield name


@pytest.fixture(scope="session")
def strict_server(strict_gguf_file):
    """The same with the strict chat template."""
    with llama_server(strict_gguf_file) as name:
        yield name


@contextmanager
def llama_server(path):
    with subprocess.Popen(
        [sys.executable, str(TINY), str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield f"{process.stdout.readline().strip()}/v1#tiny"
        finally:
            process.kill()
