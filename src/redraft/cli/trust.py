"""`redraft trust`: consent to what a folder or a trace chooses."""

from __future__ import annotations

import click

from . import options

EPILOG = """\b
Examples:
  redraft trust .
  redraft trust ~/src/essays --yes
  redraft trust proof.jsonl
  redraft trust --list
  redraft trust --revoke ~/src/essays

\b
A redraft.toml (or [tool.redraft] in pyproject.toml) that came with a folder, and a trace
that somebody sent, may not choose an address, a model file, code, or a file outside
their folder until you consent to it, once: this command shows what they choose and asks.
To edit other settings asks nothing again; to change one of those does. Named providers
such as openai:gpt-4o-mini need no consent, nor does what you type, set in the
environment, give with --config FILE, or keep in your own configuration.

\b
Consent is kept in your own folder for data (REDRAFT_HOME). Where nobody can be asked,
REDRAFT_TRUST=DIR trusts all that lies in DIR; several stand as in PATH.
"""


@click.command(epilog=EPILOG)
@click.argument("place", required=False, type=click.Path(), metavar="DIR|TRACE")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--revoke", is_flag=True, help="Take the consent back.")
@click.option("--list", "listed", is_flag=True, help="Show all that was consented to, and stop.")
@options.debug
def trust(place: str | None, yes: bool, revoke: bool, listed: bool) -> int:
    """Let the settings in DIR, or of a TRACE, choose hosts, model files, code, and files elsewhere."""
    from . import trusting

    if listed:
        return trusting.show_all()
    if place is None:
        raise click.UsageError("name a folder or a trace, for example: redraft trust .")
    return trusting.take_back(place) if revoke else trusting.ask(place, yes=yes)
