"""Test cases of promptfoo in CSV: its columns, which begin with two underscores and may be
repeated, as columns of Redraft.

An expected text becomes the reference, a recorded answer the response, the rest metadata. Its other
assertions have no counterpart that a writing model is not shown: they are kept in the metadata and
reported, and grade nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from ..base.log import log

_KINDS = (
    "answer-relevance bleu classifier contains contains-all contains-any contains-html "
    "contains-json contains-sql contains-xml context-faithfulness context-recall "
    "context-relevance conversation-relevance cost equals eval factuality finish-reason fn g-eval "
    "gleu grade guardrails icontains icontains-all icontains-any is-html is-json is-refusal "
    "is-sql is-valid-function-call is-valid-openai-function-call is-valid-openai-tools-call "
    "is-xml javascript latency levenshtein llm-rubric meteor model-graded-closedqa "
    "model-graded-factuality moderation perplexity perplexity-score pi python regex rouge-n ruby "
    "search-rubric similar starts-with tool-call-f1 webhook word-count"
)
KINDS = frozenset(_KINDS.split())
ASSERTION = re.compile(r"\s*((?:not-)?([a-z][a-z0-9-]*))(?:\([^)]*\))?(?::(.*))?\s*", re.DOTALL)
EXPECTED, METADATA = "__expected", "__metadata:"
SEPARATOR = re.compile(r"(?<!\\),")  # between the items of a list


def is_promptfoo(columns: Iterable[str]) -> bool:
    """Return whether columns belong to test cases of promptfoo."""
    return any(name.startswith((EXPECTED, METADATA, "__providerOutput")) for name in columns)


def is_repeatable(column: str) -> bool:
    """Return whether a column may occur several times."""
    return column.startswith(EXPECTED)


def promptfoo_row(table: str, cells: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the columns of a test case. Raises ValueError for one that changes the prompt."""
    row: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    expected: list[str] = []
    for name, cell in cells:
        if name.startswith(EXPECTED):
            expected += [cell] if cell.strip() else []
        elif name.startswith(METADATA):
            key = name.removeprefix(METADATA)
            items = (
                [item.strip().replace("\\,", ",") for item in SEPARATOR.split(cell)]
                if cell.strip()
                else []
            )
            metadata[key.removesuffix("[]")] = items if key.endswith("[]") else cell
        elif name in {"__prefix", "__suffix"} and cell:
            raise ValueError(f"{name!r} of promptfoo is not read: add its text to the prompt")
        elif name == "__providerOutput":
            row["response"] = cell
        else:
            row[name] = cell
    texts = [
        text for assertion in expected if (text := _expected_text(table, assertion)) is not None
    ]
    if len(texts) == 1:
        row.setdefault("reference", texts[0])
    return row | {"metadata": metadata | ({"expected": expected} if expected else {})}


def _expected_text(table: str, assertion: str) -> str | None:
    """Return the text that an answer must equal; None, with a message, for another assertion."""
    found = ASSERTION.fullmatch(assertion)
    if not found or (found[2] not in KINDS and not assertion.startswith("file:")):
        return assertion
    if found[1] == "equals":
        return (found[3] or "").strip()
    _report(table, found[1])
    return None


@lru_cache(maxsize=1000)
def _report(table: str, kind: str) -> None:
    hint = "is kept as metadata and grades nothing; name a requirement or a grader for it"
    log.warning("%s: the assertion %r of promptfoo %s", table, kind, hint)
