"""How much an answer agrees with the reference: exact match, edit similarity, BLEU, chrF, ROUGE,
token F1, each from 0 to 1.

They give the published values. All of them but the exact match rise when text is added that happens
to share words with the reference ("the", "of", a letter), and an answer that copies words of the
reference scores well whatever it says: these graders measure similarity, not truth.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...base.checks import needs_extra
from ...base.own_code import fingerprint_name
from ...loop.records import Candidate, Feedback
from ...loop.task import Task
from ...requirements import text_spans as texts
from .base import ComputedGrader, binary_feedback, reference_of, score_feedback

# ---- exact match


@fingerprint_name("exact")
@dataclass(frozen=True)
class Exact(ComputedGrader):
    """1 if the answer equals the reference, else 0.

    `case`, `whitespace` and `punctuation` say whether differences in these count. Without
    `whitespace`, each run of white space is one space, and that at the ends is ignored. Reads
    `reference`.
    """

    case: bool = True
    whitespace: bool = False
    punctuation: bool = True
    name: str = "exact"

    needs = ("reference",)

    def assess(self, task: Task, candidate: Candidate) -> Feedback:
        """Return 1 or 0."""
        expected = self._normalise(reference_of(task, self.name))
        if self._normalise(candidate.text) == expected:
            return binary_feedback(ok=True, reason="the answer is the expected one", action="")
        return binary_feedback(
            ok=False,
            reason="the answer is not the expected one",
            action="Give the expected answer and nothing else.",
        )

    def _normalise(self, text: str) -> str:
        if not self.case:
            text = text.casefold()
        if not self.punctuation:
            text = "".join(c for c in text if not unicodedata.category(c).startswith("P"))
        return text if self.whitespace else " ".join(text.split())


# ---- overlap


CLOSER_ACTION = (
    "Say more of what the expected answer says, in closer words, and leave out what it does not."
)


@dataclass(frozen=True)
class _Overlap(ComputedGrader):
    """What the measures of overlap share. `measure` returns the value."""

    name: str = "overlap"

    needs = ("reference",)

    def assess(self, task: Task, candidate: Candidate) -> Feedback:
        """Return the overlap, from 0 to 1. Raises ConfigError for a task without reference."""
        score = self.measure(candidate.text, reference_of(task, self.name))
        return score_feedback(
            score, f"{self.name} {score:.3f} against the expected answer", CLOSER_ACTION
        )

    def measure(self, answer: str, reference: str) -> float:
        raise NotImplementedError


@fingerprint_name("fuzzy")
@dataclass(frozen=True)
class Fuzzy(_Overlap):
    """rapidfuzz's `ratio` / 100: 2 x (longest common subsequence of characters) / (length of both),
    Indel similarity.

    Reads `reference`.
    """

    name: str = "fuzzy"

    package = "rapidfuzz"

    def measure(self, answer: str, reference: str) -> float:
        from rapidfuzz import fuzz

        return float(fuzz.ratio(answer, reference)) / 100


class _Sacrebleu(_Overlap):
    """What the measures of sacrebleu share."""

    package = "sacrebleu"

    def check_environment(self) -> None:
        """Raise ConfigError if the extra is missing."""
        _import_sacrebleu()


@fingerprint_name("bleu")
@dataclass(frozen=True)
class Bleu(_Sacrebleu):
    """Sentence BLEU by sacrebleu (Papineni et al. 2002; exponential smoothing, effective order),
    divided by 100.

    Reads `reference`; needs the extra `overlap`.
    """

    name: str = "bleu"

    def measure(self, answer: str, reference: str) -> float:
        bleu = _import_sacrebleu().BLEU(effective_order=True)
        return float(bleu.sentence_score(answer, [reference]).score) / 100


@fingerprint_name("chrf")
@dataclass(frozen=True)
class Chrf(_Sacrebleu):
    """chrF2 by sacrebleu (Popovic 2015; characters 1-6, beta 2), divided by 100. Reads `reference`;
    needs the extra `overlap`.
    """

    name: str = "chrf"

    def measure(self, answer: str, reference: str) -> float:
        return float(_import_sacrebleu().CHRF().sentence_score(answer, [reference]).score) / 100


def _import_sacrebleu() -> Any:
    with needs_extra("overlap", "bleu and chrf need an extra"):
        from sacrebleu import metrics
    return metrics


@fingerprint_name("rouge")
@dataclass(frozen=True)
class Rouge(_Overlap):
    """ROUGE F1 (Lin 2004): `rougeL` by the longest common subsequence of words, `rouge1` and
    `rouge2` by n-grams.

    Case is ignored, and words are not stemmed. The values are those of the package rouge-score,
    except that words of every script count, not only the letters a-z. Reads `reference`.
    """

    kind: Literal["rougeL", "rouge1", "rouge2"] = "rougeL"
    name: str = "rouge"

    package = "rapidfuzz"

    def measure(self, answer: str, reference: str) -> float:
        actual, expected = _words(answer), _words(reference)
        if self.kind == "rougeL":
            from rapidfuzz import distance

            return _f1(distance.LCSseq.similarity(actual, expected), len(actual), len(expected))
        a, b = (_ngrams(tokens, int(self.kind[-1])) for tokens in (actual, expected))
        return _f1((a & b).total(), a.total(), b.total())


def _words(text: str) -> list[str]:
    return [word for a, b in texts.words(text) for word in text[a:b].lower().split("_") if word]


def _ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(tokens[i:] for i in range(n)), strict=False))


def _f1(hits: int, predicted: int, expected: int) -> float:
    return 2 * hits / (predicted + expected) if hits else 0.0


_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


@fingerprint_name("token_f1")
@dataclass(frozen=True)
class TokenF1(_Overlap):
    """Token F1 (Rajpurkar et al. 2016, SQuAD): the harmonic mean of precision and recall of the
    tokens, in any order.

    A token that occurs several times counts as often as in both texts. The `tokens` are: "squad",
    as the official script of SQuAD makes them (lower case, without ASCII punctuation and English
    articles, separated by white space); "words", the words of any script in lower case, each
    Chinese character and each kana a word; "whitespace", what white space separates. If neither
    text has a token, the score is 1. Reads `reference`.
    """

    tokens: Literal["squad", "words", "whitespace"] = "squad"
    name: str = "token_f1"

    def measure(self, answer: str, reference: str) -> float:
        actual, expected = (Counter(self._tokens(text)) for text in (answer, reference))
        if not actual and not expected:
            return 1.0
        return _f1((actual & expected).total(), actual.total(), expected.total())

    def _tokens(self, text: str) -> list[str]:
        if self.tokens == "words":
            return texts.folded_words(text)
        if self.tokens == "squad":
            text = _ARTICLE.sub(" ", text.lower().translate(_ASCII_PUNCTUATION))
        return text.split()
