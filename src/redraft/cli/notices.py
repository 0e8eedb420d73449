"""What a command says on stderr: lines for people, or a JSON object a line where a program reads them.

Objects have an `event`: progress, notice, warning, error, report, traceback; and a notice, a warning or an error its
`message`, often with a `hint` at what to do next. Nothing here decides what is said.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import click


@dataclass
class _Writing:
    """How lines are written: as JSON, and by whom if not by us."""

    json: bool = False
    write: Callable[[str], object] | None = None


_writing = _Writing()
QUIET = {  # (these libraries write to stderr themselves, whatever the root logger does)
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
}


@contextmanager
def for_people() -> Iterator[None]:
    """Lines for people, at first and again at the end."""
    _writing.json, _writing.write = False, None
    try:
        yield
    finally:
        _writing.json, _writing.write = False, None
        logging.getLogger().removeHandler(_LOGGED)


def write_json_lines() -> None:
    """From now on every line is a JSON object, unless a terminal shows them; what libraries log is a warning."""
    if sys.stderr.isatty():
        return
    _writing.json = True
    logging.getLogger().addHandler(_LOGGED)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


@contextmanager
def written_by(write: Callable[[str], object]) -> Iterator[None]:
    """Lines for people go to `write` meanwhile: what redraws itself on the same terminal must make room for them."""
    before, _writing.write = _writing.write, write
    try:
        yield
    finally:
        _writing.write = before


def are_json() -> bool:
    """Whether lines are JSON objects."""
    return _writing.json


def notice(message: str) -> None:
    """What is good to know."""
    say("notice", message)


def warning(message: str, hint: str = "") -> None:
    """What is wrong, and ends nothing."""
    say("warning", message, hint)


def error(message: str, hint: str = "") -> None:
    """Why a command, or a run, ends."""
    say("error", message, hint)


def say(event: str, message: str, hint: str = "") -> None:
    """One line, and for people another with the hint."""
    from ..text import strip_control_sequences

    message = " ".join(strip_control_sequences(message).split())
    if are_json():
        about = {"message": message, "hint": hint} if hint else {"message": message}
        emit(event, stdout=False, **about)
        return
    text = "\n".join([f"redraft: {message}", *([f"         {hint}"] if hint else [])])
    if _writing.write:
        _writing.write(text)
    else:
        click.echo(text, err=True)


def emit(event: str, *, stdout: bool = False, **data: Any) -> None:
    """One JSON line, out at once. When whoever reads has had enough of it the work goes on."""
    with suppress(BrokenPipeError):
        click.echo(json.dumps({"event": event, **data}, default=str), err=not stdout)


class _Logged(logging.Handler):
    """What libraries log, as lines here."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            warning(record.getMessage())


_LOGGED = _Logged(logging.WARNING)
