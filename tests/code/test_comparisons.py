"""When a value or an output is what was expected."""

import math
from decimal import Decimal
from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from each_row import each_row
from redraft.sandbox.code.compare import CallTest, Tolerance, ValueComparer, equal_output

PLAIN, JSON, CLOSE = ValueComparer(), ValueComparer(json=True), ValueComparer(Tolerance(1e-6, 1e-6))
WIDE = ValueComparer(Tolerance(1, 1))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(values, values)
@example([True, 1.0, -0.0, 10**20], [1, True, 0.0, 1e20])
@example([1, 2], (1, 2))
@example({"1": [1]}, {1: [1]})
@example({"a": 1, "b": [None]}, {"b": [None], "a": 1})
@example([math.inf, -math.inf], [math.inf, -math.inf])
def test_without_options_it_is_the_equality_of_python(a, b):
    """Verdicts agree with those of an `assert a == b`, whatever the types."""
    assert PLAIN.equal(a, b) == (a == b)
    assert ValueComparer(equal_nan=True).equal(a, a)
    if a == b:
        assert JSON.equal(a, b)
        assert CLOSE.equal(a, b)


@each_row(
    ("comparer", "expected", "got", "equal"),
    [
        (PLAIN, [1], (1,), False),
        (PLAIN, 1, True, True),
        (PLAIN, 1, "1", False),
        (PLAIN, 0.5, Fraction(1, 2), True),
        (PLAIN, 1, Decimal(1), True),
        (JSON, [1, [2]], (1, (2,)), True),
        (JSON, [1], {1}, False),
        (JSON, {"1": [2]}, {1: (2,)}, True),
        (JSON, {"1": 2, "a": 3}, {1: 2, "a": 3}, True),
        (JSON, {"1": 2}, {"1": 2, 1: 2}, False),
        (JSON, "ab", ["a", "b"], False),
        (CLOSE, 1.0, 1.0000001, True),
        (CLOSE, [1.0, {"a": 2}], [1.0000001, {"a": 2.0000001}], True),
        (CLOSE, 1.0, 1.01, False),
        (CLOSE, 1.0, "1.0", False),
        (CLOSE, 1.0, [1.0], False),
        (CLOSE, [1.0], [1.0, 1.0], False),
        (CLOSE, 1.0, math.nan, False),
        (CLOSE, math.inf, 1e308, False),
        (CLOSE, 10**400, 10**400 + 1, False),
        (CLOSE, 1.0, None, False),
        (WIDE, 3.0, 4.0, True),
        (WIDE, 3.0, 1e300, False),
        (WIDE, 3.0, math.inf, False),
        (WIDE, -3.0, -6.5, False),
        (ValueComparer(Tolerance(0.9)), 3.0, 29.0, False),
        (
            ValueComparer(Tolerance(0.9, symmetric=True)),
            3.0,
            29.0,
            math.isclose(3.0, 29.0, rel_tol=0.9),
        ),
        (ValueComparer(equal_nan=True), [math.nan], [math.nan], True),
        (ValueComparer(equal_nan=True), math.nan, 0.0, False),
    ],
)
def test_options_of_a_comparison(comparer, expected, got, equal):
    """Tolerance, nan and the types that JSON lacks count only where they were asked for, and inside
    of containers, too.
    """
    assert comparer.equal(expected, got) is equal


@each_row(
    ("comparison", "expected", "printed", "equal"),
    [
        ("exact", "a b\n", "a b", True),
        ("exact", "a\nb", "a\r\nb\r\n", True),
        ("exact", "a b", "a  b", False),
        ("exact", "a", "a\n\n", False),
        ("tokens", "a b\nc", " a b c\n", True),
        ("tokens", "a b", "ab", False),
        ("tokens", "a b", "a\t\v\f\r\nb", True),
        *(("tokens", "a b", f"a{space}b", False) for space in "\x1c\x1f\x85\xa0\u2003\u3000"),
        ("floats", "1 2", "1\xa02", False),
        ("tokens", "1", "1.0", False),
        ("floats", "0.1 yes", "0.1000000001 yes", True),
        ("floats", "1", "1.0", True),
        ("floats", "0.1", "0.2", False),
        ("floats", "1 2", "1", False),
        ("floats", "nan", "1", False),
        ("floats", "1", "nan", False),
        ("floats", "yes", "no", False),
        ("floats", "12", "\u0661\u0662", False),
        ("floats", "12", "1_2", False),
        ("floats", "16", "0x10", False),
        ("floats", "12.", "+1.2E1", True),
        ("floats", "inf", "inf", True),
        ("floats", "1e999", "inf", False),
        ("floats", "1e999", "1e9999", False),
        ("tokens", "1", "", False),
    ],
)
def test_outputs(comparison, expected, printed, equal):
    """How the output of a program is compared."""
    assert equal_output(expected, printed, comparison) is equal


def test_each_alternative_of_an_identical_value_is_right():
    test = CallTest("f", expected=None, comparison="identical", alternatives=(True,))
    assert [test.accepts(value) for value in (None, True, False, 1)] == [True, True, False, False]
