"""The columns that the statistics take: checked once, with an error that names the argument, its
place and what is allowed; and the libraries that compute, loaded when they are needed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from importlib import import_module
from math import isfinite, nan
from numbers import Real
from typing import Any, TypeAlias, TypeVar

from ...base import checks
from ...base.checks import install_command, needs_extra
from ...errors import ConfigError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
OptionalNumber: TypeAlias = float | None
LARGEST_NUMBER = 1e100  # size of a number; the squares of much larger ones overflow


def check_dependencies() -> None:
    """Raise ConfigError if a library that the statistics need is not installed. Called before the
    first model call.
    """
    for name in ("numpy", "scipy.stats"):
        import_library(name)
    if not hasattr(import_library("scipy.optimize"), "isotonic_regression"):
        raise ConfigError(f"calibration needs scipy 1.12 or later: {install_command('validate')}")


def import_library(name: str) -> Any:
    """Return a library of the extra `validate`. Raises ConfigError if it is not installed."""
    with needs_extra("validate", f"this measure needs {name.partition('.')[0]}"):
        return import_module(name)


def check_equal_lengths(**columns: Sequence[Any] | None) -> None:
    """Raise ConfigError that names the columns and their lengths unless these are equal; None is no
    column.
    """
    lengths = {name: len(column) for name, column in columns.items() if column is not None}
    if len(set(lengths.values())) > 1:
        names, counts = (
            f"{', '.join(words[:-1])} and {words[-1]}"
            for words in (list(lengths), list(map(str, lengths.values())))
        )
        raise ConfigError(f"{names} must be equally long, got {counts}")


def finite_numbers(
    name: str, values: Iterable[Any], low: float = -LARGEST_NUMBER, high: float = LARGEST_NUMBER
) -> list[float]:
    """Return numbers as floats. Raises ConfigError that names the first one that is missing, not
    finite or out of range.
    """
    values = list(values)
    numbers = [
        value if type(value) is float else float(value) if isinstance(value, Real) else nan
        for value in values
    ]
    if (
        all(map(isfinite, numbers))
        and low <= min(numbers, default=low)
        and max(numbers, default=high) <= high
    ):
        return numbers
    for i, number in enumerate(numbers):
        if not isfinite(number) or not low <= number <= high:
            unlimited = low == -LARGEST_NUMBER and not isfinite(number)
            expected = "a finite number" if unlimited else f"a number in [{low:g}, {high:g}]"
            raise checks.invalid_argument(f"{name}[{i}]", expected, values[i])
    return numbers


def binary_numbers(name: str, values: Sequence[float]) -> list[float]:
    """Return numbers of which each is 0 or 1. Raises ConfigError as `finite_numbers` does."""
    numbers = finite_numbers(name, values, 0, 1)
    if (i := next((i for i, value in enumerate(numbers) if value not in {0, 1}), None)) is not None:
        raise checks.invalid_argument(f"{name}[{i}]", "0 or 1", values[i])
    return numbers


def group_values(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return the values of each key, in the order in which they come."""
    groups: dict[K, list[T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def check_finite(value: float) -> float:
    """Return a number as a float. Raises ConfigError for infinity and NaN."""
    if not isfinite(value):
        raise ConfigError(f"a measure takes finite numbers, got {value!r}")
    return float(value)


def complete_rows(**columns: Sequence[OptionalNumber]) -> list[tuple[float, ...]]:
    """Return the rows of equally long columns, without those in which a number is missing."""
    check_equal_lengths(**columns)
    rows = zip(*columns.values(), strict=True)
    return [tuple(map(check_finite, row)) for row in rows if None not in row]
