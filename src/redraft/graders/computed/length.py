"""The length of an answer, graded: the score falls gradually outside the wanted range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...base import checks
from ...base.own_code import fingerprint_name
from ...errors import ConfigError
from ...loop.records import Candidate, Feedback
from ...loop.task import Task
from ...protocols import JudgeClient
from ...requirements.spec import Range, format_count, parse_range
from ...requirements.text_spans import count_words
from .base import compute, score_feedback, with_limit

ENCODING = "o200k_base"
UNITS = ("words", "characters", "tokens")


@fingerprint_name("length")
@with_limit
@dataclass(frozen=True)
class GradedLength:
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

    model_free = True

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

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return a score from 0 to 1. Raises ConfigError if tokens cannot be counted without the
        extra.
        """
        package = "bpe_openai" if self.unit == "tokens" else ""
        return await compute(len(candidate.text), self._measure, candidate.text, package=package)

    def _measure(self, text: str) -> Feedback:
        count, noun = COUNTS[self.unit](text), self.unit[:-1]
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
    try:
        import bpe_openai
    except ImportError as error:
        raise ConfigError(
            "length in tokens needs an extra: pip install 'redraft[tokens]'"
        ) from error
    return bpe_openai.get_encoding(ENCODING)


COUNTS: dict[str, Callable[[str], int]] = {
    "words": count_words,
    "characters": lambda text: len(text.strip()),
    "tokens": _count_tokens,
}
