"""What a command says on stderr: lines for people, or a JSON object a line where a program reads them.

Objects have an `event`: progress, notice, warning, error, report, traceback; and a notice, a warning or an error its
`message`, often with a `hint` at what to do next. Nothing here decides what is said.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

_state = {"json": False}
QUIET = {  # (these libraries write to stderr themselves, whatever the root logger does)
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
}


@contextmanager
def for_people() -> Iterator[None]:
    """Lines for people, at first and again at the end."""
    _state["json"] = False
    try:
        yield
    finally:
        _state["json"] = False
        logging.getLogger().removeHandler(_LOGGED)


def write_json_lines() -> None:
    """From now on every line is a JSON object, unless a terminal shows them; what libraries log is a warning."""
    if sys.stderr.isatty():
        return
    _state["json"] = True
    logging.getLogger().addHandler(_LOGGED)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


def are_json() -> bool:
    """Whether lines are JSON objects."""
    return _state["json"]


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
    from ..text import plain

    message = " ".join(plain(message).split())
    if are_json():
        about = {"message": message, "hint": hint} if hint else {"message": message}
        emit(event, stdout=False, **about)
    else:
        click.echo("\n".join([f"redraft: {message}", *([f"         {hint}"] if hint else [])]), err=True)


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
