"""Grades one answer, and shows the feedback."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import click
from rich.text import Text

from ...api import refine
from ...core.task import Task
from ...errors import ConfigError
from ...result import Result, format_score
from ...settings import Settings
from ...sync import run_sync
from ..errors import exit_code
from ..progress import format_usage
from ..request import (
    SharedArguments,
    announce_sources,
    budget_of,
    build_settings,
    find_model,
    load_graders,
    make_task,
    parse_model,
)
from ..terminal import TraceView, console, in_panel_order


@dataclass(frozen=True, kw_only=True)
class GradeArguments(SharedArguments):
    """The arguments of `redraft grade`."""

    prompt: str
    response: str
    context: str | None = None
    reference: str | None = None


def run_command(values: Mapping[str, Any]) -> int:
    """Grade an answer, show the feedback, and return the exit code."""
    arguments = a = GradeArguments.from_values(values)
    task = make_task(a.prompt, a.require, response=a.response, context=a.context, reference=a.reference)
    err = console(stderr=True)
    with err.status("grading ...") if err.is_terminal else nullcontext():
        result = run_sync(_grade(task, arguments))
    if arguments.as_json:
        click.echo(json.dumps(_result_data(result), indent=2))
    else:
        _show(result)
    return exit_code(result)


async def _grade(task: Task, arguments: GradeArguments) -> Result:
    graders = load_graders(arguments.grader, arguments.rubric)
    settings: Settings = {**build_settings(arguments), "budget": budget_of(arguments)}
    settings |= {"max_iterations": 0, "noise_aware": False, "editor": False}
    if task.requirements and graders is None and arguments.judge is None:
        announce_sources()
        return await refine(task, model=False, **settings)
    if graders is None and "none" in (arguments.model, arguments.judge):
        raise ConfigError("there is nothing to grade with: give --require SPEC, --grader NAME or a --model to judge")
    model, judge = await find_model(arguments.model), parse_model(arguments.judge) or None
    announce_sources(model, judge)
    return await refine(task, model or False, graders, judge, **settings)


def _result_data(result: Result) -> dict[str, Any]:
    feedback = [
        {"grader": f.grader, "score": f.score, "reason": f.reason, "actions": list(f.actions), "done": f.done}
        for f in result.trace.feedback[result.trace.candidates[0].id]
    ]
    data = result.to_dict()
    selected = {name: data[name] for name in ("score", "usage", "cost")}
    return selected | {"broken": data["metadata"]["broken"], "feedback": feedback}


def _show(result: Result) -> None:
    out = console(stderr=False)
    out.print(TraceView(out).feedback_table(in_panel_order(result.trace, 0)))
    out.print()
    broken = result.metadata["broken"]
    out.print(Text(f"score {format_score(result.score)}" + (f" · broken: {len(broken)}" if broken else ""), "bold"))
    out.print(Text(format_usage(result.usage), "dim"))
