"""The options that commands share. The options of settings are generated from the declarations in
`redraft.settings`.

Every module in `commands` imports this one, also to show help, so it imports nothing slow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial, reduce
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from ..settings import (
    MAX_ROWS,
    BatchFields,
    EndpointLimits,
    FilePath,
    Flag,
    Keyword,
    Keywords,
    Names,
    Number,
    OptionFields,
    PlanSettings,
    PromptSource,
    SettingInfo,
    WholeNumber,
    info_of,
    names_of,
    settings_of,
)
from .output import note_options

F = TypeVar("F", bound=Callable[..., Any])
READABLE = click.Path(exists=True, dir_okay=False, allow_dash=True)


class WholeRange(click.IntRange):
    """A range of whole numbers, which is also named to who gives no number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            int(value)
        except ValueError:
            self.fail(
                f"{value!r} is not a whole number in the range {self._describe_range()}.",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


class NumberRange(click.FloatRange):
    """A range of numbers, which is also named to who gives no number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            float(value)
        except ValueError:
            self.fail(
                f"{value!r} is not a number in the range {self._describe_range()}.", param, ctx
            )
        return super().convert(value, param, ctx)


WHOLE, COUNT = WholeRange(0), WholeRange(1)
POSITIVE = NumberRange(0)


class SettingOption(click.Option):
    """An option with a default in the environment (REDRAFT_NAME, for those given once) and in
    configuration files.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.multiple and self.envvar is None:
            self.envvar = f"REDRAFT_{self.key.replace('-', '_').upper()}"

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the name of the option for an error message, with the environment variable if the
        value came from there.
        """
        hint = super().get_error_hint(ctx)
        from_environment = (
            ctx is not None
            and ctx.get_parameter_source(self.name or "") is ParameterSource.ENVIRONMENT
        )
        return f"{hint} ({self.envvar} in the environment)" if from_environment else hint

    @property
    def key(self) -> str:
        """The name of the option in files."""
        return max(self.opts, key=len).lstrip("-")


def setting(*names: str, **attributes: Any) -> Callable[[F], F]:
    """Declare an option that can also be set in the environment and in configuration files."""
    return click.option(*names, cls=SettingOption, **attributes)


def combine(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Combine several decorators; the first one is applied last, as if it were the topmost."""
    return lambda command: reduce(
        lambda result, decorate: decorate(result), reversed(decorators), command
    )


def setting_options(
    declaration: type,
    *names: str,
    group: str | None = None,
    callback: Callable[..., Any] | None = None,
    **defaults: Any,
) -> Callable[[F], F]:
    """Generate the options of these settings, in this order; of those of a group that have one, or
    of all, if none is named. `defaults` replace the declared defaults.
    """
    by_name = {field.name: field for field in fields(declaration)}
    shown = [f for f in names_of(declaration, group=group) if info_of(by_name[f]).on_command_line]
    selected = [by_name[name] for name in names or shown]
    more = {"callback": callback} if callback else {}
    return combine(
        *(_option(f.name, defaults.get(f.name, f.default), info_of(f), **more) for f in selected)
    )


def _option(name: str, default: Any, info: SettingInfo, **more: Any) -> Callable[[F], F]:
    """Generate the option of one setting; `more` are further attributes of it."""
    flag = f"--{name.replace('_', '-')}"
    flags = [f"-{name}", name] if len(name) == 1 else [flag]
    attributes: dict[str, Any] = {"help": info.help, "metavar": info.metavar, "default": default}
    if info.present_name:
        attributes["hidden"] = True
    match info.kind:
        case Flag():
            flags = [f"{flag}/--no-{flag[2:]}"]
        case WholeNumber(least, most):
            # help does not mention a limit that no file reaches
            limit = None if most == MAX_ROWS else most
            attributes["type"] = WholeRange(least, limit) if least is not None else int
        case Number(least, most, exclusive):
            attributes["type"] = NumberRange(
                least, most if isfinite(most) else None, min_open=exclusive
            )
        case Keyword(choices):
            attributes["type"] = click.Choice(choices)
        case Keywords(choices):
            attributes |= {"type": click.Choice(choices), "multiple": True}
        case Names():
            attributes["multiple"] = True
        case FilePath(what):
            attributes["type"] = click.Path(file_okay=what == "file", dir_okay=what == "folder")
        case PromptSource():
            attributes["type"] = click.Path(exists=True, dir_okay=False, path_type=Path)
        case _ if isinstance(default, bool):
            flags = [f"{flag}/--no-{flag[2:]}"]
    if default not in (None, ()) and not isinstance(default, bool):
        attributes["show_default"] = True
    attributes |= more
    return setting(*flags, **attributes) if info.in_files else click.option(*flags, **attributes)


def _debug(ctx: click.Context, param: click.Parameter, on: bool) -> None:
    if on:
        os.environ["REDRAFT_DEBUG"] = "1"


def _note_options(ctx: click.Context, param: click.Parameter, value: str) -> None:
    """Note the options of the command, by whose names messages call its arguments."""
    named = [
        param for param in ctx.command.params if isinstance(param, click.Option) and param.name
    ]
    note_options(
        {str(param.name): (max(param.opts, key=len), *param.secondary_opts) for param in named}
    )


def _use_encoding(ctx: click.Context, param: click.Parameter, name: str | None) -> None:
    """Read the tables of this command in an encoding. Raises BadParameter."""
    if name is None:
        return
    from ..tables.text_format import ENCODING, check_encoding

    try:
        ctx.call_on_close(partial(ENCODING.reset, ENCODING.set(check_encoding(name))))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


debug = combine(
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        is_eager=True,
        expose_value=False,
        callback=_note_options,
        help="Write messages as text, or as a JSON object on each line. Default: text.",
    ),
    click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_debug,
        is_eager=True,
        help="Show the traceback of an error.",
    ),
)

