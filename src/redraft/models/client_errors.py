"""What the errors of other packages' clients mean.

Their packages raise exceptions of their own: `model_error` makes a ModelError of one, by the status
and the headers of the response that it holds. No package is imported for that: exceptions are
recognised by the names of their classes.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from typing import Any

from ..base.descriptors import is_shortage
from ..base.error_text import error_text
from ..base.masking import Mask
from ..errors import (
    ConfigError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    ShortageError,
)
from ..usage import current_entry
from .endpoint_url import redirect_error
from .http_client import UNKNOWN_USAGE, malformed_response
from .openai_responses import ErrorBody, error_from_status, parse_error_body, shorten
from .tls_errors import tls_error_text

CONNECT_ERRORS = frozenset(
    {"ConnectError", "ConnectTimeout", "PoolTimeout", "ConnectionRefusedError", "gaierror"}
)
CONNECTION_ERRORS = frozenset(
    {
        "APIConnectionError",
        "ConnectionError",
        "EndpointConnectionError",
        "NetworkError",
        "ProtocolError",
    }
)
HTTP_PACKAGES = frozenset(
    {"httpx", "httpx2", "httpcore", "httpcore2", "aiohttp", "requests", "urllib3", "botocore"}
)


def model_error(error: Exception, mask: Mask) -> ModelError:
    """Return the ModelError that an exception of a client's package means; its message is
    masked.
    """
    if isinstance(error, ModelError | ConfigError):
        return error  # type: ignore[return-value]
    causes = list(_causes(error))
    for cause in causes:
        if (status := _status(cause)) is not None:
            return _status_error(cause, status, mask)
    message = shorten(mask(error_text(error)))
    kinds = {kind.__name__ for cause in causes for kind in type(cause).__mro__}
    connected = not kinds & CONNECT_ERRORS
    if not connected:
        current_entry().start_counting()  # nothing was sent
    if any(map(is_shortage, causes)):
        return ShortageError(f"no room for another connection: {message}")
    if insecure := next((cause for cause in causes if isinstance(cause, ssl.SSLError)), None):
        advice = shorten(mask(tls_error_text(insecure)))
        return ModelUnavailableError(f"no secure (TLS) connection: {advice}")
    usage = UNKNOWN_USAGE if connected else None
    if any("Timeout" in kind for kind in kinds):
        return ModelTimeoutError(f"no answer in time: {message}", usage=usage)
    if kinds & (CONNECTION_ERRORS | CONNECT_ERRORS):
        return ModelUnavailableError(f"cannot be reached: {message}", retryable=True, usage=usage)
    if type(error).__module__.partition(".")[0] in HTTP_PACKAGES:
        return malformed_response(message)
    return ModelError(message, usage=UNKNOWN_USAGE)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that led to it, ten at most. httpcore has one as its argument,
    and not as its cause.
    """
    cause: BaseException | None = error
    for _ in range(10):
        if cause is None:
            return
        yield cause
        argument = next((value for value in cause.args if isinstance(value, Exception)), None)
        cause = (
            cause.__cause__
            or (None if cause.__suppress_context__ else cause.__context__)
            or argument
        )


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that an exception holds; None if it holds none."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        found = response.get("ResponseMetadata", {})
        return found.get("HTTPStatusCode") if isinstance(found, Mapping) else None
    for value in (
        getattr(error, "status_code", None),
        getattr(response, "status_code", None),
        getattr(error, "code", None),
    ):
        if isinstance(value, int) and not isinstance(value, bool) and 300 <= value < 600:
            return value
    return None


def _status_error(error: BaseException, status: int, mask: Mask) -> ModelError:
    response = getattr(error, "response", None)
    headers = getattr(response, "headers", None)
    headers = (
        {str(name).lower(): mask(str(value)) for name, value in headers.items()}
        if isinstance(headers, Mapping)
        else {}
    )
    if status < 400:
        return redirect_error(status, headers.get("location", ""))
    return error_from_status(status, _error_body(error, response, mask), headers)


def _error_body(error: BaseException, response: Any, mask: Mask) -> ErrorBody:
    try:
        content = getattr(response, "content", None)
    except Exception:  # noqa: BLE001  (the body of a response that was not read)
        content = None
    if isinstance(content, bytes) and content:
        return parse_error_body(mask.mask_bytes(content))
    body = getattr(error, "body", None)
    return ErrorBody(mask.mask_json(body if body is not None else str(error)))
