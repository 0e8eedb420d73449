"""The graders of code: what tests say, which run in the sandbox, and what tools and parsers say.

They are in the table of graders like any other (see `graders.catalog`), which finds them here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ...graders.catalog import computed_entry, lazy_factory
from ...graders.registry import GraderEntry

_factory = partial(lazy_factory, package=__name__)


def _lint_factory(kind: str) -> Callable[[str], Any]:
    """Return a `make` for a check by rules, which may stand alone: "E,F,ignore=E501" means
    "rules=E|F,ignore=E501".
    """

    def make(argument: str) -> Any:
        parts = [part.strip() for part in argument.split(",") if part.strip()]
        rules = "|".join(part for part in parts if "=" not in part)
        options = [f"rules={rules}"] if rules else []
        grader = _factory("code_checks", kind)(
            ",".join([*options, *(part for part in parts if "=" in part)])
        )
        return replace(grader, name=f"{type(grader).name}:{argument}") if parts else grader

    return make


CODE_GRADERS: tuple[GraderEntry, ...] = (
    computed_entry(
        "code_similarity",
        "the similarity of Python code with the reference solution, whatever its layout and names",
        _factory("code_checks", "CodeSimilarity"),
        "reference metadata",
        "code_similarity:names=true",
    ),
    computed_entry(
        "complexity",
        "the cyclomatic complexity of the most complex Python function is within a limit",
        _factory("code_checks", "Complexity"),
        "metadata",
        "complexity:limit=10",
    ),
    computed_entry(
        "lint",
        "1 / (1 + findings of ruff in Python code), by rules that you name",
        _lint_factory("Lint"),
        "metadata",
        "lint:E,F,B",
        runs_programs=True,
    ),
    computed_entry(
        "security",
        "1 / (1 + findings of bandit's rules in Python code, as ruff has them)",
        _lint_factory("Security"),
        "metadata",
        runs_programs=True,
    ),
    computed_entry(
        "syntax", "Python code compiles", _factory("code_checks", "CodeSyntax"), "metadata"
    ),
    computed_entry(
        "tests",
        "the share of the task's tests that Python code passes, run in a sandbox",
        _factory("code_tests", "CodeTests"),
        "messages tests metadata",
        "tests:cpu_seconds=5",
        runs_programs=True,
    ),
    computed_entry(
        "types",
        "1 / (1 + type errors that mypy or basedpyright finds in Python code)",
        _factory("code_checks", "Types"),
        "metadata",
        "types:strict=true",
        runs_programs=True,
    ),
)
