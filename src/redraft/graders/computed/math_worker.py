"""The comparison that `math` runs in a worker: whether an answer and a reference are equal as
mathematics.

The input is hostile. math-verify's LaTeX parser builds sympy objects from a grammar, but leaves
numbers to sympy, which parses a string by evaluating it as Python. That parser is replaced here,
before the first job, by one that accepts only plain decimals and names. The worker limits time and
memory (see `compute`).

This module is separate because a worker calls `prepare` of any module that it loads a function
from.
"""

from __future__ import annotations

import logging
import re
from functools import cache
from typing import Any, NoReturn


def equal_as_mathematics(answer: str, expected: str) -> bool | None:
    """Return whether an answer equals a reference as mathematics; None if that is unknown."""
    return _compare(prepare(), answer, expected)


@cache
def prepare() -> Any:
    """Load the libraries, and return the function that compares; called in a worker before its
    first job.
    """
    from sympy.parsing import sympy_parser  # type: ignore[import-untyped]

    sympy_parser.parse_expr = _parse_plain
    sympy_parser.eval_expr = _refuse
    from math_verify import verify  # type: ignore[import-untyped]

    logging.disable(logging.CRITICAL)
    _compare(verify, "x^2", "(x+1)^2 - 2x - 1")  # loads what comparing needs
    return verify


def _parse_plain(text: str, *_args: Any, **_options: Any) -> Any:
    from sympy import Float, Integer, Symbol  # type: ignore[import-untyped]

    if re.fullmatch(r"[0-9]{1,1000}", text):
        return Integer(int(text))
    if re.fullmatch(r"[0-9]{0,500}\.[0-9]{0,500}", text) and len(text) > 1:
        return Float(text)
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,50}", text):
        return Symbol(text)
    return _refuse(text)


def _refuse(text: str, *_args: Any, **_options: Any) -> NoReturn:
    raise ValueError(f"{text!r} is not evaluated here")


def _compare(compare: Any, answer: str, expected: str) -> bool | None:
    """Return None if the reference cannot be parsed or sympy gives up; an answer that cannot be
    parsed is not equal.
    """
    b = _parse_or_none(expected)
    if b is None:
        return None
    try:
        a = _parse_or_none(answer)
        return (
            a is not None
            and bool(compare(b, a, timeout_seconds=None))
            and ("%" in answer + expected or not _differs_beyond_rounding(a, b))
        )
    except Exception:  # noqa: BLE001  (sympy raises anything; what it cannot compare is unknown)
        return None


def _parse_or_none(text: str) -> Any:
    from latex2sympy2_extended import NormalizationConfig, latex2sympy  # type: ignore[import-untyped]

    config = NormalizationConfig(
        basic_latex=True, units=True, malformed_operators=True, nits=True, boxed="none"
    )
    try:
        return latex2sympy(
            _as_latex(text), is_real=True, convert_degrees=False, normalization_config=config
        )
    except Exception:  # noqa: BLE001  (the parser raises anything)
        return None


def _as_latex(text: str) -> str:
    """Return plain notation as LaTeX: ** for powers, bare names of functions."""
    text = (
        text.replace("**", "^")
        .replace("\u2212", "-")
        .replace("\u03c0", r"\pi ")
        .replace("\u221e", r"\infty ")
    )
    text = re.sub(r"(?<![\\A-Za-z])sqrt\s?\(([^()]*)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"\u221a\s?\(?(\w+)\)?", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<![\w^])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,3})(?!\w)", r"\1 \\cdot 10^{\2}", text)
    return re.sub(
        r"(?<![\\A-Za-z])(sin|cos|tan|cot|sec|csc|log|ln|exp|arcsin|arccos|arctan|pi)(?![A-Za-z])",
        r"\\\1 ",
        text,
    )


def _differs_beyond_rounding(a: Any, b: Any) -> bool:
    """Return whether two plain decimals differ although they are equal when rounded to 6 places, as
    math-verify does.
    """
    numbers = [
        value.evalf() for value in (a, b) if getattr(value, "is_number", False) and value.is_finite
    ]
    return len(numbers) == 2 and bool(abs(numbers[0] - numbers[1]) > abs(numbers[1]) / 10**4)
