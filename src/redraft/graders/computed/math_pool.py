"""Processes that compare mathematics, because only a process can be stopped for sure.

Each starts once (about a second, to load sympy), answers many questions, and is killed when one takes too long. It works
from any thread. A process that has lost us ends by itself: its input is closed.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from threading import BoundedSemaphore, Timer

from ...core.errors import ConfigError, RedraftError

START = 60.0  # seconds a process may take until it is ready
WORKER = Path(__file__).with_name("math_worker.py")
AT_ONCE = max(1, min(4, os.cpu_count() or 1))


@dataclass(eq=False)
class Worker:
    """One process."""

    process: subprocess.Popen[str] = field(
        default_factory=lambda: subprocess.Popen(  # noqa: S603  (our own file)
            [sys.executable, "-P", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="ascii",
        )
    )
    owner: int = field(default_factory=os.getpid)

    def ask(self, question: str, seconds: float) -> str:
        """The line it answers; "" when it ended or was stopped for taking longer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        timer = Timer(seconds, self.process.kill)
        timer.daemon = True
        timer.start()
        try:
            self.process.stdin.write(question)
            self.process.stdin.flush()
            return self.process.stdout.readline()
        except BrokenPipeError:
            return ""
        finally:
            timer.cancel()

    def close(self) -> None:
        """Stops it at once."""
        self.process.kill()
        for pipe in (self.process.stdout, self.process.stdin):
            try:
                if pipe is not None:
                    pipe.close()
            except BrokenPipeError:
                continue
        self.process.wait()


_idle: list[Worker] = []
_places = BoundedSemaphore(AT_ONCE)


def same(found: str, wanted: str, seconds: float) -> bool | None:
    """Whether two expressions are equal as mathematics; None when that took longer than `seconds`. Raises ConfigError."""
    if find_spec("math_verify") is None:
        raise ConfigError("math needs an extra: pip install 'redraft[math]'")
    with _places:
        worker = _ready()
        answer = worker.ask(json.dumps([found, wanted, seconds]) + "\n", seconds)
        if not answer.endswith("\n"):
            worker.close()
            return None
        _idle.append(worker)
    equal = json.loads(answer)
    return equal if isinstance(equal, bool) else None


def _ready() -> Worker:
    while _idle:
        worker = _idle.pop()
        if worker.owner == os.getpid() and worker.process.poll() is None:
            return worker
    worker = Worker()
    if not worker.ask("\n", START):
        worker.close()
        raise RedraftError("the process that compares mathematics did not start")
    return worker


@atexit.register
def _close_all() -> None:
    while _idle:
        worker = _idle.pop()
        if worker.owner == os.getpid():
            worker.close()
