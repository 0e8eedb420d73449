"""From what was typed to what `redraft.api` is asked for; and into a trace's header and back, so that work can go on.

A header holds settings, never secrets: an address goes in without user, password and query.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..core.records import NO_USAGE, Task, Usage, validate_tools
from ..core.trace import Trace
from ..errors import ConfigError
from ..graders import Judge, Rubric
from ..middleware import Budget
from ..models import find_model
from ..models.endpoint_url import redacted_model_name
from ..options import Options
from ..quality.priors import Priors
from ..requirements import KINDS, parse
from ..storage.priors_store import priors_from_data, read_priors
from . import files
from .config import Setting, checked, without_lower_trust
from .consent import check
from .options import price_of
from .origins import TRACE
from .sensitive import Sensitive, sensitive

NO_PROMPT = "Improve this text."  # what is asked for when only a response is given


WORDS = ("shipped", "learned")
AS_IT_WAS = ("grader", "rubric", "judge", "temperature", "max-tokens", "seed", "priors")  # unset in a trace, these stay unset


@dataclass(frozen=True)
class Wish:
    """One refinement as it was asked for on the command line."""

    given: Trace
    model: Any
    graders: list[Any] | None
    judge: Any
    options: Options


def new_task(typed: Mapping[str, Any]) -> Task:
    """The task that was typed. Raises UsageError for files that cannot be read."""
    prompt, system = typed["prompt"] or NO_PROMPT, typed.get("system")
    files.one_stdin(PROMPT=prompt, **{"--response": typed.get("response"), "--tools": typed.get("tools")})
    messages = [{"role": "system", "content": system}] if system else []
    text = files.read_text("-", "PROMPT") if prompt == "-" else prompt
    files_named = [name for name in ("response", "context", "reference") if typed.get(name)]
    held: dict[str, Any] = {name: files.read_text(typed[name], f"--{name}") for name in files_named}
    held["tools"] = _tools(typed["tools"]) if typed.get("tools") else None
    return Task([*messages, {"role": "user", "content": text}], requirements=canonical(typed["require"]), **held)


def _tools(file: str) -> tuple[Mapping[str, Any], ...]:
    """The tools in a file. Raises ConfigError for what are none, naming the file."""
    try:
        return validate_tools(json.loads(files.read_text(file, "--tools")))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--tools {file}: {error}") from error


def canonical(specs: Iterable[str]) -> list[str]:
    """Requirements as they say themselves what they are: with a schema that was in a file, for one. Raises ConfigError."""
    return [parse(spec).spec for spec in specs]


def wish(typed: Mapping[str, Any], given: Trace, **more: Any) -> Wish:
    """What was typed, for `redraft.api`. Raises ConfigError."""
    if typed["model"] == "none" and given.task.response is None and not given.candidates:
        raise ConfigError("--model none: there is no model to write an answer; give one to repair with --response FILE")
    options = Options(**settings_of(typed), budget=budget_of(typed, given.usage), **more)
    return Wish(given, model_named(typed["model"]), chosen_graders(typed), model_named(typed["judge"]) or None, options)


def chosen_graders(typed: Mapping[str, Any]) -> list[Any] | None:
    """The graders that were named; None when there are none."""
    rubric = typed["rubric"]
    if isinstance(rubric, str):
        rubric = Rubric.load(rubric)
    chosen = [*typed["grader"], *([Judge(rubric, rubric.name)] if rubric else [])]
    return chosen or None


def model_named(name: str | None) -> Any:
    if name and name != "none" and name.strip().lower() in {"none", "none:", "no"}:
        raise ConfigError(f"model: {name!r} is no name of a model; for no model at all write --model none")
    return False if name == "none" else name


async def model_found(name: str | None) -> Any:
    """The model that was named, one that was found, or None."""
    named = model_named(name)
    return (await find_model()).model if named is None else named or None


def prices_of(typed: Mapping[str, Any]) -> dict[str, tuple[float, float]] | None:
    """The prices that were typed, by model; None when there are none."""
    return dict(map(price_of, typed["price"])) or None


def settings_of(typed: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were typed, by their names in `Options`; all but the budget."""
    names = (
        "max_iterations",
        "patience",
        "min_delta",
        "drafts",
        "min_gain",
        "gain_per",
        "final_check",
        "deadline",
        "timeout",
        "editor",
        "temperature",
        "max_tokens",
        "seed",
        "trust",
        "cards",
    )
    adaptive = None if typed["plain"] is None else not typed["plain"]
    told = {"target_score": typed["target"], "adaptive": adaptive, "priors": priors_of(typed), "prices": prices_of(typed)}
    return {**told, **{name: typed[name] for name in names}}


