"""Finds the settings that need consent when they come with a folder or a trace: with them, someone else could choose where
texts are sent, which code runs, or which files are read.

These are explicit addresses, model files, code, and paths that lead out of the folder of the file that names them. Named
providers ("openai:gpt-4o-mini") and all other settings need no consent. This module looks at names and resolves paths; it
opens nothing.
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

MODEL_SETTINGS = ("model", "judge")
PATH_SETTINGS = ("rubric", "cards-dir", "priors")
PRIORS_KEYWORDS = ("shipped", "learned")  # values of `priors` that are not paths
KIND_DESCRIPTIONS: Mapping[Kind, str] = {
    "address": "an address that receives texts",
    "model file": "a model file that is loaded",
    "code": "code that runs",
    "path": "a path outside the folder",
}
MAX_JURY_SIZE = 200  # graders in a jury, nested juries included
MAX_SHOWN = 500  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class SensitiveSetting:
    """A setting that needs consent, by its key; `value` is what the consent is for, a path with its target."""

    key: str
    kind: Kind
    value: str

    @property
    def description(self) -> str:
        """The setting on one line, without control characters, characters that imitate another host, or a password."""
        value = _without_secrets(self.value) if self.kind == "address" else self.value
        quoted = json.dumps(value, ensure_ascii=self.kind == "address")
        if len(quoted) > MAX_SHOWN:
            quoted = f"{quoted[:MAX_SHOWN]}... ({len(value):,} characters)"
        return f"{self.key}: {strip_control_sequences(quoted)} ({KIND_DESCRIPTIONS[self.kind]})"


def find_sensitive_settings(table: Mapping[str, Any], folder: Path, base: Path) -> tuple[SensitiveSetting, ...]:
    """Return the settings in a table that need consent, each once, in the order of their keys.

    `folder` is the folder of the file that holds the table; relative paths start from `base`. Raises ConfigError for a path
    in the folder that is neither a file nor a folder: reading a pipe could block forever.
    """
    found: dict[SensitiveSetting, None] = {}
    for key in sorted(table):
        name = key.replace("_", "-")

        def add(kind: Kind, text: str, name: str = name) -> str:
            if kind != "path":
                found[SensitiveSetting(name, kind, text)] = None
            elif target := _target_outside(text, folder, base, name):
                found[SensitiveSetting(name, kind, target)] = None
            return text

        for text in _texts(table[key]):
            visit_setting(name, text, add)
    return tuple(found)


def settings_digest(settings: tuple[SensitiveSetting, ...]) -> str:
    """Return one hash over all settings: an address may be harmless alone, but not together with a certain file."""
    keys = sorted({(s.key, s.kind, s.value) for s in settings})
    return hashlib.sha256(json.dumps(keys).encode()).hexdigest()


def visit_setting(key: str, value: str, visit: Visit) -> str:
    """Return the value of a setting with each address, model file, path and piece of code replaced by the result of `visit`.

    Raises ConfigError for a jury of more than 200 graders.
    """
    if key in MODEL_SETTINGS:
        return _visit_model(value, visit)
    if key == "require":
        return _visit_requirement(value, visit)
    if key == "grader":
        if value.count("jury:") + value.count(",") > MAX_JURY_SIZE:
            raise ConfigError(f"{key}: {value[:40]!r}... names more than {MAX_JURY_SIZE} graders")
        return _visit_spec(value, visit)
    if key in PATH_SETTINGS and not (key == "priors" and value in PRIORS_KEYWORDS):
        return visit("path", value)
    return value


def rebase_paths(key: str, value: str, base: str) -> str:
    """Return the value of a setting with its relative files taken from the folder `base`."""

    def rebase(kind: Kind, text: str) -> str:
        if kind == "path" or (kind == "model file" and not text.startswith("~")):
            return str(Path(base, text.strip()))
        return text

    return visit_setting(key, value, rebase)


def _texts(value: Any) -> Iterator[str]:
    """The texts of a setting; values of other types are refused where settings are read."""
    yield from (each for each in (value if isinstance(value, list | tuple) else [value]) if isinstance(each, str))


def _visit_model(name: str, visit: Visit) -> str:
    from ..models.registry import LOCAL_SERVERS, PREFIXES, VENDORS

    prefix, colon, rest = name.strip().partition(":")
    if "//" in name:
        return visit("address", name)
    if not colon or prefix in {"openai", *LOCAL_SERVERS, *VENDORS} or f"{prefix}:" not in PREFIXES:
        return name  # an unknown prefix loads and sends nothing
    return f"{prefix}:{visit('model file', rest)}"


def _visit_spec(spec: str, visit: Visit) -> str:
    from ..requirements import KINDS

    name, _, argument = spec.partition(":")
    is_requirement = name.strip() in KINDS
    return _visit_requirement(spec, visit) if is_requirement else _visit_grader(spec, name.strip(), argument, visit)


def _visit_requirement(spec: str, visit: Visit) -> str:
    from ..requirements import reads_file

    name, _, argument = spec.partition(":")
    return f"{name}:{visit('path', argument.strip())}" if reads_file(spec) else spec


def _visit_grader(spec: str, name: str, argument: str, visit: Visit) -> str:
    from ..graders import entries

    entry = next((entry for entry in entries() if entry.name == name), None)
    if entry is None:
        return _visit_unknown(spec, name, argument, visit)
    if entry.origin != "redraft":
        return visit("code", spec)
    if not argument:
        return spec
    if name in {"judge", "checklist"}:
        return f"{name}:{visit('path', argument)}"
    if name == "jury":
        return f"{name}:{','.join(_visit_spec(part.strip(), visit) for part in argument.split(','))}"
    if name == "embedding":
        return f"{name}:{_visit_model(argument, visit)}"
    return visit("address", spec) if "//" in argument else spec


def _visit_unknown(spec: str, name: str, argument: str, visit: Visit) -> str:
    """Visit a spec that names no known grader: an address, or code, where it looks like one; others are refused later."""
    if "//" in spec:
        return visit("address", spec)
    if argument and (name.endswith(".py") or {"/", os.sep} & set(name) or argument.replace(".", "_").isidentifier()):
        return visit("code", spec)
    return spec


def _target_outside(text: str, folder: Path, base: Path, key: str) -> str | None:
    """Return the target of a path, all links followed, unless it is in the folder. Raises ConfigError for a pipe or a device."""
    try:
        target = (base / text).resolve()
        if not target.is_relative_to(folder.resolve()):
            return str(target)
        special = target.exists() and not (target.is_file() or target.is_dir())
    except (OSError, ValueError, RuntimeError):  # not a path on any system
        return text
    if special:
        raise ConfigError(f"{key}: {text!r} is neither a file nor a folder")
    return None


def _without_secrets(address: str) -> str:
    """Return an address, also one inside a spec, without user info and query."""
    return re.sub(r"(?<=//)[^/#?\s]*@|\?[^#]*", "", address)
