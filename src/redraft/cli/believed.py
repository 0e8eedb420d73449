"""How `redraft priors` looks: what is kept, figure by figure; and forgetting."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import click
from rich.table import Table

from ..errors import ConfigError, StoreError
from ..quality.fit import PIVOT
from ..quality.priors import Priors
from ..storage.priors_store import PriorsStore, StoredPriors
from .batchview import counted, say
from .exits import complain
from .listing import listing, when
from .live import line

SHIPPED = "shipped"
SHOWN = 8  # digits of a key
MEANINGS = {
    "level": "the mean quality of first drafts",
    "level_sd": "how far it differs between tasks (all _sd: standard deviations)",
    "draft_sd": "how far drafts of one task differ",
    "gain": "a refinement turns a quality q into gain + carry x q",
    "gain_sd": "how far the gain differs between tasks",
    "carry": "how much of one text's lead over another is left when both are refined",
    "step_sd": "how far refinements of one text differ",
    "noise_sd": "how far a judge's scores of the same text differ from look to look",
    "style_sd": "a judge's lasting liking or dislike of a text, beyond its quality",
    "kinship": "the share of that liking which a refined text inherits",
    "drift": "how much kinder a judge is to a text for having been refined",
    "tasks": "finished tasks that this was learned from",
}


def show_all(*, as_json: bool) -> None:
    """Every pair in a line, and what is shipped."""
    found = list(PriorsStore.in_folder().entries())
    kept = [held for _, held in found if isinstance(held, StoredPriors)]
    damaged = {str(path): str(held) for path, held in found if not isinstance(held, StoredPriors)}
    if as_json:
        told = {"shipped": Priors().to_dict(), "kept": [one.as_data() for one in kept], "damaged": damaged}
        click.echo(json.dumps(told, indent=2))
        return
    for message in damaged.values():
        complain(message, "it is not used; `redraft priors forget` with the name of the file removes it")
    draw(kept)
    if not kept:
        say("nothing was learned yet: `redraft priors learn` does it from traces and journals")


def draw(kept: Iterable[StoredPriors]) -> None:
    """A line each, and what is shipped."""
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False)
    for name in ("key", "model", "graders"):
        table.add_column(name, overflow="fold")
    for name in ("tasks", "drafts", f"gain at {PIVOT:g}", "noise", "liking"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("learned", no_wrap=True)
    for one in kept:
        head = (line(one.priors_key.key[:SHOWN]), line(one.priors_key.model), line(", ".join(one.priors_key.graders)))
        table.add_row(*head, *_figures(one.priors), when(one.created_at))
    table.add_row(SHIPPED, "any", "any", *_figures(Priors()), "", style="dim")
    listing().print(table)


def _figures(priors: Priors) -> list[str]:
    gain = priors.gain + (priors.retention - 1) * PIVOT
    tasks = f"{priors.tasks:,}" if priors.tasks else ""
    return [tasks, f"{priors.draft_mean:.2f}", f"{gain:+.2f}", f"{priors.noise_sd:.2f}", f"{priors.bias_sd:.2f}"]


def show_one(named: str, *, as_json: bool) -> None:
    """All that is kept of a pair, figure by figure beside those shipped. Raises ConfigError."""
    kept = None if named == SHIPPED else _readable(named)
    if as_json:
        click.echo(json.dumps(kept.as_data() if kept else Priors().to_dict(), indent=2))
        return
    out = listing()
    if kept:
        out.print(line(f"{kept.priors_key.model} with {', '.join(kept.priors_key.graders)}", "bold"))
        out.print(line(f"key {kept.priors_key.key}, learned {when(kept.created_at)} from {kept.source}", "dim"))
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False)
    table.add_column("")
    for name in ["here", SHIPPED] if kept else [SHIPPED]:
        table.add_column(name, justify="right")
    table.add_column("what it means")
    for f in fields(Priors):
        held = [kept.priors, Priors()] if kept else [Priors()]
        table.add_row(f.name, *(_figure(getattr(priors, f.name)) for priors in held), MEANINGS[f.name])
    out.print(table)


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def forget(named: str, *, as_json: bool) -> None:
    """Forget a pair, or a file that cannot be read. Raises ConfigError."""
    if named == SHIPPED:
        raise ConfigError("what is shipped cannot be forgotten")
    shelf = PriorsStore.in_folder()
    path, held = _found(named)
    shelf.delete(path)
    if as_json:
        click.echo(json.dumps({"forgotten": str(path)}))
    elif isinstance(held, StoredPriors):
        say(f"forgot {held.priors_key.model} with {', '.join(held.priors_key.graders)} ({counted(held.priors.tasks, 'task')})")
    else:
        say(f"removed {path}")


def _readable(named: str) -> StoredPriors:
    _, held = _found(named)
    if isinstance(held, StoreError):
        raise held
    return held


def _found(named: str) -> tuple[Path, StoredPriors | StoreError]:
    """The one of that model, key or beginning of a key. Raises ConfigError where there is none, or more than one."""
    held = list(PriorsStore.in_folder().entries())
    meant = [one for one in held if named and _is_meant(named, *one)]
    if len(meant) == 1:
        return meant[0]
    keys = ", ".join(f"{path.stem}{'' if isinstance(one, StoredPriors) else ' (cannot be read)'}" for path, one in meant or held)
    if meant:
        raise ConfigError(f"{named!r} may be any of {len(meant)}: say which by its key: {keys}")
    there = f"there is {f'{keys}, and ' if keys else 'only '}{SHIPPED}"
    raise ConfigError(f"nothing is kept of {named!r}; {there} (`redraft priors` lists all; `redraft priors learn` adds to them)")


def _is_meant(named: str, path: Path, held: StoredPriors | StoreError) -> bool:
    if path.stem.startswith(named) or path.name == Path(named).name:
        return True
    return isinstance(held, StoredPriors) and held.priors_key.model == named
