"""How much a text repeats itself, as models in a loop do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from ...core.records import Candidate, Feedback, Task
from ...own_code import fingerprint_name
from ...protocols import JudgeClient
from ...requirements import text_spans as texts
from .arguments import check_number
from .compute_limits import with_limit
from .views import score_feedback

MIN_WORDS = 50  # a text counts as at least this long
MAX_WORD_CHARS = 30  # a longer word is read in pieces of three letters, so that "hahahaha..." is a repetition, too


@fingerprint_name("repetition")
@with_limit
@dataclass(frozen=True)
class Repetition:
    """1 - the share of words that end a sequence of `n` words seen before, where that share is worst.

    The share is taken after every word, of all words so far (of 50 where they are fewer), and the worst one counts:
    text that follows does not thin a loop out. Reads only the answer.
    """

    n: int = 4
    name: str = "repetition"

    model_free = True

    def __post_init__(self) -> None:
        check_number("n", self.n, 1, 50, whole=True)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the share that is not repeated, from 0 to 1; 1 for a text without words."""
        words = await asyncio.to_thread(lambda: list(_words(candidate.text)))
        share, sample = _worst_repetition(words, self.n)
        reason = f"{share:.0%} of the words repeat earlier sequences of {self.n} words"
        return score_feedback(1 - share, reason, f"Do not say the same thing again ({sample!r} comes back)." if sample else "")


def _words(text: str) -> Iterator[str]:
    for start, end in texts.words(text):
        word = text[start:end].casefold()
        step = len(word) if len(word) <= MAX_WORD_CHARS else 3
        yield from (word[i : i + step] for i in range(0, len(word), step))


def _worst_repetition(words: list[str], n: int) -> tuple[float, str]:
    """Return the worst share of any beginning of the text, and the first repeated sequence."""
    seen: set[tuple[str, ...]] = set()
    repeats, worst, sample = 0, 0.0, ""
    for i, gram in enumerate(zip(*(words[k:] for k in range(n)), strict=False)):
        if gram in seen:
            repeats += 1
            sample = sample or " ".join(gram)[:80]
        seen.add(gram)
        worst = max(worst, repeats / max(i + n, MIN_WORDS))
    return worst, sample
