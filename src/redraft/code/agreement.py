"""Whether different changes that pass all tests do the same on other inputs, which tells repairs
from coincidences.

Few tests can be satisfied by a wrong change. A real mistake can usually be corrected at several
places or in several ways that do the same, and a coincidence seldom can. So the editor looks for
changes that agree, on inputs that are made from those of the tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from typing import Any, TypeAlias

from .report import TestReport
from .tests import CallTest, Tests

MAX_CALLS = 24
MAX_ITEMS = 1_000  # of a value that is changed
MISSING = object()
Behaviour: TypeAlias = tuple[tuple[str | None, str], ...]


def similar_calls(tests: Tests) -> Tests | None:
    """Return calls whose arguments differ a little from those of the tests; None for tests that are
    no calls.

    Nothing is expected of them, so whether they pass means nothing.
    """
    calls = (
        call
        for row in zip_longest(*map(_similar, tests.calls[:MAX_CALLS]))
        for call in row
        if call is not None
    )
    chosen = tuple(islice(calls, MAX_CALLS)) if tests.kind == "calls" else ()
    return replace(tests, calls=chosen) if chosen else None


def _similar(test: CallTest) -> Iterator[CallTest]:
    """Yield the call with one argument changed."""
    for row in zip_longest(*map(_variants, test.args), fillvalue=MISSING):
        for n, variant in enumerate(row):
            if variant is not MISSING:
                yield replace(test, args=(*test.args[:n], variant, *test.args[n + 1 :]))


def _variants(value: Any) -> Iterator[Any]:
    """Yield values of the same type that are a little different."""
    match value:
        case bool():
            yield not value
        case int():
            yield from (value + 1, value - 1, value + 2, 2 * value, 0)
        case float():
            yield from (value + 1, value - 0.5, 2 * value, 0.0)
        case str() | list() | tuple() if len(value) <= MAX_ITEMS:
            yield from (value[1:], value[::-1], value * 2, value[:-1])
            if value and not isinstance(value, str):
                first = next(_variants(value[0]), value[0])
                yield type(value)([first, *value[1:]])
        case dict() if value and len(value) <= MAX_ITEMS:
            yield dict(list(value.items())[1:])


def behaviour(report: TestReport) -> Behaviour:
    """Return what a program did in each call: the value as text, or the kind of error."""
    return tuple((result.got, result.error.partition(":")[0]) for result in report.results)


def largest_group(behaviours: Sequence[Behaviour]) -> list[int]:
    """Return the numbers of the programs that behave alike, of the largest group and of the first
    of equally large ones.
    """
    [(most, _)] = Counter(behaviours).most_common(1)
    return [n for n, each in enumerate(behaviours) if each == most]
