"""Whether the context contains what an answer quotes and cites."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...base import checks
from ...base.own_code import fingerprint_name
from ...loop.records import Candidate, Feedback
from ...loop.task import Task
from ...requirements.text_spans import folded_words
from ..base import check_needs
from .base import ComputedGrader, preview, score_feedback

# characters times characters that are searched with tolerance; then only exact quotes count
MAX_FUZZY_COST = 20_000_000

_QUOTE = re.compile(
    r'"([^"\n]{1,2000})"|\u201c([^\u201c\u201d\n]{1,2000})\u201d|\u00ab([^\u00ab\u00bb\n]{1,2000})\u00bb'
    r"|\u201e([^\u201c\u201d\u201e\n]{1,2000})[\u201c\u201d]|\u300c([^\u300c\u300d\n]{1,2000})\u300d"
)
_MARKER = re.compile(r"\[([^\[\]\n]{1,60})\]")
_SENTENCE = re.compile(r"[^.!?\n\u3002]*[.!?\n\u3002]?(?:[ \t]*\[[^\[\]\n]{1,60}\])*")


@fingerprint_name("citations")
@dataclass(frozen=True)
class Citations(ComputedGrader):
    """The share of different citations in the answer that the context supports; 0 for an answer
    that cites nothing.

    A quotation of at least `min_words` words is a citation. The context supports it if it contains
    the same words, ignoring case, white space and punctuation; with `tolerance` (0 to 0.5) that
    share of the characters may differ. A marker such as [1] or [Smith 2020] is a citation if the
    context labels a passage with it. It is supported if at least half of the content words of its
    sentence occur in that passage. If the context numbers its passages, any other number in
    brackets is an unsupported citation; other brackets are no citations. Reads `context`.
    """

    min_words: int = 4
    tolerance: float = 0.0
    name: str = "citations"

    needs = ("context",)

    def __post_init__(self) -> None:
        checks.whole_number("min_words", self.min_words, 1, 1000)
        checks.number("tolerance", self.tolerance, 0, 0.5)

    def assess(self, task: Task, candidate: Candidate) -> Feedback:
        """Return a score from 0 to 1. Raises ConfigError for a task without context."""
        check_needs(self.name, self.needs, task)
        answer, context = candidate.text, str(task.context)
        citations = {
            **dict(self._check_quotes(answer, context)),
            **dict(_check_labels(answer, passages(context))),
        }
        if not citations:
            return Feedback(
                0.0,
                "nothing is quoted or cited",
                ("Quote the context, or cite its passages by their labels.",),
            )
        unsupported = [cited for cited, supported in citations.items() if not supported]
        score = 1 - len(unsupported) / len(citations)
        listed = "; ".join(map(preview, unsupported[:5]))
        reason = (
            f"{len(citations) - len(unsupported)} of {len(citations)} citations are supported by "
            "the context"
        )
        return score_feedback(
            score,
            reason,
            f"The context does not say so: {listed}. Quote it exactly, or leave it out.",
        )

    def _check_quotes(self, answer: str, context: str) -> Iterator[tuple[str, bool]]:
        plain, cost_left = f" {_normalise(context)} ", MAX_FUZZY_COST
        for match in _QUOTE.finditer(answer):
            quote = _normalise(next(filter(None, match.groups()), ""))
            if quote.count(" ") + 1 < self.min_words:
                continue
            supported = f" {quote} " in plain
            if (
                not supported
                and self.tolerance
                and (cost_left := cost_left - len(quote) * len(plain)) > 0
            ):
                supported = _fuzzy_contains(quote, plain, self.tolerance)
            yield f'"{quote}"', supported


def _normalise(text: str) -> str:
    """Return the words in lower case with single spaces."""
    return " ".join(folded_words(text))


def _fuzzy_contains(quote: str, plain: str, tolerance: float) -> bool:
    from rapidfuzz import fuzz

    return bool(fuzz.partial_ratio(quote, plain, score_cutoff=100 * (1 - tolerance)) > 0)


def passages(context: str) -> Mapping[str, set[str]]:
    """Return the words between each label and the next one, by label."""
    words_by_label: dict[str, set[str]] = {}
    pieces = _MARKER.split(context)
    for label, passage in zip(pieces[1::2], pieces[2::2], strict=True):
        words_by_label.setdefault(label.strip(), set()).update(folded_words(passage))
    return words_by_label


def _check_labels(answer: str, passage_words: Mapping[str, set[str]]) -> Iterator[tuple[str, bool]]:
    has_numbers = any(label.isdigit() for label in passage_words)
    for sentence in _SENTENCE.findall(answer):
        labels = [
            each.strip() for group in _MARKER.findall(sentence) for each in re.split("[,;]", group)
        ]
        counted = [
            label for label in labels if label in passage_words or (has_numbers and label.isdigit())
        ]
        bare = _MARKER.sub(" ", sentence)
        content = Counter(content_words(folded_words(bare)))
        sentence_shown = " ".join(bare.split())[:200]
        for label in dict.fromkeys(counted):
            supported = sum(
                content[word] for word in content.keys() & passage_words.get(label, set())
            )
            yield f"{sentence_shown} [{label}]", bool(content) and supported * 2 >= content.total()


def content_words(tokens: list[str]) -> list[str]:
    """Return numbers, words of at least four letters, Chinese characters and kana; all words if
    there are none.
    """
    return [w for w in tokens if len(w) >= 4 or w[0].isdigit() or w[0] >= "\u2e80"] or tokens
