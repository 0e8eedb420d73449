"""`redraft keys`: the API keys of a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from time import time
from typing import Any

import click

from ...base.money import usd_amount
from ...errors import ConfigError
from ...gateway.config import configured_folder, configured_names, default_folder
from ...gateway.key_database import Spending
from ...gateway.keys import FILE_NAME, METRICS_ONLY, NANO, KeyLimits, KeyRing, StoredKey
from .. import options
from ..command_classes import DefaultGroup
from ..output import format_time, notice, print_json, warning
from ..terminal import console, figure_table, grid

MAX_WIDTH = 10_000  # characters of a table, before it is fitted into a terminal

EPILOG = """\b
Examples:
  redraft keys add ci --usd-per-day 5 --requests-per-minute 60 --profile refine/fast
  redraft keys add app --usd-per-day 1 --usd-per-month 20
  redraft keys add anna --profile "pass/*" --expires-in-days 90
  redraft keys add prometheus --metrics-only
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

place = options.gateway_place()


@click.group(cls=DefaultGroup, default="list", epilog=EPILOG)
def keys() -> None:
    """Add, list and revoke API keys of the gateway."""


@keys.command()
@click.argument("name")
@click.option(
    "--usd-per-day",
    type=options.POSITIVE,
    metavar="USD",
    help="Spend at most USD a day. 0: use only models that cost nothing.",
)
@click.option(
    "--calls-per-day", type=options.WHOLE, metavar="N", help="Make at most N calls to models a day."
)
@click.option(
    "--usd-per-month", type=options.POSITIVE, metavar="USD", help="Spend at most USD a month."
)
@click.option(
    "--calls-per-month",
    type=options.WHOLE,
    metavar="N",
    help="Make at most N calls to models a month.",
)
@click.option(
    "--requests-per-minute",
    type=options.ABOVE_0,
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
    "--metrics-only",
    is_flag=True,
    help="Allow nothing but /metrics, which Prometheus reads. No --profile and no limits.",
)
@click.option(
    "--expires-in-days",
    type=options.ABOVE_0,
    metavar="DAYS",
    help="Refuse the key after DAYS days.",
)
@place
@options.as_json
@options.debug
def add(
    name: str,
    *,
    profiles: tuple[str, ...],
    metrics_only: bool,
    expires_in_days: float | None,
    folder: Path | None,
    config: str | None,
    as_json: bool,
    **limits: Any,
) -> None:
    """Add a key called NAME and print it. It is shown only this once."""
    if metrics_only and (profiles or any(limit is not None for limit in limits.values())):
        raise click.UsageError("--metrics-only goes with no --profile and no limit: leave them out")
    if profiles == METRICS_ONLY:
        raise click.UsageError("--profile is for models; --metrics-only makes such a key")
    place, names = _folder(folder, config), configured_names(config) if config else []
    with KeyRing(place) as ring:
        is_first = not ring.stored_keys()
        allowed = METRICS_ONLY if metrics_only else profiles
        key, secret = ring.add(name, KeyLimits(**limits), allowed, expires_in_days)
        data = _as_data(ring, key, {})
    if as_json:
        print_json({"key": secret, **data})
    else:
        click.echo(secret)
    notice(f"key {key.name!r} ({key.id}) added to {str(place)!r}; it is shown only now")
    for pattern in profiles if config else ():
        if not any(fnmatchcase(name, pattern) for name in names):
            warning(
                f"--profile {pattern}: {config} has no such model; there are "
                f"{', '.join(names) or 'none'}"
            )
    if is_first:
        notice("this is the first key: the gateway asks every client for a key from now on")


@keys.command("list")
@place
@options.as_json
@options.debug
def list_(folder: Path | None, config: str | None, *, as_json: bool) -> None:
    """List the keys: what each may do, what it spent, and when it was last used. `redraft keys`
    alone does the same.
    """
    place, stored = _folder(folder, config), []
    if (place / FILE_NAME).exists():  # a folder without keys stays as it is
        with KeyRing(place) as ring:
            used_at = ring.used_at()
            stored = [_as_data(ring, key, used_at) for key in ring.stored_keys()]
    if as_json:
        print_json(stored)
    elif stored:
        _print_table(stored)
    else:
        notice(
            f"there are no keys in {str(place)!r}: the gateway serves everyone who reaches it; "
            "`redraft keys add NAME` adds a key"
        )


