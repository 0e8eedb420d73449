"""The options that commands share. The options of settings are generated from the declarations in
`redraft.settings`.

Every module in `commands` imports this one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial, reduce
from math import inf, isfinite
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from .. import graders
from ..base.parameters import check_parameters, merge_parameters, parse_parameter
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
    Parameters,
    PlanSettings,
    PromptSource,
    SettingInfo,
    Text,
    ValueKind,
    WholeNumber,
    info_of,
    names_of,
    removed_setting_message,
    settings_of,
)
from ..tables.text_format import ENCODING, check_encoding
from .output import note_options

OptionValues: TypeAlias = Mapping[str, Any]
"""The values of the options of a command by the names of their settings, as they were parsed and
checked.
"""
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


class FileName(click.types.StringParamType):
    """A text that may be the path of a file: the shell completes it as one."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class GraderName(click.types.StringParamType):
    """The name of a grader with its argument, or code in a file: the shell completes names, and
    files where none fits. `only`: the mode of the graders that are proposed; None: all.
    """

    def __init__(self, only: str | None = None) -> None:
        self.only = only

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        names = (
            CompletionItem(entry.name, help=entry.about)
            for entry in graders.entries()
            if entry.name.startswith(incomplete) and self.only in (None, entry.mode)
        )
        return [*([] if self.only else [CompletionItem(incomplete, type="file")]), *names]


FILE, GRADER = FileName(), GraderName()
WHOLE, COUNT = WholeRange(0), WholeRange(1)
POSITIVE = NumberRange(0)
ABOVE_0 = NumberRange(0, min_open=True)


ROWS = "Rows to read"
WRITING = "What to write"
GRADING = "How to grade"
STOPPING = "When to stop"
SPENDING = "Money and time"
OUTPUT = "Output"
RUNNING = "Where to run"
GENERAL = "Configuration and help"
HEADINGS = (ROWS, WRITING, GRADING, STOPPING, SPENDING, OUTPUT, RUNNING, GENERAL)
"""The headings of options in help, in order; `command_classes` shows them."""

GROUP_HEADINGS = {
    "": SPENDING,
    "budget": SPENDING,
    "calls": SPENDING,
    "cards": GRADING,
    "code": GRADING,
    "editor": WRITING,
    "noise-aware": STOPPING,
    "output": OUTPUT,
    "prompts": WRITING,
    "rates": SPENDING,
    "rows": ROWS,
    "running": RUNNING,
    "sampling": WRITING,
    "stopping": STOPPING,
    "work": WRITING,
}
"""The heading of each group of settings."""


