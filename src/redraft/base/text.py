"""Text for people: model output made safe for terminals and Markdown, durations and times; size and
composed form of a text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import groupby
from typing import Any

CONTROL_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
# with their sizes, and the seconds that are given in the next unit
SMALL_UNITS = (("microsecond", 1e-6, 0.0009995), ("millisecond", 1e-3, 0.09995))
TIME_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
MARKDOWN_ESCAPES = {ord(mark): f"\\{mark}" for mark in "\\|`*_[]!#~$"} | {
    ord(mark): f"&{name};" for mark, name in zip("<>&", ("lt", "gt", "amp"), strict=True)
}
# what GitHub makes links and mentions of
LINKS = re.compile(r"(?<=[a-z]):(?=//)|(?<=www)\.|@", re.IGNORECASE)


UNSHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]+")


def shorten(text: str, limit: int = 300) -> str:
    """Return a text on one line of at most `limit` characters, without control characters."""
    line = " ".join(UNSHOWN.sub(" ", text[: 4 * limit]).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def strip_control_sequences(text: str) -> str:
    """Remove what could control a terminal: escape sequences, control characters, direction
    overrides.
    """
    cleaned = BIDI.sub("", CONTROL_SEQUENCES.sub("", text.replace("\r\n", "\n")))
    return cleaned.encode("utf-8", "replace").decode()


def utf8_size(text: str) -> int:
    """Return the size of a text in UTF-8, in bytes; lone surrogates are allowed."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def compose_nfc(text: str) -> str:
    """Return the composed form of Unicode (NFC), in which graders and requirements compare texts: a
    letter and its accent are one.

    Nothing else changes: case, spaces, quotation marks, and compatible characters (full-width
    digits, ligatures) stay. It takes linear time: `normalize` sorts a run of combining marks in
    quadratic time.
    """
    return (
        text
        if text.isascii()
        else unicodedata.normalize(
            "NFC", _long_mark_runs().sub(lambda run: _sort_marks(run[0]), text)
        )
    )


@cache
def _long_mark_runs() -> Any:
    import regex

    return regex.compile(r"\p{M}{32,}")


def _sort_marks(marks: str) -> str:
    """Return marks in canonical order, each decomposed."""
    runs = groupby(
        "".join(unicodedata.normalize("NFD", mark) for mark in marks),
        lambda mark: unicodedata.combining(mark) > 0,
    )
    return "".join(
        "".join(sorted(run, key=unicodedata.combining) if sortable else run)
        for sortable, run in runs
    )


def format_duration(seconds: float) -> str:
    """Format seconds: "39 microseconds", "4.5 milliseconds", "0.25 s", "90 s", "2 min 5 s", "1 h
    30 min", "2 d 4 h".
    """
    seconds = round(seconds, 10)
    for unit, size, limit in SMALL_UNITS:
        if 0 < seconds < limit:
            amount = f"{seconds / size:.3g}"
            return f"{amount} {unit if amount == '1' else f'{unit}s'}"
    if seconds < 100:
        return f"{seconds:.3g} s"
    left, parts = round(seconds), []
    for name, size in TIME_UNITS:
        n, left = divmod(left, size)
        parts += [f"{n} {name}"] if n else []
    return " ".join(parts[:2])


def pluralize(count: int, noun: str, plural: str = "") -> str:
    """Return the count with the noun, such as "1 row" or "1,024 rows"; `plural` where it is not the
    noun and an s: `pluralize(n, "row has", "rows have")`.
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def format_number(value: float | None, digits: int = 3) -> str:
    """Return a figure with fixed digits; "unknown" for None."""
    return "unknown" if value is None else f"{value:.{digits}f}"


def format_estimate(value: float | None, low: float | None, high: float | None) -> str:
    """Return a figure with its interval, if that is known: "0.81 [0.76, 0.85]"."""
    ends = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
    return format_number(value, 2) + ends


def format_time_in(seconds: float = 0.0) -> str:
    """Format the time this many seconds from now: "2026-03-01 14:05 UTC"."""
    try:
        return f"{datetime.now(UTC) + timedelta(seconds=seconds):%Y-%m-%d %H:%M UTC}"
    except OverflowError:
        return "the year 10000"


def markdown_table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a Markdown table; the cells are escaped, the header is not."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for cells in rows:
        yield f"| {' | '.join(map(escape_cell, cells))} |"


def escape_cell(text: Any, limit: int = 300) -> str:
    """Return untrusted text as a table cell: on one line, of at most `limit` characters, with
    Markdown and HTML syntax escaped.
    """
    flat = " ".join(strip_control_sequences(str(text)).split())
    return LINKS.sub(lambda found: f"&#{ord(found[0])};", flat[:limit].translate(MARKDOWN_ESCAPES))
