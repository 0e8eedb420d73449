"""Read small untrusted documents within bounds: settings, rubrics, checklists, templates, schemas,
cards.

`read_small_text` bounds the size of a file and never waits: a pipe or a device is an error, unless
its name is in /dev or /proc, as in a shell's `<(command)`. `parse_toml` and `check_yaml` bound the
depth, the number of values and the time of parsing, as `jsontext.strict_loads` does for JSON.
Functions that read files raise OSError or ValueError, the others ValueError.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

from .jsontext import (
    MAX_DEPTH,
    MAX_DIGITS,
    TOO_DEEP_MESSAGE,
    TOO_MANY_DIGITS_MESSAGE,
    check_bounds,
)

MAX_BYTES = 8 * 2**20  # bytes of a document
MAX_VALUES = 100_000  # values in a document of TOML, YAML or JSON
MAX_ALIASES = 16  # aliases in YAML
MAX_KEY_PARTS = (
    30  # parts of a TOML key such as a.b.c: reading it takes time in the square of their number
)
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_YAML_NUMBER = re.compile(r"[-+\d_:\s]*")  # a whole number of YAML, also in base 60: 1:30
_LONG_KEY = re.compile(rf"(?<![^\s\[{{,])(?:{_PART}[ \t]*+\.[ \t]*+){{{MAX_KEY_PARTS}}}")


def read_small_text(path: str | Path, encoding: str = "utf-8", max_bytes: int = MAX_BYTES) -> str:
    """Return the text of a file, with line ends as newline characters."""
    return (
        read_small_bytes(path, max_bytes).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    )


def read_small_bytes(path: str | Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file of at most `max_bytes`."""
    with BufferedReader(open_regular(path, streams=True)) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it holds more than {max_bytes:,} bytes")
    return data


def open_regular(path: str | Path, *, streams: bool = False) -> FileIO:
    """Open a regular file for reading, without waiting: reading a pipe or a device may have no end.
    Raises OSError.

    With `streams` a pipe or device that is named in /dev or /proc is opened too.
    """
    if "\0" in os.fspath(path):
        raise OSError(errno.EINVAL, "its name has a zero byte")
    file = FileIO(path, "rb", opener=_open_nonblocking)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        if not (streams and str(path).startswith(("/dev/", "/proc/"))):
            file.close()
            raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")
        os.set_blocking(file.fileno(), True)
    return file


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table in a text of TOML, in time about linear in it. Raises ValueError."""
    if _LONG_KEY.search(text):
        raise ValueError(f"a key in it has more than {MAX_KEY_PARTS} parts")
    import tomllib  # few runs read a file of TOML

    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP_MESSAGE) from None
    check_bounds(table, MAX_VALUES)
    return table


def check_yaml(yaml: Any, text: str) -> None:
    """Raise ValueError if loading a text of YAML could take much more memory or time than its
    length says.

    Aliases expand to any size, and a number in base 60 takes time in the square of its length.
    """
    aliases = depth = nodes = 0
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            aliases += isinstance(event, yaml.AliasEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            nodes += isinstance(event, yaml.NodeEvent)
            if depth > MAX_DEPTH:
                raise ValueError(TOO_DEEP_MESSAGE)
            if aliases > MAX_ALIASES:
                raise ValueError(
                    f"it has more than {MAX_ALIASES} aliases (*name), which may expand to any size"
                )
            if nodes > 2 * MAX_VALUES + 1:  # the whole, and values of which each may have a key
                raise ValueError(f"it holds more than {MAX_VALUES:,} values")
            if (
                isinstance(event, yaml.ScalarEvent)
                and len(event.value) > MAX_DIGITS
                and _is_yaml_number(event)
            ):
                raise ValueError(TOO_MANY_DIGITS_MESSAGE)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _is_yaml_number(scalar: Any) -> bool:
    """Whether a scalar may be read as a whole number: it is not in quotes, unless it has a tag."""
    return not scalar.implicit[1] and _YAML_NUMBER.fullmatch(scalar.value) is not None
