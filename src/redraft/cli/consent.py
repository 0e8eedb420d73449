"""Consent to the settings of strangers, given once and kept in the user's own folder.

A file for each consent, named after what it is for: a folder with a hash of its sensitive settings, or such a hash alone,
for traces, which may be moved. The hash covers the sensitive settings and nothing else: to edit a target asks nothing
again, to change a host does. Runs that a user started keep the hash of the trace that they write, so that it can be
resumed; it allows no more than that run did.
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

from ..errors import ConfigError, StoreError
from ..small_files import read_small_bytes
from ..storage.atomic import write_atomic
from ..storage.paths import data_dir
from ..storage.secure_files import make_folder
from .sensitive import Sensitive, digest

VARIABLE = "REDRAFT_TRUST"
NOT_FOLDERS = ("check", "require")  # the values of --trust, which another variable sets
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Consent:
    """What was allowed: the settings of a folder, or those of a trace; `shown` are their lines as they were shown."""

    place: str
    is_trace: bool
    digest: str
    shown: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of its file."""
        about = f"trace\0{self.digest}" if self.is_trace else f"folder\0{self.place}"
        return f"{hashlib.sha256(about.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}.json"


def consent_to(place: Path, settings: tuple[Sensitive, ...], *, is_trace: bool) -> Consent:
    """The consent that the settings of a folder, or of a trace, need."""
    return Consent(str(place.resolve()), is_trace, digest(settings), tuple(s.shown for s in settings))


def check(place: Path, settings: tuple[Sensitive, ...], used: set[str], where: str, *, is_trace: bool = False) -> None:
    """Raises ConfigError naming the command that allows it, where settings are used that nobody has consented to.

    `place` is the folder of a settings file, or a trace. `used` are the keys that this command goes by.
    """
    chosen = [s for s in settings if s.key in used]
    if not chosen:
        return
    folder = place.resolve().parent if is_trace else place.resolve()
    if any(folder.is_relative_to(trusted) for trusted in trusted_folders()):
        return
    refuse_planted(folder)
    if not _is_kept(data_dir() / "trust", consent_to(place, settings, is_trace=is_trace)):
        shown = "; ".join(s.shown for s in chosen)
        command = f"redraft trust {shlex.quote(str(place.resolve()))}"
        raise ConfigError(f"{where} chooses {shown}. If it is yours, or you trust its author, allow it once with: {command}")


def refuse_planted(folder: Path) -> None:
    """Raises ConfigError where consent to the settings of a folder would be kept in that folder: it could come with it."""
    if could_be_planted(data_dir() / "trust", folder):
        raise ConfigError(
            f"consent would be kept in {data_dir()}, which lies in {folder.resolve()}: "
            f"name another folder in REDRAFT_HOME, or trust this one by {VARIABLE}"
        )


def trusted_folders() -> list[Path]:
    """The folders that REDRAFT_TRUST names, between the separators of PATH. Raises ConfigError for a value of --trust."""
    named = [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name.strip()]
    if mistaken := [name for name in named if name in NOT_FOLDERS]:
        raise ConfigError(
            f"{VARIABLE}={mistaken[0]}: it names folders whose settings are trusted; "
            f"for --trust {mistaken[0]} set REDRAFT_GRADER_TRUST={mistaken[0]} (a folder of that name is ./{mistaken[0]})"
        )
    return [Path(name).resolve() for name in named]


def keep(consent: Consent) -> None:
    """Keep a consent. Raises StoreError where it cannot be written."""
    path = data_dir() / "trust" / consent.name
    data = {
        "redraft_trust": SCHEMA,
        "trace" if consent.is_trace else "folder": consent.place,
        "digest": consent.digest,
        "settings": consent.shown,
    }
    try:
        make_folder(path.parent)
        write_atomic(path, json.dumps(data), private=True, follow=False)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}; name another folder in REDRAFT_HOME") from error


def keep_for_trace(path: str, settings: tuple[Sensitive, ...]) -> None:
    """Remember the settings of a run that writes a trace. Where that cannot be, its trace needs consent to be resumed."""
    if settings:
        consent = consent_to(Path(path), settings, is_trace=True)
        with suppress(StoreError):
            if not _is_kept(data_dir() / "trust", consent):
                keep(consent)


def all_kept() -> Iterator[tuple[Path, Consent]]:
    """Every consent with its file, by name; what cannot be read is no consent."""
    for path in sorted((data_dir() / "trust").glob("*.json")):
        if consent := _consent_in(path):
            yield path, consent


def revoke(consent: Consent) -> bool:
    """Take a consent back; whether there was one. Raises StoreError where its file cannot be removed."""
    path = data_dir() / "trust" / consent.name
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"{path} cannot be removed: {error.strerror}") from error
    return True


def _is_kept(folder: Path, consent: Consent) -> bool:
    kept = _consent_in(folder / consent.name)
    return kept is not None and kept.digest == consent.digest and (consent.is_trace or kept.place == consent.place)


def _consent_in(path: Path) -> Consent | None:
    try:
        data = json.loads(read_small_bytes(path))
        is_trace = "trace" in data
        consent = Consent(data["trace" if is_trace else "folder"], is_trace, data["digest"], tuple(data["settings"]))
        return consent if data["redraft_trust"] == SCHEMA and consent.name == path.name else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def could_be_planted(own: Path, folder: Path) -> bool:
    """Whether a file or folder of the user's own could have come along with a stranger's folder: where it lies in there.

    The folder that the user's home lies in has all of the user's own in it.
    """
    with suppress(RuntimeError):
        if Path.home().resolve().is_relative_to(folder.resolve()):
            return False
    return own.resolve().is_relative_to(folder.resolve())
