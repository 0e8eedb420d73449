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
)
from ..models.server_errors import ErrorBody, is_out_of_credit
from ..models.waits import stated_wait
from .exchange import SHORTAGE_RETRY_AFTER, GatewayError
from .outcome import without_hosts

KEPT_STATUSES = frozenset({400, 404, 413, 422})
MAX_PARAM = 200  # characters of the name of a field in a model's error
# of a model's error: it is logged and stored, too
_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
KNOWN_CODES = frozenset(
    {"context_length_exceeded", "content_filter", "content_policy_violation", "model_not_found"}
)
"""Models' own codes that metrics tell apart; a model may send any."""
_CODES = {
    400: "invalid_request",
    404: "not_found",
    413: "request_too_large",
    422: "unprocessable_request",
}

_CODES_OF_TEXTS = {"filter": "content_filter", "length": "context_length_exceeded"}


def error_from_reply(
    name: str, status: int, body: ErrorBody, headers: Mapping[str, str], mask: Mask = NO_SECRETS
) -> GatewayError:
    """Return the error for a reply of the model `name` that is no success. `mask` hides the
    gateway's key in its message.
    """
    text, wait = mask(body.text), stated_wait(status, headers, body.data)
    param = None if body.param is None else mask(body.param)[:MAX_PARAM]
    quoted = f": {text}" if text else ""
    fault = body.fault(status)
    if fault in _CODES_OF_TEXTS and status not in KEPT_STATUSES:
        return GatewayError(400, _CODES_OF_TEXTS[fault], text)
    if status in KEPT_STATUSES and fault not in {"key", "money"}:
        code, message = _code(status, body, mask), text or f"the model {name!r} refused the request"
        return GatewayError(
            status,
            code,
            message,
            param=param,
            label=code if code in KNOWN_CODES else _CODES[status],
            detail=body.detail,
        )
    if status in {401, 403} or fault == "key":
        message = (
            f"the model {name!r} refused the key of the gateway (status {status}); the operator "
            f"must correct it{quoted}"
        )
        return GatewayError(502, "upstream_authentication", message, should_retry=False)
    if body.is_used_up(status, wait):
        message = (
            f"the account of the gateway at the model {name!r} has no quota or credit left "
            f"(status {status}){quoted}"
        )
        return GatewayError(
            429 if status == 429 else 502, "upstream_quota", message, should_retry=False
        )
    if status == 429:
        return GatewayError(
            429,
            "upstream_rate_limit",
            f"the model {name!r} receives too many requests{quoted}",
            retry_after=wait,
        )
    if status in {408, 504}:
        return GatewayError(
            504,
            "upstream_timeout",
            f"the model {name!r} answered too late (status {status}){quoted}",
        )
    if status in {409, 424, 425, 498, 503, 529}:
        return GatewayError(
            503,
            "upstream_overloaded",
            f"the model {name!r} is not available{quoted}",
            retry_after=wait,
        )
    if 300 <= status < 400:
        return GatewayError(
            502,
            "upstream_redirect",
            f"the model {name!r} redirects (status {status}), which is not followed",
        )
    if status < 500:
        return GatewayError(
            400,
            "invalid_request",
            f"the model {name!r} refused the request (status {status}){quoted}",
            param=param,
        )
    return GatewayError(
        502,
        "upstream_error",
        f"the model {name!r} failed (status {status}){quoted}",
        retry_after=wait,
    )


def _code(status: int, body: ErrorBody, mask: Mask) -> str:
    codes = sorted(code for code in body.codes if _CODE.fullmatch(code))
    # a code says more than a type such as invalid_request_error
    own = [code for code in codes if not code.endswith("_error")]
    return mask(own[0]) if own else _CODES[status]


def error_from_failure(name: str, error: ModelError) -> GatewayError:
    """Return the error for a request to the model `name` that got no reply, or one that cannot be
    read.
    """
    if isinstance(error, ModelTimeoutError):
        return GatewayError(504, "upstream_timeout", f"the model {name!r}: {error}")
    if isinstance(error, ShortageError):
        return GatewayError(
            503, "overloaded", f"the gateway is busy: {error}", retry_after=SHORTAGE_RETRY_AFTER
        )
    code = "upstream_unavailable" if isinstance(error, ModelUnavailableError) else "upstream_error"
    return GatewayError(502, code, f"the model {name!r}: {error}")


def unreadable_reply(name: str, message: str) -> GatewayError:
    """Return the error for a reply of the model `name` with status 200 that is no answer."""
    return GatewayError(502, "upstream_error", f"the model {name!r} {message}")


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
    wait = getattr(cause, "retry_after", None)
    if isinstance(cause, ShortageError):
        wait = SHORTAGE_RETRY_AFTER
    status, code, text = _status_of(cause)
    may_retry = status in {429, 503} and not has_text
    return GatewayError(
        status,
        code,
        without_hosts(f"{text}: {error}" if text else str(error), hosts),
        retry_after=wait,
        should_retry=None if may_retry else False,
    )


def _status_of(error: BaseException) -> tuple[int, str, str]:
    """Return the status, the code and the beginning of the message for an error."""
    for kind, applies, answer in _ANSWERS:
        if isinstance(error, kind) and applies(error):
            return answer
    match error:
        case ModelError(status=(400 | 413 | 422) as status):
            return status, "upstream_refused", "the model behind the gateway refused the request"
    return 502, "upstream_error", ""


def _always(_error: object) -> bool:
    return True


_ANSWERS: tuple[tuple[type[Exception], Callable[[Any], bool], tuple[int, str, str]], ...] = (
    (ConfigError, _always, (400, "invalid_request", "")),
    (
        AuthenticationError,
        is_out_of_credit,
        (
            502,
            "upstream_quota",
            "the account of the gateway at its model has no quota or credit left",
        ),
    ),
    (
        AuthenticationError,
        _always,
        (
            502,
            "upstream_authentication",
            "the model behind the gateway refused the gateway's own key",
        ),
    ),
    (ShortageError, _always, (503, "overloaded", "the gateway is busy")),
    (
        RateLimitError,
        _always,
        (429, "upstream_rate_limit", "the model behind the gateway receives too many requests"),
    ),
    (ContextLengthError, _always, (400, "context_length_exceeded", "")),
    (ContentFilterError, _always, (400, "content_filter", "")),
    (
        ModelTimeoutError,
        _always,
        (504, "upstream_timeout", "the model behind the gateway did not answer in time"),
    ),
    (
        ModelError,
        lambda error: 300 <= (error.status or 0) < 400,
        (
            502,
            "upstream_redirect",
            "the model behind the gateway redirects, which is not followed",
        ),
    ),
    (
        ModelUnavailableError,
        lambda error: error.status in {503, 529},
        (503, "upstream_overloaded", "the model behind the gateway is overloaded"),
    ),
    (
        ModelUnavailableError,
        lambda error: (error.status or 0) >= 500,
        (502, "upstream_error", "the model behind the gateway failed"),
    ),
    (
        ModelUnavailableError,
        _always,
        (502, "upstream_unavailable", "the model behind the gateway is not available"),
    ),
    (
        BudgetExhaustedError,
        lambda error: error.limit == "deadline",
        (504, "deadline_exceeded", ""),
    ),
    (
        BudgetExhaustedError,
        _always,
        (
            402,
            "budget_exhausted",
            "the budget of a request to this profile is used up before there is an answer",
        ),
    ),
)
"""What a client gets for an error: the first row with its class whose condition it meets."""
