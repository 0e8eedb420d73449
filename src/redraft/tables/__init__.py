"""Tables of others: their rows, one at a time, whatever the file; which column is what; and tables of ours."""

from .columns import RowMapping, TaskColumns, infer_columns
from .readers import BadRow, Row, iter_rows
from .sources import ReadInterrupted, Source, open_source
from .values import merge_columns, result_column_names
from .writers import Output, open_output

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
