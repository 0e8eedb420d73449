"""Defaults from files: `redraft.toml`, or `[tool.redraft]` in pyproject.toml, in this folder or
above it within a repository, or the file that --config names instead; beneath it the user's own
configuration.

A key of a file is the name of an option that is a `SettingOption`. API keys are not allowed in
files: each model reads its key from the environment. The command line and the environment take
precedence over files. `consent` decides what a file that was found in a folder may not choose
without consent.

`command_classes` calls it when a command runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from ..base import checks
from ..base.checks import (
    format_value,
    read_error_message,
    unknown_name_message,
)
from ..base.documents import parse_toml, read_small_bytes
from ..base.masking import secrets_in_url
from ..base.parameters import check_parameters, merge_parameters
from ..errors import ConfigError
from ..models.endpoint_url import redacted_model_name
from ..models.model_names import canonical_name, split_names
from ..plans.quality.priors import Priors
from ..settings import PlanSettings, Validation, names_of, settings_of
from ..storage.priors_store import read_priors
from .consent import (
    PRIORS_KEYWORDS,
    could_be_planted,
    find_sensitive_settings,
    rebase_paths,
    require_consent,
    trusted_folders,
)
from .options import (
    PLAN,
    PLAN_DEFAULTS,
    PLAN_KEYS,
    PLAN_SETTINGS,
    SettingOption,
    setting_keys,
    where_it_went,
)
from .output import in_toml

SECRETS = ("key", "token", "secret", "password", "authorization", "headers")
FILES = ("redraft.toml", "pyproject.toml")
MAX_BYTES = 1024 * 1024  # bytes of a file with settings
VALIDATION_LEVELS = get_args(Validation)  # of `require_validated`, weakest first
MODELS = "models"  # key of the tables with what models need
LAYERS = "redraft.layers"  # key in a context's `meta`: the files with settings


@dataclass(frozen=True, slots=True)
class Layer:
    """The defaults of one file by parameter name. `folder` is where it was found; None: the user
    chose the file.
    """

    where: str
    values: Mapping[str, Any]
    table: Mapping[str, Any]
    folder: Path | None = None


@contextmanager
def toml_errors() -> Iterator[None]:
    """Show values in errors about a TOML file as TOML writes them."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(in_toml(str(error))) from error.__cause__


def use_files(ctx: click.Context, named: str | None) -> None:
    """Take the defaults of a command from files; `named` is the file that --config names. Raises
    ConfigError.
    """
    ctx.meta[LAYERS] = layers = layers_for(ctx.command.params, Path.cwd(), named)
    defaults: dict[str, Any] = {}
    for name, value in (item for layer in layers for item in layer.values.items()):
        defaults[name] = (
            (merge_parameters(*defaults.get(name, ({},)), value),)
            if isinstance(value, Mapping)
            else value
        )
    ctx.default_map = defaults


def declared_parameters(name: str) -> dict[str, Any]:
    """Return the parameters that files declare for the model of a name, in
    [models."NAME".params].
    """
    ctx = click.get_current_context(silent=True)
    layers: list[Layer] = ctx.meta.get(LAYERS, []) if ctx else []
    tables = [
        table
        for layer in layers
        for each, table in layer.table.get(MODELS, {}).items()
        if same_model(each, name)
    ]
    return merge_parameters(*(table["params"] for table in tables))


def same_model(one: str, other: str) -> bool:
    """Whether two names are those of one model."""
    return canonical_name(one) == canonical_name(other)


def _check_models(value: Any, where: str) -> None:
    """Raise ConfigError for anything but tables of models with their parameters."""
    if not isinstance(value, Mapping):
        raise ConfigError(
            f'{where} must be tables such as [models."ollama:qwen3".params], got '
            f"{format_value(value)}"
        )
    for name, table in value.items():
        if not isinstance(table, Mapping) or list(table) != ["params"]:
            raise ConfigError(
                f'{where}: a model has one table, [models."{redacted_model_name(name)}".params]'
            )
        if _has_secret(name):
            raise _secret_address_error(where)
        check_parameters(f"{where}: {redacted_model_name(name)}", table["params"])


def _secret_address_error(where: str) -> ConfigError:
    return ConfigError(
        f"{where}: an address in a file must not contain a user or a key: they are read from the "
        "environment only"
    )


def require_consent_for_files(ctx: click.Context) -> None:
    """Raise ConfigError for settings of a file in a folder that need consent and have none."""
    trusted_folders()  # reports a mistake in REDRAFT_TRUST even if nothing needs consent
    for layer, keys in used_layers(ctx):
        if layer.folder is None:
            continue
        try:
            settings = find_sensitive_settings(layer.table, layer.folder, layer.folder)
        except ConfigError as error:
            raise ConfigError(f"{layer.where}: {error}") from None
        require_consent(layer.folder, settings, keys, layer.where)


