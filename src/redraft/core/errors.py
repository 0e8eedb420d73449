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
+-- BudgetExhaustedError    money, tokens, calls or time are used up
+-- StoreError              a trace cannot be read or written
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .records import Usage


class RedraftError(Exception):
    """The root. `result` is the best so far when something was kept, else None; `usage` is what was spent."""

    def __init__(self, message: str = "", *, usage: Usage | None = None) -> None:
        super().__init__(message)
        self.usage = usage or Usage()
        self.result: Any = None


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
    """An answer came that is no answer: broken JSON, an HTML page, nothing at all."""


class ModelTimeoutError(ModelError):
    """No answer, or no further part of one, in time."""

    retryable = True


class ModelUnavailableError(ModelError):
    """The endpoint cannot be reached, is failing, or does not serve that model."""


class GradingError(RedraftError):
    """No grader could say anything about any candidate."""


class BudgetExhaustedError(RedraftError):
    """Money, tokens, calls or time are used up. `what` names which: calls, input_tokens, output_tokens, usd or deadline."""

    def __init__(self, message: str = "", *, what: str = "budget", usage: Usage | None = None) -> None:
        super().__init__(message, usage=usage)
        self.what = what


class StoreError(RedraftError):
    """A trace or journal cannot be read or written."""


OUTAGES: Mapping[str, type[RedraftError]] = {
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
