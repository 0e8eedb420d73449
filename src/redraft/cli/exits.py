"""How a command ends: the exit codes, and errors as one clear line each that says what to do next.

This is the only place that catches what commands raise.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from . import notices

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from ..errors import RedraftError
    from ..result import Result

OK, FAILED, USAGE, BROKEN, INTERRUPTED = 0, 1, 2, 3, 130

HINTS = {
    "AuthenticationError": "`redraft models` shows which keys are read from the environment",
    "ModelUnavailableError": "`redraft models` shows what can be reached",
    "ModelTimeoutError": "try again, or another --model",
    "RateLimitError": "wait a little and try again",
    "ContextLengthError": "shorten the prompt or the response, or use a --model with a longer context",
    "ContentFilterError": "rephrase the prompt, or use another --model",
    "GradingError": "try another --judge, or grade by requirements: `redraft graders` lists them",
    "BudgetExhaustedError": "raise the --budget-... or the --deadline",
}


def exit_code(result: Result) -> int:
    """The exit code that a result deserves."""
    from ..core.records import StopReason

    if result.stop is StopReason.CANCELLED:
        return INTERRUPTED
    if result.stop is StopReason.FAILED:
        return FAILED
    return BROKEN if result.metadata["broken"] else OK


def guarded(invoke: Callable[[], Any]) -> int:
    """The exit code of a command, whatever happens in it; `--debug` or REDRAFT_DEBUG adds the traceback."""
    with notices.for_people():
        return _guarded(invoke)


def _guarded(invoke: Callable[[], Any]) -> int:
    try:
        with warnings.catch_warnings(), _heeding_sigterm():
            warnings.showwarning = _warned
            code = invoke()
        sys.stdout.flush()
    except BrokenPipeError:
        return _pipe_closed()
    except (KeyboardInterrupt, click.Abort):
        notices.error("interrupted")
        return INTERRUPTED
    except click.ClickException as error:
        notices.error(error.format_message(), _where_to_read(error))
        return USAGE
    except Exception as error:  # noqa: BLE001  (whatever it is, people see one line)
        if os.environ.get("REDRAFT_DEBUG"):
            _trace_back()
        return _told(error)
    return code if isinstance(code, int) else OK


@contextmanager
def _heeding_sigterm() -> Iterator[None]:
    """Being told to end is like Ctrl-C: what there is is kept, and people are told."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # in a thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def heeding_sigterm(loop: AbstractEventLoop, handle: Callable[[], object]) -> Iterator[None]:
    """While a loop runs, being told to end calls `handle`; afterwards it does what it did before, which a loop forgets."""
    before = signal.getsignal(signal.SIGTERM)
    with suppress(NotImplementedError):  # Windows has no such signal
        loop.add_signal_handler(signal.SIGTERM, handle)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, before)


def _where_to_read(error: click.ClickException) -> str:
    """Where the options of the command are told that was not understood."""
    ctx = getattr(error, "ctx", None)
    return f"`{ctx.command_path} --help` tells what it takes" if ctx else ""


def _warned(message: Warning | str, *_: Any, **__: Any) -> None:
    """What the library warns of, as people read it here."""
    notices.warning(str(message))


def _trace_back() -> None:
    from traceback import format_exc

    from ..text import strip_control_sequences

    if notices.are_json():
        notices.emit("traceback", text=strip_control_sequences(format_exc()))
    else:
        click.echo(strip_control_sequences(format_exc()), err=True)


def _told(error: Exception) -> int:
    """Say what went wrong; the exit code for it."""
    from ..errors import ConfigError, RedraftError

    if isinstance(error, OSError):
        return _not_written(error)
    if not isinstance(error, RedraftError):
        notices.error(f"{type(error).__name__}: {error}", "this should not happen; --debug shows where it did")
        return FAILED
    notices.error(str(error) or type(error).__name__, _hint(error))
    return USAGE if isinstance(error, ConfigError) else FAILED


def _not_written(error: OSError) -> int:
    """Say which file or stream the system refused; what is still to be written to a full stdout goes nowhere."""
    if error.filename or error.errno not in {errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG}:
        notices.error(f"{error.filename or 'output'}: {error.strerror or error}", _way_out(error))
        return FAILED
    notices.error(f"stdout cannot be written: {error.strerror}", "make room, or send the output to another place")
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _way_out(error: OSError) -> str:
    """What to do about a file that the system refused."""
    from ..errors import StoreError
    from ..storage.paths import data_dir

    own = ""
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        with suppress(StoreError):
            own = str(data_dir())
        if own and str(error.filename or "").startswith(own):
            return "it belongs to your own data folder, which REDRAFT_HOME names: name another, or have its owner allow it"
        return "name a file in a folder where you may write, or have its owner allow it"
    return "make room, or name a file on another disk" if error.errno in {errno.ENOSPC, errno.EDQUOT} else ""


def _hint(error: RedraftError) -> str:
    """What to do about an error."""
    from ..errors import GradingError
    from ..text import format_duration, format_time_in

    if wait := getattr(error, "retry_after", None):
        return f"try again in {format_duration(wait)}, at {format_time_in(wait)}"
    if isinstance(error, GradingError) and (free := _computed(error)):
        return f"`redraft graders {free}` tells what it needs of a task and of an answer"
    return next((HINTS[t.__name__] for t in type(error).__mro__ if t.__name__ in HINTS), "")


def _computed(error: RedraftError) -> str:
    """The grader to blame where all that failed ask no model; "" where another judge may help."""
    trace = error.result.trace if error.result else None
    failed = {f.of[2] for f in trace.failures.values() if f.of[0] == "feedback"} if trace else set()
    free = {seat.grader for seat in trace.panel if seat.free} if trace else set()
    return min(failed).partition(":")[0] if failed and failed <= free else ""


def complain(message: str, hint: str = "") -> None:
    """One line on stderr, and another with what to do next."""
    notices.warning(message, hint)


def _pipe_closed() -> int:
    """Whoever read our output has had enough: end quietly, and let the interpreter's last flush go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
    return FAILED
