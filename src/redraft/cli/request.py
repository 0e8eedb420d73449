"""Converts the arguments of a command to arguments of `redraft.session.api`, and to settings in a
trace's header and back.

A header contains settings, so that its trace can be resumed, but no secrets: addresses are saved
without user, password and query.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import click
from click.core import ParameterSource

from .. import models
from ..base.checks import is_blank, unknown_name_message
from ..base.jsontext import strict_loads
from ..base.parameters import merge_parameters, without_sampling
from ..errors import ConfigError
from ..graders import Judge, Pairwise, Ranker, Rubric, as_grader, entries, must, with_weight
from ..graders.base import as_grader_spec, unique_name
from ..graders.rubric import overall_criterion, read_text_file
from ..graders.template import Template
from ..graders.traits import traits_of
from ..loop.task import Task, validate_tools
from ..loop.trace import Trace
from ..middleware import Budget
from ..models import connect
from ..models.endpoint_url import redacted_model_name, redacted_url
from ..models.model_names import LOCAL_SERVERS, canonical_name, split_names
from ..models.registry import alternative_models, openai_url, server_url
from ..models.traits import traits_of_model
from ..plans.quality.priors import Priors
from ..protocols import Model, Requirement
from ..requirements import kinds, parse
from ..session.options import PROMPT_KEYS
from ..session.panel import needs_judge, traits_of_named
from ..settings import (
    GradeSettings,
    OptionFields,
    Settings,
    ValidationSettings,
    removed_setting_message,
    settings_for,
    settings_of,
)
from ..storage.priors_store import priors_from_data
from ..usage import NO_USAGE, Usage
from .config import (
    check_table,
    declared_parameters,
    keep_strict_validation,
    load_priors,
    used_layers,
)
from .consent import (
    require_consent,
    sensitive_settings_of_trace,
)
from .options import OptionValues, SettingOption, parse_price
from .output import check_single_stdin, notice, read_text, warning
from .user_code import canonical_schema, load_answer, load_grader

UNSAFE = "unsafe"  # the value of --sandbox for none
WARNED_OF_UNSAFE = "redraft.warned_of_unsafe_code"  # key in a context's `meta`
DEFAULT_PROMPT = "Improve this text."  # where only a response is given
TRACE = "redraft.trace"  # key in a context's `meta`: the trace that settings were taken from
PARAMETERS = ("model_param", "judge_param")  # whose values are merged, name by name
UNSET_IN_TRACE = (
    "answer",
    "schema",
    "grader",
    "weight",
    "rubric",
    "template",
    "judge",
    "model-param",
    "judge-param",
    "temperature",
    "max-tokens",
    "seed",
    "priors",
    *PROMPT_KEYS,
)
"""Settings that stay unset if a trace does not have them."""


def values_of(declaration: type, values: OptionValues) -> dict[str, Any]:
    """Return those values that are settings of a declaration."""
    return {name: values[name] for name in settings_of(declaration) if name in values}


def make_task(
    prompt: str | None,
    require: Iterable[str],
    *,
    response: str | None = None,
    system: str | None = None,
    context: str | None = None,
    reference: str | None = None,
    tests: str | None = None,
    tools: str | None = None,
) -> Task:
    """Make the task. All arguments but prompt and system message are names of files. Raises
    UsageError for an unreadable file.
    """
    prompt = prompt or DEFAULT_PROMPT
    check_single_stdin(PROMPT=prompt, **{"--response": response, "--tools": tools})
    text = read_text("-", "PROMPT") if prompt == "-" else prompt
    given = _read(response, "--response")
    if given is not None and is_blank(given):
        if prompt == DEFAULT_PROMPT:
            raise click.UsageError(
                f"--response: {response} is blank, which is no response: give a PROMPT, or "
                "another file"
            )
        warning(f"--response: {response} is blank, which is no response")
    return Task(
        [
            *([{"role": "system", "content": system}] if system else []),
            {"role": "user", "content": text},
        ],
        given,
        requirements=canonical_requirements(require),
        context=_read(context, "--context"),
        reference=_read(reference, "--reference"),
        tests=_read(tests, "--tests"),
        tools=_read_tools(tools) if tools else None,
    )


def _read(file: str | None, option: str) -> str | None:
    return read_text(file, option) if file else None


def _read_tools(file: str) -> tuple[Mapping[str, Any], ...]:
    """Read the tools in a file. Raises ConfigError that names the file."""
    try:
        return validate_tools(strict_loads(read_text(file, "--tools")))
    except ValueError as error:
        raise ConfigError(f"--tools {file}: {error}") from error


def canonical_requirements(specs: Iterable[str]) -> list[str]:
    """Return requirements in their canonical form, for example with the schema that a file
    contains. Raises ConfigError.
    """
    return [_parse_requirement(spec).spec for spec in specs]


def _parse_requirement(spec: str) -> Requirement:
    """Return a requirement. Raises ConfigError, which says so if the name is that of a grader."""
    try:
        return parse(spec)
    except ConfigError as error:
        name = spec.partition(":")[0].strip()
        if name in kinds() or not any(entry.name == name for entry in entries()):
            raise
        raise ConfigError(
            f"--require {spec}: {name!r} is a grader and no requirement: --grader {spec}"
        ) from error


def build_settings(settings: OptionValues) -> Settings:
    """Build the settings of `Options` from those of a command, except the budget and the form of
    the answer.

    Raises ConfigError.
    """
    declared = values_of(OptionFields, settings)
    declared.pop("answer", None)
    built: dict[str, Any] = {
        **declared,
        "prices": parse_prices(settings["price"]),
        **parameter_settings(settings),
    }
    warn_if_unsafe(built.get("sandbox"), settings["grader"])
    if "priors" in built:
        built["priors"] = load_priors(built["priors"])
    return cast("Settings", built)


def judging_settings(settings: OptionValues) -> ValidationSettings:
    """Return the settings of a session that judges, with the budget, the prices and the parameters
    of the judge.
    """
    chosen = settings_for("validate", build_settings(settings))
    return cast("ValidationSettings", {**chosen, "budget": budget_of(settings)})


def grading_settings(settings: OptionValues) -> GradeSettings:
    """Return the settings of grading, with the budget, the prices and the parameters of the
    judge.
    """
    chosen = settings_for("grade", build_settings(settings))
    return cast("GradeSettings", {**chosen, "budget": budget_of(settings)})


def parameter_settings(settings: OptionValues) -> Settings:
    """Return the parameters of the models that a command names; a judge that is not named is the
    model that writes, and has its own.
    """
    model_param = settings["model_param"]
    own = {} if settings["judge"] else without_sampling(model_param or {})
    return {
        "model_params": model_param,
        "judge_params": merge_parameters(own, settings["judge_param"] or {}) or None,
    }


def answer_of(settings: OptionValues) -> Any:
    """Return the form of the answer that the settings of a command choose; None without one.
    Raises ConfigError.
    """
    return load_answer(settings["answer"], settings["schema"])


def graders_of(settings: OptionValues) -> list[Any] | None:
    """Return the graders that the settings of a command name, with their weights; see
    `load_graders`.
    """
    graders = load_graders(settings["grader"], settings["rubric"], settings["template"])
    return _weigh_graders(graders or [], settings["weight"]) or None


def _weigh_graders(graders: list[Any], weights: Iterable[str]) -> list[Any]:
    """Return the graders with weights, each given as NAME=WEIGHT. Raises ConfigError."""
    places: dict[str, int] = {}
    for place, grader in enumerate(graders):
        places[unique_name(traits_of_named(grader).name, places)] = place
    for text in weights:
        name, _, number = text.rpartition("=")
        if name not in places:
            raise ConfigError(f"weight: {unknown_name_message('grader', name or text, places)}")
        try:
            graders[places[name]] = with_weight(graders[places[name]], float(number))
        except ValueError:
            raise ConfigError(
                f"weight: {text!r} must be NAME=WEIGHT with a number above 0, such as {name}=2"
            ) from None
    return graders


def graders_and_requirements(settings: OptionValues) -> list[Any] | None:
    """Return the requirements of a command as musts, and its graders; None if there are none."""
    musts = [must(spec) for spec in canonical_requirements(settings["require"])]
    return [*musts, *(graders_of(settings) or [])] or None


def load_graders(
    names: Iterable[str], rubric: Any, template: str | None = None
) -> list[Any] | None:
    """Return the named graders, and a judge with `rubric` and `template` (see `load_rubric`); None
    if there are none.

    Raises ConfigError for code that cannot be loaded.
    """
    loaded = load_rubric(rubric, template)
    graders = [*map(load_grader, names), *([judge_of(loaded)] if loaded else [])]
    if any(
        isinstance(grader, str) and UNSAFE in grader and runs_unsafe_code(grader)
        for grader in graders
    ):
        warn_of_unsafe_code()
    return graders or None


def runs_unsafe_code(grader: Any) -> bool:
    """Whether a grader, or a part of it, runs code without a sandbox by its own option."""
    return UNSAFE in _own_tiers(grader)


def warn_if_unsafe(sandbox: str | None, graders: Iterable[str]) -> None:
    """Warn of --unsafe-exec, unless every named grader that runs code names a sandbox of its
    own.
    """
    if sandbox == UNSAFE:
        tiers = [tier for name in graders for tier in _own_tiers(load_grader(name))]
        if not tiers or any(tier in ("auto", UNSAFE) for tier in tiers):
            warn_of_unsafe_code()


def _own_tiers(grader: Any) -> Iterator[str]:
    """Yield the sandboxes that a grader and its parts name; "auto" for one that names none."""
    grader = as_grader_spec(grader).grader
    grader = as_grader(grader) if isinstance(grader, str) else grader
    for each in traits_of(grader).walk():
        if each.sandbox is not None:
            yield each.sandbox


def warn_of_unsafe_code() -> None:
    """Warn once in a command that code runs without a sandbox."""
    context = click.get_current_context(silent=True)
    noted = {} if context is None else context.meta
    if not noted.get(WARNED_OF_UNSAFE):
        noted[WARNED_OF_UNSAFE] = True
        warning(
            "code of answers runs without a sandbox: it can read, change and send everything that "
            "you can"
        )


def load_rubric(rubric: Any, template: str | None = None) -> Rubric | None:
    """Return the rubric in a file (or a Rubric) with the template in a file; None without either.
    Raises ConfigError.
    """
    loaded = Rubric.load(rubric) if isinstance(rubric, str) else cast("Rubric | None", rubric)
    if template is None:
        return loaded
    own = load_template_file(Path(template))
    return (
        own
        if loaded is None
        else replace(loaded, template=own.template, scale=own.scale, read=own.read)
    )


def load_template_file(file: Path) -> Rubric:
    """Return the rubric with the template in a file: text, or a file in the format of rubrics.
    Raises ConfigError.
    """
    if file.suffix.lower() not in {".toml", ".json", ".yaml", ".yml"}:
        return Rubric(file.stem, overall_criterion(), template=read_text_file(file, "template"))
    rubric = Rubric.load(file)
    if rubric.template is None:
        raise ConfigError(
            f"template {str(file)!r}: there is no template in it; for criteria alone use --rubric"
        )
    return rubric


def judge_of(rubric: Rubric) -> Any:
    """Return the judge that asks by a rubric: as many answers at once as its template shows."""
    kind = Template(rubric.template).kind if rubric.template else "pointwise"
    if kind == "pointwise":
        return Judge(rubric, rubric.name)
    return {"pairwise": Pairwise, "listwise": Ranker}[kind](rubric.name, rubric=rubric)


def parse_model(name: str | None) -> Any:
    """Return the named model, a list if there are several: False for "none", None if no model was
    named. Raises ConfigError.
    """
    if name and name != "none" and name.strip().lower() in {"none", "none:", "no"}:
        raise ConfigError(
            f"model: {name!r} is not the name of a model; for no model at all write --model none"
        )
    if not name or name == "none":
        return False if name else name
    models = [with_declared_parameters(each) for each in split_names(name)]
    return models if len(models) > 1 else models[0]


def with_declared_parameters(name: str) -> Any:
    """Return a name, or the model with that name if a file declares parameters for it. Raises
    ConfigError.
    """
    return connect_declared(name) if declared_parameters(name) else name


def connect_declared(name: str) -> Model:
    """Return the model with a name, and with the parameters that files declare for it. Raises
    ConfigError.
    """
    return connect(name, params=declared_parameters(name) or None)


async def find_model(name: str | None) -> Any:
    """Return the named model, or one that was discovered, or None."""
    model = parse_model(name)
    return (await models.find_model()).model if model is None else model or None


async def find_judge(judge: str | None, model: str | None) -> Any:
    """Return the model that judges: the named one, else the (first) model that writes, else one
    that was discovered, or None.
    """
    found = await find_model(judge or model)
    return found if judge else next(iter(alternative_models(found)), None)


def parse_prices(prices: Iterable[str]) -> dict[str, tuple[float, float]] | None:
    """Parse prices such as MODEL=IN,OUT into a mapping by model; None if there are none."""
    return dict(map(parse_price, prices)) or None


def budget_of(settings: OptionValues, used: Usage = NO_USAGE) -> Budget | None:
    """Return what may still be spent after `used`; None without a limit. A budget covers a whole
    trace, however often it is resumed.

    Raises ConfigError if it is unknown how much the trace has spent.
    """
    spent: dict[str, float | None] = {"usd": used.cost, "calls": used.calls, "tokens": used.tokens}
    left: dict[str, Any] = {}
    for name, amount in spent.items():
        limit = settings[f"budget_{name}"]
        if limit is None:
            continue
        if amount is None:
            raise ConfigError(
                f"--budget-{name} {limit:g}: the trace's spending so far is unknown, since an "
                "endpoint did not report it; limit the calls by --budget-calls, or leave it out"
            )
        left[name] = max(0, limit - amount)
    return Budget(**left) if left else None


def settings_for_trace(values: OptionValues, params: list[SettingOption]) -> dict[str, Any]:
    """Return the settings of a run that the header of its trace saves, by their keys in
    configuration files.
    """
    saved: dict[str, Any] = {
        p.key: values[str(p.name)] for p in params if values.get(str(p.name)) not in (None, ())
    }
    saved.pop("require", None)  # the task has them
    if "grader" in saved:
        saved["grader"] = [_canonical_grader(spec) for spec in saved["grader"]]
    for name in ("model", "judge"):
        if name in saved:
            saved[name] = ",".join(map(redacted_model_name, split_names(saved[name])))
    if isinstance(saved.get("schema"), str):
        saved["schema"] = canonical_schema(saved["schema"])
    if rubric := load_rubric(saved.get("rubric"), saved.pop("template", None)):
        saved["rubric"] = rubric.to_data()
    if isinstance(priors := load_priors(saved.get("priors")), Priors):
        saved["priors"] = priors.to_dict()
    # the refinement saves the templates
    return {key: value for key, value in saved.items() if key not in PROMPT_KEYS}


def _canonical_grader(spec: str) -> str:
    """Return a grader without secrets in its address, or a requirement in its canonical form."""
    if spec.partition(":")[0] in kinds():
        return parse(spec).spec
    return redacted_model_name(spec)


def settings_from_trace(
    ctx: click.Context,
    values: OptionValues,
    params: list[SettingOption],
    trace: Trace,
    where: str,
) -> dict[str, Any]:
    """Complete the values of a command from the header of the trace in the file `where`.

    Typed options take precedence over the trace, and the trace over environment and configuration
    files. Raises ConfigError, also for settings that need consent and have none.
    """
    unset = {
        str(p.name): () if p.multiple and p.name not in PARAMETERS else None
        for p in params
        if p.key in UNSET_IN_TRACE and trace.settings
    }
    saved = {**_saved_settings(trace, params, where), **_saved_prompts(ctx, trace, where)}
    from_trace = keep_strict_validation({**unset, **saved}, values.get("require_validated"))
    typed = {
        name for name in from_trace if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    used = {name: value for name, value in from_trace.items() if name not in typed}
    if used and trace.settings:
        ctx.meta[TRACE] = where
    require_consent(
        Path(where),
        sensitive_settings_of_trace(trace, Path(where)),
        {p.key for p in params if p.name in used},
        where,
        is_trace=True,
    )
    merged = {
        name: merge_parameters(from_trace[name], values[name] or {})
        for name in typed.intersection(PARAMETERS)
        if from_trace[name]
    }
    return {**values, **used, **merged}


def _saved_settings(trace: Trace, params: list[SettingOption], where: str) -> dict[str, Any]:
    """Return the values of options that a trace has saved, without its prompts. Raises
    ConfigError.
    """
    saved = {"require": list(trace.task.requirements), **trace.settings}
    for key in saved:
        if removed := removed_setting_message(key):
            notice(f"{where}: {removed}")
    plain = {p.key for p in params} - {"rubric", "priors", *PROMPT_KEYS}
    values = check_table(
        {key: value for key, value in saved.items() if key in plain}, params, where
    )
    rubric, priors = saved.get("rubric"), saved.get("priors")
    if isinstance(rubric, Mapping):
        values["rubric"] = Rubric.from_data(rubric, "rubric", where)
    elif rubric is not None:
        raise ConfigError(f"{where}: rubric must be a table, got {rubric!r}")
    if priors is not None:
        values["priors"] = priors_from_data(priors) if isinstance(priors, Mapping) else str(priors)
    return values


def _saved_prompts(ctx: click.Context, trace: Trace, where: str) -> dict[str, str]:
    """Return the templates of prompts that a trace has saved. Raises ConfigError for a function
    that no option replaces.
    """
    templates = {}
    for key in PROMPT_KEYS:
        if key not in trace.settings:
            continue
        name = key.replace("-", "_")
        if template := _saved_template(trace.settings[key], f"{where}: {key}"):
            templates[name] = template
        elif ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            raise ConfigError(
                f"{where}: its {key} is a function of Python: resume it in Python, or give "
                f"--{key} FILE"
            )
    return templates


def _saved_template(prompt: Any, where: str) -> str:
    """Return the template that a trace has saved; "" for a function. Raises ConfigError for
    anything else.
    """
    if isinstance(prompt, Mapping) and isinstance(prompt.get("template"), str):
        return str(prompt["template"])
    if isinstance(prompt, Mapping) and "function" in prompt:
        return ""
    raise ConfigError(f"{where} must be a table with a template, got {prompt!r:.200}")


def with_requirements(trace: Trace, require: Iterable[str]) -> Trace:
    """Return the trace, its task with these requirements instead of its own."""
    return replace(
        trace, task=replace(trace.task, requirements=tuple(canonical_requirements(require)))
    )


def report_unused_prices(prices: Mapping[str, Any] | None, model: Any, judge: Any) -> None:
    """Report the prices that are for neither of these models; a grader may have a model of its own
    that one is for.
    """
    models = [*alternative_models(model or None), *([judge] if judge else [])]
    names = {connect(each).name for each in models} if prices else set()
    for name in prices or {}:
        if names and name not in names:
            notice(
                f"--price {name}: no model in this run has that name; there is "
                f"{', '.join(sorted(names))}"
            )


def check_judge_params(graders: Any) -> None:
    """Raise UsageError if --judge-param is given and none of the graders asks the judge."""
    if click.get_current_context().get_parameter_source(
        "judge_param"
    ) is ParameterSource.COMMANDLINE and not needs_judge(graders):
        raise click.UsageError(
            "--judge-param: none of the graders asks the judge: leave it out, or name one, such "
            "as --grader judge"
        )


def announce_sources(*models: Any) -> None:
    """If settings come from files, name the files and the places where these models run; None means
    no model.
    """
    ctx = click.get_current_context()
    files = [layer.where for layer, _ in reversed(used_layers(ctx))]
    if trace := ctx.meta.get(TRACE):
        files.append(trace)
    if files:
        places = " and ".join(dict.fromkeys(model_location(model) for model in models if model))
        notice(
            f"settings from {' and '.join(files)}; {f'model at {places}' if places else 'no model'}"
        )


def model_location(model: Any) -> str:
    """Return where a model runs: an address without user info and query, a provider, or this
    machine.
    """
    if isinstance(model, list):
        return ", then ".join(dict.fromkeys(map(model_location, model)))
    if not isinstance(model, str):
        traits = traits_of_model(model)
        return redacted_url(traits.base_url) or traits.name
    prefix = canonical_name(model).partition(":")[0]
    if "//" in model:
        return redacted_url(model.strip().partition("#")[0])
    if prefix in LOCAL_SERVERS:
        return redacted_url(server_url(prefix, os.environ))
    if prefix == "openai":
        return redacted_url(openai_url(os.environ))
    return "this machine" if prefix == "local" else prefix
