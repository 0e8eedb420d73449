"""How the text of a table is written: its encoding, its line ends, and what separates its columns.

All three are recognised by the beginning of a file, and what is not usual (UTF-8, and the separator
that the name says) is reported by the logger "redraft", since it may be wrong. `ENCODING` overrides
the first. A byte that contradicts it later makes its line bad.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import sys
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from ..base.checks import format_value
from ..base.log import log

ENCODING: ContextVar[str] = ContextVar("ENCODING", default="")
"""The encoding of all tables that are text; "" recognises each table's."""
BEGINNING_BYTES = 2**20  # of a file, by which it is recognised
SAMPLE_RECORDS = 100  # by which the separator is recognised
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
UTF8 = "utf-8"
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
# Excel's first line
SEPARATOR_LINE = re.compile(r"""\ufeff?["']?sep=(.)["']?[\r\n]""", re.IGNORECASE)
# but for the space that does not break, in Windows-1252
BEYOND_ASCII = re.compile(rb"[\x80-\x9f\xa1-\xff]+")
# a handler of errors: what cannot be decoded becomes half of a pair, which is not UTF-8
BAD_MARK = "redraft.bad_mark"


class TextFormat(NamedTuple):
    """How a file is written: its encoding, its name for people if it is not UTF-8, and whether
    lines end in CR alone.

    `beginning` is the text by which this is known, `whole` whether it is all of the file.
    """

    encoding: str
    assumed: str
    bare_cr: bool
    beginning: str
    whole: bool


def check_encoding(name: str) -> str:
    """Return the name of an encoding of texts. Raises ValueError."""
    text = "a,b;\t|\n\"'"
    with suppress(LookupError, TypeError, ValueError):
        if (
            codecs.getincrementaldecoder(name)("replace")
            .decode(text.encode(name), final=True)
            .removeprefix("\ufeff")
            == text
        ):
            return codecs.lookup(name).name
    known = (
        "allowed are those of Python, such as utf-8, utf-16, cp1252 (Windows), mac-roman, "
        "gb18030, shift_jis"
    )
    raise ValueError(f"{format_value(name, 80)} is not known; {known}")


def open_text(file: Any, encoding: str = "") -> tuple[Any, TextFormat]:
    """Return a file whose bytes are UTF-8, and how the given one is written; `encoding`: the known
    one.
    """
    if file.seekable():
        start = file.tell()
        data = file.read(BEGINNING_BYTES)
        file.seek(start)
    else:
        data = file.peek()
    format = _format_of(data, encoding, whole=file.seekable() and len(data) < BEGINNING_BYTES)
    is_utf8 = format.encoding == UTF8 and not format.bare_cr
    return file if is_utf8 else io.BufferedReader(Utf8Reader(file, format), BEGINNING_BYTES), format


def _format_of(data: bytes, known: str, *, whole: bool) -> TextFormat:
    encoding, assumed = (known, "") if known else _recognise_encoding(data, whole=whole)
    text = codecs.getincrementaldecoder(encoding)("replace").decode(data).removeprefix("\ufeff")
    return TextFormat(encoding, assumed, "\r" in text[:-1] and "\n" not in text, text, whole)


