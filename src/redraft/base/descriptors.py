"""The descriptors of this process, and what else it may be short of: memory, ports, processes,
threads.

A shortage of our own says nothing about a model, a grader or a file: `is_shortage` tells it apart,
and whoever meets one waits and tries again. The last RESERVED descriptors are held back from
connections, so that a journal, a lock or a log can be opened.

Only the command line changes its process, at its start: `prepare_process`. The limit that it raises
is inherited by the programs that it starts, and the sandbox sets its own.
"""

from __future__ import annotations

import errno
import os
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from math import inf
from typing import Any

try:
    import resource
except ImportError:  # Windows, where a socket is no descriptor
    resource = None  # type: ignore[assignment]

MAX_DESCRIPTORS = 65_536
"""As far as the soft limit is raised: some programs that are started close each possible descriptor
one by one.
"""

SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
FORKS = frozenset({"_execute_child", "_launch"})
"""The functions of Python in which EAGAIN means that no process can be started; elsewhere it means
that a lock is taken.
"""
NO_THREAD = "can't start new thread"
MAX_CAUSES = 10


def prepare_process() -> None:
    """Open the standard streams that are closed, as cron and containers leave them, and raise the
    limit on descriptors.

    A message that stderr does not take, since its reader has closed the pipe or its disk is full,
    is lost and ends no work.
    """
    _open_standard_streams()
    sys.stderr = TextIOWrapper(
        BufferedWriter(_Messages(2, "w", closefd=False)), sys.stderr.encoding, line_buffering=True
    )
    _raise_limit()


def _open_standard_streams() -> None:
    """Open the null device where a standard stream is closed. Else the next file would take its
    place, and what is printed.
    """
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            # also makes it one that the programs which are started inherit
            os.dup2(opened, descriptor)
            if opened != descriptor:
                os.close(opened)
        if getattr(sys, name) is None:
            stream = os.fdopen(descriptor, mode, encoding="utf-8", closefd=False)
            setattr(sys, name, stream)


class _Messages(FileIO):
    """The descriptor of stderr. What it does not take is lost."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or len(data)  # None: a full pipe that does not block
        except OSError:
            return len(data)


def _raise_limit() -> None:
    """Raise the soft limit on descriptors to the hard one, but not above MAX_DESCRIPTORS."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (ValueError, OSError):  # macOS refuses what its kernel does not have
            return


def descriptor_limit() -> float:
    """Return how many descriptors this process may have open; infinite where that is not
    limited.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if resource else -1
    return inf if soft < 0 or soft >= sys.maxsize else soft


def connection_limit() -> float:
    """Return the number that no descriptor of a connection reaches: those above are held back.

    A new descriptor has the lowest free number, so as many as its number says are open.
    """
    limit = descriptor_limit()
    return limit if limit == inf else limit - min(32, limit // 8)


def open_descriptors() -> int:
    """Return the lowest number of a free descriptor: at least as many are open. Raises OSError if
    there is none.
    """
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


def is_short_of_descriptors(limit: float) -> bool:
    """Whether no descriptor below a limit is free."""
    try:
        return open_descriptors() >= limit
    except OSError as error:
        return is_shortage(error)


def is_shortage(error: BaseException) -> bool:
    """Whether an error, or one that it was raised from, says that this machine is short of
    something that Redraft needs.
    """
    cause: BaseException | None = error
    for _ in range(MAX_CAUSES):
        match cause:
            case None:
                return False
            case OSError(errno=errno.EAGAIN) if _is_from_fork(cause):
                return True
            case OSError() if cause.errno in SHORTAGES:
                return True
            case RuntimeError() if str(cause) == NO_THREAD:
                return True
        cause = cause.__cause__
    return False


def _is_from_fork(error: BaseException) -> bool:
    """Whether an error was raised where a process was to be started."""
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_name in FORKS:
            return True
        traceback = traceback.tb_next
    return False
