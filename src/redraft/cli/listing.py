"""How lists of what is kept are drawn: a thing a line, and moments as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Console

from .live import console

WIDE = 500  # columns, where no terminal bounds them


def listing() -> Console:
    """A console on which a line of a table stays one, unless a terminal is too narrow for it."""
    out = console(stderr=False)
    out.width = out.width if out.is_terminal else WIDE
    return out


def when(stamp: str) -> str:
    """A moment as people read it, in their own time zone; as it was given where that one's calendar does not reach."""
    read = moment(stamp)
    try:
        return read.astimezone().strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return read.isoformat(" ", "minutes")


def moment(stamp: str) -> datetime:
    """A moment in ISO 8601; without a zone it is UTC."""
    read = datetime.fromisoformat(stamp)
    return read if read.tzinfo else read.replace(tzinfo=UTC)
