"""`redraft demo`: see it work, with no key and no network."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...checks import format_value, read_error_message, unknown_name_message
from ...documents import parse_toml, read_small_text
from ...errors import ConfigError
from .. import options
from ..config import requirement_beside
from ..sensitive_settings import find_sensitive_settings

if TYPE_CHECKING:
    from ...core.records import Task

DEFAULT_FOLDER = Path("examples", "demo")
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
  response = "draft.md"          # the answer to improve, a file beside it
  require = ["words:80-120"]     # `redraft graders` lists what can be required
"""


@click.command(short_help="See it work without a key or a network.", epilog=EPILOG)
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False))
@options.debug
def demo(folder: str | None) -> None:
    """Improve the answers in FOLDER (default: examples/demo) with the built-in editor, and show every step.

    Needs no key and no network. Nothing is canned: edit the files and run it again.
    """
    from ..views.demo import show_demo

    cases_folder = find_cases(folder)
    show_demo(cases_folder, load_cases(cases_folder))


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
        """The task; its requirements read files in the folder of the case. Raises ConfigError."""
        from ...core.records import Task

        try:
            text = read_small_text(self.response)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.path}: response {str(self.response)!r} cannot be read: {read_error_message(error)}"
            ) from error
        return Task(self.prompt, text.removesuffix("\n"), requirements=self.require, id=self.path.stem)

    def command(self, model: str | None) -> str:
        """Return the command with which a model does the rest."""
        named = f" --model {shlex.quote(model)}" if model else ""
        start = f"redraft run {shlex.quote(self.prompt)}{named}"
        return " \\\n  ".join(
            [start, f"--response {shlex.quote(str(self.response))}", *(f"--require {shlex.quote(r)}" for r in self.require)]
        )


def find_cases(named: str | None) -> Path:
    """Return the folder that was named, or examples/demo: in this folder, beside the source, or in the package.

    Raises ConfigError for a folder without cases.
    """
    package = Path(__file__).parents[2]
    places = [Path(named)] if named else [DEFAULT_FOLDER, package.parents[2] / DEFAULT_FOLDER, package / DEFAULT_FOLDER]
    for place in places:
        if any(place.glob("*.toml")):
            return place
    searched = ", ".join(map(str, places))
    raise ConfigError(f"there are no cases (*.toml) in {searched}; `redraft demo --help` shows what one looks like")


def load_cases(folder: Path) -> list[DemoCase]:
    """Load all cases, in the order of their names. Raises ConfigError naming file and key."""
    return [_load_case(path) for path in sorted(folder.glob("*.toml"))]


def _load_case(path: Path) -> DemoCase:
    try:
        table = parse_toml(read_small_text(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {read_error_message(error)}") from error
    _check_case(path, table)
    if outside := find_sensitive_settings({"rubric": table["response"], "require": table["require"]}, path.parent, path.parent):
        raise ConfigError(f"{path}: a case reads files beside it only, and {json.dumps(outside[0].value)} is elsewhere")
    beside = os.path.relpath(path.parent)
    require = tuple(requirement_beside(spec, beside) for spec in table["require"])
    return DemoCase(path, table["title"], table["prompt"].strip(), Path(beside, table["response"]), require)


def _check_case(path: Path, table: Mapping[str, Any]) -> None:
    for key, kind in KEYS.items():
        if not isinstance(table.get(key), kind):
            raise ConfigError(
                f"{path}: {key} must be a {'list of texts' if kind is list else 'text'}, got {format_value(table.get(key))}"
            )
    if unknown := sorted(table.keys() - KEYS):
        raise ConfigError(f"{path}: {unknown_name_message('key', unknown[0], KEYS)}")
    if not table["require"] or not all(isinstance(spec, str) for spec in table["require"]):
        raise ConfigError(f"{path}: require must be a list of texts, got {format_value(table['require'])}")
