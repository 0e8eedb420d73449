"""How `redraft graders` looks: the list of all, and the card of one.

A grader in the list is one line: cut to the width of a terminal, whole where a program reads it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ..graders import GraderEntry, Judge, Rubric, entries, find_entry
from ..validation.card import CardStore
from .live import console, line

TITLES = {
    "pointwise": "Judges that score one answer: each asks a model and reads the conversation, and what stands after the +",
    "pairwise": "Judges that choose between two",
    "listwise": "Judges that rank several",
    "code": "Graders that compute: no model is asked; they read the answer, and what stands after the +",
    "function": "Graders of other packages",
    "requirement": "Requirements: --require SPEC must be kept, --grader SPEC counts in the score",
}


def show_all(cards: str | None, *, as_json: bool) -> None:
    """Every grader with one line."""
    latest = _latest(cards)
    listed = list(entries())
    if as_json:
        parts = {
            "graders": [e for e in listed if e.mode != "requirement"],
            "requirements": [e for e in listed if e.mode == "requirement"],
        }
        click.echo(json.dumps({part: [_data(e, latest) for e in held] for part, held in parts.items()}, indent=2))
        return
    out, fitted = console(stderr=False), sys.stdout.isatty()
    for mode, title in TITLES.items():
        if held := [e for e in listed if e.mode == mode]:
            out.print(Text(title, "bold underline"), soft_wrap=not fitted)
            rows = [_row(e, latest) for e in held]
            if fitted:
                out.print(_fitted(rows))
            else:
                _write_whole(rows)
            out.print()


def _row(e: GraderEntry, latest: dict[str, str]) -> tuple[Text, Text, Text]:
    """The name, the newest card and what it is, and what else it reads or how it is written."""
    about = line(e.about)
    if e.name in latest:
        about = Text.assemble(line(latest[e.name], "green"), "  ", about)
    return line(e.name, "bold"), about, line(e.example if e.mode == "requirement" else _reads(e), "cyan")


def _fitted(rows: list[tuple[Text, Text, Text]]) -> Table:
    """The widest column gives way first, and never the name."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for name, *others in rows:
        for each in others:
            each.no_wrap, each.overflow = True, "ellipsis"
        table.add_row(name, *others)
    return table


def _write_whole(rows: list[tuple[Text, Text, Text]]) -> None:
    widest = max(len(name) for name, *_ in rows)
    for name, *others in rows:
        click.echo("  ".join([name.plain.ljust(widest), *(each.plain for each in others)]).rstrip())


def _reads(entry: GraderEntry) -> str:
    """What a grader looks at beside the answer and, for judges, the conversation."""
    fields = [name for name in entry.task_fields if name != "messages" or not entry.calls_model]
    return f"+ {', '.join(fields)}" if fields else ""


def _latest(cards: str | None) -> dict[str, str]:
    """What the newest card of each grader says, by name."""
    latest: dict[str, str] = {}
    for card in CardStore.in_folder(cards).cards:
        latest.setdefault(card.grader, card.summary())
    return latest


def _data(entry: GraderEntry, latest: dict[str, str]) -> dict[str, Any]:
    names = ("name", "mode", "about", "reads", "asks", "example", "origin")
    return {name: getattr(entry, name) for name in names} | {"validation": latest.get(entry.name)}


def show_one(name: str, cards: str | None, *, as_json: bool) -> None:
    """The whole card of one grader. Raises ConfigError for a name that there is not."""
    entry = find_entry(name.partition(":")[0])
    latest = _latest(cards)
    rubric = _rubric(entry)
    if as_json:
        click.echo(json.dumps({**_data(entry, latest), "rubric": rubric.to_data() if rubric else None}, indent=2))
        return
    out = console(stderr=False)
    out.print(line(entry.name, "bold underline"))
    for label, text in _facts(entry, latest.get(name, latest.get(entry.name))):
        out.print(Text.assemble((f"{label:<12}", "dim"), line(text)))
    for c in rubric.criteria if rubric else ():
        out.print()
        out.print(Text.assemble(line(c.name, "bold"), (f"  weight {c.weight:g}" if c.weight != 1 else "", "dim")))
        for told in _criterion(c):
            out.print(line(told))
    for example in rubric.examples if rubric else ():
        out.print()
        for told in _example(example):
            out.print(line(told, "dim"))


def _facts(entry: GraderEntry, latest: str | None) -> Iterator[tuple[str, str]]:
    yield "what", entry.about
    yield "mode", entry.mode
    yield "reads", ", ".join(entry.task_fields) or "the answer alone"
    yield "cost", "calls a model" if entry.calls_model else "free"
    yield "from", entry.origin
    how = "--require" if entry.mode == "requirement" else "--grader"
    yield "example", f'redraft grade --response answer.md {how} "{entry.example or entry.name}"'
    yield "validation", latest or f"none yet: redraft validate DATA --grader {entry.name}"


def _rubric(entry: GraderEntry) -> Rubric | None:
    """The rubric of a grader that has one and needs no argument to be made."""
    made = entry.make("") if entry.calls_model and entry.origin == "redraft" else None
    rubric = made.rubric if isinstance(made, Judge) else getattr(made, "rubric", None)
    return rubric if isinstance(rubric, Rubric) else None


def _example(example: Any) -> Iterator[str]:
    """An answer of the rubric, what it got, and why."""
    got = ", ".join(f"{name} {score}" for name, score in example.scores)
    yield f"for example  {example.task}"
    yield f"             {example.answer}"
    yield f"             {got}: {example.why}"


def _criterion(criterion: Any) -> Iterator[str]:
    yield criterion.description
    for level, told in getattr(criterion, "levels", ()) or ():
        yield f"  {level}  {told}"
