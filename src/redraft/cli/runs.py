"""`redraft runs`: what journals keep."""

from __future__ import annotations

import click

from . import options
from .sections import Defaulting

EPILOG = """\b
Examples:
  redraft runs
  redraft runs --json | jq '.[].name'
  redraft runs show answers-jsonl
  redraft runs show results/answers.jsonl row-17
  redraft runs export answers-jsonl -o traces.jsonl
  redraft runs prune --older-than 30 --yes
  redraft runs salvage answers.jsonl.journal -o saved.jsonl

\b
A run is called by its --name, or after its output: answers-jsonl for answers.jsonl.
It is looked for in all *.journal of this folder, or in --journal FILE; the path of
its output will do as well. A run can be looked at while it is going on.
"""

SAVED = """\b
Every line says by "table" what it is: runs, rows, lines (the records of a row, in
their order) and calls (replies that were paid for). A row whose status is "done"
is finished: the columns of its output are in it, and its id joins them to the input.
  jq -c 'select(.table == "rows" and .status == "done") | {id} + .result.columns' saved.jsonl > done.jsonl
Run `redraft batch` over the rows of the input that are missing there, with another
journal and output.
"""

journal = click.option(
    "--journal",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Look in this journal. Default: all *.journal in this folder.",
)


@click.group(cls=Defaulting, default="list", epilog=EPILOG)
def runs() -> None:
    """The runs of `redraft batch`: list them, look into one, take its traces out, forget it."""


@runs.command("list")
@journal
@options.as_json
@options.debug
def listed(journal: str | None, as_json: bool) -> None:
    """All runs, the latest last. (What `redraft runs` alone does.)"""
    from .journals import show_all

    show_all(journal, as_json=as_json)


@runs.command()
@click.argument("run")
@click.argument("row", required=False)
@journal
@options.as_json
@click.option("--full", is_flag=True, help="With ROW: whole texts instead of what stands around the changes.")
@options.debug
def show(run: str, row: str | None, journal: str | None, as_json: bool, full: bool) -> None:
    """What is known of a RUN; with the id of a ROW, everything that happened to it, as `redraft show` tells it."""
    from .journals import show_row, show_run

    if row is None:
        show_run(run, journal, as_json=as_json)
    else:
        show_row(run, row, journal, as_json=as_json, full=full)


@runs.command()
@click.argument("run")
@click.option("--output", "-o", type=click.Path(), required=True, metavar="FILE", help="Write them there (- for stdout).")
@click.option("--overwrite", is_flag=True, help="Replace a file that is there already.")
@journal
@options.debug
def export(run: str, output: str, overwrite: bool, journal: str | None) -> None:
    """The traces of a RUN as JSON Lines: a row each, in the order of the input. See `redraft export` for training data."""
    if output != "-":
        from .files import check_free, check_writable

        check_writable(output)
        check_free(output, overwrite=overwrite)
    from .journals import write_traces

    write_traces(run, output, journal)


@runs.command()
@click.argument("run", required=False)
@click.option("--older-than", type=options.POSITIVE, metavar="DAYS", help="All runs in which nothing happened for so long.")
@journal
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@options.debug
def prune(run: str | None, older_than: float | None, journal: str | None, yes: bool) -> int:
    """Forget a RUN, or all old ones: rows, traces and results. Outputs and answers that were paid for are kept."""
    if run is None and older_than is None:
        raise click.UsageError("name a RUN to forget it, or give --older-than DAYS to forget all that are so old")
    if run is not None and older_than is not None:
        raise click.UsageError(f"{run} and --older-than do not go together: a RUN that is named is forgotten whatever its age")
    from .journals import forget

    return forget(run, older_than, journal, yes=yes)


@runs.command(epilog=SAVED)
@click.argument("damaged", type=click.Path(exists=True, dir_okay=False), metavar="JOURNAL")
@click.option("--output", "-o", type=click.Path(dir_okay=False), required=True, metavar="FILE", help="Write it there.")
@click.option("--overwrite", is_flag=True, help="Replace a file that is there already.")
@options.debug
def salvage(damaged: str, output: str, overwrite: bool) -> None:
    """What can still be read of a damaged JOURNAL, as JSON Lines. The journal is left as it is."""
    from .files import check_free, check_writable
    from .journals import save

    check_writable(output)
    check_free(output, overwrite=overwrite)
    save(damaged, output)
