"""The configuration of a gateway: the models, the profiles and the limits, from a TOML file.

    [gateway]              # the process: address, limits, what is kept of requests
    [models.NAME]          # a model, by its URL or by a name such as "openai:gpt-4o-mini": pass/NAME
    [profiles.NAME]        # how requests to refine/NAME are answered: model, graders and the settings of `refine`

Keys are written with hyphens or underscores. Nothing is coerced, and nothing unknown is ignored.
API keys are not allowed in the file: `key-env` names the environment variable that holds one.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from ..base import checks
from ..base.checks import (
    format_value,
    is_number,
    read_error_message,
    unknown_name_message,
)
from ..base.documents import parse_toml, read_small_text
from ..base.jsontext import first_duplicate
from ..base.masking import secrets_in_url
from ..errors import ConfigError
from ..middleware import Budget
from ..models.endpoint_url import parse_base_url, with_version
from ..models.llama_cpp import LocalModel
from ..models.model_names import LOCAL_SERVERS
from ..models.openai_chat import OPENAI_URL
from ..models.registry import connect, openai_url, server_url
from ..session.options import Options
from ..session.panel import resolve_graders
from ..settings import (
    FilePath,
    Flag,
    Instance,
    Keyword,
    Names,
    Number,
    OptionFields,
    Parameters,
    ValueKind,
    WholeNumber,
    removed_setting_message,
    settings_of,
)
from ..storage.secure_files import data_dir
from .field_tables import PRICED_FIELDS, PRICED_PARTS

ModelKind: TypeAlias = Literal["openai", "anthropic"]
RefineTurns: TypeAlias = Literal["final", "all", "none"]
StoreLevel: TypeAlias = Literal["off", "metadata", "full"]
DEFAULT_PORT = 8484  # none of the ports that `discovery` asks for models


@dataclass(frozen=True)
class ServedModel:
    """A model behind the gateway, in the table [models.NAME]; `pass/NAME` for clients.

    `url` is its base URL ("http://127.0.0.1:8080/v1"; LOCAL and a path for a file), `kind` the
    protocol that it speaks, `model` its name there; `key_env` the environment variable with its
    key. `prices`: USD for a million input and output tokens; None: by its name, else unknown.
    `context_window`, `image_tokens`: the most tokens of a prompt and of an image; None: by its
    name. `field_prices`, `tool_prices`: USD that a field, or a tool which the provider runs, may
    add to one call. `params`: parameters of its calls where an answer is refined, whatever its role
    (see `redraft.base.parameters`).
    `owner`: the name of the only API key of the gateway that may use `pass/NAME`, and with it what
    the provider stores; None: all keys may use it, and nothing that is stored.
    """

    name: str
    url: str
    model: str
    kind: ModelKind = "openai"
    key_env: str | None = None
    prices: tuple[float, float] | None = None
    timeout: float = 600.0
    context_window: int | None = None
    image_tokens: int | None = None
    field_prices: Mapping[str, float] = field(default_factory=dict, hash=False)
    tool_prices: Mapping[str, float] = field(default_factory=dict, hash=False)
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)
    owner: str | None = None


@dataclass(frozen=True)
class Retention:
    """What the gateway keeps of requests: `level`, for how many days at most, and how many
    megabytes at most.
    """

    level: StoreLevel = "metadata"
    days: float = 30.0
    megabytes: float = 1000.0


@dataclass(frozen=True)
class Profile:
    """How requests to `refine/NAME` are answered, in the table [profiles.NAME].

    `model`, `judge`: the name of a table [models.NAME], or a name that `connect` takes; "none" for
    no judge. `settings`: those of `refine`, by name. `required_graders`: graders of every answer,
    whatever a request names. `maximum`: the largest values of `target_score` and `max_iterations`
    that a request may choose. `pass_through`: texts; a request with one of them in a message of the
    system, or whose last message of the user is one, is passed on unrefined (titles and tags of
    chat interfaces). `candidates`: how many answers are compared in a turn that calls tools; 1: the
    call is passed on.
    """

    name: str
    model: str
    judge: str | Literal[False] | None = None
    graders: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    maximum: Mapping[str, float] = field(default_factory=dict)
    refine: RefineTurns = "final"
    pass_through: tuple[str, ...] = ()
    candidates: int = 1
    retention: Retention = Retention()
    required_graders: tuple[str, ...] = ()


@dataclass(frozen=True)
class GatewayLimits:
    """The limits of a gateway: requests at work and waiting, seconds for a request and for the end,
    bytes of a body.

    `max_answers`: bytes of the answers that all requests at work hold.
    """

    max_concurrent: int = 256
    max_queue: int = 1024
    queue_seconds: float = 30.0
    deadline: float = 600.0
    drain_seconds: float = 60.0
    max_body: int = 8 * 2**20
    max_answers: int = 512 * 2**20


@dataclass(frozen=True)
class GatewayConfig:
    """A gateway. `folder` holds what it stores: its keys and their budgets (gateway.db) and its
    traces (gateway.journal).

    `allowed_hosts`: names besides its own that a Host header may have; `allowed_origins`: pages
    that may call it (CORS). `log_content`: whether the access log contains prompts and answers.
    """

    folder: Path
    models: Mapping[str, ServedModel] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    limits: GatewayLimits = GatewayLimits()
    passed_retention: Retention = Retention()
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    require_keys: bool | None = None
    log_content: bool = False


@dataclass(frozen=True)
class NonBlankText:
    """A text that is not blank."""

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        """Raise ConfigError for anything else. None is allowed if `optional`."""
        checks.text(name, value, optional=optional)


LOCAL = "local:"  # begins the URL of a model in a file, before its server has a port
SECRET_WORDS = ("key", "token", "secret", "password", "authorization", "headers")
MEGABYTE = 2**20
MAX_PROFILES = 1000
MAX_TOKENS = 1_000_000_000
ANTHROPIC_URL = "https://api.anthropic.com/v1"
ANYTHING = Instance("a value")
POSITIVE = Number(exclusive=True)
PRICE = Number(0, 1_000_000)
PRICEABLE = (*PRICED_FIELDS, *PRICED_PARTS)
COUNT = WholeNumber(1, 1_000_000)

RETENTION_KEYS: Mapping[str, ValueKind] = {
    "store": Keyword(get_args(StoreLevel)),
    "keep-days": POSITIVE,
    "keep-mb": POSITIVE,
}
LIMIT_KEYS: Mapping[str, ValueKind] = {
    "max-concurrent": COUNT,
    "max-queue": WholeNumber(0, 1_000_000),
    "queue-seconds": POSITIVE,
    "deadline": POSITIVE,
    "drain-seconds": Number(),
    "max-body-mb": Number(0, 1024, exclusive=True),
    "max-answers-mb": Number(0, 1_000_000, exclusive=True),
}
PLACE_KEYS: Mapping[str, ValueKind] = {
    "host": NonBlankText(),
    "port": WholeNumber(0, 65_535),
    "folder": FilePath("folder"),
    "allowed-hosts": Names('["gateway.example.org"]'),
    "allowed-origins": Names('["https://chat.example.org"]'),
    "require-keys": Flag(),
    "log-content": Flag(),
}
MODEL_KEYS: Mapping[str, ValueKind] = {
    "url": NonBlankText(),
    "kind": Keyword(get_args(ModelKind)),
    "model": NonBlankText(),
    "key-env": NonBlankText(),
    "prices": ANYTHING,
    "timeout": POSITIVE,
    "context-window": WholeNumber(1, MAX_TOKENS),
    "image-tokens": WholeNumber(0, MAX_TOKENS),
    "field-prices": ANYTHING,
    "tool-prices": ANYTHING,
    "params": Parameters(),
    "owner": NonBlankText(),
}
PROFILE_KEYS: Mapping[str, ValueKind] = {
    "model": NonBlankText(),
    "judge": NonBlankText(),
    "graders": ANYTHING,
    "required-graders": ANYTHING,
    "maximum": ANYTHING,
    "refine": Keyword(get_args(RefineTurns)),
    "pass-through": Names('["Generate a title"]'),
    "candidates": WholeNumber(1, 16),
    "model-param": Parameters(),
    "judge-param": Parameters(),
    **RETENTION_KEYS,
}
MAXIMUM_KEYS: Mapping[str, ValueKind] = {
    "target-score": Number(0, 1),
    "max-iterations": WholeNumber(0, 1000),
}
BUDGET_KEYS: Mapping[str, ValueKind] = {
    "usd": Number(),
    "calls": WholeNumber(0),
    "tokens": WholeNumber(0),
    "input-tokens": WholeNumber(0),
    "output-tokens": WholeNumber(0),
}
PROFILE_SETTINGS = {
    name: info for name, info in settings_of(OptionFields).items() if info.in_profiles
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_TOOL_TYPE = re.compile(r"[\w.:-]{1,64}", re.ASCII)


def load_config(path: str | Path, env: Mapping[str, str]) -> GatewayConfig:
    """Read the configuration in a file. Relative paths in it begin at its folder.

    `env` is the environment that holds the keys of the models. Raises ConfigError naming the file,
    the key and what is allowed.
    """
    table = _read_toml(path)
    try:
        return parse_config(table, Path(path).absolute().parent, env)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_config(table: Mapping[str, Any], beside: Path, env: Mapping[str, str]) -> GatewayConfig:
    """Return the configuration in a table. Relative paths begin at the folder `beside`. Raises
    ConfigError.
    """
    _read_table("", table, {}, ("gateway", "models", "profiles"))
    values = _read_table(
        "gateway", table.get("gateway", {}), {**PLACE_KEYS, **LIMIT_KEYS, **RETENTION_KEYS}
    )
    folder = (
        beside / Path(values.pop("folder")).expanduser() if "folder" in values else default_folder()
    )
    limits, retention = _limits(values), _retention(values, Retention())
    models = {
        name: _served_model(name, each, env, beside)
        for name, each in _named_tables("models", table).items()
    }
    _check_owners(models)
    profiles = {
        name: _profile(name, each, models, beside, retention)
        for name, each in _named_tables("profiles", table).items()
    }
    if not models and not profiles:
        raise ConfigError("there is no model: add a table such as [models.small] with its url")
    places: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    return GatewayConfig(
        folder, models, profiles, limits=limits, passed_retention=retention, **places
    )


def default_config(
    model: str,
    env: Mapping[str, str],
    *,
    judge: str | None = None,
    settings: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> GatewayConfig:
    """Return the configuration for one model with a name that `connect` takes: refine/default and
    pass/default.
    """
    served = served_model("default", model, env)
    profile = Profile(
        "default", served.name, False if judge == "none" else judge, settings=settings or {}
    )
    return GatewayConfig(folder or default_folder(), {served.name: served}, {profile.name: profile})


def configured_folder(path: str | Path) -> Path:
    """Return the folder of the gateway that a file configures. It does not read the rest. Raises
    ConfigError.
    """
    values = _read_toml(path).get("gateway", {})
    folder = values.get("folder") if isinstance(values, Mapping) else None
    if folder is None:
        return default_folder()
    if not isinstance(folder, str):
        raise ConfigError(
            f"{path}: gateway.folder must be the path of a folder, got {format_value(folder)}"
        )
    return Path(path).absolute().parent / Path(folder).expanduser()


def configured_names(path: str | Path) -> list[str]:
    """Return the names that clients use for what a file configures. It does not check the rest.
    Raises ConfigError.
    """
    table = _read_toml(path)
    kinds = (("profiles", "refine/"), ("models", "pass/"))
    return [prefix + name for kind, prefix in kinds for name in _named_tables(kind, table)]


def _read_toml(path: str | Path) -> Mapping[str, Any]:
    try:
        return parse_toml(read_small_text(path))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read as a configuration: {read_error_message(error)}"
        ) from error


def default_folder() -> Path:
    """Return the folder in which a gateway stores its data if the configuration names none."""
    return data_dir() / "gateway"


def served_model(
    name: str, model: str, env: Mapping[str, str], beside: Path = Path()
) -> ServedModel:
    """Return the model behind `pass/NAME` for a name that `connect` takes, if it has an address.
    Raises ConfigError.

    `beside`: where the relative path of a local file begins.
    """
    prefix, _, rest = model.strip().partition(":")
    if prefix == "local" and rest:
        path = LocalModel(beside / Path(rest).expanduser()).path
        return ServedModel(name, f"{LOCAL}{path}", path.stem, prices=(0.0, 0.0))
    if prefix in {"http", "https"} and rest.startswith("//"):
        connect(model.strip(), env=env)
        url, _, at_url = model.strip().partition("#")
        return ServedModel(name, with_version(_checked_url("model", url)), at_url)
    if prefix == "openai" and rest:
        url = openai_url(env)
        needs_key = url == OPENAI_URL or bool(env.get("OPENAI_API_KEY"))
        return ServedModel(name, url, rest, key_env="OPENAI_API_KEY" if needs_key else None)
    if prefix == "anthropic" and rest:
        return ServedModel(
            name,
            env.get("ANTHROPIC_BASE_URL", "").strip() or ANTHROPIC_URL,
            rest,
            "anthropic",
            "ANTHROPIC_API_KEY",
        )
    if prefix in LOCAL_SERVERS and rest:
        return ServedModel(name, server_url(prefix, env), rest)
    allowed = ", ".join(f"{each}:NAME" for each in ("openai", "anthropic", *LOCAL_SERVERS))
    raise ConfigError(
        f"model must be {allowed}, local:FILE.gguf or http://HOST:PORT/v1#NAME, got "
        f"{format_value(model)}"
    )


def _named_tables(kind: str, table: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the tables [kind.NAME]."""
    tables = table.get(kind, {})
    if not isinstance(tables, Mapping) or not all(
        isinstance(each, Mapping) for each in tables.values()
    ):
        raise ConfigError(
            f"{kind} must be tables such as [{kind}.small], got {format_value(tables)}"
        )
    if len(tables) > MAX_PROFILES:
        raise ConfigError(f"{kind} holds {len(tables):,} tables; at most {MAX_PROFILES:,}")
    for name in tables:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"[{kind}.{name[:80]}]: a name consists of at most 64 letters, digits, '-', '_' "
                "and '.'"
            )
    return dict(tables)


