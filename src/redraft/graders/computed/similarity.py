"""How much an answer agrees with the reference: exact match, edit similarity, BLEU, chrF, ROUGE,
token F1, each from 0 to 1.

Under their own names they give the published values. All of these rise when text is added that
happens to share words with the reference ("the", "of", a letter). The graders "..._on_topic" give
no credit for sentences about something else: a sentence counts only if more than half of its
content words are words of the reference, or if it contains a quarter of the distinctive words of
the reference ("The capital is Canberra." for "Canberra"). The other sentences count as text that
matches nothing.

Content words are numbers and words of at least four letters (and each Chinese character and kana);
in a sentence without any, all words count as such. Distinctive words are words of at least four
letters and numbers of at least two digits. An answer that copies words of the reference scores well
whatever it says: these graders measure similarity, not truth.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ... import checks
from ...core.records import Candidate, Feedback
from ...core.task import Task
from ...errors import ConfigError
from ...own_code import fingerprint_name
from ...protocols import JudgeClient
from ...requirements import text_spans as texts
from .base import binary_feedback, compute, reference_of, score_feedback, with_limit

# ---- exact match


@fingerprint_name("exact")
@with_limit
@dataclass(frozen=True)
class Exact:
    """1 if the answer equals the reference, else 0.

    `case`, `whitespace` and `punctuation` say whether differences in these count. Without
    `whitespace`, each run of white space is one space, and that at the ends is ignored. Reads
    `reference`.
    """

    case: bool = True
    whitespace: bool = False
    punctuation: bool = True
    name: str = "exact"

    model_free = True
    needs = ("reference",)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
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


# ---- sentences on the topic


MIN_KNOWN_SHARE = 0.5  # of the words of a sentence
MIN_REFERENCE_SHARE = 0.25  # of the distinctive words of the reference
TYPO_SIMILARITY = 80.0  # of 100: about the similarity of a word to itself with a typing error
MAX_WORD_PAIRS = (
    300_000  # pairs of words that are compared for typing errors; of more, only equal words count
)
MASK_CHAR = "\ua66e"  # a letter that occurs in no text: its only source is a manuscript of 1429

_SENTENCE_BREAK = re.compile(r"((?<=[.!?\u2026])\s+|[\r\n]+|(?<=[\u3002\uff01\uff1f]))")


@dataclass(frozen=True, slots=True)
class OnTopicText:
    """An answer with its off-topic sentences masked, and without them."""

    masked_text: str
    on_topic_text: str


def filter_on_topic(answer: str, reference: str, *, tolerate_typos: bool = False) -> OnTopicText:
    """Return the answer by topic. With `tolerate_typos` a misspelt word of the reference counts as
    that word.
    """
    known = words(reference)
    distinctive = {word for word in known if len(word) >= (2 if word[0].isdigit() else 4)}
    is_known, is_distinctive = (
        _typo_matcher(answer, some) if tolerate_typos else some.__contains__
        for some in (known, distinctive)
    )
    enough = max(1, MIN_REFERENCE_SHARE * len(distinctive))
    masked, unmasked = [], []
    for i, piece in enumerate(_SENTENCE_BREAK.split(answer)):
        is_break = i % 2 == 1
        on_topic = (
            is_break
            or _known_share(piece, is_known) > MIN_KNOWN_SHARE
            or sum(map(is_distinctive, words(piece))) >= enough
        )
        masked.append(piece if on_topic else _mask(piece))
        unmasked.append(piece if on_topic else " ")
    return OnTopicText("".join(masked), "".join(unmasked))


def words(text: str) -> set[str]:
    """Return the different words of a text, in lower case."""
    return {text[a:b].casefold() for a, b in texts.words(text)}


def content_words(tokens: list[str]) -> list[str]:
    """Return the content words; all words if there are none."""
    return [w for w in tokens if len(w) >= 4 or w[0].isdigit() or w[0] >= "\u2e80"] or tokens


def _known_share(piece: str, is_known: Callable[[str], bool]) -> float:
    content = content_words([piece[a:b].casefold() for a, b in texts.words(piece)])
    return sum(map(is_known, content)) / len(content) if content else 0.0


def _typo_matcher(answer: str, known: set[str]) -> Callable[[str], bool]:
    from rapidfuzz import fuzz, process

    answer_words = words(answer)
    if len(answer_words) * len(known) > MAX_WORD_PAIRS:
        return known.__contains__
    choices = sorted(known)
    return {
        word
        for word in answer_words
        if process.extractOne(word, choices, scorer=fuzz.ratio, score_cutoff=TYPO_SIMILARITY)
    }.__contains__


def _mask(piece: str) -> str:
    """Return the piece with letters that match nothing, and white space between them."""
    out, last = [], 0
    for start, end in texts.words(piece):
        out += [_blank_out(piece[last:start]), MASK_CHAR * (end - start)]
        last = end
    return "".join([*out, _blank_out(piece[last:])])


def _blank_out(gap: str) -> str:
    return re.sub(r"\S", " ", gap)


# ---- overlap


CLOSER_ACTION = (
    "Say more of what the expected answer says, in closer words, and leave out what it does not."
)


@with_limit
@dataclass(frozen=True)
class _Overlap:
    """What the measures of overlap share. `measure` returns the value."""

    name: str = "overlap"

    model_free = True
    needs = ("reference",)
    on_topic: ClassVar[bool] = False
    tolerate_typos: ClassVar[bool] = False
    package: ClassVar[str] = ""  # that `measure` loads

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the overlap, from 0 to 1. Raises ConfigError for a task without reference."""
        answer, reference = candidate.text, reference_of(task, self.name)
        score = await compute(
            len(answer) + len(reference), self._score, answer, reference, package=self.package
        )
        return score_feedback(
            score, f"{self.name} {score:.3f} against the expected answer", CLOSER_ACTION
        )

    def _score(self, answer: str, reference: str) -> float:
        if not self.on_topic:
            return self.measure(OnTopicText(answer, answer), reference)
        return self.measure(
            filter_on_topic(answer, reference, tolerate_typos=self.tolerate_typos), reference
        )

    def measure(self, answer: OnTopicText, reference: str) -> float:
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

    def measure(self, answer: OnTopicText, reference: str) -> float:
        return _indel_ratio(answer.masked_text, reference)