@keys.command()
@click.argument("name", metavar="NAME|ID")
@place
@options.as_json
@options.debug
def revoke(name: str, folder: Path | None, config: str | None, *, as_json: bool) -> None:
    """Revoke the key called NAME, or with this ID. A gateway refuses it from then on; requests at
    work are finished.
    """
    with KeyRing(_folder(folder, config)) as ring:
        key = ring.revoke(name)
        data = _as_data(ring, key, ring.used_at())
    if as_json:
        print_json(data)
    notice(f"key {key.name!r} ({key.id}) revoked")


def _folder(folder: Path | None, config: str | None) -> Path:
    """Return the folder of the gateway. Raises ConfigError."""
    if folder and config:
        raise ConfigError("--folder and --config both say where the keys are: give one of them")
    if folder:
        return folder
    return configured_folder(config) if config else default_folder()


def _as_data(ring: KeyRing, key: StoredKey, used_at: Mapping[str, float]) -> dict[str, Any]:
    """Return what is known about a key, but not the key itself."""
    return {
        "id": key.id,
        "name": key.name,
        "state": key.state(time()),
        "profiles": list(key.profiles),
        "limits": asdict(key.limits),
        "today": _spending_data(ring.spending("day", key)),
        "this_month": _spending_data(ring.spending("month", key)),
        "created_at": _timestamp(key.created_at),
        "expires_at": _timestamp(key.expires_at),
        "revoked_at": _timestamp(key.revoked_at),
        "last_used_at": _timestamp(used_at.get(key.id)),
    }


def _spending_data(spending: Spending) -> dict[str, Any]:
    return {
        "requests": spending.requests,
        "charged_usd": spending.spent / NANO,
        "reserved_usd": spending.reserved / NANO,
        "calls": spending.calls,
        "reserved_calls": spending.reserved_calls,
        "calls_of_unknown_cost": spending.unknown_calls,
    }


def _timestamp(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _print_table(stored: list[dict[str, Any]]) -> None:
    """Print all keys with their limits and what they used; as several lines each, where a terminal
    is too narrow.
    """
    by_month = any(
        key["limits"][f"{unit}_per_month"] is not None
        for key in stored
        for unit in ("usd", "calls")
    )
    months = ("USD this month", "calls this month") if by_month else ()
    figures = ("USD today", "calls today", *months, "requests/min")
    headings = ("id", "name", "state", *figures, "models", "expires", "last used")
    table = figure_table(headings, (_cells(key, by_month=by_month) for key in stored), figures)
    screen = console(stderr=False)
    unlimited = screen.options.update(max_width=MAX_WIDTH)
    if not screen.is_terminal or screen.measure(table, options=unlimited).maximum <= screen.width:
        screen.print(table)
        return
    for row in zip(*(column.cells for column in table.columns), strict=True):
        lines = grid()
        for column, cell in zip(table.columns, row, strict=True):
            lines.add_row(column.header, cell)
        screen.print(lines, "")


def _cells(key: Mapping[str, Any], *, by_month: bool) -> tuple[str, ...]:
    """Return what the table shows of a key."""
    limits = key["limits"]
    rate = limits["requests_per_minute"]
    return (
        *(key["id"], key["name"], key["state"]),
        *_amounts_spent(key["today"], limits["usd_per_day"], limits["calls_per_day"]),
        *(
            _amounts_spent(key["this_month"], limits["usd_per_month"], limits["calls_per_month"])
            if by_month
            else ()
        ),
        "" if rate is None else f"{rate:g}",
        ", ".join(key["profiles"]) or "all",
        *(format_time(key[at]) if key[at] else "never" for at in ("expires_at", "last_used_at")),
    )


def _amounts_spent(
    spending: Mapping[str, Any], usd_limit: float | None, calls_limit: int | None
) -> tuple[str, str]:
    """Return what was spent of the limits of a period; "+ ?" stands for calls of unknown cost."""
    unknown = " + ?" if spending["calls_of_unknown_cost"] else ""
    usd, calls = f"{usd_amount(spending['charged_usd'])}{unknown}", f"{spending['calls']:,}"
    return (
        usd if usd_limit is None else f"{usd} of {usd_amount(usd_limit)}",
        calls if calls_limit is None else f"{calls} of {calls_limit:,}",
    )
