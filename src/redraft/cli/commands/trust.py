"""`redraft trust`: consent to the settings of a folder or a trace."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from ...errors import ConfigError
from ...storage.trace_file import read_trace
from .. import options
from ..config import FILES, nearest
from ..consent import (
    SensitiveSetting,
    check_store_location,
    consent_for,
    find_sensitive_settings,
    revoke_consent,
    save_consent,
    saved_consents,
    sensitive_settings_of_trace,
)
from ..exit_codes import FAILED, OK
from ..output import notice, single_line

EPILOG = """\b
Examples:
  redraft trust .
  redraft trust ~/src/essays --yes
  redraft trust proof.jsonl
  redraft trust --list
  redraft trust --revoke ~/src/essays

\b
A redraft.toml (or [tool.redraft] in pyproject.toml) that came with a folder, and a trace
from someone else, may not choose an address, a model file, code, a file outside their
folder, or a looser sandbox for the code of answers, until you consent to it once: this
command shows these settings and asks. It asks again if one of them changes. No consent is
needed for named providers such as openai:gpt-4o-mini, nor for settings on the command
line, in the environment, in the file of --config, or in your own configuration.

\b
Consent is saved in your own data folder (REDRAFT_HOME). On machines without a terminal,
REDRAFT_TRUST=DIR trusts everything inside DIR; separate several folders as in PATH.
"""


@click.command(short_help="Consent to the settings of a folder or a trace.", epilog=EPILOG)
@click.argument("place", required=False, type=click.Path(), metavar="DIR|TRACE")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@click.option("--revoke", is_flag=True, help="Revoke the consent.")
@click.option("--list", "list_all", is_flag=True, help="List all consents and exit.")
@options.debug
def trust(place: str | None, yes: bool, revoke: bool, list_all: bool) -> int:
    """Allow the settings in DIR or of a TRACE to choose hosts, code and files. Without consent they
    may not.
    """
    if list_all:
        return list_consents()
    if place is None:
        raise click.UsageError("name a folder or a trace, for example: redraft trust .")
    return revoke_consent_for(place) if revoke else ask_consent(place, yes=yes)


def list_consents() -> int:
    """Print all consents."""
    for consent in saved_consents():
        click.echo(f"{single_line(consent.place)}{' (a trace)' if consent.is_trace else ''}")
        for description in consent.descriptions:
            click.echo(f"  {single_line(str(description))}")
    return OK


def ask_consent(name: str, *, yes: bool) -> int:
    """Show what a folder or a trace chooses, ask, and save the consent."""
    place, where, settings = _find_settings(name)
    if not settings:
        notice(f"{where} chooses nothing that needs consent")
        return OK
    click.echo(f"{single_line(where)} chooses:")
    for setting in settings:
        click.echo(f"  {setting.description}")
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on: use --yes")
    if not yes and not click.confirm("Allow this?"):
        notice("nothing was allowed")
        return FAILED
    check_store_location(place if place.is_dir() else place.parent)
    save_consent(consent_for(place, settings, is_trace=place.is_file()))
    notice(f"allowed; `redraft trust --revoke {shlex.quote(name)}` revokes it")
    return OK


def revoke_consent_for(name: str) -> int:
    """Revoke the consent to a folder or a trace. Raises ConfigError if there is none."""
    try:
        place, _, settings = _find_settings(name)
    except (
        ConfigError
    ):  # consent is revoked whatever its file contains now, and also where it no longer exists
        place, settings = Path(name).absolute(), ()
    if not revoke_consent(consent_for(place, settings, is_trace=place.is_file())):
        raise ConfigError(
            f"nothing was allowed for {place}; `redraft trust --list` lists all consents"
        )
    notice(f"{place} is no longer trusted")
    return OK


def _find_settings(name: str) -> tuple[Path, str, tuple[SensitiveSetting, ...]]:
    """Return the folder or trace that the consent is for, the file with the settings, and those
    that need consent.

    Raises ConfigError or StoreError.
    """
    place = Path(name).absolute()
    if place.is_file() and place.name not in FILES:
        return place, str(place), sensitive_settings_of_trace(read_trace(place), place)
    file = nearest(place.parent if place.is_file() else place)
    if file is None:
        raise ConfigError(
            f"{place} has no settings: neither a redraft.toml nor a pyproject.toml with "
            "[tool.redraft]"
        )
    path, table = file
    return path.parent, str(path), find_sensitive_settings(table, path.parent, path.parent)
