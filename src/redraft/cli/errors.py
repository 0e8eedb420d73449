"""How a command ends: its exit code, and each error as one clear line that says what to do next.

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
from traceback import format_exc
from typing import TYPE_CHECKING, Any

import click

from ..base.descriptors import is_shortage
from ..base.text import format_duration, format_time_in, strip_control_sequences
from ..errors import (
    NOTHING_LEFT,
    AuthenticationError,
    BudgetExhaustedError,
    ConfigError,
    GradingError,
    ModelUnavailableError,
    RedraftError,
    StoreError,
    WrongFileError,
)
from . import output

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from ..result import Result

OK, FAILED, USAGE, BROKEN, INTERRUPTED = 0, 1, 2, 3, 130
WORSE, UNDECIDED = 4, 5  # of `gate`
# of `validate` and `rubric`: the work was done, but nothing is better than chance, or than the
# starting point
UNPROVEN = 3

HINTS = {
    "AuthenticationError": (
        "keys are read from the environment (see `redraft models`), or from an address: "
        "http://:KEY@HOST/v1#NAME"
    ),
    NOTHING_LEFT: (
        "wait until the quota is renewed, raise it at the provider, or use another --model"
    ),
    "ModelUnavailableError": (
        "`redraft models URL` asks the server at an address, `redraft models` those that Redraft "
        "knows"
    ),
    "ModelTimeoutError": "try again, or use another --model",
    "ShortageError": (
        "raise the limit on open files (`ulimit -n`), or work on less at once: --max-in-flight"
    ),
    "RateLimitError": "wait a little and try again",
    "ContextLengthError": (
        "shorten the prompt or the response, or use a --model with a longer context"
    ),
    "ContentFilterError": "rephrase the prompt, or use another --model",
    "GradingError": "try another --judge, or grade by requirements: `redraft graders` lists them",
    "BudgetExhaustedError": "raise the budget or the --deadline",
}
LIMIT_HINTS = {
    "deadline": "raise the --deadline",
    **{limit: f"raise --budget-{limit}" for limit in ("usd", "calls", "tokens")},
}


def exit_code(result: Result) -> int:
    """Return the exit code for a result, which has an answer: whether that was graded, and is not
    known to break a requirement.
    """
    from ..loop.records import StopReason
    from ..result import is_graded

    if result.stop is StopReason.CANCELLED:
        return INTERRUPTED
    return OK if is_graded(result.trace) and not result.facts.broken else BROKEN


def warn_if_ungraded(result: Result) -> None:
    """Say that the answer is not verified, if nothing has graded it, and unless the user has
    interrupted the work, what to do.
    """
    from ..loop.records import StopReason
    from ..result import conclusion_error, is_graded

    if not is_graded(result.trace):
        hint = "" if result.stop is StopReason.CANCELLED else _hint(conclusion_error(result))
        output.warning("the answer is not verified: it has no grade", hint)


def exit_code_of(invoke: Callable[[], Any]) -> int:
    """Run a command and return its exit code, whatever it raises; `--debug` or REDRAFT_DEBUG adds
    the traceback.
    """
    with output.message_scope():
        try:
            with warnings.catch_warnings(), _sigterm_as_interrupt():
                warnings.showwarning = _show_warning
                code = invoke()
            sys.stdout.flush()
        except BrokenPipeError:
            return _discard_output()
        except (KeyboardInterrupt, click.Abort):
            output.error("interrupted")
            return INTERRUPTED
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            return USAGE
        except click.ClickException as error:
            ctx = getattr(error, "ctx", None)
            output.error(
                error.format_message(),
                f"`{ctx.command_path} --help` lists its options" if ctx else "",
            )
            return USAGE
        except Exception as error:  # noqa: BLE001  (every error is shown as one line)
            if os.environ.get("REDRAFT_DEBUG"):
                traceback = strip_control_sequences(format_exc())
                if output.messages_are_json():
                    output.write_event("traceback", text=traceback)
                else:
                    click.echo(traceback, err=True)
            return report_error(error)
        return code if isinstance(code, int) else OK


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C: finished work is kept, and a message says so."""

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
def handle_sigterm(loop: AbstractEventLoop, handler: Callable[[], object]) -> Iterator[None]:
    """Call `handler` on SIGTERM while a loop runs, then restore the previous handler, which the
    loop does not do itself.
    """
    before = signal.getsignal(signal.SIGTERM)
    with suppress(NotImplementedError):  # Windows has no such signal
        loop.add_signal_handler(signal.SIGTERM, handler)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, before)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Show a Python warning, of ours or of another library, as a message."""
    output.warning(output.in_options(output.without_secrets(str(message))))


def error_event(error: RedraftError) -> dict[str, Any]:
    """Return an error as plain data, in the words of the command line."""
    message = output.in_options(str(error))
    return {"error": type(error).__name__, "message": message, **error.details}


def report_error(error: Exception) -> int:
    """Write what went wrong and return the exit code."""
    if isinstance(error, OSError):
        return _report_os_error(error)
    if not isinstance(error, RedraftError):
        output.error(
            f"{type(error).__name__}: {error}", "this is a bug; --debug shows the traceback"
        )
        return FAILED
    output.error(output.in_options(str(error)) or type(error).__name__, _hint(error))
    return (
        USAGE
        if isinstance(error, ConfigError | WrongFileError) and not is_shortage(error)
        else FAILED
    )


def _report_os_error(error: OSError) -> int:
    """Write which file or stream could not be used. If stdout is full, its buffered output is
    discarded.
    """
    if error.filename or error.errno not in {errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG}:
        output.error(f"{error.filename or 'output'}: {error.strerror or error}", _file_hint(error))
        return FAILED
    output.error(
        f"stdout cannot be written: {error.strerror}",
        "make room, or send the output to another place",
    )
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _file_hint(error: OSError) -> str:
    """Return what to do about a file that cannot be used."""
    from ..storage.secure_files import data_dir

    data_folder = ""
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        with suppress(StoreError):
            data_folder = str(data_dir())
        if data_folder and str(error.filename or "").startswith(data_folder):
            return (
                "it belongs to your data folder, which REDRAFT_HOME names: name another folder, "
                "or ask its owner for access"
            )
        return "name a file in a folder where you may write, or ask its owner for access"
    return (
        "make room, or name a file on another disk"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}
        else ""
    )


def _hint(error: RedraftError) -> str:
    """Return what to do about an error."""
    if is_shortage(error):
        return HINTS["ShortageError"]
    if wait := getattr(error, "retry_after", None):
        return f"try again in {format_duration(wait)}, at {format_time_in(wait)}"
    if isinstance(error, AuthenticationError) and _is_out_of_credit(error):
        return HINTS[NOTHING_LEFT]
    if isinstance(error, BudgetExhaustedError):
        return LIMIT_HINTS.get(error.limit, HINTS["BudgetExhaustedError"])
    if isinstance(error, GradingError) and (grader := _failed_code_grader(error)):
        return (
            f"`redraft graders {grader}` shows what it needs of a task and of an answer"
            if _is_named_grader(grader)
            else ""
        )
    if (
        isinstance(error, GradingError)
        and "its score is None (" in str(error)
        and "never scores" not in str(error)
    ):
        return ""  # the grader says what is missing
    if (
        isinstance(error, GradingError)
        and error.result
        and any(grader.model_free for grader in error.result.trace.panel)
    ):
        return "try another --judge"  # something that is computed grades already
    if isinstance(error, ModelUnavailableError) and (
        "the proxy " in str(error) or not (error.retryable or error.status)
    ):
        return ""  # (such as a certificate that is not trusted) the message says what to do
    return next((HINTS[t.__name__] for t in type(error).__mro__ if t.__name__ in HINTS), "")


def _is_out_of_credit(error: AuthenticationError) -> bool:
    from ..models.server_errors import is_out_of_credit

    return is_out_of_credit(error)


def _is_named_grader(name: str) -> bool:
    """Return whether `redraft graders` knows the name; that of a function in a file it does not."""
    from ..graders import entries

    return any(entry.name == name for entry in entries())


def _failed_code_grader(error: RedraftError) -> str:
    """Return a failed grader if no failed grader calls a model; "" if another judge may help."""
    trace = error.result.trace if error.result else None
    failed = (
        {f.step_slot[2] for f in trace.failures.values() if f.step_slot[0] == "feedback"}
        if trace
        else set()
    )
    computed = {grader.name for grader in trace.panel if grader.model_free} if trace else set()
    return min(failed).partition(":")[0] if failed and failed <= computed else ""


def _discard_output() -> int:
    """End quietly after the reader of our output has closed the pipe: the interpreter's last flush
    goes to the null device.
    """
    null_device = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(null_device, stream.fileno())
    return FAILED
