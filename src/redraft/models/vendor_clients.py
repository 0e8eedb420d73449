"""What the packages of vendors bring along: HTTP clients, put under our policy, and keys, learned so that they can be masked.

The policy is the one of `wire`: redirects are not followed, and no proxy is used that was not configured.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import ConfigError
from ..masking import SECRET_NAME, Mask, secrets_in_environment, secrets_in_headers, secrets_in_url

LOGGERS = {
    *("httpx", "httpx2", "httpcore", "httpcore2", "openai", "anthropic", "google_genai", "groq", "mistralai", "cohere"),
    *("huggingface_hub", "botocore", "boto3", "urllib3", "pydantic_ai"),
}
MAX_DEPTH, MAX_OBJECTS = 6, 2000  # how far, and at how many objects, is looked below a model


def apply_http_policy(model: Any, proxy: str | None, *, created_here: bool) -> None:
    """Put the HTTP clients that were made for a model under the policy. A client that a user made (not `ours`) is left alone.

    Raises ConfigError where a package finds proxies by itself, there are some, and nobody configured one.
    """
    provider = getattr(model, "_provider", None)
    own = getattr(provider, "_own_http_client", None)
    clients = [c for c in _reachable_objects(model) if _http_client_class(c)] if created_here else [own] if own is not None else []
    for client in clients:
        _apply_client_policy(client, proxy)
    if own is not None and (make := getattr(provider, "_http_client_factory", None)):
        provider._http_client_factory = lambda: _with_http_policy(make(), proxy)  # type: ignore[union-attr]  # noqa: SLF001
    if created_here and not clients and proxy != "env":
        _check_environment_proxies(model, proxy)


def _with_http_policy(client: Any, proxy: str | None) -> Any:
    _apply_client_policy(client, proxy)
    return client


def _apply_client_policy(client: Any, proxy: str | None) -> None:
    """(What a client of httpx learned from the environment are its mounts, and no public way leads to them.)"""
    client.follow_redirects = False
    if proxy != "env":
        client._mounts = _http_client_class(client)(proxy=proxy, trust_env=False)._mounts if proxy else {}  # noqa: SLF001


def _check_environment_proxies(model: Any, proxy: str | None) -> None:
    from urllib.request import getproxies

    found = sorted(getproxies().keys() & {"http", "https", "all"})
    vendor = str(getattr(model, "system", "")) or type(model).__name__
    if proxy:
        raise ConfigError(f"{vendor}: its package takes a proxy from HTTP_PROXY and HTTPS_PROXY only: set REDRAFT_PROXY=env")
    if found and type(model).__module__.startswith("pydantic_ai.models.") and vendor not in {"test", "function"}:
        names = ", ".join(f"{name.upper()}_PROXY" for name in found)
        raise ConfigError(f"{vendor}: its package would use the proxy of {names}: allow it with REDRAFT_PROXY=env, or unset them")


def _http_client_class(value: Any) -> Any:
    """The class `AsyncClient` of httpx or httpx2 that a client is of; None for what is none."""
    kinds = type(value).__mro__
    return next((c for c in kinds if c.__name__ == "AsyncClient" and c.__module__.partition(".")[0] in {"httpx", "httpx2"}), None)


def secrets_of(model: Any) -> set[str]:
    """The keys that a model holds, and those in the environment, where vendors look for theirs."""
    found = set(secrets_in_environment(os.environ))
    for value in _reachable_objects(model):
        if _http_client_class(value):
            found |= set(secrets_in_headers(value.headers))
        for name, inner in _fields(value):
            if isinstance(inner, str):
                found |= set(_secrets_in(name, inner))
            elif type(inner).__name__ == "URL":
                found |= set(secrets_in_url(str(inner)))
            elif callable(reveal := getattr(inner, "get_secret_value", None)):
                found.add(str(reveal()))
    return found


class _MaskingFilter(logging.Filter):
    """Masks what vendors' packages log: their loggers show headers of responses at DEBUG."""

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


def mask_logs(secrets: set[str]) -> None:
    """Mask secrets in what the loggers of vendors' packages and of their HTTP clients record."""
    _MASKING_FILTER.add_secrets(secrets)
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in LOGGERS:
            logging.getLogger(name).addFilter(_MASKING_FILTER)


def _secrets_in(name: str, value: str) -> Iterator[str]:
    if "://" in value:
        yield from secrets_in_url(value)
    elif SECRET_NAME.search(name) and len(value) >= 8 and not value.isupper() and " " not in value:
        yield value


def _reachable_objects(model: Any) -> Iterator[Any]:
    """A model, its provider, the vendor's client, and what those hold."""
    level, seen = [model], {id(model)}
    for _ in range(MAX_DEPTH):
        inner = []
        for value in level:
            yield value
            for _, held in _fields(value):
                if id(held) not in seen and len(seen) < MAX_OBJECTS and not isinstance(held, str | bytes | int | float | type):
                    seen.add(id(held))
                    inner.append(held)
        level = inner


def _fields(value: Any) -> list[tuple[str, Any]]:
    held = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    return [(str(name), inner) for name, inner in list(held.items())[:200]]
