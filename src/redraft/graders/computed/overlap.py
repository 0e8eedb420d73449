"""How much an answer overlaps with the reference: edit similarity, BLEU, chrF, ROUGE, each from 0 to 1.

Under their own names they give the published values. Any of these rises when text is added that happens to share words with
the reference; the kinds "..._on_topic" read the answer through `topical`, so that sentences about something else earn
nothing. Words of the reference earn a score wherever they stand, so all of them measure likeness, not truth.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ...core.records import Candidate, Feedback, Task
from ...errors import ConfigError
from ...protocols import Ask
from ...requirements import text_spans as texts
from .arguments import check_choice
from .compute_limits import with_limit
from .topical import NO_LETTER, Topical, everything, topical
from .views import measured, reference_of

TOO_LITTLE = "Say more of what the expected answer says, in closer words, and leave out what it does not."


@with_limit
@dataclass(frozen=True)
class _Overlap:
    """What they have in common: read, measure in a thread, say the figure."""

    name: str = "overlap"

    free = True
    needs = ("reference",)
    on_topic: ClassVar[bool] = False
    slips: ClassVar[bool] = False

    async def grade(self, task: Task, candidate: Candidate, ask: Ask) -> Feedback:
        """The overlap, from 0 to 1. Raises ConfigError for a task without reference."""
        reference = reference_of(task, self.name)
        score = await asyncio.to_thread(self._score, candidate.text, reference)
        return measured(score, f"{self.name} {score:.3f} against the expected answer", TOO_LITTLE)

    def _score(self, answer: str, reference: str) -> float:
        read = topical(answer, reference, slips=self.slips) if self.on_topic else everything(answer)
        return self.measure(read, reference)

    def measure(self, answer: Topical, reference: str) -> float:
        raise NotImplementedError


@dataclass(frozen=True)
class Fuzzy(_Overlap):
    """rapidfuzz's `ratio` / 100: 2 x (longest common subsequence of characters) / (length of both), Indel similarity.

    Reads `reference`.
    """

    name: str = "fuzzy"

    def measure(self, answer: Topical, reference: str) -> float:
        return _ratio(answer.masked, reference)


@dataclass(frozen=True)
class FuzzyOnTopic(_Overlap):
    """`Fuzzy` of the sentences on the topic, where case, punctuation and runs of white space do not count. Reads `reference`."""

    name: str = "fuzzy_on_topic"

    on_topic = True
    slips = True

    def measure(self, answer: Topical, reference: str) -> float:
        said = _MASKED.sub(lambda m: NO_LETTER * len(m[0]), _letters(answer.masked))
        return _ratio(said, _letters(reference))


def _ratio(said: str, wanted: str) -> float:
    from rapidfuzz import fuzz

    return float(fuzz.ratio(said, wanted)) / 100


_MASKED = re.compile(f" ?{NO_LETTER}[{NO_LETTER} ]*")


def _letters(text: str) -> str:
    from rapidfuzz.utils import default_process

    return " ".join(default_process(text).split())


@dataclass(frozen=True)
class Bleu(_Overlap):
    """Sentence BLEU by sacrebleu (Papineni et al. 2002; exponential smoothing, effective order), divided by 100.

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
class BleuOnTopic(Bleu):
    """`Bleu` where n-grams of the sentences on the topic count, and the brevity penalty goes by the length of those."""

    name: str = "bleu_on_topic"

    on_topic = True


@dataclass(frozen=True)
class Chrf(_Overlap):
    """chrF2 by sacrebleu (Popovic 2015; characters 1-6, beta 2), divided by 100. Reads `reference`; needs the extra `overlap`."""

    name: str = "chrf"

    def measure(self, answer: Topical, reference: str) -> float:
        return float(_sacrebleu().CHRF().sentence_score(answer.masked, [reference]).score) / 100


@dataclass(frozen=True)
class ChrfOnTopic(Chrf):
    """`Chrf` where the characters of the sentences on the topic count."""

    name: str = "chrf_on_topic"

    on_topic = True


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

    Small and capital letters are alike, nothing is stemmed: these are the values of the package rouge-score, which drops all
    letters but a-z; here words of every script count. Reads `reference`.
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


@dataclass(frozen=True)
class RougeOnTopic(Rouge):
    """`Rouge` where the words of the sentences on the topic count."""

    name: str = "rouge_on_topic"

    on_topic = True


def _words(text: str) -> list[str]:
    return [word for a, b in texts.words(text) for word in text[a:b].lower().split("_") if word]


def _grams(found: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(found[i:] for i in range(n)), strict=False))


def _f1(hits: int, said: int, wanted: int) -> float:
    return 2 * hits / (said + wanted) if hits else 0.0
