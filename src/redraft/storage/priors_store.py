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

from ..core.serialize import loads
from ..errors import ConfigError, StoreError
from ..quality.priors import Priors
from .atomic import write_whole
from .paths import home
from .secure_files import make_folder, open_regular

SCHEMA = 1
MOST = 65_536  # bytes in a file: far more than one has


@dataclass(frozen=True, slots=True)
class Pair:
    """A model and the graders that make its score: their names, for people, and what tells them apart from all others.

    `key` (16 hex digits) stands for all that decides the scores; `fingerprints` are those of `graders`, in their order.
    """

    key: str
    model: str
    graders: tuple[str, ...]
    fingerprints: tuple[str, ...]

    @classmethod
    def of(cls, model: str, identity: str, graders: Iterable[tuple[str, float, str]]) -> Self:
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


def _moment_in(data: Mapping[str, Any], name: str) -> str:
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
class Kept:
    """What was learned of a pair, when (ISO 8601, UTC), and from what, in words."""

    pair: Pair
    priors: Priors
    made: str
    source: str

    @classmethod
    def now(cls, pair: Pair, priors: Priors, source: str) -> Self:
        """Learned at this moment."""
        return cls(pair, priors, datetime.now(UTC).isoformat(timespec="seconds"), source)

    def as_data(self) -> dict[str, Any]:
        told = {"made": self.made, "source": self.source, "priors": self.priors.as_data()}
        return {"redraft_priors": SCHEMA, **self.pair.as_data(), **told}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """What `as_data` told. Raises ValueError or ConfigError for anything else."""
        if data.get("redraft_priors") != SCHEMA:
            raise ValueError(f"this release reads files of priors of schema {SCHEMA}")
        return cls(Pair.from_data(data), priors_in(data), _moment_in(data, "made"), _text_in(data, "source"))


def priors_in(data: Mapping[str, Any]) -> Priors:
    """The priors in plain data: their fields, or what a file of the shelf holds. Raises ConfigError."""
    held = data.get("priors") if "redraft_priors" in data else data
    if not isinstance(held, Mapping):
        raise ConfigError(f"priors must be a table, got {held!r:.80}")
    try:
        return Priors.of(held)
    except OverflowError as error:  # a whole number beyond all fractions
        raise ConfigError(f"priors: {error}") from error


def read_priors(path: str) -> Priors:
    """The priors in a JSON file: their fields, or a file of the shelf. Raises ConfigError."""
    try:
        data = _object_in(Path(path))
    except StoreError as error:
        raise ConfigError(f"priors: {error} (it may be 'shipped', 'learned', or the path of a JSON file)") from error
    try:
        return priors_in(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


@dataclass(frozen=True, slots=True)
class Shelf:
    """A folder with what was learned."""

    folder: Path

    @classmethod
    def at(cls, folder: str | Path | None = None) -> Self:
        """The shelf in `folder`; None is the user's own. Raises StoreError where the user has no place for it."""
        return cls(Path(folder) if folder else home() / "priors")

    def place(self, pair: Pair) -> Path:
        """The file of a pair, whether it is there or not."""
        return self.folder / f"{pair.key}.json"

    def of(self, pair: Pair) -> Kept | None:
        """What is kept of a pair; None where nothing is, or nothing that can be read."""
        with suppress(StoreError):
            return _kept_in(self.place(pair))
        return None

    def damage(self, pair: Pair) -> StoreError | None:
        """Why what is kept of a pair cannot be read; None where it can, or nothing is kept."""
        if self.place(pair).is_file():
            try:
                _kept_in(self.place(pair))
            except StoreError as error:
                return error
        return None

    def put(self, kept: Kept) -> Path:
        """Keep it, in the place of what was kept of the pair before; the file. Raises StoreError where that cannot be."""
        path = self.place(kept.pair)
        try:
            make_folder(self.folder)
            write_whole(path, json.dumps(kept.as_data(), indent=2) + "\n", private=True, follow=False)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from error
        return path

    def put_unless_less(self, kept: Kept) -> Kept:
        """Keep it unless more tasks taught what is kept of the pair; what is kept now. Raises StoreError as `put` does."""
        before = self.of(kept.pair)
        if before and before.priors.tasks > kept.priors.tasks:
            return before
        self.put(kept)
        return kept

    def drop(self, path: Path) -> None:
        """Forget what a file holds. Raises StoreError where that cannot be."""
        try:
            path.unlink()
        except OSError as error:
            raise StoreError(f"{path} cannot be removed: {error.strerror}") from error

    def all(self) -> Iterator[tuple[Path, Kept | StoreError]]:
        """Every file by name: what it holds, or why that cannot be read."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                yield path, _kept_in(path)
            except StoreError as error:
                yield path, error


def _kept_in(path: Path) -> Kept:
    """What a file of the shelf holds. Raises StoreError."""
    data = _object_in(path)
    try:
        kept = Kept.from_data(data)
        if kept.pair.key != path.stem:
            raise ValueError(f"it is the file of {kept.pair.key} by another name")
    except (ValueError, ConfigError) as error:
        raise StoreError(f"{path} holds no priors: {error}") from error
    return kept


def _object_in(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises StoreError."""
    try:
        with open_regular(path) as file:
            data = file.read(MOST + 1)
        if len(data) > MOST:
            raise ValueError(f"it is larger than {MOST:,} bytes")
        return loads(data.decode("utf-8"))
    except (OSError, ValueError, StoreError) as error:
        raise StoreError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
