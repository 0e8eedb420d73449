"""Tables: reading rows in many formats one at a time, finding the columns that make a task, and writing rows."""

from .columns import RowMapping, TaskColumns, infer_columns
from .readers import BadRow, Row, iter_rows
from .sources import Source, open_source
from .spool import ReadInterrupted
from .writers import Output, merge_columns, open_output, result_column_names

__all__ = [
    "BadRow",
    "Output",
    "ReadInterrupted",
    "Row",
    "RowMapping",
    "Source",
    "TaskColumns",
    "infer_columns",
    "iter_rows",
    "merge_columns",
    "open_output",
    "open_source",
    "result_column_names",
]
