"""How easy a text is to read: its Flesch-Kincaid grade, compared with a range."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from ...core.records import Candidate, Feedback, Task
from ...errors import ConfigError
from ...own_code import fingerprint_name
from ...protocols import JudgeClient
from ...requirements import text_spans as texts
from ...requirements.length import count_syllables as syllables
from ...requirements.length import reading_grade
from .arguments import check_number
from .compute_limits import with_limit
from .views import score_feedback

FALLOFF = 10.0  # grades outside the range at which the score is 0
SHORT_TEXT_SLACK = 100.0  # a stretch of n words may be 100/n grades outside: the fewer words, the less its grade says


@fingerprint_name("readability")
@with_limit
@dataclass(frozen=True)
class Readability:
    """1 if the US school grade (Flesch-Kincaid, Kincaid et al. 1975) lies between `min_grade` and `max_grade`, else less.

    The score falls to 0 ten grades outside. The grade is computed at the end of every sentence, for the text so far, and the
    worst counts: easy text that follows does not make up for a hard beginning. A beginning of n words may be 100/n grades
    outside. Made for English; None for a text without words in Latin letters. Code blocks are left out. Reads only the answer.
    """

    min_grade: float = 0.0
    max_grade: float = 10.0
    name: str = "readability"

    model_free = True

    def __post_init__(self) -> None:
        check_number("min_grade", self.min_grade, 0, 100)
        check_number("max_grade", self.max_grade, 0, 100)
        if self.max_grade < self.min_grade:
            raise ConfigError(f"max_grade must be >= min_grade ({self.min_grade:g}), got {self.max_grade!r}")

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return a score from 0 to 1, or None."""
        return await asyncio.to_thread(self._measure, candidate.text)

    def _measure(self, text: str) -> Feedback:
        whole = reading_grade(text)
        if whole is None:
            return Feedback(None, "it cannot be measured: there are no words in Latin letters, or too few")
        off, words, worst = max((self._distance(grade, words), words, grade) for words, grade in running_grades(text))
        where = "" if abs(worst - whole) < 0.05 else f"; {worst:.1f} in its first {words} words"
        wanted = f"{self.min_grade:g} to {self.max_grade:g}"
        hint = "shorter sentences and words" if worst > self.max_grade else "longer sentences and richer words"
        reason = f"reading grade {whole:.1f}{where}; wanted {wanted}"
        return score_feedback(1 - min(off, FALLOFF) / FALLOFF, reason, f"Use {hint}: the reading grade must be {wanted}.")

    def _distance(self, grade: float, words: int) -> float:
        outside = max(self.min_grade - max(grade, 0.0), max(grade, 0.0) - self.max_grade, 0.0)
        return max(0.0, outside - SHORT_TEXT_SLACK / words)


def running_grades(text: str) -> Iterator[tuple[int, float]]:
    """Yield the number of words so far and their grade, at the end of every sentence with Latin words."""
    prose = texts.change_unprotected(text, lambda piece: piece, texts.fenced_blocks(text)).strip()
    count = spoken = 0
    for number, (start, end) in enumerate(texts.sentences(prose), 1):
        sentence = prose[start:end].lower()
        latin = [w for a, b in texts.words(sentence) if (w := sentence[a:b])[0].isalpha() and w[0] < "\u0250"]
        count, spoken = count + len(latin), spoken + sum(map(syllables, latin))
        if latin:
            yield count, 0.39 * count / number + 11.8 * spoken / count - 15.59
