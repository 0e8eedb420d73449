"""Markdown tables of foreign text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .text import strip_control_sequences

ESCAPES = {ord(mark): f"\\{mark}" for mark in "\\|`*_[]!#"} | {
    ord(mark): f"&{name};" for mark, name in zip("<>&", ("lt", "gt", "amp"), strict=True)
}


def markdown_table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for cells in rows:
        yield f"| {' | '.join(map(escape_cell, cells))} |"


def escape_cell(text: Any) -> str:
    """Foreign text as a cell: one line, nothing in it that Markdown or HTML would take for its own."""
    flat = " ".join(strip_control_sequences(str(text)).split())
    return flat[:300].translate(ESCAPES)
