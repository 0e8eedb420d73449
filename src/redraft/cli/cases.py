"""The cases that `redraft demo` shows: files that people are invited to edit."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checks import format_value, read_error_message, unknown_name_message
from ..core.records import Task
from ..errors import ConfigError
from ..small_files import read_small_text
from ..tomltext import parse_toml
from .config import found_beside
from .sensitive import sensitive

PLACE = Path("examples", "demo")
KEYS = {"title": str, "prompt": str, "response": str, "require": list}


@dataclass(frozen=True)
class Case:
    """An answer to improve, and the file that says how."""

    path: Path
    title: str
    prompt: str
    response: Path
    require: tuple[str, ...]

    @property
    def task(self) -> Task:
        """The task, its requirements reading their files beside the case. Raises ConfigError."""
        try:
            text = read_small_text(self.response)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.path}: response {str(self.response)!r} cannot be read: {read_error_message(error)}"
            ) from error
        return Task(self.prompt, text.removesuffix("\n"), requirements=self.require, id=self.path.stem)

    def command(self, model: str | None) -> str:
        """What to type to let a model do the rest."""
        named = f" --model {shlex.quote(model)}" if model else ""
        start = f"redraft run {shlex.quote(self.prompt)}{named}"
        return " \\\n  ".join(
            [start, f"--response {shlex.quote(str(self.response))}", *(f"--require {shlex.quote(r)}" for r in self.require)]
        )


def folder_of_cases(named: str | None) -> Path:
    """The folder that was named; else examples/demo here, beside the source, or the copy that comes with the package."""
    package = Path(__file__).parents[1]
    places = [Path(named)] if named else [PLACE, package.parents[1] / PLACE, package / PLACE]
    for place in places:
        if any(place.glob("*.toml")):
            return place
    looked = ", ".join(map(str, places))
    raise ConfigError(f"there are no cases (*.toml) in {looked}; `redraft demo --help` shows what one looks like")


def load_cases(folder: Path) -> list[Case]:
    """All cases, in the order of their names. Raises ConfigError naming file and key."""
    return [_case(path) for path in sorted(folder.glob("*.toml"))]


def _case(path: Path) -> Case:
    try:
        table = parse_toml(read_small_text(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {read_error_message(error)}") from error
    _check(path, table)
    if outside := sensitive({"rubric": table["response"], "require": table["require"]}, path.parent, path.parent):
        raise ConfigError(f"{path}: a case reads files beside it only, and {json.dumps(outside[0].value)} is elsewhere")
    beside = os.path.relpath(path.parent)
    require = tuple(found_beside(spec, beside) for spec in table["require"])
    return Case(path, table["title"], table["prompt"].strip(), Path(beside, table["response"]), require)


def _check(path: Path, table: Mapping[str, Any]) -> None:
    for key, kind in KEYS.items():
        if not isinstance(table.get(key), kind):
            raise ConfigError(
                f"{path}: {key} must be a {'list of texts' if kind is list else 'text'}, got {format_value(table.get(key))}"
            )
    if strange := sorted(table.keys() - KEYS):
        raise ConfigError(f"{path}: {unknown_name_message('key', strange[0], KEYS)}")
    if not table["require"] or not all(isinstance(spec, str) for spec in table["require"]):
        raise ConfigError(f"{path}: require must be a list of texts, got {format_value(table['require'])}")
