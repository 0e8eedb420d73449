"""`redraft demo`: see it work without a key or a network, with every answer and change, and what a
model could add.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...answers.editor import FormEditor, edit_distance
from ...base.checks import format_value, read_error_message, unknown_name_message
from ...base.documents import parse_toml, read_small_text
from ...base.sync import run_sync
from ...errors import ConfigError
from ...loop.task import Task
from ...models import DiscoveryResult, find_model
from ...protocols import Check, Edit, Requirement
from ...requirements import parse
from ...result import Result, format_score
from ...session.api import refine
from ...usage import NO_USAGE
from .. import options
from ..config import toml_errors
from ..consent import find_sensitive_settings, rebase_paths
from ..progress import format_usage
from ..terminal import TraceView, console, text_line, without_schema

DEFAULT_FOLDER = Path("examples", "demo")
PACKAGE = Path(__file__).parents[2]
KEYS = {"title": str, "prompt": str, "response": str, "require": list}
EPILOG = """\b
Examples:
  redraft demo
  redraft demo examples/demo
  cp -r examples/demo my-cases && redraft demo my-cases

\b
A case is a TOML file:
  title = "..."                  # what it shows
  prompt = "..."                 # what was asked
  response = "draft.md"          # a file in the same folder with the answer to improve
  require = ["words:80-120"]     # `redraft graders` lists all requirements
