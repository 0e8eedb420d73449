"""What a request may choose of its refinement: within the maxima of its profile, and nothing that
names files, code or hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from ..base.parameters import SAMPLING, merge_parameters, without_sampling
from ..errors import ConfigError
from ..graders import (
    Judge,
    RequirementGrader,
    Rubric,
    as_grader,
    must,
    with_weight,
)
from ..graders.registry import foreign_grader
from ..graders.rubric import is_gallery_rubric
from ..middleware import Budget
from ..plans.adaptive import Adaptive
from ..requirements import parse
from ..session.options import Options
from ..settings import OptionFields
from .config import Profile
from .exchange import invalid_request
from .neutral import Request, RequestOptions

TASK_FIELDS = frozenset({"messages", "tools"})  # of a request
MAX_RUBRIC_CHARS = 20_000


def profile_settings(profile: Profile) -> dict[str, Any]:
    """Return the settings of a profile as `refine` takes them."""
    settings = dict(profile.settings)
    if isinstance(budget := settings.get("budget"), Mapping):
        settings["budget"] = Budget(**budget)
    return settings


def request_settings(request: Request, profile: Profile, deadline: float) -> dict[str, Any]:
    """Return the settings of the refinement of a request: those of its profile, changed by what the
    request chooses.
    """
    settings = profile_settings(profile)
    if params := settings.get("model_params"):
        rest = without_sampling(params)
        settings |= {name: params[name] for name in SAMPLING if name in params} | {
            "model_params": rest
        }
        if profile.judge is None:  # the model that writes judges
            settings["judge_params"] = merge_parameters(rest, settings.get("judge_params") or {})
    max_tokens = min(
        (n for n in (request.max_tokens, settings.get("max_tokens")) if n is not None), default=None
    )
    chosen = {
        "temperature": request.parameters.get("temperature"),
        "max_tokens": max_tokens,
        "seed": request.parameters.get("seed"),
    }
    settings |= {name: value for name, value in chosen.items() if value is not None}
    for name, value in (
        ("target_score", request.options.target_score),
        ("max_iterations", request.options.max_iterations),
    ):
        if value is not None:
            chosen_value = min(value, largest(profile, name))
            if not profile.required_graders or chosen_value > own_setting(profile, name):
                settings[name] = chosen_value
    settings["deadline"] = min(settings.get("deadline") or inf, deadline)
    return settings


def largest(profile: Profile, name: str) -> Any:
    """Return the largest value that a request may choose; without a maximum, its own iterations,
    and any target.
    """
    if name in profile.maximum:
        value = profile.maximum[name]
        return int(value) if name == "max_iterations" else value
    return 1.0 if name == "target_score" else own_setting(profile, name)


def own_setting(profile: Profile, name: str) -> Any:
    """Return a setting of a profile, else its default: for iterations the largest of a plan."""
    value = profile.settings.get(name, OptionFields.__dataclass_fields__[name].default)
    return Adaptive.max_attempts if value is None else value


def request_graders(options: RequestOptions, profile: Profile) -> Any:
    """Return the graders of a request: those that it names and a judge by its rubric, else those of
    its profile.

    The profile's required graders are always among them: requirements as conditions, and the others
    with at least half the weight of all that a request names. Raises GatewayError 400 for a grader
    that a request may not name.
    """
    required = [
        must(spec) if isinstance(as_grader(spec), RequirementGrader) else spec
        for spec in profile.required_graders
    ]
    if options.graders is None and options.rubric is None:
        return [*required, *_as_list(profile.graders)] if required else profile.graders
    graders = [
        _checked_grader(spec, profile)
        for spec in options.graders or ()
        if spec not in profile.required_graders
    ]
    if options.rubric is not None:
        graders.append(_judge_by(options.rubric))
    scorers = sum(isinstance(each, str) for each in required)
    weight = min(1.0, scorers / len(graders)) if scorers and graders else 1.0
    return (
        [*required, *(with_weight(grader, weight) for grader in graders)] if required else graders
    )


def _as_list(graders: Any) -> list[Any]:
    """Return the graders of a profile."""
    return (
        list(graders) if isinstance(graders, list | tuple) else [] if graders is None else [graders]
    )


def check_requirements(specs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the requirements of a request. Raises GatewayError 400 for one that is unknown or
    reads a file.
    """
    for spec in specs:
        try:
            parse(spec, files=False)
        except ConfigError as error:
            raise invalid_request(
                "redraft.requirements", f"redraft.requirements: {error}"
            ) from None
    return specs


def _judge_by(rubric: str) -> Judge:
    """Return a judge by a rubric of the gallery, or by criteria in words."""
    if not rubric.strip() or len(rubric) > MAX_RUBRIC_CHARS:
        raise invalid_request(
            "redraft.rubric",
            f"redraft.rubric must be a text of 1 to {MAX_RUBRIC_CHARS:,} characters",
        )
    try:
        if is_gallery_rubric(rubric):
            return Judge(rubric, f"judge:{rubric}")
        return Judge(
            Rubric.from_data({"criteria": {"overall": rubric}}, "rubric", "redraft.rubric"),
            "judge:rubric",
        )
    except ConfigError as error:
        raise invalid_request("redraft.rubric", f"redraft.rubric: {error}") from None


def _checked_grader(spec: str, profile: Profile) -> Any:
    """Return the grader that a request names. Raises GatewayError 400 if it may not."""
    if spec in [grader for grader in _as_list(profile.graders) if isinstance(grader, str)]:
        return spec
    try:
        return foreign_grader(spec, TASK_FIELDS)
    except ConfigError as error:
        raise invalid_request("redraft.graders", f"redraft.graders: {error}") from None


def make_options(settings: Mapping[str, Any], answer: Any) -> Options:
    """Return checked options. Raises GatewayError 400."""
    try:
        return Options.from_settings(dict(settings), answer)  # type: ignore[arg-type]
    except ConfigError as error:
        raise invalid_request(str(error).partition(":")[0].partition(" ")[0], str(error)) from None
