"""The process that reads one large body: JSON on its input becomes frames on its output, each of
them small.

It is a bare interpreter. A value of more than PIECE_BYTES is written as what it consists of, so
that whoever reads the frames never parses more than that at a time. The module imports nothing of
Redraft.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import orjson

PIECE_BYTES = 256 * 1024
PIECE_CHARS = PIECE_BYTES // 6  # of a text: JSON may write a character in six bytes
MAX_BODY_VALUES = 200_000  # of one body
CPU_SECONDS = 20
STRING = re.compile(rb'"[^"]*(?:"|\Z)')
TOO_MANY = f"body: it holds more than {MAX_BODY_VALUES:,} values"


def has_too_many_values(raw: bytes) -> bool:
    """Whether JSON has more values than a body may have, told from its bytes alone.

    Those in texts are left out only if it matters.
    """
    if not may_have_too_many_values(raw):
        return False
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")  # no quote is left within a text
    return (
        plain.count(b'"') > 4 * MAX_BODY_VALUES
        or _values_at_most(STRING.sub(b"", plain)) > MAX_BODY_VALUES
    )


def may_have_too_many_values(raw: bytes) -> bool:
    """Whether JSON has more values than a body may have if none of its bytes are in texts: a quick
    look.
    """
    return len(raw) > MAX_BODY_VALUES and _values_at_most(raw) > MAX_BODY_VALUES


def _values_at_most(raw: bytes) -> int:
    """Each value but one follows a comma or the beginning of a list or an object, or is the only
    one of its kind there.
    """
    return len(raw) - len(raw.translate(None, b",[{"))


def frames(value: Any) -> Iterator[tuple[bytes, bytes]]:
    """Yield the kind and the content of each frame of a value.

    "v": a whole value, "k": a key of an object, "{", "[" and "s" (a text): what begins, "c": a part
    of a text, ".": the end of it.
    """
    data = orjson.dumps(value)
    if len(data) <= PIECE_BYTES:
        yield b"v", data
        return
    del data
    if isinstance(value, str):
        yield b"s", b""
        for start in range(0, len(value), PIECE_CHARS):
            yield b"c", orjson.dumps(value[start : start + PIECE_CHARS])
    elif isinstance(value, dict):
        yield b"{", b""
        for key, inner in value.items():
            yield b"k", orjson.dumps(key)
            yield from frames(inner)
    else:
        yield b"[", b""
        for inner in value:
            yield from frames(inner)
    yield b".", b""


def body_frames(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the frames of a body; "!" is why there are none, "?" why it is no JSON."""
    if has_too_many_values(raw):
        yield b"!", TOO_MANY.encode()
        return
    try:
        value = orjson.loads(raw)
    except ValueError as error:
        yield b"?", str(error).encode(errors="replace")
        return
    yield from frames(value)


def main() -> None:
    """Read the body, and write its frames: the kind, the size in four bytes, the content."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    for kind, content in body_frames(sys.stdin.buffer.read()):
        sys.stdout.buffer.write(kind + len(content).to_bytes(4) + content)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
