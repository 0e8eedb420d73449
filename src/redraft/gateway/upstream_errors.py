"""Errors of the models behind the gateway, as the gateway's own errors.

A client must be able to tell its own mistakes from those of others: the refusal of the gateway's
key by a model is no refusal of the client's key, so its 401 becomes a 502. What the model says
about the request itself keeps its status and its message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..base.masking import NO_SECRETS, Mask
from ..errors import (
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    ShortageError,
)
from ..models.server_errors import ErrorBody
from ..models.waits import stated_wait
from .exchange import SHORTAGE_RETRY_AFTER, GatewayError

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
