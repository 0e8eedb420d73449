"""Shows saved priors, and finds and deletes them by name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import click
from rich.table import Table

from ...errors import ConfigError, StoreError
from ...quality.fit import PIVOT
from ...quality.priors import Priors
from ...storage.priors_store import PriorsStore, StoredPriors
from ..output import notice, pluralize, warning
from ..terminal import format_time, list_console, text_line

SHIPPED = "shipped"
KEY_DIGITS = 8  # of a key in the list
MEANINGS = (  # of the fields of Priors, in order
    "the mean quality of first drafts",
    "how much that differs between tasks (every _sd is a standard deviation)",
    "how much drafts of one task differ",
    "a refinement turns a quality q into gain + retention x q",
    "how much the gain differs between tasks",
    "how much of one text's advantage over another remains when both are refined",
    "how much refinements of one text differ",
    "how much repeated scores of one text by one judge differ",
    "the lasting bias of a judge for or against a text, beyond its quality",
    "the share of that bias which a refined text inherits",
    "how much more a judge favours a text for having been refined",
    "the finished tasks that these were learned from",
)


def show_all(*, as_json: bool) -> None:
    """Print a line for each model with its graders, and the shipped priors."""
    entries = list(PriorsStore.in_folder().entries())
    saved = [entry for _, entry in entries if isinstance(entry, StoredPriors)]
    damaged = {str(path): str(entry) for path, entry in entries if not isinstance(entry, StoredPriors)}
    if as_json:
        data = {"shipped": Priors().to_dict(), "saved": [each.as_data() for each in saved], "damaged": damaged}
        click.echo(json.dumps(data, indent=2))
        return
    for message in damaged.values():
        warning(message, "it is not used; `redraft priors forget` with the name of the file deletes it")
    print_table(saved)
    if not saved:
        notice("no priors are saved yet: `redraft priors learn` learns them from traces and journals")


def print_table(saved: Iterable[StoredPriors]) -> None:
    """Print saved priors, a line each, and the shipped ones."""
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False)
    for name in ("key", "model", "graders"):
        table.add_column(name, overflow="fold")
    for name in ("tasks", "drafts", f"gain at {PIVOT:g}", "noise", "bias"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("learned", no_wrap=True)
    for each in saved:
        pair = each.priors_key
        head = (text_line(pair.key[:KEY_DIGITS]), text_line(pair.model), text_line(", ".join(pair.graders)))
        table.add_row(*head, *_cells(each.priors), format_time(each.created_at))
    table.add_row(SHIPPED, "any", "any", *_cells(Priors()), "", style="dim")
    list_console().print(table)


def _cells(priors: Priors) -> list[str]:
    gain = priors.gain + (priors.retention - 1) * PIVOT
    tasks = f"{priors.tasks:,}" if priors.tasks else ""
    return [tasks, f"{priors.draft_mean:.2f}", f"{gain:+.2f}", f"{priors.noise_sd:.2f}", f"{priors.bias_sd:.2f}"]


def show_one(name: str, *, as_json: bool) -> None:
    """Print all values for a model and its graders beside the shipped ones. Raises ConfigError or StoreError."""
    saved = None if name == SHIPPED else _find(name)[1]
    if isinstance(saved, StoreError):
        raise saved
    if as_json:
        click.echo(json.dumps(saved.as_data() if saved else Priors().to_dict(), indent=2))
        return
    out = list_console()
    if saved:
        out.print(text_line(f"{saved.priors_key.model} with {', '.join(saved.priors_key.graders)}", "bold"))
        out.print(text_line(f"key {saved.priors_key.key}, learned {format_time(saved.created_at)} from {saved.source}", "dim"))
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False)
    table.add_column("")
    for column in ["learned", SHIPPED] if saved else [SHIPPED]:
        table.add_column(column, justify="right")
    table.add_column("meaning")
    for f, meaning in zip(fields(Priors), MEANINGS, strict=True):
        values = [getattr(each, f.name) for each in ([saved.priors, Priors()] if saved else [Priors()])]
        cells = [f"{value:,}" if isinstance(value, int) else f"{value:.3f}" for value in values]
        table.add_row(f.name, *cells, meaning)
    out.print(table)


def delete(name: str, *, as_json: bool) -> None:
    """Delete the priors of a model and its graders, or a file that cannot be read. Raises ConfigError."""
    if name == SHIPPED:
        raise ConfigError("the shipped priors cannot be deleted")
    path, entry = _find(name)
    PriorsStore.in_folder().delete(path)
    if as_json:
        click.echo(json.dumps({"deleted": str(path)}))
    elif isinstance(entry, StoredPriors):
        notice(
            f"deleted {entry.priors_key.model} with {', '.join(entry.priors_key.graders)} ({pluralize(entry.priors.tasks, 'task')})"
        )
    else:
        notice(f"deleted {path}")


def _find(name: str) -> tuple[Path, StoredPriors | StoreError]:
    """Find the priors with that model, key, start of a key, or file name. Raises ConfigError unless there is exactly one."""

    def matches(path: Path, entry: StoredPriors | StoreError) -> bool:
        if path.stem.startswith(name) or path.name == Path(name).name:
            return True
        return isinstance(entry, StoredPriors) and entry.priors_key.model == name

    entries = list(PriorsStore.in_folder().entries())
    found = [(path, entry) for path, entry in entries if name and matches(path, entry)]
    if len(found) == 1:
        return found[0]
    keys = ", ".join(
        f"{path.stem}{'' if isinstance(entry, StoredPriors) else ' (cannot be read)'}" for path, entry in found or entries
    )
    if found:
        raise ConfigError(f"{name!r} matches {len(found)} saved priors: name one by its key: {keys}")
    existing = f"there is {f'{keys}, and ' if keys else 'only '}{SHIPPED}"
    raise ConfigError(
        f"no priors are saved for {name!r}; {existing} (`redraft priors` lists them; `redraft priors learn` adds more)"
    )
