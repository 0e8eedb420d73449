"""`redraft validate`: measure whether a grader can be trusted."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from ...errors import ConfigError
from .. import options
from ..config import ConfiguredCommand
from ..errors import FAILED, INTERRUPTED, OK, UNPROVEN
from ..judging import JudgingRequest, column_option, limit_option, max_in_flight_option
from ..output import warning

if TYPE_CHECKING:
    from ...cards.card import CardStore
    from ...validation.run import JudgedCase, LabelledData, ValidationResult

EPILOG = """\b
Examples:
  redraft validate pairs.jsonl --grader helpfulness --judge openai:gpt-4o-mini
  redraft validate scores.csv --grader judge -c prompt=question -c label=human --repeats 3
  redraft validate pairs.jsonl --recorded arena_hard -c output=judge_text -c output_ba=judge_text_swapped
  redraft validate pairs.jsonl --grader pairwise --attacks attacks.jsonl
  redraft run "Explain it" --grader helpfulness --require-validated error

\b
DATA is JSONL, JSON, CSV or Parquet. Each row has one labelled answer (a score, or pass
and fail), a pair with the better one, or several answers with their ranking. Redraft
recognizes common column names and reports them; give others with -c OURS=THEIRS.

\b
Answers of the grader are saved as they arrive: after an interruption the same command
resumes, and no call is paid for twice. The card (card.md, card.json, plots) contains the
measures; `--require-validated` reads it. Exit codes: 0 better than chance, 1 failed, 2 usage,
3 not shown to be better than chance, 130 interrupted.
"""
RESUME = "run the same command without --restart to resume"
PROGRESS_INTERVAL = 2.0  # seconds between two lines of progress


def _list_formats(ctx: click.Context, param: click.Parameter, on: bool) -> None:
    if not on:
        return
    from ...validation.recorded_formats import OUTPUT_FORMATS

    for form in OUTPUT_FORMATS.values():
        click.echo(f"{form.name:16} {form.kind:8} {form.about}, such as {form.example!r}")
    ctx.exit()


@dataclass(frozen=True, kw_only=True)
class ValidateRequest(JudgingRequest):
    """The parameters of `redraft validate`, named after its options."""

    grader: str | None
    rubric: str | None
    repeats: int
    threshold: float
    scale: str | None
    recorded: str | None
    outputs: str | None
    attacks: str | None
    cards_dir: str | None
    restart: bool

    @property
    def label_range(self) -> tuple[float, float] | None:
        """The scale of the labels. Raises UsageError."""
        if self.scale is None:
            return None
        low_text, _, high_text = self.scale.partition("-")
        try:
            low, high = float(low_text), float(high_text)
        except ValueError:
            low = high = 0.0
        if not low < high or not isfinite(low) or not isfinite(high):
            raise click.UsageError(f"--scale {self.scale}: a scale is given as LOW-HIGH, such as 1-5")
        return low, high


@click.command(cls=ConfiguredCommand, epilog=EPILOG)
@click.argument("data", type=click.Path(exists=True, dir_okay=False))
@options.setting("--grader", metavar="NAME", help="The grader: a name that `redraft graders` lists, or a SPEC.")
@options.setting(
    "--rubric", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="An LLM judge with the criteria in FILE."
)
@options.setting("--model", metavar="MODEL", help="The model that the grader calls. Default: look for one.")
@options.setting("--judge", metavar="MODEL", help="The same; takes precedence over --model.")
@column_option
@click.option(
    "--kind",
    type=click.Choice(["score", "pass", "pair", "ranking"]),
    help="What the labels are. Needed where the data do not tell.",
)
@limit_option
@click.option(
    "--repeats",
    type=options.COUNT,
    default=1,
    show_default=True,
    metavar="N",
    help="Grade each answer N times, to measure the noise of the grader.",
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    metavar="S",
    help="Answers with at least this score pass.",
)
@click.option("--scale", metavar="LOW-HIGH", help="Scale of the labels, such as 1-5, to measure how lenient the grader is.")
@click.option("--recorded", metavar="FORMAT", help="Call no model: read recorded outputs in a format that --formats lists.")
@click.option(
    "--outputs", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="The recorded outputs, if not in DATA."
)
@click.option(
    "--formats",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_formats,
    help="List the formats of recorded outputs and exit.",
)
@click.option(
    "--attacks",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Measure how often the strings in FILE change the verdict.",
)
@options.setting(
    "--cards-dir", type=click.Path(file_okay=False), metavar="DIR", help="Folder of validation cards. Default: your data folder."
)
@click.option("--restart", is_flag=True, help="Set saved answers aside and grade everything again.")
@max_in_flight_option
@options.spending
@options.timeout
@options.as_json
@options.debug
def validate(**parameters: Any) -> int:
    """Measure a grader against labels of people in DATA. The result is saved as a validation card."""
    request = ValidateRequest(**parameters)
    if request.grader and request.rubric:
        raise click.UsageError("--grader and --rubric name two graders: measure one at a time")
    if request.recorded is None and not request.grader and not request.rubric:
        raise click.UsageError(
            "name what to measure: --grader NAME or --rubric FILE, or --recorded FORMAT for outputs of another system"
        )
    import asyncio

    from ...cards.card import CardStore
    from ...graders import as_grader
    from ...validation.card_page import write_card
    from ...validation.recorded_formats import find_format
    from ...validation.report import ReportConfig
    from ...validation.run import LabelledData

    columns, scale = request.column_names, request.label_range
    if request.recorded:
        find_format(request.recorded)
    elif request.grader:
        as_grader(request.grader)
    labelled = request.read_cases()
    if labelled.scale and not scale:
        low, high = labelled.scale
        click.echo(f"redraft: labels range from {low:g} to {high:g}; --scale LOW-HIGH also measures leniency", err=True)
    if labelled.ignored_filters and not request.outputs:
        raise ConfigError(f"where:{labelled.ignored_filters[0]}: no row has such a column")
    digest = _digest(request.data, {**columns, "kind": str(request.kind)})
    reading, name = ReportConfig(request.threshold, scale), Path(request.data).name
    data = LabelledData(labelled.cases, name, digest, len(labelled.skipped_rows), reading, labelled.column_list)
    store = CardStore.in_folder(request.cards_dir)
    try:
        if request.recorded:
            found = _measure_recorded(data, request, request.recorded, labelled.ignored_filters, store)
        else:
            found = asyncio.run(_measure_live(data, request, store))
    except (KeyboardInterrupt, asyncio.CancelledError):
        warning("interrupted; finished answers are saved", RESUME)
        return INTERRUPTED
    if not write_card(found):
        warning("the saved card is about more rows of the same data, and is kept")
    if request.as_json:
        click.echo(found.card.to_json(), nl=False)
    else:
        from ..views.card import show_card

        show_card(found)
    if found.stop_reason:
        warning(f"ended early: {found.stop_reason}; nothing is known about {found.card.unjudged} rows", RESUME)
        return FAILED
    return OK if found.card.trusted else UNPROVEN


def _digest(path: str, columns: Mapping[str, str]) -> str:
    """Return a hash of the columns and of the content of a file."""
    digest = hashlib.sha256(json.dumps(sorted(columns.items())).encode())
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


async def _measure_live(data: LabelledData, request: ValidateRequest, store: CardStore) -> ValidationResult:
    """Call the grader on each case."""
    from ...graders import Judge, Rubric
    from ...session import Session
    from ...validation.attacks import read_attacks
    from ...validation.run import LiveConfig
    from ...validation.run import validate as measure
    from ..request import announce_sources, find_model

    session_options = request.session_options()
    model = await find_model(request.judge or request.model)
    announce_sources(model)
    grader: Any = request.grader
    if request.rubric:
        rubric = Rubric.load(request.rubric)
        grader = Judge(rubric, rubric.name)
    session = Session(session_options, None, grader, model)
    attacks = read_attacks(request.attacks) if request.attacks else []
    with _show_progress(len(data.cases) * request.repeats + len(attacks)) as report:
        try:
            return await measure(data, session, store, LiveConfig(request.repeats, attacks, request.restart, report))
        finally:
            await session.close()


def _measure_recorded(
    data: LabelledData, request: ValidateRequest, form: str, ignored: Sequence[str], store: CardStore
) -> ValidationResult:
    """Read recorded outputs instead of calling the grader."""
    from ...validation.recorded import read_verdicts
    from ...validation.recorded_formats import parse_output
    from ...validation.run import validate_recorded

    if request.attacks:
        raise ConfigError("--attacks need a live grader: recorded outputs cannot be asked again")
    path = request.outputs or request.data
    verdicts = read_verdicts(path, data.cases, request.column_names, lambda text: parse_output(text, form), ignored)
    repeats = max((verdict.repeat for verdict in verdicts), default=0) + 1
    if repeats > 1:
        message = f"up to {repeats} outputs on the same row are taken as repeats of one judge"
        warning(message, "for several judges, choose one with -c where:COLUMN=VALUE")
    return validate_recorded(data, verdicts, store, grader=request.grader or Path(path).stem, output_format=form)


@contextmanager
def _show_progress(total: int) -> Iterator[Callable[[JudgedCase], None]]:
    """Show progress: a bar on a terminal, else a JSON line every other second."""
    if not sys.stderr.isatty():
        yield _ProgressLines(total)
        return
    from rich.progress import Progress

    from ..terminal import console

    with Progress(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("judging", total=total)
        left = iter(range(total - 1, -1, -1))

        def advance(_: JudgedCase) -> None:
            bar.update(task, advance=1, description="judging" if next(left, 0) else "measuring")

        yield advance


@dataclass
class _ProgressLines:
    """Writes the progress as JSON lines."""

    total: int
    done: int = 0
    lost: int = 0
    written: float = 0.0

    def __call__(self, case: JudgedCase) -> None:
        self.done += 1
        self.lost += bool(case.outage)
        if self.done == self.total or monotonic() - self.written > PROGRESS_INTERVAL:
            self.written = monotonic()
            click.echo(json.dumps({"event": "judged", "done": self.done, "of": self.total, "lost": self.lost}), err=True)
