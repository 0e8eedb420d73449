"""Write the generated parts of docs/ and of the source: python scripts/docs.py [--check]

In docs/ they are between `<!-- NAME -->` and `<!-- end -->`, and a picture; in the source they are
the typed dictionaries at the end of a file.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import click
import gateway_tables
import layers

from redraft.cli import COMMANDS, program
from redraft.cli.command_classes import HELP_ALL
from redraft.cli.commands.batch import batch
from redraft.cli.commands.run import run
from redraft.cli.exit_codes import EXIT_CODES
from redraft.cli.options import PLAN_KEYS, PLAN_SETTINGS
from redraft.graders import entries
from redraft.graders.aliases import ALIASES, LIBRARIES
from redraft.requirements import KINDS
from redraft.runs.config import BatchCallbacks
from redraft.settings import (
    EVERYWHERE,
    BatchFields,
    EndpointLimits,
    Keyword,
    OptionFields,
    PlanSettings,
    info_of,
    settings_of,
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


def plan_file() -> Iterator[str]:
    """The settings that a plan file may have."""
    yield "| key | default | allowed | meaning |\n|---|---|---|---|"
    defaults = {f.name: f.default for f in fields(PlanSettings)}
    for setting in PLAN_SETTINGS:
        if setting.key in PLAN_KEYS:
            name = str(setting.name)
            info, default = settings_of(PlanSettings)[name], defaults[name]
            shown = "" if default is None else f"`{json.dumps(default)}`"
            yield f"| `{setting.key}` | {shown} | {allowed(setting)} | {cell(info.help)} |"


def allowed(setting: click.Option) -> str:
    """Return which values a setting may have."""
    match setting.type:
        case click.IntRange() | click.FloatRange() as limits:
            bounds = limits._describe_range()  # noqa: SLF001  (as in the help of an option)
            what = "whole number" if isinstance(limits, click.IntRange) else "number"
            return f"a {what}, `{bounds}`"
        case click.Choice(choices=choices):
            return ", ".join(f'`"{choice}"`' for choice in choices)
    return "`true`, `false`" if setting.is_flag else "a text"


def exit_codes() -> Iterator[str]:
    """What a command's exit code says."""
    yield "| exit code | meaning |\n|---|---|"
    yield from (f"| {code} | {cell(meaning)} |" for code, meaning in EXIT_CODES.items())


def table(declaration: type) -> Iterator[str]:
    yield "| setting | type | default | command line | meaning |\n|---|---|---|---|---|"
    yield from rows(declaration)


def rows(declaration: type) -> Iterator[str]:
    for f in fields(declaration):
        info = info_of(f)
        if info.present_name:
            continue
        option = f"`{OPTIONS[f.name]}`" if f.name in OPTIONS else ""
        option = "in a plan file" if info.in_plan_file else option
        meaning = f"{info.help} {info.detail}".strip()
        kind = (
            " | ".join(map(repr, info.kind.choices))
            if isinstance(info.kind, Keyword)
            else str(f.type)
        )
        yield (f"| `{f.name}` | `{cell(kind)}` | `{f.default!r}` | {option} | {cell(meaning)} |")


def option_names() -> dict[str, str]:
    """Return the options of settings by the names of their parameters."""
    found: dict[str, str] = {}
    for command in (run, batch):
        for p in command.params:
            if isinstance(p, click.Option):
                found.setdefault(str(p.name), "/".join([max(p.opts, key=len), *p.secondary_opts]))
    declared = settings_of(OptionFields, BatchFields, EndpointLimits)
    return {name: found[name] for name, info in declared.items() if info.on_command_line}


def typed_dictionary(head: str, about: str, members: Iterable[Field[Any]]) -> str:
    """Return the code of a typed dictionary with these settings."""
    lines = [f"    {f.name}: {f.type}\n" for f in members if not info_of(f).has_own_parameter]
    body = f"\n{''.join(lines)}" if lines else ""
    return f'class {head}, total=False):\n    """{about}"""\n{body}'


def keyword_arguments() -> str:
    """Return the typed dictionaries of `refine` and of the functions that have some of its
    settings.
    """
    options = [f for f in fields(OptionFields) if info_of(f).used_by != EVERYWHERE]
    own = {name: [f for f in options if name in info_of(f).used_by] for name in EVERYWHERE}
    return "\n\n".join(
        [
            typed_dictionary(
                "SharedSettings(TypedDict",
                "The settings of every function that calls models.",
                [f for f in fields(OptionFields) if f not in options],
            ),
            typed_dictionary(
                "Settings(SharedSettings",
                "The keyword arguments of `refine`, `refine_sync`, `stream` and `refine_many`.",
                options,
            ),
            typed_dictionary(
                "GradeSettings(SharedSettings",
                "The keyword arguments of `grade`, `grade_sync` and `grade_many`.",
                own["grade"],
            ),
            typed_dictionary(
                "CalibrationSettings(SharedSettings",
                "The settings of `calibrate` that are those of `refine`.",
                own["calibrate"],
            ),
            typed_dictionary(
                "ValidationSettings(SharedSettings",
                "The settings of `validate` that are those of `refine`.",
                own["validate"],
            ),
        ]
    )


def batch_keyword_arguments() -> str:
    """Return the typed dictionary of `batch`."""
    return typed_dictionary(
        "BatchSettings(Settings",
        "The keyword arguments of `batch` and `batch_sync`: these, and those of `refine`.",
        [*fields(BatchFields), *fields(BatchCallbacks)],
    )


TYPED_DICTIONARIES = {
    SOURCE / "settings.py": keyword_arguments,
    SOURCE / "runs" / "config.py": batch_keyword_arguments,
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
    context.meta[HELP_ALL] = True
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
    "packages": layers.table,
    "plan file": plan_file,
    "exit codes": exit_codes,
    "gateway fields": gateway_tables.field_table,
    "gateway tools": gateway_tables.tool_table,
    "gateway contents": gateway_tables.part_table,
}
PICTURES = {DOCS / "layers.svg": layers.picture}


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
    if picture := PICTURES.get(path):
        return picture()
    text = path.read_text()
    if dictionaries := TYPED_DICTIONARIES.get(path):
        code = dictionaries()
        return text[: text.index(code.partition("\n")[0])] + code
    return fill_parts(text)


def main(*, check: bool) -> int:
    stale = [
        path
        for path in (*TYPED_DICTIONARIES, *PICTURES, *sorted(DOCS.glob("*.md")))
        if not path.exists() or regenerate(path) != path.read_text()
    ]
    for path in stale:
        if check:
            print(f"{path.name} is stale: run python scripts/docs.py")
        else:
            path.write_text(regenerate(path))
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv))
