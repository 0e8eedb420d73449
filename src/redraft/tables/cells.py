"""Reads what stands in a cell of a table: JSON, or a list or an object as Python and numpy write
it.

pandas writes a list into a cell of CSV by `str`: "['four, say', 'five']". What it read from Parquet
are arrays, without commas: "['four, say' 'five']", and inside an object "array(['four, say',
'five'], dtype=object)". The text comes from anybody: it is read token by token, in linear time,
within the limits below. Only the text between two quotation marks is evaluated.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from ..base.jsontext import strict_loads

MAX_CHARS = 1_000_000
MAX_TOKENS = 50_000
MAX_DEPTH = 20
START = re.compile(r"\s*(?:[\[({]|(?:array|list)\()")  # of a list or an object
TOKEN = re.compile(
    r"""(\s*)('[^'\\\n]*(?:\\.[^'\\\n]*)*'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"|-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"""
    r"""|[A-Za-z_][\w.]*|\.\.\.|[\[\](){},:=]|\Z|([\s\S]{1,40}))"""
)
UNKNOWN = "\0"  # in front of a token that stands in no list
NUMBER = re.compile(r"-?\.?\d")
ESCAPE = re.compile(r"\\(.)")
ESCAPED = frozenset("\\'\"nrtxuU")  # what Python and numpy write behind a backslash
CONSTANTS = {
    "True": True,
    "False": False,
    "None": None,
    "nan": None,
    "np.True_": True,
    "np.False_": False,
}
WRAPPERS = re.compile(r"array|list|np\.(?:array|str_|bool_?|u?int\d+|float\d+)")
CLOSING = {"[": "]", "(": ")"}


class TextAfterValue(ValueError):
    """A text begins with a value, and goes on."""


def load_cell(text: str) -> Any:
    """Return the value of a text of JSON, or of a list or an object as Python or numpy writes it.
    NaN of numpy is None.

    Raises TextAfterValue, or another ValueError, which say why not.
    """
    try:
        return strict_loads(text)
    except ValueError as error:
        if not START.match(text):
            raise
        try:
            return _Literal(text).read()
        except (SyntaxError, ValueError) as problem:
            goes_on = (
                isinstance(problem, TextAfterValue) or getattr(error, "msg", "") == "Extra data"
            )
            reason = problem.msg if isinstance(problem, SyntaxError) else problem
            message = f"it is neither JSON ({error}) nor a list as Python writes it ({reason})"
            raise (TextAfterValue if goes_on else ValueError)(message) from None


class _Literal:
    """Reads one value. `token` is the next one, `spaced` whether a space is before it."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARS:
            raise ValueError(f"it has more than {MAX_CHARS:,} characters")
        self._tokens = _tokens(text)
        self.spaced, self.token = next(self._tokens)

    def read(self) -> Any:
        value = self._value(0)
        if self.token:
            raise TextAfterValue(f"{self.token.removeprefix(UNKNOWN)[:40]!r} follows it")
        return value

    def _take(self) -> str:
        token = self.token
        if not token:
            raise ValueError("its end is missing")
        self.spaced, self.token = next(self._tokens)
        return token

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        token = self._take()
        if token in CLOSING:
            return self._items(CLOSING[token], depth + 1)
        if token == "{":
            return self._object(depth + 1)
        if token[0] in "'\"":
            return _text(token)
        if NUMBER.match(token):
            return int(token) if token.removeprefix("-").isdecimal() else float(token)
        return self._constant_or_array(token, depth)

    def _items(self, closing: str, depth: int) -> Any:
        """Return the values up to a bracket. The values of an array are separated by spaces, not
        commas.
        """
        values: list[Any] = []
        commas = 0
        while self.token != closing:
            if values and not self.spaced and not commas:
                raise ValueError("two values stand side by side without a comma")
            values.append(self._value(depth))
            if self.token == ",":
                self._take()
                commas += 1
        self._take()
        if commas < len(values) - 1 and (commas or closing == ")"):
            raise ValueError("a comma is missing between two values")
        return values[0] if closing == ")" and len(values) == 1 and not commas else values

    def _object(self, depth: int) -> dict[str, Any]:
        items: dict[str, Any] = {}
        while self.token != "}":
            key = self._value(depth)
            if self.token in {",", "}"}:
                raise ValueError("it holds a set, which JSON does not have")
            if self._take() != ":" or not isinstance(key, str) or key in items:
                raise ValueError(
                    f"it holds an object whose keys are no different texts, such as {key!r:.40}"
                )
            items[key] = self._value(depth)
            if self.token != "}" and self._take() != ",":
                raise ValueError("a comma is missing between two values")
        self._take()
        return items

    def _constant_or_array(self, name: str, depth: int) -> Any:
        """Return a constant, or what numpy writes as `array([...], dtype=object)`, `list([...])` or
        `np.float64(0.5)`.
        """
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name[0] == UNKNOWN:
            raise ValueError(
                "a quotation mark is open" if name[1] in "'\"" else f"it holds {name[1:]!r}"
            )
        if not WRAPPERS.fullmatch(name) or self.token != "(":
            raise ValueError(
                "numpy has left out values (...)" if name == "..." else f"it holds {name[:40]!r}"
            )
        self._take()
        value = self._value(depth + 1)
        if self.token == ",":
            self._take()
            if (self._take(), self._take()) != ("dtype", "=") or self._take()[0] in "[({":
                raise ValueError(f"{name} has an argument that is not known")
        if self._take() != ")":
            raise ValueError(f"{name} holds more than one value")
        return value


def _text(token: str) -> Any:
    """Return the text between two quotation marks."""
    if "\\" not in token:
        return token[1:-1]
    if not ESCAPED.issuperset(ESCAPE.findall(token)):
        raise ValueError("it holds a backslash that Python does not write")
    return ast.literal_eval(token)


def _tokens(text: str) -> Iterator[tuple[bool, str]]:
    """Yield whether a space is before each token, and the token; at the end an empty one."""
    position = 0
    for _ in range(MAX_TOKENS):
        found = TOKEN.match(text, position)
        assert found
        yield bool(found[1]), f"{UNKNOWN}{found[2]}" if found[3] else found[2]
        position = found.end()
    raise ValueError(f"it has more than {MAX_TOKENS:,} parts")
