"""Finding the final answer in a text: what it marks as such, a number, a choice.

An answer that marks several different things has committed itself to none: all of them are handed back, and a grader
takes that for wrong. Everything is linear in the length of the text. Nothing here compares.
"""

from __future__ import annotations

import re
from fractions import Fraction

_BOX = re.compile(r"\\f?box(?:ed)?\s?\{")
_BRACE = re.compile(rf"{_BOX.pattern}|\\.|[{{}}]", re.DOTALL)
_END = r"[ \t*_]*([^\r\n]{1,500})"
_MARKS = (
    re.compile(rf"^[ \t]*####{_END}", re.MULTILINE),
    re.compile(rf"\bfinal (?:answer|result)\b[*_ \t]*(?:is|are|:|=)[ \t:]*{_END}", re.IGNORECASE),
    re.compile(rf"\b(?:answer|result|solution)\b[*_ \t]*(?:is|are|:|=)[ \t:]*{_END}", re.IGNORECASE),
)
_SENTENCE = re.compile(r"[.;!?](?=\s|\Z)|[\u3002\uff01\uff1f]")
_MATH = re.compile(r"\$\$([^$]{1,500})\$\$|\$([^$\n]{1,500})\$|\\\(([^\n]{1,500}?)\\\)|\\\[([^\n]{1,500}?)\\\]")
_CHOICE = re.compile(r"\W*(?:(?:option|choice)\s+)?\W*([A-J])(?=$|[^\w'\u2019])")
_CHOICE_LINE = re.compile(r"^[ \t*_]*(?:\(([A-J])\)|([A-J])[.):]|([A-J])[ \t*_.]*$)", re.MULTILINE)
_TOKEN = re.compile(
    r"(?<![\w.,])(?P<sign>[-+\u2212\u2013]?)[$\u20ac\u00a3\u00a5]?(?P<digits>\d[\d,.'\u2019\u00a0\u202f\u2009_]{0,60}|\.\d{1,60})"
    r"(?:[eE](?P<e>[-+\u2212]?\d{1,3})|\s?[\u00d7x*]\s?10\s?(?:\^|\*\*)\s?\{?(?P<ten>[-+\u2212]?\d{1,3})\}?)?(?P<percent>\s?\\?%)?(?!\w)"
)
_PLAIN = re.compile(r"\d*\.?\d+|\d+\.")
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?:['\u2019\u00a0\u202f\u2009_]\d{3})+(?:\.\d+)?")


def boxed(text: str) -> list[str]:
    r"""What stands in \boxed{...} and \fbox{...}, braces counted; of nested ones, the innermost."""
    found: list[str] = []
    opened: list[tuple[int, bool]] = []
    for brace in _BRACE.finditer(text):
        if brace[0].endswith("{") and brace[0] != r"\{":
            opened.append((brace.end(), len(brace[0]) > 1))
        elif brace[0] == "}" and opened:
            start, is_box = opened.pop()
            if is_box and brace.start() - start <= 2000 and not _BOX.search(text, start, brace.start()):
                found.append(text[start : brace.start()].strip())
    return found


def marked(text: str) -> list[str]:
    r"""The different answers marked as such, by the strongest kind of mark there is: \boxed, ####, "the final answer is",
    "the answer is".
    """
    for found in (boxed(text), *(_after(mark, text) for mark in _MARKS)):
        if found:
            return list(dict.fromkeys(found))
    return []


def _after(mark: re.Pattern[str], text: str) -> list[str]:
    found = (_clean(_SENTENCE.split(m[1], maxsplit=1)[0]) for m in mark.finditer(text))
    return [piece for piece in found if piece]


def _clean(piece: str) -> str:
    piece = piece.strip().strip("*_`").strip().rstrip(".,;!")
    whole = _MATH.fullmatch(piece)
    return _inner(whole) if whole else piece


def _inner(found: re.Match[str]) -> str:
    return next(group for group in found.groups() if group is not None).strip()


def formulas(text: str) -> list[str]:
    """What stands between dollar signs or LaTeX's brackets."""
    return [_inner(m) for m in _MATH.finditer(text)]


def choices(text: str) -> set[str]:
    """The letters A-J that a text commits itself to: marked, the only thing said, or at the head of a line ("B) ...")."""
    found = {m[1] for piece in marked(text) if (m := _CHOICE.match(piece))}
    return found or {next(filter(None, m.groups())) for m in _CHOICE_LINE.finditer(text)}


def numbers(text: str) -> list[tuple[Fraction, bool]]:
    """The numbers in a text in their order, and whether each is a percentage (which is divided by 100).

    Thousands may be grouped by commas, apostrophes or thin spaces; 1.5e3 and 1.5 x 10^3 are read; a minus may be
    Unicode's. What can be read in two ways (3,14 or 1.2.3) is no number.
    """
    return [number for m in _TOKEN.finditer(text) if (number := _number(m))]


def _number(found: re.Match[str]) -> tuple[Fraction, bool] | None:
    digits = found["digits"].rstrip(".,'\u2019\u00a0\u202f\u2009_")
    if _GROUPED.fullmatch(digits):
        digits = re.sub(r"[^\d.]", "", digits)
    if not digits.isascii() or not _PLAIN.fullmatch(digits):
        return None
    power = int((found["e"] or found["ten"] or "0").replace("\u2212", "-"))
    value = Fraction(digits) * Fraction(10) ** power * (-1 if found["sign"] in {"-", "\u2212", "\u2013"} else 1)
    return (value / 100 if found["percent"] else value), bool(found["percent"])
