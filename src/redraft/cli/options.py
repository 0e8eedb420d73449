"""The options that commands share. The options of settings are generated from the declarations in `redraft.settings`.

Every command module imports this one, also to show help, so it imports nothing slow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import reduce
from math import isfinite
from typing import Any, Self, TypeVar, cast

import click
from click.core import ParameterSource

from ..settings import (
    MAX_ROWS,
    FilePath,
    Flag,
    Keyword,
    Keywords,
    Number,
    OptionFields,
    SettingInfo,
    Settings,
    WholeNumber,
    info_of,
)
from .config import SettingOption

F = TypeVar("F", bound=Callable[..., Any])
READABLE = click.Path(exists=True, dir_okay=False, allow_dash=True)
WHOLE, COUNT = click.IntRange(0), click.IntRange(1)
POSITIVE = click.FloatRange(0)


def setting(*names: str, **attributes: Any) -> Callable[[F], F]:
    """Declare an option that can also be set in the environment and in configuration files."""
    return click.option(*names, cls=SettingOption, **attributes)


def group(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Combine several decorators; the first one is applied last, as if it stood on top."""
    return lambda command: reduce(lambda result, decorate: decorate(result), reversed(decorators), command)


def setting_options(declaration: type, *names: str, **defaults: Any) -> Callable[[F], F]:
    """Generate the options of these settings, in this order. `defaults` replace the declared defaults."""
    by_name = {field.name: field for field in fields(declaration)}
    selected = [by_name[name] for name in names]
    return group(*(_option(f.name, defaults.get(f.name, f.default), info_of(f)) for f in selected))


def _option(name: str, default: Any, info: SettingInfo) -> Callable[[F], F]:
    """Generate the option of one setting."""
    flag = f"--{name.replace('_', '-')}"
    flags = [f"-{name}", name] if len(name) == 1 else [flag]
    attributes: dict[str, Any] = {"help": info.help, "metavar": info.metavar, "default": default}
    match info.kind:
        case Flag():
            flags = [f"{flag}/--no-{flag[2:]}"]
        case WholeNumber(least, most):
            limit = None if most == MAX_ROWS else most  # help does not mention a limit that no file reaches
            attributes["type"] = click.IntRange(least, limit) if least is not None else int
        case Number(least, most, exclusive):
            attributes["type"] = click.FloatRange(least, most if isfinite(most) else None, min_open=exclusive)
        case Keyword(choices):
            attributes["type"] = click.Choice(choices)
        case Keywords(choices):
            attributes |= {"type": click.Choice(choices), "multiple": True}
        case FilePath(what):
            attributes["type"] = click.Path(file_okay=what == "file", dir_okay=what == "folder")
        case _ if isinstance(default, bool):
            flags = [f"{flag}/--no-{flag[2:]}"]
    if default not in (None, ()) and not isinstance(default, bool):
        attributes["show_default"] = True
    return setting(*flags, **attributes) if info.in_files else click.option(*flags, **attributes)


def _debug(ctx: click.Context, param: click.Parameter, on: bool) -> None:
    if on:
        os.environ["REDRAFT_DEBUG"] = "1"


debug = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_debug, is_eager=True, help="Show a traceback with an error."
)

as_json = click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout.")

journal = click.option(
    "--journal",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Look in this journal. Default: all *.journal in this folder.",
)

grading = group(
    setting(
        "--require",
        multiple=True,
        metavar="SPEC",
        help="A requirement that the answer must meet, such as words:80-200 (repeatable; `redraft graders` lists them all).",
    ),
    setting(
        "--grader",
        multiple=True,
        metavar="NAME",
        help="A grader that scores the answer: a name that `redraft graders` lists, or a SPEC (repeatable).",
    ),
    setting(
        "--rubric",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="Score the answer with an LLM judge by the criteria in FILE.",
    ),
    setting_options(OptionFields, "require_validated", "cards_dir"),
)

asking = group(
    setting(
        "--model",
        metavar="MODEL",
        help="The model that writes, such as openai:gpt-4o-mini or ollama:llama3.2, or none. Default: look for one.",
    ),
    setting("--judge", metavar="MODEL", help="The model that judges. Default: the model that writes."),
)

