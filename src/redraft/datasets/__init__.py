"""Tables of others: their rows, one at a time, whatever the file. Nothing here knows what a row is for."""

from .rows import BadRow, Row, rows

__all__ = ["BadRow", "Row", "rows"]