as_json = click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout.")

journal = click.option(
    "--journal",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Look in this journal. Default: all *.journal in this folder.",
)

system = click.option("--system", metavar="TEXT", help="A system message.")
background = combine(
    click.option(
        "--context", type=READABLE, metavar="FILE", help="Background material for the judge."
    ),
    click.option(
        "--reference", type=READABLE, metavar="FILE", help="A known good answer for the judge."
    ),
    click.option(
        "--tests",
        type=READABLE,
        metavar="FILE",
        help=(
            "Tests of Python code, which run in a sandbox and grade: JSON, asserts, or a test file."
        ),
    ),
)
port = click.option(
    "--port",
    type=WholeRange(0, 65535),
    default=0,
    metavar="PORT",
    help="Port of 127.0.0.1. Default: any free one.",
)
browser = click.option(
    "--browser/--no-browser",
    default=True,
    help="Open the page in the browser, if stdout is a terminal. Default: yes.",
)
overwrite = click.option("--overwrite", is_flag=True, help="Replace an existing file.")
output = combine(
    click.option(
        "--output",
        "-o",
        type=click.Path(),
        metavar="FILE",
        help="Write the answer to FILE instead of stdout.",
    ),
    overwrite,
)

encoding = click.option(
    "--encoding",
    metavar="NAME",
    expose_value=False,
    callback=_use_encoding,
    help=(
        "Encoding of all tables to read, such as cp1251. Default: that of each is recognised "
        "(UTF-8, UTF-16, Windows-1252)."
    ),
)
label_columns = combine(
    click.option(
        "--column",
        "-c",
        "columns",
        multiple=True,
        metavar="OURS=THEIRS",
        help="Name of a column in the data (repeatable).",
    ),
    encoding,
)


def direction(what: str) -> Callable[[F], F]:
    """Return the options that say which end of a scale is better."""
    return combine(
        click.option(
            "--lower-is-better/--higher-is-better",
            "lower_is_better",
            default=None,
            help=(
                f"Which end is better: of the {what}. Default: higher; it must be stated for "
                "names such as wer, loss or latency."
            ),
        )
    )


