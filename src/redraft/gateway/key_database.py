"""The file of the keys and their budgets, gateway.db. This module does not know what a request is.

Money is counted in whole nanodollars, so that sums are exact. A reservation and what is spent are
changed in one transaction, so a process that is killed at any moment leaves each reservation either
open or charged, and never both. Several processes may use one file: SQLite serializes their
transactions. Every error of SQLite becomes a StoreError that names the file.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import StoreError
from ..storage.schema import ERROR_MESSAGES, open_connection
from ..storage.secure_files import is_untrusted, make_folder, open_private

APPLICATION_ID = int.from_bytes(b"RdGw")
SCHEMA = 2
BUSY_MILLISECONDS = 500  # for another process; a transaction of ours takes less than one
MAX_NANODOLLARS = 10**18  # a thousand million dollars
Account: TypeAlias = tuple[str, int]  # the id of a key, and a day since 1970
TABLES = """
CREATE TABLE keys (id TEXT PRIMARY KEY, name TEXT NOT NULL, hash BLOB NOT NULL UNIQUE, created_at REAL NOT NULL,
                   expires_at REAL, revoked_at REAL, usd_per_day REAL, calls_per_day INTEGER, requests_per_minute REAL,
                   profiles TEXT NOT NULL, usd_per_month REAL, calls_per_month INTEGER);
CREATE UNIQUE INDEX active_names ON keys (name) WHERE revoked_at IS NULL;
CREATE TABLE spending (key TEXT NOT NULL, day INTEGER NOT NULL, requests INTEGER NOT NULL DEFAULT 0,
                       spent INTEGER NOT NULL DEFAULT 0, calls INTEGER NOT NULL DEFAULT 0,
                       unknown_calls INTEGER NOT NULL DEFAULT 0, reserved INTEGER NOT NULL DEFAULT 0,
                       reserved_calls INTEGER NOT NULL DEFAULT 0, used_at REAL NOT NULL, PRIMARY KEY (key, day)) WITHOUT ROWID;
CREATE TABLE reservations (id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, key TEXT NOT NULL, day INTEGER NOT NULL,
                           cost INTEGER, calls INTEGER NOT NULL);
"""
MIGRATIONS = {
    1: (
        "ALTER TABLE keys ADD COLUMN usd_per_month REAL; ALTER TABLE keys ADD COLUMN "
        "calls_per_month INTEGER"
    )
}
"""The statements that make the next schema of each earlier one."""
CHARGE = """
UPDATE spending SET reserved = reserved - ?, reserved_calls = reserved_calls - ?, spent = spent + ?, calls = calls + ?,
                    unknown_calls = unknown_calls + ? WHERE key = ? AND day = ?
