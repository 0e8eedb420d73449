"""Tables of others: their rows, one at a time, whatever the file; which column is what; and tables of ours."""

from .columns import RowMapping, TaskColumns, infer_columns
from .readers import BadRow, Row, iter_rows
from .sources import ReadInterrupted, Source, open_source
from .values import merge_columns, result_column_names
from .writers import Output, open_output

__all__ = [
    "BadRow",
    "TaskColumns",
    "Output",
    "Row",
    "RowMapping",
    "Source",
    "ReadInterrupted",
    "merge_columns",
    "result_column_names",
    "open_output",
    "open_source",
    "infer_columns",
    "iter_rows",
]