@fingerprint_name("fuzzy_on_topic")
@dataclass(frozen=True)
class FuzzyOnTopic(_Overlap):
    """`Fuzzy` of the sentences on the topic, ignoring case, punctuation and runs of white space.
    Reads `reference`.
    """

    name: str = "fuzzy_on_topic"

    package = "rapidfuzz"
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
    from rapidfuzz import utils

    return " ".join(utils.default_process(text).split())


@fingerprint_name("bleu")
@dataclass(frozen=True)
class Bleu(_Overlap):
    """Sentence BLEU by sacrebleu (Papineni et al. 2002; exponential smoothing, effective order),
    divided by 100.

    Reads `reference`; needs the extra `overlap`.
    """

    name: str = "bleu"

    package = "sacrebleu"

    def check_environment(self) -> None:
        """Raise ConfigError if the extra is missing."""
        _import_sacrebleu()

    def measure(self, answer: OnTopicText, reference: str) -> float:
        sacrebleu = _import_sacrebleu()
        bleu = sacrebleu.BLEU(effective_order=True)
        whole, on_topic = (
            bleu.sentence_score(text, [reference])
            for text in (answer.masked_text, answer.on_topic_text)
        )
        scored = bleu.compute_bleu(
            whole.counts,
            whole.totals,
            on_topic.sys_len,
            whole.ref_len,
            smooth_method="exp",
            effective_order=True,
        )
        return float(scored.score) / 100


@fingerprint_name("bleu_on_topic")
@dataclass(frozen=True)
class BleuOnTopic(Bleu):
    """`Bleu` of the n-grams of the sentences on the topic; their length also sets the brevity
    penalty.
    """

    name: str = "bleu_on_topic"

    on_topic = True


@fingerprint_name("chrf")
@dataclass(frozen=True)
class Chrf(_Overlap):
    """chrF2 by sacrebleu (Popovic 2015; characters 1-6, beta 2), divided by 100. Reads `reference`;
    needs the extra `overlap`.
    """

    name: str = "chrf"

    package = "sacrebleu"

    def check_environment(self) -> None:
        """Raise ConfigError if the extra is missing."""
        _import_sacrebleu()

    def measure(self, answer: OnTopicText, reference: str) -> float:
        return (
            float(_import_sacrebleu().CHRF().sentence_score(answer.masked_text, [reference]).score)
            / 100
        )


@fingerprint_name("chrf_on_topic")
@dataclass(frozen=True)
class ChrfOnTopic(Chrf):
    """`Chrf` of the sentences on the topic."""

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
    """ROUGE F1 (Lin 2004): `rougeL` by the longest common subsequence of words, `rouge1` and
    `rouge2` by n-grams.

    Case is ignored, and words are not stemmed. The values are those of the package rouge-score,
    except that words of every script count, not only the letters a-z. Reads `reference`.
    """

    kind: Literal["rougeL", "rouge1", "rouge2"] = "rougeL"
    name: str = "rouge"

    package = "rapidfuzz"

    def __post_init__(self) -> None:
        checks.one_of("kind", self.kind, ROUGE_KINDS)

    def measure(self, answer: OnTopicText, reference: str) -> float:
        actual, expected = _words(answer.masked_text), _words(reference)
        if self.kind == "rougeL":
            from rapidfuzz import distance

            return _f1(distance.LCSseq.similarity(actual, expected), len(actual), len(expected))
        a, b = (_ngrams(tokens, int(self.kind[-1])) for tokens in (actual, expected))
        return _f1((a & b).total(), a.total(), b.total())


@fingerprint_name("rouge_on_topic")
@dataclass(frozen=True)
class RougeOnTopic(Rouge):
    """`Rouge` of the sentences on the topic."""

    name: str = "rouge_on_topic"

    on_topic = True


def _words(text: str) -> list[str]:
    return [word for a, b in texts.words(text) for word in text[a:b].lower().split("_") if word]


def _ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(tokens[i:] for i in range(n)), strict=False))


def _f1(hits: int, predicted: int, expected: int) -> float:
    return 2 * hits / (predicted + expected) if hits else 0.0


TOKEN_KINDS = ("squad", "words", "whitespace")
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

    def __post_init__(self) -> None:
        checks.one_of("tokens", self.tokens, TOKEN_KINDS)

    def measure(self, answer: OnTopicText, reference: str) -> float:
        actual, expected = (Counter(self._tokens(text)) for text in (answer.masked_text, reference))
        if not actual and not expected:
            return 1.0
        return _f1((actual & expected).total(), actual.total(), expected.total())

    def _tokens(self, text: str) -> list[str]:
        if self.tokens == "words":
            return [text[a:b].casefold() for a, b in texts.words(text)]
        if self.tokens == "squad":
            text = _ARTICLE.sub(" ", text.lower().translate(_ASCII_PUNCTUATION))
        return text.split()
