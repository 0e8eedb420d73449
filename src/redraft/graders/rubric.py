"""A rubric is data: a name and the criteria by which an answer is judged."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError

SUFFIXES = ".toml, .json, .yaml, .yml, .md or .txt"


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing to judge, what it means, and how much it weighs (> 0)."""

    name: str
    description: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Rubric:
    """The criteria of a judge."""

    name: str
    criteria: tuple[Criterion, ...]

    def __post_init__(self) -> None:
        names = [c.name for c in self.criteria]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"rubric {self.name!r} needs criteria with different names, got {names!r}")

    @classmethod
    def load(cls, path: str | Path) -> Rubric:
        """Read a rubric from a file.

        TOML, YAML and JSON hold `name` and `criteria`: a table of name = description, or a list of
        {name, description, weight}. In .md and .txt each line "name: description" is a criterion. Raises ConfigError.
        """
        file = Path(path)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"rubric {str(path)!r} cannot be read: {error}") from error
        return cls.of(_parse(text, file), file.stem, str(file))

    @classmethod
    def of(cls, data: Mapping[str, Any], name: str, where: str) -> Rubric:
        """A rubric from plain data. Raises ConfigError naming `where`."""
        held = data.get("criteria")
        rows = [{"name": k, "description": v} for k, v in held.items()] if isinstance(held, Mapping) else held
        if not isinstance(rows, list) or not rows:
            raise ConfigError(f"{where}: a rubric needs `criteria`: name = description, or a list of them")
        return cls(str(data.get("name", name)), tuple(_criterion(row, where) for row in rows))


def _criterion(row: Any, where: str) -> Criterion:
    if not isinstance(row, Mapping) or not isinstance(row.get("name"), str) or not isinstance(row.get("description"), str):
        raise ConfigError(f"{where}: a criterion needs `name` and `description`, got {row!r}")
    weight = row.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
        raise ConfigError(f"{where}: the weight of {row['name']!r} must be a number > 0, got {weight!r}")
    return Criterion(row["name"], row["description"], float(weight))


def _parse(text: str, file: Path) -> Mapping[str, Any]:
    readers: dict[str, Callable[[str], Any]] = {
        ".toml": tomllib.loads,
        ".json": json.loads,
        ".yaml": _yaml,
        ".yml": _yaml,
        ".md": _lines,
        ".txt": _lines,
    }
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise ConfigError(f"rubric {str(file)!r}: the file must end in {SUFFIXES}")
    try:
        data = reader(text)
    except ValueError as error:
        raise ConfigError(f"rubric {str(file)!r}: {error}") from error
    if not isinstance(data, Mapping):
        raise ConfigError(f"rubric {str(file)!r}: expected a table with `criteria`, got {type(data).__name__}")
    return data


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError("a YAML rubric needs an extra: pip install 'redraft[yaml]'") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _lines(text: str) -> Mapping[str, Any]:
    rows = [line.strip().lstrip("-*# ").partition(":") for line in text.splitlines() if ":" in line]
    return {"criteria": [{"name": name.strip(), "description": about.strip()} for name, _, about in rows]}


DEFAULT = Rubric(
    "default",
    (
        Criterion("instructions", "It does all that is asked, in the form asked for."),
        Criterion("correctness", "What it says is true; its reasoning and code hold."),
        Criterion("completeness", "Nothing that is needed is missing."),
        Criterion("clarity", "It is easy to follow, precise, with nothing superfluous."),
    ),
)
