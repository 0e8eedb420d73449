"""The exceptions that Redraft raises, in one tree.

RedraftError
+-- ConfigError             the arguments or settings are invalid
|   +-- NoResponseError           a row has no response, and nothing writes one
|   +-- SandboxUnavailableError   no sandbox can run code on this machine
+-- ModelError              a model call failed
|   +-- AuthenticationError     the key is missing, wrong or out of quota
|   +-- RateLimitError          too many requests
|   +-- ContextLengthError      the prompt does not fit the model
|   +-- ContentFilterError      the model or its provider refused
|   +-- BadResponseError        the answer cannot be read
|   +-- ModelTimeoutError       no answer in time
|   +-- ModelUnavailableError   the endpoint cannot be reached, or does not serve that model
|   +-- ShortageError           this machine is short of descriptors, memory, ports or processes
+-- GradingError            a grader, or in `grade` all of them, could grade nothing
|   +-- ValidatorError            a validator of the answer's type has a fault
+-- ComputeLimitError       a check or a repair takes more time or memory than it may
+-- BudgetExhaustedError    money, tokens, calls or time are used up
+-- StoreError              a trace cannot be read or written
    +-- WrongFileError            the file is of another kind, or holds something else already
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

from .usage import Usage


class RedraftError(Exception):
    """The base class. `result` is the best result so far, or None; `usage` is the usage of the
    calls made.
    """

    usage: Usage
    result: Any = None

    def __init__(self, message: str = "", *, usage: Usage | None = None) -> None:
        super().__init__(message)
        self.usage = usage or Usage()

    @property
    def details(self) -> dict[str, Any]:
        """The other attributes, by the names of the constructor's arguments."""
        return {}

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows: the error alone, or the whole traceback if
        REDRAFT_DEBUG is set.
        """
        from traceback import format_exception  # only notebooks need it

        is_debug = bool(os.environ.get("REDRAFT_DEBUG"))
        text = "".join(format_exception(self)) if is_debug else f"{type(self).__name__}: {self}"
        return ["".join(filter(str.isprintable, line)) for line in text.splitlines()]


class ConfigError(RedraftError, ValueError):
    """The arguments or settings are invalid; raised before any call is made."""


class NoResponseError(ConfigError):
    """A task has no response, and nobody writes one."""


class SandboxUnavailableError(ConfigError):
    """No sandbox can run code on this machine. The message says what is missing and what to
    install.
    """


NOTHING_LEFT = "no quota or credit is left"
"""The `reason` of an AuthenticationError whose key is not refused."""


class ModelError(RedraftError):
    """A model call failed.

    `status` is the HTTP status, or None. `retryable` says whether the same call may succeed later,
    `retry_after` how many seconds the server asked to wait, or None. `reason`: what Redraft says of
    it, such as "cannot be reached: Connection refused", without text of a server; "" where there is
    only such a text. `inferred`: only words of the server say what kind of error it is, and they
    may quote the request.
    """

    retryable = False
    reason = ""
    inferred = False

    def __init__(
        self,
        message: str = "",
        *,
        status: int | None = None,
        retry_after: float | None = None,
        retryable: bool | None = None,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(message, usage=usage)
        self.status = status
        self.retry_after = retry_after
        self.retryable = type(self).retryable if retryable is None else retryable

    @property
    def details(self) -> dict[str, Any]:
        return {"status": self.status, "retry_after": self.retry_after, "retryable": self.retryable}


class AuthenticationError(ModelError):
    """The key is missing, wrong, not allowed, or out of quota."""


class RateLimitError(ModelError):
    """The endpoint received too many requests."""

    retryable = True


class ContextLengthError(ModelError):
    """The messages do not fit the model's context."""


class ContentFilterError(ModelError):
    """The model refused, or its provider filtered the answer. `refusal`: what the model wrote
    instead of an answer, "" if it wrote nothing.
    """

    refusal = ""