"""


@dataclass(frozen=True, slots=True)
class Spending:
    """What a key used in a day or a month: nanodollars and calls that are settled and that are
    reserved. `used_at`: Unix time.

    `unknown_calls`: how many of `calls` had no known cost; `spent` has their estimate, if there was
    one.
    """

    requests: int = 0
    spent: int = 0
    calls: int = 0
    unknown_calls: int = 0
    reserved: int = 0
    reserved_calls: int = 0
    used_at: float | None = None


_SUMS = ", ".join(f"sum({field.name})" for field in fields(Spending) if field.name != "used_at")
SPENDING = f"SELECT {_SUMS}, max(used_at) FROM spending WHERE key = ? AND day BETWEEN ? AND ?"  # noqa: S608


@dataclass(frozen=True, slots=True)
class Charge:
    """What is reserved, or charged, for one request; a cost of None is unknown."""

    cost: int | None
    calls: int


class KeyDatabase:
    """One connection to gateway.db, which is created if it is missing, readable by its owner
    only.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._errors("opened"):
            make_folder(path.parent)
            _create_or_check(path)
            self._connection = open_connection(path, "mode=rw")
        try:
            with self._errors("opened"):
                self._prepare()
        except StoreError:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        execute = self._connection.execute
        execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = NORMAL")
        execute("PRAGMA wal_autocheckpoint = 4000")
        with self._transaction():
            application, version = (
                execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("application_id", "user_version")
            )
            tables = execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if application == version == tables == 0:
                self._migrate(TABLES)
                execute(f"PRAGMA application_id = {APPLICATION_ID}")
            elif application != APPLICATION_ID:
                raise StoreError(
                    f"{self.label} is an SQLite file of another program; it was left unchanged: "
                    "name another folder"
                )
            elif version in MIGRATIONS:
                self._migrate(MIGRATIONS[version])
            elif version != SCHEMA:
                raise StoreError(
                    f"{self.label} has schema {version}, this release reads schema {SCHEMA}: use "
                    "the Redraft that wrote it"
                )

    def _migrate(self, statements: str) -> None:
        """Run the statements that lead to the present schema."""
        for statement in statements.split(";"):
            self._connection.execute(statement)
        self._connection.execute(f"PRAGMA user_version = {SCHEMA}")

    @property
    def label(self) -> str:
        """How errors name the file."""
        return f"the file of keys {str(self.path)!r}"

    # ---- keys

    def key_rows(self) -> list[tuple[Any, ...]]:
        """Return the rows of all keys, revoked ones included, in the order in which they were
        added.
        """
        return self._read(
            "SELECT id, name, hash, created_at, expires_at, revoked_at, usd_per_day, "
            "calls_per_day, requests_per_minute, profiles, usd_per_month, calls_per_month FROM "
            "keys ORDER BY created_at, rowid"
        )

    def add_key(self, row: tuple[Any, ...]) -> bool:
        """Add a key, as a row of `key_rows`; return False if an active key has its name."""
        with self._errors("written"), self._transaction():
            try:
                self._connection.execute(
                    f"INSERT INTO keys VALUES ({', '.join('?' * len(row))})",  # noqa: S608  (only marks)
                    row,
                )
            except sqlite3.IntegrityError:
                return False
        return True

    def revoke_key(self, key_id: str, now: float) -> None:
        """Revoke a key, unless it is revoked already."""
        with self._errors("written"), self._transaction():
            self._connection.execute(
                "UPDATE keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", (now, key_id)
            )

    def data_version(self) -> int:
        """Return a number that changes whenever another connection has changed the file."""
        version: int = self._read("PRAGMA data_version")[0][0]
        return version

    # ---- budgets

    def spending(self, key_id: str, days: range) -> Spending:
        """Return what a key used in these days since 1970."""
        [row] = self._read(SPENDING, key_id, days[0], days[-1])
        return Spending() if row[0] is None else Spending(*row)

    def used_at(self) -> dict[str, float]:
        """Return when each key was last used, as Unix time."""
        return dict(self._read("SELECT key, max(used_at) FROM spending GROUP BY key"))

    def reserve(
        self,
        owner: str,
        account: Account,
        charge: Charge,
        now: float,
        check: Callable[[], None] | None,
    ) -> int:
        """Reserve a charge and return the id of the reservation. `check` raises if the key has no
        room for it (None: it has).
        """
        with self._errors("written"), self._transaction():
            if check:
                check()
            self._connection.execute(
                "INSERT INTO spending (key, day, requests, reserved, reserved_calls, used_at) "
                "VALUES (?, ?, 1, ?, ?, ?) ON CONFLICT DO UPDATE SET requests = requests + 1, "
                "reserved = reserved + excluded.reserved, reserved_calls = reserved_calls + "
                "excluded.reserved_calls, used_at = max(used_at, excluded.used_at)",
                (*account, charge.cost or 0, charge.calls, now),
            )
            row = (owner, *account, charge.cost, charge.calls)
            cursor = self._connection.execute(
                "INSERT INTO reservations (owner, key, day, cost, calls) VALUES (?, ?, ?, ?, ?)",
                row,
            )
            assert cursor.lastrowid is not None
            return cursor.lastrowid

    def settle(self, reservation: int, charge: Charge) -> None:
        """Replace a reservation by a charge, unless it is settled already. An unknown cost is
        charged as reserved.
        """
        with self._errors("written"), self._transaction():
            self._settle(reservation, charge)

    def settle_all(self, owner: str) -> int:
        """Charge the open reservations of an owner in full: what a killed process had sent is not
        known. Return how many.
        """
        with self._errors("written"), self._transaction():
            rows = self._connection.execute(
                "SELECT id, calls FROM reservations WHERE owner = ?", (owner,)
            ).fetchall()
            for reservation, calls in rows:
                self._settle(reservation, Charge(None, calls))
            return len(rows)

    def _settle(self, reservation: int, charge: Charge) -> None:
        execute = self._connection.execute
        row = execute(
            "SELECT key, day, cost, calls FROM reservations WHERE id = ?", (reservation,)
        ).fetchone()
        if row is None:
            return
        execute("DELETE FROM reservations WHERE id = ?", (reservation,))
        key_id, day, reserved, reserved_calls = row
        cost = reserved if charge.cost is None else charge.cost
        unknown_calls = charge.calls if charge.cost is None else 0
        values = (reserved or 0, reserved_calls, cost or 0, charge.calls, unknown_calls)
        execute(CHARGE, (*values, key_id, day))

    # ---- the connection

    def close(self) -> None:
        self._connection.close()

    def _read(self, sql: str, *values: Any) -> list[Any]:
        with self._errors("read"):
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        """Translate errors of SQLite and the disk to StoreError."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            code = getattr(error, "sqlite_errorname", "")
            reason = (
                ERROR_MESSAGES.get(code)
                if code != "SQLITE_BUSY"
                else "another program has it locked"
            )
            reason = reason or getattr(error, "strerror", None) or str(error)
            raise StoreError(f"{self.label} cannot be {action}: {reason}") from error


def _create_or_check(path: Path) -> None:
    """Create an empty private file, or check that the existing one and those beside it are the
    user's own.

    What root creates belongs to the owner of the folder, as SQLite does it with the files beside
    it: the service can read it.
    """
    is_new = not path.exists()
    with open_private(path, os.O_RDWR | os.O_CREAT) as created:
        if is_new and hasattr(os, "geteuid") and os.geteuid() == 0:
            folder = path.parent.stat()
            os.fchown(created.fileno(), folder.st_uid, folder.st_gid)
    for suffix in ("-wal", "-shm", "-journal"):
        file = path.with_name(f"{path.name}{suffix}")
        if file.is_symlink() or (file.exists() and is_untrusted(file)):
            raise StoreError(
                f"the file of keys {str(path)!r} cannot be opened: {str(file)!r} beside it does "
                "not belong to it"
            )
