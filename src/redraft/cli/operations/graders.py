"""Shows the list of all graders, and the details of one.

In the list each grader is one line: cut to the width of a terminal, whole in any other output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ...errors import ConfigError, SandboxUnavailableError
from ...graders import GraderEntry, Rubric, entries
from ...graders.aliases import find_alias
from ...graders.cards import CardStore
from ...graders.registry import resolve_spec
from ...graders.traits import traits_of
from ..terminal import console, grid, text_line

TITLES = {
    "pointwise": (
        "Judges that score one answer: each calls a model and reads the conversation, and the "
        "fields after the +"
    ),
    "pairwise": (
        "Judges that choose between two answers: pairwise:NAME goes by the rubric of that name"
    ),
    "listwise": "Judges that rank several answers: ranker:NAME goes by the rubric of that name",
    "code": (
        "Graders that compute: they call no model and read the answer, and the fields after the +"
    ),
    "function": "Graders of other packages",
    "requirement": "Requirements: --require SPEC must be met, --grader SPEC counts in the score",
}


def show_all(cards_dir: str | None, *, as_json: bool) -> None:
    """Print every grader on one line."""
    latest = _latest_cards(cards_dir)
    graders = list(entries())
    if as_json:
        parts = {
            "graders": [e for e in graders if e.mode != "requirement"],
            "requirements": [e for e in graders if e.mode == "requirement"],
        }
        click.echo(
            json.dumps(
                {part: [_as_data(e, latest) for e in group] for part, group in parts.items()},
                indent=2,
            )
        )
        return
    out = console(stderr=False)
    for mode, title in TITLES.items():
        if rows := [_row(e, latest) for e in graders if e.mode == mode]:
            out.print(Text(title, "bold underline"))
            out.print(_fitted_table(rows))
            out.print()


def _row(entry: GraderEntry, latest: dict[str, str]) -> tuple[Text, Text, Text]:
    """Return the name; the latest card and the description; and the other fields that it reads, or
    an example of its spec.
    """
    about = text_line(f"{entry.about} (calls a server)" if entry.calls_server else entry.about)
    if entry.name in latest:
        about = Text.assemble(text_line(latest[entry.name], "green"), "  ", about)
    fields = [name for name in entry.task_fields if name != "messages" or not entry.calls_model]
    reads = f"+ {', '.join(fields)}" if fields else ""
    return (
        text_line(entry.name, "bold"),
        about,
        text_line(entry.example if entry.mode == "requirement" else reads, "cyan"),
    )


def _fitted_table(rows: list[tuple[Text, Text, Text]]) -> Table:
    """Return a table that fits the terminal: the widest column is cut first, the name never."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for name, *others in rows:
        for each in others:
            each.no_wrap, each.overflow = True, "ellipsis"
        table.add_row(name, *others)
    return table


def _latest_cards(cards_dir: str | None) -> dict[str, str]:
    """Return the summary of the latest card of each grader, by name."""
    latest: dict[str, str] = {}
    for card in CardStore.in_folder(cards_dir).cards:
        latest.setdefault(card.grader, card.summary())
    return latest


def _latest_card(cards_dir: str | None, *names: str) -> str | None:
    """Return the summary of the latest card of a grader, by the first of these names that has
    one.
    """
    store = CardStore.in_folder(cards_dir)
    cards = (card for name in dict.fromkeys(names) for card in store.cards_of(name))
    return next((card.summary() for card in cards), None)


def _as_data(entry: GraderEntry, latest: dict[str, str]) -> dict[str, Any]:
    names = (
        "name",
        "mode",
        "about",
        "task_fields",
        "calls_model",
        "calls_server",
        "example",
        "origin",
    )
    return {name: getattr(entry, name) for name in names} | {"validation": latest.get(entry.name)}