def _read_table(
    where: str, table: Any, kinds: Mapping[str, ValueKind], others: Collection[str] = ()
) -> dict[str, Any]:
    """Return the values of a table, checked, by their keys with underscores. Keys in `others` are
    left out.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table, got {format_value(table)}")
    values: dict[str, Any] = {}
    if twice := first_duplicate(name.replace("_", "-") for name in table):
        raise ConfigError(f"{where}.{twice} is given twice, with a hyphen and with an underscore")
    for name, value in table.items():
        key = name.replace("_", "-")
        if key in kinds:
            kinds[key].check(f"{where}.{name}", value, optional=False)
            values[key.replace("-", "_")] = value
        elif key.replace("-", "_") not in others:
            known = (*kinds, *(each.replace("_", "-") for each in others))
            raise _unknown_key_error(f"{where}.{name[:80]}".lstrip("."), name, known)
    return values


def _unknown_key_error(where: str, name: str, known: Collection[str]) -> ConfigError:
    """Return the error for a key that a table does not have. Its value is not shown: it may be an
    API key.
    """
    if any(word in name.lower() for word in SECRET_WORDS):
        return ConfigError(
            f"{where} is not allowed in a file: key-env names the environment variable with the key"
        )
    key = name.replace("_", "-")
    problem = removed_setting_message(key) or unknown_name_message(
        "key", key, known, full_value=name
    )
    return ConfigError(f"{where}: {problem}")


def _limits(values: dict[str, Any]) -> GatewayLimits:
    """Take the limits out of the values of [gateway]."""
    for name in ("max_body", "max_answers"):
        if f"{name}_mb" in values:
            values[name] = int(values.pop(f"{name}_mb") * MEGABYTE)
    return GatewayLimits(
        **{
            each.name: values.pop(each.name)
            for each in fields(GatewayLimits)
            if each.name in values
        }
    )


def _retention(values: dict[str, Any], default: Retention) -> Retention:
    """Take what is kept of requests out of the values of a table. Those of [gateway] are the
    default of the profiles.
    """
    names = {"store": "level", "keep_days": "days", "keep_mb": "megabytes"}
    return replace(
        default, **{to: values.pop(name) for name, to in names.items() if name in values}
    )


def _served_model(
    name: str, table: Mapping[str, Any], env: Mapping[str, str], beside: Path
) -> ServedModel:
    where = f"models.{name}"
    values = _read_table(where, table, MODEL_KEYS)
    prices = _prices(f"{where}.prices", values.pop("prices", None))
    for key in ("field-prices", "tool-prices"):
        field_name = key.replace("-", "_")
        values[field_name] = _prices_by_name(f"{where}.{key}", values.get(field_name, {}))
    if "url" in values:
        served = ServedModel(
            name, _checked_url(f"{where}.url", values.pop("url")), values.pop("model", name)
        )
    elif "model" in values:
        try:
            served = served_model(name, values.pop("model"), env, beside)
        except ConfigError as error:
            raise ConfigError(f"{where}.{error}; for any other model give its url, too") from None
    else:
        raise ConfigError(
            f"{where} needs url, such as 'http://127.0.0.1:8080/v1', or model, such as "
            "'openai:gpt-4o-mini'"
        )
    served = replace(served, prices=prices or served.prices, **values)
    if served.key_env is not None:
        _check_key(f"{where}.key-env", served.key_env, env)
    return served


def _check_owners(models: Mapping[str, ServedModel]) -> None:
    """Check that who owns a model shares the provider's key with no other client, who could read
    what is stored there.
    """
    accounts: dict[tuple[str | None, str], ServedModel] = {}
    for model in models.values():
        account = (model.key_env, "" if model.key_env else model.url)
        other = accounts.setdefault(account, model)
        if other.owner != model.owner:
            owned, open_to = (model, other) if model.owner else (other, model)
            key = f"the key in {model.key_env}" if model.key_env else "the server"
            raise ConfigError(
                f"models.{owned.name}.owner: models.{open_to.name} uses {key}, too: give one of "
                "them a key of its own, or both the same owner"
            )


def _checked_url(where: str, url: str) -> str:
    """Return the base URL of a model, which holds no key."""
    try:
        base, key = parse_base_url(url)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if key or any(secrets_in_url(url)):
        raise ConfigError(
            f"{where} must not contain a user or a key: key-env names the environment variable "
            "with the key"
        )
    return base.geturl()


def _check_key(where: str, variable: str, env: Mapping[str, str]) -> None:
    """Check that an environment variable holds a key. Its name is shown only if it can be no key:
    in capitals.
    """
    if not _VARIABLE.fullmatch(variable):
        raise ConfigError(
            f"{where} must be the name of an environment variable, such as 'OPENAI_API_KEY'; in "
            "capitals, not a key"
        )
    if not env.get(variable, "").strip():
        raise ConfigError(f"{where}: the environment variable {variable} is not set")


def _prices(where: str, value: Any) -> tuple[float, float] | None:
    """Return USD for a million input and output tokens."""
    if value is None:
        return None
    if isinstance(value, Mapping) and set(value) == {"input", "output"}:
        value = [value["input"], value["output"]]
    if not (
        isinstance(value, list)
        and len(value) == 2
        and all(is_number(price) and price >= 0 for price in value)
    ):
        raise ConfigError(
            f"{where} must be USD per million input and output tokens, such as [0.15, 0.6], got "
            f"{format_value(value)}"
        )
    return float(value[0]), float(value[1])


def _prices_by_name(where: str, table: Any) -> dict[str, float]:
    """Return USD by the names of fields, which are known, or by the types of tools, which providers
    invent.
    """
    is_tool = where.endswith("tool-prices")
    if not isinstance(table, Mapping):
        raise ConfigError(
            f"{where} must be a table of prices in USD for one call, got {format_value(table)}"
        )
    for name, price in table.items():
        if not is_tool and name not in PRICEABLE:
            raise ConfigError(f"{where}: {unknown_name_message('field', name, PRICEABLE)}")
        if is_tool and not _TOOL_TYPE.fullmatch(name):
            raise ConfigError(
                f"{where}: the type of a tool is a name such as 'web_search', got "
                f"{format_value(name)}"
            )
        PRICE.check(f"{where}.{name}", price, optional=False)
    return {name: float(price) for name, price in table.items()}


def _profile(
    name: str,
    table: Mapping[str, Any],
    models: Mapping[str, ServedModel],
    beside: Path,
    default: Retention,
) -> Profile:
    where = f"profiles.{name}"
    values = _read_table(where, table, PROFILE_KEYS, PROFILE_SETTINGS)
    own = {key.replace("-", "_"): value for key, value in table.items()}
    settings = {key: value for key, value in own.items() if key in PROFILE_SETTINGS}
    if values.get("judge") == "none":
        values["judge"] = False
    for role in ("model", "judge"):
        _check_role(
            f"{where}.{role}",
            values.get(role),
            models,
            optional=role == "judge" or len(models) == 1,
        )
    model = values.pop("model", None) or next(iter(models))
    maximum = _read_table(f"{where}.maximum", values.pop("maximum", {}), MAXIMUM_KEYS)
    graders = _graders(f"{where}.graders", values.pop("graders", None))
    required = _graders(f"{where}.required-graders", values.pop("required_graders", None)) or ()
    passing = tuple(values.pop("pass_through", ()))
    settings |= {
        f"{name}s": values.pop(name) for name in ("model_param", "judge_param") if name in values
    }
    if required and (passing or values.get("refine") == "none"):
        avoiding = "pass-through" if passing else "refine = 'none'"
        raise ConfigError(
            f"{where}.required-graders and {avoiding} exclude each other: an answer that is not "
            "refined is not graded"
        )
    retention = _retention(values, default)
    return Profile(
        name,
        model,
        graders=graders,
        required_graders=required,
        settings=_settings(where, settings, beside),
        maximum=maximum,
        pass_through=passing,
        retention=retention,
        **values,
    )


def _check_role(
    where: str,
    value: str | Literal[False] | None,
    models: Mapping[str, ServedModel],
    *,
    optional: bool,
) -> None:
    """Check the model of a role: the name of a table, or a name that `connect` takes, which has a
    colon or a slash.
    """
    if not value and optional:
        return
    if not value:
        raise ConfigError(
            f"{where} is missing: name one of the models {', '.join(models) or '(there are none)'}"
        )
    if value in models:
        return
    if ":" not in value and "/" not in value:
        raise ConfigError(f"{where}: {unknown_name_message('model', value, models)}")
    if "://" in value:
        _checked_url(where, value.partition("#")[0])


def _graders(where: str, value: Any) -> tuple[str, ...] | None:
    """Return names of graders and specs of requirements. They are looked up now, so that a mistake
    is found at the start.
    """
    if value is None:
        return None
    specs = [value] if isinstance(value, str) else value
    if (
        not isinstance(specs, list)
        or not specs
        or not all(isinstance(each, str) and each.strip() for each in specs)
    ):
        raise ConfigError(
            f"{where} must be a list of names such as ['judge', 'words:80-200'], got "
            f"{format_value(value)}"
        )
    try:
        resolve_graders((), specs, has_model=True)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return tuple(specs)


def _settings(where: str, given: Mapping[str, Any], beside: Path) -> dict[str, Any]:
    """Return the settings of `refine` in a profile, checked. Files are found from the folder of the
    configuration.
    """
    settings = dict(given)
    if settings.get("sandbox") == "unsafe":
        raise ConfigError(
            f"{where}.sandbox must not be unsafe: the gateway runs code that others send"
        )
    if "budget" in settings:
        limits = _read_table(f"{where}.budget", settings["budget"], BUDGET_KEYS)
        settings["budget"] = Budget(**limits)
    if not isinstance(settings.get("editor", True), bool):
        raise ConfigError(
            f"{where}.editor must be true or false, got {format_value(settings['editor'])}"
        )
    for name, info in PROFILE_SETTINGS.items():
        if info.names_file and name in settings:
            info.kind.check(f"{where}.{name}", settings[name], optional=False)
            settings[name] = beside / Path(settings[name]).expanduser()
    if str(settings.get("priors", "")).endswith(".json"):
        settings["priors"] = beside / Path(settings["priors"]).expanduser()
    try:
        Options.from_settings(settings)  # type: ignore[arg-type]
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return settings
