"""Run the command line in this process or in one of its own, and start the server that it calls."""

import json
import os
import pty
import signal
import subprocess
import sys
from io import FileIO

import pytest

from in_process import (
    READ_AT_START,
    CommandResult,
    read_to_end,
    run_in_process,
    run_in_terminal,
)

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

    def plan(self, **settings):
        """Write a plan file, and return the option that names it."""
        lines = [
            f"{key.replace('_', '-')} = {json.dumps(value)}" for key, value in settings.items()
        ]
        (self.folder / "plan.toml").write_text("\n".join(lines) + "\n")
        return "--plan", "plan.toml"

    def start(self, *args):
        return subprocess.Popen(
            [*PROGRAM, *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            preexec_fn=receive_ctrl_c,
        )

    def in_terminal(self, *args, stdout_too=True, inside=True):
        """Return all that the program writes to a terminal, its stdout if that is not the terminal,
        and its exit code. It runs inside this process, or in one of its own.
        """
        args, env = [*map(str, args)], {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
        if inside:
            return run_in_terminal(args, stdout_too=stdout_too, cwd=self.folder, env=env)
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [*PROGRAM, *args],
            stdin=subprocess.DEVNULL,
            stdout=theirs if stdout_too else subprocess.PIPE,
            stderr=theirs,
            cwd=self.folder,
            env={**os.environ, **env},
        ) as process:
            os.close(theirs)
            with FileIO(ours) as screen:
                seen = read_to_end(screen)
            piped = b"" if stdout_too else process.stdout.read()
        return seen, piped, process.returncode


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
