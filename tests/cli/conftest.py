"""The real program in a process of its own, and the server that it talks to."""

import os
import pty
import select
import signal
import subprocess
import sys

import pytest

from .chat_server import ChatServer

PROGRAM = [sys.executable, "-m", "redraft"]


def heeding_ctrl_c():
    """A process started in the background would ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Redraft:
    """Runs the program in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, *args, input="", env=None, cwd=None):
        done = subprocess.run(
            [*PROGRAM, *map(str, args)],
            input=input.encode(),
            capture_output=True,
            cwd=cwd or self.folder,
            env={**os.environ, **(env or {})},
            timeout=60,
        )
        done.out, done.err = done.stdout.decode(), done.stderr.decode()
        return done

    def start(self, *args):
        return subprocess.Popen(
            [*PROGRAM, *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            preexec_fn=heeding_ctrl_c,
        )

    def in_terminal(self, *args, stdout_too=True):
        """All that the program writes to a terminal, its stdout if that is none, and its exit code."""
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [*PROGRAM, *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=theirs if stdout_too else subprocess.PIPE,
            stderr=theirs,
            cwd=self.folder,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
        ) as process:
            os.close(theirs)
            seen = _all_of(ours)
            piped = b"" if stdout_too else process.stdout.read()
        os.close(ours)
        return seen, piped, process.returncode


def _all_of(terminal):
    seen = b""
    while select.select([terminal], [], [], 60)[0]:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        seen += data
    return seen


@pytest.fixture
def redraft(tmp_path):
    return Redraft(tmp_path)


@pytest.fixture
def serve():
    """Starts chat servers; they end with the test."""
    servers = []

    def start(answer):
        servers.append(ChatServer(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
