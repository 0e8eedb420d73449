"""`redraft runs`: the runs that journals contain."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

import click

from ...base.money import format_usd, usd_amount
from ...base.text import pluralize
from ...errors import ConfigError
from ...plans.quality.result_facts import Status
from ...runs import BatchReport
from ...runs.executors.sharded import merge_shards
from ...storage.journal import Journal
from ...storage.recovery import salvage as recover
from ...storage.secure_files import AtomicFile
from .. import options
from ..command_classes import DefaultGroup
from ..exit_codes import OK
from ..output import check_output, format_time, notice, parse_time, print_json, single_line
from ..stored_runs import (
    RUN,
    SUFFIX,
    StoredRun,
    describe_runs,
    find_run,
    journal_paths,
    read_runs,
    say_what_is_not_merged,
)
from ..terminal import console, figure_table, print_trace, show_facts

EPILOG = """\b
Examples:
  redraft runs
  redraft runs --json | jq '.[].name'
  redraft runs show answers.jsonl
  redraft runs show results/answers.jsonl row-17
  redraft runs export answers.jsonl -o traces.jsonl
  redraft runs prune --older-than 30 --yes
  redraft runs salvage answers.jsonl.journal -o saved.jsonl

\b
A run has the name of its output, such as answers.jsonl, or that of --name.
Redraft looks for it in all *.journal of this folder, or in --journal FILE; the path of
its output works as well. You can look at a run while it is in progress.
"""

SALVAGE_EPILOG = """\b
The "table" of each line says what it is: runs, rows, lines (the records of a row, in
order) or calls (replies that were paid for). A row whose status is "done" is finished:
it contains the columns of its output, and its id joins them to the input.
  jq -c 'select(.table == "rows" and .status == "done") | {id} + .columns' saved.jsonl > done.jsonl
