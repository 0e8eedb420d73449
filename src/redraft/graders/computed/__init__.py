"""Computed graders: they ask no model (`embedding` asks an endpoint for vectors) and give the same feedback every time.

Listing them loads none of them. None of their reasons and actions quotes the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from ...errors import ConfigError
from ..registry import GraderEntry
from .arguments import parse_options


def _lazy_factory(module: str, kind: str) -> Callable[[str], Any]:
    """Return a `make` that loads the module when it is called. Options become part of the grader's name."""

    def make(argument: str) -> Any:
        cls = getattr(import_module(f".{module}", __package__), kind)
        try:
            made = parse_options(cls, argument)
        except ConfigError as error:
            raise ConfigError(f"grader {cls.name!r}: {error}") from None
        return replace(made, name=f"{cls.name}:{argument}") if argument.strip() else made

    return make


def _make_embedding(argument: str) -> Any:
    from .embedding import make_embedding

    return make_embedding(argument)


def _code_entry(name: str, about: str, make: Callable[[str], Any], task_fields: str = "", example: str = "") -> GraderEntry:
    return GraderEntry(name, "code", about, make, tuple(task_fields.split()), example=example or name)


COMPUTED_GRADERS: tuple[GraderEntry, ...] = (
    _code_entry(
        "answered",
        "is an answer at all: not empty, a full stop or a mere opener",
        _lazy_factory("no_answer", "AnswerPresence"),
    ),
    _code_entry("bleu", "BLEU against the reference", _lazy_factory("overlap", "Bleu"), "reference"),
    _code_entry(
        "bleu_on_topic", "BLEU of the sentences on the reference's topic", _lazy_factory("overlap", "BleuOnTopic"), "reference"
    ),
    _code_entry("chrf", "chrF against the reference", _lazy_factory("overlap", "Chrf"), "reference"),
    _code_entry(
        "chrf_on_topic", "chrF of the sentences on the reference's topic", _lazy_factory("overlap", "ChrfOnTopic"), "reference"
    ),
    _code_entry(
        "citations",
        "the share of quotes and cited passages that the context supports",
        _lazy_factory("citations", "Citations"),
        "context",
        "citations:min_words=6",
    ),
    _code_entry(
        "embedding",
        "cosine with the reference by an embedding endpoint (calls that endpoint, no chat model)",
        _make_embedding,
        "reference",
        "embedding:openai:text-embedding-3-small",
    ),
    _code_entry(
        "exact", "equal to the reference", _lazy_factory("exact", "Exact"), "reference", "exact:case=false,punctuation=false"
    ),
    _code_entry("fuzzy", "similarity of characters with the reference", _lazy_factory("overlap", "Fuzzy"), "reference"),
    _code_entry(
        "fuzzy_on_topic",
        "similarity of the sentences on the reference's topic, ignoring case and punctuation",
        _lazy_factory("overlap", "FuzzyOnTopic"),
        "reference",
    ),
    _code_entry(
        "json_fields",
        "the share of JSON fields equal to the reference's",
        _lazy_factory("json_fields", "JsonFields"),
        "reference",
        "json_fields:fields=name|items,ordered=false",
    ),
    _code_entry("math", "the final answer equals the reference as mathematics", _lazy_factory("math_answer", "Math"), "reference"),
    _code_entry(
        "numeric",
        "the final number equals the reference's",
        _lazy_factory("numeric", "Numeric"),
        "reference",
        "numeric:relative=0.01,pick=only",
    ),
    _code_entry(
        "pii",
        "no personal data: e-mail, phone, card, IBAN, SSN, IP address",
        _lazy_factory("leaks", "Pii"),
        example="pii:kinds=email|card",
    ),
    _code_entry(
        "readability",
        "Flesch-Kincaid grade within a range, for English",
        _lazy_factory("readability", "Readability"),
        example="readability:max_grade=8",
    ),
    _code_entry("repetition", "does not repeat itself", _lazy_factory("repetition", "Repetition"), example="repetition:n=6"),
    _code_entry("rouge", "ROUGE against the reference", _lazy_factory("overlap", "Rouge"), "reference", "rouge:kind=rouge2"),
    _code_entry(
        "rouge_on_topic", "ROUGE of the sentences on the reference's topic", _lazy_factory("overlap", "RougeOnTopic"), "reference"
    ),
    _code_entry("secrets", "no API keys, private keys, tokens or passwords", _lazy_factory("leaks", "Secrets")),
    _code_entry(
        "tool_calls",
        "the share of tool calls that are the expected ones",
        _lazy_factory("tool_calls", "ToolCalls"),
        "reference metadata",
        "tool_calls:mode=any",
    ),
)

__all__ = ["COMPUTED_GRADERS"]
