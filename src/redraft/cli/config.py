"""Defaults from `redraft.toml`, or `[tool.redraft]` in pyproject.toml, in this folder or above it within a repository.

A key is the name of an option that is a `Setting`. Keys of services have no place here: they are read from the
environment only, by the model that they belong to. Command line and environment go before files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

SECRETS = ("key", "token", "secret", "password", "authorization", "headers")


class Setting(click.Option):
    """An option with a default in the environment (REDRAFT_NAME, for those given once) and in configuration files."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.multiple:
            self.envvar = f"REDRAFT_{self.key.replace('-', '_').upper()}"

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """How it is named in an error: with the variable, where that is to blame."""
        hint = super().get_error_hint(ctx)
        blamed = ctx is not None and ctx.get_parameter_source(self.name or "") is ParameterSource.ENVIRONMENT
        return f"{hint} ({self.envvar} in the environment)" if blamed else hint

    @property
    def key(self) -> str:
        """The name of the option in files."""
        return max(self.opts, key=len).lstrip("-")


class Configured(click.Command):
    """A command whose settings have defaults in files."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if not {"-h", "--help"} & set(args):  # help is there for people whose file is broken
            extra["default_map"] = defaults(self.params, Path.cwd())
        return super().make_context(info_name, args, parent, **extra)

    @property
    def settings(self) -> list[Setting]:
        return [p for p in self.params if isinstance(p, Setting)]


def defaults(params: Iterable[click.Parameter], folder: Path) -> dict[str, Any]:
    """The defaults that the nearest file sets, by parameter name. Raises ConfigError."""
    found = nearest(folder)
    if found is None:
        return {}
    path, table = found
    return checked(table, params, os.path.relpath(path, folder), beside=os.path.relpath(path.parent, folder))


def nearest(folder: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """The first file with our settings, from `folder` up to the root of its repository; outside one, in `folder` alone."""
    above = [folder, *folder.parents]
    roots = [i for i, place in enumerate(above) if (place / ".git").exists()]
    for place in above[: roots[0] + 1 if roots else 1]:
        own = place / "redraft.toml"
        if own.is_file():
            return own, _read(own)
        shared = place / "pyproject.toml"
        if shared.is_file() and (table := _tool_table(shared)) is not None:
            return shared, table
    return None


def _tool_table(path: Path) -> Mapping[str, Any] | None:
    if b"tool.redraft" not in path.read_bytes():
        return None
    table = _read(path).get("tool", {}).get("redraft")
    return table if isinstance(table, Mapping) else None


def _read(path: Path) -> Mapping[str, Any]:
    import tomllib

    from ..core.errors import ConfigError

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error


def checked(table: Mapping[str, Any], params: Iterable[click.Parameter], where: str, *, beside: str = ".") -> dict[str, Any]:
    """The values of a table by parameter name. Raises ConfigError naming `where` and the key."""
    known = {p.key: p for p in params if isinstance(p, Setting)}
    every = _all_settings()
    values: dict[str, Any] = {}
    for given, value in table.items():
        key = given.replace("_", "-")
        if key in known:
            values[known[key].name or key] = _relative(key, _typed(known[key], value, f"{where}: {given}"), beside)
        elif key not in every:
            raise _unknown(where, given, every)
    return values


def _all_settings() -> list[str]:
    """The keys that any command knows: one file serves them all."""
    from .batch import batch
    from .grade import grade
    from .run import run

    return list(dict.fromkeys(p.key for command in (run, grade, batch) for p in command.params if isinstance(p, Setting)))


def _unknown(where: str, key: str, known: list[str]) -> Exception:
    from ..checks import unknown
    from ..core.errors import ConfigError

    if any(word in key.lower() for word in SECRETS):
        return ConfigError(f"{where}: {key!r} has no place in a file: keys are read from the environment only")
    return ConfigError(f"{where}: {unknown('key', key.replace('_', '-'), known, given=key)}")


def _typed(setting: Setting, value: Any, where: str) -> Any:
    """A value of the setting's type: nothing is coerced but a whole number to a fraction."""
    from ..core.errors import ConfigError

    wanted, name = _type_of(setting)
    rows = value if setting.multiple else [value]
    if not isinstance(rows, list) or not all(_fits(row, wanted) for row in rows):
        raise ConfigError(f"{where} must be {name}, got {value!r}")
    try:
        converted = [setting.type.convert(row, setting, None) for row in rows]
    except click.BadParameter as error:
        raise ConfigError(f"{where}: {error.message}") from error
    if setting.key in {"model", "judge"} and "@" in str(value).partition("//")[2].partition("/")[0]:
        raise ConfigError(f"{where}: an address here holds no user and no key: they are read from the environment only")
    return converted if setting.multiple else converted[0]


def _type_of(setting: Setting) -> tuple[tuple[type, ...], str]:
    if setting.multiple:
        return (str,), "a list of texts"
    if setting.is_flag:
        return (bool,), "true or false"
    if isinstance(setting.type, click.types.IntParamType):
        return (int,), "a whole number"
    if isinstance(setting.type, click.types.FloatParamType):
        return (int, float), "a number"
    return (str,), "a text"


def _fits(value: Any, wanted: tuple[type, ...]) -> bool:
    return isinstance(value, wanted) and (wanted == (bool,) or not isinstance(value, bool))


def _relative(key: str, value: Any, beside: str) -> Any:
    """A file that a setting names lies beside the file that names it."""
    if beside == ".":
        return value
    if key == "rubric" or (key == "priors" and value not in {"shipped", "learned"}):
        return str(Path(beside, value))
    return [found_beside(spec, beside) for spec in value] if key in {"require", "grader"} else value


def found_beside(spec: str, folder: str) -> str:
    """A requirement's spec; the file that it reads, if it reads one, is taken from `folder`."""
    from ..requirements import KINDS

    name, colon, argument = spec.partition(":")
    kind = KINDS.get(name.strip())
    if not colon or kind is None or not kind.reads_files or argument.strip().startswith("{"):
        return spec
    return f"{name}:{Path(folder, argument.strip())}"
