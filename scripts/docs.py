"""Write the generated parts of docs/ and of the source: python scripts/docs.py [--check]

In docs/ they are between `<!-- NAME -->` and `<!-- end -->`; in the source they are the typed
dictionaries at the end of a file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import click

from redraft.cli import COMMANDS, program
from redraft.cli.commands.batch import batch
from redraft.cli.commands.run import run
from redraft.graders import entries
from redraft.graders.aliases import ALIASES, LIBRARIES
from redraft.requirements import KINDS
from redraft.runs.config import BatchCallbacks
from redraft.settings import (
    CALIBRATION_SETTINGS,
    GRADE_SETTINGS,
    VALIDATION_SETTINGS,
    BatchFields,
    EndpointLimits,
    Keyword,
    OptionFields,
    info_of,
)

ROOT = Path(__file__).parent.parent
DOCS, SOURCE = ROOT / "docs", ROOT / "src" / "redraft"


def graders() -> Iterator[str]:
    yield "| name | mode | what it does | reads | calls |\n|---|---|---|---|---|"
    for e in entries():
        if e.mode != "requirement" and e.origin == "redraft":
            yield (
                f"| `{e.name}` | {e.mode} | {cell(e.about)} | {', '.join(e.task_fields)} | "
                f"{e.calls or 'nothing'} |"
            )


def kinds() -> Iterator[str]:
    yield "| kind | what it requires | example |\n|---|---|---|"
    yield from (
        f"| `{name}` | {cell(kind.help)} | `{cell(kind.example)}` |" for name, kind in KINDS.items()
    )


def aliases() -> Iterator[str]:
    for library in LIBRARIES:
        yield f"\n## {library}\n\n| their name | grader here | note |\n|---|---|---|"
        for a in sorted((a for a in ALIASES if a.origin == library), key=lambda a: a.name):
            spec, note = (
                (f"`{a.spec}`", a.note)
                if a.spec
                else ("", f"not here, because {a.note}; nearest: `{a.nearest}`")
            )
            yield f"| `{a.name}` | {spec} | {cell(note)} |"


def settings() -> Iterator[str]:
    yield from table(OptionFields)


def batch_settings() -> Iterator[str]:
    yield from table(BatchFields)
    yield from rows(BatchCallbacks)


def endpoint_limits() -> Iterator[str]:
    yield from table(EndpointLimits)


def table(declaration: type) -> Iterator[str]:
    yield "| setting | type | default | command line | meaning |\n|---|---|---|---|---|"
    yield from rows(declaration)


def rows(declaration: type) -> Iterator[str]:
    for f in fields(declaration):
        info, option = info_of(f), OPTIONS.get(f.name, "")
        meaning = f"{info.help} {info.detail}".strip()
        kind = (
            " | ".join(map(repr, info.kind.choices))
            if isinstance(info.kind, Keyword)
            else str(f.type)
        )
        yield (
            f"| `{f.name}` | `{cell(kind)}` | `{f.default!r}` | {option and f'`{option}`'} | "
            f"{cell(meaning)} |"
        )


def option_names() -> dict[str, str]:
    """Return the options of settings by the names of their parameters."""
    found: dict[str, str] = {}
    for command in (run, batch):
        for p in command.params:
            if isinstance(p, click.Option):
                found.setdefault(str(p.name), "/".join([max(p.opts, key=len), *p.secondary_opts]))
    names = [
        f.name
        for d in (OptionFields, BatchFields, EndpointLimits)
        for f in fields(d)
        if info_of(f).on_command_line
    ]
    return {name: found[name] for name in names}


def typed_dictionary(head: str, about: str, *declarations: type | Sequence[Field[Any]]) -> str:
    """Return the code of a typed dictionary with the fields of the declarations, or with those
    fields.
    """
    declared = [
        f for each in declarations for f in (fields(each) if isinstance(each, type) else each)
    ]
    members = [f"    {f.name}: {f.type}\n" for f in declared if not info_of(f).has_own_parameter]
    return f'{head}\n    """{about}"""\n\n{"".join(members)}'


TYPED_DICTIONARIES: dict[Path, tuple[Any, ...]] = {
    SOURCE / "settings.py": (
        "class Settings(TypedDict, total=False):",
        "The keyword arguments of `refine`, `refine_sync`, `stream` and `refine_many`.",
        OptionFields,
    ),
    SOURCE / "runs" / "config.py": (
        "class BatchSettings(Settings, total=False):",
        "The keyword arguments of `batch` and `batch_sync`: these, and those of `refine`.",
        BatchFields,
        BatchCallbacks,
    ),
    SOURCE / "grading.py": (
        "class GradeSettings(TypedDict, total=False):",
        "The keyword arguments of `grade`, `grade_sync` and `grade_many`.",
        [f for f in fields(OptionFields) if f.name in GRADE_SETTINGS],
    ),
    SOURCE / "runs" / "learning.py": (
        "class CalibrationSettings(TypedDict, total=False):",
        "The settings of `calibrate` that are those of `refine`.",
        [f for f in fields(OptionFields) if f.name in CALIBRATION_SETTINGS],
    ),
    SOURCE / "validation" / "api.py": (
        "class ValidationSettings(TypedDict, total=False):",
        "The settings of `validate` that are those of `refine`.",
        [f for f in fields(OptionFields) if f.name in VALIDATION_SETTINGS],
    ),
}


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def commands() -> Iterator[str]:
    for name in COMMANDS:
        command = program.get_command(click.Context(program), name)
        yield command_help(f"redraft {name}", command, "##")
        yield from (
            command_help(f"redraft {name} {n}", c, "###")
            for n, c in getattr(command, "commands", {}).items()
        )


def command_help(name: str, command: click.Command, level: str) -> str:
    context = click.Context(command, info_name=name, terminal_width=100, max_content_width=100)
    return f"{level} {name}\n\n```text\n{command.get_help(context)}\n```\n"


OPTIONS = option_names()
PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "graders": graders,
    "aliases": aliases,
    "kinds": kinds,
    "commands": commands,
    "settings": settings,
    "batch settings": batch_settings,
    "endpoint limits": endpoint_limits,
}


def fill_parts(text: str) -> str:
    """Return a page with its generated parts up to date."""
    for name, part in PARTS.items():
        body = "\n".join(part())
        text = re.sub(
            f"(<!-- {name} -->\n).*?(<!-- end -->)",
            lambda m, b=body: f"{m[1]}{b}\n{m[2]}",
            text,
            flags=re.DOTALL,
        )
    return text


def regenerate(path: Path) -> str:
    """Return the content of a file with its generated parts up to date."""
    text = path.read_text()
    if dictionary := TYPED_DICTIONARIES.get(path):
        return text[: text.index(dictionary[0])] + typed_dictionary(*dictionary)
    return fill_parts(text)


def main(*, check: bool) -> int:
    stale = [
        path
        for path in (*TYPED_DICTIONARIES, *sorted(DOCS.glob("*.md")))
        if regenerate(path) != path.read_text()
    ]
    for path in stale:
        if check:
            print(f"{path.name} is stale: run python scripts/docs.py")
        else:
            path.write_text(regenerate(path))
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv))
