"""The options of a judge in a spec, "RUBRIC,OPTION=VALUE,...": settings of its own, and parameters
of its calls.

What is no setting is a parameter, such as `max_tokens=8192` or `reasoning_effort=low`; a name that
is almost that of a setting is taken for a slip. A value has no comma.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import PurePath
from re import fullmatch
from typing import Any

from ..base.parameters import (
    SAMPLING,
    check_parameters,
    merge_parameters,
    parse_parameter,
)
from ..errors import ConfigError
from .computed.base import parse_options
from .judging.pointwise import CriteriaMode, Scoring

FILE_SUFFIXES = (".toml", ".json", ".yaml", ".yml", ".md", ".txt")  # of rubrics and questions
PYTHON_ARGUMENTS = {
    *(
        "images",
        "instruction",
        "max_group_size",
        "name",
        "params",
        "questions",
        "read",
        "reads_tool_calls",
        "rubric",
        "scale",
    ),
    "template",
}
"""Arguments of judges that no spec has, and no endpoint as a parameter."""
SLIP = 0.85  # similarity of two names from which on one is taken for the other


@dataclass(frozen=True)
class JudgeSettings:
    """The settings that can be written after the name of any judge."""

    max_eval_chars: int = 32_768


@dataclass(frozen=True)
class PointwiseSettings(JudgeSettings):
    """Those of a judge that scores one answer."""

    scoring: Scoring = "written"
    criteria_mode: CriteriaMode = "together"


def split_options(argument: str) -> tuple[str, list[str]]:
    """Return what is no option in the argument of a judge, and the options. The name of a file may
    hold an equals sign.
    """
    parts = [part.strip() for part in argument.split(",")]
    options = [part for part in parts if is_option(part)]
    return ",".join(part for part in parts if part not in options), options


def is_option(part: str) -> bool:
    """Whether a part of the argument is an option, and no name of a file."""
    return (
        bool(fullmatch(r"[\w-]+(\.[\w-]+)*\s*=.*", part))
        and PurePath(part).suffix.lower() not in FILE_SUFFIXES
    )


def option_values(
    name: str, options: list[str], settings: type[JudgeSettings] = JudgeSettings
) -> dict[str, Any]:
    """Return the arguments of a judge that options give; `name` is that of the grader. Raises
    ConfigError.
    """
    own = settings.__dataclass_fields__
    keys = {option: option.partition("=")[0].strip() for option in options}
    given = [option for option in options if keys[option] in own]
    try:
        values = {
            key: value
            for key, value in asdict(parse_options(settings, ",".join(given))).items()
            if key in keys.values()
        }
        params: dict[str, Any] = {}
        for option in options:
            if option in given:
                continue
            if keys[option] in PointwiseSettings.__dataclass_fields__:
                raise ConfigError(f"{option!r} is for judges that score one answer")
            if keys[option] in PYTHON_ARGUMENTS:
                raise ConfigError(
                    f"{option!r} is not an option: {keys[option]} is an argument in Python"
                )
            if keys[option] not in SAMPLING and (
                meant := get_close_matches(keys[option], (*own, *SAMPLING), 1, SLIP)
            ):
                raise ConfigError(f"{option!r} is not an option; did you mean {meant[0]}=...?")
            params = merge_parameters(params, parse_parameter(option))
        check_parameters("params", params)
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"grader {name!r}: {error}") from None
    return values | ({"params": params} if params else {})
