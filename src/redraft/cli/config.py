"""Defaults from files: `redraft.toml`, or `[tool.redraft]` in pyproject.toml, in this folder or above it within a repository,
or the file that --config names instead; beneath it the user's own configuration.

A key is the name of an option that is a `Setting`. Keys of services have no place here: they are read from the
environment only, by the model that they belong to. Command line and environment go before files. What a file that was
found in a folder may not choose without consent is in `sensitive`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from .sensitive import Sensitive, rebased, sensitive

SECRETS = ("key", "token", "secret", "password", "authorization", "headers")
FILES = ("redraft.toml", "pyproject.toml")
MOST = 1024 * 1024  # bytes of a file with settings
LAYERS, HELP = "redraft.layers", "redraft.help"  # of a context's `meta`


class Setting(click.Option):
    """An option with a default in the environment (REDRAFT_NAME, for those given once) and in configuration files."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.multiple and self.envvar is None:
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


@dataclass(frozen=True, slots=True)
class Layer:
    """The defaults of one file by parameter name. `folder` is where it was found; None: the user chose the file."""

    where: str
    values: Mapping[str, Any]
    table: Mapping[str, Any]
    folder: Path | None = None


def _use_files(ctx: click.Context, param: click.Parameter, given: str | None) -> None:
    """Takes the defaults of a command from files before its other options are read."""
    if not ctx.resilient_parsing and not ctx.meta.get(HELP):
        ctx.meta[LAYERS] = layers = layers_for(ctx.command.params, Path.cwd(), given)
        ctx.default_map = {name: value for layer in layers for name, value in layer.values.items()}


def _config_option() -> click.Option:
    return click.Option(
        ["--config"],
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_use_files,
        help="Settings from FILE (TOML) instead of this folder's redraft.toml.",
    )


class Configured(click.Command):
    """A command whose settings have defaults in files."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(_config_option())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; help is there for people whose file is broken."""
        ctx.meta[HELP] = bool({"-h", "--help"} & set(args))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Carry it out, unless a file chooses what needs consent. Raises ConfigError."""
        from .consent import check, trusted_folders

        trusted_folders()  # a mistake there is said in any case
        for layer, keys in used_layers(ctx):
            if layer.folder is not None:
                check(layer.folder, chosen_by_file(layer), keys, layer.where)
        return super().invoke(ctx)

    @property
    def settings(self) -> list[Setting]:
        return [p for p in self.params if isinstance(p, Setting)]


def chosen_by_file(layer: Layer) -> tuple[Sensitive, ...]:
    """The settings in a file that need consent. Raises ConfigError that names it."""
    from ..errors import ConfigError

    assert layer.folder is not None
    try:
        return sensitive(layer.table, layer.folder, layer.folder)
    except ConfigError as error:
        raise ConfigError(f"{layer.where}: {error}") from None


def used_layers(ctx: click.Context) -> list[tuple[Layer, set[str]]]:
    """The files that this command takes settings from, and the keys that it takes: neither typed, nor in the environment."""
    layers: list[Layer] = ctx.meta.get(LAYERS, [])
    keys = {
        str(p.name): p.key
        for p in ctx.command.params
        if isinstance(p, Setting) and ctx.get_parameter_source(str(p.name)) is ParameterSource.DEFAULT_MAP
    }
    used = [(layer, {keys.pop(name) for name in keys.keys() & layer.values.keys()}) for layer in reversed(layers)]
    return [(layer, taken) for layer, taken in used if taken]


def layers_for(params: Iterable[click.Parameter], folder: Path, given: str | None = None) -> list[Layer]:
    """The files with settings for `folder`, those that go before others last; `given` takes the place of a found one.

    Raises ConfigError for what cannot be read as settings.
    """
    layers = []
    if table := user_table(folder):
        layers.append(_layer(user_file(), table, params, folder))
    if given:
        layers.append(_layer(Path(given), _settings_in(Path(given), _contents(Path(given), "--config: ")), params, folder))
    elif found := nearest(folder):
        layer = _layer(*found, params, folder, found[0].parent)
        own = layers[0].values if layers else {}
        layers.append(replace(layer, values=without_lower_trust(layer.values, own.get("trust"))))
    return layers


def without_lower_trust(values: Mapping[str, Any], own: str | None) -> dict[str, Any]:
    """The settings that were found in a folder or a trace, without a `trust` that asks less of graders than the user's `own`."""
    return {name: value for name, value in values.items() if not (name == "trust" and own == "require")}


def _layer(
    path: Path, table: Mapping[str, Any], params: Iterable[click.Parameter], folder: Path, place: Path | None = None
) -> Layer:
    where = os.path.relpath(path, folder) if place else str(path)
    return Layer(where, checked(table, params, where, beside=os.path.relpath(path.absolute().parent, folder)), table, place)


