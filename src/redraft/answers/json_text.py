"""Reads the JSON of an answer strictly, and repairs its form.

A repair changes commas, colons, quotes, single backslashes, and the text and wrappers around the
JSON. It keeps every bracket, key, text, number and word of the value, in the same order, and
numbers digit by digit (`same_tokens` checks this, whatever the repair did). JSON that is cut off is
not repaired, and neither is a text with several different values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any

from ..base.json_repair import JsonRepair, UnrepairableError, double_backslashes
from ..base.jsontext import (
    MAX_DEPTH,
    TOO_DEEP_MESSAGE,
    nesting_depth,
    reject_constant,
    reject_duplicate_keys,
)
from ..base.text import compose_nfc

MAX_ANSWER_CHARS = 2_000_000  # a longer answer is not read
MAX_REPAIR_CHARS = 200_000  # a longer text is not repaired
MAX_BLOCKS = 20  # code blocks of a text that are looked at
MAX_WRAPPERS = 4  # inside each other
MAX_NAME_CHARS = 60  # of the name of a wrapper

FENCE_START = re.compile(r"(```++|~~~++)[^\n`]*+\n")
BLOCK = re.compile(
    r"^[ \t]*+(```++|~~~++)[^\n`]*+\n(.*?)(?:^[ \t]*+\1[ \t]*+$|\Z)", re.DOTALL | re.MULTILINE
)
BRACKETS = re.compile(r"[{}\[\]]")
BETWEEN = re.compile(r"[\s,:]*+")
TEXT_OR_KEY = re.compile(r'("(?:[^"\\]++|\\.)*+")\s*+(:)?')
OPENING = re.compile(r"[{\[]")
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f]")
# a value that follows one of these is part of something else
EMBEDDED_AFTER = ("(", '"', "'", "\\", "“", "‘")

TOKEN = re.compile(
    r"""\s*+(?:"(?P<double>(?:[^"\\]|\\.)*+)"|'(?P<single>(?:[^'\\]|\\.)*+)'|“(?P<curly>[^”\\]*+)”|‘(?P<curly_single>[^’\\]*+)’"""
    r"""|(?P<bracket>[{}\[\]])|(?P<separator>[,:])|(?P<word>[^\s{}\[\],:"'“‘]++))""",
    re.DOTALL,
)
ESCAPE = re.compile(r"""\\(u[0-9a-fA-F]{4}|.)|(")""", re.DOTALL)


def read_json(text: str) -> Any:
    """Return the value of a text of JSON. Raises ValueError with the reason.

    Rejects duplicate keys, NaN, numbers out of the range of a float, and more than 200 levels.
    """
    if len(text) > MAX_ANSWER_CHARS:
        raise ValueError(f"it has {len(text):,} characters; at most {MAX_ANSWER_CHARS:,} are read")
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError(TOO_DEEP_MESSAGE) from None
    if nesting_depth(value) > MAX_DEPTH:
        raise ValueError(TOO_DEEP_MESSAGE)
    return value


def _parse_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:40]} is too large")
    return number


_DECODER = json.JSONDecoder(
    object_pairs_hook=reject_duplicate_keys,
    parse_constant=reject_constant,
    parse_float=_parse_float,
    strict=True,
)


def without_fence(text: str) -> str:
    """Return the content of the code fence around a text, or the text without the spaces around
    it.
    """
    stripped = text.strip()
    start = FENCE_START.match(stripped)
    if (
        start is None
        or len(stripped) < start.end() + len(start[1])
        or not stripped.endswith(start[1])
    ):
        return stripped
    return stripped[start.end() : -len(start[1])].strip()


def member_texts(text: str) -> dict[str, str]:
    """Return the texts of the values in a JSON object by their keys."""
    members: dict[str, str] = {}
    at = _next_token(text, 1)
    while text[at] != "}":
        key, end = _DECODER.raw_decode(text, at)
        start = _next_token(text, end)
        end = _DECODER.raw_decode(text, start)[1]
        members[key] = text[start:end]
        at = _next_token(text, end)
    return members


def composed_json(text: str) -> str:
    """Return JSON with its texts in the composed form of Unicode, and the rest as it is."""
    if text.isascii() and "\\u" not in text:
        return text
    return TEXT_OR_KEY.sub(lambda match: _composed_text(match[1]) + match[0][len(match[1]) :], text)


def _composed_text(text: str) -> str:
    return json.dumps(compose_nfc(json.loads(text)), ensure_ascii=False)


