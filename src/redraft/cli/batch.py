"""`redraft batch`: every row of a data set."""

from __future__ import annotations

from typing import Any

import click

from . import notices, options
from .sections import Sectioned

EPILOG = """\b
Examples:
  redraft batch questions.jsonl -o answers.jsonl --model ollama:llama3.2
  redraft batch questions.csv -o answers.parquet --prompt-col question --require words:80-200
  redraft batch "part-*.jsonl.gz" -o out.jsonl --model openai:gpt-4o-mini --budget-usd 20 --rpm 500
  redraft batch answers.jsonl -o scores.jsonl --mode grade --grader helpfulness --judge openai:gpt-4o
  redraft batch questions.jsonl -o best.jsonl --mode best -n 8 --rubric rubric.toml
  redraft batch questions.jsonl -o answers.jsonl --dry-run
  redraft batch answers.jsonl -o repaired.jsonl --model none --require bullets:3

\b
IN is JSONL, JSON, CSV, TSV or Parquet (.gz and .zst too), a pattern in quotes, a
folder, - for stdin (JSONL), or hf:NAME[:SPLIT] for a Hugging Face data set. OUT is
JSONL, CSV or Parquet by its name, - for stdout. Common columns are recognised;
--dry-run says which, --prompt-col and its like name others. Rows keep their columns
and get best, initial_score, best_score, iterations, stop, calls, tokens, cost, error.

\b
Everything is kept in a journal beside OUT as it arrives: the same command goes on
where it was cut short, by whatever, and pays for nothing twice. Rows whose input or
settings changed are done again, the others are not; --explain says why beforehand. Ctrl-C once
finishes what is in flight, twice ends at once. Progress goes to stderr: a live view
in a terminal, else JSON objects, one a line, and nothing else; with --json, JSON lines to
stdout. With -o - nothing is kept, so such a run cannot go on, unless --journal is given.

\b
Exit codes:
  0    all rows have a result
  1    the run was cut short: budget, deadline, an endpoint, the disk
  2    something asked for cannot be
  3    some rows have no result, break a requirement, or could not be read
  130  interrupted
"""

SECTIONS = {
    "output": "Output and journal",
    "mode": "What is done",
    "prompt_col": "Columns of the input",
    "require": "Grading",
    "model": "Models",
    "target": "When a row is finished",
    "budget_usd": "Money and time, for the whole run",
    "start_in_flight": "Pace, for each endpoint",
    "engine": "Where it runs",
    "dry_run": "What is shown",
}

COLUMNS = {
    "prompt": "What is asked for.",
    "messages": "Chat messages, instead of a prompt.",
    "response": "An answer to start from.",
    "id": "What tells rows apart. Default: their content.",
    "system": "A system message.",
    "reference": "A known good answer for the judge.",
    "context": "Material for the judge.",
    "tests": "Tests of code, shown to judges; they are not run.",
    "requirements": "A list of specs, such as words:80-200.",
    "tools": "Tools that the model may call: a list, as OpenAI's.",
}

OF_ENGINES = {"ray_address": "ray", "shards": "ray", "poll": "provider-batch"}

columns = options.group(
    *(options.setting(f"--{name}-col", metavar="COLUMN", help=f"{about}") for name, about in COLUMNS.items()),
)

pace = options.group(
    options.setting(
        "--start-in-flight", type=options.COUNT, default=16, show_default=True, metavar="N", help="Calls at once, to begin with."
    ),
    options.setting("--min-in-flight", type=options.COUNT, default=1, show_default=True, metavar="N", help="Never fewer."),
    options.setting(
        "--max-in-flight",
        type=options.COUNT,
        default=512,
        show_default=True,
        metavar="N",
        help="Never more; what the server takes is found out.",
    ),
    options.setting("--rpm", type=click.FloatRange(0, min_open=True), metavar="N", help="At most N requests a minute."),
    options.setting("--tpm", type=click.FloatRange(0, min_open=True), metavar="N", help="At most N tokens a minute."),
    options.timeout,
    options.setting(
        "--outage",
        type=options.POSITIVE,
        default=3600.0,
        show_default=True,
        metavar="SECONDS",
        help="Wait this long for an endpoint that is down.",
    ),
)


