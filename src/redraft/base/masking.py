"""Mask secrets in texts that come from an endpoint, or from code that calls one.

A server may echo a key whole, in another encoding, in capitals, or cut to any length; so may a log
line of a vendor's library. A `Mask` knows the secrets of one endpoint and replaces each of them,
and each fragment above a minimum length, by `***`. It does not protect against a server that
disguises a key on purpose, which knows the key already.
"""

from __future__ import annotations

import re
from array import array
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from json import dumps, loads
from sys import byteorder, maxsize
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

MASK = "***"
MIN_FRAGMENT = 8
"""The shortest fragment of a secret that is masked: eight characters of a random key do not occur
in a text by chance, and vendors themselves show up to seven.
"""
MIN_WORD_FRAGMENT = 12
"""The same for a secret without a digit, which may consist of words, and in answers for fragments
that may be a word.
"""
MIN_SECRET = 4
"""A shorter secret is not masked: it would match almost any text."""
PLACEHOLDERS = frozenset(
    {"empty", "none", "not-needed", "no-key-required", "sk-no-key-required", "api-key-not-set"}
)
"""Values that are no secrets: they are passed to clients that require a key."""

SECRET_NAME = re.compile(
    r"key|token|auth|secret|cookie|passw|pwd|credential|session|signature|^(code|sig|sas|pass|jwt|pin|otp)$",
    re.IGNORECASE,
)
"""The names of headers, parameters and fields that hold a secret."""
_RANDOM_KEY = re.compile(
    r"(?=.{16})([\w+/=~%]*[.-])*((?=[^.-]*\d)(?=[^.-]*[a-z])[\w+/=~%]{12}|[0-9a-f]{8}-[0-9a-f]{4}-)[\w+/=.~%-]*",
    re.ASCII | re.IGNORECASE,
)
"""Matches what looks like a random key; not a date, nor a name of words and numbers such as a
model's.
"""
_ENVIRONMENT = re.compile(
    r"(API_?KEY|_KEY|SECRET|TOKEN|PASSW(OR)?D|PASSPHRASE|CREDENTIALS?)(_ID)?$|BEARER_TOKEN"
)
_KEY_NAME = re.compile(
    r"api[_-]?key|access[_-]?key|passw|secret|authorization|credential", re.IGNORECASE
)
_LISTED_NAME = re.compile(r"(?:^|(?<=\s))([^\s=:]+)\s*[=:](?!=|\s*$)")
_SCHEMES = frozenset(
    {"bearer", "basic", "token", "digest", "negotiate", "apikey", "api-key", "key"}
)
_URL = re.compile(r"[a-z][a-z0-9+.-]{0,30}://[^\s,'\"<>]+", re.IGNORECASE)
_PASSWORD_IN_ADDRESS = re.compile(r":([^\s/:@]+)@[\w.\[]")
_PATH = re.compile(r"([/~]|[A-Za-z]:\\).*\.[A-Za-z]{2,5}")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_PUBLIC_PREFIX = re.compile(
    r"(?:(?:sk|pk|rk|gsk|hf|xai|key|api)[-_])?(?:(?:proj|ant|svcacct|admin|or|live|test|(?:api|v)\d{1,2})[-_])*"
)
_BLOCK_SIZE = 4
"""Bytes of the blocks of the first search: every fragment of 8 characters holds a block that begins
at a multiple of 4.
"""

T = TypeVar("T")
S = TypeVar("S", str, bytes)


