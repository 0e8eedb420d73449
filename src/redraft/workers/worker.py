"""The worker process: reads a job as a line of JSON and writes its value as a line of JSON, until
its input ends.

It starts as a bare interpreter and imports the function of a job on first use. A kernel timer
limits the CPU time of each job, so code that holds the interpreter's lock cannot escape it; memory
is limited if the system supports it. On Linux the kernel kills the worker when its parent ends, and
a worker starts no process and opens no connection: the limits and the filter of system calls are
the sandbox's, set by the functions of its bootstrap. Elsewhere it ends when it next reads a
job, at the latest after the CPU limit or the watchdog. The module itself imports nothing of
Redraft.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, BinaryIO

IS_COMPUTE_WORKER = (
    True  # read from `__main__`: a job that computes something else does so in this process
)
# without a timer of the CPU this is the limit
WALL_PER_CPU_SECOND = 20.0 if hasattr(signal, "setitimer") else 3.0
WATCHDOG_SECONDS = 5.0  # seconds after which the worker ends by itself if its parent did not end it


def main() -> None:
    """Answer jobs until the input ends."""
    answers = _claim_stdout()
    settings = decode(sys.stdin.buffer.readline())
    _restrict(settings)
    sys.path[:] = settings["path"]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    if hasattr(signal, "SIGPROF"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
    functions: dict[str, Callable[..., Any]] = {}
    for line in sys.stdin.buffer:
        answers.write(encode(_run_job(decode(line), functions)) + b"\n")
        answers.flush()


def encode(message: dict[str, Any]) -> bytes:
    """Return a message as a line, without escapes: they take ten times as long to read."""
    return json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode(line: bytes) -> Any:
    """Return the message on a line."""
    return json.loads(line.decode("utf-8", "surrogatepass"))


def _claim_stdout() -> BinaryIO:
    """Return the pipe to the parent, and redirect stdout to stderr, for libraries that print."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _restrict(settings: dict[str, Any]) -> None:
    """Set the limits that hold for all jobs, as far as the system has them: Windows has none, macOS
    refuses some.

    If the parent ended before the kernel was told to end this process with it, the input is closed
    and holds no job.
    """
    bootstrap: dict[str, Any] = {"__name__": "bootstrap"}
    exec(compile(settings["bootstrap"], "<bootstrap>", "exec"), bootstrap)  # noqa: S102  (our own file)
    with suppress(ImportError, ValueError, OSError):
        bootstrap["limit_resources"]({"RLIMIT_AS": settings["memory"]})
    with suppress(ImportError, OSError, AttributeError):
        if sys.platform == "linux":
            import ctypes

            libc = ctypes.CDLL(None, use_errno=True)
            bootstrap["end_with_parent"](libc)
            if settings["filter"]:
                bootstrap["set_filter"](libc, **settings["filter"])


def _run_job(job: dict[str, Any], functions: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    """Run a job; return its value, or the name and the message of its error."""
    name = job["function"]
    try:
        if name not in functions:
            functions[name] = _load(name)
        return {
            "value": _run_limited(job["seconds"], functions[name], job["arguments"])
            if "seconds" in job
            else None
        }
    except BaseException as error:  # noqa: BLE001  (whatever a function raises, the parent raises)
        return {"error": type(error).__name__, "message": str(error)[:2000]}


def _load(name: str) -> Callable[..., Any]:
    """Return the function "module:name" after calling `prepare` of its module, if any; that counts
    for no job's limit.
    """
    module_name, _, attribute = name.partition(":")
    module = import_module(module_name)
    getattr(module, "prepare", lambda: None)()
    function: Callable[..., Any] = getattr(module, attribute)
    return function


def _run_limited(seconds: float, function: Callable[..., Any], arguments: list[Any]) -> Any:
    faulthandler.dump_traceback_later(seconds * WALL_PER_CPU_SECOND + WATCHDOG_SECONDS, exit=True)
    _limit_cpu(seconds)
    try:
        return function(*arguments)
    finally:
        _limit_cpu(0)
        faulthandler.cancel_dump_traceback_later()


def _limit_cpu(seconds: float) -> None:
    """Let the kernel end the process after `seconds` of CPU time; 0 removes the limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


if __name__ == "__main__":
    main()
