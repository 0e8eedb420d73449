"""The part of a task's tests that may be shown. Hidden tests, and their results, stay out of
everything that a model reads.

`redraft.sandbox.code.parse_tests` describes the forms of tests; here only what marks a test as
hidden matters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from ..base.jsontext import strict_loads
from .records import Feedback

NOTHING = object()
MAX_CHARS = 1_000_000  # of tests that are read


@lru_cache(maxsize=64)
def visible_tests(tests: str | None) -> str | None:
    """Return tests without the hidden ones, as text; None if none are left.

    Tests that look like JSON and are neither JSON nor a Python literal are returned if they hide
    nothing by name.
    """
    if not tests or tests.lstrip()[:1] not in ("[", "{"):
        return tests
    data = _read(tests)
    if data is NOTHING:
        return None if "hidden" in tests.lower() else tests
    visible = _without_hidden(data)
    if visible == data:
        return tests
    return json.dumps(visible, ensure_ascii=False) if visible else None


def _read(text: str) -> Any:
    """Return the value of JSON, or of a Python literal; NOTHING for any other text."""
    if len(text) > MAX_CHARS:
        return NOTHING
    try:
        return strict_loads(text)
    except ValueError:
        pass
    import ast  # few tests are Python literals

    try:
        return json.loads(json.dumps(ast.literal_eval(text.strip())))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return NOTHING


def _without_hidden(tests: Any) -> Any:
    """Return a value without hidden tests; an empty one if all are hidden."""
    match tests:
        case Mapping() if "input" in tests or "stdin" in tests:
            return {} if tests.get("hidden") else tests
        case Mapping():
            shown = {name: value for name, value in tests.items() if name != "hidden"}
            return (
                {**shown, "tests": _without_hidden(shown["tests"])} if "tests" in shown else shown
            )
        case list():
            return [
                test for test in tests if not (isinstance(test, Mapping) and test.get("hidden"))
            ]
        case str():
            return visible_tests(tests) or ""
    return tests


def hidden_results(feedback: Iterable[Any]) -> tuple[int, int] | None:
    """Return how many hidden tests pass and how many there are, as a feedback or a vote in it
    reports; None if none does.

    This is for people: no model may see it.
    """
    for each in feedback:
        if isinstance(each, Feedback):
            passed, total = each.metadata.get("hidden_passed"), each.metadata.get("hidden_total")
            if type(passed) is int and type(total) is int and total:
                return passed, total
            if found := hidden_results(each.votes):
                return found
    return None