def user_file() -> Path:
    """The user's own configuration: config.toml in REDRAFT_HOME, else in the folder that the system has for such files."""
    if own := os.environ.get("REDRAFT_HOME"):
        return Path(own, "config.toml")
    base = os.environ.get("XDG_CONFIG_HOME") or os.environ.get("APPDATA")
    return Path(base or os.path.expanduser("~/.config"), "redraft", "config.toml")  # noqa: PTH111  (it never raises)


def user_table(folder: Path) -> Mapping[str, Any] | None:
    """The user's own settings; None where there are none. Raises ConfigError, also where `folder` could have brought them along."""
    from ..errors import ConfigError
    from .consent import could_be_planted

    own = user_file()
    if not os.path.lexists(own):
        return None
    if could_be_planted(own, _searched(folder)[-1]):
        raise ConfigError(f"{own} lies in the current folder and is not taken for your own: name another REDRAFT_HOME")
    table: Mapping[str, Any] = _settings_in(own, _contents(own))
    return table


def nearest(folder: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """The first file with our settings, from `folder` up to the root of its repository; outside one, in `folder` alone.

    Raises ConfigError for one that cannot be read.
    """
    for place in _searched(folder):
        own, shared = (place / name for name in FILES)
        if os.path.lexists(own):
            return own, _settings_in(own, _contents(own))
        data = _contents(shared) if shared.is_file() else b""
        if b"tool.redraft" in data and (table := _settings_in(shared, data)) is not None:
            return shared, table
    return None


def _searched(folder: Path) -> list[Path]:
    """The folder, and those above it in its repository."""
    above = [folder, *folder.parents]
    roots = [i for i, place in enumerate(above) if (place / ".git").exists()]
    return above[: roots[0] + 1 if roots else 1]


def _contents(path: Path, what: str = "") -> bytes:
    """What a file of no more than a sensible size holds. Raises ConfigError."""
    from ..checks import read_error_message
    from ..errors import ConfigError
    from ..small_files import read_small_bytes

    try:
        return read_small_bytes(path, MOST)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{what}{path} cannot be read as settings: {read_error_message(error)}") from error


def _settings_in(path: Path, data: bytes) -> Any:
    """The table with our settings in the contents of a file; None for a pyproject.toml without one. Raises ConfigError."""
    from ..checks import format_value
    from ..errors import ConfigError
    from ..tomltext import parse_toml

    try:
        table: Any = parse_toml(data.decode("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    if path.name != "pyproject.toml":
        return table
    tools = table.get("tool")
    ours = tools.get("redraft") if isinstance(tools, dict) else None
    if ours is not None and not isinstance(ours, dict):
        raise ConfigError(f"{path}: [tool.redraft] must be a table, got {format_value(ours)}")
    return ours


def checked(table: Mapping[str, Any], params: Iterable[click.Parameter], where: str, *, beside: str = ".") -> dict[str, Any]:
    """The values of a table by parameter name. Raises ConfigError naming `where` and the key."""
    known = {p.key: p for p in params if isinstance(p, Setting)}
    every = _all_settings()
    values: dict[str, Any] = {}
    for given, value in table.items():
        key = given.replace("_", "-")
        if key in known:
            values[known[key].name or key] = _typed(known[key], _relative(key, value, beside), f"{where}: {given}")
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
    from ..checks import unknown_name_message
    from ..errors import ConfigError

    if any(word in key.lower() for word in SECRETS):
        return ConfigError(f"{where}: {key!r} has no place in a file: keys are read from the environment only")
    return ConfigError(f"{where}: {unknown_name_message('key', key.replace('_', '-'), known, full_value=key)}")


def _typed(setting: Setting, value: Any, where: str) -> Any:
    """A value of the setting's type: nothing is coerced but a whole number to a fraction."""
    from ..checks import format_value
    from ..errors import ConfigError
    from ..masking import secrets_in_url

    wanted, name = _type_of(setting)
    rows = value if setting.multiple else [value]
    if not isinstance(rows, list) or not all(_fits(row, wanted) for row in rows):
        raise ConfigError(f"{where} must be {name}, got {format_value(value)}")
    try:
        converted = [setting.type.convert(row, setting, None) for row in rows]
    except click.BadParameter as error:
        raise ConfigError(f"{where}: {error.message:.500}") from error
    except ValueError as error:  # no system has a file of that name
        raise ConfigError(f"{where} must be a path, got {format_value(value)}: {error}") from error
    if setting.key in {"model", "judge"} and any(secrets_in_url(str(value).partition("#")[0])):
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
    from ..checks import is_number

    if float in wanted:
        return is_number(value)
    return isinstance(value, wanted) and (wanted == (bool,) or not isinstance(value, bool))


def _relative(key: str, value: Any, beside: str) -> Any:
    """A file that a setting names lies beside the file that names it."""
    if isinstance(value, list):
        return [_relative(key, each, beside) for each in value]
    return rebased(key, value, beside) if isinstance(value, str) and beside != "." else value


def found_beside(spec: str, folder: str) -> str:
    """A requirement's spec; the file that it reads, if it reads one, is taken from `folder`."""
    return rebased("require", spec, folder)
