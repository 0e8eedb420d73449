"""How a command ends: its exit code.

This is the only place that catches what commands raise; `errors` says what an error means.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from traceback import format_exc
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from ..base.text import strip_control_sequences
from . import output

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

OK, FAILED, USAGE, IMPERFECT, WORSE, UNDECIDED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
EXIT_CODES = {
    OK: "The command did its work.",
    FAILED: "It failed: there is no result, a batch ended early, or a file cannot be written.",
    USAGE: "Wrong usage or settings.",
    IMPERFECT: (
        "The work was done, with less than was asked for: the answer breaks a requirement or has "
        "no grade (`run`, `best`, `grade`), some rows have no result, break a requirement or could "
        "not be read (`batch`), nothing is better than chance (`validate`) or than the start "
        "(`rubric`)."
    ),
    WORSE: (
        "B is worse than A (`gate`); with `--aa`, the two differ by more than chance explains."
    ),
    UNDECIDED: (
        "The difference of A and B is not known well enough (`gate`); with `--aa`, the rows are of "
        "one cluster."
    ),
    INTERRUPTED: "Interrupted; finished work is kept.",
}


def exit_code_of(invoke: Callable[[], Any], report: Callable[[Exception], int]) -> int:
    """Run a command and return its exit code, whatever it raises. `report` writes an error
    and returns its code; `--debug` or REDRAFT_DEBUG adds the traceback.
    """
    with output.message_scope():
        try:
            with warnings.catch_warnings(), _sigterm_as_interrupt():
                warnings.showwarning = _show_warning
                code = invoke()
            sys.stdout.flush()
        except BrokenPipeError:
            return _discard_output()
        except (KeyboardInterrupt, click.Abort):
            output.error("interrupted")
            return INTERRUPTED
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            return USAGE
        except click.ClickException as error:
            ctx = getattr(error, "ctx", None)
            output.error(
                error.format_message(),
                f"`{ctx.command_path} --help` lists its options" if ctx else "",
            )
            return USAGE
        except Exception as error:  # noqa: BLE001  (every error is shown as one line)
            if os.environ.get("REDRAFT_DEBUG"):
                traceback = strip_control_sequences(format_exc())
                if output.messages_are_json():
                    output.write_event("traceback", text=traceback)
                else:
                    click.echo(traceback, err=True)
            return report(error)
        return code if isinstance(code, int) else OK


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, also as an event loop does: finished work is kept, and a message
    says so.
    """

    def interrupt(_: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # ignored, as in the background
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # in a thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def handle_sigterm(loop: AbstractEventLoop, handler: Callable[[], object]) -> Iterator[None]:
    """Call `handler` on SIGTERM while a loop runs, then restore the previous handler, which the
    loop does not do itself.
    """
    before = signal.getsignal(signal.SIGTERM)
    with suppress(NotImplementedError):  # Windows has no such signal
        loop.add_signal_handler(signal.SIGTERM, handler)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, before)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Show a Python warning, of ours or of another library, as a message."""
    output.warning(output.in_options(output.without_secrets(str(message))))


def _discard_output() -> int:
    """End quietly after the reader of our output has closed the pipe: the interpreter's last flush
    goes to the null device.
    """
    null_device = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(null_device, stream.fileno())
    return FAILED
