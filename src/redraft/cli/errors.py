"""What a result and an error mean for the user: the exit code, and each error as one clear line
that says what to do next.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..base.descriptors import is_shortage
from ..base.text import format_duration, format_time_in
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
    error_name,
)
from ..graders import entries
from ..loop.records import StopReason
from ..models.server_errors import is_out_of_credit
from ..result import Result, conclusion_error, is_graded
from ..storage.secure_files import data_dir
from . import output
from .exit_codes import FAILED, IMPERFECT, INTERRUPTED, OK, USAGE

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
    if result.stop is StopReason.CANCELLED:
        return INTERRUPTED
    return OK if is_graded(result.trace) and not result.facts.broken else IMPERFECT


def warn_if_ungraded(result: Result) -> None:
    """Say that the answer is not verified, if nothing has graded it, and unless the user has
    interrupted the work, what to do.
    """
    if not is_graded(result.trace):
        hint = "" if result.stop is StopReason.CANCELLED else _hint(conclusion_error(result))
        output.warning("the answer is not verified: it has no grade", hint)


def error_event(error: RedraftError) -> dict[str, Any]:
    """Return an error as plain data, in the words of the command line."""
    message = output.in_options(str(error))
    return {"error": error_name(error), "message": message, **error.details}


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
    """Return what to do about an error: by the first rule that applies, else by its class."""
    for rule in HINT_RULES:
        if (hint := rule(error)) is not None:
            return hint
    return next((HINTS[t.__name__] for t in type(error).__mro__ if t.__name__ in HINTS), "")


def _hint_of_shortage(error: RedraftError) -> str | None:
    return HINTS["ShortageError"] if is_shortage(error) else None


def _hint_of_wait(error: RedraftError) -> str | None:
    wait = getattr(error, "retry_after", None)
    return f"try again in {format_duration(wait)}, at {format_time_in(wait)}" if wait else None


def _hint_of_quota(error: RedraftError) -> str | None:
    is_out = isinstance(error, AuthenticationError) and is_out_of_credit(error)
    return HINTS[NOTHING_LEFT] if is_out else None


def _hint_of_limit(error: RedraftError) -> str | None:
    return LIMIT_HINTS.get(error.limit) if isinstance(error, BudgetExhaustedError) else None


def _hint_of_grading(error: RedraftError) -> str | None:
    if not isinstance(error, GradingError):
        return None
    if grader := _failed_code_grader(error):
        return (
            f"`redraft graders {grader}` shows what it needs of a task and of an answer"
            if _is_named_grader(grader)
            else ""
        )
    if "its score is None (" in str(error) and "never scores" not in str(error):
        return ""  # the grader says what is missing
    if error.result and any(grader.model_free for grader in error.result.trace.panel):
        return "try another --judge"  # something that is computed grades already
    return None


def _hint_of_endpoint(error: RedraftError) -> str | None:
    if not isinstance(error, ModelUnavailableError):
        return None
    # (such as a certificate that is not trusted) the message says what to do
    is_said = "the proxy " in str(error) or not (error.retryable or error.status)
    return "" if is_said else None


HINT_RULES: tuple[Callable[[RedraftError], str | None], ...] = (
    _hint_of_shortage,
    _hint_of_wait,
    _hint_of_quota,
    _hint_of_limit,
    _hint_of_grading,
    _hint_of_endpoint,
)


def _is_named_grader(name: str) -> bool:
    """Return whether `redraft graders` knows the name; that of a function in a file it does not."""
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
