"""Secrets in texts, masked: the one mechanism for everything that comes from an endpoint or from code that talks to one.

A server may echo a key whole, in another encoding, in capitals, or cut to any length; so may a log line of a vendor's
library. A `Mask` knows the secrets of one endpoint and replaces each of them, and each longer fragment of them, by `***`.
It is no defence against a server that disguises a key on purpose: it knows the key already.
"""

from __future__ import annotations

import re
from array import array
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from json import dumps
from sys import byteorder
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

STARS = "***"
FRAGMENT = 8
"""The shortest fragment of a secret that is masked: eight characters of a random key are in no text by chance, and seven
are no more than vendors show of a key themselves."""
WORDS = 12
"""The same for a secret without a digit, which may be made of words."""
SHORTEST = 4
"""A shorter secret cannot be masked: it would be found everywhere."""
PLACEHOLDERS = frozenset({"empty", "none", "not-needed", "no-key-required", "sk-no-key-required", "api-key-not-set"})
"""Keys that keep nothing secret: clients that insist on one are given them."""

SECRET_NAME = re.compile(
    r"key|token|auth|secret|cookie|passw|pwd|credential|session|signature|^(code|sig|sas|pass|jwt|pin|otp)$", re.IGNORECASE
)
"""The names of headers, parameters and fields that hold a secret."""
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w+/=.~%-]{16,}", re.ASCII)
_ENVIRONMENT = re.compile(r"(API_?KEY|ACCESS_KEY|SECRET|TOKEN|PASSWORD|CREDENTIALS?)(_ID)?$")
_PUBLIC = re.compile(r"(?:(?:sk|pk|rk|gsk|hf|xai|key|api)[-_])?(?:(?:proj|ant|svcacct|admin|or|live|test|(?:api|v)\d{1,2})[-_])*")
_BLOCK = 4
"""Bytes of the blocks that a text is searched by at first: a fragment of 8 characters holds one that begins at a multiple of 4."""

T = TypeVar("T")
S = TypeVar("S", str, bytes)


