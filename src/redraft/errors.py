"""Everything Redraft raises, in one tree.

RedraftError
+-- ConfigError             what you asked for cannot be
+-- ModelError              a model call failed
|   +-- AuthenticationError     the key is missing, wrong or out of quota
|   +-- RateLimitError          too many requests
|   +-- ContextLengthError      the prompt does not fit the model
|   +-- ContentFilterError      the model or its provider refused
|   +-- BadResponseError        an answer came, but not one that can be read
|   +-- ModelTimeoutError       no answer in time
|   +-- ModelUnavailableError   the endpoint cannot be reached, or has not that model
+-- GradingError            no grader could say anything
+-- ComputeLimitError       a check or a repair takes more time or memory than it may
+-- BudgetExhaustedError    money, tokens, calls or time are used up
+-- StoreError              a trace cannot be read or written
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .core.records import Failure, Usage


class RedraftError(Exception):
    """The root. `result` is the best so far when something was kept, else None; `usage` is what was spent."""

    def __init__(self, message: str = "", *, usage: Usage | None = None) -> None:
        super().__init__(message)
        self.usage = usage or Usage()
        self.result: Any = None

    @property
    def details(self) -> dict[str, Any]:
        """What it carries beside its message and usage, by the names of the arguments it is made with."""
        return {}


class ConfigError(RedraftError, ValueError):
    """What was asked for cannot be; raised before anything is paid for."""


class ModelError(RedraftError):
    """A model call failed.

    `status` is the HTTP status where there was one. `retryable` says whether the same call may succeed later,
    `retry_after` how many seconds the server asked to wait (None: it did not say).
    """

    retryable = False

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
        if retryable is not None:
            self.retryable = retryable

    @property
    def details(self) -> dict[str, Any]:
        return {"status": self.status, "retry_after": self.retry_after, "retryable": self.retryable}


class AuthenticationError(ModelError):
    """The key is missing, wrong, not allowed, or out of quota."""


class RateLimitError(ModelError):
    """Too many requests for now."""

    retryable = True


class ContextLengthError(ModelError):
    """The messages do not fit the model's context."""


class ContentFilterError(ModelError):
    """The model refused, or its provider filtered the answer."""


class BadResponseError(ModelError):
    """An answer came that is no answer: broken JSON, an HTML page, nothing at all. `empty`: it was read, and says nothing."""

    empty = False


class ModelTimeoutError(ModelError):
    """No answer, or no further part of one, in time. `its_own`: the endpoint answered other calls meanwhile."""

    retryable = True
    endpoint_responsive = False


class ModelUnavailableError(ModelError):
    """The endpoint cannot be reached, is failing, or does not serve that model."""


class GradingError(RedraftError):
    """No grader could say anything about any candidate."""


class ComputeLimitError(RedraftError):
    """A check, a repair or a computed grade takes more time or memory than it may: what it would say is unknown."""


class BudgetExhaustedError(RedraftError):
    """Money, tokens, calls or time are used up. `what` names which: a limit of the budget, or deadline."""

    def __init__(self, message: str = "", *, limit: str = "budget", usage: Usage | None = None) -> None:
        super().__init__(message, usage=usage)
        self.limit = limit

    @property
    def details(self) -> dict[str, Any]:
        return {"what": self.limit}


class StoreError(RedraftError):
    """A trace or journal cannot be read or written."""


ERROR_TYPES: Mapping[str, type[RedraftError]] = {
    name: kind for name, kind in globals().items() if isinstance(kind, type) and issubclass(kind, RedraftError)
}
"""All of them by name."""


def error_name(error: BaseException) -> str:
    """The name that it is recorded by: that of the nearest class here, or its own where it is foreign."""
    return next((kind.__name__ for kind in type(error).__mro__ if kind in ERROR_TYPES.values()), type(error).__name__)


def error_from_failure(failure: Failure, message: str = "", usage: Usage | None = None) -> RedraftError:
    """The error that a failure is the record of, with all that it carried; a ModelError for one that is not ours."""
    kind = ERROR_TYPES.get(failure.error, ModelError)
    details = {name: getattr(failure, name) for name in kind().details}
    return kind(message or failure.message, usage=usage, **details)


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
        StoreError,
    )
}
"""The errors that are the world's fault, by name: they say nothing about a grader that met them."""
