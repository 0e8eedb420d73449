"""Errors of the models behind the gateway, as the gateway's own errors.

A client must be able to tell its own mistakes from those of others: the refusal of the gateway's
key by a model is no refusal of the client's key, so its 401 becomes a 502. What the model says
about the request itself keeps its status and its message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..base.masking import NO_SECRETS, Mask
from ..errors import (
    AuthenticationError,
    BadResponseError,
    BudgetExhaustedError,
    ConfigError,
    ContentFilterError,
    ContextLengthError,
    GradingError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitError,
    RedraftError,
    ShortageError,
    error_name,
)
from ..models.server_errors import ErrorBody, error_from_status, is_out_of_credit
from .exchange import SHORTAGE_RETRY_AFTER, GatewayError
from .outcome import without_hosts

MAX_PARAM = 200  # characters of the name of a field in a model's error
# of a model's error: it is logged and stored, too
_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
# of replies that keep their status
_CODES = {
    400: "invalid_request",
    404: "not_found",
    413: "request_too_large",
    422: "unprocessable_request",
}


# ---- errors of a request that is passed on


def error_from_reply(
    name: str, status: int, body: ErrorBody, headers: Mapping[str, str], mask: Mask = NO_SECRETS
) -> GatewayError:
    """Return the error for a reply of the model `name` that is no success. `mask` hides the
    gateway's key in its message.
    """
    error = error_from_status(status, body, headers)
    param = None if body.param is None else mask(body.param)[:MAX_PARAM]
    is_key = isinstance(error, AuthenticationError)
    is_refusal = 400 <= status < 500 and not (error.retryable or is_key)
    if is_refusal and status in _CODES:
        return GatewayError(
            status,
            _code(status, body, mask),
            mask(body.text) or f"the model {name!r} refused the request",
            param=param,
            cause=error_name(error),
            upstream_status=status,
            detail=body.detail,
        )
    # a redirect says where the model is
    said = mask(str(error)) if status >= 400 else f"status {status}"
    if type(error) is ModelError:  # of which the table says nothing for this status
        said = f"the model {name!r} refused the request: {said}"
    failure = error_from_failure(name, error, said)
    if is_refusal and not isinstance(error, ContentFilterError | ContextLengthError):
        failure.status, failure.code, failure.param = 400, "invalid_request", param
    if is_key:
        failure.status, failure.should_retry = 429 if status == 429 else 502, False
    return failure


def _code(status: int, body: ErrorBody, mask: Mask) -> str:
    codes = sorted(code for code in body.codes if _CODE.fullmatch(code))
    # a code says more than a type such as invalid_request_error
    own = [code for code in codes if not code.endswith("_error")]
    return mask(own[0]) if own else _CODES[status]


def error_from_failure(name: str, error: ModelError, said: str = "") -> GatewayError:
    """Return the error for a request to the model `name` that failed. `said`: its message, where
    that of the error says more than a client may know.
    """
    return _error_for_client(error, said or str(error), f"the model {name!r}")


def unreadable_reply(name: str, message: str) -> GatewayError:
    """Return the error for a reply of the model `name` with status 200 that is no answer."""
    return GatewayError(
        502, "upstream_error", f"the model {name!r} {message}", cause=BadResponseError.__name__
    )


# ---- errors of a refinement


def gateway_error(
    error: RedraftError, hosts: Collection[str] = (), *, has_text: bool = False
) -> GatewayError:
    """Return what a client is told of an error: not the `hosts` of the models. `has_text`: texts
    were paid for, and asking again would pay for them again.
    """
    cause = (
        error.__cause__
        if isinstance(error, GradingError) and isinstance(error.__cause__, ModelError)
        else error
    )
    failure = _error_for_client(cause, without_hosts(str(error), hosts))
    if has_text or failure.status not in {429, 503}:
        failure.should_retry = False
    return failure


# ---- both


def _error_for_client(
    error: RedraftError, said: str, model: str = "the model behind the gateway"
) -> GatewayError:
    """Return the error for a client. `said`: what is known of it; `model`: how it calls the
    model.
    """
    status, code, text = next(
        (
            answer
            for kind, applies, answer in _ANSWERS
            if isinstance(error, kind) and (applies is None or applies(error))
        ),
        (502, "upstream_error", ""),
    )
    message = f"{text.format(model=model)}: {said}" if text else said
    is_short = isinstance(error, ShortageError)
    of_model = getattr(error, "status", None)
    return GatewayError(
        status or of_model or 502,
        code,
        message,
        retry_after=SHORTAGE_RETRY_AFTER if is_short else getattr(error, "retry_after", None),
        cause=error_name(error),
        upstream_status=of_model,
    )


_ANSWERS: tuple[
    tuple[type[Exception], Callable[[Any], bool] | None, tuple[int | None, str, str]], ...
] = (
    (ConfigError, None, (400, "invalid_request", "")),
    (
        AuthenticationError,
        is_out_of_credit,
        (
            502,
            "upstream_quota",
            "no quota or credit is left at {model}",
        ),
    ),
    (
        AuthenticationError,
        None,
        (
            502,
            "upstream_authentication",
            "{model} refused the gateway's own key",
        ),
    ),
    (ShortageError, None, (503, "overloaded", "the gateway is busy")),
    (
        RateLimitError,
        None,
        (429, "upstream_rate_limit", "{model} receives too many requests"),
    ),
    (ContextLengthError, None, (400, "context_length_exceeded", "")),
    (ContentFilterError, None, (400, "content_filter", "")),
    (
        ModelTimeoutError,
        None,
        (504, "upstream_timeout", "{model} did not answer in time"),
    ),
    (
        ModelError,
        lambda error: 300 <= (error.status or 0) < 400,
        (
            502,
            "upstream_redirect",
            "{model} redirects, which is not followed",
        ),
    ),
    (
        ModelUnavailableError,
        lambda error: error.status in {409, 424, 425, 498, 503, 529},
        (503, "upstream_overloaded", "{model} is overloaded"),
    ),
    (
        ModelUnavailableError,
        lambda error: error.status == 504,
        (504, "upstream_timeout", "{model} did not answer in time"),
    ),
    (
        ModelUnavailableError,
        lambda error: (error.status or 0) >= 500,
        (502, "upstream_error", "{model} failed"),
    ),
    (
        ModelUnavailableError,
        None,
        (502, "upstream_unavailable", "{model} is not available"),
    ),
    (
        BudgetExhaustedError,
        lambda error: error.limit == "deadline",
        (504, "deadline_exceeded", ""),
    ),
    (
        BudgetExhaustedError,
        None,
        (
            402,
            "budget_exhausted",
            "the budget of a request to this profile is used up before there is an answer",
        ),
    ),
    (
        ModelError,
        lambda error: error.status in {400, 413, 422},
        (None, "upstream_refused", "{model} refused the request"),
    ),
)
"""What a client is told of an error: the status, the code and the beginning of the message in the
first row with its class whose condition, if it has one, it meets. The status None is the status of
the model's reply.
"""