class Mask:
    """Masks some secrets. `shortest`: secrets with fewer characters are left alone."""

    def __init__(self, secrets: Iterable[str | None], shortest: int = SHORTEST) -> None:
        self._whole: list[bytes] = []
        self._fragments: dict[int, set[bytes]] = {}
        self.longest = 0
        for secret in {s for s in secrets if s and s.lower() not in PLACEHOLDERS and len(s) >= max(shortest, SHORTEST)}:
            self._learn(secret)
        grams = (gram for fragments in self._fragments.values() for gram in fragments)
        self._beginnings = {size: {f[:n] for f in found for n in range(1, size)} for size, found in self._fragments.items()}
        self._beginnings.setdefault(0, set()).update(w[:n] for w in self._whole for n in range(1, len(w)))
        self._blocks = {int.from_bytes(g[i : i + _BLOCK], byteorder) for g in grams for i in range(len(g) - _BLOCK + 1)}

    def _learn(self, secret: str) -> None:
        """Keep a secret and its encodings; what is public of it (`sk-proj-`) is no fragment."""
        least = FRAGMENT if any(c.isdigit() for c in secret) else WORDS
        public = _PUBLIC.match(secret)
        prefix = public.group().lower().encode() if public else b""
        for form in _forms(secret):
            self.longest = max(self.longest, len(form))
            if len(form) < least:
                self._whole.append(form)
                continue
            known = len(prefix) if form.startswith(prefix) else 0
            fragments = (form[i : i + least] for i in range(len(form) - least + 1) if i + least > known)
            self._fragments.setdefault(least, set()).update(fragments)

    def __bool__(self) -> bool:
        return bool(self._whole or self._fragments)

    def __repr__(self) -> str:
        return "Mask(...)"

    def __call__(self, text: str) -> str:
        """The text with stars in place of secrets and of fragments of them."""
        spans = self._spans(_bytes(text)) if self else []
        return _starred(text, STARS, spans) if spans else text

    def raw(self, data: bytes) -> bytes:
        """The same for bytes."""
        spans = self._spans(data.lower()) if self else []
        return _starred(data, STARS.encode(), spans) if spans else data

    def within(self, value: T) -> T:
        """The same for all texts in a value of JSON, names included."""
        masked: Any = value
        if isinstance(value, str):
            masked = self(value)
        elif isinstance(value, bytes):
            masked = self.raw(value)
        elif isinstance(value, Mapping):
            masked = {self.within(name): self.within(inner) for name, inner in value.items()}
        elif isinstance(value, list | tuple):
            masked = [self.within(inner) for inner in value]
        return masked  # type: ignore[no-any-return]

    def _spans(self, data: bytes) -> list[tuple[int, int]]:
        """Where secrets stand in a text of small letters, sorted."""
        return sorted([*self._whole_in(data), *self._fragments_in(data)])

    def _whole_in(self, data: bytes) -> Iterator[tuple[int, int]]:
        for secret in self._whole:
            at = data.find(secret)
            while at >= 0:
                yield at, at + len(secret)
                at = data.find(secret, at + 1)

    def _fragments_in(self, data: bytes) -> Iterator[tuple[int, int]]:
        whole = array("I", data[: len(data) // _BLOCK * _BLOCK])
        if self._blocks.isdisjoint(whole):
            return
        for near in (_BLOCK * n for n, block in enumerate(whole) if block in self._blocks):
            for size, fragments in self._fragments.items():
                for start in range(max(0, near + _BLOCK - size), near + 1):
                    if data[start : start + size] in fragments:
                        yield start, start + size

    def pending(self, data: bytes) -> int:
        """How many characters at the end of a text may belong to a secret that goes on in the next part of it."""
        tail = data[-self.longest :].lower()
        return max((self._pending(tail, size) for size in self._beginnings), default=0)

    def _pending(self, tail: bytes, size: int) -> int:
        """The same for fragments of one size: the end is a run of them, or the beginning of one."""
        fragments, end = self._fragments.get(size, set()), len(tail)
        if tail[-size:] in fragments:
            start = end - size
            while start > 0 and tail[start - 1 : start - 1 + size] in fragments:
                start -= 1
            return end - start
        return next((n for n in range(min((size or self.longest) - 1, end), 0, -1) if tail[-n:] in self._beginnings[size]), 0)


NO_SECRETS = Mask(())


class MaskedStream:
    """A text that comes in parts, masked: what may be the beginning of a secret is held back until it is known."""

    def __init__(self, mask: Mask) -> None:
        self._mask, self._held = mask, ""

    def add(self, text: str) -> str:
        """What may be handed on now."""
        if not self._mask:
            return text
        held = self._held + text
        ready = len(held) - self._mask.pending(_bytes(held[-self._mask.longest :]))
        self._held = held[ready:]
        return self._mask(held[:ready])

    def rest(self) -> str:
        """What was held back, once nothing follows."""
        held, self._held = self._held, ""
        return self._mask(held)


def answer_mask(secrets: Iterable[str | None]) -> Mask:
    """A mask for what an endpoint answers. A short key, or one that may be a word, is masked in errors only: an answer
    that holds such a word is not to be changed.
    """
    given = [s for s in secrets if s]
    return Mask(s for s in given if len(s) >= (FRAGMENT if any(c.isdigit() for c in s) else WORDS))


def without_traces(error: T) -> T:
    """The exception without what it was raised from: the exceptions of HTTP clients hold requests, and those hold keys."""
    if isinstance(error, BaseException):
        error.__cause__ = error.__context__ = None
    return error


def secrets_in_url(url: str) -> Iterator[str]:
    """What must not be shown of a URL beside hiding its user info and query: passwords, and the values that look like keys."""
    try:
        parts = urlsplit(url.strip())
        raw = [parts.password or parts.username or ""]
    except ValueError:
        return
    raw += [value for name, value in parse_qsl(parts.query) if is_secret(name, value)]
    for value in filter(None, raw):
        yield from {value, unquote(value)}


def is_secret(name: str, value: str) -> bool:
    """Whether a parameter of a URL is a secret, by its name or by its looks."""
    return bool(SECRET_NAME.search(name) or _RANDOM.fullmatch(value))


def secrets_in_headers(headers: Mapping[str, str]) -> Iterator[str]:
    """The values of headers whose name says that they are secret, without the scheme before them."""
    for name, value in headers.items():
        if SECRET_NAME.search(name):
            yield str(value).rpartition(" ")[2]


def secrets_in_environment(environment: Mapping[str, str]) -> Iterator[str]:
    """The values of the variables whose name says that they are secret, as vendors name theirs."""
    for name, value in environment.items():
        if _ENVIRONMENT.search(name.upper()):
            yield value.strip()
        elif "://" in value and name.upper().endswith(("_URL", "_ENDPOINT", "_HOST", "_PROXY")):
            yield from secrets_in_url(value)


def _forms(secret: str) -> set[bytes]:
    """A secret as it may stand in a text, in small letters: itself, escaped for JSON, URLs and HTML, and in base64."""
    escaped = dumps(secret)[1:-1]
    forms = {secret, escaped, escaped.replace("/", "\\/"), repr(secret)[1:-1], quote(secret, safe=""), quote_plus(secret)}
    forms |= {escape(secret), _as_go_escapes(escaped)}
    for before in range(3 if len(secret) >= FRAGMENT else 0):  # (its place in the text that was encoded)
        encoded = b64encode(b" " * before + secret.encode()).decode().rstrip("=")
        inner = encoded[(0, 2, 3)[before] : -1]  # (the last one depends on what follows)
        forms |= {inner, inner.replace("+", "-").replace("/", "_")}
    return {form.lower().encode() for form in forms if form.isascii()}


def _as_go_escapes(text: str) -> str:
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _bytes(text: str) -> bytes:
    """The text in small letters, a byte for each character: what is no ASCII is in no secret."""
    return text.encode("ascii", "replace").lower()


def _starred(text: S, stars: S, spans: Iterable[tuple[int, int]]) -> S:
    parts: list[S] = []
    end = 0
    for start, stop in spans:
        if start > end or not parts:
            parts += [text[end:start], stars]
        end = max(end, stop)
    parts.append(text[end:])
    return type(text)().join(parts)
