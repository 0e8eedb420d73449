"""What became of tests: one result for each, and the report of all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any, ClassVar

from ...base.checks import format_value
from ..execution import Execution

PROGRAM = "the program"  # what fails if it does not even start, or has no function
IN_PROCESS_METHOD = "in_process: forgeable"


@dataclass(frozen=True, slots=True)
class TestResult:
    """The outcome of one test.

    - `call`: the call, the beginning of the input, or the assertion, as text; "the program" if that
      did not start.
    - `ok`: whether it passed.
    - `expected`, `got`: the values as text; None if there is none.
    - `error`: what went wrong, if it is not that the values differ; `traceback`: the lines of the
      candidate that led there.
    - `seconds`: by the clock, measured outside of the sandbox; None if it did not run.
    """

    __test__: ClassVar[bool] = False

    call: str
    ok: bool
    expected: str | None = None
    got: str | None = None
    error: str = ""
    traceback: str = ""
    seconds: float | None = None
    weight: float = 1.0
    hidden: bool = False
    name: str = ""

    @property
    def shown_name(self) -> str:
        """The name of the test, or its call."""
        return self.name or self.call


@dataclass(frozen=True)
class TestReport:
    """The outcome of all tests.

    - `results`: of the visible tests, in their order.
    - `method`: "calls", "driver", "stdio", or "in_process: forgeable".
    - `problem`: why there is no score; "" if there is one.
    - `hidden_results`: of the hidden tests, which decide nothing, in their order.
    - `execution`: how the candidate's last process ended; its time, memory and tier.
    """

    __test__: ClassVar[bool] = False

    method: str
    results: tuple[TestResult, ...] = ()
    problem: str = ""
    execution: Execution | None = None
    hidden_results: tuple[TestResult, ...] = field(default=(), repr=False)

    @property
    def score(self) -> float | None:
        """The share of the visible tests that passed, by weight, from 0 to 1; None if they could
        not be judged.
        """
        total = fsum(result.weight for result in self.results)
        if self.problem or not total:
            return None
        passed = fsum(result.weight for result in self.results if result.ok)
        return 1.0 if self.passed == len(self.results) else min(passed / total, 1 - 1e-9)

    @property
    def passed(self) -> int:
        """How many visible tests passed."""
        return sum(result.ok for result in self.results)

    @property
    def hidden_passed(self) -> int | None:
        """How many hidden tests passed; None if there are none."""
        return sum(result.ok for result in self.hidden_results) if self.hidden_results else None

    @property
    def hidden_total(self) -> int:
        """How many hidden tests there are."""
        return len(self.hidden_results)

    @property
    def ok(self) -> bool:
        """Whether there are visible tests and all passed."""
        return self.score == 1.0

    @property
    def failures(self) -> tuple[TestResult, ...]:
        """The visible tests that failed."""
        return tuple(result for result in self.results if not result.ok)

    @property
    def tier(self) -> str | None:
        """The tier of the sandbox; None if nothing ran."""
        return self.execution.tier if self.execution else None


def make_report(
    method: str, results: Iterable[TestResult], execution: Execution | None
) -> TestReport:
    """Return the report of the results of all tests, hidden ones included."""
    every = tuple(results)
    visible = tuple(result for result in every if not result.hidden)
    return TestReport(
        method,
        visible,
        execution=execution,
        hidden_results=tuple(result for result in every if result.hidden),
    )


# ---- texts

MAX_VALUE_CHARS = 300
MAX_MESSAGE_CHARS = 300
MAX_TRACE_LINES = 6


def show(value: object) -> str:
    """Return a value as Python writes it, shortened."""
    return format_value(value, MAX_VALUE_CHARS)


def show_call(function: str, args: Sequence[Any], kwargs: Mapping[Any, Any]) -> str:
    """Return a call as Python writes it, with each of its arguments shortened."""
    arguments = [*map(show, args), *(f"{name}={show(value)}" for name, value in kwargs.items())]
    return f"{function}({', '.join(arguments)})"
