"""A table that is one test fails as its rows would: each that fails is named, and those after it
run.
"""

import asyncio

import pytest

from each_row import each_row

ROWS = [(1, "x"), (2, "y"), (3, "z"), (4, "y"), (5, "x")]


def failures(test):
    """Run a test, and return the type and the notes of each error."""
    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(test()) if asyncio.iscoroutinefunction(test) else test()
    return [(type(error).__name__, error.__notes__) for error in caught.value.exceptions]


def act(number, letter):
    """Pass in the first row and in the last; fail in three ways between."""
    assert number != 2
    if number == 3:
        pytest.fail("no")
    if number == 4:
        pytest.skip("no")


def test_each_row_that_fails_is_named():
    """By its values, by its name in a list, or by those that a function gives; coroutines as
    functions.
    """
    kinds, seen = ["AssertionError", "Failed", "Skipped"], []

    def run(number, letter):
        seen.append(letter)
        act(number, letter)

    async def run_later(number, letter):
        await asyncio.sleep(0)
        run(number, letter)

    for function in (run, run_later):
        named = [f"in row {place}, {list(ROWS[place])}" for place in (1, 2, 3)]
        assert failures(each_row("number, letter", ROWS)(function)) == [
            (kind, [n]) for kind, n in zip(kinds, named, strict=True)
        ]
        found = failures(each_row(("number", "letter"), iter(ROWS), ids=iter("abcde"))(function))
        assert [notes for _, notes in found] == [["in row 1, b"], ["in row 2, c"], ["in row 3, d"]]
        found = failures(each_row("number, letter", ROWS, ids=lambda value: f"<{value}>")(function))
        assert [notes for _, notes in found] == [
            ["in row 1, <2>-<y>"],
            ["in row 2, <3>-<z>"],
            ["in row 3, <4>-<y>"],
        ]
    assert seen == ["x", "y", "z", "y", "x"] * 6


def test_tables_are_combined():
    """As those of `parametrize`: each row of one with each of the other, named by both."""
    seen = []

    def run(letter, number, place):
        seen.append((number, letter))
        assert (number, letter, place) != (2, "y", 0)

    test = each_row("number", [1, 2])(each_row("letter, place", [("x", 1), ("y", 0)], "ab")(run))
    assert failures(test) == [("AssertionError", ["in row 3, [2]-b"])]
    assert seen == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]


@each_row("value", [(1, 2), [3]])
def test_a_single_name_has_the_value_as_it_is(value):
    """As in `parametrize`, a row of one name is not taken apart."""
    assert value in ((1, 2), [3])


def test_a_table_without_rows_is_refused():
    """So is a row with too few values."""
    with pytest.raises(AssertionError, match="without rows"):
        each_row("x", [])
    with pytest.raises(ValueError, match="shorter"):
        each_row("x, y", [(1,)])
