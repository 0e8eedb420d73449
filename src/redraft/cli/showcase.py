"""What `redraft demo` shows: the editor at work on real files, what it cannot do, and what a model would be for.

Nothing here looks for a model before the work is shown.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..api import refine
from ..core.records import NO_USAGE
from ..editor import FormEditor, edit_distance
from ..errors import ConfigError
from ..models import DiscoveryResult, find_model
from ..protocols import Check, Edit, Requirement
from ..requirements import parse
from ..result import Result, format_score
from .cases import Case, folder_of_cases, load_cases
from .live import console, line
from .progress import tally
from .story import Teller, brief


class StepByStep:
    """The built-in editor, one requirement at a time, so that each repair can be seen and graded by itself."""

    def __init__(self) -> None:
        self._editor = FormEditor()

    def repair(self, text: str, requirements: Sequence[Requirement]) -> Edit | None:
        """The repair of one requirement that loses nothing, if there is such, and changes least."""
        kept = [r for r in requirements if r.check(text).ok]
        edits = [self._editor.repair(text, [*kept, broken]) for broken in requirements if broken not in kept]
        return min(filter(None, edits), key=lambda edit: (edit.lossy, edit_distance(text, edit.text)), default=None)


def present(named: str | None) -> None:
    """Every case, then what it took, then what a model could add."""
    folder = folder_of_cases(named)
    cases = load_cases(folder)
    out = console(stderr=False)
    started = monotonic()
    out.print(Text("Redraft without a model: the built-in editor repairs what form allows.", "bold"))
    out.print(Text(f"No key, no network, nothing canned: what you see is computed from the files in {folder}.", "dim"))
    results = [(case, _present(out, case)) for case in cases]
    _sum_up(out, results, monotonic() - started)
    _offer_model(out, [case for case, result in results if left_over(case, result)])
    out.print()
    out.print(Text(f"Your turn: {_invitation(folder)}", "bold"), soft_wrap=True)


def _present(out: Console, case: Case) -> Result:
    result = asyncio.run(refine(case.task, model=False, editor=StepByStep()))
    demands = {parse(spec).spec: parse(spec).demand for spec in case.require}
    teller = Teller(out, news=True, call=lambda name: demands.get(name, name))
    out.print()
    out.print()
    out.rule(line(case.title, "bold"), style="cyan", characters="━")
    out.print(line(f"asked: {case.prompt}", "italic"))
    out.print(line(f"files: {case.path}, {case.response}", "dim"))
    for candidate in result.trace.candidates:
        if not result.trace.is_unchanged(candidate):
            teller.answer(result.trace, candidate)
    _left_over(out, case, result)
    out.print(Text(f"   {tally(result.usage)}", "dim"))
    return result


def left_over(case: Case, result: Result) -> list[tuple[Requirement, Check]]:
    """The requirements that the best answer still breaks, with what was measured."""
    checks = ((r, r.check(result.value)) for r in map(parse, case.require))
    return [(requirement, check) for requirement, check in checks if not check.ok]


def _left_over(out: Console, case: Case, result: Result) -> None:
    out.print()
    rest = left_over(case, result)
    if not rest:
        out.print(Text("   Nothing is left over: every requirement is kept.", "bold green"))
    for requirement, check in rest:
        text = Text("   Left over: ", "bold yellow")
        text.append_text(line(brief(f"{requirement.demand} (measured: {check.measurement})")))
        out.print(text)
        out.print(Padding(line(why_a_model(requirement, result.value, len(case.require)), "dim"), (0, 0, 0, 3)))


def why_a_model(requirement: Requirement, text: str, demands: int) -> str:
    """Why the editor could not do it, found by asking the requirement itself for repairs."""
    tried = list(requirement.repairs(text))
    if not tried:
        return "Why a model: no change of form supplies this. It has to be written, and the editor never invents text."
    if any(requirement.check(edit.text).ok for edit in tried):
        return f"Why a model: each of the {len(tried)} repairs of form breaks another of the {demands} requirements."
    return f"Why a model: {len(tried)} repairs of form were tried, and none is enough. The rest has to be written."


def _sum_up(out: Console, results: list[tuple[Case, Result]], seconds: float) -> None:
    out.print()
    out.print()
    out.rule(Text("In short", "bold"), style="cyan", characters="━")
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_row(*(Text(t, "dim") for t in ("case", "score", "requirements kept", "answers tried")))
    for case, result in results:
        scores = result.trace.score_history
        total, rest = len(case.require), len(left_over(case, result))
        kept = sum(r.check(case.task.response or "").ok for r in map(parse, case.require))
        change = f"{format_score(scores[0])} → {format_score(result.score)}"
        table.add_row(line(case.title), Text(change, "bold"), Text(f"{kept} → {total - rest} of {total}"), Text(str(len(scores))))
    out.print(table)
    out.print()
    usage = sum((result.usage for _, result in results), NO_USAGE)
    out.print(Text(tally(usage, seconds), "bold"))


def _offer_model(out: Console, cases: list[Case]) -> None:
    """Only now is a model looked for; with one, the command that lets it do the rest."""
    found = _look()
    out.print()
    if found.model:
        out.print(line(f"A model was found: {found.model.name}. It can write what is left over:"))
    else:
        out.print(
            Text("No model was found; `redraft models` tells where it was looked for. With one, what is left over can be written:")
        )
    for case in cases[:1]:
        name = None if found.model else "openai:gpt-4o-mini"
        out.print()
        out.print(Text(case.command(name), "cyan"), soft_wrap=True)


def _look() -> DiscoveryResult:
    try:
        return asyncio.run(find_model())
    except ConfigError:  # a REDRAFT_MODEL that cannot be is told of by `redraft models`
        return DiscoveryResult(None, ())


def _invitation(folder: Path) -> str:
    if folder.resolve().is_relative_to(Path(__file__).parents[1]):
        return f"copy the cases, edit them, run them again: cp -r {folder} my-cases && {_program()} demo my-cases"
    return f"edit the files in {folder} and run `{_program()} demo {folder}` again."


def _program() -> str:
    """How to type `redraft` here: by its path where it is not on PATH."""
    beside = Path(sys.argv[0])
    return "redraft" if shutil.which("redraft") or beside.name != "redraft" else os.path.relpath(beside)