label_limit = click.option("--limit", type=COUNT, metavar="N", help="Use only the first N rows.")
judge_calls_in_flight = click.option(
    "--max-in-flight",
    type=COUNT,
    default=16,
    show_default=True,
    metavar="N",
    help="Maximum number of calls in flight.",
)

rubric = setting(
    "--rubric",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Use an LLM judge with the criteria in FILE.",
)
template = setting(
    "--template",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help=(
        "Use an LLM judge with the prompt in FILE: text with {query} and {response}, or TOML "
        "with template, scale and read."
    ),
)
UNSAFE_EXEC = "redraft.unsafe_exec"  # key in a context's `meta`: whether --unsafe-exec is given


def _note_unsafe(ctx: click.Context, param: click.Parameter, on: bool) -> None:
    ctx.meta[UNSAFE_EXEC] = on


def _choose_sandbox(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Return the tier that --unsafe-exec or --sandbox chooses. Raises UsageError for both."""
    if not ctx.meta.get(UNSAFE_EXEC):
        return value
    if ctx.get_parameter_source("sandbox") is ParameterSource.COMMANDLINE and value != "unsafe":
        raise click.UsageError(
            "--unsafe-exec runs code without a sandbox: leave out that option, or --sandbox "
            f"{value}",
            ctx,
        )
    ctx.set_parameter_source("sandbox", ParameterSource.COMMANDLINE)
    return "unsafe"


execution = combine(
    setting_options(OptionFields, "sandbox", callback=_choose_sandbox),
    click.option(
        "--unsafe-exec",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_note_unsafe,
        help=(
            "Run code without a sandbox: with limits of time and memory, and with access to "
            "everything here."
        ),
    ),
    setting_options(OptionFields, *names_of(OptionFields, group="code")[1:]),
)
grading = combine(
    setting(
        "--require",
        multiple=True,
        metavar="SPEC",
        help=(
            "A requirement that the answer must meet, such as words:80-200 (repeatable; `redraft "
            "graders` lists them all)."
        ),
    ),
    setting(
        "--grader",
        multiple=True,
        metavar="NAME",
        help="A grader that scores the answer: a name that `redraft graders` lists, a SPEC, or "
        "code of yours as FILE.py:NAME or MODULE:NAME (repeatable).",
    ),
    rubric,
    template,
    execution,
    setting_options(OptionFields, group="cards"),
)


class ParameterType(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A parameter as NAME=VALUE, or parameters as a table of a file."""

    name = "parameter"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the parameter by its name. Raises ConfigError for one that no model may be
        given.
        """
        if isinstance(value, Mapping):
            return value
        from ..base.parameters import check_parameters, parse_parameter

        try:
            parameter = parse_parameter(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        check_parameters(max(param.opts, key=len) if param else self.name, parameter)
        return parameter


def _merge_parameters(
    ctx: click.Context, param: click.Parameter, typed: tuple[Mapping[str, Any], ...]
) -> dict[str, Any] | None:
    """Return the parameters of the command line over those of files; None without any."""
    from ..base.parameters import merge_parameters

    is_typed = ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    from_files = (ctx.lookup_default(str(param.name)) or ()) if is_typed else ()
    return merge_parameters(*from_files, *typed) or None


def _parameters(option: str, help: str) -> Callable[[F], F]:
    return setting(
        option,
        type=ParameterType(),
        multiple=True,
        callback=_merge_parameters,
        metavar="NAME=VALUE",
        help=help,
    )


params = combine(
    _parameters(
        "--model-param",
        "A further parameter of the model that writes, such as top_p=0.9 or "
        "chat_template_kwargs.enable_thinking=false (repeatable).",
    ),
    _parameters(
        "--judge-param",
        "A parameter of the model that judges, such as reasoning_effort=low or max_tokens=8192 "
        "(repeatable). If the model that writes judges, those of --model-param are its own, too.",
    ),
)
models = combine(
    setting(
        "--model",
        metavar="MODEL",
        help="The model that writes, such as openai:gpt-4o-mini or ollama:llama3.2, or none. Of "
        "several, separated by commas, the next answers while those before it are out of "
        "service. Default: look for one.",
    ),
    setting(
        "--judge",
        metavar="MODEL",
        help="The model that judges, also beside requirements, or none. Default: the (first) model "
        "that writes judges if a grader asks a judge, or if no grader, requirement, test or "
        "form of the answer is named.",
    ),
    params,
)

answer = combine(
    setting(
        "--answer",
        metavar="TYPE",
        help=(
            "The form of the answer: code:LANGUAGE, or a type such as module:Class or "
            "file.py:Class, which runs that code."
        ),
    ),
    setting(
        "--schema",
        metavar="FILE",
        help="The form of the answer: JSON that follows the JSON schema in FILE.",
    ),
)

plan = setting_options(PlanSettings)
draft_prompt = setting_options(OptionFields, "draft_prompt")
editor = setting_options(OptionFields, group="editor")
cards_dir = setting_options(OptionFields, "cards_dir")


def check_noise_aware(ctx: click.Context) -> None:
    """Raise UsageError for options that have no effect with --no-noise-aware. Defaults from files
    are ignored instead.
    """
    source = ctx.get_parameter_source
    names = [
        name
        for name in names_of(PlanSettings, group="noise-aware")
        if source(name) is ParameterSource.COMMANDLINE and ctx.params[name]
    ]
    if ctx.params["noise_aware"] is False and names:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        raise click.UsageError(
            f"--no-noise-aware takes scores as exact, so {flags} would have no effect: leave out "
            "one or the other"
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
            f"{text!r} is not a price: give MODEL=IN,OUT in USD per million tokens, such as "
            "llama3.2=0.1,0.4"
        ) from None
    return text


budget = combine(
    setting("--budget-usd", type=POSITIVE, metavar="USD", help="Maximum cost in USD."),
    setting("--budget-calls", type=WHOLE, metavar="N", help="Maximum number of model calls."),
    setting(
        "--budget-tokens",
        type=WHOLE,
        metavar="N",
        help="Maximum number of tokens, input and output together.",
    ),
    setting_options(OptionFields, group="budget"),
    setting(
        "--price",
        type=_check_price,
        multiple=True,
        metavar="MODEL=IN,OUT",
        help="Price of a model in USD per million input and output tokens (repeatable).",
    ),
)
timeout = setting_options(OptionFields, group="calls")
sampling = setting_options(OptionFields, group="sampling")

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
    "responses",
)


def _check_columns(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    """Check columns given as ROLE=NAME. Raises BadParameter."""
    for text in texts:
        role, sign, _ = text.partition("=")
        if not sign or role.replace("-", "_") not in COLUMN_ROLES:
            raise click.BadParameter(
                f"{text!r} is not ROLE=NAME; ROLE is one of {', '.join(COLUMN_ROLES)}"
            )
    return texts


columns = combine(
    setting(
        "--column",
        "-c",
        multiple=True,
        callback=_check_columns,
        metavar="ROLE=NAME",
        help="The column with that role (repeatable), if its name does not say so: prompt, "
        "messages, response, responses (a list), id, system, reference, context, tests (of "
        "code, run by the grader tests), requirements, tools or tool_choice.",
    ),
    encoding,
)


def setting_keys() -> list[str]:
    """Return the keys that a configuration file may have: one file serves all commands."""

    def command() -> None:
        """Has the options that no declaration in `redraft.settings` generates, and some others."""

    combine(grading, answer, models, budget, columns)(command)
    options = vars(command)["__click_params__"]
    shared = [option.key for option in reversed(options) if isinstance(option, SettingOption)]
    declared = [
        name.replace("_", "-")
        for name, info in settings_of(OptionFields, EndpointLimits, BatchFields).items()
        if info.on_command_line and info.in_files
    ]
    return [*dict.fromkeys((*shared, *declared))]
