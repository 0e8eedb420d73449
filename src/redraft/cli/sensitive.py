"""Which settings need consent when they were found in a folder or a trace: those by which a stranger could choose where
texts go, what code runs, or which files are read.

They are explicit addresses, model files, code, and paths that lead out of the folder of the file that names them. Named
providers ("openai:gpt-4o-mini") and all else need none. This module looks at names and resolves paths; it opens nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ..errors import ConfigError
from ..text import strip_control_sequences

Kind: TypeAlias = Literal["address", "model file", "code", "path"]
Visit: TypeAlias = Callable[[Kind, str], str]

MODELS = ("model", "judge")
PATHS = ("rubric", "cards", "priors")
WORDS = ("shipped", "learned")  # that `priors` knows beside paths
ABOUT: Mapping[Kind, str] = {
    "address": "an address that is asked",
    "model file": "a model file that is loaded",
    "code": "code that is run",
    "path": "a path outside the folder",
}
MOST_SEATS = 200  # in a jury, those in its juries included
LONGEST = 500  # characters of a value that are shown


@dataclass(frozen=True, slots=True)
class Sensitive:
    """A setting that needs consent, by its key; `value` is what is consented to, a path with where it leads."""

    key: str
    kind: Kind
    value: str

    @property
    def shown(self) -> str:
        """It in one line, without what could drive a terminal, look like another host, or hold a password."""
        value = self.value
        if self.kind == "address":
            value = _without_secrets(value)
        quoted = json.dumps(value, ensure_ascii=self.kind == "address")
        if len(quoted) > LONGEST:
            quoted = f"{quoted[:LONGEST]}... ({len(value):,} characters)"
        return f"{self.key}: {strip_control_sequences(quoted)} ({ABOUT[self.kind]})"


def sensitive(table: Mapping[str, Any], folder: Path, beside: Path) -> tuple[Sensitive, ...]:
    """The settings in a table that need consent, each once, in the order of their keys.

    `folder` is the folder of the file that holds the table, `beside` the one that its relative paths start from. Raises
    ConfigError for a path in the folder that is neither a file nor a folder: a pipe could keep a reader waiting.
    """
    found: dict[Sensitive, None] = {}
    for key in sorted(table):
        name = key.replace("_", "-")

        def note(kind: Kind, text: str, name: str = name) -> str:
            if kind != "path":
                found[Sensitive(name, kind, text)] = None
            elif outside := _outside(text, folder, beside, name):
                found[Sensitive(name, kind, outside)] = None
            return text

        for text in _texts(table[key]):
            walk(name, text, note)
    return tuple(found)


def digest(settings: tuple[Sensitive, ...]) -> str:
    """A hash of all that is consented to together: an address alone may be harmless, and not with a certain file."""
    told = sorted({(s.key, s.kind, s.value) for s in settings})
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def walk(key: str, value: str, visit: Visit) -> str:
    """The value of a setting, with what `visit` makes of each address, model file, path and piece of code in it.

    Raises ConfigError for a jury of more than 200.
    """
    if key in MODELS:
        return _model(value, visit)
    if key == "require":
        return _requirement(value, visit)
    if key == "grader":
        if value.count("jury:") + value.count(",") > MOST_SEATS:
            raise ConfigError(f"{key}: {value[:40]!r}... seats more than {MOST_SEATS} graders")
        return _spec(value, visit)
    if key in PATHS and not (key == "priors" and value in WORDS):
        return visit("path", value)
    return value


def rebased(key: str, value: str, beside: str) -> str:
    """The value of a setting, its relative files taken from the folder `beside`."""

    def rebase(kind: Kind, text: str) -> str:
        if kind == "path" or (kind == "model file" and not text.startswith("~")):
            return str(Path(beside, text.strip()))
        return text

    return walk(key, value, rebase)


def _texts(value: Any) -> Iterator[str]:
    """The texts of a setting; what is of another type is refused where settings are read."""
    yield from (each for each in (value if isinstance(value, list | tuple) else [value]) if isinstance(each, str))


def _model(name: str, visit: Visit) -> str:
    from ..models.registry import LOCAL_SERVERS, PREFIXES, VENDORS

    prefix, colon, rest = name.strip().partition(":")
    if "//" in name:
        return visit("address", name)
    if not colon or prefix in {"openai", *LOCAL_SERVERS, *VENDORS} or f"{prefix}:" not in PREFIXES:
        return name  # of an unknown prefix nothing is loaded or asked
    return f"{prefix}:{visit('model file', rest)}"


def _spec(spec: str, visit: Visit) -> str:
    from ..requirements import KINDS

    name, _, argument = spec.partition(":")
    return _requirement(spec, visit) if name.strip() in KINDS else _grader(spec, name.strip(), argument, visit)


def _requirement(spec: str, visit: Visit) -> str:
    from ..requirements import reads_file

    name, _, argument = spec.partition(":")
    return f"{name}:{visit('path', argument.strip())}" if reads_file(spec) else spec


def _grader(spec: str, name: str, argument: str, visit: Visit) -> str:
    from ..graders import entries

    entry = next((entry for entry in entries() if entry.name == name), None)
    if entry is None:
        return _unknown(spec, name, argument, visit)
    if entry.origin != "redraft":
        return visit("code", spec)
    if not argument:
        return spec
    if name in {"judge", "checklist"}:
        return f"{name}:{visit('path', argument)}"
    if name == "jury":
        return f"{name}:{','.join(_spec(part.strip(), visit) for part in argument.split(','))}"
    if name == "embedding":
        return f"{name}:{_model(argument, visit)}"
    if "//" in argument:
        return visit("address", spec)
    return spec


def _unknown(spec: str, name: str, argument: str, visit: Visit) -> str:
    """What no grader is called: an address, or a name of code, where it looks like one; else it is refused by name later."""
    if "//" in spec:
        return visit("address", spec)
    if argument and (name.endswith(".py") or {"/", os.sep} & set(name) or argument.replace(".", "_").isidentifier()):
        return visit("code", spec)
    return spec


def _outside(text: str, folder: Path, beside: Path, key: str) -> str | None:
    """Where a path leads, all links followed, if that is not in the folder. Raises ConfigError for a pipe or a device in it."""
    try:
        target = (beside / text).resolve()
        if not target.is_relative_to(folder.resolve()):
            return str(target)
        special = target.exists() and not (target.is_file() or target.is_dir())
    except (OSError, ValueError, RuntimeError):  # nothing that a system has a file for
        return text
    if special:
        raise ConfigError(f"{key}: {text!r} is neither a file nor a folder")
    return None


def _without_secrets(address: str) -> str:
    """An address, also one inside a spec: no user info, no query."""
    return re.sub(r"(?<=//)[^/#?\s]*@|\?[^#]*", "", address)
