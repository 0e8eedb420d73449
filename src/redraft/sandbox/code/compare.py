"""Tests of calls, and whether what a program returned or printed is what was expected. Values are
of exact built-in types (`values.decode`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isclose, isfinite, isnan
from typing import Any, Literal, TypeAlias

Comparison: TypeAlias = Literal["equal", "not_equal", "identical", "true", "false"]
OutputComparison: TypeAlias = Literal["exact", "tokens", "floats"]
OUTPUT_COMPARISONS: tuple[OutputComparison, ...] = ("exact", "tokens", "floats")
FLOAT_TOLERANCE = 1e-6  # of "floats"; usual on programming contests
# `isspace` of C; str.split splits at other white space, too, such as \xa0
WORD = re.compile(r"[^ \t\n\v\f\r]+")
# float() reads more: 1_000, digits of other scripts
NUMBER = re.compile(r"[+-]?([0-9]++\.?[0-9]*+|\.[0-9]++)([eE][+-]?[0-9]++)?")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far numbers may lie from those expected: `absolute`, or `relative` to the expected one.

    `symmetric`: relative to the larger one, as `math.isclose` does it. A tolerance of 1 or more
    allows every larger number then.
    """

    relative: float = 0.0
    absolute: float = 0.0
    symmetric: bool = False

    def allows(self, expected: float, got: float) -> bool:
        """Return whether a number lies near enough to the expected one."""
        try:
            relative, absolute = self.relative, self.absolute
            if not self.symmetric:
                relative, absolute = 0.0, max(absolute, relative * abs(expected))
            return isclose(expected, got, rel_tol=relative, abs_tol=absolute)
        except OverflowError:  # an integer that no float can hold
            return expected == got


@dataclass(frozen=True, slots=True)
class ValueComparer:
    """Compares values as Python's == does.

    - `tolerance`: numbers that are close count as equal, also inside of lists, tuples and
      dictionaries.
    - `equal_nan`: nan equals nan; without it nan equals nothing.
    - `json`: the expected value comes from JSON, which has neither tuples nor keys that are
      numbers: a tuple equals a list, and the key 1 equals "1".
    """

    tolerance: Tolerance | None = None
    equal_nan: bool = False
    json: bool = False

    def equal(self, expected: object, got: object) -> bool:
        """Return whether a value of exact built-in types equals the expected one. Raises what `==`
        raises (a signalling NaN).
        """
        if self.tolerance is None and not self.equal_nan and not self.json:
            return bool(expected == got)
        match expected, got:
            case (int() | float(), int() | float()):
                return self._equal_numbers(expected, got)
            case (list() | tuple(), list() | tuple()):
                return (
                    (self.json or type(expected) is type(got))
                    and len(expected) == len(got)
                    and all(map(self.equal, expected, got))
                )
            case (dict(), dict()):
                values = self._with_json_keys(expected, got)
                return expected.keys() == values.keys() and all(
                    self.equal(value, values[key]) for key, value in expected.items()
                )
        return bool(expected == got)

    def _equal_numbers(self, expected: float, got: float) -> bool:
        both_float = isinstance(expected, float) and isinstance(got, float)
        if both_float and isnan(expected) and isnan(got):
            return self.equal_nan
        if expected == got:
            return True
        if self.tolerance is None or isinstance(expected, bool) or isinstance(got, bool):
            return False
        return self.tolerance.allows(expected, got)

    def _with_json_keys(self, expected: Mapping[Any, Any], got: dict[Any, Any]) -> dict[Any, Any]:
        """Return the dictionary with keys that are numbers as JSON writes them, if all expected
        keys are texts.
        """
        if (
            not self.json
            or len(expected) != len(got)
            or not all(type(key) is str for key in expected)
        ):
            return got
        return {
            str(key) if type(key) is int and abs(key) < 2**63 else key: value
            for key, value in got.items()
        }


@dataclass(frozen=True, slots=True)
class CallTest:
    """A call of a function with values, and what must hold of the value that it returns or of the
    exception that it raises.

    `function` "" is the task's entry point. `raises` is the name of the exception that must be
    raised, or of a built-in base class of it. Each of `alternatives` is right, too.
    """

    function: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    expected: Any = None
    comparison: Comparison = "equal"
    comparer: ValueComparer = ValueComparer()
    raises: str | None = None
    weight: float = 1.0
    hidden: bool = False
    name: str = ""
    alternatives: tuple[Any, ...] = ()

    def accepts(self, value: object) -> bool:
        """Return whether a value that was returned is right. Raises what `==` raises."""
        match self.comparison:
            case "identical":  # expected is None, True, False
                return any(value is right for right in (self.expected, *self.alternatives))
            case "true":
                return bool(value)
            case "false":
                return not value
        equal = any(
            self.comparer.equal(expected, value) for expected in (self.expected, *self.alternatives)
        )
        return equal is (self.comparison == "equal")


def equal_output(
    expected: str, printed: str, comparison: OutputComparison, tolerance: float = FLOAT_TOLERANCE
) -> bool:
    """Return whether a program printed what was expected.

    "exact": equal, but for the way in which lines end and one line end at the end. "tokens": equal
    sequences of words, which white space of ASCII separates, as checkers of programming contests do
    it. "floats": as tokens, and words that are decimal numbers may differ by `tolerance`, absolute
    or relative to the expected one.
    """
    if comparison == "exact":
        return _without_last_line_end(expected) == _without_last_line_end(printed)
    expected_words, printed_words = WORD.findall(expected), WORD.findall(printed)
    if comparison == "tokens" or len(expected_words) != len(printed_words):
        return expected_words == printed_words
    allowed = Tolerance(tolerance, tolerance)
    return all(
        a == b or _close_words(a, b, allowed)
        for a, b in zip(expected_words, printed_words, strict=True)
    )


def _without_last_line_end(text: str) -> str:
    return text.replace("\r\n", "\n").removesuffix("\n")


def _close_words(expected: str, printed: str, tolerance: Tolerance) -> bool:
    if not (NUMBER.fullmatch(expected) and NUMBER.fullmatch(printed)):
        return False
    numbers = float(expected), float(printed)
    return all(map(isfinite, numbers)) and tolerance.allows(*numbers)
