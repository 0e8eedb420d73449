"""Rows of data sets: read one at a time in many formats, made into tasks by their columns, and
written, also as training data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .columns import RowMapping, TaskColumns, infer_columns
    from .readers import BadRow, Row, iter_rows
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "BadRow": "readers",
            "Row": "readers",
            "RowMapping": "columns",
            "TaskColumns": "columns",
            "infer_columns": "columns",
            "iter_rows": "readers",
        },
    )

__all__ = ["BadRow", "Row", "RowMapping", "TaskColumns", "infer_columns", "iter_rows"]
