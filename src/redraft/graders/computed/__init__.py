"""Graders that compute: they ask no model (`embedding` asks an endpoint for vectors), and say the same thing every time.

Listing them loads none of them. No reason or action of theirs quotes the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from ...errors import ConfigError
from ..registry import Entry
from .arguments import from_argument


def _of(module: str, kind: str) -> Callable[[str], Any]:
    """A maker that loads the module when it is asked, and reads the options; with any, they are part of the grader's name."""

    def make(argument: str) -> Any:
        cls = getattr(import_module(f".{module}", __package__), kind)
        try:
            made = from_argument(cls, argument)
        except ConfigError as error:
            raise ConfigError(f"grader {cls.name!r}: {error}") from None
        return replace(made, name=f"{cls.name}:{argument}") if argument.strip() else made

    return make


def _embedding(argument: str) -> Any:
    from .embedding import made

    return made(argument)


def _entry(name: str, about: str, make: Callable[[str], Any], reads: str = "", example: str = "") -> Entry:
    return Entry(name, "code", about, make, tuple(reads.split()), example=example or name)


COMPUTED: tuple[Entry, ...] = (
    _entry("answered", "is an answer at all: not empty, no bare full stop, no mere opener", _of("no_answer", "Answered")),
    _entry("bleu", "BLEU against the reference", _of("overlap", "Bleu"), "reference"),
    _entry("bleu_on_topic", "BLEU of the sentences on the reference's topic", _of("overlap", "BleuOnTopic"), "reference"),
    _entry("chrf", "chrF against the reference", _of("overlap", "Chrf"), "reference"),
    _entry("chrf_on_topic", "chrF of the sentences on the reference's topic", _of("overlap", "ChrfOnTopic"), "reference"),
    _entry(
        "citations",
        "the share of quotes and cited passages that the context supports",
        _of("citations", "Citations"),
        "context",
        "citations:words=6",
    ),
    _entry(
        "embedding",
        "cosine with the reference by an embedding endpoint (calls of that endpoint, no chat model)",
        _embedding,
        "reference",
        "embedding:openai:text-embedding-3-small",
    ),
    _entry("exact", "equal to the reference", _of("exact", "Exact"), "reference", "exact:case=false,punctuation=false"),
    _entry("fuzzy", "likeness of characters with the reference", _of("overlap", "Fuzzy"), "reference"),
    _entry(
        "fuzzy_on_topic",
        "likeness of the sentences on the reference's topic, whatever case and punctuation",
        _of("overlap", "FuzzyOnTopic"),
        "reference",
    ),
    _entry(
        "json_fields",
        "the share of JSON fields equal to the reference's",
        _of("json_fields", "JsonFields"),
        "reference",
        "json_fields:fields=name|items,ordered=false",
    ),
    _entry("math", "the final answer equals the reference as mathematics", _of("math_answer", "Math"), "reference"),
    _entry(
        "numeric",
        "the number it comes to is the reference's",
        _of("numeric", "Numeric"),
        "reference",
        "numeric:relative=0.01,pick=only",
    ),
    _entry(
        "pii", "no personal data: e-mail, phone, card, IBAN, SSN, IP address", _of("leaks", "Pii"), example="pii:kinds=email|card"
    ),
    _entry(
        "readability",
        "Flesch-Kincaid grade within a range, for English",
        _of("readability", "Readability"),
        example="readability:most=8",
    ),
    _entry("repetition", "does not repeat itself", _of("repetition", "Repetition"), example="repetition:n=6"),
    _entry("rouge", "ROUGE against the reference", _of("overlap", "Rouge"), "reference", "rouge:kind=rouge2"),
    _entry("rouge_on_topic", "ROUGE of the sentences on the reference's topic", _of("overlap", "RougeOnTopic"), "reference"),
    _entry("secrets", "no API keys, private keys, tokens or passwords", _of("leaks", "Secrets")),
    _entry(
        "tool_calls",
        "the share of tool calls that are the expected ones",
        _of("tool_calls", "ToolCalls"),
        "reference metadata",
        "tool_calls:mode=any",
    ),
)

__all__ = ["COMPUTED"]
