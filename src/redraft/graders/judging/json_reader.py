"""Reading what a judge wrote, strictly: one JSON object, or `Unreadable` with the exact complaint.

Numbers are never fished out of prose, nothing is coerced, nothing gets a default. Judge output is hostile input: size
and depth are bounded, and all of it is read in time linear in its length.

What is no clean JSON is read token by token and written as JSON anew. This mends form, and form is all that it mends:
commas that are missing, doubled or trailing; texts and keys in single or typographic quotes; line breaks, bare
backslashes and quotes in pairs within a text. Numbers, words (true, false, null), keys and brackets are copied as they
stand or refused; so are keys without quotes, comments, and objects that are cut off.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from ...jsontext import depth, refuse_constant, unique_keys

MOST_CHARS = 200_000
MOST_MENDED = 16_384  # characters from the first brace on; a longer answer is clean JSON or unreadable
MOST_DEPTH = 32
MOST_DIGITS = 15
LONGEST_FLOAT = 40  # characters
TOO_DEEP = f"the JSON is nested too deep; at most {MOST_DEPTH} is read"
TAG = r"(?:think(?:ing)?|thought|reasoning)>"
MARK = re.compile(rf"[{{}}]|</?{TAG}", re.IGNORECASE)
OPENING = re.compile(f"<{TAG}", re.IGNORECASE)
CLOSING = re.compile(f"</{TAG}", re.IGNORECASE)
FENCE = re.compile(r"^[ \t]*(?:```+|~~~+)[ \t]*(\S?)", re.MULTILINE)
BEFORE = ("[", "(", ",", "\\", "!", *"\"'“‘„‚«‹「『", '":', "':", "”:")  # in front of, and
AFTER = ("]", ")", "}", ",", ":", *"\"'”’“‘»›」』")  # behind an object that is a part of something else


class Unreadable(ValueError):
    """A judge's answer that cannot be read; its text is the complaint that a re-ask quotes."""


def read_object(text: str) -> dict[str, Any]:
    """The one JSON object in a judge's answer; thinking, prose and a code fence around it are put aside.

    Raises Unreadable where there is none, where there are several, and where it is a part of something else.
    """
    if len(text) > MOST_CHARS:
        raise Unreadable(f"the answer is {len(text)} characters long; at most {MOST_CHARS} are read")
    data: dict[str, Any] | None = None
    at = 0
    while mark := MARK.search(text, at):
        if mark[0] in "{}":
            if data is not None or mark[0] == "}":
                raise Unreadable("there is another brace outside of the JSON object; write one object and nothing else")
            data, end = _object_from(text, mark.start())
            _check_place(text[at : mark.start()], text[end:])
            at = end
        elif mark[0].startswith("</"):
            if data is not None:
                raise Unreadable("the JSON object stands in the thinking; write it after that")
            at = mark.end()
        else:
            closing = CLOSING.search(text, mark.end())
            at = closing.end() if closing else len(text)
    if data is None:
        raise Unreadable("there is no JSON object in the answer")
    return data


def without_thinking(text: str) -> str:
    """What stands after the last thought that ends, and before one that does not."""
    return OPENING.split(CLOSING.split(text)[-1], 1)[0]


def _check_place(before: str, after: str) -> None:
    """Raise Unreadable for an object within a quotation, a list, a call, or code blocks inside each other."""
    if before.rstrip().endswith(BEFORE) or after.lstrip().startswith(AFTER) or before.count('"') % 2:
        raise Unreadable("the JSON object is a part of something else; write one object and nothing else")
    fenced = False
    for fence in FENCE.finditer(before):
        if fenced and fence[1]:
            raise Unreadable("there are code blocks inside each other; write one object and nothing else")
        fenced = not fenced


