"""`redraft keys`: the API keys of a gateway."""

from __future__ import annotations

import click

from .. import options
from ..command_classes import DefaultGroup

EPILOG = """\b
Examples:
  redraft keys add ci --usd-per-day 5 --requests-per-minute 60 --profile refine/fast
  redraft keys add app --usd-per-day 1 --usd-per-month 20
  redraft keys add anna --profile "pass/*" --expires-in-days 90
  redraft keys
  redraft keys list --json
  redraft keys revoke ci

\b
A gateway without keys serves everyone who reaches it; with the first key it asks all for one.
A running gateway notices within a second. Keys are stored as hashes: a key is shown once, by
`redraft keys add`. Days and months are those of the calendar in UTC. A limit in USD refuses
models whose prices are unknown, and a request that could exceed it at worst.
Exit codes: 0 done, 1 the keys cannot be read or written, 2 usage.
"""

folder = click.option(
    "--folder",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Folder of the gateway. Default: that of --config, else `gateway` in your data folder.",
)
config = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Configuration of the gateway (TOML).",
)
place = options.combine(folder, config)


@click.group(cls=DefaultGroup, default="list", epilog=EPILOG)
def keys() -> None:
    """Add, list and revoke API keys of the gateway."""


@keys.command()
@click.argument("name")
@click.option(
    "--usd-per-day", type=options.POSITIVE, metavar="USD", help="Spend at most USD a day."
)
@click.option(
    "--calls-per-day", type=options.COUNT, metavar="N", help="Make at most N calls to models a day."
)
@click.option(
    "--usd-per-month", type=options.POSITIVE, metavar="USD", help="Spend at most USD a month."
)
@click.option(
    "--calls-per-month",
    type=options.COUNT,
    metavar="N",
    help="Make at most N calls to models a month.",
)
@click.option(
    "--requests-per-minute",
    type=options.POSITIVE,
    metavar="N",
    help="Answer at most N requests a minute.",
)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    metavar="MODEL",
    help="Allow this model, such as refine/fast or pass/* (repeatable). Default: all.",
)
@click.option(
    "--expires-in-days",
    type=options.POSITIVE,
    metavar="DAYS",
    help="Refuse the key after DAYS days.",
)
@place
@options.as_json
@options.debug
def add(
    name: str,
    *,
    usd_per_day: float | None,
    calls_per_day: int | None,
    usd_per_month: float | None,
    calls_per_month: int | None,
    requests_per_minute: float | None,
    profiles: tuple[str, ...],
    expires_in_days: float | None,
    folder: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Add a key called NAME and print it. It is shown only this once."""
    from ...gateway.keys import KeyLimits
    from ..operations.keys import add_key, gateway_folder

    limits = KeyLimits(
        usd_per_day, calls_per_day, requests_per_minute, usd_per_month, calls_per_month
    )
    add_key(
        gateway_folder(folder, config),
        name,
        limits,
        profiles,
        expires_in_days,
        config=config,
        as_json=as_json,
    )


@keys.command("list")
@place
@options.as_json
@options.debug
def list_(folder: str | None, config: str | None, *, as_json: bool) -> None:
    """List the keys: what each may do, what it spent, and when it was last used. `redraft keys`
    alone does the same.
    """
    from ..operations.keys import gateway_folder, list_keys

    list_keys(gateway_folder(folder, config), as_json=as_json)


@keys.command()
@click.argument("name", metavar="NAME|ID")
@place
@options.as_json
@options.debug
def revoke(name: str, folder: str | None, config: str | None, *, as_json: bool) -> None:
    """Revoke the key called NAME, or with this ID. A gateway refuses it from then on; requests at
    work are finished.
    """
    from ..operations.keys import gateway_folder, revoke_key

    revoke_key(gateway_folder(folder, config), name, as_json=as_json)
