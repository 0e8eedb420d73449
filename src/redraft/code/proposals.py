"""Which changes of a program the editor tries. They are made in a worker process: parsing code of
others may take long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from ..compute.pool import run, run_sync
from ..errors import ComputeLimitError
from .imports import foreign_names, missing_imports, undefined_names
from .mutations import Hints, mutants
from .programs import (
    entry_point_aliases,
    similar_names,
    with_cached_results,
    with_recursion_limit,
    without_top_level_statements,
)
from .slips import repair_syntax
from .source import MAX_CHARS, Proposal, compiles

Pairs: TypeAlias = list[list[str]]
"""Proposals as JSON: [code, note] each."""
FAILURE = "the code could not be repaired"


async def propose(function: Callable[..., Pairs], code: str, *arguments: Any) -> list[Proposal]:
    """Return the proposals of one of the functions below; none if the worker reaches its limits."""
    try:
        found = await run(function, code, *arguments, failure_text=FAILURE, text_length=len(code))
    except (ComputeLimitError, RuntimeError):
        return []
    return [Proposal(changed, note) for changed, note in found]


def repaired_syntax(code: str) -> Proposal | None:
    """Return the code with its errors of syntax repaired; None if that cannot be done. It blocks
    while a worker does it.
    """
    return _first(syntax_proposals, code)


def with_missing_imports(code: str) -> Proposal | None:
    """Return the code with the imports of the standard library that are missing; None if none are.
    It blocks, too.
    """
    return _first(import_proposals, code)


def _first(function: Callable[..., Pairs], code: str) -> Proposal | None:
    if len(code) > MAX_CHARS:
        return None
    try:
        found = run_sync(function, code, failure_text=FAILURE, text_length=len(code))
    except (ComputeLimitError, RuntimeError):
        return None
    return Proposal(*found[0]) if found else None


def import_proposals(code: str) -> Pairs:
    """Return the code with the imports of the standard library that are missing."""
    return _pairs([missing_imports(code)])


def syntax_proposals(code: str) -> Pairs:
    """Return the code with its syntax repaired."""
    return _pairs([repair_syntax(code)])


def start_proposals(code: str, entry_point: str) -> Pairs:
    """Return changes of syntax, names and statements at the top level: all of them together, then
    each alone.
    """
    found = [_all_slips(code)]
    if compiles(code):
        found += [missing_imports(code, standard_library_only=False), foreign_names(code)]
        found += [*entry_point_aliases(code, entry_point), without_top_level_statements(code)]
        found += similar_names(code, list(undefined_names(code)))
    return _pairs(found)


def certain_proposals(code: str) -> Pairs:
    """Return the code without its errors of syntax and with the names that it misses, as far as
    that is no guess.
    """
    return _pairs([_all_slips(code)])


def _all_slips(code: str) -> Proposal | None:
    """Return the code with its syntax repaired, its foreign names replaced and its imports added;
    None if nothing is to do.
    """
    notes: list[str] = []
    for change in (
        repair_syntax,
        foreign_names,
        partial(missing_imports, standard_library_only=True),
    ):
        if changed := change(code):
            code = changed.code
            notes.append(changed.note)
    return Proposal(code, "; ".join(notes)) if notes else None


def time_proposals(code: str) -> Pairs:
    """Return changes of a program that runs out of time: results are cached."""
    return _pairs(with_cached_results(code))


def recursion_proposals(code: str) -> Pairs:
    """Return changes of a program whose recursion is too deep: a higher limit, results cached, and
    both.
    """
    cached, deeper = with_cached_results(code), with_recursion_limit(code)
    both = [
        Proposal(with_recursion_limit(each.code).code, f"{each.note}; {deeper.note}")
        for each in cached
    ]
    return _pairs([*both, deeper, *cached])


def mutation_proposals(
    code: str, lines: Sequence[tuple[int, float]], expected: str, got: str
) -> Pairs:
    """Return small changes of the code, the likeliest first; `lines` are pairs of a line and how
    suspicious it is.
    """
    return _pairs(mutants(code, Hints(dict(lines), expected, got)))


def _pairs(proposals: Sequence[Proposal | None]) -> Pairs:
    return [list(proposal) for proposal in proposals if proposal]
