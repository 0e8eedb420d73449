"""What every test shares: no network beyond this machine, no keys from outside, no stray settings."""

import os
import socket

import pytest

LOCAL = ("127.", "::1", "localhost")


@pytest.fixture(autouse=True, scope="session")
def no_network():
    """Refuse every connection that would leave this machine."""
    connect = socket.socket.connect

    def guarded(self, address):
        host = address[0] if isinstance(address, tuple) else ""
        if isinstance(address, tuple) and not str(host).startswith(LOCAL):
            raise OSError(f"tests do not leave this machine, asked for {host!r}")
        return connect(self, address)

    socket.socket.connect = guarded
    yield
    socket.socket.connect = connect


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    """Take away whatever would make Redraft find a model or a setting of the machine it is tested on."""
    for name in list(os.environ):
        if name.startswith(("REDRAFT_", "OPENAI_", "ANTHROPIC_", "OLLAMA_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