class Option(click.Option):
    """An option with its heading in help. `--help` of commands with many options shows the common
    ones, `--help-all` the others, too.
    """

    def __init__(self, *args: Any, heading: str = "", common: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading
        self.common = common


option = partial(click.option, cls=Option)


class SettingOption(Option):
    """An option with a default in the environment (REDRAFT_NAME, for those given once) and in
    configuration files.

    `kind`: the values that a file may have; without it, text, or a list of text.
    """

    def __init__(self, *args: Any, kind: ValueKind | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kind = kind or (Names('["clarity"]') if self.multiple else Text())
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


def under(heading: str, *decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Combine decorators, and put the options that they add under a heading of help."""

    def decorate(command: F) -> F:
        before = len(vars(command).get("__click_params__", ()))
        decorated = combine(*decorators)(command)
        for added in vars(decorated)["__click_params__"][before:]:
            if isinstance(added, Option):
                added.heading = heading
        return decorated

    return decorate


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
    is_switch = isinstance(info.kind, Flag) or isinstance(default, bool)
    attributes: dict[str, Any] = {
        "help": info.help,
        "metavar": info.metavar,
        "default": default,
        "heading": GROUP_HEADINGS[info.group],
        "common": info.common,
        "show_default": default not in (None, ()) and not isinstance(default, bool),
        "hidden": bool(info.present_name),
        **_values_of(info.kind),
        **more,
    }
    flags = _flags(name, is_switch=is_switch)
    if info.in_files:
        kind = Flag() if is_switch else info.kind  # an object of Python is no value of a file
        return setting(*flags, kind=kind, **attributes)
    return option(*flags, **attributes)


def _flags(name: str, *, is_switch: bool) -> list[str]:
    """Return how the option of a setting is typed."""
    words = name.replace("_", "-")
    if is_switch:
        return [f"--{words}/--no-{words}"]
    return [f"-{name}", name] if len(name) == 1 else [f"--{words}"]


def _values_of(kind: ValueKind) -> dict[str, Any]:
    """Return which values the option of a setting takes."""
    match kind:
        case WholeNumber(minimum=None):
            return {"type": int}
        case WholeNumber(least, most):
            # help does not mention a limit that no file reaches
            return {"type": WholeRange(least, None if most == MAX_ROWS else most)}
        case Number(least, most, exclusive):
            return {"type": NumberRange(least, None if most == inf else most, min_open=exclusive)}
        case Keyword(choices):
            return {"type": click.Choice(choices)}
        case Keywords(choices):
            return {"type": click.Choice(choices), "multiple": True}
        case Names():
            return {"multiple": True}
        case FilePath(what):
            return {"type": click.Path(file_okay=what == "file", dir_okay=what == "folder")}
        case PromptSource():
            return {"type": click.Path(exists=True, dir_okay=False, path_type=Path)}
    return {}


def _debug(ctx: click.Context, param: click.Parameter, on: bool) -> None:
    if on:
        os.environ["REDRAFT_DEBUG"] = "1"


def _note_options(ctx: click.Context, param: click.Parameter, value: str) -> None:
    """Note the options of the command, by whose names messages call its arguments."""
    named = [each for each in ctx.command.params if isinstance(each, click.Option) and each.name]
    has_plan = any(each.name == PLAN for each in named)
    note_options(
        {str(each.name): (max(each.opts, key=len), *each.secondary_opts) for each in named},
        {str(each.name): each.key * (each.key in PLAN_KEYS) for each in PLAN_SETTINGS if has_plan},
    )


def _use_encoding(ctx: click.Context, param: click.Parameter, name: str | None) -> None:
    """Read the tables of this command in an encoding. Raises BadParameter."""
    if name is None:
        return
    try:
        ctx.call_on_close(partial(ENCODING.reset, ENCODING.set(check_encoding(name))))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


debug = under(
    GENERAL,
    option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        is_eager=True,
        expose_value=False,
        callback=_note_options,
        help="Write messages as text, or as a JSON object on each line. Default: text.",
    ),
    option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_debug,
        is_eager=True,
        help="Show the traceback of an error.",
    ),
)

as_json = option(
    "--json", "as_json", heading=OUTPUT, common=True, is_flag=True, help="Write JSON to stdout."
)

journal = click.option(
    "--journal",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Look in this journal. Default: all *.journal in this folder.",
)

system = option("--system", heading=WRITING, common=True, metavar="TEXT", help="A system message.")
background = under(
    GRADING,
    option(
        "--context",
        type=READABLE,
        metavar="FILE",
        help="Background material for the judge.",
    ),
    option(
        "--reference",
        common=True,
        type=READABLE,
        metavar="FILE",
        help="A known good answer for the judge.",
    ),
    option(
        "--tests",
        common=True,
        type=READABLE,
        metavar="FILE",
        help=(
            "Tests of Python code, which run in a sandbox and grade: JSON, asserts, or a test file."
        ),
    ),
)


def gateway_place(*, exists: bool = False) -> Callable[[F], F]:
    """Return the options that say where a gateway is; `exists`: whether its folder must exist."""
    return combine(
        click.option(
            "--folder",
            type=click.Path(exists=exists, file_okay=False, path_type=Path),
            metavar="DIR",
            help="Folder of the gateway. Default: that of --config, else `gateway` in your data "
            "folder.",
        ),
        click.option(
            "--config",
            type=click.Path(exists=True, dir_okay=False),
            metavar="FILE",
            help="Configuration of the gateway (TOML).",
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
overwrite = option("--overwrite", heading=OUTPUT, is_flag=True, help="Replace an existing file.")
output = under(
    OUTPUT,
    option(
        "--output",
        "-o",
        common=True,
        type=click.Path(),
        metavar="FILE",
        help="Write the answer to FILE instead of stdout.",
    ),
    overwrite,
)

encoding = option(
    "--encoding",
    heading=ROWS,
    metavar="NAME",
    expose_value=False,
    callback=_use_encoding,
    help=(
        "Encoding of all tables to read, such as cp1251. Default: that of each is recognised "
        "(UTF-8, UTF-16, Windows-1252)."
    ),
)


def _column_names(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    """Return the columns given as OURS=THEIRS, by our names. Raises UsageError."""
    parts = [text.partition("=") for text in texts]
    if wrong := [ours or f"={theirs}" for ours, sign, theirs in parts if not (ours and sign)]:
        raise click.UsageError(
            f"{param.opts[-1]} {wrong[0]}: a column is given as OURS=THEIRS, such as "
            f"{param.opts[-1]} prompt=question",
            ctx,
        )
    return {ours.strip(): theirs.strip() for ours, _, theirs in parts}


def column_names(*flags: str, help: str) -> Callable[[F], F]:
    """Return the option that names columns of labelled data."""
    return option(*flags, multiple=True, callback=_column_names, metavar="OURS=THEIRS", help=help)


label_columns = combine(
    column_names("--column", "-c", "columns", help="Name of a column in the data (repeatable)."),
    encoding,
)


def _scale(
    ctx: click.Context, param: click.Parameter, text: str | None
) -> tuple[float, float] | None:
    """Return a scale given as LOW-HIGH. Raises UsageError."""
    if text is None:
        return None
    low, _, high = text.partition("-")
    with suppress(ValueError):
        ends = float(low), float(high)
        if ends[0] < ends[1] and all(map(isfinite, ends)):
            return ends
    raise click.UsageError(f"--scale {text}: a scale is LOW-HIGH, such as 1-5", ctx)


def scale(help: str, **attributes: Any) -> Callable[[F], F]:
    """Return the option that says on which scale labels are."""
    return option("--scale", callback=_scale, metavar="LOW-HIGH", help=help, **attributes)


def direction(what: str) -> Callable[[F], F]:
    """Return the options that say which end of a scale is better."""
    return option(
        "--lower-is-better/--higher-is-better",
        "lower_is_better",
        default=None,
        help=(
            f"Which end is better: of the {what}. Default: higher; it must be stated for names "
            "such as wer, loss or latency."
        ),
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
    kind=FilePath(),
    heading=GRADING,
    common=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Use an LLM judge with the criteria in FILE.",
)
template = setting(
    "--template",
    kind=FilePath(),
    heading=GRADING,
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


execution = under(
    GRADING,
    setting_options(OptionFields, "sandbox", callback=_choose_sandbox),
    option(
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
grading = under(
    GRADING,
    setting(
        "--require",
        kind=Names('["words:80-200"]'),
        common=True,
        multiple=True,
        type=GraderName("requirement"),
        metavar="SPEC",
        help=(
            "A requirement that the answer must meet, such as words:80-200 (repeatable; `redraft "
            "graders` lists them all)."
        ),
    ),
    setting(
        "--grader",
        common=True,
        multiple=True,
        type=GRADER,
        metavar="NAME",
        help="A grader that scores the answer: a name that `redraft graders` lists, a SPEC, or "
        "code of yours as FILE.py:NAME or MODULE:NAME (repeatable).",
    ),
    setting(
        "--weight",
        kind=Names('["clarity=2"]'),
        multiple=True,
        metavar="NAME=W",
        help="How much a grader counts in the mean, by its name in reports, such as clarity=2; "
        "others count 1 (repeatable).",
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
    is_typed = ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    from_files = (ctx.lookup_default(str(param.name)) or ()) if is_typed else ()
    return merge_parameters(*from_files, *typed) or None


def _parameters(name: str, heading: str, help: str) -> Callable[[F], F]:
    return setting(
        name,
        kind=Parameters(),
        heading=heading,
        type=ParameterType(),
        multiple=True,
        callback=_merge_parameters,
        metavar="NAME=VALUE",
        help=help,
    )


params = combine(
    _parameters(
        "--model-param",
        WRITING,
        "A further parameter of the model that writes, such as top_p=0.9 or "
        "chat_template_kwargs.enable_thinking=false (repeatable).",
    ),
    _parameters(
        "--judge-param",
        GRADING,
        "A parameter of the model that judges, such as reasoning_effort=low or max_tokens=8192 "
        "(repeatable). If the model that writes judges, those of --model-param are its own, too.",
    ),
)
models = combine(
    setting(
        "--model",
        heading=WRITING,
        common=True,
        metavar="MODEL",
        help="The model that writes, such as openai:gpt-4o-mini or ollama:llama3.2, or none. Of "
        "several, separated by commas, the next answers while those before it are out of "
        "service. Default: look for one.",
    ),
    setting(
        "--judge",
        heading=GRADING,
        common=True,
        metavar="MODEL",
        help="The model that judges, also beside requirements, or none. Default: the (first) model "
        "that writes judges if a grader asks a judge, or if no grader, requirement, test or "
        "form of the answer is named.",
    ),
    params,
)

answer = under(
    WRITING,
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
        common=True,
        type=FILE,
        metavar="FILE",
        help="The form of the answer: JSON that follows the JSON schema in FILE.",
    ),
)

PLAN = "plan_file"  # the parameter of --plan
PLAN_DEFAULTS = {f.name: f.default for f in fields(PlanSettings) if info_of(f).in_plan_file}
"""What a plan file may have, and what a setting is that it leaves out."""
PLAN_KEYS = tuple(name.replace("_", "-") for name in PLAN_DEFAULTS)

plan = combine(
    setting_options(PlanSettings, group="stopping"),
    setting(
        "--plan",
        PLAN,
        kind=FilePath(),
        heading=STOPPING,
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help=f"Further settings of the plan in FILE (TOML): {', '.join(PLAN_KEYS)}.",
    ),
    setting_options(PlanSettings, group="prompts"),
)
draft_prompt = setting_options(OptionFields, "draft_prompt")
editor = setting_options(OptionFields, group="editor")
cards_dir = setting_options(OptionFields, "cards_dir")


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


budget = under(
    SPENDING,
    setting(
        "--budget-usd",
        common=True,
        kind=Number(),
        type=POSITIVE,
        metavar="USD",
        help="Maximum cost in USD.",
    ),
    setting(
        "--budget-calls",
        common=True,
        kind=WholeNumber(0),
        type=WHOLE,
        metavar="N",
        help="Maximum number of model calls.",
    ),
    setting(
        "--budget-tokens",
        kind=WholeNumber(0),
        type=WHOLE,
        metavar="N",
        help="Maximum number of tokens, input and output together.",
    ),
    setting_options(OptionFields, group="budget"),
    setting(
        "--price",
        kind=Names('["llama3.2=0.1,0.4"]'),
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


def _columns_by_role(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    """Return the names of columns given as ROLE=NAME, by their roles. Raises BadParameter."""
    columns: dict[str, str] = {}
    for text in texts:
        role, sign, name = text.partition("=")
        if not sign or (role := role.replace("-", "_")) not in COLUMN_ROLES:
            raise click.BadParameter(
                f"{text!r} is not ROLE=NAME; ROLE is one of {', '.join(COLUMN_ROLES)}"
            )
        columns[role] = name
    return columns


columns = combine(
    setting(
        "--column",
        "-c",
        kind=Names('["prompt=question"]'),
        heading=ROWS,
        common=True,
        multiple=True,
        callback=_columns_by_role,
        metavar="ROLE=NAME",
        help="The column with that role (repeatable), if its name does not say so: prompt, "
        "messages, response, responses (a list), id, system, reference, context, tests (of "
        "code, run by the grader tests), requirements, tools or tool_choice.",
    ),
    encoding,
)


def _settings_among(
    *decorators: Callable[[Callable[[], None]], Callable[[], None]],
) -> list[SettingOption]:
    """Return the settings among the options that decorators add to a command."""

    def command() -> None:
        """Has these options."""

    combine(*decorators)(command)
    options = vars(command)["__click_params__"]
    return [each for each in reversed(options) if isinstance(each, SettingOption)]


PLAN_SETTINGS = _settings_among(
    setting_options(
        PlanSettings,
        *(n for n, info in settings_of(PlanSettings).items() if not info.on_command_line),
    )
)
"""The settings of the plan that are no options: `--plan` reads them, or traces have them."""


def settings_of_command(ctx: click.Context) -> list[SettingOption]:
    """Return the settings that a command has, those of a plan file in place of `--plan`."""
    own = [each for each in ctx.command.params if isinstance(each, SettingOption)]
    return [*(each for each in own if each.name != PLAN), *PLAN_SETTINGS]


def where_it_went(name: str) -> str:
    """Say where a setting of the plan is that was an option; "" for any other name."""
    key = name.removeprefix("no-")
    if key in PLAN_KEYS:
        return (
            f"{key} is a setting of a plan file: write `{key} = ...` in a file such as plan.toml, "
            'and name it in --plan plan.toml, or in redraft.toml as plan = "plan.toml"'
        )
    return removed_setting_message(key)


def setting_keys() -> list[str]:
    """Return the keys that a configuration file may have: one file serves all commands."""
    shared = [each.key for each in _settings_among(grading, answer, models, plan, budget, columns)]
    declared = [
        name.replace("_", "-")
        for name, info in settings_of(OptionFields, EndpointLimits, BatchFields).items()
        if info.on_command_line and info.in_files
    ]
    return [*dict.fromkeys((*shared, *declared))]
