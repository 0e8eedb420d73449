"""Write the generated parts of docs/: python scripts/docs.py [--check]

They stand between `<!-- NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from inspect import cleandoc
from pathlib import Path

import click

from redraft.cli import COMMANDS, program
from redraft.graders import entries
from redraft.options import Options
from redraft.requirements import KINDS

DOCS = Path(__file__).parent.parent / "docs"


def graders() -> Iterator[str]:
    yield "| name | mode | what it does | reads | asks a model |\n|---|---|---|---|---|"
    for e in entries():
        if e.mode != "requirement" and e.origin == "redraft":
            yield f"| `{e.name}` | {e.mode} | {cell(e.about)} | {', '.join(e.task_fields)} | {'yes' if e.calls_model else 'no'} |"


def kinds() -> Iterator[str]:
    yield "| kind | what it demands | for example |\n|---|---|---|"
    yield from (f"| `{name}` | {cell(kind.help)} | `{cell(kind.example)}` |" for name, kind in KINDS.items())


def settings() -> Iterator[str]:
    yield "| setting | default |\n|---|---|"
    yield from (f"| `{f.name}` | `{f.default!r}` |" for f in fields(Options))
    yield f"\n{cleandoc(Options.__doc__ or '')}"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def commands() -> Iterator[str]:
    for name in COMMANDS:
        command = program.get_command(click.Context(program), name)
        yield helped(f"redraft {name}", command, "##")
        yield from (helped(f"redraft {name} {n}", c, "###") for n, c in getattr(command, "commands", {}).items())


def helped(name: str, command: click.Command, level: str) -> str:
    context = click.Context(command, info_name=name, terminal_width=100, max_content_width=100)
    return f"{level} {name}\n\n```text\n{command.get_help(context)}\n```\n"


PARTS: dict[str, Callable[[], Iterator[str]]] = {"graders": graders, "kinds": kinds, "commands": commands, "settings": settings}


def written(text: str) -> str:
    """A page with its generated parts as they are now."""
    for name, part in PARTS.items():
        body = "\n".join(part())
        text = re.sub(f"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m, b=body: f"{m[1]}{b}\n{m[2]}", text, flags=re.DOTALL)
    return text


def run(*, check: bool) -> int:
    stale = [page for page in sorted(DOCS.glob("*.md")) if written(page.read_text()) != page.read_text()]
    for page in stale:
        if check:
            print(f"{page.name} is stale: run python scripts/docs.py")
        else:
            page.write_text(written(page.read_text()))
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(run(check="--check" in sys.argv))
