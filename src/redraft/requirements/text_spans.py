"""Spans of a text: words, sentences, paragraphs, lines, and the protected spans that no repair may change.

A span is (start, end) in characters. Everything takes time linear in the length of the text. Nothing here knows a requirement.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, TypeAlias

Span: TypeAlias = tuple[int, int]

_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})", re.MULTILINE)
_INLINE_CODE = re.compile(r"(?<!`)`[^`\r\n]+`(?!`)")
_URL = re.compile(r"(?:\b(?:https?|ftp)://|\bwww\.)[^\s<>\"`*]+", re.IGNORECASE)
_LINE = re.compile(r"[^\r\n]+")
_BREAK = re.compile(r"(?>\r\n|\n|\r){2,}+")
_END = re.compile(
    r"(?<![.!?\u2026])[.!?\u2026]++[\"'\u201d\u2019)\]*_\u00bb]*+(?=\s|\Z)"
    r"|[\u3002\uff01\uff1f\uff61]++[\u300d\u300f\u201d\u2019\uff09]*+"
    r"|[\u0964\u0965\u061f\u06d4\u1362\u104b]++(?=\s|\Z)"
)
_ABBREVIATION = re.compile(
    r"(?:\A|[\s(\"'\u201c\[])(?:(?:mr|mrs|ms|dr|prof|sr|jr|st|rev|gen|col|sgt|capt|lt|vs|etc|fig|approx|dept|inc|ltd|corp|co"
    r"|jan|feb|mar|apr|aug|sept|sep|oct|nov|dec|e\.g|i\.e|a\.k\.a|p\.s|p\.p\.s|cf|vol|pp|ed|eds)|[a-z](?:\.[a-z])*)\.\Z",
    re.IGNORECASE,
)
_PIECE_BREAK = re.compile(r"[\r\n]+(?=[ \t]*(?:[-*+#>|\r\n]|[0-9]{1,3}[.)]))|(?<=[:\n])[\r\n]+")
_ITEM_BREAK = re.compile(r"(?<![\r\n])[\r\n]++(?=[ \t]*(?:[0-9]{1,3}[.)]|[-*] ))")
_NUMBERING = re.compile(r"(?:\A|[\r\n])[ \t]*(?:[#>*-]+[ \t]*)?\**(?:[0-9]{1,3}|[ivxIVX]{1,4}|[A-Za-z])\.\Z")


@cache
def _word_pattern() -> Any:
    import regex

    cjk = r"\p{Han}\p{Hiragana}\p{Katakana}\u30fc\uff70"
    return regex.compile(rf"(?V1)[\w&&[{cjk}]]|[\w--[{cjk}]]+")


def words(text: str) -> list[Span]:
    """Return runs of letters, digits, marks and `_`; every Chinese character and every kana is a word of its own."""
    return [match.span() for match in _word_pattern().finditer(text)]


def count_words(text: str) -> int:
    return sum(1 for _ in _word_pattern().finditer(text))


def lines(text: str) -> list[Span]:
    """Return the lines that are not blank, without their line ends."""
    return [m.span() for m in _LINE.finditer(text) if not m[0].isspace()]


def paragraphs(text: str) -> list[Span]:
    """Return the paragraphs: empty lines separate them (a line of spaces does not), except inside a fenced block."""
    kept = SpanIndex(fenced_blocks(text))
    breaks = [m.span() for m in _BREAK.finditer(text) if not kept.overlaps(m.span())]
    return _spans_between(text, breaks)


def sentences(text: str) -> list[Span]:
    """Return the sentences by their closing marks, in any script that has such marks; a list item starts one, too.

    Abbreviations, initials, list numbers, code and URLs end none. A heading, or another line without a closing mark, belongs to
    the sentence that follows it.
    """
    return _split_at(text, _ITEM_BREAK)


def pieces(text: str) -> list[Span]:
    """Return sentences for removing and moving: blank lines and headings are separate, too."""
    return _split_at(text, _PIECE_BREAK)


def _split_at(text: str, breaks: re.Pattern[str]) -> list[Span]:
    cuts = {(end, end) for end in _sentence_ends(text)} | {m.span() for m in breaks.finditer(text)}
    return _spans_with_words(text, _spans_between(text, merge_spans(sorted(cuts))))


def _sentence_ends(text: str) -> list[int]:
    kept = SpanIndex(protected_spans(text))
    return [m.end() for m in _END.finditer(text) if not kept.overlaps((m.end() - 1, m.end())) and not _sentence_continues(text, m)]


def _spans_with_words(text: str, spans: list[Span]) -> list[Span]:
    return [(start, end) for start, end in spans if any(map(str.isalnum, text[start:end]))]


def _sentence_continues(text: str, match: re.Match[str]) -> bool:
    if match[0] != "." or not text[match.start() - 1 : match.start()].isalnum():
        return False
    before = text[max(0, match.start() - 12) : match.end()]
    return bool(_ABBREVIATION.search(before) and match.end() < len(text)) or bool(_NUMBERING.search(before))


def _spans_between(text: str, cuts: Sequence[Span], start: int = 0, end: int | None = None) -> list[Span]:
    edges = [start, *(edge for cut in cuts for edge in cut), len(text) if end is None else end]
    trimmed = (trim_span(text, a, b) for a, b in zip(edges[::2], edges[1::2], strict=True))
    return [(a, b) for a, b in trimmed if a < b]


def trim_span(text: str, start: int, end: int) -> Span:
    """Return the span without white space at its ends."""
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())


def fenced_blocks(text: str) -> list[Span]:
    """Return the fenced code blocks with their fences; one that is not closed runs to the end."""
    found: list[Span] = []
    start, mark = 0, ""
    for fence in _FENCE.finditer(text):
        if not mark:
            start, mark = fence.start(), fence[1]
        elif fence[1].startswith(mark):
            found.append((start, fence.end()))
            mark = ""
    return [*found, (start, len(text))] if mark else found


def protected_spans(text: str) -> list[Span]:
    """Return the spans that no repair may change: code fences, inline code and URLs, in order."""
    blocks = fenced_blocks(text)
    kept = SpanIndex(blocks)
    small = sorted(m.span() for pattern in (_INLINE_CODE, _URL) for m in pattern.finditer(text) if not kept.overlaps(m.span()))
    return sorted(blocks + merge_spans(small))


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Return sorted spans with overlapping ones merged."""
    merged: list[Span] = []
    for start, end in spans:
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


