"""`redraft keys`: adds, lists and revokes the API keys of a gateway."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from time import time
from typing import Any, TypeAlias

import click

from ...base.money import usd_amount
from ...errors import ConfigError
from ...gateway.config import configured_folder, configured_names, default_folder
from ...gateway.key_database import Spending
from ...gateway.keys import FILE_NAME, NANO, KeyLimits, KeyRing, StoredKey
from ..output import format_time, notice, warning
from ..terminal import console, grid, plain_table, text_line

MAX_WIDTH = 10_000  # characters of a table, before it is fitted into a terminal
# what it used today and this month, and when last
KeyEntry: TypeAlias = tuple[StoredKey, Spending, Spending, float | None]


def gateway_folder(folder: str | None, config: str | None) -> Path:
    """Return the folder of the gateway. Raises ConfigError."""
    if folder and config:
        raise ConfigError("--folder and --config both say where the keys are: give one of them")
    if folder:
        return Path(folder)
    return configured_folder(config) if config else default_folder()


def add_key(
    folder: Path,
    name: str,
    limits: KeyLimits,
    profiles: tuple[str, ...],
    expires_in_days: float | None,
    *,
    config: str | None,
    as_json: bool,
) -> None:
    """Add a key and print it to stdout. Warn of a profile that the configuration, if it is named,
    does not have yet.
    """
    names = configured_names(config) if config else []
    with KeyRing(folder) as ring:
        is_first = not ring.stored_keys()
        key, secret = ring.add(name, limits, profiles, expires_in_days)
    if as_json:
        click.echo(
            json.dumps({"key": secret, **_as_data(key, Spending(), Spending(), None)}, indent=2)
        )
    else:
        click.echo(secret)
    notice(f"key {key.name!r} ({key.id}) added to {str(folder)!r}; it is shown only now")
    for pattern in profiles if config else ():
        if not any(fnmatchcase(name, pattern) for name in names):
            warning(
                f"--profile {pattern}: {config} has no such model; there are "
                f"{', '.join(names) or 'none'}"
            )
    if is_first:
        notice("this is the first key: the gateway asks every client for a key from now on")


def list_keys(folder: Path, *, as_json: bool) -> None:
    """Print all keys with their limits and what they used; never a key itself."""
    entries = _entries(folder)
    if as_json:
        click.echo(json.dumps([_as_data(*entry) for entry in entries], indent=2))
        return
    if entries:
        _print_table(entries)
    else:
        notice(
            f"there are no keys in {str(folder)!r}: the gateway serves everyone who reaches it; "
            "`redraft keys add NAME` adds a key"
        )


def _entries(folder: Path) -> list[KeyEntry]:
    """Return all keys. A folder without keys stays as it is."""
    if not (folder / FILE_NAME).exists():
        return []
    with KeyRing(folder) as ring:
        return [_entry(ring, key, ring.used_at()) for key in ring.stored_keys()]


def _entry(ring: KeyRing, key: StoredKey, used_at: Mapping[str, float]) -> KeyEntry:
    return key, ring.spending_today(key), ring.spending_this_month(key), used_at.get(key.id)


def revoke_key(folder: Path, name: str, *, as_json: bool) -> None:
    """Revoke a key."""
    with KeyRing(folder) as ring:
        key = ring.revoke(name)
        entry = _entry(ring, key, ring.used_at())
    if as_json:
        click.echo(json.dumps(_as_data(*entry), indent=2))
    notice(f"key {key.name!r} ({key.id}) revoked")


def _as_data(
    key: StoredKey, today: Spending, this_month: Spending, used_at: float | None
) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "state": key.state(time()),
        "profiles": list(key.profiles),
        "limits": asdict(key.limits),
        "today": _spending_data(today),
        "this_month": _spending_data(this_month),
        "created_at": _timestamp(key.created_at),
        "expires_at": _timestamp(key.expires_at),
        "revoked_at": _timestamp(key.revoked_at),
        "last_used_at": _timestamp(used_at),
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
    return (
        None
        if seconds is None
        else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    )


def _print_table(entries: list[KeyEntry]) -> None:
    table = plain_table()
    for heading in ("id", "name", "state"):
        table.add_column(heading, overflow="fold")
    by_month = any(key.limits.budget("month") != (None, None) for key, *_ in entries)
    months = ("USD this month", "calls this month") if by_month else ()
    for heading in ("USD today", "calls today", *months, "requests/min"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("models", "expires", "last used"):
        table.add_column(heading, overflow="fold")
    for key, today, this_month, used_at in entries:
        monthly = _figures(*key.limits.budget("month"), this_month) if by_month else ()
        rate = (
            "" if key.limits.requests_per_minute is None else f"{key.limits.requests_per_minute:g}"
        )
        figures = (*_figures(*key.limits.budget("day"), today), *monthly, rate)
        cells = (key.id, key.name, key.state(time()), *figures, ", ".join(key.profiles) or "all")
        table.add_row(
            *map(text_line, cells), _date(key.expires_at, "never"), _date(used_at, "never")
        )
    screen = console(stderr=False)
    unlimited = screen.options.update(max_width=MAX_WIDTH)
    if not screen.is_terminal or screen.measure(table, options=unlimited).maximum <= screen.width:
        screen.print(table)
        return
    # a key takes several lines
    for row in zip(*(column.cells for column in table.columns), strict=True):
        lines = grid()
        for column, cell in zip(table.columns, row, strict=True):
            lines.add_row(column.header, cell)
        screen.print(lines, "")


def _figures(
    usd_limit: float | None, calls_limit: int | None, spending: Spending
) -> tuple[str, str]:
    """Return what was spent of the limits of a period; "+ ?" stands for calls of unknown cost."""
    usd = f"{usd_amount(spending.spent / NANO)}{' + ?' if spending.unknown_calls else ''}"
    return (
        usd if usd_limit is None else f"{usd} of {usd_amount(usd_limit)}",
        f"{spending.calls:,}" if calls_limit is None else f"{spending.calls:,} of {calls_limit:,}",
    )


def _date(seconds: float | None, default: str) -> str:
    return format_time(timestamp) if (timestamp := _timestamp(seconds)) else default
