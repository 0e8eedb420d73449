"""The pool of worker processes: started on demand, reused, killed if a job takes too long or is
cancelled.

A thread of the pool waits for each job, so `run` never blocks the event loop and `run_sync` works
from any thread. A worker always ends with its parent: its input is closed, and on Linux the kernel
kills it. (The kernel watches the thread that started it; threads of the pool live as long as the
process.) A forked child has its own pool.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Lock, RLock, Timer
from typing import Any
from weakref import WeakSet

import orjson

from ..base.threads import LastingThreadPool, run_in_thread
from ..errors import (
    ComputeLimitError,
    ConfigError,
    RedraftError,
    SandboxUnavailableError,
)
from .worker import WALL_PER_CPU_SECOND, decode, encode

IN_PROCESS = (
    16_384  # characters that are handled in this process; measured by bench/hostile_text.py
)
CPU_SECONDS = 5.0  # of CPU time for a job
MEMORY_BYTES = 2 * 2**30  # bytes of address space of a worker
START_TIMEOUT = 60.0  # seconds a worker may take to start, and to import what a job needs
POOL_SIZE = max(1, min(4, os.cpu_count() or 1))  # workers at once
ENVIRONMENT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "TEMP",
    "SYSTEMROOT",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "PYTHONHOME",
)


async def run(
    function: Callable[..., Any],
    *arguments: Any,
    failure_text: str,
    text_length: int,
    seconds: float | None = None,
) -> Any:
    """Call a module-level function in a worker; arguments and value are JSON values.

    Raises ComputeLimitError after `seconds` of CPU time (None: 5), twenty times as long by the
    clock (Windows: three times), over 2 GiB of memory, and if the worker crashes; its message holds
    `failure_text` (such as "words:80-200 could not be checked") and `text_length` in characters.
    Cancelling the call kills the worker. A ConfigError of the function is raised as such, anything
    else as RuntimeError.
    """
    if _is_worker():
        return function(*arguments)
    job = _Job(function, arguments, failure_text, text_length, seconds or CPU_SECONDS)
    try:
        return await asyncio.wrap_future(_thread_pool().submit(job.run))
    except asyncio.CancelledError:
        job.cancel()
        raise


def run_sync(
    function: Callable[..., Any],
    *arguments: Any,
    failure_text: str,
    text_length: int,
    seconds: float | None = None,
) -> Any:
    """Like `run`, for callers without an event loop."""
    if _is_worker():
        return function(*arguments)
    job = _Job(function, arguments, failure_text, text_length, seconds or CPU_SECONDS)
    future = _thread_pool().submit(job.run)
    try:
        return future.result()
    finally:
        job.cancel()  # has an effect only if the wait was interrupted


async def run_on_texts(function: Callable[..., Any], *texts: str, failure_text: str) -> Any:
    """Call a module-level function of texts: in a thread, or in a worker if the texts are long.
    Raises what `run` raises.
    """
    size = sum(map(len, texts))
    if size <= IN_PROCESS:
        return await run_in_thread(function, *texts)
    return await run(function, *texts, failure_text=failure_text, text_length=size)


def _is_worker() -> bool:
    """Whether this process is a worker: it has limits already, and can start no process."""
    return getattr(sys.modules.get("__main__"), "IS_COMPUTE_WORKER", False)


def worker_command() -> list[str]:
    """Return the command that starts a worker."""
    return [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))]


@cache
def bootstrap_source() -> str:
    """Return the source of what limits a process before it runs code that is not trusted."""
    return Path(__file__).with_name("bootstrap.py").read_text("utf-8")


@cache
def _restrictions() -> dict[str, Any]:
    """Return the bootstrap and, where there is one for this machine, its filter of system
    calls.
    """
    from .seccomp import OWN_PID, filter_program

    bootstrap = bootstrap_source()
    try:
        return {
            "bootstrap": bootstrap,
            "filter": {"filter": filter_program(is_tool=False).hex(), "own_pid": OWN_PID},
        }
    except SandboxUnavailableError:  # another machine than those: the limits alone
        return {"bootstrap": bootstrap, "filter": {}}


class _Worker:
    """One process, and the functions it has loaded."""

    def __init__(self) -> None:
        self.loaded_functions: set[str] = set()
        self.timed_out = False
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        with _spawn_lock:
            self.process = subprocess.Popen(  # noqa: S603  (our own file)
                worker_command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**environment, "OPENBLAS_NUM_THREADS": "1"},
            )
            _workers.add(self)
        path = [*filter(None, sys.path), str(Path(__file__).parents[2])]
        self._send(_encode({"path": path, "memory": MEMORY_BYTES, **_restrictions()}))

    def load(self, function: str) -> dict[str, Any]:
        """Import a function. Return {}, or the answer with the error of the import. Raises
        _WorkerExitedError.
        """
        if function in self.loaded_functions:
            return {}
        answer = self.execute(_encode({"function": function}), START_TIMEOUT)
        if "error" in answer:
            return answer
        self.loaded_functions.add(function)
        return {}

    def execute(self, job: bytes, timeout: float) -> dict[str, Any]:
        """Return the answer to a job. Raises _WorkerExitedError if the process ended or was killed
        after `timeout` seconds.
        """
        timer = Timer(timeout, self._kill_on_timeout)
        timer.daemon = True
        timer.start()
        try:
            self._send(job)
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
        except OSError:
            line = b""
        finally:
            timer.cancel()
        if not line.endswith(b"\n"):
            raise _WorkerExitedError
        answer: dict[str, Any] = decode(line)
        return answer

    def _kill_on_timeout(self) -> None:
        self.timed_out = True
        self.process.kill()

    def _send(self, message: bytes) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: reading its answer will fail
            self.process.stdin.write(message + b"\n")
            self.process.stdin.flush()

    def kill(self) -> int:
        """Kill the process; return its exit status, negative for a signal."""
        self.process.kill()
        status = self.process.wait()
        self.close_pipes()
        return status

    def close_pipes(self) -> None:
        """Close our ends of its pipes."""
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def detach_after_fork(self) -> None:
        """In a forked child: release pipes and process without writing to them or taking locks of
        other threads.
        """
        self.process.returncode = 0  # not our child: there is nothing to wait for
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.raw.close()  # type: ignore[union-attr]


class _WorkerExitedError(Exception):
    """A worker ended before it answered."""


def _encode(message: dict[str, Any]) -> bytes:
    """Encode as JSON. orjson also writes the dates and UUIDs that metadata of a task may hold."""
    try:
        return orjson.dumps(message)
    except TypeError:  # half a surrogate pair, or a number beyond 64 bits
        return encode(message)


@dataclass(eq=False)
class _Job:
    """One call of a function in a worker."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    failure_text: str
    text_length: int
    seconds: float
    worker: _Worker | None = None
    cancelled: bool = False
    lock: Lock = field(default_factory=Lock)

    @property
    def name(self) -> str:
        return f"{self.function.__module__}:{self.function.__qualname__}"

    def run(self) -> Any:
        """Return the value. Raises what `run` raises."""
        job = _encode({"function": self.name, "arguments": self.arguments, "seconds": self.seconds})
        idle = _idle_worker(self.name)
        answer = self._run_on(idle, job) if idle else None
        if answer is None and not self.cancelled:
            answer = self._run_on(fresh := _Worker(), job)
            if answer is None and not fresh.loaded_functions:
                raise RedraftError("the worker process that computes did not start")
        if answer is None:
            raise self._limit_error("without a crash of the worker process")
        if (error := answer.get("error")) in LIMIT_PHRASES:
            raise self._limit_error(LIMIT_PHRASES[error])
        return _result_value(answer)

    def _run_on(self, worker: _Worker, job: bytes) -> dict[str, Any] | None:
        """Return the answer of a worker; None if it ended for another reason than its time
        limit.
        """
        self._assign(worker)
        try:
            answer = worker.load(self.name) or worker.execute(
                job, self.seconds * WALL_PER_CPU_SECOND
            )
        except _WorkerExitedError:
            if worker.kill() == -getattr(signal, "SIGPROF", 0) or worker.timed_out:
                raise self._limit_error(f"within {self.seconds:g} s") from None
            return None
        finally:
            self._assign(None)
        _idle.append(worker)
        return answer

    def _assign(self, worker: _Worker | None) -> None:
        with self.lock:
            self.worker = worker
            if self.cancelled and worker:
                worker.process.kill()

    def cancel(self) -> None:
        """Kill the worker that runs this job, now or as soon as it starts."""
        with self.lock:
            self.cancelled = True
            if self.worker:
                self.worker.process.kill()

    def _limit_error(self, limit: str) -> ComputeLimitError:
        return ComputeLimitError(f"{self.failure_text} {limit} ({self.text_length:,} characters)")