Run `redraft batch` over the rows of the input that are missing there, with another
journal and output.
"""

STATUSES: tuple[Status, ...] = ("done", "failed", "open")
INTERNAL = (  # metadata of a run that is not shown as it is
    "settings",
    "judges",
    "invocation",
    "last_full_invocation",
    "merged_shards",
    "provider_batches",
    "priors_key",
    "online_priors",
    "budget_raised",
    "report",
    "completion",
    "spent",
    "capabilities",
    "written",
    "dataset",
)


@click.group(
    short_help="List the runs of `redraft batch`; show, export or delete one.",
    cls=DefaultGroup,
    default="list",
    epilog=EPILOG,
)
def runs() -> None:
    """List the runs of `redraft batch`, inspect one, export its traces, or delete it."""


@runs.command("list")
@options.journal
@options.as_json
@options.debug
def list_(journal: str | None, as_json: bool) -> None:
    """List all runs, the latest last. `redraft runs` alone does the same."""
    paths = journal_paths(journal)
    stored = read_runs(paths, strict=bool(journal))
    if as_json:
        print_json([run.as_data() for run in stored])
        return
    if not stored:
        notice(f"no runs; {describe_runs(stored, paths)}")
        return
    others = {run.path for run in stored if run.path.name != f"{run.info.display_name}{SUFFIX}"}
    headings = ("run", *STATUSES, "last change", *(["journal"] if others else []))
    rows = (
        (
            run.info.display_name,
            *(f"{run.info.counts.get(status, 0):,}" for status in STATUSES),
            format_time(run.info.updated_at),
            *([str(run.path) if run.path in others else ""] if others else []),
        )
        for run in stored
    )
    console(stderr=False).print(figure_table(headings, rows, STATUSES))


@runs.command()
@click.argument("run", type=RUN)
@click.argument("row", required=False)
@options.journal
@options.as_json
@click.option(
    "--full", is_flag=True, help="With ROW: show whole texts instead of the parts around changes."
)
@options.debug
def show(run: str, row: str | None, journal: str | None, as_json: bool, full: bool) -> None:
    """Show a RUN; with the id of a ROW, everything that happened to it, as `redraft show` does."""
    stored = find_run(run, journal)
    if row is not None:
        _show_row(stored, row, as_json=as_json, full=full)
    elif as_json:
        print_json(stored.as_data())
    else:
        facts = (*_history(stored), *_facts(stored.info.metadata, stored.report))
        show_facts(stored.info.display_name, facts)


def _history(run: StoredRun) -> Iterator[tuple[str, str]]:
    """Yield where and when a run was made, and its rows."""
    yield "journal", str(run.path)
    yield "started", format_time(run.info.started_at)
    yield "last change", format_time(run.info.updated_at)
    counts = (f"{count:,} {status}" for status, count in run.info.counts.items() if count)
    yield "rows", ", ".join(counts) or "none"


def _facts(metadata: Mapping[str, Any], report: BatchReport | None) -> Iterator[tuple[str, str]]:
    """Yield what is known about a run, one fact a line; those of its last report come last."""
    facts = {name: value for name, value in metadata.items() if name not in INTERNAL}
    for name, value in (facts | (_report_facts(report) if report else {})).items():
        if value not in (None, "", 0, False, (), {}):
            yield name.replace("_", " "), _format_value(value)


def _report_facts(report: BatchReport) -> dict[str, Any]:
    """Return the figures of a report that are short enough for a line each."""
    scores, spending = report.scores, report.spending
    return {
        **asdict(report.rows),
        "error_examples": {},
        **{kind: example.message for kind, example in report.rows.error_examples.items()},
        "initial_score": scores.initial,
        "best_score": scores.best,
        "uplift": scores.uplift,
        "uplift_interval": scores.uplift_interval,
        "score_bases": scores.bases,
        "calls": spending.calls,
        "retried_calls": spending.retried_calls,
        "cached_calls": spending.cached_calls,
        "tokens": "unknown" if spending.tokens is None else spending.tokens,
        "cost": "unknown" if spending.cost is None else spending.cost and format_usd(spending.cost),
        "cache_savings": spending.cache_savings and format_usd(spending.cache_savings),
        "stop": report.stop,
        "stop_note": report.stop_note,
        "seconds": report.seconds,
        "journal_lost": report.journal_lost,
        "resumable": report.resumable,
        **report.budget_and_priors(),
    }


def _format_value(value: Any) -> str:
    if isinstance(value, Mapping):
        parts = (
            (usd_amount(v) if k == "usd" else _format_value(v), k) for k, v in value.items() if v
        )
        return ", ".join(f"{amount} {name.replace('_', ' ')}" for amount, name in parts)
    if isinstance(value, list | tuple):
        return " to ".join(map(_format_value, value))
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:,.4g}"
    return f"{value:,}" if type(value) is int else str(value)


def _show_row(run: StoredRun, row: str, *, as_json: bool, full: bool) -> None:
    with Journal(run.path, read_only=True) as opened:
        trace = opened.trace(run.info.name, row)
    if trace is None:
        raise ConfigError(f"run {run.info.display_name!r} has no row {row!r}")
    print_trace(trace, as_json=as_json, full=full)


@runs.command()
@click.argument("run", type=RUN)
@click.option(
    "--output",
    "-o",
    type=click.Path(),
    required=True,
    metavar="FILE",
    help="Write to FILE (- for stdout).",
)
@options.overwrite
@options.journal
@options.debug
def export(run: str, output: str, overwrite: bool, journal: str | None) -> None:
    """Write the traces of a RUN as JSON Lines, one row per line, in input order. For training data,
    use `redraft export`.
    """
    if output != "-":
        check_output(output, overwrite=overwrite)
    stored, count = find_run(run, journal), 0
    stored.check_output(output)
    with Journal(stored.path, read_only=True) as opened, _open_output(output) as file:
        for row, trace in opened.traces(stored.info.name):
            data = {
                "run": stored.info.name,
                "id": row.id,
                "status": row.status,
                "result": row.facts and row.facts.as_data(),
            }
            file.write(f"{json.dumps({**data, 'trace': json.loads(trace.to_json())})}\n")
            count += 1
    notice(f"{pluralize(count, 'trace')} written to {'stdout' if output == '-' else output}")


@contextmanager
def _open_output(path: str) -> Iterator[TextIO]:
    """Open a file for writing that appears under its name when it is complete; or stdout."""
    if path == "-":
        yield sys.stdout
        return
    target = Path(path)
    if target.exists() and not target.is_file() and not target.is_dir():  # a device or a pipe
        with target.open("w", encoding="utf-8") as file:
            yield file
        return
    draft = AtomicFile(target)
    try:
        text = TextIOWrapper(draft.file, "utf-8")
        yield text
        text.detach()
        draft.commit()
    finally:
        draft.abort()


@runs.command()
@click.argument("run", required=False, type=RUN)
@click.option(
    "--older-than",
    type=options.POSITIVE,
    metavar="DAYS",
    help="Delete all runs that have not changed for DAYS days.",
)
@options.journal
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@options.debug
def prune(run: str | None, older_than: float | None, journal: str | None, yes: bool) -> int:
    """Delete a RUN, or all old ones, from the journal: rows, traces and results. Outputs and cached
    replies are kept.
    """
    if run is None and older_than is None:
        raise click.UsageError(
            "name a RUN to delete it, or give --older-than DAYS to delete all runs that are older"
        )
    if run is not None and older_than is not None:
        raise click.UsageError(
            f"{run} and --older-than exclude each other: a named RUN is deleted whatever its age"
        )
    if run is not None:
        selection = [find_run(run, journal)]
    else:
        limit = datetime.now(UTC) - timedelta(days=older_than or 0.0)
        selection = [
            each
            for each in read_runs(journal_paths(journal))
            if parse_time(each.info.updated_at) <= limit
        ]
    if not selection:
        notice("no run is that old")
        return OK
    if not yes:
        names = ", ".join(
            f"{each.info.display_name} ({pluralize(sum(each.info.counts.values()), 'row')})"
            for each in selection
        )
        if not sys.stdin.isatty():
            raise click.UsageError(f"this would delete {names}: give --yes")
        click.confirm(click.unstyle(f"Delete {single_line(names)}?"), abort=True, err=True)
    for each in selection:
        with Journal(each.path, create=False) as opened:
            merge_shards(opened)  # of workers that were killed
            opened.delete(each.info.name)
            opened.compact()
        notice(f"deleted the run {each.info.display_name} from {each.path}")
    return OK


@runs.command(epilog=SALVAGE_EPILOG)
@click.argument("damaged", type=click.Path(exists=True, dir_okay=False), metavar="JOURNAL")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False),
    required=True,
    metavar="FILE",
    help="Write to FILE.",
)
@options.overwrite
@options.debug
def salvage(damaged: str, output: str, overwrite: bool) -> None:
    """Write what can still be read of a damaged JOURNAL as JSON Lines. The journal is not
    changed.
    """
    check_output(output, overwrite=overwrite)
    say_what_is_not_merged(Path(damaged))
    counts = recover(damaged, output, overwrite=True)
    notice(
        f"{output}: {', '.join(pluralize(count, table.removesuffix('s')) for table, count in counts.items())}"  # noqa: E501
    )
