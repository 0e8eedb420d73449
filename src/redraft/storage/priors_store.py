"""Priors fitted to earlier runs: a JSON file for each model with its graders.

The key of a file covers everything that decides the scores: the model that writes, and each grader
of the score with its weight and fingerprint. If one of them changes, the key changes, and no stored
priors apply. A run also works without a file, or with one that cannot be read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from ..base.documents import read_small_bytes
from ..errors import ConfigError, StoreError
from ..loop.serialize import object_from_json, pack, unpack
from ..plans.quality.priors import Priors
from .secure_files import data_dir, make_folder, write_atomic

SCHEMA = 2
MAX_FILE_BYTES = 65_536  # bytes of a file; a stored file is far smaller
KEY_FIELDS = ("key", "model", "graders", "fingerprints")


@dataclass(frozen=True, slots=True)
class PriorsKey:
    """A model and the graders of its score.

    `key` (16 hex digits) is a digest of everything that decides the scores. `model` and `graders`
    are names for people; `fingerprints` has the graders' fingerprints, in the same order.
    """

    key: str
    model: str
    graders: tuple[str, ...]
    fingerprints: tuple[str, ...]

    @classmethod
    def from_graders(
        cls, model: str, identity: str, graders: Iterable[tuple[str, float, str]]
    ) -> Self:
        """Return the key of a model (its name and identity) and graders (name, share in the score,
        fingerprint).
        """
        ordered = sorted(graders, key=lambda grader: (grader[2], grader[1]))
        content = json.dumps(
            [identity, [[fingerprint, round(share, 9)] for _, share, fingerprint in ordered]]
        )
        key = hashlib.sha256(content.encode()).hexdigest()[:16]
        return cls(
            key,
            model,
            tuple(name for name, _, _ in ordered),
            tuple(fingerprint for _, _, fingerprint in ordered),
        )

    def as_data(self) -> dict[str, Any]:
        return pack(self)

    @classmethod
    def from_data(cls, data: Any) -> Self:
        """Return the key in `as_data`'s form. Raises StoreError for anything else."""
        if not isinstance(data, Mapping):
            raise StoreError(f"a priors key must be an object, got {data!r:.80}")
        key: Self = unpack(cls, {name: data.get(name) for name in KEY_FIELDS})
        return key


@dataclass(frozen=True, slots=True)
class StoredPriors:
    """Priors for a key. `created_at` is an ISO 8601 time in UTC, `source` says in words what they
    were fitted to.
    """

    priors_key: PriorsKey
    priors: Priors
    created_at: str
    source: str

    @classmethod
    def create(cls, priors_key: PriorsKey, priors: Priors, source: str) -> Self:
        """Return priors that were fitted now."""
        return cls(priors_key, priors, datetime.now(UTC).isoformat(timespec="seconds"), source)

    def as_data(self) -> dict[str, Any]:
        data = {
            "created_at": self.created_at,
            "source": self.source,
            "priors": self.priors.to_dict(),
        }
        return {"redraft_priors": SCHEMA, **self.priors_key.as_data(), **data}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return the priors in `as_data`'s form. Raises ValueError, StoreError or ConfigError for
        anything else.
        """
        if data.get("redraft_priors") != SCHEMA:
            schema = data.get("redraft_priors")
            raise ValueError(
                f"it has schema {schema!r:.20}, and this release reads schema {SCHEMA}: learn the "
                "priors again"
            )
        values = {"priors_key": PriorsKey.from_data(data), "priors": priors_from_data(data)}
        named = {name: data.get(name) for name in ("created_at", "source")}
        stored: Self = unpack(cls, values | named)
        try:
            datetime.fromisoformat(stored.created_at).astimezone(UTC)
        except (ValueError, OverflowError, OSError) as error:
            raise StoreError(
                f"created_at must be a date and time, got {stored.created_at!r:.80}"
            ) from error
        return stored


def priors_from_data(data: Mapping[str, Any]) -> Priors:
    """Return the priors in plain data: their fields, or the content of a stored file. Raises
    ConfigError.
    """
    fields = data.get("priors") if "redraft_priors" in data else data
    if not isinstance(fields, Mapping):
        raise ConfigError(f"priors must be a table, got {fields!r:.80}")
    try:
        return Priors.from_dict(fields)
    except OverflowError as error:  # an integer too large for a float
        raise ConfigError(f"priors: {error}") from error


def read_priors(path: str) -> Priors:
    """Read the priors in a JSON file: their fields, or a stored file. Raises ConfigError."""
    try:
        data = _read_object(Path(path))
    except StoreError as error:
        raise ConfigError(
            f"priors: {error} (it may be 'shipped', 'learned', or the path of a JSON file)"
        ) from error
    try:
        return priors_from_data(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


@dataclass(frozen=True, slots=True)
class PriorsStore:
    """A folder of stored priors."""

    folder: Path

    @classmethod
    def in_folder(cls, folder: str | Path | None = None) -> Self:
        """Return the store in `folder`; None: in the user's data folder. Raises StoreError if the
        user has none.
        """
        return cls(Path(folder) if folder else data_dir() / "priors")

    def path_for(self, priors_key: PriorsKey) -> Path:
        """Return the path of the file for a key, whether it exists or not."""
        return self.folder / f"{priors_key.key}.json"

    def load(self, priors_key: PriorsKey) -> StoredPriors | None:
        """Return the stored priors; None if there are none or the file cannot be read."""
        with suppress(StoreError):
            return _read_stored(self.path_for(priors_key))
        return None

    def load_error(self, priors_key: PriorsKey) -> StoreError | None:
        """Return why the stored priors cannot be read; None if they can be read or do not exist."""
        if self.path_for(priors_key).is_file():
            try:
                _read_stored(self.path_for(priors_key))
            except StoreError as error:
                return error
        return None

    def save(self, stored: StoredPriors) -> Path:
        """Store priors, replacing those with the same key; return the path. Raises StoreError if
        that fails.
        """
        path = self.path_for(stored.priors_key)
        try:
            make_folder(self.folder)
            write_atomic(
                path, json.dumps(stored.as_data(), indent=2) + "\n", private=True, follow=False
            )
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from error
        return path

    def save_if_more_tasks(self, stored: StoredPriors) -> StoredPriors:
        """Store priors unless the stored ones were fitted to more tasks; return those now stored.
        Raises StoreError.
        """
        before = self.load(stored.priors_key)
        if before and before.priors.tasks > stored.priors.tasks:
            return before
        self.save(stored)
        return stored

    def delete(self, path: Path) -> None:
        """Delete a file. Raises StoreError if that fails."""
        try:
            path.unlink()
        except OSError as error:
            raise StoreError(f"{path} cannot be removed: {error.strerror}") from error

    def entries(self) -> Iterator[tuple[Path, StoredPriors | StoreError]]:
        """Yield every file, sorted by name, with its priors or the error in reading them."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                yield path, _read_stored(path)
            except StoreError as error:
                yield path, error


def _read_stored(path: Path) -> StoredPriors:
    """Read a stored file. Raises StoreError."""
    data = _read_object(path)
    try:
        stored = StoredPriors.from_data(data)
        if stored.priors_key.key != path.stem:
            raise ValueError(f"it is that of {stored.priors_key.key} under another name")
    except (ValueError, StoreError, ConfigError) as error:
        raise StoreError(f"{path} holds no priors: {error}") from error
    return stored


def _read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file. Raises StoreError."""
    try:
        return object_from_json(read_small_bytes(path, MAX_FILE_BYTES).decode("utf-8"))
    except (OSError, ValueError, StoreError) as error:
        raise StoreError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
