"""Defaults from files: `redraft.toml`, or `[tool.redraft]` in pyproject.toml, in this folder or above it within a repository,
or the file that --config names instead; beneath it the user's own configuration.

A key of a file is the name of an option that is a `SettingOption`. API keys are not allowed in files: each model reads its
key from the environment. The command line and the environment take precedence over files. What a file that was
found in a folder may not choose without consent is decided in `sensitive_settings`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from .sensitive_settings import SensitiveSetting, find_sensitive_settings, rebase_paths

SECRETS = ("key", "token", "secret", "password", "authorization", "headers")
FILES = ("redraft.toml", "pyproject.toml")
MAX_BYTES = 1024 * 1024  # bytes of a file with settings
VALIDATION_LEVELS = ("off", "warn", "error")  # of `require_validated`, weakest first
LAYERS, HELP = "redraft.layers", "redraft.help"  # of a context's `meta`


class SettingOption(click.Option):
    """An option with a default in the environment (REDRAFT_NAME, for those given once) and in configuration files."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.multiple and self.envvar is None:
            self.envvar = f"REDRAFT_{self.key.replace('-', '_').upper()}"

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the name of the option for an error message, with the environment variable if the value came from there."""
        hint = super().get_error_hint(ctx)
        from_environment = ctx is not None and ctx.get_parameter_source(self.name or "") is ParameterSource.ENVIRONMENT
        return f"{hint} ({self.envvar} in the environment)" if from_environment else hint

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
    """Take the defaults of a command from files before its other options are read."""
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


class ConfiguredCommand(click.Command):
    """A command whose options can have defaults in files."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(_config_option())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments. Help works even if a file with settings is broken."""
        ctx.meta[HELP] = bool({"-h", "--help"} & set(args))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises ConfigError for settings of a file that need consent and have none."""
        from .consent import require_consent, trusted_folders

        trusted_folders()  # reports a mistake in REDRAFT_TRUST even if nothing needs consent
        for layer, keys in used_layers(ctx):
            if layer.folder is not None:
                require_consent(layer.folder, sensitive_settings_of(layer), keys, layer.where)
        return super().invoke(ctx)

    @property
    def settings(self) -> list[SettingOption]:
        return [p for p in self.params if isinstance(p, SettingOption)]


class SectionedCommand(ConfiguredCommand):
    """A command whose help lists options under headings; `sections` maps the first parameter of each section to its heading."""

    def __init__(self, *args: Any, sections: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        by_heading: dict[str, list[tuple[str, str]]] = {}
        heading = "Options"
        for param in self.get_params(ctx):
            heading = self.sections.get(str(param.name), heading)
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                by_heading.setdefault(heading, []).append(record)
        for title, records in by_heading.items():
            with formatter.section(title):
                formatter.write_dl(records)


def sensitive_settings_of(layer: Layer) -> tuple[SensitiveSetting, ...]:
    """Return the settings of a file that need consent. Raises ConfigError that names the file."""
    from ..errors import ConfigError

    assert layer.folder is not None
    try:
        return find_sensitive_settings(layer.table, layer.folder, layer.folder)
    except ConfigError as error:
        raise ConfigError(f"{layer.where}: {error}") from None


def used_layers(ctx: click.Context) -> list[tuple[Layer, set[str]]]:
    """Return the files that supply settings to this command, and their keys: those neither typed nor in the environment."""
    layers: list[Layer] = ctx.meta.get(LAYERS, [])
    keys = {
        str(p.name): p.key
        for p in ctx.command.params
        if isinstance(p, SettingOption) and ctx.get_parameter_source(str(p.name)) is ParameterSource.DEFAULT_MAP
    }
    used = [(layer, {keys.pop(name) for name in keys.keys() & layer.values.keys()}) for layer in reversed(layers)]
    return [(layer, names) for layer, names in used if names]


def layers_for(params: Iterable[click.Parameter], folder: Path, given: str | None = None) -> list[Layer]:
    """Return the files with settings for `folder`, the one with the highest precedence last.

    `given` is used instead of the file that the folder has.
    Raises ConfigError for a file that cannot be read as settings.
    """
    layers = []
    if table := user_table(folder):
        layers.append(_layer(user_file(), table, params, folder))
    if given:
        layers.append(_layer(Path(given), _settings_in(Path(given), _contents(Path(given), "--config: ")), params, folder))
    elif found := nearest(folder):
        layer = _layer(*found, params, folder, found[0].parent)
        own = layers[0].values if layers else {}
        layers.append(replace(layer, values=keep_strict_validation(layer.values, own.get("require_validated"))))
    return layers


def keep_strict_validation(values: Mapping[str, Any], own: str | None) -> dict[str, Any]:
    """Return the settings of a folder or a trace without a `require_validated` that is weaker than the user's `own`."""
    found = values.get("require_validated")
    is_weaker = None not in (found, own) and VALIDATION_LEVELS.index(str(found)) < VALIDATION_LEVELS.index(str(own))
    return {name: value for name, value in values.items() if not (name == "require_validated" and is_weaker)}


