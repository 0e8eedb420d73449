"""Classify the errors of an endpoint: is it down, busy, misconfigured, or did it refuse this one request?"""

from __future__ import annotations

from ..errors import AuthenticationError, ModelError, ModelTimeoutError, ModelUnavailableError, RateLimitError
from ..protocols import Format, Request
from .messages import has_images
from .refusals import refused_part

BUSY_STATUSES = frozenset({429, 503, 529})


def is_outage(error: ModelError) -> bool:
    """Whether an error may mean that the endpoint is down: no connection, a timeout, 5xx."""
    if isinstance(error, ModelTimeoutError):
        return True
    return (
        isinstance(error, ModelUnavailableError)
        and (error.retryable or (error.status or 0) >= 500)
        and not is_server_response(error)
    )


def is_server_response(error: ModelError) -> bool:
    """Whether the server itself answered with an error, so that it is up."""
    return error.status is not None and 400 <= error.status < 500 and error.status != 408


def is_busy(error: ModelError) -> bool:
    """Whether an error says that there are too many calls at once."""
    return isinstance(error, RateLimitError | ModelTimeoutError) or error.status in BUSY_STATUSES


def is_fatal(error: ModelError) -> bool:
    """Whether an error would meet every call: a wrong key, model name or address, no quota, broken TLS."""
    if isinstance(error, AuthenticationError):
        return True
    return isinstance(error, ModelUnavailableError) and not error.retryable and (error.status or 0) < 500


def may_be_refusal(error: ModelError) -> bool:
    """Whether an apparently fatal error may concern this request only: filters and routers answer 403 and 404."""
    return error.status in {403, 404} and is_fatal(error)


def is_call_fault(error: ModelError, request: Request, formats: set[Format]) -> bool:
    """Whether an error is, or may be, caused by what this request asks for. (See `adapt`.)"""
    if refused_part(error, request):
        return True
    if error.status in {500, 501} and request.format != "text" and request.format not in formats:
        return True
    return error.status in {404, 500, 501} and has_images(request.messages)