def _recognise_encoding(data: bytes, *, whole: bool) -> tuple[str, str]:
    """Return the encoding, and its name for people if it is not UTF-8, else "".

    A byte order mark says which it is. Without one, NUL in every second of the first bytes is
    UTF-16. What is not UTF-8 is Windows-1252 (Mac Roman if its lines end in CR alone) if letters
    beyond ASCII stand alone, as in the languages of western Europe, and all its bytes are in it.
    Any other file is read as UTF-8, with bad lines.
    """
    for mark, encoding in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return encoding, encoding.upper()
    for encoding, low, high in (
        ("utf-16-le", data[0:8:2], data[1:8:2]),
        ("utf-16-be", data[1:8:2], data[0:8:2]),
    ):
        if high.count(0) >= 3 and 0 not in low and _decodes(data, encoding, whole=whole):
            return encoding, "UTF-16"
    western = (
        ("mac-roman", "Mac Roman")
        if b"\r" in data and b"\n" not in data
        else ("cp1252", "Windows-1252")
    )
    if (
        _decodes(data, UTF8, whole=whole)
        or 0 in data
        or not _decodes(data, western[0], whole=whole)
    ):
        return UTF8, ""
    text = data.decode(UTF8, "replace")
    bad = text.count("\ufffd")
    is_damaged = sum(map(len, re.findall(r"[^\x00-\x7f]+", text))) > 2 * bad  # most of it is UTF-8
    lengths = [len(run) for run in BEYOND_ASCII.findall(data)]
    # as in "coração"
    is_western = lengths.count(1) >= lengths.count(2) + 3 * sum(length > 2 for length in lengths)
    return (UTF8, "") if is_damaged or not is_western else western


def _decodes(data: bytes, encoding: str, *, whole: bool) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(data, final=whole)
    except UnicodeDecodeError:
        return False
    return True


class Utf8Reader(io.RawIOBase):
    """Reads a file of another encoding as UTF-8. What cannot be decoded becomes bytes that are not
    UTF-8 either.
    """

    def __init__(self, file: Any, format: TextFormat) -> None:
        codecs.register_error(BAD_MARK, _mark_bad)
        self.encoding, self._file = format.encoding, file
        self._decoder = codecs.getincrementaldecoder(format.encoding)(BAD_MARK)
        self._bare_cr, self._ready, self._ended = format.bare_cr, memoryview(b""), False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and not self._ended:
            data = self._file.read1(BEGINNING_BYTES)
            self._ended = not data
            text = self._decoder.decode(data, final=self._ended)
            text = text.replace("\r", "\n") if self._bare_cr else text
            self._ready = memoryview(text.encode(UTF8, "surrogatepass"))
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


def _mark_bad(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\udc80", error.end


def named_separator(format: TextFormat) -> str:
    """Return the separator that Excel's first line names, "sep=;"; "" without such a line."""
    return found[1] if (found := SEPARATOR_LINE.match(format.beginning)) else ""


def recognise_separator(format: TextFormat, usual: str) -> str:
    """Return the separator by which most of the first records, or all, have as many fields as the
    first one, two or more.

    Of several such, it is the usual one, or that with most fields. If there is none, it is the
    usual one.
    """
    found, best = usual, (0.5, True, sys.maxsize)
    for separator in SEPARATORS:
        names, *rows = _first_records(format, separator) or [[]]
        if len(names) > 1 and (separator == usual or any(names)):
            matching = sum(len(row) == len(names) for row in rows) / len(rows) if rows else 1.0
            if (rank := (matching, separator == usual, len(names))) > best:
                found, best = separator, rank
    return found


def _first_records(format: TextFormat, separator: str) -> list[list[str]]:
    """Return the first records that are not empty, without one that is cut off."""
    records: list[list[str]] = []
    reader = csv.reader(io.StringIO(format.beginning, newline=""), delimiter=separator, strict=True)
    with suppress(csv.Error):
        records += filter(None, islice(reader, SAMPLE_RECORDS))
    return records if format.whole or len(records) == SAMPLE_RECORDS else records[:-1] or records


@lru_cache(maxsize=1000)
def announce(name: str, identity: Any, encoding: str, separator: str, *, bare_cr: bool) -> None:
    """Log how a file is read if that is not usual, and how to say otherwise: once for each
    `identity` of a file.
    """
    read_as = [f"as {encoding} (--encoding NAME overrides this)"] if encoding else []
    read_as += (
        [f"with {separator} between its columns (a first line sep=, overrides this)"]
        if separator
        else []
    )
    read_as += ["with lines that end in CR"] if bare_cr else []
    if read_as:
        log.warning("%s is read %s", name, ", ".join(read_as))