def _layer(
    path: Path, table: Mapping[str, Any], params: Iterable[click.Parameter], folder: Path, place: Path | None = None
) -> Layer:
    where = os.path.relpath(path, folder) if place else str(path)
    return Layer(where, check_table(table, params, where, beside=os.path.relpath(path.absolute().parent, folder)), table, place)


def user_file() -> Path:
    """Return the path of the user's own configuration: config.toml in REDRAFT_HOME, or in the system's folder for configuration."""
    if own := os.environ.get("REDRAFT_HOME"):
        return Path(own, "config.toml")
    base = os.environ.get("XDG_CONFIG_HOME") or os.environ.get("APPDATA")
    return Path(base or os.path.expanduser("~/.config"), "redraft", "config.toml")  # noqa: PTH111  (expanduser of os.path never raises)


def user_table(folder: Path) -> Mapping[str, Any] | None:
    """Read the user's own settings; None without such a file. Raises ConfigError, also if it could have come with `folder`."""
    from ..errors import ConfigError
    from .consent import could_be_planted

    own = user_file()
    if not os.path.lexists(own):
        return None
    if could_be_planted(own, _search_folders(folder)[-1]):
        raise ConfigError(
            f"{own} lies in the current folder, so it is not used as your own configuration: name another REDRAFT_HOME"
        )
    table: Mapping[str, Any] = _settings_in(own, _contents(own))
    return table


def nearest(folder: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """Find the first file with settings, from `folder` up to the root of its repository; outside a repository in `folder` alone.

    Raises ConfigError for a file that cannot be read.
    """
    for place in _search_folders(folder):
        own, shared = (place / name for name in FILES)
        if os.path.lexists(own):
            return own, _settings_in(own, _contents(own))
        data = _contents(shared) if shared.is_file() else b""
        if b"tool.redraft" in data and (table := _settings_in(shared, data)) is not None:
            return shared, table
    return None


def _search_folders(folder: Path) -> list[Path]:
    """Return the folder and its parents up to the root of its repository."""
    above = [folder, *folder.parents]
    roots = [i for i, place in enumerate(above) if (place / ".git").exists()]
    return above[: roots[0] + 1 if roots else 1]


def _contents(path: Path, what: str = "") -> bytes:
    """Read a file of limited size. Raises ConfigError."""
    from ..checks import read_error_message
    from ..documents import read_small_bytes
    from ..errors import ConfigError

    try:
        return read_small_bytes(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{what}{path} cannot be read as settings: {read_error_message(error)}") from error


def _settings_in(path: Path, data: bytes) -> Any:
    """Parse the table with settings from the contents of a file; None for a pyproject.toml without one. Raises ConfigError."""
    from ..checks import format_value
    from ..documents import parse_toml
    from ..errors import ConfigError

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


def check_table(table: Mapping[str, Any], params: Iterable[click.Parameter], where: str, *, beside: str = ".") -> dict[str, Any]:
    """Convert the values of a table, by parameter name. Raises ConfigError naming `where` and the key."""
    known = {p.key: p for p in params if isinstance(p, SettingOption)}
    every = _all_settings()
    values: dict[str, Any] = {}
    for given, value in table.items():
        key = given.replace("_", "-")
        if key in known:
            values[known[key].name or key] = _convert(known[key], _relative(key, value, beside), f"{where}: {given}")
        elif key not in every:
            raise _unknown(where, given, every)
    return values


def _all_settings() -> list[str]:
    """Return the keys of all commands: one file serves them all."""
    from .commands.batch import batch
    from .commands.grade import grade
    from .commands.run import run

    return list(dict.fromkeys(p.key for command in (run, grade, batch) for p in command.params if isinstance(p, SettingOption)))


def _unknown(where: str, key: str, known: list[str]) -> Exception:
    from ..checks import unknown_name_message
    from ..errors import ConfigError

    if any(word in key.lower() for word in SECRETS):
        return ConfigError(f"{where}: {key!r} is not allowed in a file: keys are read from the environment only")
    return ConfigError(f"{where}: {unknown_name_message('key', key.replace('_', '-'), known, full_value=key)}")


def _convert(setting: SettingOption, value: Any, where: str) -> Any:
    """Convert a value to the type of the setting. Nothing is coerced except a whole number to a fraction. Raises ConfigError."""
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
    except ValueError as error:  # not a valid file name
        raise ConfigError(f"{where} must be a path, got {format_value(value)}: {error}") from error
    if setting.key in {"model", "judge"} and any(secrets_in_url(str(value).partition("#")[0])):
        raise ConfigError(
            f"{where}: an address in a file must not contain a user or a key: they are read from the environment only"
        )
    return converted if setting.multiple else converted[0]


def _type_of(setting: SettingOption) -> tuple[tuple[type, ...], str]:
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
    """Resolve a file that a setting names relative to the file with the settings."""
    if isinstance(value, list):
        return [_relative(key, each, beside) for each in value]
    return rebase_paths(key, value, beside) if isinstance(value, str) and beside != "." else value


def requirement_beside(spec: str, folder: str) -> str:
    """Return the spec of a requirement with a file that it reads taken from `folder`."""
    return rebase_paths("require", spec, folder)