def priors_of(typed: Mapping[str, Any]) -> Priors | str | None:
    """The priors that were typed: a file's, those that a trace kept, or a word for others. Raises ConfigError."""
    given: Priors | str | None = typed["priors"]
    if given is None or given in WORDS or isinstance(given, Priors):
        return given
    return read_priors(given)


def budget_of(typed: Mapping[str, Any], used: Usage = NO_USAGE) -> Budget | None:
    """What may still be spent: a budget covers a whole trace, whatever it was interrupted by.

    Raises ConfigError where it is not known what the trace has spent of it.
    """
    limits = {name: typed[f"budget_{name}"] for name in ("usd", "calls", "tokens")}
    if all(limit is None for limit in limits.values()):
        return None
    spent = _amounts(used)
    for name, limit in limits.items():
        if limit is not None and spent[name] is None:
            raise ConfigError(
                f"--budget-{name} {limit:g}: it is not known what the trace has spent of it so far, since an endpoint did not say; "
                "limit the calls by --budget-calls, or leave it out"
            )
    left: dict[str, Any] = {n: limit if limit is None else max(0, limit - (spent[n] or 0)) for n, limit in limits.items()}
    return Budget(**left)


def _amounts(usage: Usage) -> dict[str, float | None]:
    read, written = usage.input_tokens, usage.output_tokens
    return {"usd": usage.cost, "calls": usage.calls, "tokens": None if read is None or written is None else read + written}


def remembered(typed: Mapping[str, Any], params: list[Setting]) -> dict[str, Any]:
    """The settings of a run as its trace keeps them."""
    held: dict[str, Any] = {p.key: typed[str(p.name)] for p in params if typed[str(p.name)] not in (None, ())}
    held.pop("require", None)  # the task has them
    if "grader" in held:
        held["grader"] = [_kept(spec) for spec in held["grader"]]
    for name in ("model", "judge"):
        if name in held:
            held[name] = redacted_model_name(held[name])
    if isinstance(held.get("rubric"), str):
        held["rubric"] = Rubric.load(held["rubric"]).to_data()
    if isinstance(priors := priors_of(typed) if "priors" in held else None, Priors):
        held["priors"] = priors.to_dict()
    return held


def _kept(spec: str) -> str:
    """A grader as a trace keeps it: as it was typed; a requirement as it says itself what it is."""
    if spec.partition(":")[0] in KINDS:
        return parse(spec).spec
    return redacted_model_name(spec)


def recalled(ctx: click.Context, typed: Mapping[str, Any], params: list[Setting], trace: Trace, where: str) -> dict[str, Any]:
    """What was typed, completed by the settings of the trace in the file `where`; environment and files come after those.

    Raises ConfigError, also for settings that need consent and have none.
    """
    held = {"require": list(trace.task.requirements), **trace.settings}
    packed, believed = held.pop("rubric", None), held.pop("priors", None)
    known = {p.key for p in params}
    values = checked({k: v for k, v in held.items() if k in known}, params, where)
    if isinstance(packed, Mapping):
        values["rubric"] = Rubric.from_data(packed, "rubric", where)
    elif packed is not None:
        raise ConfigError(f"{where}: rubric must be a table, got {packed!r}")
    if believed is not None:
        values["priors"] = priors_from_data(believed) if isinstance(believed, Mapping) else str(believed)
    if trace.settings:
        unset = {str(p.name): () if p.multiple else None for p in params if p.key in AS_IT_WAS}
        values = {**unset, **values}
    values = without_lower_trust(values, typed.get("trust"))
    fresh = {name for name in values if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE}
    if fresh and trace.settings:
        ctx.meta[TRACE] = where
    check(Path(where), chosen_in(trace, Path(where)), {p.key for p in params if p.name in fresh}, where, is_trace=True)
    return {**typed, **{name: values[name] for name in fresh}}


def chosen_in(trace: Trace, path: Path) -> tuple[Sensitive, ...]:
    """The settings of a trace in a file that need consent. Raises ConfigError."""
    given = trace.settings.get("require", ())  # goes before what the task requires
    required = [*trace.task.requirements, *(given if isinstance(given, list | tuple) else ())]
    try:
        return sensitive({**trace.settings, "require": required}, path.resolve().parent, Path.cwd())
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def taken_up(trace: Trace, typed: Mapping[str, Any]) -> Trace:
    """The trace with the requirements that hold now."""
    return replace(trace, task=replace(trace.task, requirements=tuple(canonical(typed["require"]))))
