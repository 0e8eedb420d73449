"""How much an answer overlaps with the reference: edit similarity, BLEU, chrF, ROUGE, each from 0 to 1.

All of them read the answer through `topical`, so that appended text that is about something else does not raise them;
with `textbook` they are the published measures on the whole answer, and it may. Words of the reference earn a score
wherever they stand, so these measure likeness, not truth.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...contracts import Ask
from ...core.errors import ConfigError
from ...core.records import Candidate, Feedback, Task
from ...requirements import texts
from .arguments import check_choice
from .topical import NO_LETTER, Topical, everything, topical
from .views import measured, reference_of

TOO_LITTLE = "Say more of what the expected answer says, in closer words, and leave out what it does not."


@dataclass(frozen=True)
class _Overlap:
    """What the four have in common: read, measure in a thread, say the figure."""

    textbook: bool = False
    name: str = "overlap"

    free = True
    needs = ("reference",)
    slips = False

    async def grade(self, task: Task, candidate: Candidate, ask: Ask) -> Feedback:
        """The overlap, from 0 to 1. Raises ConfigError for a task without reference."""
        reference = reference_of(task, self.name)
        score = await asyncio.to_thread(self._score, candidate.text, reference)
        return measured(score, f"{self.name} {score:.3f} against the expected answer", TOO_LITTLE)

    def _score(self, answer: str, reference: str) -> float:
        read = everything(answer) if self.textbook else topical(answer, reference, slips=self.slips)
        return self.measure(read, reference)

    def measure(self, answer: Topical, reference: str) -> float:
        raise NotImplementedError


@dataclass(frozen=True)
class Fuzzy(_Overlap):
    """rapidfuzz's `ratio`: 2 x (longest common subsequence of characters) / (length of both), Indel similarity.

    Case, punctuation and runs of white space do not count. Reads `reference`.
    """

    name: str = "fuzzy"

    slips = True

    def measure(self, answer: Topical, reference: str) -> float:
        from rapidfuzz import fuzz

        said = _MASKED.sub(lambda m: NO_LETTER * len(m[0]), _letters(answer.masked))
        return float(fuzz.ratio(said, _letters(reference))) / 100


_MASKED = re.compile(f" ?{NO_LETTER}[{NO_LETTER} ]*")


def _letters(text: str) -> str:
    from rapidfuzz.utils import default_process

    return " ".join(default_process(text).split())


@dataclass(frozen=True)
class Bleu(_Overlap):
    """Sentence BLEU by sacrebleu (Papineni et al. 2002; exponential smoothing, effective order), divided by 100.

    The length in the brevity penalty is that of the sentences on the topic, so that padding does not lift it.
    Reads `reference`; needs the extra `overlap`.
    """

    name: str = "bleu"

    def measure(self, answer: Topical, reference: str) -> float:
        sacrebleu = _sacrebleu()
        bleu = sacrebleu.BLEU(effective_order=True)
        whole, kept = (bleu.sentence_score(text, [reference]) for text in (answer.masked, answer.kept))
        scored = bleu.compute_bleu(
            whole.counts, whole.totals, kept.sys_len, whole.ref_len, smooth_method="exp", effective_order=True
        )
        return float(scored.score) / 100


@dataclass(frozen=True)
class Chrf(_Overlap):
    """chrF2 by sacrebleu (Popovic 2015; characters 1-6, beta 2), divided by 100. Reads `reference`; needs the extra `overlap`."""

    name: str = "chrf"

    def measure(self, answer: Topical, reference: str) -> float:
        return float(_sacrebleu().CHRF().sentence_score(answer.masked, [reference]).score) / 100


def _sacrebleu() -> Any:
    try:
        from sacrebleu import metrics
    except ImportError as error:
        raise ConfigError("bleu and chrf need an extra: pip install 'redraft[overlap]'") from error
    return metrics


KINDS = ("rougeL", "rouge1", "rouge2")


@dataclass(frozen=True)
class Rouge(_Overlap):
    """ROUGE F1 (Lin 2004): `rougeL` by the longest common subsequence of words, `rouge1` and `rouge2` by n-grams.

    Words are the same in every script, small and capital letters alike, without stemming: on plain English it gives
    what the package rouge-score gives. Reads `reference`.
    """

    kind: Literal["rougeL", "rouge1", "rouge2"] = "rougeL"
    name: str = "rouge"

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)

    def measure(self, answer: Topical, reference: str) -> float:
        said, wanted = _words(answer.masked), _words(reference)
        if self.kind == "rougeL":
            from rapidfuzz.distance import LCSseq

            return _f1(LCSseq.similarity(said, wanted), len(said), len(wanted))
        a, b = (_grams(found, int(self.kind[-1])) for found in (said, wanted))
        return _f1((a & b).total(), a.total(), b.total())


def _words(text: str) -> list[str]:
    return [text[a:b].lower() for a, b in texts.words(text)]


def _grams(found: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(found[i:] for i in range(n)), strict=False))


def _f1(hits: int, said: int, wanted: int) -> float:
    return 2 * hits / (said + wanted) if hits else 0.0
