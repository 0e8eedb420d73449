"""Tables: reading rows of any format one at a time, finding the columns that make a task, and writing rows."""

from .columns import TaskColumns
from .readers import BadRow, Row, iter_rows
from .sources import Source, open_source
from .spool import ReadInterrupted
from .tasks import RowMapping, infer_columns
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