class SpanIndex:
    """An index of sorted, disjoint spans."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._starts = [start for start, _ in spans]
        self._ends = [end for _, end in spans]

    def overlaps(self, span: Span) -> bool:
        """Return whether any of them shares a character with `span`."""
        index = bisect_right(self._ends, span[0])
        return index < len(self._starts) and self._starts[index] < span[1]


def preserves_protected(text: str, new_text: str) -> bool:
    """Return whether an edited text contains every protected span of the original."""
    return all(text[start:end] in new_text for start, end in protected_spans(text))


def change_unprotected(text: str, change: Callable[[str], str], excluded: Sequence[Span] | None = None) -> str:
    """Return the text with `change` applied between the protected spans."""
    pieces, last = [], 0
    for start, end in protected_spans(text) if excluded is None else excluded:
        pieces += [change(text[last:start]), text[start:end]]
        last = end
    return "".join([*pieces, change(text[last:])])


def removable_spans(text: str) -> list[Span]:
    """Return the pieces without protected spans."""
    kept = SpanIndex(protected_spans(text))
    return [span for span in pieces(text) if not kept.overlaps(span)]


def remove_spans(text: str, spans: Iterable[Span]) -> str:
    """Return the text without these spans; of the white space around each, the side with more line breaks stays."""
    pieces, last = [], 0
    for before, start, end, after in _removal_ranges(text, spans):
        gap = _remaining_gap(text[before:start], text[end:after], first=before == 0, last=after == len(text))
        pieces += [text[last:before], gap]
        last = after
    return "".join([*pieces, text[last:]])


def _removal_ranges(text: str, spans: Iterable[Span]) -> list[tuple[int, int, int, int]]:
    """Return each span with the white space around it, as (before, start, end, after); neighbours are merged."""
    holes: list[tuple[int, int, int, int]] = []
    for start, end in sorted(spans):
        after = end
        while after < len(text) and text[after].isspace():
            after += 1
        if holes and holes[-1][3] >= start:
            holes[-1] = (*holes[-1][:2], end, after)
            continue
        before = start
        while before and text[before - 1].isspace():
            before -= 1
        holes.append((before, start, end, after))
    return holes


def _remaining_gap(before: str, after: str, *, first: bool, last: bool) -> str:
    if first or last:
        return before if first else after
    return after if after.count("\n") > before.count("\n") else before


def apply_changes(text: str, changes: Iterable[tuple[int, int, str]]) -> str:
    """Return the text with each (start, end) replaced by a new text."""
    pieces, last = [], 0
    for start, end, new in sorted(changes):
        pieces += [text[last:start], new]
        last = end
    return "".join([*pieces, text[last:]])


def line_ending(text: str) -> str:
    """Return the line ending that the text uses."""
    return "\r\n" if "\r\n" in text else "\n"
