"""Scores as expectations: each score of the scale, weighted by the probability of its token
(G-Eval, arXiv:2303.16634).

The probabilities are those at the place of the written score. A number that a tokenizer splits ("1"
and "0" for 10) is followed token by token along what was written; the part of the probability that
may belong to a longer number is left out, and so is every token that is no score. What remains is
normalised. Nothing is guessed: where the probabilities are missing, or do not cover most of the
distribution, there is no expectation, and the result says why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp
from typing import Any

from ...protocols import Reply, TokenLogprobs
from ..template import Scale
from .structured import KeyPath, without_thinking

TOP_LOGPROBS = 20  # alternatives of each token: the most that OpenAI's protocol allows
MIN_COVERED = 0.5  # share of the probability that must be on scores
MAX_COVERED = 1.02  # more is no probability; endpoints round
SPACE = r"[ \t\n\r]*"
KEY = re.compile(rf'{SPACE}"((?:[^"\\]|\\.)*+)"{SPACE}:{SPACE}')
COMMA = re.compile(f"{SPACE},?")
CLOSING_BRACE = re.compile(rf"{SPACE}\}}")


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected scores, in the order of their paths, and the smallest share of the probability
    that is on scores.

    Without an expectation `scores` is empty, and `problem` says why.
    """

    scores: tuple[float, ...] = ()
    covered: float | None = None
    problem: str = ""

    def as_metadata(self) -> dict[str, Any]:
        """Return the record of how a score was computed."""
        if self.scores:
            return {"scoring": "expectation", "covered": self.covered}
        return {"scoring": "written", "problem": self.problem}


class NoExpectation(Exception):
    """The scores have no expectation; the message says why."""


def expected_scores(reply: Reply, paths: Sequence[KeyPath], scale: Scale) -> Expectation:
    """Return the expected score, in units of the scale, at each path of the JSON object in a
    reply.
    """
    try:
        tokens = LocatedTokens(reply)
        results = [expected_score(tokens.weights_at(path, scale)) for path in paths]
    except NoExpectation as problem:
        return Expectation(problem=str(problem))
    return Expectation(
        tuple(score for score, _ in results), round(min(covered for _, covered in results), 4)
    )


def expected_score(weights: Mapping[int, float]) -> tuple[float, float]:
    """Return the mean of the scores by their weights, and the sum of the weights.

    Raises NoExpectation if the sum is too small to say anything, or too large for probabilities.
    """
    covered = sum(weights.values())
    if covered > MAX_COVERED:
        raise NoExpectation(f"the probabilities of the scores add up to {covered:.2f}, more than 1")
    if covered < MIN_COVERED:
        raise NoExpectation(f"only {covered:.0%} of the probability is on scores of the scale")
    mean = sum(score * weight for score, weight in weights.items()) / covered
    # sums of floats are not exact
    return min(max(mean, min(weights)), max(weights)), min(covered, 1.0)


class LocatedTokens:
    """The tokens of a reply, and where the values of its JSON object stand among them. Raises
    NoExpectation.
    """

    def __init__(self, reply: Reply) -> None:
        self._tokens = reply.token_logprobs
        if not self._tokens:
            raise NoExpectation("the endpoint gave no log-probabilities")
        pieces = [_to_bytes(t.token) for t in self._tokens]
        self._starts = list(accumulate(map(len, pieces), initial=0))
        self._bytes = b"".join(pieces)
        self._spans = _byte_spans(without_thinking(reply.text), self._bytes)

    def weights_at(self, path: KeyPath, scale: Scale) -> dict[int, float]:
        """Return the probability of each score at the place of the score under `path`."""
        if path not in self._spans:
            raise NoExpectation(
                f"{'.'.join(path)!r} is spelled differently, stands twice, or in a list"
            )
        start, end = self._spans[path]
        index, after = next((n, after) for n, after in enumerate(self._starts[1:]) if after > start)
        walk = NumberWalk(self._tokens, index, {str(n): n for n in scale.numbers})
        head, tail = self._bytes[self._starts[index] : start], self._bytes[end:after]
        walk.add_first(
            _to_text(head).strip(), _to_text(tail).strip(), _to_text(self._bytes[start:end])
        )
        return walk.weights


