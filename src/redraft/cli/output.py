"""Reads texts, and writes answers and messages: stdin, stdout, stderr and files. It knows nothing
about refinements.

Messages go to stderr: lines for people, or with `--log-format json` a JSON object on each line. An
object has an `event` (progress, notice, warning, error, report or traceback); notices, warnings and
errors also have a `message`, often with a `hint` at what to do next.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import click

from ..base.checks import read_error_message
from ..base.masking import Mask, secrets_in_environment
from ..base.text import strip_control_sequences


@dataclass
class _MessageFormat:
    """How messages are written: as JSON, through which function if not to stderr, and with which
    options, and keys of the file of `--plan` ("": none), for Python's arguments.
    """

    json: bool = False
    write: Callable[[str], object] | None = None
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    plan_keys: Mapping[str, str] = field(default_factory=dict)


_format = _MessageFormat()
_retry_logger = logging.getLogger("redraft.retry")
MIN_SHOWN_WAIT = 1.0  # seconds
QUIET_LIBRARIES = {  # these libraries write to stderr themselves, whatever the root logger does
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
}


class RecordHandler(logging.Handler):
    """Passes what is logged, from a level on, to a function; what that raises is ignored."""

    def __init__(
        self, show: Callable[[logging.LogRecord], object], level: int = logging.WARNING
    ) -> None:
        super().__init__(level)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            self._show(record)


def _show_library_warning(record: logging.LogRecord) -> None:
    """Show what a library logs without the secrets of the environment, which it may quote; progress
    shows pauses and outages of endpoints.
    """
    if record.name != "redraft.endpoint":
        warning(without_secrets(record.getMessage()))


def _write_unaccepted(record: logging.LogRecord) -> None:
    """Write to stderr what a model does not accept, unless the program has handlers of its own."""
    if record.name == "redraft" and not logging.getLogger().handlers:
        sys.stderr.write(f"{record.getMessage()}\n")


def _show_wait(record: logging.LogRecord) -> None:
    """Say that a call waits before it is made again, unless a message about its endpoint has said
    so until then.
    """
    endpoint, wait = getattr(record, "endpoint", ""), getattr(record, "wait", 0.0)
    end = monotonic() + wait
    if wait >= MIN_SHOWN_WAIT and end > _waits_until.get(endpoint, 0.0) + MIN_SHOWN_WAIT:
        _waits_until[endpoint] = end
        notice(record.getMessage())


_waits_until: dict[str, float] = {}  # by endpoint: when the longest wait that was shown ends
_wait_handler = RecordHandler(_show_wait, logging.INFO)
_warning_handler = RecordHandler(_show_library_warning)
_fallback_handler = RecordHandler(_write_unaccepted)


@contextmanager
def message_scope() -> Iterator[None]:
    """Reset the format of messages to lines for people, on entry and on exit."""
    vars(_format).update(vars(_MessageFormat()))
    logging.getLogger("redraft").addHandler(_fallback_handler)
    last_resort, logging.lastResort = logging.lastResort, _warning_handler
    _show_waits()
    if not sys.stderr.isatty():
        _quiet_libraries()
    try:
        yield
    finally:
        vars(_format).update(vars(_MessageFormat()))
        logging.getLogger("redraft").removeHandler(_fallback_handler)
        logging.lastResort = last_resort
        hide_waits()
        logging.getLogger().removeHandler(_warning_handler)


def _show_waits() -> None:
    _waits_until.clear()
    _retry_logger.addHandler(_wait_handler)
    _retry_logger.setLevel(logging.INFO)


def hide_waits() -> None:
    """Report no call that waits: for commands that make many calls and show their state."""
    _retry_logger.removeHandler(_wait_handler)
    _retry_logger.setLevel(logging.NOTSET)


def use_json_messages() -> None:
    """Write messages as JSON from now on; library logs become warnings."""
    _format.json = True
    logging.getLogger().addHandler(_warning_handler)
    _quiet_libraries()


def _quiet_libraries() -> None:
    """Have libraries that are imported later show neither progress nor notices, which a log is not
    the place for.
    """
    for name, value in QUIET_LIBRARIES.items():
        os.environ.setdefault(name, value)


@contextmanager
def redirect_messages(write: Callable[[str], object]) -> Iterator[None]:
    """Pass messages for people to `write`, so that a live display on the same terminal can make
    room for them.
    """
    before, _format.write = _format.write, write
    try:
        yield
    finally:
        _format.write = before


def messages_are_json() -> bool:
    return _format.json


def note_options(
    options: Mapping[str, Sequence[str]], plan_keys: Mapping[str, str] | None = None
) -> None:
    """Note the options of the command that runs, by the names of their parameters: an option, and
    the one that says no; and the keys of its plan file, by the names of the settings.
    """
    _format.options, _format.plan_keys = options, plan_keys or {}


OPTIONS_BY_ARGUMENT = {
    "graders": "grader",
    "requirements": "require",
    "prices": "price",
    "columns": "column",
    "model_params": "model_param",
    "judge_params": "judge_param",
}
_QUOTED = re.compile(r"((?<!\w)'[^']*'(?!\w)|(?<!\w)\"[^\"]*\"(?!\w))")
_FROM_PYTHON = re.compile(r" \(from Python: [^()]*\)")
# "resume=True (--resume)", "overwrite (--overwrite)"; bounded, since a message may quote any text
_BESIDE_OPTION = re.compile(r"`?\b\w+=\S{0,80} \((--[^()]{1,80})\)|\b(\w+?)s? \((--\2)\)")
_ARGUMENT = re.compile(
    r"^(?P<name>\w+)(?=:| must be| needs )|(?P<given>\bas )?`(?P<quoted>\w+)`|"
    r"(?<!--column )(?<!-c )(?<!or )(?<![?&])\b(?P<set>\w+)=(?:(?P<flag>True|False)\b|(?=[\d([{]|$))"  # noqa: E501
)


def in_options(message: str) -> str:
    """Return a message of the library with the options of the command in place of Python's
    arguments; quoted values unchanged.
    """

    def option(found: re.Match[str]) -> str:
        name = found["name"] or found["quoted"] or found["set"]
        if name in _format.plan_keys:
            return _in_plan_file(name, found)
        names = _format.options.get(OPTIONS_BY_ARGUMENT.get(name, name))
        if not names:
            return found[0]
        if found["flag"] == "False":
            return names[-1] if len(names) > 1 else f"{names[0]} none"
        return f"{'with ' * bool(found['given'])}{names[0]}{' ' * bool(found['set'] and not found['flag'])}"  # noqa: E501

    message = _BESIDE_OPTION.sub(lambda found: found[1] or found[3], _FROM_PYTHON.sub("", message))
    if not _format.options:
        return message
    return "".join(
        part if n % 2 else _ARGUMENT.sub(option, part)
        for n, part in enumerate(_QUOTED.split(message))
    )


def _in_plan_file(name: str, found: re.Match[str]) -> str:
    """Return a setting of the plan in words of its file."""
    if not (found["set"] and (key := _format.plan_keys[name])):
        return found[0]
    return f"`{key} = {(found['flag'] or '...').lower()}` in a plan file (--plan FILE)"


def in_toml(message: str) -> str:
    """Return a message about a value of a TOML file with true and false as TOML writes them; quoted
    values unchanged.
    """
    head, sign, value = message.partition(", got ")
    parts = _QUOTED.split(value)
    parts[::2] = [re.sub(r"\b(?:True|False)\b", lambda n: n[0].lower(), p) for p in parts[::2]]
    return head.replace("True or False", "true or false") + sign + "".join(parts)


def notice(message: str) -> None:
    """Write a message for information."""
    write_message("notice", message)


def warning(message: str, hint: str = "") -> None:
    """Write a message about a problem that does not end the command."""
    write_message("warning", message, hint)


def error(message: str, hint: str = "") -> None:
    """Write why a command, or a run, ends."""
    write_message("error", message, hint)


def write_message(event: str, message: str, hint: str = "") -> None:
    """Write one message; people see the hint on a second line."""
    message = single_line(message)
    if messages_are_json():
        fields = {"message": message, "hint": hint} if hint else {"message": message}
        write_event(event, stdout=False, **fields)
        return
    text = "\n".join([f"redraft: {message}", *([f"         {hint}"] if hint else [])])
    if _format.write:
        _format.write(text)
    else:
        click.echo(text, err=True)


def write_event(event: str, *, stdout: bool = False, **data: Any) -> None:
    """Write one JSON line and flush it. A reader that has closed the pipe does not end the work."""
    with suppress(BrokenPipeError):
        click.echo(json.dumps({"event": event, **data}, default=str), err=not stdout)


def without_secrets(text: str) -> str:
    """Return a text of another library without the secrets of the environment."""
    return Mask(secrets_in_environment(os.environ))(text)


def single_line(text: str) -> str:
    """Return untrusted text on one line, without control characters."""
    return " ".join(strip_control_sequences(text).split())


def format_time(timestamp: str) -> str:
    """Format a time in the local time zone; in its own zone where the local calendar does not
    reach.
    """
    time = parse_time(timestamp)
    try:
        return time.astimezone().strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return time.isoformat(" ", "minutes")


def parse_time(timestamp: str) -> datetime:
    """Parse an ISO 8601 time; one without a zone is UTC."""
    time = datetime.fromisoformat(timestamp)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def read_text(name: str, option: str) -> str:
    """Return the text in a file, or on stdin for "-". Raises UsageError for what is not readable as
    UTF-8.
    """
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as failure:
        place = "stdin" if name == "-" else name
        raise click.UsageError(
            f"{option}: {place} cannot be read: {read_error_message(failure)}"
        ) from failure


def check_single_stdin(**sources: str | None) -> None:
    """Raise UsageError if more than one of the sources is stdin."""
    if len(from_stdin := [name for name, source in sources.items() if source == "-"]) > 1:
        raise click.UsageError(f"{' and '.join(from_stdin)} cannot both be read from stdin")


def print_json(data: Any) -> None:
    """Write data to stdout as JSON for programs and people."""
    click.echo(json.dumps(data, indent=2, default=str))


def print_answer(text: str) -> None:
    """Write the answer alone to stdout: unchanged for programs, without control characters on a
    terminal.
    """
    shown = strip_control_sequences(text) if sys.stdout.isatty() else text
    ending = "" if shown.endswith("\n") or not shown else "\n"
    sys.stdout.buffer.write((shown + ending).encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def check_output(path: str, *, overwrite: bool, option: str = "--output") -> None:
    """Raise UsageError if no file can be created at the path, or if a file there is not empty and
    may not be replaced.

    `option`: the option that named the file.
    """
    check_writable(path, option)
    if not overwrite and Path(path).is_file() and Path(path).stat().st_size:
        raise click.UsageError(
            f"{option}: {path} already exists; name another file, or replace it with --overwrite"
        )


def check_writable(path: str, option: str = "--output") -> None:
    """Raise UsageError if no file can be created at the path. Commands call this before any model
    is paid for.
    """
    folder = Path(path).absolute().parent
    if Path(path).is_dir():
        raise click.UsageError(
            f"{option}: {path} cannot be written: it is a folder; name a file, such as "
            f"{path.rstrip('/')}/OUT"
        )
    if not folder.is_dir():
        raise click.UsageError(
            f"{option}: {path} cannot be written; name a file in a folder that exists"
        )
    if not os.access(folder, os.W_OK):
        raise click.UsageError(
            f"{option}: {path} cannot be written: you may not write in its folder; name a file in "
            "another"
        )
