"""A table whose rows are one test.

pytest needs 2 ms for each test, most of them where a worker reports to the process that counts:
more than most rows of a table take. `each_row` is written as `pytest.mark.parametrize`, and each
row that fails is named, with its place. It is for rows that take milliseconds and share nothing:
their test has no fixtures, no row has marks or is skipped, and all rows have one environment and
one event loop. To run a row alone, as under a debugger, cut the others off for the moment:
`rows[7:8]`.
"""

from contextlib import contextmanager
from functools import partial, wraps
from inspect import Signature, iscoroutinefunction

import pytest


def each_row(names, rows, ids=None):
    """Call the function for each row, and fail if it failed for any. Above another `each_row`, for
    each row with each of that.
    """
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    table = [dict(zip(names, row if len(names) > 1 else (row,), strict=True)) for row in rows]
    ids = ids if ids is None or callable(ids) else list(ids)
    assert table, "a table without rows tests nothing"

    def decorate(function):
        function, inner = getattr(function, "each_row", (function, [({}, ())]))
        rows = [
            (row | other, (partial(name_of, place, row, ids), *names))
            for place, row in enumerate(table)
            for other, names in inner
        ]
        if iscoroutinefunction(function):

            async def test():
                with all_reported(rows) as row_reported:
                    for place, (row, _) in enumerate(rows):
                        with row_reported(place):
                            await function(**row)
        else:

            def test():
                with all_reported(rows) as row_reported:
                    for place, (row, _) in enumerate(rows):
                        with row_reported(place):
                            function(**row)

        wraps(function)(test)
        test.each_row = function, rows
        test.__signature__ = Signature()  # pytest finds no fixtures
        return test

    return decorate


def name_of(place, row, ids):
    """Return the name of a row: that given, or what a function gives to its values."""
    if ids is not None and not callable(ids):
        return ids[place]
    return "-".join(map(str, map(ids, row.values()))) if ids else ascii([*row.values()])


@contextmanager
def all_reported(rows):
    """Give a context for each row, and raise all that was raised in these."""
    failures = []

    @contextmanager
    def row_reported(place):
        try:
            yield
        except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
            name = "-".join(name() for name in rows[place][1])
            error.add_note(f"in row {place}, {name[:300]}")
            failures.append(error)

    yield row_reported
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} of {len(rows)} rows fail", failures)
