"""The work behind `redraft grade`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from rich.text import Text

from ..api import refine
from ..core.records import Task
from ..errors import ConfigError
from ..result import Result, format_score
from ..sync import run_sync
from .exits import exit_code
from .live import console
from .origins import announce
from .progress import tally
from .story import Teller, seated
from .wishes import budget_of, chosen_graders, model_found, model_named, new_task, prices_of


def judge(typed: Mapping[str, Any]) -> int:
    """Grade, show the verdict; the exit code."""
    err = console(stderr=True)
    with err.status("grading ...") if err.is_terminal else nullcontext():
        result = run_sync(_graded(new_task(typed), typed))
    if typed["as_json"]:
        print(json.dumps(_data(result), indent=2))  # noqa: T201
    else:
        _draw(result)
    return exit_code(result)


async def _graded(task: Task, typed: Mapping[str, Any]) -> Result:
    graders, asked = chosen_graders(typed), (typed["model"], typed["judge"])
    options: dict[str, Any] = {
        "max_iterations": 0,
        "adaptive": False,
        "editor": False,
        "budget": budget_of(typed),
        "prices": prices_of(typed),
        **{name: typed[name] for name in ("deadline", "timeout", "trust", "cards")},
    }
    if task.requirements and graders is None and typed["judge"] is None:
        announce()
        return await refine(task, model=False, **options)
    if graders is None and "none" in asked:
        raise ConfigError("there is nothing to grade with: give --require SPEC, --grader NAME or a --model to judge")
    model, judge = await model_found(typed["model"]), model_named(typed["judge"]) or None
    announce(model, judge)
    return await refine(task, model or False, graders, judge, **options)


def _data(result: Result) -> dict[str, Any]:
    best = result.trace.candidates[0].id
    views = [
        {"grader": f.grader, "score": f.score, "reason": f.reason, "actions": list(f.actions), "done": f.done}
        for f in result.trace.feedback[best]
    ]
    data = result.to_dict()
    return {name: data[name] for name in ("score", "usage", "cost")} | {"broken": data["metadata"]["broken"], "feedback": views}


def _draw(result: Result) -> None:
    out = console(stderr=False)
    out.print(Teller(out).views(seated(result.trace, 0)))
    out.print()
    broken = result.metadata["broken"]
    out.print(Text(f"score {format_score(result.score)}" + (f" · broken: {len(broken)}" if broken else ""), "bold"))
    out.print(Text(tally(result.usage), "dim"))