LIMIT_PHRASES = {  # by the error that exceeding the limit raises
    "MemoryError": f"in {MEMORY_BYTES // 2**30} GiB of memory",
    "RecursionError": "without nesting too deep",
}


def _result_value(answer: dict[str, Any]) -> Any:
    if "value" in answer:
        return answer["value"]
    for kind in (ComputeLimitError, ConfigError):
        if answer["error"] == kind.__name__:
            raise kind(answer["message"])
    raise RuntimeError(f"{answer['error']}: {answer['message']}")


_workers: WeakSet[_Worker] = WeakSet()
_idle: list[_Worker] = []
_executor: list[LastingThreadPool] = []
# also held while this process forks, so that no child inherits the pipes of an unregistered worker
_spawn_lock = RLock()


def _thread_pool() -> LastingThreadPool:
    """Return the pool, with one thread for each possible worker."""
    with _spawn_lock:
        if not _executor:
            _executor.append(LastingThreadPool(POOL_SIZE, "redraft-compute"))
        return _executor[0]


def _idle_worker(function: str) -> _Worker | None:
    """Return an idle worker, preferably one that has loaded the function."""
    while _idle:
        try:
            at = next(
                (i for i, worker in enumerate(_idle) if function in worker.loaded_functions), -1
            )
            worker = _idle.pop(at)
        except IndexError:  # another thread took it
            continue
        if worker.process.poll() is None:
            return worker
        worker.close_pipes()
    return None


@atexit.register
def _close_idle() -> None:
    while _idle:
        _idle.pop().kill()


def _reset_after_fork() -> None:
    """In a forked child: forget the parent's workers and threads. An open pipe here would keep the
    workers alive.
    """
    for worker in list(_workers):
        worker.detach_after_fork()
    _workers.clear()
    _idle.clear()
    _executor.clear()
    _spawn_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_spawn_lock.acquire,
        after_in_parent=_spawn_lock.release,
        after_in_child=_reset_after_fork,
    )
