"""What is shown of work while it goes on, in one of three ways: lines of text, JSON lines for
programs, or a live view in a terminal.

A command says what has happened (`show`) and how far the work is (`show_progress`), each as a line
for people and as an event for programs, and draws the whole state for a live view. It need not know
which of the three is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from time import monotonic
from typing import Any, ClassVar, Self, TypeAlias

from rich.console import RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from .output import messages_are_json, notice, redirect_messages, write_event
from .terminal import console

Draw: TypeAlias = Callable[[], RenderableType]
Fields: TypeAlias = Callable[[], Mapping[str, Any]]
WriteEvent: TypeAlias = Callable[..., None]


class Display:
    """Writes lines of text to stderr, for logs and for terminals that cannot redraw.

    It is a context manager. `wait` is the number of seconds until the first line about the
    progress.
    """

    interval: ClassVar[float] = 30.0  # seconds between two lines about the progress

    def __init__(self, wait: float) -> None:
        self._next_line = monotonic() + wait

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End the display."""

    def show(self, line: str, event: str = "", fields: Fields = dict) -> None:
        """Show what has happened: "" as a line says nothing to people, "" as an event nothing to
        programs.
        """
        if line:
            notice(line)

    def show_progress(
        self, line: str, event: str, fields: Fields, *, state: str | None = None
    ) -> None:
        """Show how far the work is, unless that was shown a moment ago; to programs also if the
        `state` is another one.
        """
        if line and self._is_due():
            self.show(line)

    def _is_due(self) -> bool:
        """Whether it is time for a line about the progress, of which there is one then."""
        if (now := monotonic()) < self._next_line:
            return False
        self._next_line = now + self.interval
        return True


class JsonDisplay(Display):
    """Writes an object a line by `write`."""

    interval = 5.0

    def __init__(self, wait: float, write: WriteEvent) -> None:
        super().__init__(wait)
        self._write = write
        self._state: str | None = None

    def show(self, line: str, event: str = "", fields: Fields = dict) -> None:
        if event:
            self._write(event, **fields())

    def show_progress(
        self, line: str, event: str, fields: Fields, *, state: str | None = None
    ) -> None:
        if not event:
            return
        if state != self._state:
            self._state, self._next_line = state, 0.0
        if self._is_due():
            self.show(line, event, fields)


class LiveDisplay(Display):
    """Draws the present state on stderr, several times a second. Messages appear above it.

    `is_transient`: whether it disappears at the end.
    """

    def __init__(self, draw: Draw, *, is_transient: bool) -> None:
        super().__init__(0)
        self._live = Live(
            console=console(stderr=True),
            get_renderable=draw,
            refresh_per_second=8,
            transient=is_transient,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._live)
        self._live.refresh()
        self._stack.enter_context(
            redirect_messages(lambda text: self._live.console.print(Text(text)))
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def show(self, line: str, event: str = "", fields: Fields = dict) -> None:
        """Show nothing: what has happened is seen in the view."""

    def show_progress(
        self, line: str, event: str, fields: Fields, *, state: str | None = None
    ) -> None:
        """Show nothing, as `show`."""


def make_display(
    draw: Draw,
    *,
    write: WriteEvent | None = None,
    wait: float | None = None,
    is_transient: bool = True,
    is_free: bool = True,
) -> Display:
    """Return the display that suits the output: JSON if it is given what writes that, a live view
    in a terminal, or lines of text.

    `wait`: seconds until the first line about the progress; None: as between two lines;
    `is_free`: whether nothing else is written to the terminal meanwhile.
    """
    if write:
        return JsonDisplay(JsonDisplay.interval if wait is None else wait, write)
    if is_free and console(stderr=True).is_interactive:
        return LiveDisplay(draw, is_transient=is_transient)
    return Display(Display.interval if wait is None else wait)


def message_writer(*, as_json: bool = False, stdout: bool = False) -> WriteEvent | None:
    """Return what writes events as JSON lines, if that is asked for or messages are JSON; to stdout
    if they were asked for and that is free.
    """
    return (
        partial(write_event, stdout=as_json and stdout) if as_json or messages_are_json() else None
    )


def activity_spinner(text: str) -> Spinner:
    """Return what moves while something goes on, with a text in rich's markup."""
    return Spinner("dots", text, style="status.spinner")


def show_activity(text: str) -> Display:
    """Return a display that shows in a terminal that something goes on; nothing elsewhere."""
    spinner = activity_spinner(text)
    return make_display(lambda: spinner, write=message_writer())