def _object_from(text: str, start: int) -> tuple[dict[str, Any], int]:
    """The object whose brace stands at `start`, and where it ends. Raises Unreadable."""
    try:
        data, end = CLEAN.raw_decode(text, start)
    except json.JSONDecodeError as error:
        if len(text) - start > MOST_MENDED:
            raise Unreadable(f"the answer is not JSON: {error.msg}") from error
        return _mended(text, start)
    except RecursionError as error:
        raise Unreadable(TOO_DEEP) from error
    except ValueError as error:
        raise Unreadable(str(error)) from error
    if text.count("{", start, end) + text.count("[", start, end) > MOST_DEPTH and depth(data) > MOST_DEPTH:
        raise Unreadable(TOO_DEEP)
    return data, end


def _mended(text: str, start: int) -> tuple[dict[str, Any], int]:
    rewrite = Rewrite(text, start)
    end = rewrite.end()
    try:
        return MENDED.decode("".join(rewrite.out)), end
    except json.JSONDecodeError as error:
        raise Unreadable(f"the answer is not JSON: {error.msg}") from error
    except ValueError as error:
        raise Unreadable(str(error)) from error


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits is no score")
    return int(digits)


def _fraction(digits: str) -> float:
    if len(digits) > LONGEST_FLOAT or not math.isfinite(float(digits)):
        raise ValueError(f"{digits[:20]!r} is no plain number")
    return float(digits)


CLEAN, MENDED = (
    json.JSONDecoder(
        strict=strict, object_pairs_hook=unique_keys, parse_constant=refuse_constant, parse_int=_whole, parse_float=_fraction
    )
    for strict in (True, False)
)


# ---- mending of form

SPACE = r"[ \t\n\r]*+"
NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
TOKEN = re.compile(rf"""{SPACE}((?:{NUMBER}|true|false|null)(?=[ \t\n\r,}}\]]|\Z)|[{{}}\[\]:,"'“‘])""")
QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’"}
KEYS = {
    '"': re.compile(r'(?:[^"\\\x00-\x1f]++|\\.)*(?=")'),
    **{opening: re.compile(rf"[^{closing}\\\x00-\x1f]*+(?={closing})") for opening, closing in list(QUOTES.items())[1:]},
}
TEXTS = {opening: re.compile(rf"(?:[^{closing}\\]++|\\.)*", re.DOTALL) for opening, closing in QUOTES.items()}
# What stands after the quote that ends a text in an object and in a list: the bracket that closes it, or what comes next.
ENDED = {
    "{": re.compile(rf"""[ \t\n\r,]*+(?:\}}|["'“‘][^"'“”‘’\\\n]*+["'”’]{SPACE}:)"""),
    "[": re.compile(r"""[ \t\n\r,]*+\]|[ \t\n\r,]++["'“‘{[]"""),
}
COLON = re.compile(f"{SPACE}:")
LOOSE = re.compile(r"""\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt'])|[\\"]""")


