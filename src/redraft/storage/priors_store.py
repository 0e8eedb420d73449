"""What was learned of a model and its graders, kept for runs that ask for it: a JSON file for each such pair.

A pair is known by what decides its scores: the model that writes, and the graders that make the score, each with its
weight and fingerprint. When one of these changes, so does the key, and nothing is known of the new pair. What a file holds
is a hint and no more: a run goes on without one that cannot be read.
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

from ..core.serialize import object_from_json
from ..errors import ConfigError, StoreError
from ..quality.priors import Priors
from .atomic import write_atomic
from .paths import data_dir
from .secure_files import make_folder, open_regular

SCHEMA = 1
MAX_FILE_BYTES = 65_536  # bytes in a file: far more than one has


@dataclass(frozen=True, slots=True)
class PriorsKey:
    """A model and the graders that make its score: their names, for people, and what tells them apart from all others.

    `key` (16 hex digits) stands for all that decides the scores; `fingerprints` are those of `graders`, in their order.
    """

    key: str
    model: str
    graders: tuple[str, ...]
    fingerprints: tuple[str, ...]

    @classmethod
    def from_graders(cls, model: str, identity: str, graders: Iterable[tuple[str, float, str]]) -> Self:
        """The pair of a model (its name and identity) and graders: name, share in the score, fingerprint."""
        seated = sorted(graders, key=lambda grader: (grader[2], grader[1]))
        told = json.dumps([identity, [[fingerprint, round(share, 9)] for _, share, fingerprint in seated]])
        key = hashlib.sha256(told.encode()).hexdigest()[:16]
        return cls(key, model, tuple(name for name, _, _ in seated), tuple(fingerprint for _, _, fingerprint in seated))

    def as_data(self) -> dict[str, Any]:
        return {"key": self.key, "model": self.model, "graders": list(self.graders), "fingerprints": list(self.fingerprints)}

    @classmethod
    def from_data(cls, data: Any) -> Self:
        """What `as_data` told. Raises ValueError for anything else."""
        if not isinstance(data, Mapping):
            raise ValueError(f"a pair is a table, got {data!r:.80}")
        return cls(_text_in(data, "key"), _text_in(data, "model"), _texts_in(data, "graders"), _texts_in(data, "fingerprints"))


def _text_in(data: Mapping[str, Any], name: str) -> str:
    text = data.get(name)
    if not isinstance(text, str) or not text:
        raise ValueError(f"{name} must be a text, got {text!r:.80}")
    return text


def _timestamp_in(data: Mapping[str, Any], name: str) -> str:
    stamp = _text_in(data, name)
    try:
        datetime.fromisoformat(stamp).astimezone(UTC)
    except (OverflowError, OSError) as error:
        raise ValueError(f"{name} must be a moment of the calendar, got {stamp!r:.80}") from error
    return stamp


def _texts_in(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    texts = data.get(name)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{name} must be a list of texts, got {texts!r:.80}")
    return tuple(texts)


@dataclass(frozen=True, slots=True)
class StoredPriors:
    """What was learned of a pair, when (ISO 8601, UTC), and from what, in words."""

    priors_key: PriorsKey
    priors: Priors
    created_at: str
    source: str

    @classmethod
    def create(cls, priors_key: PriorsKey, priors: Priors, source: str) -> Self:
        """Learned at this moment."""
        return cls(priors_key, priors, datetime.now(UTC).isoformat(timespec="seconds"), source)

    def as_data(self) -> dict[str, Any]:
        told = {"made": self.created_at, "source": self.source, "priors": self.priors.to_dict()}
        return {"redraft_priors": SCHEMA, **self.priors_key.as_data(), **told}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """What `as_data` told. Raises ValueError or ConfigError for anything else."""
        if data.get("redraft_priors") != SCHEMA:
            raise ValueError(f"this release reads files of priors of schema {SCHEMA}")
        return cls(PriorsKey.from_data(data), priors_from_data(data), _timestamp_in(data, "made"), _text_in(data, "source"))


def priors_from_data(data: Mapping[str, Any]) -> Priors:
    """The priors in plain data: their fields, or what a file of the shelf holds. Raises ConfigError."""
    held = data.get("priors") if "redraft_priors" in data else data
    if not isinstance(held, Mapping):
        raise ConfigError(f"priors must be a table, got {held!r:.80}")
    try:
        return Priors.from_dict(held)
    except OverflowError as error:  # a whole number beyond all fractions
        raise ConfigError(f"priors: {error}") from error


def read_priors(path: str) -> Priors:
    """The priors in a JSON file: their fields, or a file of the shelf. Raises ConfigError."""
    try:
        data = _read_object(Path(path))
    except StoreError as error:
        raise ConfigError(f"priors: {error} (it may be 'shipped', 'learned', or the path of a JSON file)") from error
    try:
        return priors_from_data(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


@dataclass(frozen=True, slots=True)
class PriorsStore:
    """A folder with what was learned."""

    folder: Path

    @classmethod
    def in_folder(cls, folder: str | Path | None = None) -> Self:
        """The shelf in `folder`; None is the user's own. Raises StoreError where the user has no place for it."""
        return cls(Path(folder) if folder else data_dir() / "priors")

    def path_for(self, priors_key: PriorsKey) -> Path:
        """The file of a pair, whether it is there or not."""
        return self.folder / f"{priors_key.key}.json"

    def load(self, priors_key: PriorsKey) -> StoredPriors | None:
        """What is kept of a pair; None where nothing is, or nothing that can be read."""
        with suppress(StoreError):
            return _read_stored(self.path_for(priors_key))
        return None

    def load_error(self, priors_key: PriorsKey) -> StoreError | None:
        """Why what is kept of a pair cannot be read; None where it can, or nothing is kept."""
        if self.path_for(priors_key).is_file():
            try:
                _read_stored(self.path_for(priors_key))
            except StoreError as error:
                return error
        return None

    def save(self, stored: StoredPriors) -> Path:
        """Keep it, in the place of what was kept of the pair before; the file. Raises StoreError where that cannot be."""
        path = self.path_for(stored.priors_key)
        try:
            make_folder(self.folder)
            write_atomic(path, json.dumps(stored.as_data(), indent=2) + "\n", private=True, follow=False)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from error
        return path

    def save_if_more_tasks(self, stored: StoredPriors) -> StoredPriors:
        """Keep it unless more tasks taught what is kept of the pair; what is kept now. Raises StoreError as `put` does."""
        before = self.load(stored.priors_key)
        if before and before.priors.tasks > stored.priors.tasks:
            return before
        self.save(stored)
        return stored

    def delete(self, path: Path) -> None:
        """Forget what a file holds. Raises StoreError where that cannot be."""
        try:
            path.unlink()
        except OSError as error:
            raise StoreError(f"{path} cannot be removed: {error.strerror}") from error

    def entries(self) -> Iterator[tuple[Path, StoredPriors | StoreError]]:
        """Every file by name: what it holds, or why that cannot be read."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                yield path, _read_stored(path)
            except StoreError as error:
                yield path, error


def _read_stored(path: Path) -> StoredPriors:
    """What a file of the shelf holds. Raises StoreError."""
    data = _read_object(path)
    try:
        kept = StoredPriors.from_data(data)
        if kept.priors_key.key != path.stem:
            raise ValueError(f"it is the file of {kept.priors_key.key} by another name")
    except (ValueError, ConfigError) as error:
        raise StoreError(f"{path} holds no priors: {error}") from error
    return kept


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises StoreError."""
    try:
        with open_regular(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {MAX_FILE_BYTES:,} bytes")
        return object_from_json(data.decode("utf-8"))
    except (OSError, ValueError, StoreError) as error:
        raise StoreError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
