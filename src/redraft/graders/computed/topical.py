"""Which sentences of an answer are about what the reference says, so that padding cannot earn an overlap.

Any measure of overlap rises when text is added that happens to share words with the reference: "the", "of", a letter.
So a sentence counts only if more than half of its content words stand in the reference, or if it brings a quarter of the
telling words of the reference ("The capital is Canberra." for "Canberra"). The others stay in the answer's length, with
letters that match nothing. Content words are numbers and words of four letters or more (a Chinese character and a kana
count, too); a sentence without any is measured by all its words. Telling are words of four letters or more and numbers
of two digits or more. Who copies words of the reference itself is not stopped by this. It knows no measure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ...requirements import text_spans as texts

HALF = 0.5  # of the words of a sentence
QUARTER = 0.25  # of the words of the reference
NEAR = 80.0  # of 100: as alike as a word and itself with a slip in it
MOST_PAIRS = 300_000  # words times words that are compared for slips; beyond that only equal words count
NO_LETTER = "\ua66e"  # a letter that occurs in one manuscript of 1429

_BREAK = re.compile(r"((?<=[.!?\u2026])\s+|[\r\n]+|(?<=[\u3002\uff01\uff1f]))")


@dataclass(frozen=True, slots=True)
class Topical:
    """An answer with its off-topic sentences made unreadable (`masked`), and without them (`kept`)."""

    masked: str
    kept: str


def everything(text: str) -> Topical:
    return Topical(text, text)


def topical(answer: str, reference: str, *, slips: bool = False) -> Topical:
    """The answer, sorted by sentences. With `slips` a misspelt word of the reference counts as that word."""
    known = words(reference)
    telling = {word for word in known if len(word) >= (2 if word[0].isdigit() else 4)}
    knows, brings = (_near(answer, some) if slips else some.__contains__ for some in (known, telling))
    enough = max(1, QUARTER * len(telling))
    masked, kept = [], []
    for i, piece in enumerate(_BREAK.split(answer)):
        on_topic = i % 2 == 1 or _share(piece, knows) > HALF or sum(map(brings, words(piece))) >= enough
        masked.append(piece if on_topic else _mask(piece))
        kept.append(piece if on_topic else " ")
    return Topical("".join(masked), "".join(kept))


def words(text: str) -> set[str]:
    """The different words of a text, in small letters."""
    return {text[a:b].casefold() for a, b in texts.words(text)}


def content(found: list[str]) -> list[str]:
    """Those that say what it is about; all of them where none does."""
    return [w for w in found if len(w) >= 4 or w[0].isdigit() or w[0] >= "\u2e80"] or found


def _share(piece: str, knows: Callable[[str], bool]) -> float:
    found = content([piece[a:b].casefold() for a, b in texts.words(piece)])
    return sum(map(knows, found)) / len(found) if found else 0.0


def _near(answer: str, known: set[str]) -> Callable[[str], bool]:
    from rapidfuzz import fuzz, process

    said = words(answer)
    if len(said) * len(known) > MOST_PAIRS:
        return known.__contains__
    choices = sorted(known)
    return {word for word in said if process.extractOne(word, choices, scorer=fuzz.ratio, score_cutoff=NEAR)}.__contains__


def _mask(piece: str) -> str:
    out, last = [], 0
    for start, end in texts.words(piece):
        out += [_blank(piece[last:start]), NO_LETTER * (end - start)]
        last = end
    return "".join([*out, _blank(piece[last:])])


def _blank(gap: str) -> str:
    return re.sub(r"\S", " ", gap)