class Rewrite:
    """One object, token by token, written as clean JSON into `out`."""

    def __init__(self, text: str, start: int) -> None:
        self.out: list[str] = []
        self._text, self._at = text, start
        self._open: list[str] = []
        self._last = ""  # what came last: a bracket that opens, ":", "," (not written yet), or "value"

    def end(self) -> int:
        """Rewrites all of the object; where it ends. Raises Unreadable."""
        while True:
            token = TOKEN.match(self._text, self._at)
            if token is None:
                raise self._stray()
            self._at = token.end()
            self._take(token[1])
            if not self._open:
                return self._at

    def _take(self, piece: str) -> None:
        if piece == ",":
            self._comma()
        elif piece == ":":
            self._colon()
        elif piece in "}]":
            self._close(piece)
        elif piece in "{[":
            self._start(piece)
        elif piece in QUOTES:
            named = self._open[-1] == "{" and self._last != ":"
            self._write(self._key(piece) if named else self._words(piece))
        elif self._last == "value":
            raise Unreadable(f"there is no comma before {piece[:20]!r}")
        else:
            self._write(piece)

    def _write(self, piece: str) -> None:
        """A value, a key or a bracket that opens one, with the comma before it, which may have been missing."""
        if self._last in {",", "value"}:
            self.out.append(",")
        self.out.append(piece)
        self._last = "value"

    def _start(self, bracket: str) -> None:
        self._write(bracket)
        self._open.append(bracket)
        self._last = bracket
        if len(self._open) > MOST_DEPTH:
            raise Unreadable(TOO_DEEP)

    def _comma(self) -> None:
        doubled = self._open[-1] == "{" and self._last in {"{", ","}
        if self._last != "value" and not doubled:
            raise Unreadable("a comma stands where a value belongs")
        self._last = self._last if doubled else ","

    def _colon(self) -> None:
        if self._last != "value":
            raise Unreadable("a colon stands where a key or a value belongs")
        self.out.append(":")
        self._last = ":"

    def _close(self, bracket: str) -> None:
        if self._open.pop() + bracket not in {"{}", "[]"}:
            raise Unreadable(f"{bracket!r} closes what it did not open")
        self.out.append(bracket)
        self._last = "value"

    def _key(self, quote: str) -> str:
        key = KEYS[quote].match(self._text, self._at)
        if key is None:
            raise Unreadable("a key is not written plainly in quotes")
        self._at = key.end() + 1
        return f'"{key[0]}"' if quote == '"' else json.dumps(key[0])

    def _words(self, quote: str) -> str:
        """A text. Quotes within it that are not escaped must come in pairs, else nobody knows where it ends."""
        start = end = self._at
        within = 0
        ended = ENDED[self._open[-1]]
        while not ended.match(self._text, (end := self._quote_after(quote, end)) + 1):
            if COLON.match(self._text, end + 1):
                raise Unreadable("a text does not end before the next key")
            within += not self._is_apostrophe(end)
            end += 1
        if within % 2:
            raise Unreadable("a quote within a text is not escaped")
        self._at = end + 1
        return f'"{LOOSE.sub(_escaped, self._text[start:end])}"'

    def _quote_after(self, quote: str, at: int) -> int:
        """Where the next quote stands that may end a text."""
        held = TEXTS[quote].match(self._text, at)
        if held is None or self._text[held.end() : held.end() + 1] != QUOTES[quote]:
            raise Unreadable("the JSON is cut off")
        return held.end()

    def _is_apostrophe(self, at: int) -> bool:
        around = self._text[at - 1 : at + 2]
        return around[1] in "'’" and around[::2].isalnum()

    def _stray(self) -> Unreadable:
        rest = self._text[self._at :].lstrip(" \t\n\r")
        if not rest:
            return Unreadable("the JSON is cut off")
        odd = re.split(r"[,}\]\n]", rest[:20])[0] or rest[:1]
        if self._last == ":" or self._open[-1] == "[":
            return Unreadable(f"{odd!r} is no plain number, text, true, false or null")
        return Unreadable(f"{odd!r} stands where a key in quotes, a comma or a bracket belongs")


def _escaped(found: re.Match[str]) -> str:
    """A piece of a text as JSON has it: an escape as it is, a bare quote or backslash escaped."""
    if found[0] == "\\'":
        return "'"
    return found[0] if len(found[0]) > 1 else f"\\{found[0]}"


# ---- what stands in it


def whole_number(data: Mapping[str, Any], key: str, low: int, high: int) -> int:
    """The whole number in [low, high] under `key`. Raises Unreadable for anything else: bools, texts, 4.5."""
    value = _present(data, key)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Unreadable(f"{key!r} must be a whole number from {low} to {high}, got {_short(value)}")
    return value


def text(data: Mapping[str, Any], key: str) -> str:
    """The text under `key`; "" where it is missing or null."""
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise Unreadable(f"{key!r} must be text, got {_short(value)}")
    return (value or "").strip()


def flag(data: Mapping[str, Any], key: str) -> bool:
    """The true or false under `key`."""
    value = _present(data, key)
    if not isinstance(value, bool):
        raise Unreadable(f"{key!r} must be true or false, got {_short(value)}")
    return value


def object_at(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object under `key`."""
    value = _present(data, key)
    if not isinstance(value, dict):
        raise Unreadable(f"{key!r} must be an object, got {_short(value)}")
    return value


def _present(data: Mapping[str, Any], key: str) -> Any:
    if key not in data:
        raise Unreadable(f"{key!r} is missing")
    return data[key]


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