PLAN_SETTINGS = (
    "target_score",
    "max_iterations",
    "patience",
    "min_delta",
    "drafts",
    "min_expected_gain",
    "cost_unit",
    "priors",
    "noise_aware",
    "tie_break",
)
NOISE_AWARE_ONLY = ("min_expected_gain", "cost_unit", "priors", "tie_break")
stopping = setting_options(OptionFields, *PLAN_SETTINGS)
editing = setting_options(OptionFields, "editor")
cards_dir = setting_options(OptionFields, "cards_dir")


def check_noise_aware(ctx: click.Context) -> None:
    """Raise UsageError for options that have no effect with --no-noise-aware. Defaults from files are ignored instead."""
    source = ctx.get_parameter_source
    given = [name for name in NOISE_AWARE_ONLY if source(name) is ParameterSource.COMMANDLINE and ctx.params[name]]
    if ctx.params["noise_aware"] is False and given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(
            f"--no-noise-aware takes scores as exact, so {flags} would have no effect: leave out one or the other"
        )


def parse_price(text: str) -> tuple[str, tuple[float, float]]:
    """Parse `MODEL=IN,OUT` into the model and its price. Raises ValueError."""
    model, _, amounts = text.rpartition("=")
    read, written = map(float, amounts.split(","))
    if not model.strip() or not all(isfinite(amount) and amount >= 0 for amount in (read, written)):
        raise ValueError(text)
    return model.strip(), (read, written)


def _check_price(text: str) -> str:
    """Check a model with its price, and return it as text: settings are saved as text."""
    try:
        parse_price(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a price: give MODEL=IN,OUT in USD per million tokens, such as llama3.2=0.1,0.4"
        ) from None
    return text


spending = group(
    setting("--budget-usd", type=POSITIVE, metavar="USD", help="Maximum cost in USD."),
    setting("--budget-calls", type=WHOLE, metavar="N", help="Maximum number of model calls."),
    setting("--budget-tokens", type=WHOLE, metavar="N", help="Maximum number of tokens, input and output together."),
    setting_options(OptionFields, "deadline"),
    setting(
        "--price",
        type=_check_price,
        multiple=True,
        metavar="MODEL=IN,OUT",
        help="Price of a model in USD per million input and output tokens (repeatable).",
    ),
)
timeout = setting_options(OptionFields, "timeout")
sampling = setting_options(OptionFields, "temperature", "max_tokens", "seed")

COLUMN_ROLES = (
    "prompt",
    "messages",
    "response",
    "id",
    "system",
    "reference",
    "context",
    "tests",
    "requirements",
    "tools",
    "tool_choice",
)


def _check_columns(texts: Iterable[str]) -> tuple[str, ...]:
    """Check columns given as ROLE=NAME. Raises BadParameter."""
    for text in texts:
        role, sign, _ = text.partition("=")
        if not sign or role.replace("-", "_") not in COLUMN_ROLES:
            raise click.BadParameter(f"{text!r} is not ROLE=NAME; ROLE is one of {', '.join(COLUMN_ROLES)}")
    return tuple(texts)


columns = setting(
    "--column",
    "-c",
    multiple=True,
    callback=lambda _ctx, _param, texts: _check_columns(texts),
    metavar="ROLE=NAME",
    help="The column with that role (repeatable), if its name does not say so: prompt, messages, response, id, system, reference, "
    "context, tests (of code: shown to judges, never run), requirements, tools or tool_choice.",
)


class DefaultGroup(click.Group):
    """A group that runs its `default` command when none is named."""

    def __init__(self, *args: Any, default: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the name of the default command before options without a command."""
        has_command = bool(args) and (not args[0].startswith("-") or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if has_command else [self.default, *args])


@dataclass(frozen=True, kw_only=True)
class SharedArguments:
    """The values of the options that all commands with graders share. `settings` are those of `redraft.options.Options`."""

    require: tuple[str, ...] = ()
    grader: tuple[str, ...] = ()
    rubric: Any = None
    model: str | None = None
    judge: str | None = None
    budget_usd: float | None = None
    budget_calls: int | None = None
    budget_tokens: int | None = None
    price: tuple[str, ...] = ()
    as_json: bool = False
    settings: Settings

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Create the arguments of a command from the values that click parsed."""
        settings = values_of(OptionFields, values)
        own = {name: value for name, value in values.items() if name not in settings}
        return cls(**own, settings=cast("Settings", settings))


def values_of(declaration: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values that are settings of a declaration."""
    return {f.name: values[f.name] for f in fields(declaration) if f.name in values}
