"""What comes in from files and stdin, and the answer going out. Nothing here knows what a refinement is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from ..checks import read_error_message


def read_text(name: str, what: str) -> str:
    """The text in a file, or on stdin for "-". Raises UsageError for what cannot be read as UTF-8."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{what}: {'stdin' if name == '-' else name} cannot be read: {read_error_message(error)}") from error


def one_stdin(**sources: str | None) -> None:
    """Raises UsageError when more than one thing is to be read from stdin."""
    if len(taken := [name for name, source in sources.items() if source == "-"]) > 1:
        raise click.UsageError(f"{' and '.join(taken)} cannot both be read from stdin")


def show_answer(text: str) -> None:
    """The answer alone on stdout: as it is for programs, without what could drive a terminal for people."""
    from ..text import strip_control_sequences

    shown = strip_control_sequences(text) if sys.stdout.isatty() else text
    closing = "" if shown.endswith("\n") or not shown else "\n"
    sys.stdout.buffer.write((shown + closing).encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def check_free(path: str, *, overwrite: bool) -> None:
    """Raises UsageError for a file that holds something, unless that may be replaced."""
    if not overwrite and Path(path).is_file() and Path(path).stat().st_size:
        raise click.UsageError(f"--output: {path} is there already; name another file, or replace it with --overwrite")


def check_writable(path: str) -> None:
    """Raises UsageError when no file can be made there: better now than after everything was paid for."""
    folder = Path(path).absolute().parent
    if Path(path).is_dir():
        raise click.UsageError(f"--output: {path} cannot be written: it is a folder; name a file, such as {path.rstrip('/')}/OUT")
    if not folder.is_dir():
        raise click.UsageError(f"--output: {path} cannot be written; name a file in a folder that exists")
    if not os.access(folder, os.W_OK):
        raise click.UsageError(f"--output: {path} cannot be written: you may not write in its folder; name a file in another")
