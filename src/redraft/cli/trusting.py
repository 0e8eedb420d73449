"""The work behind `redraft trust`: show what is chosen, ask, keep the answer."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from ..errors import ConfigError
from ..storage import read_trace
from ..text import strip_control_sequences
from . import consent
from .config import FILES, nearest
from .exits import FAILED, OK
from .sensitive import Sensitive, sensitive
from .wishes import chosen_in


def ask(named: str, *, yes: bool) -> int:
    """Show what a folder or a trace chooses, and keep the consent to it; the exit code."""
    place, where, settings = chosen_by(named)
    if not settings:
        _say(f"{where} chooses nothing that needs consent")
        return OK
    click.echo(f"{_line(where)} chooses:")
    for setting in settings:
        click.echo(f"  {setting.shown}")
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on: say --yes")
    if not yes and not click.confirm("Allow this?"):
        _say("nothing was allowed")
        return FAILED
    consent.refuse_planted(place if place.is_dir() else place.parent)
    consent.keep(consent.consent_to(place, settings, is_trace=place.is_file()))
    _say(f"allowed; `redraft trust --revoke {shlex.quote(named)}` takes it back")
    return OK


def take_back(named: str) -> int:
    """Take consent back; the exit code."""
    try:
        place, _, settings = chosen_by(named)
    except ConfigError:  # what its file says now is of no account, nor whether there still is one
        place, settings = Path(named).absolute(), ()
    if not consent.revoke(consent.consent_to(place, settings, is_trace=place.is_file())):
        raise ConfigError(f"nothing was allowed for {place}; `redraft trust --list` shows what was")
    _say(f"{place} is trusted no more")
    return OK


def show_all() -> int:
    """All that was consented to; the exit code."""
    for _, given in consent.all_kept():
        click.echo(f"{_line(given.place)}{' (a trace)' if given.is_trace else ''}")
        for shown in given.shown:
            click.echo(f"  {_line(str(shown))}")
    return OK


def chosen_by(named: str) -> tuple[Path, str, tuple[Sensitive, ...]]:
    """The folder or trace that consent is for, the file that chooses, and what. Raises ConfigError, StoreError."""
    place = Path(named).absolute()
    if place.is_file() and place.name not in FILES:
        trace = read_trace(place)
        return place, str(place), chosen_in(trace, place)
    found = nearest(place.parent if place.is_file() else place)
    if found is None:
        raise ConfigError(f"{place} has no settings: neither a redraft.toml nor a pyproject.toml with [tool.redraft]")
    path, table = found
    return path.parent, str(path), sensitive(table, path.parent, path.parent)


def _say(text: str) -> None:
    click.echo(f"redraft: {_line(text)}", err=True)


def _line(text: str) -> str:
    """A text in one line, with nothing that could drive a terminal."""
    return " ".join(strip_control_sequences(text).split())
