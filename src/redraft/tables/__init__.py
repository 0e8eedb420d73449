"""Tables of others: their rows, one at a time, whatever the file; which column is what; and tables of ours."""

from .columns import Columns, Shape, recognised
from .readers import BadRow, Row, rows
from .sources import Source, Stopped, open_source
from .values import merged, names_for
from .writers import Output, open_output

__all__ = [
    "BadRow",
    "Columns",
    "Output",
    "Row",
    "Shape",
    "Source",
    "Stopped",
    "merged",
    "names_for",
    "open_output",
    "open_source",
    "recognised",
    "rows",
]
