"""Length of a text in words, sentences, paragraphs or characters, and its reading grade.

A text that is too long is repaired by dropping whole sentences; one that is too short cannot be
repaired without a model. Paragraphs are joined or split between sentences.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import ClassVar

from ..protocols import Check, Edit
from . import text_spans as texts
from .spec import CountRequirement, Range, RangeRequirement, format_count, requirement
from .text_spans import Span

MAX_LOST_SHARE = 0.5  # of the characters: no repair drops more

_LINE_OF_SPACES = re.compile(r"(\r\n|\n|\r)[^\S\r\n]+(?=\1)")
_BLOCK_START = re.compile(r"[ \t]*(?:#|[-*+|>] |[0-9]{1,3}[.)] |`{3}|~{3})")


class Length(CountRequirement):
    """How long a text is; `note` is what the unit includes."""

    note: ClassVar[str] = ""

    @property
    def demand(self) -> str:
        noun = self.noun if self.count == Range(1, 1) else f"{self.noun}s"
        return f"{self.count.description} {noun}{self.note}"

    def measurement(self, count: int) -> str:
        return format_count(count, self.noun) + self.note

    def remove(self, text: str, surplus: int) -> Iterator[Edit]:
        """Drop enough sentences, for several choices of sentences."""
        spans = texts.removable_spans(text)
        sizes = [max(1, self.count_in(text[start:end])) for start, end in spans]
        for chosen in dict.fromkeys(map(tuple, _drop_candidates(sizes, surplus))):
            yield from drop_sentences(text, [spans[i] for i in chosen])


@requirement("words", "how many words (a Chinese character or a kana is a word)", "words:80-200")
class Words(Length):
    noun = "word"

    def count_in(self, text: str) -> int:
        return texts.count_words(text)


@requirement("sentences", "how many sentences", "sentences:3-5")
class Sentences(Length):
    noun = "sentence"

    def count_in(self, text: str) -> int:
        return len(texts.sentences(text))


@requirement(
    "sentences_and_numbers",
    "how many sentences as NLTK and IFEval count them: a list number such as 1. counts as one",
    "sentences_and_numbers:<10",
)
class SentencesAndNumbers(Length):
    noun = "sentence"
    note = ", list numbers included"

    def count_in(self, text: str) -> int:
        return texts.count_nltk_sentences(text)


@requirement(
    "paragraphs",
    "how many paragraphs, separated by empty lines (a line of spaces is not empty)",
    "paragraphs:4",
)
class Paragraphs(Length):
    noun = "paragraph"

    def count_in(self, text: str) -> int:
        return len(texts.paragraphs(text))

    def add(self, text: str, missing: int) -> Iterator[Edit]:
        """Split at lines of spaces, between lines, or between sentences."""
        without_spaces = texts.change_unprotected(text, partial(_LINE_OF_SPACES.sub, r"\1"))
        yield Edit(without_spaces, "took the spaces from empty lines")
        yield from _split_lines(text, self.count)
        yield from _split_paragraphs(text, missing)

    def remove(self, text: str, surplus: int) -> Iterator[Edit]:
        """Join neighbouring paragraphs: the shortest pairs, the last, the first."""
        pairs = list(pairwise(texts.paragraphs(text)))
        prose = [
            i
            for i, pair in enumerate(pairs)
            if not any(_BLOCK_START.match(text[slice(*span)]) for span in pair)
        ]
        by_size = sorted(prose, key=lambda i: (pairs[i][1][1] - pairs[i][0][0], -i))
        for order in (by_size, prose[::-1], prose):
            if len(order) >= surplus:
                yield _fill_gaps(
                    text, [(pairs[i][0][1], pairs[i][1][0]) for i in order[:surplus]], " "
                )
        gaps = [(a[1], b[0]) for a, b in pairs]
        if len(gaps) >= surplus:
            for chosen in (gaps[-surplus:], gaps[:surplus]):
                yield _fill_gaps(text, chosen, texts.line_ending(text))


@requirement("characters", "how many characters", "characters:<280")
class Characters(Length):
    """White space at the ends is not counted."""

    noun = "character"

    def count_in(self, text: str) -> int:
        return len(text.strip())


# ---- repairs: drop sentences


def _drop_candidates(sizes: Sequence[int], surplus: int) -> Iterator[list[int]]:
    """Yield the indexes of sentences to drop: one that fits best, then runs that end 0 to 3 before
    the end, then the longest.
    """
    fitting = sorted((size, -i) for i, size in enumerate(sizes) if size >= surplus)
    yield from ([-i] for _, i in fitting[:6])
    last = len(sizes) - 1
    inner = range(1, last)
    orders: list[Iterable[int]] = [range(last - spared, -1, -1) for spared in (0, 1, 2, 3)]
    orders += [
        inner,
        *(sorted(each, key=lambda i: (-sizes[i], -i)) for each in (inner, range(last + 1))),
    ]
    for order in orders:
        yield _choose_until(order, sizes, surplus)


def _choose_until(order: Iterable[int], sizes: Sequence[int], surplus: int) -> list[int]:
    chosen: list[int] = []
    left = surplus
    for i in order:
        if left <= 0:
            break
        chosen.append(i)
        left -= sizes[i]
    return sorted(chosen) if left <= 0 else []


def drop_sentences(text: str, spans: Sequence[Span]) -> Iterator[Edit]:
    """Yield the text without these sentences; nothing if that would drop more than half of it."""
    if spans and sum(end - start for start, end in spans) <= MAX_LOST_SHARE * len(text.strip()):
        yield Edit(
            texts.remove_spans(text, spans),
            f"dropped {format_count(len(spans), 'sentence')}",
            lossy=True,
        )


# ---- repairs: join and split paragraphs


def _fill_gaps(text: str, gaps: Sequence[Span], glue: str) -> Edit:
    joined = texts.apply_changes(text, [(start, end, glue) for start, end in gaps])
    return Edit(joined, f"joined paragraphs at {format_count(len(gaps), 'place')}")


def _split_lines(text: str, count: Range) -> Iterator[Edit]:
    """Yield the text with each line as a paragraph, if that meets the demand."""
    spans = texts.lines(text)
    fenced = texts.SpanIndex(texts.fenced_blocks(text))
    if len(spans) in count and not any(fenced.overlaps(span) for span in spans):
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
    edges = sorted({edge for span in texts.paragraphs(text) for edge in span})
    stretches = [
        (start - end, start, end) for start, end in pairwise(edges) if _between(places, start, end)
    ]
    chosen: list[Span] = []
    while len(chosen) < missing:
        longest = min(stretches)  # the first is the negative length
        stretches.remove(longest)
        _, start, end = longest
        middle = (start + end) / 2
        best = min(_between(places, start, end), key=lambda place: abs(place[0] - middle))
        chosen.append(best)
        halves = ((start, best[0]), (best[0], end))
        stretches += [(a - b, a, b) for a, b in halves if _between(places, a, b)]
    return chosen


def _between(places: Sequence[Span], start: int, end: int) -> Sequence[Span]:
    """Return the places that begin between two positions."""
    first = bisect_right(places, start, key=itemgetter(0))
    return places[first : bisect_left(places, end, key=itemgetter(0))]


# ---- reading grade


_VOWELS = re.compile(r"[aeiouyàâäéèêëîïôöùûü]+")
_SILENT_ENDING = re.compile(r"(?:[^laeiouy]es|[^aeiouytd]ed|[^laeiouy]e)\Z")


@requirement("reading_grade", "Flesch-Kincaid school grade, for English", "reading_grade:-8")
class ReadingGrade(RangeRequirement):
    """The US school grade by the Flesch-Kincaid formula (Kincaid et al. 1975), made for English.

    A text that is not mostly in Latin letters cannot be measured and does not meet the demand.
    There is no repair.
    """

    editable = False

    @property
    def demand(self) -> str:
        return f"a Flesch-Kincaid reading grade of {self.count.description}"

    def measure(self, text: str) -> Check:
        grade = reading_grade(text)
        if grade is None:
            return Check(
                ok=False, measurement="cannot be measured: the text is not in Latin script"
            )
        return self.count.check(max(0.0, round(grade, 1)), f"reading grade {grade:.1f}")


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