def json_in_texts(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the texts in JSON that hold an object or a list: where each begins and ends, and the
    JSON in it.
    """
    for match in TEXT_OR_KEY.finditer(text):
        content = "" if match[2] else json.loads(match[1]).strip()
        if content[:1] in {"{", "["} and is_json(content := double_backslashes(content)):
            yield *match.span(1), content


def with_pieces(text: str, pieces: Iterable[tuple[int, int, str]]) -> str:
    """Return a text in which each piece takes the place from its first number to its second; the
    pieces are in order.
    """
    parts, at = [], 0
    for start, end, content in pieces:
        parts += [text[at:start], content]
        at = end
    return "".join([*parts, text[at:]])


def _next_token(text: str, at: int) -> int:
    """Return where the next key, value or bracket begins in an object that is known to be JSON."""
    between = BETWEEN.match(text, at)
    return between.end() if between else at


def wrapper_contents(
    text: str, names: Collection[str], *, lists: bool
) -> Iterator[tuple[str, str]]:
    """Yield what is in a wrapper around JSON, what is in a wrapper in that, and so on, each with
    the wrapper in words.

    Wrappers are a list of one (with `lists`), a text that holds JSON, an object with one key of
    these names (see `plain_name`), a call of a function of such a name, and an object that is a
    schema but for its properties, which are values.
    """
    wrappers: list[str] = []
    while len(wrappers) < MAX_WRAPPERS:
        found = _without_wrapper(text, read_json(text), names, lists=lists)
        if found is None or not is_json(found[1]):
            return
        wrappers.insert(0, found[0])
        text = found[1]
        yield " in ".join(wrappers), text


def _without_wrapper(
    text: str, value: Any, names: Collection[str], *, lists: bool
) -> tuple[str, str] | None:
    if isinstance(value, str) and value.strip()[:1] in {"{", "["}:
        return "a text", double_backslashes(value.strip())
    if isinstance(value, list) and lists and len(value) == 1:
        return "a list of one", text[1:-1].strip()
    if not isinstance(value, dict) or len(value) > 2:
        return None
    members, keys = member_texts(text), list(value)
    if len(keys) == 1 and plain_name(keys[0]) in names:
        return f"an object under {keys[0]!r}", members[keys[0]]
    arguments = [key for key in keys if key in {"arguments", "parameters", "input"}]
    if len(arguments) == 1 and plain_name(str(value.get("name", ""))) in names:
        return f"a call of {str(value['name'])[:MAX_NAME_CHARS]!r}", members[arguments[0]]
    return (
        ("a schema", members["properties"])
        if keys == ["type", "properties"] and value["type"] == "object"
        else None
    )


def plain_name(key: str) -> str:
    """Return the letters and digits of a key, in lower case."""
    return "".join(filter(str.isalnum, key)).lower()[:MAX_NAME_CHARS]


def repaired_json(text: str) -> str | None:
    """Return the one JSON object or list in a text, as valid JSON; None if there is none, or it
    cannot be repaired safely.
    """
    if len(text) > MAX_REPAIR_CHARS:
        return None
    blocks = [match[2] for match in islice(BLOCK.finditer(text), MAX_BLOCKS)]
    blocks = list(filter(OPENING.search, blocks))
    found = [_repaired_piece(piece) for piece in blocks or [text]]
    distinct = {tuple(tokens_of(each)) if each else None for each in found}
    return found[0] if len(distinct) == 1 else None


def _repaired_piece(text: str) -> str | None:
    """Return the value that starts at the first bracket. None if there are brackets after it, or it
    is part of something else.
    """
    first = OPENING.search(text)
    if first is None or text[: first.start()].rstrip().endswith(EMBEDDED_AFTER):
        return None
    written, end = _value_at(text, first.start())
    return None if BRACKETS.search(text, end) else written


def _value_at(text: str, start: int) -> tuple[str | None, int]:
    """Return the object or list that starts here, repaired if it is no JSON, and its end; None if
    it cannot be repaired.
    """
    try:
        end = _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        pass
    else:
        return double_backslashes(text[start:end]), end
    repair = JsonRepair(text, start)
    try:
        end = repair.rewrite()
    except (UnrepairableError, IndexError, RecursionError):
        return None, start
    written = CONTROL_CHARACTER.sub(
        lambda match: json.dumps(match[0])[1:-1], "".join(repair.output)
    )
    return (written if is_json(written) and same_tokens(text[start:end], written) else None), end


def is_json(text: str) -> bool:
    """Return whether `read_json` reads a text."""
    try:
        read_json(text)
    except ValueError:
        return False
    return True


def same_tokens(before: str, after: str) -> bool:
    """Return whether two texts have the same brackets, texts, numbers and words in the same
    order.
    """
    try:
        return list(tokens_of(before)) == list(tokens_of(after))
    except ValueError:
        return False


def tokens_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield kind and content of each token except commas and colons. Raises ValueError for what is
    none, such as a bad escape.
    """
    at = 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            if not text[at:].strip():
                return
            raise ValueError(f"there is no token at {at}")
        at = match.end()
        kind = str(match.lastgroup)
        if kind in {"bracket", "word"}:
            yield kind, match[kind]
        elif kind != "separator":
            yield "text", _decode_string(match[kind])


def _decode_string(content: str) -> str:
    """Return the text that the inside of a string stands for. Raises ValueError for a wrong
    escape.
    """
    escaped = ESCAPE.sub(_json_escape, content)
    decoded: str = json.loads(double_backslashes(f'"{escaped}"'), strict=False)
    return decoded


def _json_escape(match: re.Match[str]) -> str:
    if match[2]:
        return '\\"'
    return "'" if match[1] == "'" else match[0]
