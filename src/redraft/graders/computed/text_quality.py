"""Qualities of the answer alone: its length, how easy it is to read, and how much it repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...base import checks
from ...base.checks import needs_extra
from ...base.own_code import fingerprint_name
from ...errors import ConfigError
from ...loop.records import Candidate, Feedback
from ...loop.task import Task
from ...requirements import text_spans as texts
from ...requirements.length import count_syllables, flesch_kincaid, reading_grade
from ...requirements.spec import Range, format_count, parse_range
from .base import ComputedGrader, score_feedback

# ---- length


ENCODING = "o200k_base"
UNITS = ("words", "characters", "tokens")


@fingerprint_name("length")
@dataclass(frozen=True)
class GradedLength(ComputedGrader):
    """1 if the length lies in a range, else less: the score falls in a straight line to 0.

    Exactly one of `words`, `characters` and `tokens` gives the range, as requirements write it:
    "80-200", "80-", "-200", "100", "<300". Outside, the score is 1 - distance / (`falloff` x the
    nearer end of the range), and at least 0. With the default `falloff` of 1 and at most 200 words,
    300 words score 0.5 and 400 words 0; with at least 80 words, 40 score 0.5.

    White space at the ends does not count. Words and characters are those of the requirements
    `words` and `characters`: each Chinese character and each kana is a word. Tokens are those of
    OpenAI's encoding o200k_base (GPT-4o and later), and need the extra `tokens`; other models split
    texts in other ways.
    """

    words: str = ""
    characters: str = ""
    tokens: str = ""
    falloff: float = 1.0
    name: str = "length"

    package = "bpe_openai"

    def __post_init__(self) -> None:
        checks.positive("falloff", self.falloff)
        for unit in UNITS:
            checks.text(unit, getattr(self, unit), allow_blank=True)
        self.range  # noqa: B018  (raises for an invalid range)

    @property
    def unit(self) -> str:
        """The unit of the range. Raises ConfigError unless exactly one is given."""
        units = [unit for unit in UNITS if getattr(self, unit).strip()]
        if len(units) != 1:
            given = " and ".join(units) or "none"
            raise ConfigError(
                "length needs a range of words, characters or tokens, such as words=80-200; got "
                f"{given}"
            )
        return units[0]

    @property
    def range(self) -> Range:
        """The wanted range. Raises ConfigError."""
        unit = self.unit
        try:
            return parse_range(getattr(self, unit))
        except ConfigError as error:
            raise ConfigError(f"{unit}: {error}") from None

    def check_environment(self) -> None:
        """Raise ConfigError if the extra that counts tokens is missing."""
        if self.unit == "tokens":
            _encoding()

    def assess(self, task: Task, candidate: Candidate) -> Feedback:
        """Return a score from 0 to 1. Raises ConfigError if tokens cannot be counted without the
        extra.
        """
        count, noun = COUNTS[self.unit](candidate.text), self.unit[:-1]
        wanted = f"{self.range.description} {self.unit}"
        surplus, shortfall = self.range.surplus(count), self.range.shortfall(count)
        bound = (self.range.maximum or 0) if surplus else self.range.minimum
        score = max(0.0, 1 - (surplus + shortfall) / (self.falloff * max(bound, 1)))
        reason = f"{format_count(count, noun)}; wanted {wanted}"
        return score_feedback(
            score, reason, f"The answer has {format_count(count, noun)}: write {wanted}."
        )


def _count_tokens(text: str) -> int:
    return len(_encoding().encode_ordinary(text.strip()))


@cache
def _encoding() -> Any:
    with needs_extra("tokens", "length in tokens needs an extra"):
        import bpe_openai
    return bpe_openai.get_encoding(ENCODING)


COUNTS: dict[str, Callable[[str], int]] = {
    "words": texts.count_words,
    "characters": lambda text: len(text.strip()),
    "tokens": _count_tokens,
}


# ---- reading grade


FALLOFF = 10.0  # grades outside the range, at which the score is 0
SHORT_TEXT_SLACK = (
    100.0  # n words may be 100/n grades outside: the grade of a short text is unreliable
)


@fingerprint_name("readability")
@dataclass(frozen=True)
class Readability(ComputedGrader):
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

    def __post_init__(self) -> None:
        checks.number("min_grade", self.min_grade, 0, 100)
        checks.number("max_grade", self.max_grade, 0, 100)
        if self.max_grade < self.min_grade:
            raise ConfigError(
                f"max_grade must be >= min_grade ({self.min_grade:g}), got {self.max_grade!r}"
            )

    def assess(self, task: Task, candidate: Candidate) -> Feedback:
        """Return a score from 0 to 1, or None."""
        text = candidate.text
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
@dataclass(frozen=True)
class Repetition(ComputedGrader):
    """1 minus the largest share of sequences of `n` words that occurred before (rep-n, Welleck et
    al., arXiv:1908.04319).

    The share is computed after every word, of all sequences so far (or of 6, if there are fewer),
    and the largest one counts, so that further text does not make up for a loop. Reads only the
    answer.
    """

    n: int = 4
    name: str = "repetition"

    def __post_init__(self) -> None:
        checks.whole_number("n", self.n, 1, 50)

    def assess(self, task: Task, candidate: Candidate) -> Feedback:
        """Return the share that is not repeated, from 0 to 1; 1 for a text of fewer than `n`
        words.
        """
        repeats, count, sample = _worst_repetition(list(_words(candidate.text)), self.n)
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
    for word in texts.folded_words(text):
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
