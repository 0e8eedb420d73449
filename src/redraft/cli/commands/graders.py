"""`redraft graders`: what can grade an answer, and what is known about each grader.

In the list each grader is one line: cut to the width of a terminal, whole in any other output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ...base.sync import run_sync
from ...base.text import pluralize
from ...errors import ConfigError, SandboxUnavailableError
from ...graders.aliases import find_alias
from ...graders.cards import CardStore
from ...graders.registry import GraderEntry, as_grader, entries, resolve_spec
from ...graders.reward import Reward
from ...graders.rubric import Rubric
from ...graders.traits import traits_of
from ...validation.reward_scale import learn_scale, read_samples
from .. import options
from ..output import notice, print_json
from ..terminal import console, show_facts, text_line

EPILOG = """\b
Examples:
  redraft graders
  redraft graders helpfulness
  redraft grade --response answer.md --require words:80-200 --require no_commas
  redraft graders reward:http://127.0.0.1:8000/classify#MODEL --learn answers.jsonl
  redraft graders --json | jq -r '.requirements[].example'
"""
TITLES = {
    "pointwise": (
        "Judges that score one answer: each calls a model and reads the conversation, and the "
        "fields after the +"
    ),
    "pairwise": (
        "Judges that choose between two answers: pairwise:NAME goes by the rubric of that name"
    ),
    "listwise": (
        "Graders that rank several answers: ranker:NAME is a judge by the rubric of that name"
    ),
    "code": (
        "Graders that compute: they call no model and read the answer, and the fields after the +"
    ),
    "function": "Graders of other packages",
    "requirement": "Requirements: --require SPEC must be met, --grader SPEC counts in the score",
}


@click.command(epilog=EPILOG)
@click.argument("name", required=False, type=options.GRADER)
@click.option(
    "--cards-dir",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Folder of validation cards. Default: your data folder.",
)
@click.option(
    "--learn",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="NAME is a reward model: learn how its raw scores become scores from the answers in FILE.",
)
@options.as_json
@options.debug
def graders(name: str | None, cards_dir: str | None, learn: str | None, as_json: bool) -> None:
    """List all graders, or show one. With NAME: its mode, the fields it reads, its cost, rubric,
    example and latest validation.
    """
    if learn:
        _learn_scale(name, learn, as_json=as_json)
        return
    store = CardStore.in_folder(cards_dir)
    if name is None:
        latest = {card.grader: card.summary() for card in reversed(store.cards)}
        _show_all(latest, as_json=as_json)
    else:
        _show_one(name, store, as_json=as_json)


def _show_all(latest: Mapping[str, str], *, as_json: bool) -> None:
    """Print every grader on one line; `latest` are the summaries of their latest cards."""
    graders = list(entries())
    if as_json:
        data: dict[str, list[Any]] = {"graders": [], "requirements": []}
        for entry in graders:
            part = "requirements" if entry.mode == "requirement" else "graders"
            data[part].append(_as_data(entry, latest.get(entry.name)))
        print_json(data)
        return
    out = console(stderr=False)
    for mode, title in TITLES.items():
        if rows := [_row(entry, latest.get(entry.name)) for entry in graders if entry.mode == mode]:
            out.print(Text(title, "bold underline"))
            out.print(_fitted_table(rows))
            out.print()


def _row(entry: GraderEntry, latest: str | None) -> tuple[Text, Text, Text]:
    """Return the name; the latest card and the description; and the other fields that it reads, or
    an example of its spec.
    """
    about = text_line(f"{entry.about} (calls a server)" if entry.calls_server else entry.about)
    if latest:
        about = Text.assemble(text_line(latest, "green"), "  ", about)
    others = [name for name in entry.task_fields if name != "messages" or not entry.calls_model]
    reads = f"+ {', '.join(others)}" if others else ""
    shown = entry.example if entry.mode == "requirement" else reads
    return text_line(entry.name, "bold"), about, text_line(shown, "cyan")


def _fitted_table(rows: list[tuple[Text, Text, Text]]) -> Table:
    """Return a table that fits the terminal: the widest column is cut first, the name never."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for name, *others in rows:
        for each in others:
            each.no_wrap, each.overflow = True, "ellipsis"
        table.add_row(name, *others)
    return table


