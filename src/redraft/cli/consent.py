"""Consent to settings of others, given once and saved in the user's own data folder.

There is a file for each consent, named after what it is for: a folder with a hash of its sensitive settings, or such a hash
alone for traces, which may be moved. The hash covers the sensitive settings only: editing a target asks nothing again,
changing a host does. A run that a user started saves the hash of the trace that it writes, so that it can be resumed; this
allows no more than that run did.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..documents import read_small_bytes
from ..errors import ConfigError, StoreError
from ..storage.paths import data_dir
from ..storage.secure_files import make_folder, write_atomic
from .sensitive_settings import SensitiveSetting, settings_digest

VARIABLE = "REDRAFT_TRUST"
NOT_FOLDERS = ("off", "warn", "error")  # the values of --require-validated, which another variable sets
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Consent:
    """Consent to the settings of a folder, or to those of a trace; `descriptions` are their lines as they were shown."""

    place: str
    is_trace: bool
    digest: str
    descriptions: tuple[str, ...]

    @property
    def file_name(self) -> str:
        key = f"trace\0{self.digest}" if self.is_trace else f"folder\0{self.place}"
        return f"{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.json"


def consent_for(place: Path, settings: tuple[SensitiveSetting, ...], *, is_trace: bool) -> Consent:
    """Return the consent that the settings of a folder, or of a trace, need."""
    return Consent(str(place.resolve()), is_trace, settings_digest(settings), tuple(s.description for s in settings))


def require_consent(
    place: Path, settings: tuple[SensitiveSetting, ...], used: set[str], where: str, *, is_trace: bool = False
) -> None:
    """Raises ConfigError naming the command that gives consent, where the command uses settings without it.

    `place` is the folder of a settings file, or a trace. `used` are the keys of the settings that this command uses.
    """
    chosen = [s for s in settings if s.key in used]
    if not chosen:
        return
    folder = place.resolve().parent if is_trace else place.resolve()
    if any(folder.is_relative_to(trusted) for trusted in trusted_folders()):
        return
    check_store_location(folder)
    if not _is_saved(data_dir() / "trust", consent_for(place, settings, is_trace=is_trace)):
        descriptions = "; ".join(s.description for s in chosen)
        command = f"redraft trust {shlex.quote(str(place.resolve()))}"
        raise ConfigError(f"{where} chooses {descriptions}. If it is yours, or you trust its author, allow it once with: {command}")


def check_store_location(folder: Path) -> None:
    """Raises ConfigError where consent to the settings of a folder would be saved inside that folder: it could come with it."""
    if could_be_planted(data_dir() / "trust", folder):
        raise ConfigError(
            f"consent would be saved in {data_dir()}, which lies in {folder.resolve()}: "
            f"name another folder in REDRAFT_HOME, or trust this one with {VARIABLE}"
        )


def trusted_folders() -> list[Path]:
    """The folders in REDRAFT_TRUST, separated as in PATH. Raises ConfigError for a value of --require-validated."""
    names = [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name.strip()]
    if mistaken := [name for name in names if name in NOT_FOLDERS]:
        raise ConfigError(
            f"{VARIABLE}={mistaken[0]}: it names folders whose settings are trusted; "
            f"for --require-validated {mistaken[0]} set REDRAFT_REQUIRE_VALIDATED={mistaken[0]} "
            f"(a folder of that name is ./{mistaken[0]})"
        )
    return [Path(name).resolve() for name in names]


def save_consent(consent: Consent) -> None:
    """Save a consent. Raises StoreError where it cannot be written."""
    path = data_dir() / "trust" / consent.file_name
    data = {
        "redraft_trust": SCHEMA,
        "trace" if consent.is_trace else "folder": consent.place,
        "digest": consent.digest,
        "settings": consent.descriptions,
    }
    try:
        make_folder(path.parent)
        write_atomic(path, json.dumps(data), private=True, follow=False)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}; name another folder in REDRAFT_HOME") from error


def save_consent_for_trace(path: str, settings: tuple[SensitiveSetting, ...]) -> None:
    """Save consent to the settings of a run that writes a trace. Where that fails, resuming the trace asks for consent."""
    if settings:
        consent = consent_for(Path(path), settings, is_trace=True)
        with suppress(StoreError):
            if not _is_saved(data_dir() / "trust", consent):
                save_consent(consent)


def saved_consents() -> Iterator[tuple[Path, Consent]]:
    """Yield every consent with its file, by name; a file that cannot be read is no consent."""
    for path in sorted((data_dir() / "trust").glob("*.json")):
        if consent := _read_consent(path):
            yield path, consent


def revoke_consent(consent: Consent) -> bool:
    """Remove a consent and return whether there was one. Raises StoreError where its file cannot be removed."""
    path = data_dir() / "trust" / consent.file_name
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"{path} cannot be removed: {error.strerror}") from error
    return True


def _is_saved(folder: Path, consent: Consent) -> bool:
    saved = _read_consent(folder / consent.file_name)
    return saved is not None and saved.digest == consent.digest and (consent.is_trace or saved.place == consent.place)


def _read_consent(path: Path) -> Consent | None:
    try:
        data = json.loads(read_small_bytes(path))
        is_trace = "trace" in data
        consent = Consent(data["trace" if is_trace else "folder"], is_trace, data["digest"], tuple(data["settings"]))
        return consent if data["redraft_trust"] == SCHEMA and consent.file_name == path.name else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def could_be_planted(own: Path, folder: Path) -> bool:
    """Whether one of the user's own files or folders lies inside a folder of someone else, and so may have come with it.

    A folder that contains the user's home directory is not someone else's.
    """
    with suppress(RuntimeError):
        if Path.home().resolve().is_relative_to(folder.resolve()):
            return False
    return own.resolve().is_relative_to(folder.resolve())