class BadResponseError(ModelError):
    """The answer cannot be used: broken JSON, an HTML page, no content.

    `empty`: it is valid, and has no text. `malformed`: it is no answer of a model at all, such as a
    web page. `truncated`: the token limit cut it off before there was a text or a whole tool call.
    `has_unknown_end`: it ended for a reason that is not known.
    """

    empty = False
    malformed = False
    truncated = False
    has_unknown_end = False

    def without_text(self) -> Self:
        """Return the error, of an answer that is valid and has no text."""
        self.empty = True
        return self


class ModelTimeoutError(ModelError):
    """No answer, or no further part of one, came in time. `endpoint_responsive`: the endpoint
    answered other calls meanwhile.
    """

    retryable = True
    endpoint_responsive = False


class ModelUnavailableError(ModelError):
    """The endpoint cannot be reached, is failing, or does not serve that model."""


class ShortageError(ModelError):
    """This machine is short of what a call or a grader needs: descriptors, memory, ports, processes
    or threads.

    It says nothing about the endpoint or the grader. Redraft waits for a while before it is raised.
    """

    retryable = True


class GradingError(RedraftError):
    """A grader of the user's own graded no answer; where only grades are asked for, as in `grade`:
    no grader graded any.
    """


class ValidatorError(GradingError):
    """A validator of the answer's type raised another error than those that say what is wrong with
    a value; it ends the run.
    """


class ComputeLimitError(RedraftError):
    """A check, a repair or a computed grade exceeded its time or memory limit; its result is
    unknown.
    """


class BudgetExhaustedError(RedraftError):
    """The budget or the deadline is exhausted. `limit` names which: a limit of the budget, or
    "deadline".
    """

    def __init__(
        self, message: str = "", *, limit: str = "budget", usage: Usage | None = None
    ) -> None:
        super().__init__(message, usage=usage)
        self.limit = limit

    @property
    def details(self) -> dict[str, Any]:
        return {"limit": self.limit}


class StoreError(RedraftError):
    """A trace or journal cannot be read or written."""


class WrongFileError(StoreError):
    """The file is of another kind, holds something else already, or cannot be at that place: name
    another.
    """


class StoreLockedError(StoreError):
    """Another process has the trace or journal open."""


ERROR_TYPES: Mapping[str, type[RedraftError]] = {
    name: kind
    for name, kind in globals().items()
    if isinstance(kind, type) and issubclass(kind, RedraftError)
}
"""All error classes by name."""

# why something failed: the one list for journals, rows, reports, spans, metrics and logs
CAUSES = (*ERROR_TYPES, "CancelledError")
MODEL_CAUSES = tuple(name for name, kind in ERROR_TYPES.items() if issubclass(kind, ModelError))


def attach(error: BaseException, **values: object) -> None:
    """Give an interruption, whose class is Python's own, what there was when it came, such as
    `result`.
    """
    vars(error).update(values)


def attachment(error: BaseException, name: str = "result") -> Any:
    """Return what `attach` gave an interruption under this name; None if it gave nothing."""
    return vars(error).get(name)


def error_name(error: BaseException, other: str = "RedraftError") -> str:
    """Return the cause under which an error is recorded: its own `cause`, as an error for a client
    of the gateway has it, or the first of its classes in CAUSES. Else it is `other`, for an error
    of foreign code, whose message names its class, and "CancelledError" for an interruption.
    """
    names = (getattr(error, "cause", ""), *(kind.__name__ for kind in type(error).__mro__))
    other = other if isinstance(error, Exception) else "CancelledError"
    return next((name for name in names if name in CAUSES), other)


EXTERNAL_ERRORS: Mapping[str, type[RedraftError]] = {
    kind.__name__: kind
    for kind in (
        AuthenticationError,
        BudgetExhaustedError,
        ConfigError,
        ModelError,
        ModelTimeoutError,
        ModelUnavailableError,
        RateLimitError,
        SandboxUnavailableError,
        ShortageError,
        StoreError,
        StoreLockedError,
        WrongFileError,
    )
}
"""The errors with an external cause, by name: they do not show a fault of the grader that raised
them.
"""
