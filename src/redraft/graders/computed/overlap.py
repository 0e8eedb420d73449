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
from ...own_code import fingerprint_name
from ...protocols import JudgeClient
from ...requirements import text_spans as texts
from .arguments import check_choice
from .compute_limits import with_limit
from .topical import MASK_CHAR, OnTopicText, filter_on_topic, whole_text
from .views import reference_of, score_feedback

CLOSER_ACTION = "Say more of what the expected answer says, in closer words, and leave out what it does not."


@with_limit
@dataclass(frozen=True)
class _Overlap:
    """The shared part: read the reference, measure in a thread, give the value."""

    name: str = "overlap"

    model_free = True
    needs = ("reference",)
    on_topic: ClassVar[bool] = False
    tolerate_typos: ClassVar[bool] = False

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the overlap, from 0 to 1. Raises ConfigError for a task without reference."""
        reference = reference_of(task, self.name)
        score = await asyncio.to_thread(self._score, candidate.text, reference)
        return score_feedback(score, f"{self.name} {score:.3f} against the expected answer", CLOSER_ACTION)

    def _score(self, answer: str, reference: str) -> float:
        read = filter_on_topic(answer, reference, tolerate_typos=self.tolerate_typos) if self.on_topic else whole_text(answer)
        return self.measure(read, reference)

    def measure(self, answer: OnTopicText, reference: str) -> float:
        raise NotImplementedError


@fingerprint_name("fuzzy")
@dataclass(frozen=True)
class Fuzzy(_Overlap):
    """rapidfuzz's `ratio` / 100: 2 x (longest common subsequence of characters) / (length of both), Indel similarity.

    Reads `reference`.
    """

    name: str = "fuzzy"

    def measure(self, answer: OnTopicText, reference: str) -> float:
        return _indel_ratio(answer.masked_text, reference)


@fingerprint_name("fuzzy_on_topic")
@dataclass(frozen=True)
class FuzzyOnTopic(_Overlap):
    """`Fuzzy` of the sentences on the topic, where case, punctuation and runs of white space do not count. Reads `reference`."""

    name: str = "fuzzy_on_topic"

    on_topic = True
    tolerate_typos = True

    def measure(self, answer: OnTopicText, reference: str) -> float:
        text = _MASKED_RUN.sub(lambda m: MASK_CHAR * len(m[0]), _letters_only(answer.masked_text))
        return _indel_ratio(text, _letters_only(reference))


def _indel_ratio(text: str, reference: str) -> float:
    from rapidfuzz import fuzz

    return float(fuzz.ratio(text, reference)) / 100


_MASKED_RUN = re.compile(f" ?{MASK_CHAR}[{MASK_CHAR} ]*")


def _letters_only(text: str) -> str:
    from rapidfuzz.utils import default_process

    return " ".join(default_process(text).split())


@fingerprint_name("bleu")
@dataclass(frozen=True)
class Bleu(_Overlap):
    """Sentence BLEU by sacrebleu (Papineni et al. 2002; exponential smoothing, effective order), divided by 100.

    Reads `reference`; needs the extra `overlap`.
    """

    name: str = "bleu"

    def measure(self, answer: OnTopicText, reference: str) -> float:
        sacrebleu = _import_sacrebleu()
        bleu = sacrebleu.BLEU(effective_order=True)
        whole, kept = (bleu.sentence_score(text, [reference]) for text in (answer.masked_text, answer.on_topic_text))
        scored = bleu.compute_bleu(
            whole.counts, whole.totals, kept.sys_len, whole.ref_len, smooth_method="exp", effective_order=True
        )
        return float(scored.score) / 100


@fingerprint_name("bleu_on_topic")
@dataclass(frozen=True)
class BleuOnTopic(Bleu):
    """`Bleu` where n-grams of the sentences on the topic count, and the brevity penalty goes by the length of those."""

    name: str = "bleu_on_topic"

    on_topic = True


@fingerprint_name("chrf")
@dataclass(frozen=True)
class Chrf(_Overlap):
    """chrF2 by sacrebleu (Popovic 2015; characters 1-6, beta 2), divided by 100. Reads `reference`; needs the extra `overlap`."""

    name: str = "chrf"

    def measure(self, answer: OnTopicText, reference: str) -> float:
        return float(_import_sacrebleu().CHRF().sentence_score(answer.masked_text, [reference]).score) / 100


@fingerprint_name("chrf_on_topic")
@dataclass(frozen=True)
class ChrfOnTopic(Chrf):
    """`Chrf` where the characters of the sentences on the topic count."""

    name: str = "chrf_on_topic"

    on_topic = True


def _import_sacrebleu() -> Any:
    try:
        from sacrebleu import metrics
    except ImportError as error:
        raise ConfigError("bleu and chrf need an extra: pip install 'redraft[overlap]'") from error
    return metrics


ROUGE_KINDS = ("rougeL", "rouge1", "rouge2")


@fingerprint_name("rouge")
@dataclass(frozen=True)
class Rouge(_Overlap):
    """ROUGE F1 (Lin 2004): `rougeL` by the longest common subsequence of words, `rouge1` and `rouge2` by n-grams.

    Small and capital letters are alike, nothing is stemmed: these are the values of the package rouge-score, which drops all
    letters but a-z; here words of every script count. Reads `reference`.
    """

    kind: Literal["rougeL", "rouge1", "rouge2"] = "rougeL"
    name: str = "rouge"

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ROUGE_KINDS)

    def measure(self, answer: OnTopicText, reference: str) -> float:
        words, wanted = _words(answer.masked_text), _words(reference)
        if self.kind == "rougeL":
            from rapidfuzz.distance import LCSseq

            return _f1(LCSseq.similarity(words, wanted), len(words), len(wanted))
        a, b = (_ngrams(found, int(self.kind[-1])) for found in (words, wanted))
        return _f1((a & b).total(), a.total(), b.total())


@fingerprint_name("rouge_on_topic")
@dataclass(frozen=True)
class RougeOnTopic(Rouge):
    """`Rouge` where the words of the sentences on the topic count."""

    name: str = "rouge_on_topic"

    on_topic = True


def _words(text: str) -> list[str]:
    return [word for a, b in texts.words(text) for word in text[a:b].lower().split("_") if word]


def _ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(tokens[i:] for i in range(n)), strict=False))


def _f1(hits: int, predicted: int, expected: int) -> float:
    return 2 * hits / (predicted + expected) if hits else 0.0
