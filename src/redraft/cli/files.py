"""What comes in from files and stdin, and the answer going out. Nothing here knows what a refinement is."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import click


def read_text(name: str, what: str) -> str:
    """The text in a file, or on stdin for "-". Raises UsageError for what cannot be read as UTF-8."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{what}: {'stdin' if name == '-' else name} cannot be read: {error}") from error


def one_stdin(**sources: str | None) -> None:
    """Raises UsageError when more than one thing is to be read from stdin."""
    if len(taken := [name for name, source in sources.items() if source == "-"]) > 1:
        raise click.UsageError(f"{' and '.join(taken)} cannot both be read from stdin")


def show_answer(text: str) -> None:
    """The answer alone on stdout: as it is for programs, without what could drive a terminal for people."""
    from ..text import plain

    shown = plain(text) if sys.stdout.isatty() else text
    closing = "" if shown.endswith("\n") or not shown else "\n"
    sys.stdout.buffer.write((shown + closing).encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def check_writable(path: str) -> None:
    """Raises UsageError when no file can be made there: better now than after everything was paid for."""
    folder = Path(path).absolute().parent
    if Path(path).is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise click.UsageError(f"--output: {path} cannot be written; name a file in a folder that exists")


def write_whole(path: str, text: str) -> None:
    """Write a file so that whoever reads it sees all of the old or all of the new text."""
    target = Path(os.path.realpath(path))
    data = text.encode("utf-8", "replace")
    if target.exists() and not target.is_file():  # a device or a pipe
        target.write_bytes(data)
        return
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            draft.chmod(target.stat().st_mode & 0o7777)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