"""


@click.command(short_help="Improve sample answers without a key or a network.", epilog=EPILOG)
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False))
@options.debug
def demo(folder: str | None) -> None:
    """Improve the answers in FOLDER (default: examples/demo) with the built-in editor, and show
    every step.

    Needs no key and no network. The results are computed: edit the files and run it again.
    """
    place = find_cases(folder)
    cases = [_load_case(path) for path in sorted(place.glob("*.toml"))]
    out = console(stderr=False)
    start = monotonic()
    out.print(
        Text(
            "Redraft without a model: the built-in editor makes the repairs of form that it can.",
            "bold",
        )
    )
    out.print(
        Text(
            "No key, no network, nothing canned: what you see is computed from the files in "
            f"{place}.",
            "dim",
        )
    )
    results = [(case, _show_case(out, case)) for case in cases]
    _show_summary(out, results, monotonic() - start)
    _suggest_model(out, [case for case, result in results if unmet_requirements(case, result)])
    out.print()
    out.print(Text(f"Your turn: {_invitation(place)}", "bold"), soft_wrap=True)


class SingleStepEditor:
    """Applies the built-in editor to one requirement at a time, so that each repair is shown and
    graded by itself.
    """

    def __init__(self) -> None:
        self._editor = FormEditor()

    def repair(self, text: str, requirements: Sequence[Requirement]) -> Edit | None:
        """Return the repair of one requirement, preferably one that loses nothing, that changes
        least.
        """
        satisfied = [r for r in requirements if r.check(text).ok]
        edits = [
            self._editor.repair(text, [*satisfied, broken])
            for broken in requirements
            if broken not in satisfied
        ]
        return min(
            filter(None, edits),
            key=lambda edit: (edit.lossy, edit_distance(text, edit.text)),
            default=None,
        )


def _show_case(out: Console, case: DemoCase) -> Result:
    result = run_sync(refine(case.task, model=False, editor=SingleStepEditor()))
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
        text.append_text(
            text_line(without_schema(f"{requirement.demand} (measured: {check.measurement})"))
        )
        out.print(text)
        out.print(
            Padding(
                text_line(why_a_model(requirement, result.value, len(case.require)), "dim"),
                (0, 0, 0, 3),
            )
        )


def why_a_model(requirement: Requirement, text: str, demands: int) -> str:
    """Explain why the editor cannot meet a requirement, by trying the repairs that the requirement
    suggests.
    """
    repairs = list(requirement.repairs(text))
    if not repairs:
        return (
            "Why a model: no change of form can add this. It has to be written, and the editor "
            "never invents text."
        )
    if any(requirement.check(edit.text).ok for edit in repairs):
        return (
            f"Why a model: each of the {len(repairs)} repairs of form breaks another of the "
            f"{demands} requirements."
        )
    return (
        f"Why a model: {len(repairs)} repairs of form were tried, and none is enough. The rest "
        "has to be written."
    )


def _show_summary(out: Console, results: list[tuple[DemoCase, Result]], seconds: float) -> None:
    out.print()
    out.print()
    out.rule(Text("Summary", "bold"), style="cyan", characters="━")
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_row(*(Text(t, "dim") for t in ("case", "score", "requirements met", "answers tried")))
    for case, result in results:
        scores = result.trace.score_history
        total, unmet = len(case.require), len(unmet_requirements(case, result))
        met_before = sum(r.check(case.task.response or "").ok for r in map(parse, case.require))
        change = f"{format_score(scores[0])} → {format_score(result.score)}"
        table.add_row(
            text_line(case.title),
            Text(change, "bold"),
            Text(f"{met_before} → {total - unmet} of {total}"),
            Text(str(len(scores))),
        )
    out.print(table)
    out.print()
    usage = sum((result.usage for _, result in results), NO_USAGE)
    out.print(Text(format_usage(usage, seconds), "bold"))


def _suggest_model(out: Console, cases: list[DemoCase]) -> None:
    """Look for a model, which the demo has not done before, and print the command with which it
    does the rest.
    """
    discovery = _find_model()
    out.print()
    if discovery.model:
        out.print(text_line(f"A model was found: {discovery.model.name}. It can do the rest:"))
    else:
        out.print(
            Text(
                "No model was found; `redraft models` shows where Redraft looked for one. A model "
                "can do the rest:"
            )
        )
    for case in cases[:1]:
        name = None if discovery.model else "openai:gpt-4o-mini"
        out.print()
        out.print(Text(case.command(name), "cyan"), soft_wrap=True)


def _find_model() -> DiscoveryResult:
    try:
        return run_sync(find_model())
    except ConfigError:  # `redraft models` reports a REDRAFT_MODEL that is not valid
        return DiscoveryResult(None, ())


def _invitation(folder: Path) -> str:
    if folder.resolve().is_relative_to(PACKAGE):
        return (
            f"copy the cases, edit them, run them again: cp -r {folder} my-cases && {_program()} "
            "demo my-cases"
        )
    return f"edit the files in {folder} and run `{_program()} demo {folder}` again."


def _program() -> str:
    """Return how to type `redraft` here: its path if it is not on PATH."""
    beside = Path(sys.argv[0])
    return (
        "redraft"
        if shutil.which("redraft") or beside.name != "redraft"
        else os.path.relpath(beside)
    )


@dataclass(frozen=True)
class DemoCase:
    """An answer to improve, and the file that describes the case."""

    path: Path
    title: str
    prompt: str
    response: Path
    require: tuple[str, ...]

    @property
    def task(self) -> Task:
        """The task of the case. Raises ConfigError if the response cannot be read."""
        try:
            text = read_small_text(self.response)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.path}: response {str(self.response)!r} cannot be read: "
                f"{read_error_message(error)}"
            ) from error
        return Task(
            self.prompt, text.removesuffix("\n"), requirements=self.require, id=self.path.stem
        )

    def command(self, model: str | None) -> str:
        """Return the command with which a model does the rest."""
        named = f" --model {shlex.quote(model)}" if model else ""
        start = f"redraft run {shlex.quote(self.prompt)}{named}"
        return " \\\n  ".join(
            [
                start,
                f"--response {shlex.quote(str(self.response))}",
                *(f"--require {shlex.quote(r)}" for r in self.require),
            ]
        )


def find_cases(named: str | None) -> Path:
    """Return the folder that was named, or examples/demo: in this folder, beside the source, or in
    the package.

    Raises ConfigError for a folder without cases.
    """
    places = (
        [Path(named)]
        if named
        else [DEFAULT_FOLDER, PACKAGE.parents[1] / DEFAULT_FOLDER, PACKAGE / DEFAULT_FOLDER]
    )
    for place in places:
        if any(place.glob("*.toml")):
            return place
    searched = ", ".join(map(str, places))
    raise ConfigError(
        f"there are no cases (*.toml) in {searched}; `redraft demo --help` shows what one looks "
        "like"
    )


@toml_errors()
def _load_case(path: Path) -> DemoCase:
    """Load a case. Raises ConfigError naming file and key."""
    try:
        table = parse_toml(read_small_text(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {read_error_message(error)}") from error
    _check_case(path, table)
    if outside := find_sensitive_settings(
        {"rubric": table["response"], "require": table["require"]}, path.parent, path.parent
    ):
        raise ConfigError(
            f"{path}: a case reads files beside it only, and {json.dumps(outside[0].value)} is "
            "elsewhere"
        )
    beside = os.path.relpath(path.parent)
    require = tuple(rebase_paths("require", spec, beside) for spec in table["require"])
    return DemoCase(
        path, table["title"], table["prompt"].strip(), Path(beside, table["response"]), require
    )


def _check_case(path: Path, table: Mapping[str, Any]) -> None:
    for key, kind in KEYS.items():
        if not isinstance(table.get(key), kind):
            raise ConfigError(
                f"{path}: {key} must be a {'list of texts' if kind is list else 'text'}, got "
                f"{format_value(table.get(key))}"
            )
    if unknown := sorted(table.keys() - KEYS):
        raise ConfigError(f"{path}: {unknown_name_message('key', unknown[0], KEYS)}")
    if not table["require"] or not all(isinstance(spec, str) for spec in table["require"]):
        raise ConfigError(
            f"{path}: require must be a list of texts, got {format_value(table['require'])}"
        )
