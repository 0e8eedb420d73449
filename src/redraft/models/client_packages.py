"""Clients and models of other packages that a user has already: the keys that they hold, and what
their errors mean.

They are recognised by the names of their classes and modules, so that no package is imported that
was not handed in.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

from ..base.descriptors import is_shortage
from ..base.error_text import error_text
from ..base.jsontext import object_in
from ..base.masking import (
    SECRET_NAME,
    Mask,
    answer_mask,
    secrets_in_environment,
    secrets_in_headers,
    secrets_in_url,
)
from ..base.text import shorten
from ..errors import (
    ConfigError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    ShortageError,
)
from ..protocols import Model
from ..usage import current_entry
from .endpoint_url import redirect_error
from .http_client import UNKNOWN_USAGE, malformed_response
from .http_requests import tls_error_text
from .server_errors import ErrorBody, error_from_status, parse_error_body

LOGGERS = frozenset(
    (
        *("httpx", "httpx2", "httpcore", "httpcore2", "urllib3", "botocore", "boto3"),
        *("openai", "anthropic", "google_genai", "groq", "mistralai", "cohere"),
        *("huggingface_hub", "pydantic_ai"),
    )
)
"""The names of vendors' packages and of their HTTP clients."""

MAX_DEPTH, MAX_OBJECTS = 6, 2000  # limits of the search for clients and keys below a model


def is_model(model: object) -> bool:
    """Whether `connect` takes an object: it may raise ConfigError for one of these, but not for
    another.
    """
    return (
        isinstance(model, str | Model)
        or callable(model)
        or is_client_with_name(model)
        or is_client_object(model)
    )


def is_client_with_name(model: object) -> bool:
    """Whether a model is given as a pair of a client and the name of one of its models."""
    return isinstance(model, tuple) and len(model) == 2 and is_openai_client(model[0])


def is_client_object(value: object) -> bool:
    """Whether an object is a client or a model of another package that `connect` takes."""
    return is_openai_client(value) or is_pydantic_ai_model(value) or is_langchain_object(value)


def is_pydantic_ai_model(value: object) -> bool:
    """Whether an object is a model of pydantic-ai."""
    return derives_from(value, "pydantic_ai.models", "Model")


def is_langchain_object(value: object) -> bool:
    """Whether an object is a chat model of LangChain, or another object that LangChain can call."""
    return derives_from(value, "langchain_core.", "Runnable")


def is_openai_client(client: object) -> bool:
    """Whether an object is a client of the openai package, such as `OpenAI()` or
    `AsyncAzureOpenAI()`.
    """
    return derives_from(client, "openai", "OpenAI") or derives_from(client, "openai", "AsyncOpenAI")


def derives_from(value: object, module: str, name: str) -> bool:
    return any(
        kind.__name__ == name and kind.__module__.startswith(module) for kind in type(value).__mro__
    )


# ---- keys


def masks_of(client: Any, *more_secrets: str) -> tuple[Mask, Mask]:
    """Return what masks the secrets of a client, in errors and in replies. The logs of vendors'
    packages and of their HTTP clients are masked as well.
    """
    secrets = {*secrets_of(client), *more_secrets}
    _MASKING_FILTER.add_secrets(secrets)
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in LOGGERS:
            logging.getLogger(name).addFilter(_MASKING_FILTER)
    return Mask(secrets), answer_mask(secrets)


def secrets_of(model: Any) -> set[str]:
    """Return the keys that a model holds, and those in the environment, where vendors' packages
    look for theirs.
    """
    secrets = set(secrets_in_environment(os.environ))
    for value in reachable_objects(model):
        if http_client_class(value):
            secrets |= set(secrets_in_headers(value.headers))
        for name, inner in _fields(value):
            if isinstance(inner, str):
                secrets |= set(_secrets_in(name, inner))
            elif type(inner).__name__ == "URL":
                secrets |= set(secrets_in_url(str(inner)))
            elif callable(reveal := getattr(inner, "get_secret_value", None)):
                secrets.add(str(reveal()))
    return secrets


def _secrets_in(name: str, value: str) -> Iterator[str]:
    if "://" in value:
        yield from secrets_in_url(value)
    elif SECRET_NAME.search(name) and len(value) >= 8 and not value.isupper() and " " not in value:
        yield value


def reachable_objects(model: Any) -> Iterator[Any]:
    """Yield a model, its provider, the vendor's client, and the objects in their attributes."""
    level, seen = [model], {id(model)}
    for _ in range(MAX_DEPTH):
        inner = []
        for value in level:
            yield value
            for _, child in _fields(value):
                if (
                    id(child) not in seen
                    and len(seen) < MAX_OBJECTS
                    and not isinstance(child, str | bytes | int | float | type)
                ):
                    seen.add(id(child))
                    inner.append(child)
        level = inner


def _fields(value: Any) -> list[tuple[str, Any]]:
    fields = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    return [(str(name), inner) for name, inner in list(fields.items())[:200]]


def http_client_class(value: Any) -> Any:
    """Return the class `AsyncClient` of httpx or httpx2 that a value is an instance of; None if it
    is none.
    """
    kinds = type(value).__mro__
    return next(
        (
            c
            for c in kinds
            if c.__name__ == "AsyncClient" and c.__module__.partition(".")[0] in {"httpx", "httpx2"}
        ),
        None,
    )


class _MaskingFilter(logging.Filter):
    """Masks secrets in log records of vendors' packages, which log response headers at DEBUG."""

    def __init__(self) -> None:
        super().__init__()
        self._secrets: set[str] = set()
        self._mask = Mask(())

    def add_secrets(self, secrets: set[str]) -> None:
        if not secrets <= self._secrets:
            self._secrets |= secrets
            self._mask = Mask(self._secrets)

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if (masked := self._mask(message)) is not message:
            record.msg, record.args = masked, None
        return True


_MASKING_FILTER = _MaskingFilter()


# ---- errors

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
    if failure := _network_error(causes, message, mask):
        return failure
    if type(error).__module__.partition(".")[0] in HTTP_PACKAGES:
        return malformed_response(message)
    return ModelError(message, usage=UNKNOWN_USAGE)


def _network_error(causes: list[BaseException], message: str, mask: Mask) -> ModelError | None:
    """Return the error for a connection that failed, or was not made; None for another fault."""
    kinds = {kind.__name__ for cause in causes for kind in type(cause).__mro__}
    is_connected = not kinds & CONNECT_ERRORS
    if not is_connected:
        current_entry().start_counting()  # nothing was sent
    if any(map(is_shortage, causes)):
        return ShortageError(f"no room for another connection: {message}")
    if insecure := next((cause for cause in causes if isinstance(cause, ssl.SSLError)), None):
        advice = shorten(mask(tls_error_text(insecure)))
        return ModelUnavailableError(f"no secure (TLS) connection: {advice}")
    usage = UNKNOWN_USAGE if is_connected else None
    if any("Timeout" in kind for kind in kinds):
        return ModelTimeoutError(f"no answer in time: {message}", usage=usage)
    if kinds & (CONNECTION_ERRORS | CONNECT_ERRORS):
        return ModelUnavailableError(f"cannot be reached: {message}", retryable=True, usage=usage)
    return None


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
        return object_in(response, "ResponseMetadata").get("HTTPStatusCode")
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
    headers = getattr(error if response is None else response, "headers", None)
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
