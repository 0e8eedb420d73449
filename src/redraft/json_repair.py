"""Repairs the form of JSON that a model wrote.

Text that is not clean JSON is read token by token and written as JSON again. This repairs form only: missing, doubled or trailing
commas; texts and keys in single or typographic quotes; line breaks, bare backslashes and pairs of quotes within a text; comments;
the words true, false and null in another case, and None. Numbers, keys and brackets are copied unchanged or refused. Also refused
are keys without quotes, truncated objects, and comments with digits, double quotes or brackets, which may state another value.
The reader is linear in its input.
"""

from __future__ import annotations

import json
import re

MAX_DEPTH = 32
TOO_DEEP = f"the JSON is nested too deep; at most {MAX_DEPTH} is read"
SPACE = r"[ \t\n\r]*+"
NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
COMMENT = r"""(?:(?://|\#)[^\n\d"{}\[\]]{0,200}+(?=\n|\Z)|/\*[^*\d"{}\[\]]{0,200}+\*/)"""
COMMENTS = re.compile(rf"(?:{SPACE}{COMMENT})++")
WORD = "(?i:true|false|null|none)"
TOKEN = re.compile(rf"""{SPACE}((?:{NUMBER}|{WORD})(?=[ \t\n\r,}}\]]|//|/\*|\Z)|[{{}}\[\]:,"'“‘])""")
WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}
QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’"}
KEY_PATTERNS = {
    '"': re.compile(r'(?:[^"\\\x00-\x1f]++|\\.)*(?=")'),
    **{opening: re.compile(rf"[^{closing}\\\x00-\x1f]*+(?={closing})") for opening, closing in list(QUOTES.items())[1:]},
}
STRING_PATTERNS = {opening: re.compile(rf"(?:[^{closing}\\]++|\\.)*", re.DOTALL) for opening, closing in QUOTES.items()}
# What follows the quote that ends a text in an object and in a list: the closing bracket, or the next key or value.
GAP = rf"(?:[ \t\n\r,]*+{COMMENT}){{0,8}}+[ \t\n\r,]*+"  # (bounded: a comment may hold the quote that is being looked for)
STRING_END = {
    "{": re.compile(rf"""{GAP}(?:\}}|["'“‘][^"'“”‘’\\\n]*+["'”’]{SPACE}:)"""),
    "[": re.compile(rf"""{GAP}(?:\]|(?<=[ \t\n\r,/])(?:["'“‘{{[]|(?:{NUMBER}|{WORD}){SPACE}[,\]]))"""),
}
COLON = re.compile(f"{SPACE}:")
ESCAPE_OR_QUOTE = re.compile(r"""\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt'])|[\\"]""")


class UnrepairableError(ValueError):
    """A text is no JSON, and cannot be repaired with certainty; the message says why."""


class JsonRepair:
    """Rewrites one object, token by token, as clean JSON in `output`."""

    def __init__(self, text: str, start: int) -> None:
        self.output: list[str] = []
        self._text, self._position = text, start
        self._open_brackets: list[str] = []
        self._last_token = ""  # an opening bracket, ":", "," (not written yet), or "value"

    def rewrite(self) -> int:
        """Rewrite the whole object and return its end. Raises UnrepairableError."""
        while True:
            if comments := COMMENTS.match(self._text, self._position):
                self._position = comments.end()
            token = TOKEN.match(self._text, self._position)
            if token is None:
                raise self._unexpected_token()
            self._position = token.end()
            self._consume(token[1])
            if not self._open_brackets:
                return self._position

    def _consume(self, piece: str) -> None:
        if piece == ",":
            self._comma()
        elif piece == ":":
            self._colon()
        elif piece in "}]":
            self._close(piece)
        elif piece in "{[":
            self._start(piece)
        elif piece in QUOTES:
            is_key = self._open_brackets[-1] == "{" and self._last_token != ":"
            self._write(self._key(piece) if is_key else self._string(piece))
        elif self._last_token == "value":
            raise UnrepairableError(f"there is no comma before {piece[:20]!r}")
        else:
            self._write(WORDS.get(piece.lower(), piece))

    def _write(self, piece: str) -> None:
        """Write a value, a key or an opening bracket, and the comma before it even if it was missing."""
        if self._last_token in {",", "value"}:
            self.output.append(",")
        self.output.append(piece)
        self._last_token = "value"

    def _start(self, bracket: str) -> None:
        self._write(bracket)
        self._open_brackets.append(bracket)
        self._last_token = bracket
        if len(self._open_brackets) > MAX_DEPTH:
            raise UnrepairableError(TOO_DEEP)

    def _comma(self) -> None:
        doubled = self._open_brackets[-1] == "{" and self._last_token in {"{", ","}
        if self._last_token != "value" and not doubled:
            raise UnrepairableError("there is a comma in place of a value")
        self._last_token = self._last_token if doubled else ","

    def _colon(self) -> None:
        if self._last_token != "value":
            raise UnrepairableError("there is a colon in place of a key or a value")
        self.output.append(":")
        self._last_token = ":"

    def _close(self, bracket: str) -> None:
        if self._open_brackets.pop() + bracket not in {"{}", "[]"}:
            raise UnrepairableError(f"{bracket!r} closes what it did not open")
        self.output.append(bracket)
        self._last_token = "value"

    def _key(self, quote: str) -> str:
        key = KEY_PATTERNS[quote].match(self._text, self._position)
        if key is None:
            raise UnrepairableError("a key is not written plainly in quotes")
        self._position = key.end() + 1
        return f'"{key[0]}"' if quote == '"' else json.dumps(key[0])

    def _string(self, quote: str) -> str:
        """Return a text. Quotes within it that are not escaped must come in pairs, else its end is ambiguous."""
        start = end = self._position
        within = 0
        end_pattern = STRING_END[self._open_brackets[-1]]
        while not end_pattern.match(self._text, (end := self._quote_after(quote, end)) + 1):
            if COLON.match(self._text, end + 1):
                raise UnrepairableError("a text does not end before the next key")
            within += not self._is_apostrophe(end)
            end += 1
        if within % 2:
            raise UnrepairableError("a quote within a text is not escaped")
        self._position = end + 1
        return f'"{ESCAPE_OR_QUOTE.sub(_escape, self._text[start:end])}"'

    def _quote_after(self, quote: str, at: int) -> int:
        """Return the position of the next quote that may end a text."""
        content = STRING_PATTERNS[quote].match(self._text, at)
        if content is None or self._text[content.end() : content.end() + 1] != QUOTES[quote]:
            raise UnrepairableError("the JSON is cut off")
        return content.end()

    def _is_apostrophe(self, at: int) -> bool:
        around = self._text[at - 1 : at + 2]
        return around[1] in "'’" and around[::2].isalnum()

    def _unexpected_token(self) -> UnrepairableError:
        rest = self._text[self._position :].lstrip(" \t\n\r")
        if not rest:
            return UnrepairableError("the JSON is cut off")
        odd = re.split(r"[,}\]\n]", rest[:20])[0] or rest[:1]
        if self._last_token == ":" or self._open_brackets[-1] == "[":
            return UnrepairableError(f"{odd!r} is not a plain number, text, true, false or null")
        return UnrepairableError(f"there is {odd!r} in place of a key in quotes, a comma or a bracket")


def _escape(match: re.Match[str]) -> str:
    """Return an escape unchanged, and a bare quote or backslash escaped."""
    if match[0] == "\\'":
        return "'"
    return match[0] if len(match[0]) > 1 else f"\\{match[0]}"