def show_one(name: str, cards_dir: str | None, *, as_json: bool) -> None:
    """Print all that is known about one grader. Raises ConfigError for an unknown name."""
    entry, argument = resolve_spec(name)
    spec = f"{entry.name}:{argument}" if argument else entry.name
    latest = _latest_card(cards_dir, spec, entry.name)
    rubric = _rubric(entry, argument)
    if as_json:
        click.echo(
            json.dumps(
                {
                    **_as_data(entry, {entry.name: latest} if latest else {}),
                    "rubric": rubric.to_data() if rubric else None,
                    **({"sandbox": where} if (where := _sandbox_here(entry)) else {}),
                },
                indent=2,
            )
        )
        return
    out = console(stderr=False)
    out.print(text_line(spec, "bold underline"))
    facts = grid()
    if (
        alias := find_alias(name.partition(":")[0])
        if entry.name != name.partition(":")[0]
        else None
    ):
        facts.add_row(text_line("alias of", "dim"), text_line(f"{alias.name} of {alias.origin}"))
    for label, text in _facts(entry, latest, spec, rubric):
        facts.add_row(text_line(label, "dim"), text_line(text))
    out.print(facts)
    if rubric is None:
        return
    for criterion in rubric.criteria:
        weight = f"  weight {criterion.weight:g}" if criterion.weight != 1 else ""
        out.print()
        out.print(Text.assemble(text_line(criterion.name, "bold"), (weight, "dim")))
        out.print(text_line(criterion.description))
        for level, meaning in getattr(criterion, "levels", ()) or ():
            out.print(text_line(f"  {level}  {meaning}"))
    for example in rubric.examples:
        scores = ", ".join(f"{name} {score}" for name, score in example.scores)
        out.print()
        out.print(text_line(f"for example  {example.task}", "dim"))
        out.print(text_line(f"             {example.answer}", "dim"))
        out.print(text_line(f"             {scores}: {example.reason}", "dim"))


def _facts(
    entry: GraderEntry, latest: str | None, spec: str, rubric: Rubric | None
) -> Iterator[tuple[str, str]]:
    fields = (
        ("messages", *rubric.task_fields) if rubric and spec != entry.name else entry.task_fields
    )
    yield (
        "what",
        f"{entry.about}; the rubric: {rubric.about}"
        if rubric and rubric.about and spec != entry.name
        else entry.about,
    )
    yield "mode", entry.mode
    yield "reads", ", ".join(fields) or "the answer alone"
    yield "cost", f"calls {entry.calls}" if entry.calls else "free"
    if where := _sandbox_here(entry):
        yield "sandbox", where
    yield "from", entry.origin
    yield "example", _example_command(entry, entry.example if spec == entry.name else spec)
    yield "validation", latest or f"none yet: redraft validate DATA --grader {spec}"


def _sandbox_here(entry: GraderEntry) -> str:
    """Return where a grader runs code or tools on this machine, or why it cannot; "" if it runs
    none.
    """
    if entry.mode != "code" or entry.origin != "redraft" or entry.calls_server:
        return ""
    from ...sandbox import Sandbox  # few graders run code

    try:
        return Sandbox().tier if hasattr(entry.make(""), "sandbox") else ""
    except SandboxUnavailableError as error:
        return str(error)
    except ConfigError:  # it needs an argument
        return ""


def _example_command(entry: GraderEntry, spec: str) -> str:
    if entry.mode in {"pairwise", "listwise"}:
        return f'redraft best --response a.md --response b.md --grader "{spec}"'
    tests = " --tests tests.json" if "tests" in entry.task_fields and entry.mode == "code" else ""
    return (
        f"redraft grade --response answer.md{tests} "
        f'{"--require" if entry.mode == "requirement" else "--grader"} "{spec}"'
    )


def _rubric(entry: GraderEntry, argument: str) -> Rubric | None:
    """Return the rubric of a built-in grader that has one."""
    grader = entry.make(argument) if entry.calls_model and entry.origin == "redraft" else None
    rubric = traits_of(grader).criteria
    return rubric if isinstance(rubric, Rubric) else None
