"""Run the command line in this process or in one of its own, and start the server that it calls."""

import os
import pty
import select
import signal
import subprocess
import sys

import pytest

from in_process import READ_AT_START, CommandResult, run_in_process

from .chat_server import ChatServer

PROGRAM = [sys.executable, "-m", "redraft"]


def receive_ctrl_c():
    """Receive Ctrl-C, which a process started in the background would ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Redraft:
    """Runs the program in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, *args, input="", env=None, cwd=None):
        """Run the command inside this process, or in one of its own where `env` has a variable that
        the interpreter reads when it starts.
        """
        run = (
            self.process
            if any(name.startswith(READ_AT_START) for name in env or {})
            else self.inside
        )
        return run([*map(str, args)], input=input.encode(), cwd=cwd or self.folder, env=env)

    def inside(self, args, *, input=b"", env=None, cwd=None):
        """Run the command inside this process."""
        return run_in_process(args, input=input, cwd=cwd or self.folder, env=env)

    def process(self, args, *, input=b"", env=None, cwd=None):
        """Run the command in a process of its own."""
        done = subprocess.run(
            [*PROGRAM, *args],
            input=input,
            capture_output=True,
            cwd=cwd or self.folder,
            env={**os.environ, **(env or {})},
            timeout=60,
        )
        return CommandResult(done.args, done.returncode, done.stdout, done.stderr)

    def start(self, *args):
        return subprocess.Popen(
            [*PROGRAM, *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            preexec_fn=receive_ctrl_c,
        )

    def in_terminal(self, *args, stdout_too=True):
        """Return all that the program writes to a terminal, its stdout if that is not the terminal,
        and its exit code.
        """
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
            seen = read_to_end(ours)
            piped = b"" if stdout_too else process.stdout.read()
        os.close(ours)
        return seen, piped, process.returncode


def read_to_end(terminal):
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
    """Start chat servers, which end with the test."""
    servers = []

    def start(answer):
        servers.append(ChatServer(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
