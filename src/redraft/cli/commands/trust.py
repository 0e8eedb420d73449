"""`redraft trust`: consent to the settings of a folder or a trace."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from ...errors import ConfigError
from .. import options, output
from ..config import FILES, nearest
from ..errors import FAILED, OK
from ..sensitive_settings import SensitiveSetting, find_sensitive_settings

EPILOG = """\b
Examples:
  redraft trust .
  redraft trust ~/src/essays --yes
  redraft trust proof.jsonl
  redraft trust --list
  redraft trust --revoke ~/src/essays

\b
A redraft.toml (or [tool.redraft] in pyproject.toml) that came with a folder, and a trace
from someone else, may not choose an address, a model file, code, or a file outside
their folder until you consent to it once: this command shows what they choose and asks.
Changing one of these settings asks again; changing others does not. Named providers
such as openai:gpt-4o-mini need no consent, nor does what you type, set in the
environment, pass with --config FILE, or keep in your own configuration.

\b
Consent is saved in your own data folder (REDRAFT_HOME). Where there is no terminal,
REDRAFT_TRUST=DIR trusts everything inside DIR; separate several folders as in PATH.
"""


@click.command(epilog=EPILOG)
@click.argument("place", required=False, type=click.Path(), metavar="DIR|TRACE")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@click.option("--revoke", is_flag=True, help="Revoke the consent.")
@click.option("--list", "list_all", is_flag=True, help="List all consents and exit.")
@options.debug
def trust(place: str | None, yes: bool, revoke: bool, list_all: bool) -> int:
    """Allow the settings in DIR or of a TRACE to choose hosts, code and files. Without consent they may not."""
    if list_all:
        return _list_consents()
    if place is None:
        raise click.UsageError("name a folder or a trace, for example: redraft trust .")
    return _revoke(place) if revoke else _ask(place, yes=yes)


def _list_consents() -> int:
    from ..consent import saved_consents

    for _, consent in saved_consents():
        click.echo(f"{output.single_line(consent.place)}{' (a trace)' if consent.is_trace else ''}")
        for description in consent.descriptions:
            click.echo(f"  {output.single_line(str(description))}")
    return OK


def _ask(name: str, *, yes: bool) -> int:
    """Show what a folder or a trace chooses, ask, and save the consent."""
    from ..consent import check_store_location, consent_for, save_consent

    place, where, settings = _find_settings(name)
    if not settings:
        output.notice(f"{where} chooses nothing that needs consent")
        return OK
    click.echo(f"{output.single_line(where)} chooses:")
    for setting in settings:
        click.echo(f"  {setting.description}")
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on: use --yes")
    if not yes and not click.confirm("Allow this?"):
        output.notice("nothing was allowed")
        return FAILED
    check_store_location(place if place.is_dir() else place.parent)
    save_consent(consent_for(place, settings, is_trace=place.is_file()))
    output.notice(f"allowed; `redraft trust --revoke {shlex.quote(name)}` revokes it")
    return OK


def _revoke(name: str) -> int:
    from ..consent import consent_for, revoke_consent

    try:
        place, _, settings = _find_settings(name)
    except ConfigError:  # consent is revoked whatever its file contains now, and also where it no longer exists
        place, settings = Path(name).absolute(), ()
    if not revoke_consent(consent_for(place, settings, is_trace=place.is_file())):
        raise ConfigError(f"nothing was allowed for {place}; `redraft trust --list` lists all consents")
    output.notice(f"{place} is no longer trusted")
    return OK


def _find_settings(name: str) -> tuple[Path, str, tuple[SensitiveSetting, ...]]:
    """Return the folder or trace that the consent is for, the file with the settings, and those that need consent.

    Raises ConfigError or StoreError.
    """
    from ...storage import read_trace
    from ..request import sensitive_settings

    place = Path(name).absolute()
    if place.is_file() and place.name not in FILES:
        return place, str(place), sensitive_settings(read_trace(place), place)
    found = nearest(place.parent if place.is_file() else place)
    if found is None:
        raise ConfigError(f"{place} has no settings: neither a redraft.toml nor a pyproject.toml with [tool.redraft]")
    path, table = found
    return path.parent, str(path), find_sensitive_settings(table, path.parent, path.parent)