class Mask:
    """Masks secrets. With `keep_words`, a fragment that is a word is masked only as a part of a
    longer fragment.
    """

    def __init__(self, secrets: Iterable[str | None], *, keep_words: bool = False) -> None:
        self._keep_words = keep_words
        self._whole_secrets: list[bytes] = []
        self._fragments: dict[int, set[bytes]] = defaultdict(set)
        self.max_length = 0
        for secret in {
            s for s in secrets if s and s.lower() not in PLACEHOLDERS and len(s) >= MIN_SECRET
        }:
            self._add_secret(secret)
        fragments = frozenset().union(*self._fragments.values())
        self._blocks = {
            int.from_bytes(fragment[i : i + _BLOCK_SIZE], byteorder)
            for fragment in fragments
            for i in range(len(fragment) - _BLOCK_SIZE + 1)
        }
        self._prefixes = {
            part[:n] for part in (*fragments, *self._whole_secrets) for n in range(1, len(part))
        }

    def _add_secret(self, secret: str) -> None:
        """Add a secret and its encodings; a public prefix such as `sk-proj-` is not masked."""
        least = _min_fragment(secret)
        public = _PUBLIC_PREFIX.match(secret)
        prefix = public.group().lower().encode() if public else b""
        words = self._words_in(secret, least)
        sizes = {least, MIN_WORD_FRAGMENT} if words else {least}
        for form in _encodings(secret):
            self.max_length = max(self.max_length, len(form))
            if len(form) < max(sizes):
                self._whole_secrets.append(form)
            known = len(prefix) if form.startswith(prefix) else 0
            for size in sizes:
                starts = range(max(0, known - size + 1), len(form) - size + 1)
                self._fragments[size] |= {form[i : i + size] for i in starts} - words

    def _words_in(self, secret: str, least: int) -> set[bytes]:
        """Return the shortest fragments that may be words, and are not masked by themselves."""
        if not self._keep_words or least >= MIN_WORD_FRAGMENT:
            return set()
        pieces = (secret[i : i + least] for i in range(len(secret) - least + 1))
        return {piece.lower().encode() for piece in pieces if _WORD.fullmatch(piece)}

    def __bool__(self) -> bool:
        return bool(self._whole_secrets or self._fragments)

    def __repr__(self) -> str:
        return "Mask(...)"

    def __call__(self, text: str) -> str:
        """Return the text with `***` in place of secrets and their fragments."""
        spans = self._spans(_ascii_lower(text)) if self else []
        return _mask_spans(text, MASK, spans)

    def mask_bytes(self, data: bytes) -> bytes:
        """Do the same for bytes. JSON stays valid: only its strings and keys are masked."""
        spans = self._spans(data.lower()) if self else []
        if not spans:
            return data
        try:
            return dumps(self.mask_json(loads(data.decode()))).encode()
        except (ValueError, RecursionError):
            return _mask_spans(data, MASK.encode(), spans)

    def mask_json(self, value: T) -> T:
        """Do the same for all strings in a JSON value, keys included."""
        masked: Any = value
        if type(value) is int:
            masked = MASK if self(str(value)) == MASK else value
        elif isinstance(value, str):
            masked = self(value)
        elif isinstance(value, bytes):
            masked = self.mask_bytes(value)
        elif isinstance(value, Mapping):
            masked = {self.mask_json(name): self.mask_json(inner) for name, inner in value.items()}
        elif isinstance(value, list | tuple):
            masked = [self.mask_json(inner) for inner in value]
        return masked  # type: ignore[no-any-return]

    def _spans(self, data: bytes) -> list[tuple[int, int]]:
        """Return the spans of secrets in a lower-case text, sorted."""
        return sorted(
            span for span in (*self._whole_spans(data), *self._fragment_spans(data)) if span[1]
        )

    def _whole_spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        for secret in self._whole_secrets:
            at = data.find(secret)
            while at >= 0:
                yield at, at + len(secret)
                at = data.find(secret, at + 1)

    def _fragment_spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        whole = array("I", data[: len(data) // _BLOCK_SIZE * _BLOCK_SIZE])
        if self._blocks.isdisjoint(whole):
            return
        positions = [_BLOCK_SIZE * n for n, block in enumerate(whole) if block in self._blocks]
        for size, fragments in self._fragments.items():
            first = last = 0
            for position in positions:
                for start in range(max(0, position + _BLOCK_SIZE - size), position + 1):
                    if data[start : start + size] in fragments:
                        if start > last:
                            yield first, last
                            first = start
                        last = max(last, start + size)
            yield first, last

    def final_length(self, text: str) -> int:
        """Return how many characters of a text that goes on are masked in the same way, whatever
        follows: the others may belong to a secret that is not complete.
        """
        data = _ascii_lower(text)
        possible_starts = range(max(0, len(data) - self.max_length), len(data))
        length = next((n for n in possible_starts if data[n:] in self._prefixes), len(data))
        for start, end in reversed(self._spans(data)):
            if end >= length:
                length = min(length, start)
        return length


NO_SECRETS = Mask(())


class MaskedStream:
    """Masks a text that arrives in parts. The possible beginning of a secret is kept back until the
    next part arrives.
    """

    def __init__(self, mask: Mask) -> None:
        self._mask, self._buffer = mask, ""

    def feed(self, text: str) -> str:
        """Add a part and return the masked text that is ready."""
        if not self._mask:
            return text
        text = self._buffer + text
        ready = self._mask.final_length(text)
        self._buffer = text[ready:]
        return self._mask(text[:ready])

    def flush(self) -> str:
        """Return the rest, at the end of the text."""
        rest, self._buffer = self._buffer, ""
        return self._mask(rest)


def answer_mask(secrets: Iterable[str | None]) -> Mask:
    """Return a mask for the answers of an endpoint.

    Short keys, and keys that may be words, are masked in errors only: in an answer they may be
    ordinary text.
    """
    given = [s for s in secrets if s]
    return Mask(
        (secret for secret in given if len(secret) >= _min_fragment(secret)), keep_words=True
    )


def without_cause(error: T) -> T:
    """Return an exception without its cause and context: in HTTP clients these hold requests,
    and requests hold keys.
    """
    if isinstance(error, BaseException):
        error.__cause__ = error.__context__ = None
    return error


def secrets_in_url(url: str) -> Iterator[str]:
    """Yield the secrets in a URL: its password or user name, and parameters that are secret (see
    `is_secret`).
    """
    try:
        parts = urlsplit(url.strip())
        raw = [parts.password or parts.username or ""]
    except ValueError:
        return
    raw += [value for name, value in parse_qsl(parts.query) if is_secret(name, value)]
    for value in filter(None, raw):
        yield from {value, unquote(value)}


def is_secret(name: str, value: str) -> bool:
    """Whether a parameter of a URL is secret: by its name, or because it looks like a random
    key.
    """
    return bool(SECRET_NAME.search(name) or _RANDOM_KEY.fullmatch(value))


def secrets_in_headers(headers: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of headers with secret names, without their scheme such as "Bearer"."""
    for name, value in headers.items():
        if SECRET_NAME.search(name):
            yield str(value).rpartition(" ")[2]


def secrets_in_fields(value: Any) -> Iterator[str]:
    """Yield the strings in a JSON value whose keys name secrets, such as the extra parameters of a
    request.
    """
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(inner, str):
                yield from secrets_in_fields(inner)
                continue
            secret = inner.rpartition(" ")[2] if "auth" in name.lower() else inner
            is_random = SECRET_NAME.search(name) and _RANDOM_KEY.fullmatch(secret)
            if is_random or _KEY_NAME.search(name):
                yield secret
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from secrets_in_fields(inner)


def without_secret_fields(value: T) -> T:
    """Return a JSON value with the secrets of `secrets_in_fields` masked."""
    mask = Mask(secrets_in_fields(value))
    return mask.mask_json(value) if mask else value


def secrets_in_proxy(proxy: str | None) -> Iterator[str]:
    """Yield the secrets in the URL of a proxy; for "env", in the proxy URLs of the environment."""
    if proxy != "env":
        yield from secrets_in_url(proxy or "")
        return
    from urllib.request import getproxies

    for url in getproxies().values():
        yield from secrets_in_url(url)


def secrets_in_environment(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of environment variables whose names say that they are secrets, and
    the secrets in headers and URLs of others.
    """
    for name, value in environment.items():
        if _ENVIRONMENT.search(name.upper()):
            if not _PATH.fullmatch(value.strip()):
                yield value.strip()
        elif name.upper().endswith(
            ("_HEADERS", "_ATTRIBUTES")
        ):  # most attributes are ordinary words
            yield from _secrets_in_list(
                value, MIN_WORD_FRAGMENT if name.upper().endswith("_HEADERS") else maxsize
            )
        elif "@" in value or "://" in value:
            for url in _URL.findall(value):
                yield from secrets_in_url(url)
            for password in _PASSWORD_IN_ADDRESS.findall(value):
                yield from {password, unquote(password)}


def _secrets_in_list(text: str, min_length: int) -> Iterator[str]:
    """Yield the secrets in a variable that lists headers or attributes, as NAME=VALUE or NAME:
    VALUE, also where it is malformed.

    After a secret name a word counts if it is alone or long, elsewhere from `min_length` characters
    on.
    """
    for part in re.split(r"[,;\n]", text):
        for form in {part, unquote(part)}:
            unnamed, *pairs = _LISTED_NAME.split(form)
            is_named = any(map(SECRET_NAME.search, unnamed.split()))
            for name, value in zip(["", *pairs[::2]], [unnamed, *pairs[1::2]], strict=True):
                # the end of the last value looks like a name
                if is_named and len(name) >= MIN_WORD_FRAGMENT:
                    yield name
                is_named = bool(SECRET_NAME.search(name)) if name else is_named
                least = MIN_FRAGMENT if is_named else min_length
                alone = is_named and bool(name) and min_length < maxsize
                yield from _secret_words(value, least, alone=alone)


def _secret_words(value: str, least: int, *, alone: bool) -> Iterator[str]:
    """Yield the words of a value of at least `least` characters; with `alone` a single one of any
    length.
    """
    words = [word for word in value.split() if word.lower() not in _SCHEMES]
    yield from (word for word in {*words, *re.split(r"[\s=:]+", value)} if len(word) >= least)
    if alone and len(words) == 1:
        yield words[0]


def _min_fragment(secret: str) -> int:
    """Return the length of the shortest fragment of a secret that is masked."""
    return MIN_FRAGMENT if any(map(str.isdigit, secret)) else MIN_WORD_FRAGMENT


def _encodings(secret: str) -> set[bytes]:
    """Return the forms of a secret in a text, in lower case: itself, escaped for JSON, URLs and
    HTML, and in base64.
    """
    escaped = dumps(secret)[1:-1]
    forms = {
        secret,
        escaped,
        escaped.replace("/", "\\/"),
        repr(secret)[1:-1],
        quote(secret, safe=""),
        quote_plus(secret),
    }
    forms |= {
        escape(secret),
        *(_unicode_escaped(escaped, chars) for chars in ("&<>", "&<>='", "&<>+'`")),
    }
    # its offset in the encoded text, modulo 3
    for before in range(3 if len(secret) >= MIN_FRAGMENT else 0):
        encoded = b64encode(b" " * before + secret.encode()).decode().rstrip("=")
        inner = encoded[(0, 2, 3)[before] : -1]  # the last character depends on what follows
        forms |= {inner, inner.replace("+", "-").replace("/", "_")}
    return {form.lower().encode() for form in forms if form.isascii()}


def _unicode_escaped(text: str, chars: str) -> str:
    """Return the text with Unicode escapes for some characters, as the JSON encoders of Go, Gson
    and .NET write it.
    """
    return "".join(f"\\u{ord(c):04x}" if c in chars else c for c in text)


def _ascii_lower(text: str) -> bytes:
    """Return the text in lower case, one byte for each character: secrets that are masked are
    ASCII.
    """
    return text.encode("ascii", "replace").lower()


def _mask_spans(text: S, mask: S, spans: Iterable[tuple[int, int]]) -> S:
    parts: list[S] = []
    end = 0
    for start, stop in spans:
        if start > end or not parts:
            parts += [text[end:start], mask]
        end = max(end, stop)
    parts.append(text[end:])
    empty: Any = text[:0]
    joined: S = empty.join(parts)
    return joined
