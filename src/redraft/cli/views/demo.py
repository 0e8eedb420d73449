"""Shows what `redraft demo` does: every answer and change of each case, and what a model could add."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...api import refine
from ...editor import FormEditor, edit_distance
from ...errors import ConfigError
from ...models import DiscoveryResult, find_model
from ...protocols import Check, Edit, Requirement
from ...requirements import parse
from ...result import Result, format_score
from ...usage import NO_USAGE
from ..progress import format_usage
from ..terminal import console, text_line
from ..trace_view import TraceView, without_schema

if TYPE_CHECKING:
    from ..commands.demo import DemoCase


class SingleStepEditor:
    """Applies the built-in editor to one requirement at a time, so that each repair is shown and graded by itself."""

    def __init__(self) -> None:
        self._editor = FormEditor()

    def repair(self, text: str, requirements: Sequence[Requirement]) -> Edit | None:
        """Return the repair of one requirement, preferably one that loses nothing, that changes least."""
        met = [r for r in requirements if r.check(text).ok]
        edits = [self._editor.repair(text, [*met, broken]) for broken in requirements if broken not in met]
        return min(filter(None, edits), key=lambda edit: (edit.lossy, edit_distance(text, edit.text)), default=None)


def show_demo(folder: Path, cases: Sequence[DemoCase]) -> None:
    """Improve every case and show each step, then the usage, then what a model could add."""
    out = console(stderr=False)
    start = monotonic()
    out.print(Text("Redraft without a model: the built-in editor makes the repairs of form that it can.", "bold"))
    out.print(Text(f"No key, no network, nothing canned: what you see is computed from the files in {folder}.", "dim"))
    results = [(case, _show_case(out, case)) for case in cases]
    _show_summary(out, results, monotonic() - start)
    _suggest_model(out, [case for case, result in results if unmet_requirements(case, result)])
    out.print()
    out.print(Text(f"Your turn: {_invitation(folder)}", "bold"), soft_wrap=True)


def _show_case(out: Console, case: DemoCase) -> Result:
    result = asyncio.run(refine(case.task, model=False, editor=SingleStepEditor()))
    demands = {parse(spec).spec: parse(spec).demand for spec in case.require}
    view = TraceView(out, changes_only=True, label=lambda name: demands.get(name, name))
    out.print()
    out.print()
    out.rule(text_line(case.title, "bold"), style="cyan", characters="━")
    out.print(text_line(f"asked: {case.prompt}", "italic"))
    out.print(text_line(f"files: {case.path}, {case.response}", "dim"))
    for candidate in result.trace.candidates:
        if not result.trace.is_unchanged(candidate):
            view.answer(result.trace, candidate)
    _show_unmet(out, case, result)
    out.print(Text(f"   {format_usage(result.usage)}", "dim"))
    return result


def unmet_requirements(case: DemoCase, result: Result) -> list[tuple[Requirement, Check]]:
    """Return the requirements that the best answer still breaks, with their measurements."""
    checks = ((r, r.check(result.value)) for r in map(parse, case.require))
    return [(requirement, check) for requirement, check in checks if not check.ok]


def _show_unmet(out: Console, case: DemoCase, result: Result) -> None:
    out.print()
    unmet = unmet_requirements(case, result)
    if not unmet:
        out.print(Text("   All requirements are met.", "bold green"))
    for requirement, check in unmet:
        text = Text("   Not met: ", "bold yellow")
        text.append_text(text_line(without_schema(f"{requirement.demand} (measured: {check.measurement})")))
        out.print(text)
        out.print(Padding(text_line(why_a_model(requirement, result.value, len(case.require)), "dim"), (0, 0, 0, 3)))


def why_a_model(requirement: Requirement, text: str, demands: int) -> str:
    """Explain why the editor cannot meet a requirement, by trying the repairs that the requirement suggests."""
    repairs = list(requirement.repairs(text))
    if not repairs:
        return "Why a model: no change of form can add this. It has to be written, and the editor never invents text."
    if any(requirement.check(edit.text).ok for edit in repairs):
        return f"Why a model: each of the {len(repairs)} repairs of form breaks another of the {demands} requirements."
    return f"Why a model: {len(repairs)} repairs of form were tried, and none is enough. The rest has to be written."


def _show_summary(out: Console, results: list[tuple[DemoCase, Result]], seconds: float) -> None:
    out.print()
    out.print()
    out.rule(Text("Summary", "bold"), style="cyan", characters="━")
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_row(*(Text(t, "dim") for t in ("case", "score", "requirements met", "answers tried")))
    for case, result in results:
        scores = result.trace.score_history
        total, unmet = len(case.require), len(unmet_requirements(case, result))
        met = sum(r.check(case.task.response or "").ok for r in map(parse, case.require))
        change = f"{format_score(scores[0])} → {format_score(result.score)}"
        table.add_row(
            text_line(case.title), Text(change, "bold"), Text(f"{met} → {total - unmet} of {total}"), Text(str(len(scores)))
        )
    out.print(table)
    out.print()
    usage = sum((result.usage for _, result in results), NO_USAGE)
    out.print(Text(format_usage(usage, seconds), "bold"))


def _suggest_model(out: Console, cases: list[DemoCase]) -> None:
    """Look for a model, which the demo has not done before, and print the command with which it does the rest."""
    found = _find_model()
    out.print()
    if found.model:
        out.print(text_line(f"A model was found: {found.model.name}. It can do the rest:"))
    else:
        out.print(Text("No model was found; `redraft models` shows where Redraft looked for one. A model can do the rest:"))
    for case in cases[:1]:
        name = None if found.model else "openai:gpt-4o-mini"
        out.print()
        out.print(Text(case.command(name), "cyan"), soft_wrap=True)


def _find_model() -> DiscoveryResult:
    try:
        return asyncio.run(find_model())
    except ConfigError:  # `redraft models` reports a REDRAFT_MODEL that is not valid
        return DiscoveryResult(None, ())


def _invitation(folder: Path) -> str:
    if folder.resolve().is_relative_to(Path(__file__).parents[2]):
        return f"copy the cases, edit them, run them again: cp -r {folder} my-cases && {_program()} demo my-cases"
    return f"edit the files in {folder} and run `{_program()} demo {folder}` again."


def _program() -> str:
    """Return how to type `redraft` here: its path if it is not on PATH."""
    beside = Path(sys.argv[0])
    return "redraft" if shutil.which("redraft") or beside.name != "redraft" else os.path.relpath(beside)