def used_layers(ctx: click.Context) -> list[tuple[Layer, set[str]]]:
    """Return the files that supply settings to this command, and their keys: those neither typed
    nor in the environment.
    """
    layers: list[Layer] = ctx.meta.get(LAYERS, [])
    keys = {
        str(p.name): p.key
        for p in ctx.command.params
        if isinstance(p, SettingOption)
        and ctx.get_parameter_source(str(p.name)) is ParameterSource.DEFAULT_MAP
    }
    used = [
        (layer, {keys.pop(name) for name in keys.keys() & layer.values.keys()})
        for layer in reversed(layers)
    ]
    return [(layer, names) for layer, names in used if names]


@toml_errors()
def layers_for(
    params: Iterable[click.Parameter], folder: Path, named: str | None = None
) -> list[Layer]:
    """Return the files with settings for `folder`, the one with the highest precedence last.

    `named` is used instead of the file that the folder has.
    Raises ConfigError for a file that cannot be read as settings.
    """
    layers = []
    if table := user_table(folder):
        layers.append(_layer(user_file(), table, params, folder))
    if named:
        path = Path(named)
        layers.append(
            _layer(path, _settings_in(path, _contents(path, "--config: ")), params, folder)
        )
    elif file := nearest(folder):
        path, table = file
        layer = _layer(path, table, params, folder, path.parent)
        own = layers[0].values if layers else {}
        layers.append(
            replace(
                layer, values=keep_strict_validation(layer.values, own.get("require_validated"))
            )
        )
    return layers


def keep_strict_validation(values: Mapping[str, Any], own: str | None) -> dict[str, Any]:
    """Return the settings of a folder or a trace without a `require_validated` that is weaker than
    the user's `own`.
    """
    level = values.get("require_validated")
    is_weaker = None not in (level, own) and VALIDATION_LEVELS.index(
        str(level)
    ) < VALIDATION_LEVELS.index(str(own))
    return {
        name: value
        for name, value in values.items()
        if not (name == "require_validated" and is_weaker)
    }


def _layer(
    path: Path,
    table: Mapping[str, Any],
    params: Iterable[click.Parameter],
    folder: Path,
    place: Path | None = None,
) -> Layer:
    """Check the settings of a file. `folder` is the working directory; `place` the folder in which
    the file was found.
    """
    where = os.path.relpath(path, folder) if place else str(path)
    return Layer(
        where,
        check_table(table, params, where, beside=os.path.relpath(path.absolute().parent, folder)),
        table,
        place,
    )


def user_file() -> Path:
    """Return the path of the user's own configuration: config.toml in REDRAFT_HOME, or in the
    system's folder for configuration.
    """
    if own := os.environ.get("REDRAFT_HOME"):
        return Path(own, "config.toml")
    base = os.environ.get("XDG_CONFIG_HOME") or os.environ.get("APPDATA")
    return Path(base or os.path.expanduser("~/.config"), "redraft", "config.toml")  # noqa: PTH111  (expanduser of os.path never raises)


def user_table(folder: Path) -> Mapping[str, Any] | None:
    """Read the user's own settings; None without such a file. Raises ConfigError, also if it could
    have come with `folder`.
    """
    own = user_file()
    if not os.path.lexists(own):
        return None
    if could_be_planted(own, _search_folders(folder)[-1]):
        raise ConfigError(
            f"{own} lies in the current folder, so it is not used as your own configuration: name "
            "another REDRAFT_HOME"
        )
    table: Mapping[str, Any] = _settings_in(own, _contents(own))
    return table


