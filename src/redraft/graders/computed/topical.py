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

MIN_KNOWN_SHARE = 0.5  # of the words of a sentence
MIN_REFERENCE_SHARE = 0.25  # of the words of the reference
TYPO_SIMILARITY = 80.0  # of 100: as alike as a word and itself with a slip in it
MAX_WORD_PAIRS = 300_000  # words times words that are compared for slips; beyond that only equal words count
MASK_CHAR = "\ua66e"  # a letter that occurs in one manuscript of 1429

_BREAK = re.compile(r"((?<=[.!?\u2026])\s+|[\r\n]+|(?<=[\u3002\uff01\uff1f]))")


@dataclass(frozen=True, slots=True)
class OnTopicText:
    """An answer with its off-topic sentences made unreadable (`masked`), and without them (`kept`)."""

    masked_text: str
    on_topic_text: str


def whole_text(text: str) -> OnTopicText:
    return OnTopicText(text, text)


def filter_on_topic(answer: str, reference: str, *, tolerate_typos: bool = False) -> OnTopicText:
    """Return the answer, split by topic. With `slips` a misspelt word of the reference counts as that word."""
    known = words(reference)
    telling = {word for word in known if len(word) >= (2 if word[0].isdigit() else 4)}
    knows, brings = (_typo_matcher(answer, some) if tolerate_typos else some.__contains__ for some in (known, telling))
    enough = max(1, MIN_REFERENCE_SHARE * len(telling))
    masked, kept = [], []
    for i, piece in enumerate(_BREAK.split(answer)):
        on_topic = i % 2 == 1 or _known_share(piece, knows) > MIN_KNOWN_SHARE or sum(map(brings, words(piece))) >= enough
        masked.append(piece if on_topic else _mask(piece))
        kept.append(piece if on_topic else " ")
    return OnTopicText("".join(masked), "".join(kept))


def words(text: str) -> set[str]:
    """Return the different words of a text, in lower case."""
    return {text[a:b].casefold() for a, b in texts.words(text)}


def content_words(tokens: list[str]) -> list[str]:
    """Return the content words; all words if there are none."""
    return [w for w in tokens if len(w) >= 4 or w[0].isdigit() or w[0] >= "\u2e80"] or tokens


def _known_share(piece: str, is_known: Callable[[str], bool]) -> float:
    found = content_words([piece[a:b].casefold() for a, b in texts.words(piece)])
    return sum(map(is_known, found)) / len(found) if found else 0.0


def _typo_matcher(answer: str, known: set[str]) -> Callable[[str], bool]:
    from rapidfuzz import fuzz, process

    answer_words = words(answer)
    if len(answer_words) * len(known) > MAX_WORD_PAIRS:
        return known.__contains__
    choices = sorted(known)
    return {
        word for word in answer_words if process.extractOne(word, choices, scorer=fuzz.ratio, score_cutoff=TYPO_SIMILARITY)
    }.__contains__


def _mask(piece: str) -> str:
    out, last = [], 0
    for start, end in texts.words(piece):
        out += [_blank_out(piece[last:start]), MASK_CHAR * (end - start)]
        last = end
    return "".join([*out, _blank_out(piece[last:])])


def _blank_out(gap: str) -> str:
    return re.sub(r"\S", " ", gap)
