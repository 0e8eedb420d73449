"""The process that computes: reads a job as a line of JSON, writes its value as a line of JSON, until its input ends.

It starts as a bare interpreter and imports what a job names when it is first asked to. CPU time is limited for each job by a
timer of the kernel, so no code that holds the interpreter's lock escapes it; memory is limited where the system can. On
Linux the kernel ends it at once when its parent is gone; elsewhere it ends when it next waits for a job, which a watchdog and
the limit on CPU time see to. It imports nothing of ours by itself.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, BinaryIO

WALL_PER_CPU_SECOND = 3.0  # seconds of the clock for each second of CPU time: other programs want the CPU, too
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
WATCHDOG_SECONDS = 5.0  # seconds after which the worker ends by itself if its parent did not end it


def main() -> None:
    """Answer until the input ends."""
    _end_with_parent()
    answers = _claim_stdout()
    settings = decode(sys.stdin.buffer.readline())
    sys.path[:] = settings["path"]
    _limit_memory(settings["memory"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    if hasattr(signal, "SIGPROF"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
    functions: dict[str, Callable[..., Any]] = {}
    for line in sys.stdin.buffer:
        answers.write(encode(_run_job(decode(line), functions)) + b"\n")
        answers.flush()


def _end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends: no code in it could notice in time.

    A parent that is gone by now has closed our input: it holds no job yet.
    """
    if sys.platform != "linux":
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (ImportError, OSError, AttributeError):  # a C library without it
        return


def encode(message: dict[str, Any]) -> bytes:
    """A message as a line: text stands in it as it is, which is read ten times as fast as escapes."""
    return json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode(line: bytes) -> Any:
    """The message on a line."""
    return json.loads(line.decode("utf-8", "surrogatepass"))


def _claim_stdout() -> BinaryIO:
    """The way to the parent; what a library prints goes to stderr from now on."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _limit_memory(size: int) -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    except (ImportError, ValueError, OSError):  # Windows has none, macOS refuses some
        return


def _run_job(job: dict[str, Any], functions: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    """What a job comes to: its value, or the name and the message of what it raised."""
    name = job["function"]
    try:
        if name not in functions:
            functions[name] = _load(name)
        return {"value": _run_limited(job["seconds"], functions[name], job["arguments"]) if "seconds" in job else None}
    except BaseException as error:  # noqa: BLE001  (whatever a function raises, the parent raises)
        return {"error": type(error).__name__, "message": str(error)[:2000]}


def _load(name: str) -> Callable[..., Any]:
    """The function "module:name"; a module that has a `prepare` is prepared first, which no job pays for."""
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
    """After so many seconds of CPU time the kernel ends the process; 0 lifts the limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


if __name__ == "__main__":
    main()
