"""Length of a text in words, sentences, paragraphs or characters, and its reading grade.

A text that is too long is repaired by dropping whole sentences; one that is too short cannot be
repaired without a model. Paragraphs are joined or split between sentences.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import pairwise
from operator import itemgetter
from typing import ClassVar

from ..protocols import Check, Edit
from . import text_spans as texts
from .spec import Range, format_count, parse_range, register_kind, requirement
from .text_spans import Span

MAX_LOST_SHARE = 0.5  # of the characters: no repair drops more

SENTENCES_AND_NUMBERS = "sentences_and_numbers"
COUNTS: dict[str, Callable[[str], int]] = {
    "words": texts.count_words,
    "sentences": lambda text: len(texts.sentences(text)),
    SENTENCES_AND_NUMBERS: texts.count_nltk_sentences,
    "paragraphs": lambda text: len(texts.paragraphs(text)),
    "characters": lambda text: len(text.strip()),
}
_LINE_OF_SPACES = re.compile(r"(\r\n|\n|\r)[^\S\r\n]+(?=\1)")
_BLOCK_START = re.compile(r"[ \t]*(?:#|[-*+|>] |[0-9]{1,3}[.)] |`{3}|~{3})")


@requirement
class Length:
    """The number of words, sentences, paragraphs or characters (white space at the ends is not
    counted).
    """

    unit: str
    range: Range

    @property
    def spec(self) -> str:
        return f"{self.unit}:{self.range}"

    @property
    def demand(self) -> str:
        noun = _plural(self.unit)
        return (
            f"{self.range.description} "
            f"{noun[:-1] if self.range == Range(1, 1) else noun}{_list_number_note(self.unit)}"
        )

    def check(self, text: str) -> Check:
        count, noun = COUNTS[self.unit](text), _plural(self.unit)
        measurement = format_count(count, noun[:-1], noun) + _list_number_note(self.unit)
        return Check(count in self.range, measurement, self.range.nearness(count))

    def repairs(self, text: str) -> Iterator[Edit]:
        count = COUNTS[self.unit](text)
        if self.unit == "paragraphs":
            yield from _regroup_paragraphs(text, self.range, count)
        elif surplus := self.range.surplus(count):
            yield from shorten(text, surplus, COUNTS[self.unit])


def _plural(unit: str) -> str:
    return unit.partition("_")[0]


def _list_number_note(unit: str) -> str:
    return ", list numbers included" if unit == SENTENCES_AND_NUMBERS else ""


@register_kind("words", "how many words (a Chinese character or a kana is a word)", "words:80-200")
def words(argument: str) -> Length:
    return Length("words", parse_range(argument))


@register_kind("sentences", "how many sentences", "sentences:3-5")
def sentences(argument: str) -> Length:
    return Length("sentences", parse_range(argument))


@register_kind(
    SENTENCES_AND_NUMBERS,
    "how many sentences as NLTK and IFEval count them: a list number such as 1. counts as one",
    f"{SENTENCES_AND_NUMBERS}:<10",
)
def sentences_and_numbers(argument: str) -> Length:
    return Length(SENTENCES_AND_NUMBERS, parse_range(argument))


@register_kind(
    "paragraphs",
    "how many paragraphs, separated by empty lines (a line of spaces is not empty)",
    "paragraphs:4",
)
def paragraphs(argument: str) -> Length:
    return Length("paragraphs", parse_range(argument))


@register_kind("characters", "how many characters", "characters:<280")
def characters(argument: str) -> Length:
    return Length("characters", parse_range(argument))


# ---- repairs: drop sentences


def shorten(text: str, surplus: int, measure: Callable[[str], int]) -> Iterator[Edit]:
    """Yield the text without enough sentences to lose `surplus` by `measure`, for several choices
    of sentences.
    """
    spans = texts.removable_spans(text)
    sizes = [max(1, measure(text[start:end])) for start, end in spans]
    tried: set[tuple[int, ...]] = set()
    for chosen in _drop_candidates(sizes, surplus):
        if tuple(chosen) not in tried:
            tried.add(tuple(chosen))
            yield from drop_sentences(text, [spans[i] for i in chosen])


def _drop_candidates(sizes: Sequence[int], surplus: int) -> Iterator[list[int]]:
    """Yield the indexes of sentences to drop: one that fits best, then runs that end 0 to 3 before
    the end, then the longest.
    """
    fitting = sorted((size, -i) for i, size in enumerate(sizes) if size >= surplus)
    yield from ([-i] for _, i in fitting[:6])
    for spared in (0, 1, 2, 3):
        yield _choose_until(range(len(sizes) - spared - 1, -1, -1), sizes, surplus)
    yield _choose_until(range(1, len(sizes) - 1), sizes, surplus)
    yield _choose_until(
        sorted(range(1, len(sizes) - 1), key=lambda i: (-sizes[i], -i)), sizes, surplus
    )
    yield _choose_until(sorted(range(len(sizes)), key=lambda i: (-sizes[i], -i)), sizes, surplus)


def _choose_until(order: Iterable[int], sizes: Sequence[int], surplus: int) -> list[int]:
    chosen: list[int] = []
    left = surplus
    for i in order:
        if left <= 0:
            break
        chosen.append(i)
        left -= sizes[i]
    return sorted(chosen) if left <= 0 else []


def drop_sentences(text: str, spans: Sequence[Span], noun: str = "sentence") -> Iterator[Edit]:
    """Yield the text without these sentences; nothing if that would drop more than half of it."""
    if spans and sum(end - start for start, end in spans) <= MAX_LOST_SHARE * len(text.strip()):
        yield Edit(
            texts.remove_spans(text, spans), f"dropped {format_count(len(spans), noun)}", lossy=True
        )


# ---- repairs: join and split paragraphs


def _regroup_paragraphs(text: str, range: Range, count: int) -> Iterator[Edit]:
    if surplus := range.surplus(count):
        yield from _join_paragraphs(text, surplus)
    elif missing := range.shortfall(count):
        yield Edit(
            texts.change_unprotected(text, partial(_LINE_OF_SPACES.sub, r"\1")),
            "took the spaces from empty lines",
        )
        yield from _split_lines(text, range)
        yield from _split_paragraphs(text, missing)


def _join_paragraphs(text: str, surplus: int) -> Iterator[Edit]:
    """Yield the text with neighbouring paragraphs joined: the shortest pairs, the last, the
    first.
    """
    spans = texts.paragraphs(text)
    pairs = list(pairwise(spans))
    prose = [
        i
        for i, pair in enumerate(pairs)
        if not any(_BLOCK_START.match(text[slice(*span)]) for span in pair)
    ]
    by_size = sorted(prose, key=lambda i: (pairs[i][1][1] - pairs[i][0][0], -i))
    for order in (by_size, prose[::-1], prose):
        if len(order) >= surplus:
            yield _fill_gaps(text, [(pairs[i][0][1], pairs[i][1][0]) for i in order[:surplus]], " ")
    gaps = [(a[1], b[0]) for a, b in pairs]
    if len(gaps) >= surplus:
        for chosen in (gaps[-surplus:], gaps[:surplus]):
            yield _fill_gaps(text, chosen, texts.line_ending(text))


def _fill_gaps(text: str, gaps: Sequence[Span], glue: str) -> Edit:
    joined = texts.apply_changes(text, [(start, end, glue) for start, end in gaps])
    return Edit(joined, f"joined paragraphs at {format_count(len(gaps), 'place')}")


def _split_lines(text: str, range: Range) -> Iterator[Edit]:
    """Yield the text with each line as a paragraph, if that meets the demand."""
    spans = texts.lines(text)
    fenced = texts.SpanIndex(texts.fenced_blocks(text))
    if len(spans) in range and not any(fenced.overlaps(span) for span in spans):
        gap = texts.line_ending(text) * 2
        gaps = [(a[1], b[0], gap) for a, b in pairwise(spans)]
        yield Edit(texts.apply_changes(text, gaps), "put a blank line between the lines")


def _split_paragraphs(text: str, missing: int) -> Iterator[Edit]:
    """Yield the text with the longest paragraphs split between sentences."""
    places = _sentence_gaps(text)
    if len(places) < missing:
        return
    spread = (
        _balanced_splits(places, missing, text)
        if missing <= 50
        else places[:: len(places) // missing][:missing]
    )
    for chosen in (spread, places[:missing], places[-missing:]):
        gap = texts.line_ending(text) * 2
        changed = texts.apply_changes(text, [(start, end, gap) for start, end in chosen])
        yield Edit(changed, f"split paragraphs at {format_count(missing, 'place')}")


def _sentence_gaps(text: str) -> list[Span]:
    """Return the gaps between sentences within paragraphs of prose."""
    starts = {start for start, _ in texts.paragraphs(text)}
    gaps = [(a[1], b[0]) for a, b in pairwise(texts.pieces(text)) if b[0] not in starts]
    return texts.unprotected_spans(text, (gap for gap in gaps if text[slice(*gap)].isspace()))


def _balanced_splits(places: Sequence[Span], missing: int, text: str) -> list[Span]:
    """Return the places that split, again and again, the longest stretch nearest its middle."""
    stretches = [
        (start - end, start, end)
        for start, end in pairwise(_paragraph_edges(text))
        if _places_between(places, start, end)
    ]
    heapify(stretches)  # longest first: the key is the negative length
    chosen: list[Span] = []
    while len(chosen) < missing:
        _, start, end = heappop(stretches)
        best = min(
            _places_between(places, start, end), key=lambda place: abs(place[0] - (start + end) / 2)
        )
        chosen.append(best)
        for a, b in ((start, best[0]), (best[0], end)):
            if _places_between(places, a, b):
                heappush(stretches, (a - b, a, b))
    return chosen


def _paragraph_edges(text: str) -> list[int]:
    return sorted({edge for span in texts.paragraphs(text) for edge in span})


def _places_between(places: Sequence[Span], start: int, end: int) -> Sequence[Span]:
    """Return the places that begin between two positions."""
    return places[
        bisect_right(places, start, key=itemgetter(0)) : bisect_left(places, end, key=itemgetter(0))
    ]


# ---- reading grade


_VOWELS = re.compile(r"[aeiouyàâäéèêëîïôöùûü]+")
_SILENT_ENDING = re.compile(r"(?:[^laeiouy]es|[^aeiouytd]ed|[^laeiouy]e)\Z")


@requirement
class ReadingGrade:
    """The US school grade by the Flesch-Kincaid formula (Kincaid et al. 1975), made for English.

    A text that is not mostly in Latin letters cannot be measured and does not meet the demand.
    There is no repair.
    """

    range: Range

    @property
    def spec(self) -> str:
        return f"reading_grade:{self.range}"

    @property
    def demand(self) -> str:
        return f"a Flesch-Kincaid reading grade of {self.range.description}"

    def check(self, text: str) -> Check:
        grade = reading_grade(text)
        if grade is None:
            return Check(
                ok=False, measurement="cannot be measured: the text is not in Latin script"
            )
        shown = max(0.0, round(grade, 1))
        return Check(shown in self.range, f"reading grade {grade:.1f}", self.range.nearness(shown))

    editable: ClassVar[bool] = False

    def repairs(self, text: str) -> Iterator[Edit]:
        del text
        return iter(())


def reading_grade(text: str) -> float | None:
    """Return the school grade of a text; None if it cannot be measured."""
    prose = texts.change_unprotected(text, lambda piece: piece, texts.fenced_blocks(text)).strip()
    tokens = [prose[start:end].lower() for start, end in texts.words(prose)]
    latin = [token for token in tokens if token[0].isalpha() and token[0] < "\u0250"]
    if not latin or len(latin) * 2 < sum(token[0].isalpha() for token in tokens):
        return None
    return flesch_kincaid(len(latin), len(texts.sentences(prose)), sum(map(count_syllables, latin)))


def flesch_kincaid(words: int, sentences: int, syllables: int) -> float:
    """Return the school grade by the formula of Kincaid et al. (1975)."""
    return 0.39 * words / sentences + 11.8 * syllables / words - 15.59


def count_syllables(word: str) -> int:
    return max(1, len(_VOWELS.findall(word)) - bool(_SILENT_ENDING.search(word)))


@register_kind("reading_grade", "Flesch-Kincaid school grade, for English", "reading_grade:-8")
def as_reading_grade(argument: str) -> ReadingGrade:
    return ReadingGrade(parse_range(argument))
