"""Tables that a program holds: DataFrames of pandas and polars, tables and datasets of Arrow, row by row.

They are known by their methods, so none of these libraries is imported. What a row means is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from .readers import ROWS_PER_BATCH, check_header
from .values import to_jsonable


def frame_rows(table: Any) -> Callable[[], Iterator[Mapping[str, Any]]] | None:
    """What gives the rows of a table, from the first on, as often as it is called; None for what is no such table.

    Raises ConfigError for a column that is named twice.
    """
    if _has_methods(table, "iter_rows"):  # polars
        return partial(table.iter_rows, named=True)
    if _has_methods(table, "to_batches") and hasattr(table, "schema"):  # Arrow
        check_header("the table", table.schema.names)
        return partial(_arrow_rows, table)
    if _has_methods(table, "to_dict", "notna") and hasattr(table, "columns"):  # pandas
        check_header("the DataFrame", [str(name) for name in table.columns])
        return partial(_pandas_rows, table)
    return None


def _has_methods(table: Any, *methods: str) -> bool:
    return not isinstance(table, type) and all(callable(getattr(table, name, None)) for name in methods)


def _arrow_rows(table: Any) -> Iterator[Mapping[str, Any]]:
    for batch in table.to_batches():
        for start in range(0, batch.num_rows, ROWS_PER_BATCH):
            yield from batch.slice(start, ROWS_PER_BATCH).to_pylist()


def _pandas_rows(table: Any) -> Iterator[Mapping[str, Any]]:
    """What is missing, however that is written, is None; arrays are lists."""
    for start in range(0, len(table), ROWS_PER_BATCH):
        some = table.iloc[start : start + ROWS_PER_BATCH]
        held = some.astype(object).where(some.notna(), None)
        for row in held.to_dict("records"):
            yield {str(name): to_jsonable(value) if hasattr(value, "tolist") else value for name, value in row.items()}