class Lined(Sectioned):
    """A command whose stderr is a JSON object a line where no terminal shows it, errors in its arguments included."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Decide how lines are written before anything can be wrong."""
        notices.write_json_lines()
        return super().make_context(*args, **kwargs)


@click.command(cls=Lined, epilog=EPILOG, sections=SECTIONS)
@click.argument("inputs", nargs=-1, required=True, metavar="IN...")
@click.option("--output", "-o", type=click.Path(), metavar="OUT", help="Write the rows there.")
@click.option(
    "--spreadsheet-safe", is_flag=True, help="In CSV and TSV, put ' before what a spreadsheet would evaluate; undone on reading."
)
@click.option("--unordered", is_flag=True, help="Write rows as they are finished, not in the order of the input.")
@click.option(
    "--errors", type=click.Path(dir_okay=False), metavar="FILE", help="Rows that cannot be read. Default: OUT.errors.jsonl."
)
@click.option(
    "--journal",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Where all is kept. Default: OUT.journal.",
)
@click.option("--name", metavar="NAME", help="What the run is called in its journal. Default: after OUT.")
@options.setting(
    "--durability",
    type=click.Choice(["normal", "full"]),
    default="normal",
    show_default=True,
    help="Safe against a crash of the program, or of the machine, too.",
)
@click.option(
    "--mode", type=click.Choice(["refine", "grade", "best"]), default="refine", show_default=True, help="What is done with a row."
)
@click.option("-n", "n", type=options.COUNT, metavar="N", help="With --mode best: draft N answers.  [default: 4]")
@click.option("--limit", type=options.COUNT, metavar="N", help="Only the first N rows.")
@click.option(
    "--retry",
    type=click.Choice(["failed", "truncated"]),
    multiple=True,
    help="Do these rows again in a run that was finished (repeatable).",
)
@options.setting(
    "--on-duplicate",
    type=click.Choice(["error", "first", "last", "rename"]),
    default="error",
    show_default=True,
    help="When an id stands twice.",
)
@columns
@options.grading
@options.asking
@options.sampling
@options.stopping
@options.setting("--editor/--no-editor", default=True, help="Repair by form alone before a model is asked. Default: yes.")
@options.spending
@pace
@click.option(
    "--engine",
    type=click.Choice(["local", "ray", "provider-batch"]),
    default="local",
    show_default=True,
    help="Here, on a Ray cluster, or by a provider's batch API.",
)
@click.option("--ray-address", metavar="ADDRESS", help="With --engine ray: a cluster that is there. Default: start one here.")
@click.option("--shards", type=options.COUNT, metavar="N", help="With --engine ray: split the rows in N parts.")
@click.option(
    "--poll",
    type=click.FloatRange(0, 3600, min_open=True),
    metavar="SECONDS",
    help="With --engine provider-batch: ask this often whether a batch is done.",
)
@click.option(
    "--learn/--no-learn",
    default=True,
    help="Let later rows, and runs with --priors learned, believe what earlier rows taught. Default: yes.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be read, asked and roughly cost. Asks and writes nothing.")
@click.option(
    "--explain", is_flag=True, help="Like --dry-run; says too what changed since the last time, and so would be done again."
)
@click.option(
    "--metrics", type=click.IntRange(0, 65535), metavar="PORT", help="Serve the numbers to Prometheus on 127.0.0.1:PORT (0: any)."
)
@options.as_json
@options.debug
def batch(**typed: Any) -> int:
    """Refine every row of IN, or only grade it, or keep the best of several answers, and write it to OUT."""
    typed["dry_run"] = typed["dry_run"] or typed["explain"]
    _check(typed)
    options.check_plain(click.get_current_context())
    from .batching import carry_out

    return carry_out(typed)


def _check(typed: dict[str, Any]) -> None:
    """Raises UsageError for what does not go together."""
    if typed["output"] is None and not typed["dry_run"]:
        raise click.UsageError("an output is missing: give -o OUT.jsonl, or --dry-run to see what would be done")
    if typed["n"] and typed["mode"] != "best":
        raise click.UsageError("-n drafts answers to choose among: it goes with --mode best")
    for name, engine in OF_ENGINES.items():
        if typed[name] and typed["engine"] != engine:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --engine {engine}")
    if typed["output"] not in (None, "-"):
        from .files import check_writable

        check_writable(typed["output"])
