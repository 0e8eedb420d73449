"""`redraft trust`: consent to the settings of a folder or a trace."""

from __future__ import annotations

import click

from .. import options

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
    from ..operations.trust import ask_consent, list_consents, revoke_consent_for

    if list_all:
        return list_consents()
    if place is None:
        raise click.UsageError("name a folder or a trace, for example: redraft trust .")
    return revoke_consent_for(place) if revoke else ask_consent(place, yes=yes)
