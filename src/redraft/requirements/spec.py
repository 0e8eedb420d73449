"""Specs of requirements and the registry of their kinds: `parse("words:80-200")`.

A spec is a kind, a colon and an argument. Every kind registers its parser with `register_kind`; nothing here knows one. A text in
a spec is written as it is, or as a JSON string if it would be misread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from .. import checks
from ..errors import ConfigError
from ..protocols import Requirement
from .ranges import Range, range_from_operator

Parser: TypeAlias = Callable[[str], Requirement]

_COUNT = re.compile(r"(?:(>=|<=|=|<|>)([0-9]{1,9})|=([0-9]{1,9})-([0-9]{1,9}))\Z")
_DECODER = json.JSONDecoder(strict=False)


@dataclass(frozen=True, slots=True)
class RequirementKind:
    """A kind of requirement: the parser of its argument, a line of help, and an example spec."""

    parser: Parser
    help: str
    example: str
    reads_files: bool = False


KINDS: dict[str, RequirementKind] = {}


def register_kind(name: str, help: str, example: str, *, reads_files: bool = False) -> Callable[[Parser], Parser]:
    """Return a decorator that registers a parser of `name:ARGUMENT`; the parser receives ARGUMENT ("" if there is none)."""

    def register(parser: Parser) -> Parser:
        KINDS[name] = RequirementKind(parser, help, example, reads_files)
        return parser

    return register


def parse(spec: str, *, files: bool = True) -> Requirement:
    """Return the requirement that `spec` stands for.

    Raises ConfigError with the value, what is allowed, and the nearest names. With `files=False` no spec reads a file: use that
    for untrusted specs.
    """
    if not isinstance(spec, str):
        raise ConfigError(f"a requirement is a spec such as 'words:80-200', got {checks.format_value(spec)}")
    name, _, argument = spec.partition(":")
    name = name.strip()
    if name not in KINDS:
        raise ConfigError(_unknown_kind_message(spec, name))
    return _build_requirement(KINDS[name], spec, argument.strip(), files=files)


def reads_file(spec: str) -> bool:
    """Return whether a spec names a file that would be read."""
    name, _, argument = str(spec).partition(":")
    kind, argument = KINDS.get(name.strip()), argument.strip()
    return kind is not None and kind.reads_files and bool(argument) and not argument.startswith("{")


def _build_requirement(kind: RequirementKind, spec: str, argument: str, *, files: bool) -> Requirement:
    if not files and reads_file(spec):
        raise ConfigError(f"requirement {_abbreviate(spec)} would read a file, which is not allowed here; give it inline")
    try:
        return kind.parser(argument)
    except ConfigError as error:
        raise ConfigError(f"requirement {_abbreviate(spec)}: {error} (for example {kind.example!r})") from None


def _abbreviate(spec: str) -> str:
    return repr(spec) if len(spec) <= 200 else f"{spec[:200]!r}..."


def _unknown_kind_message(spec: str, name: str) -> str:
    hint = ' (a requirement is KIND:VALUE, such as "words:80-200")' if ":" not in spec else ""
    return checks.unknown_name_message("requirement", name, KINDS, "redraft graders", full_value=spec) + hint


def no_argument(argument: str) -> None:
    """Raise ConfigError if there is an argument."""
    if argument:
        raise ConfigError(f"it takes nothing after the colon, got {argument!r}")


def parse_text(argument: str) -> str:
    """Return a text, bare or as a JSON string."""
    text, rest = _split_text(argument, "")
    if rest:
        raise ConfigError(f"there is {rest!r} after the quoted text")
    if not text.strip():
        raise ConfigError("it needs a text after the colon")
    return text


def parse_texts(argument: str, separator: str) -> tuple[str, ...]:
    """Return texts between separators, each bare or as a JSON string, without duplicates."""
    texts: dict[str, None] = {}
    rest = separator + argument
    while rest:
        if not rest.startswith(separator):
            raise ConfigError(f"there is {rest!r} after the quoted text")
        text, rest = _split_text(rest[len(separator) :].lstrip(), separator)
        if not text.strip():
            raise ConfigError(f"it needs texts with {separator!r} between them, got {argument!r}")
        texts[text] = None
    return tuple(texts)


def parse_text_count(argument: str) -> tuple[str, Range]:
    """Return a text and a count: `war` (at least once), `war>=8`, `war<3`, `war=2-4`. A text that ends like this is quoted."""
    if argument.startswith('"'):
        text, rest = _split_text(argument, "")
        found = _COUNT.match(rest)
        if rest and not found:
            raise ConfigError(f"{rest!r} is not a count; allowed: >=8, <=8, >8, <8, =8, =2-8")
    else:
        found = _COUNT.search(argument)
        text = argument[: found.start()].rstrip() if found else argument
    if not text.strip():
        raise ConfigError("it needs a text after the colon")
    return text, _range_from_match(found) if found else Range(1)


def _range_from_match(match: re.Match[str]) -> Range:
    return range_from_operator(match[1], int(match[2])) if match[1] else Range(int(match[3]), int(match[4]))


def _split_text(argument: str, separator: str) -> tuple[str, str]:
    if not argument.startswith('"'):
        end = argument.find(separator) if separator else -1
        return (argument, "") if end < 0 else (argument[:end].rstrip(), argument[end:])
    try:
        text, end = _DECODER.raw_decode(argument)
    except ValueError as error:
        raise ConfigError(f"{argument!r} starts a quoted text that does not end: {error}") from None
    return text, argument[end:].lstrip()


def bare_or_quoted(text: str, parse: Callable[[str], object], expected: object) -> str:
    """Return the text as it is if parsing it gives `expected`, else as a JSON string."""
    try:
        if text == text.strip() and is_encodable(text) and parse(text) == expected:
            return text
    except ConfigError:
        pass
    return json.dumps(text, ensure_ascii=not is_encodable(text))


def text_spec(text: str) -> str:
    """Return what `parse_text` reads as `text`."""
    return bare_or_quoted(text, parse_text, text)


def texts_spec(texts: tuple[str, ...], separator: str) -> str:
    """Return what `parse_texts` reads as `texts`."""
    return separator.join(bare_or_quoted(t, lambda a: parse_texts(a, separator), (t,)) for t in texts)


def text_count_spec(text: str, count: Range) -> str:
    """Return what `parse_text_count` reads as these two."""
    written = bare_or_quoted(text, parse_text_count, (text, Range(1)))
    return written if count == Range(1) else written + count.comparison


def is_encodable(text: str) -> bool:
    """Return whether the text has a UTF-8 form (lone surrogates have none)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


MAX_CACHED_CHARS = 1000  # characters of a spec that `check_foreign_spec` remembers


def check_foreign_spec(spec: str) -> None:
    """Raise ConfigError unless `spec` is a requirement that reads no file. For specs from data sets, where many rows repeat one."""
    (_check_cached if len(spec) <= MAX_CACHED_CHARS else _check)(spec)


def _check(spec: str) -> None:
    parse(spec, files=False)


_check_cached = lru_cache(maxsize=4096)(_check)