def _as_data(entry: GraderEntry, latest: str | None) -> dict[str, Any]:
    shown = (each.name for each in fields(entry) if each.name not in {"make", "runs_programs"})
    return {name: getattr(entry, name) for name in shown} | {"validation": latest}


def _show_one(name: str, store: CardStore, *, as_json: bool) -> None:
    """Print all that is known about one grader. Raises ConfigError for an unknown name."""
    entry, argument = resolve_spec(name)
    spec = f"{entry.name}:{argument}" if argument else entry.name
    cards = (card for each in dict.fromkeys((spec, entry.name)) for card in store.cards_of(each))
    latest = next((card.summary() for card in cards), None)
    rubric, sandbox = _rubric(entry, argument), _sandbox_here(entry)
    if as_json:
        own = {"sandbox": sandbox} if sandbox else {}
        data = _as_data(entry, latest)
        print_json({**data, "rubric": rubric.to_data() if rubric else None, **own})
        return
    given = name.partition(":")[0]
    alias = find_alias(given) if given != entry.name else None
    aliases = [("alias of", f"{alias.name} of {alias.origin}")] if alias else []
    show_facts(spec, [*aliases, *_facts(entry, latest, spec, rubric, sandbox)])
    for line in _rubric_lines(rubric) if rubric else ():
        console(stderr=False).print(line)


def _rubric_lines(rubric: Rubric) -> Iterator[Text]:
    """Yield the criteria and the examples of a rubric."""
    for criterion in rubric.criteria:
        weight = f"  weight {criterion.weight:g}" if criterion.weight != 1 else ""
        yield Text()
        yield Text.assemble(text_line(criterion.name, "bold"), (weight, "dim"))
        yield text_line(criterion.description)
        for level, meaning in criterion.levels:
            yield text_line(f"  {level}  {meaning}")
    for example in rubric.examples:
        scores = ", ".join(f"{name} {score}" for name, score in example.scores)
        yield Text()
        yield text_line(f"for example  {example.task}", "dim")
        yield text_line(f"             {example.answer}", "dim")
        yield text_line(f"             {scores}: {example.reason}", "dim")


def _facts(
    entry: GraderEntry, latest: str | None, spec: str, rubric: Rubric | None, sandbox: str
) -> Iterator[tuple[str, str]]:
    own_rubric = rubric if spec != entry.name else None  # one that the spec names
    read = ("messages", *own_rubric.task_fields) if own_rubric else entry.task_fields
    about = f"; the rubric: {own_rubric.about}" if own_rubric and own_rubric.about else ""
    yield "what", f"{entry.about}{about}"
    yield "mode", entry.mode
    yield "reads", ", ".join(read) or "the answer alone"
    yield "cost", f"calls {entry.calls}" if entry.calls else "free"
    if sandbox:
        yield "sandbox", sandbox
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
    is_judge = entry.calls_model and entry.origin == "redraft"
    is_whole = argument or ":" not in entry.example  # else there is none, or it has no rubric
    grader = entry.make(argument) if is_judge and is_whole else None
    rubric = traits_of(grader).criteria
    return rubric if isinstance(rubric, Rubric) else None


def _learn_scale(spec: str | None, path: str, *, as_json: bool) -> None:
    """Print the spec of a reward grader with `center` and `scale` learned from the answers in a
    file. Raises ConfigError.
    """
    reward = as_grader(spec) if spec else None
    if not isinstance(reward, Reward):
        raise ConfigError(
            "--learn needs a reward model, such as reward:http://127.0.0.1:8000/classify#MODEL, "
            f"got {spec!r}"
        )
    samples = read_samples(path)
    fitted = run_sync(learn_scale(reward, samples))
    notice(f"center and scale learned from {pluralize(len(samples), 'answer')}")
    click.echo(
        json.dumps({"grader": fitted.spec, "center": fitted.center, "scale": fitted.scale})
        if as_json
        else fitted.spec
    )
