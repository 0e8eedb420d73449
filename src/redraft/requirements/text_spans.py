"""Spans of a text: words, sentences, paragraphs, lines, and the protected spans that no repair may
change.

A span is (start, end) in characters. Everything takes time linear in the length of the text.
Nothing here knows a requirement.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
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
_NUMBERING = re.compile(
    r"(?:\A|[\r\n])[ \t]*(?:[#>*-]+[ \t]*)?\**(?:[0-9]{1,3}|[ivxIVX]{1,4}|[A-Za-z])\.\Z"
)


@cache
def _word_pattern() -> Any:
    import regex

    cjk = r"\p{Han}\p{Hiragana}\p{Katakana}\u30fc\uff70"
    return regex.compile(rf"(?V1)[\w&&[{cjk}]]|[\w--[{cjk}]]+")


def words(text: str) -> list[Span]:
    """Return runs of letters, digits, marks and `_`; every Chinese character and every kana is a
    word of its own.
    """
    return [match.span() for match in _word_pattern().finditer(text)]


def folded_words(text: str) -> list[str]:
    """Return the `words`, ignoring case."""
    return [text[start:end].casefold() for start, end in words(text)]


def count_words(text: str) -> int:
    """Return how many `words` there are."""
    return len(_word_pattern().findall(text))


def lines(text: str) -> list[Span]:
    """Return the lines that are not blank, without their line ends."""
    return [m.span() for m in _LINE.finditer(text) if not m[0].isspace()]


def paragraphs(text: str) -> list[Span]:
    """Return the paragraphs: empty lines separate them (a line of spaces does not), except inside a
    fenced block.
    """
    breaks = matches_outside(_BREAK, text, fenced_blocks(text))
    return _spans_between(text, [m.span() for m in breaks])


def sentences(text: str) -> list[Span]:
    """Return the sentences by their closing marks, in any script that has such marks; a list item
    starts one, too.

    Abbreviations, initials, list numbers, code and URLs end none. A heading, or another line
    without a closing mark, belongs to the sentence that follows it.
    """
    return _split_at(text, _ITEM_BREAK)


def pieces(text: str) -> list[Span]:
    """Return sentences for removing and moving: blank lines and headings are separate, too."""
    return _split_at(text, _PIECE_BREAK)


def _split_at(text: str, breaks: re.Pattern[str]) -> list[Span]:
    cuts = {(end, end) for end in _sentence_ends(text)} | {m.span() for m in breaks.finditer(text)}
    spans = _spans_between(text, merge_spans(sorted(cuts)))
    return [(start, end) for start, end in spans if any(map(str.isalnum, text[start:end]))]


def _sentence_ends(text: str) -> list[int]:
    protected = SpanIndex(protected_spans(text))
    ends = (m for m in _END.finditer(text) if not protected.overlaps((m.end() - 1, m.end())))
    return [m.end() for m in ends if not _sentence_continues(text, m)]


def _sentence_continues(text: str, match: re.Match[str]) -> bool:
    if match[0] != "." or not text[match.start() - 1 : match.start()].isalnum():
        return False
    before = text[max(0, match.start() - 12) : match.end()]
    return bool(_ABBREVIATION.search(before) and match.end() < len(text)) or bool(
        _NUMBERING.search(before)
    )


def _spans_between(text: str, cuts: Sequence[Span]) -> list[Span]:
    """Return what is not blank between the cuts, without white space at its ends."""
    trimmed = (trim_span(text, a, b) for a, b in gaps_between(text, cuts))
    return [(a, b) for a, b in trimmed if a < b]


def gaps_between(text: str, spans: Sequence[Span]) -> Iterator[Span]:
    """Yield what is before, between and after spans."""
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    return zip(edges[::2], edges[1::2], strict=True)


def trim_span(text: str, start: int, end: int) -> Span:
    """Return the span without white space at its ends."""
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())


def fenced_blocks(text: str) -> list[Span]:
    """Return the fenced code blocks with their fences; one that is not closed runs to the end."""
    blocks: list[Span] = []
    start, mark = 0, ""
    for fence in _FENCE.finditer(text):
        if not mark:
            start, mark = fence.start(), fence[1]
        elif fence[1].startswith(mark):
            blocks.append((start, fence.end()))
            mark = ""
    return [*blocks, (start, len(text))] if mark else blocks


def protected_spans(text: str) -> list[Span]:
    """Return the spans that no repair may change: code fences, inline code and URLs, in order."""
    blocks = fenced_blocks(text)
    small = sorted(
        m.span() for pattern in (_INLINE_CODE, _URL) for m in matches_outside(pattern, text, blocks)
    )
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


def matches_outside(
    pattern: re.Pattern[str], text: str, spans: Sequence[Span]
) -> list[re.Match[str]]:
    """Return the matches of a pattern that overlap none of the sorted, disjoint spans."""
    index = SpanIndex(spans)
    return [match for match in pattern.finditer(text) if not index.overlaps(match.span())]


def preserves_protected(text: str, new_text: str) -> bool:
    """Return whether an edited text contains every protected span of the original."""
    return all(text[start:end] in new_text for start, end in protected_spans(text))


def change_unprotected(
    text: str, change: Callable[[str], str], excluded: Sequence[Span] | None = None
) -> str:
    """Return the text with `change` applied between the protected spans."""
    protected = protected_spans(text) if excluded is None else excluded
    gaps = gaps_between(text, protected)
    return apply_changes(text, [(a, b, change(text[a:b])) for a, b in gaps])


def removable_spans(text: str) -> list[Span]:
    """Return the pieces without protected spans."""
    return unprotected_spans(text, pieces(text))


def unprotected_spans(text: str, spans: Iterable[Span]) -> list[Span]:
    """Return the spans that overlap no protected span."""
    protected = SpanIndex(protected_spans(text))
    return [span for span in spans if not protected.overlaps(span)]


def remove_spans(text: str, spans: Iterable[Span]) -> str:
    """Return the text without these spans; of the white space around each, the side with more line
    breaks stays.
    """
    holes: list[
        tuple[int, int, int, int]
    ] = []  # with the white space around: before, start, end, after
    for start, end in sorted(spans):
        before, after = whitespace_start(text, start), end
        while after < len(text) and text[after].isspace():
            after += 1
        if holes and holes[-1][3] >= start:
            holes[-1] = (*holes[-1][:2], end, after)
        else:
            holes.append((before, start, end, after))
    return apply_changes(text, [(hole[0], hole[3], _remaining_gap(text, *hole)) for hole in holes])


def whitespace_start(text: str, at: int, minimum: int = 0) -> int:
    """Return where the white space begins that ends at a position."""
    while at > minimum and text[at - 1].isspace():
        at -= 1
    return at


def _remaining_gap(text: str, before: int, start: int, end: int, after: int) -> str:
    leading, trailing = text[before:start], text[end:after]
    is_last, has_more_lines = after == len(text), trailing.count("\n") > leading.count("\n")
    return trailing if before and (is_last or has_more_lines) else leading


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


# ---- sentences as NLTK counts them
#
# NLTK's English tokenizer, which IFEval uses, is Punkt (Kiss and Strunk 2006). It ends a sentence
# at every full stop, question mark and exclamation mark before white space, a bracket, a quotation
# mark, a colon or an asterisk, whatever follows. After abbreviations, initials, numbers and "..."
# the next word decides. NLTK uses a table learned from newspapers; here a few words replace it. A
# list number such as "1." is a sentence, and so is an asterisk left at the end ("**Done.**").


_CURLY = "\u2018\u2019\u201c\u201d\u00ab\u00bb"
_NON_WORD = rf"?!)\";}}\]*:@'({{\[{_CURLY}"  # characters that no word contains
_NLTK_END = re.compile(rf"[.?!](?=[{_NON_WORD}]|\s+\S)")
_CLOSING = re.compile(rf"[\"')\]}}{_CURLY}]+?(?:\s+|(?=--)|$)", re.MULTILINE)
_INNER_STOP = re.compile(rf"(?:[?!](?=[{_NON_WORD}]|\.\.)|(?<!\.)\.(?=[{_NON_WORD}]))")
_TOKEN = re.compile(rf"(?:\.{{2,}}|['{_CURLY}]?(?:[^\s{_NON_WORD}.`&#,-][^\s{_NON_WORD}]*)?\.)\Z")
_NEXT_TOKEN = re.compile(
    rf"[(\"`{{\[:;&#*@)}}\],-]|[^\s][^\s{_NON_WORD}]*?(?=[\s{_NON_WORD}]|--|\.\.|,(?:[\s{_NON_WORD}]|\Z)|\Z)"
)
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*\.?")
_INITIAL = re.compile(r"[^\W\d]\.")
_LINE_START = re.compile(r"(?:\A|\n)[ \t]*\Z")
MAX_WORD_CHARS = 80  # longer words are cut


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Abbreviations in NLTK's English model ("etc.", "e.g." and "i.e." are not).
ABBREVIATIONS = _word_set(
    """
    mr mrs ms dr prof st sr jr gen col lt maj sen rep reps messrs adm ph.d m.b.a co corp inc ltd bros cos cie dept ave ft
    va vs chg yr ok jan feb aug sept sep oct nov dec tues wed fri a.m p.m u.s u.k u.n u.s.a u.s.s.r d.c n.y l.a n.j a.d
    j.k calif mass tenn minn okla ariz ore wis fla colo kan mich conn ill wash ala nev ky ga vt c d e f g h k l m n p r s
    t v w
    """
)
# Words that often start sentences: Punkt lets them do so after an abbreviation, too.
SENTENCE_STARTERS = _word_set(
    """
    the he it i in but if this they there however when while since so these both most some many under although though
    instead similarly nevertheless nonetheless thus nor yet even indeed meanwhile moreover despite according among
    """
)
# Words often written in lower case, so that they are not part of a name after an initial.
COMMON_WORDS = _word_set(
    """
    a an i you we she my your his her our its their then therefore here what who whom whose which how why where let please
    perhaps maybe well as at for from to of on by with and or not no yes first next finally also one two three every each
    all any another other are is was were do does did can could will would should may might must have has had be now using
    given because until after before during once only
    """
)


def count_nltk_sentences(text: str) -> int:
    """Return the number of sentences; 0 for an empty text."""
    if not text.strip():
        return 0
    count = last = seen = 0
    ends = [match.end() for match in _NLTK_END.finditer(text)]
    for end, following in pairwise([*ends, len(text)]):
        if (
            following != len(text)
            and len(text[end:following].split(maxsplit=1)) == 1
            and not text[end].isspace()
        ):
            continue  # of several in one word, the last decides
        word = text[seen:end].rsplit(maxsplit=1)[-1]
        seen = end
        if _ends_sentence(word, text, end):
            count, last = count + 1, end
    rest = text[last:].lstrip() if last else text
    closing = _CLOSING.match(rest) if last else None
    return count + (len(rest) > (closing.end() if closing else 0))


def _ends_sentence(word: str, text: str, end: int) -> bool:
    """Return whether a sentence ends with a word that ends with a closing mark."""
    token = _TOKEN.search(word[-MAX_WORD_CHARS:])
    if token is None or _INNER_STOP.search(word):
        return True
    whole = token[0].rpartition("--")[2]
    name, rest = whole[:-1].lower(), text[end : end + MAX_WORD_CHARS]
    token_match = _NEXT_TOKEN.match(rest.lstrip())
    following = token_match[0] if token_match else ""
    continues = following[:1].islower() or following in {";", ":", ",", ".", "!", "?"}
    capital = following[:1].isupper()
    if _INITIAL.fullmatch(whole):
        # "A. Paris"
        label = following.isalpha() and bool(
            _LINE_START.search(text[max(0, end - MAX_WORD_CHARS) : end - len(word)])
        )
        common = following.lower() in SENTENCE_STARTERS | COMMON_WORDS or (
            following[1:].islower() and "\n" in rest[: len(rest) - len(rest.lstrip())]
        )
        return name not in ABBREVIATIONS and not continues and (label or common or not capital)
    if _NUMBER.fullmatch(whole):
        return not continues
    abbreviated = name in ABBREVIATIONS or name.rpartition("-")[2] in ABBREVIATIONS
    return (
        (capital and following.lower() in SENTENCE_STARTERS)
        if abbreviated or whole.endswith("..")
        else True
    )