class NumberWalk:
    """Sums the probabilities of the numbers that begin at one token. `spellings` are the scores by
    how they are written.
    """

    def __init__(
        self, tokens: Sequence[TokenLogprobs], index: int, spellings: Mapping[str, int]
    ) -> None:
        self._tokens, self._index, self._spellings = tokens, index, spellings
        self.weights: dict[int, float] = {}

    def add_first(self, head: str, tail: str, written: str) -> None:
        """Add the numbers at the first token, of which `head` and `tail` are no part of the
        number.
        """
        top = [
            (_middle(token.strip(), head, tail), exp(logprob))
            for token, logprob in self._tokens[self._index].top
        ]
        merges = any(len(piece.lstrip("-")) > 1 and piece in self._spellings for piece, _ in top)
        chosen = _middle(self._tokens[self._index].token.strip(), head, tail)
        for piece, probability in top:
            if piece in self._spellings and (merges or not self._continues(piece)):
                self._add(piece, probability)
            elif piece == chosen and piece and self._continues(piece) and written.startswith(piece):
                self._add_next(piece, probability, 1)

    def _add_next(self, prefix: str, probability: float, offset: int) -> None:
        """Add the numbers that begin with `prefix`: what follows at the next token says which it
        is.
        """
        if self._index + offset >= len(self._tokens):
            return
        position = self._tokens[self._index + offset]
        for token, logprob in position.top:
            share = probability * exp(logprob)
            number = prefix + token
            if not token[:1].isdigit():
                self._add(prefix, share)
            elif number in self._spellings and not self._continues(number):
                self._add(number, share)
            elif token == position.token and self._continues(number):
                self._add_next(number, share, offset + 1)

    def _add(self, spelling: str, probability: float) -> None:
        if (score := self._spellings.get(spelling)) is not None:
            self.weights[score] = self.weights.get(score, 0.0) + probability

    def _continues(self, prefix: str) -> bool:
        """Whether a longer number of the scale begins like this."""
        return any(
            len(spelling) > len(prefix) and spelling.startswith(prefix)
            for spelling in self._spellings
        )


def _middle(token: str, head: str, tail: str) -> str:
    """Return the part of a token between `head` and `tail`; "" if it does not have them."""
    if len(token) < len(head) + len(tail) or not token.startswith(head) or not token.endswith(tail):
        return ""
    return token[len(head) : len(token) - len(tail)].strip()


def _byte_spans(text: str, raw: bytes) -> dict[KeyPath, tuple[int, int]]:
    """Return where the values of the JSON object in a text stand in the bytes of the tokens. Raises
    NoExpectation.
    """
    start = text.find("{")
    spans: dict[KeyPath, tuple[int, int]] = {}
    try:
        end = _walk_object(text, start, (), spans)
    except (ValueError, IndexError, RecursionError, AttributeError) as error:
        raise NoExpectation("the reply is not clean JSON") from error
    at = raw.rfind(_to_bytes(text[start:end]))
    if at < 0:
        raise NoExpectation("the log-probabilities are not those of the text")

    def offset(place: int) -> int:
        return at + len(_to_bytes(text[start:place]))

    return {path: (offset(first), offset(last)) for path, (first, last) in spans.items()}


def _walk_object(text: str, at: int, path: KeyPath, spans: dict[KeyPath, tuple[int, int]]) -> int:
    """Record the span of every value in the object that begins at `at`, and return its end. Raises
    ValueError.
    """
    if text[at] != "{":
        raise ValueError(text[at])
    at += 1
    while key := KEY.match(text, at):
        inner, start = (*path, json.loads(f'"{key[1]}"')), key.end()
        end = (
            _walk_object(text, start, inner, spans)
            if text[start] == "{"
            else DECODER.raw_decode(text, start)[1]
        )
        spans[inner] = start, end
        comma = COMMA.match(text, end)
        at = comma.end() if comma else end
    closing = CLOSING_BRACE.match(text, at)
    if closing is None:
        raise ValueError(text[at : at + 20])
    return closing.end()


DECODER = json.JSONDecoder()


def _to_bytes(text: str) -> bytes:
    return (
        text.encode("utf-8", "surrogateescape")
        if _is_plain(text)
        else text.encode("utf-8", "surrogatepass")
    )


def _is_plain(text: str) -> bool:
    """Whether every lone surrogate in a text stands for a byte."""
    return not any(
        "\ud800" <= char <= "\udfff" and not "\udc80" <= char <= "\udcff" for char in text
    )


def _to_text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
