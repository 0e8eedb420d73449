"""`redraft grade`: grade an answer without changing it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ...errors import ConfigError
from .. import options
from ..config import ConfiguredCommand
from ..errors import exit_code
from ..options import SharedArguments

if TYPE_CHECKING:
    from ...core.records import Task
    from ...result import Result
    from ...settings import Settings

EPILOG = """\b
Examples:
  redraft grade --response answer.md --require words:80-200 --require bullets:3
  redraft grade "Explain quantum computing" --response answer.md --model openai:gpt-4o-mini
  redraft grade "Summarise it" --response - --rubric rubric.toml --json < answer.md

\b
With requirements only, no model is called. Exit codes: 0 graded, 1 failed,
2 usage, 3 a requirement (--require) is not met, 130 interrupted.
"""


@dataclass(frozen=True, kw_only=True)
class GradeArguments(SharedArguments):
    """The arguments of `redraft grade`."""

    prompt: str
    response: str
    context: str | None = None
    reference: str | None = None


@click.command(short_help="Grade one answer.", cls=ConfiguredCommand, epilog=EPILOG)
@click.argument("prompt", required=False, default="")
@click.option("--response", type=options.READABLE, metavar="FILE", required=True, help="The answer (- for stdin).")
@options.grading
@options.asking
@options.spending
@options.timeout
@click.option("--context", type=options.READABLE, metavar="FILE", help="Background material for the judge.")
@click.option("--reference", type=options.READABLE, metavar="FILE", help="A known good answer for the judge.")
@options.as_json
@options.debug
def grade(**values: Any) -> int:
    """Grade a response to PROMPT (- for stdin): scores, reasons, and suggested changes."""
    from ...sync import run_sync
    from ..request import make_task
    from ..terminal import console

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
    from ...api import refine
    from ..request import announce_sources, budget_of, build_settings, find_model, load_graders, parse_model

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
    from rich.text import Text

    from ...result import format_score
    from ..progress import format_usage
    from ..terminal import console
    from ..trace_view import TraceView, in_panel_order

    out = console(stderr=False)
    out.print(TraceView(out).feedback_table(in_panel_order(result.trace, 0)))
    out.print()
    broken = result.metadata["broken"]
    out.print(Text(f"score {format_score(result.score)}" + (f" · broken: {len(broken)}" if broken else ""), "bold"))
    out.print(Text(format_usage(result.usage), "dim"))
