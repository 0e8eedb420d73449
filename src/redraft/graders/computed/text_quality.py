"""Qualities of the answer alone: how easy it is to read, and how much it repeats itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...base import checks
from ...base.own_code import fingerprint_name
from ...errors import ConfigError
from ...loop.records import Candidate, Feedback
from ...loop.task import Task
from ...protocols import JudgeClient
from ...requirements import text_spans as texts
from ...requirements.length import count_syllables, flesch_kincaid, reading_grade
from .base import compute, score_feedback, with_limit

# ---- reading grade


FALLOFF = 10.0  # grades outside the range, at which the score is 0
SHORT_TEXT_SLACK = (
    100.0  # n words may be 100/n grades outside: the grade of a short text is unreliable
)


@fingerprint_name("readability")
@with_limit
@dataclass(frozen=True)
class Readability:
    """1 if the US school grade (Flesch-Kincaid, Kincaid et al. 1975) lies between `min_grade` and
    `max_grade`, else less.

    The score falls to 0 ten grades outside. The grade is computed at the end of every sentence, for
    the text so far, and the worst counts: easy text that follows does not make up for a hard
    beginning. A beginning of n words may be 100/n grades outside. Made for English; None for a text
    without words in Latin letters. Code blocks are left out. Reads only the answer.
    """

    min_grade: float = 0.0
    max_grade: float = 10.0
    name: str = "readability"

    model_free = True

    def __post_init__(self) -> None:
        checks.number("min_grade", self.min_grade, 0, 100)
        checks.number("max_grade", self.max_grade, 0, 100)
        if self.max_grade < self.min_grade:
            raise ConfigError(
                f"max_grade must be >= min_grade ({self.min_grade:g}), got {self.max_grade!r}"
            )

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return a score from 0 to 1, or None."""
        return await compute(len(candidate.text), self._measure, candidate.text)

    def _measure(self, text: str) -> Feedback:
        whole = reading_grade(text)
        if whole is None:
            return Feedback(
                None, "it cannot be measured: there are no words in Latin letters, or too few"
            )
        distance, words, worst = max(
            (self._distance(grade, words), words, grade) for words, grade in running_grades(text)
        )
        where = "" if abs(worst - whole) < 0.05 else f"; {worst:.1f} in its first {words} words"
        wanted = f"{self.min_grade:g} to {self.max_grade:g}"
        hint = (
            "shorter sentences and words"
            if worst > self.max_grade
            else "longer sentences and richer words"
        )
        reason = f"reading grade {whole:.1f}{where}; wanted {wanted}"
        return score_feedback(
            1 - min(distance, FALLOFF) / FALLOFF,
            reason,
            f"Use {hint}: the reading grade must be {wanted}.",
        )

    def _distance(self, grade: float, words: int) -> float:
        outside = max(self.min_grade - max(grade, 0.0), max(grade, 0.0) - self.max_grade, 0.0)
        return max(0.0, outside - SHORT_TEXT_SLACK / words)


def running_grades(text: str) -> Iterator[tuple[int, float]]:
    """Yield the number of words so far and their grade, at the end of every sentence with Latin
    words.
    """
    prose = texts.change_unprotected(text, lambda piece: piece, texts.fenced_blocks(text)).strip()
    count = syllables = 0
    for number, (start, end) in enumerate(texts.sentences(prose), 1):
        sentence = prose[start:end].lower()
        latin = [
            w
            for a, b in texts.words(sentence)
            if (w := sentence[a:b])[0].isalpha() and w[0] < "\u0250"
        ]
        count, syllables = count + len(latin), syllables + sum(map(count_syllables, latin))
        if latin:
            yield count, flesch_kincaid(count, number, syllables)


# ---- repetition


MIN_SEQUENCES = 6  # fewer count as this many, so that one coincidence does not decide
# a longer word is split into pieces of three letters, so that "hahahaha..." is a repetition, too
MAX_WORD_CHARS = 30


@fingerprint_name("repetition")
@with_limit
@dataclass(frozen=True)
class Repetition:
    """1 minus the largest share of sequences of `n` words that occurred before (rep-n, Welleck et
    al., arXiv:1908.04319).

    The share is computed after every word, of all sequences so far (or of 6, if there are fewer),
    and the largest one counts, so that further text does not make up for a loop. Reads only the
    answer.
    """

    n: int = 4
    name: str = "repetition"

    model_free = True

    def __post_init__(self) -> None:
        checks.whole_number("n", self.n, 1, 50)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the share that is not repeated, from 0 to 1; 1 for a text of fewer than `n`
        words.
        """
        words = await compute(len(candidate.text), lambda: list(_words(candidate.text)))
        repeats, count, sample = _worst_repetition(words, self.n)
        reason = f"no sequence of {self.n} words occurs twice"
        if repeats:
            reason = f"{repeats} of the first {count} sequences of {self.n} words occurred before"
        share = repeats / max(count, MIN_SEQUENCES)
        return score_feedback(
            1 - share,
            reason,
            f"Do not say the same thing again ({sample!r} comes back)." if sample else "",
        )


def _words(text: str) -> Iterator[str]:
    for start, end in texts.words(text):
        word = text[start:end].casefold()
        step = len(word) if len(word) <= MAX_WORD_CHARS else 3
        yield from (word[i : i + step] for i in range(0, len(word), step))


def _worst_repetition(words: list[str], n: int) -> tuple[int, int, str]:
    """Return how many sequences are repeated of how many, up to where their share is largest, and
    the first repeated one.
    """
    seen: set[tuple[str, ...]] = set()
    repeats, sample = 0, ""
    worst = (0, 0)
    for i, gram in enumerate(zip(*(words[k:] for k in range(n)), strict=False), 1):
        if gram in seen:
            repeats += 1
            sample = sample or " ".join(gram)[:80]
        seen.add(gram)
        worst = max(worst, (repeats, i), key=lambda found: found[0] / max(found[1], MIN_SEQUENCES))
    return worst[0], worst[1], sample
