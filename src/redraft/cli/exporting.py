"""The work behind `redraft export`: the traces of a run through a recipe into files, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click
from rich.table import Table

from ..runs.export import Exported, Provenance, export
from ..runs.pairs import Recipe
from ..storage.journal import Journal
from .batchview import counted, say
from .journals import Kept, found, keep_apart
from .live import console, line

RECIPE = ("pairs", "min_margin", "good", "style", "test_size", "salt", "files", "with_demands")


def write(typed: Mapping[str, Any]) -> None:
    """Write the examples, say how many there are and why not more."""
    recipe = Recipe(typed["form"], **{name: typed[name] for name in RECIPE})
    kept = found(typed["run"], typed["journal"])
    keep_apart(typed["output"], kept)
    with Journal(kept.path, read_only=True) as journal:
        rows = journal.traces(kept.note.name)
        exported = export(rows, typed["output"], recipe, _provenance(kept), overwrite=typed["overwrite"])
    if typed["as_json"]:
        click.echo(json.dumps(exported.as_data(), indent=2, default=str))
    else:
        _tell(exported)


def _provenance(kept: Kept) -> Provenance:
    about = kept.note.metadata
    return Provenance(kept.note.name, about.get("model"), {"input": about.get("source"), "mode": about.get("mode")})


def _tell(exported: Exported) -> None:
    """The numbers, on stderr."""
    split = f" ({exported.train:,} to train, {exported.test:,} to test)" if exported.test else ""
    say(f"{counted(exported.train + exported.test, 'example')}{split} from {counted(exported.used, 'row')} of {exported.rows:,}")
    say(f"written: {', '.join(exported.files) or 'nothing'}")
    if means := ", ".join(f"{name} {mean:.3f}" for name, mean in exported.means.items()):
        say(f"mean scores: {means}")
    if not exported.left_out:
        return
    table = Table("left out because", "rows", box=None, padding=(0, 3, 0, 0), pad_edge=False)
    table.columns[1].justify = "right"
    for reason, count in sorted(exported.left_out.items(), key=lambda item: -item[1]):
        table.add_row(line(reason), f"{count:,}")
    console(stderr=True).print(table)