def nearest(folder: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """Find the first file with settings, from `folder` up to the root of its repository; outside a
    repository in `folder` alone.

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
    try:
        return read_small_bytes(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{what}{path} cannot be read as settings: {read_error_message(error)}"
        ) from error


def _settings_in(path: Path, data: bytes) -> Any:
    """Parse the table with settings from the contents of a file; None for a pyproject.toml without
    one. Raises ConfigError.
    """
    table = _parse(path, data)
    if path.name != "pyproject.toml":
        return table
    tools = table.get("tool")
    ours = tools.get("redraft") if isinstance(tools, dict) else None
    if ours is not None and not isinstance(ours, dict):
        raise ConfigError(f"{path}: [tool.redraft] must be a table, got {format_value(ours)}")
    return ours


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    """Parse TOML. Raises ConfigError."""
    try:
        return parse_toml(data.decode("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def check_table(
    table: Mapping[str, Any], params: Iterable[click.Parameter], where: str, *, beside: str = "."
) -> dict[str, Any]:
    """Convert the values of a table, by parameter name. Raises ConfigError naming `where` and the
    key.
    """
    options, keys = {p.key: p for p in params if isinstance(p, SettingOption)}, setting_keys()
    values: dict[str, Any] = {}
    for name, value in table.items():
        key = name.replace("_", "-")
        if key in options:
            values[options[key].name or key] = _convert(
                options[key], _relative(key, value, beside), f"{where}: {name}"
            )
        elif key == MODELS:
            _check_models(value, f"{where}: {name}")
        elif key not in keys:
            raise _unknown_key_error(where, name, keys)
    return values


def use_plan(ctx: click.Context, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a command, with those in the plan file that --plan names in place of
    its name, and the defaults of the others. Raises ConfigError.
    """
    for each in PLAN_SETTINGS:
        if os.environ.get(str(each.envvar)):
            raise ConfigError(f"{each.envvar} in the environment: {where_it_went(each.key)}")
    given = read_plan(settings[PLAN]) if settings[PLAN] else {}
    source = ctx.get_parameter_source(PLAN) or ParameterSource.DEFAULT
    for name in given:
        ctx.set_parameter_source(name, source)
    own = {name: value for name, value in settings.items() if name != PLAN}
    return {**own, **PLAN_DEFAULTS, **given}


@toml_errors()
def read_plan(file: str) -> dict[str, Any]:
    """Return the settings in a plan file, by their names; the priors that it names, as they are in
    their file. Raises ConfigError naming the file, the key, the value and what is allowed.
    """
    path, declared = Path(file), settings_of(PlanSettings)
    table = _parse(path, _contents(path, "--plan: "))
    values: dict[str, Any] = {}
    for written, value in table.items():
        key, name = written.replace("_", "-"), written.replace("-", "_")
        if key not in PLAN_KEYS:
            said = where_it_went(key) or unknown_name_message("key", written, PLAN_KEYS)
            raise ConfigError(f"{file}: {said}")
        declared[name].kind.check(f"{file}: {key}", value, optional=False)
        values[name] = value
    if "priors" in values:
        values["priors"] = _priors_beside(path, values["priors"])
    without_effect = [n for n in names_of(PlanSettings, group="noise-aware") if n in values]
    if values.get("noise_aware") is False and without_effect:
        keys = ", ".join(name.replace("_", "-") for name in without_effect)
        raise ConfigError(
            f"{file}: noise-aware = false takes scores as exact, so {keys} would have no effect: "
            "leave out one or the other"
        )
    return values


def _priors_beside(path: Path, value: Any) -> Priors | str | None:
    """Return the priors that a plan file names. Raises ConfigError."""
    checks.text(f"{path}: priors", value)
    try:
        return load_priors(rebase_paths("priors", value, str(path.parent)))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def load_priors(priors: Priors | str | Path | None) -> Priors | str | None:
    """Return priors as they are, load them from a file, or return the name of a kind of priors.
    Raises ConfigError.
    """
    if priors is None or isinstance(priors, Priors):
        return priors
    if str(priors) in PRIORS_KEYWORDS:
        return str(priors)
    return read_priors(str(priors))


def _unknown_key_error(where: str, key: str, known: list[str]) -> ConfigError:
    if said := where_it_went(key.replace("_", "-")):
        return ConfigError(f"{where}: {said}")
    if any(word in key.lower() for word in SECRETS):
        return ConfigError(
            f"{where}: {key!r} is not allowed in a file: keys are read from the environment only"
        )
    return ConfigError(
        f"{where}: {unknown_name_message('key', key.replace('_', '-'), known, full_value=key)}"
    )


def _convert(setting: SettingOption, value: Any, where: str) -> Any:
    """Check a value by the declaration of the setting, and convert it to the type of its option.
    Raises ConfigError.
    """
    setting.kind.check(where, value, optional=False)
    if isinstance(value, Mapping):
        return value
    try:
        converted = [
            setting.type.convert(each, setting, None)
            for each in (value if setting.multiple else [value])
        ]
    except click.BadParameter as error:
        raise ConfigError(f"{where}: {error.message:.500}") from error
    except ValueError as error:  # not a valid file name
        raise ConfigError(f"{where} must be a path, got {format_value(value)}: {error}") from error
    if setting.key in {"model", "judge"} and any(map(_has_secret, split_names(str(value)))):
        raise _secret_address_error(where)
    return converted if setting.multiple else converted[0]


def _has_secret(name: str) -> bool:
    """Whether the address in the name of a model has a user, a key or a secret parameter."""
    return any(secrets_in_url(name.partition("#")[0]))


def _relative(key: str, value: Any, beside: str) -> Any:
    """Resolve a file that a setting names relative to the file with the settings."""
    if isinstance(value, list):
        return [_relative(key, each, beside) for each in value]
    return rebase_paths(key, value, beside) if isinstance(value, str) and beside != "." else value
