"""`redraft validate`: measure whether a grader can be trusted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from ...base.sync import run_sync
from ...base.text import pluralize
from ...errors import ConfigError
from ...graders.cards import MIN_CALIBRATION_LABELS, CardStore, Measure
from ...graders.registry import as_grader
from ...validation import api, plots
from ...validation import card_page as page
from ...validation.attacks import read_attacks
from ...validation.cases import LabelKind, Verdict
from ...validation.labelled import LabelledCases, read_cases
from ...validation.recorded import read_verdicts
from ...validation.recorded_formats import OUTPUT_FORMATS, find_format, parse_output
from ...validation.report import ValidationReport
from ...validation.run import JudgedCase, LabelledData, ValidationResult, validate_recorded
from .. import options
from ..command_classes import ConfiguredCommand
from ..display import make_display, message_writer
from ..exit_codes import FAILED, IMPERFECT, INTERRUPTED, OK
from ..options import OptionValues
from ..output import notice, warning
from ..request import (
    announce_sources,
    find_judge,
    judge_of,
    judging_settings,
    load_rubric,
)
from ..terminal import console, figure_table, grid, text_line
from ..user_code import load_grader

CALIBRATION_HINT = (
    f"that takes {MIN_CALIBRATION_LABELS} labels from 0 to 1 with a score (another scale: --scale "
    "LOW-HIGH)"
)
RESUME = "run the same command without --restart to resume"
MAX_LISTED = 20  # skipped rows that are listed one by one
WIDE = 120  # columns from which there is room for the meaning of each measure

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
recognises common column names and reports them; name others with -c OURS=THEIRS.

\b
Verdicts are saved as they arrive: after an interruption the same command resumes, and
no call is paid for twice. The card (card.md, card.json, plots) contains the
measures; `--require-validated` reads it. Exit codes: 0 better than chance, 1 failed, 2 usage,
3 not shown to be better than chance, 130 interrupted.
"""  # noqa: E501


def _list_formats(ctx: click.Context, param: click.Parameter, on: bool) -> None:
    """Print the formats of recorded outputs, and end."""
    if on and not ctx.resilient_parsing:
        table = grid()
        for form in OUTPUT_FORMATS.values():
            table.add_row(form.name, form.kind, f"{form.about}, such as {form.example!r}")
        console(stderr=False).print(table)
        ctx.exit()


@click.command(
    short_help="Measure a grader against labels of people.", cls=ConfiguredCommand, epilog=EPILOG
)
@click.argument("data", type=click.Path(exists=True, dir_okay=False))
@options.setting(
    "--grader",
    type=options.GRADER,
    metavar="NAME",
    help=(
        "The grader: a name that `redraft graders` lists, a SPEC, or code of yours as "
        "FILE.py:NAME or MODULE:NAME."
    ),
)
@options.rubric
@options.template
@options.setting(
    "--model", metavar="MODEL", help="The model that the grader calls. Default: look for one."
)
@options.setting("--judge", metavar="MODEL", help="The same; takes precedence over --model.")
@options.params
@options.execution
@options.label_columns
@click.option(
    "--kind",
    type=click.Choice(["score", "pass", "pair", "ranking"]),
    help="Kind of the labels, if the data do not show it.",
)
@options.direction("labels")
@options.label_limit
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
    type=options.NumberRange(0, 1),
    default=0.5,
    show_default=True,
    metavar="S",
    help="Answers with at least this score pass.",
)
@options.scale("Scale of the labels, such as 1-5, to measure how lenient the grader is.")
@click.option(
    "--recorded",
    metavar="FORMAT",
    help="Call no model: read recorded outputs in a format that --formats lists.",
)
@click.option(
    "--outputs",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="The recorded outputs, if not in DATA.",
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
@options.cards_dir
@click.option(
    "--restart", is_flag=True, help="Set saved verdicts aside and grade everything again."
)
@options.judge_calls_in_flight
@options.budget
@options.timeout
@options.as_json
@options.debug
def validate(
    *,
    data: str,
    grader: str | None,
    rubric: str | None,
    template: str | None,
    columns: Mapping[str, str],
    kind: LabelKind | None,
    lower_is_better: bool | None,
    limit: int | None,
    repeats: int,
    threshold: float,
    scale: tuple[float, float] | None,
    recorded: str | None,
    outputs: str | None,
    attacks: str | None,
    restart: bool,
    as_json: bool,
    **settings: Any,
) -> int:
    """Measure how far a grader agrees with the human labels in DATA. The result is saved as a
    validation card.
    """
    _check_grader(grader, rubric, template, recorded)
    labelled = read_labelled(data, columns, kind, limit)
    if labelled.scale and not (scale or labelled.label_scale):
        low, high = labelled.scale
        notice(f"labels range from {low:g} to {high:g}; --scale LOW-HIGH also measures leniency")
    if labelled.ignored_filters and not outputs:
        raise ConfigError(f"where:{labelled.ignored_filters[0]}: no row has such a column")
    how: dict[str, Any] = {
        "threshold": threshold,
        "scale": scale,
        "lower_is_better": lower_is_better,
    }
    try:
        if recorded:
            if attacks:
                raise ConfigError(
                    "--attacks need a live grader: recorded outputs cannot be asked again"
                )
            verdicts = _read_verdicts(labelled, columns, data, outputs, recorded)
            result = validate_recorded(
                _as_data(labelled, **how),
                verdicts,
                CardStore.in_folder(settings["cards_dir"]),
                grader=grader or Path(outputs or data).stem,
                output_format=recorded,
            )
        else:
            how |= {"repeats": repeats, "restart": restart}
            judge = load_rubric(rubric, template)
            measured: Any = judge_of(judge) if judge else load_grader(grader or "")
            named = [grader] if grader else []
            result = run_sync(
                _measure_live(labelled, measured, attacks, how, {**settings, "grader": named})
            )
    except KeyboardInterrupt:
        warning("interrupted; finished answers are saved", RESUME)
        return INTERRUPTED
    return _report(result, as_json=as_json)


def _report(result: ValidationResult, *, as_json: bool) -> int:
    """Save and show the card, and return the exit code."""
    if not page.write_card(result.card, result.report, result.card_folder):
        warning("the saved card is about more rows of the same data, and is kept")
    if as_json:
        click.echo(result.card.to_json(), nl=False)
    else:
        _show_card(result)
    if result.stop_reason:
        message = f"ended early: {result.stop_reason}; nothing is known about"
        warning(f"{message} {result.card.unjudged} rows", RESUME)
        return FAILED
    return OK if result.card.trusted else IMPERFECT


def _check_grader(
    grader: str | None, rubric: str | None, template: str | None, recorded: str | None
) -> None:
    """Raise UsageError or ConfigError before any data are read, unless one grader is named."""
    if grader and (rubric or template):
        option = "--rubric" if rubric else "--template"
        raise click.UsageError(f"--grader and {option} name two graders: measure one at a time")
    if recorded:
        find_format(recorded)
    elif grader:
        as_grader(load_grader(grader))
    elif not (rubric or template):
        raise click.UsageError(
            "name what to measure: --grader NAME, --rubric FILE or --template FILE, or --recorded "
            "FORMAT for outputs of another system"
        )


def read_labelled(
    data: str, columns: Mapping[str, str], kind: LabelKind | None, limit: int | None
) -> LabelledCases:
    """Read labelled data, and report how the columns were understood and which rows were
    skipped.
    """
    labelled = read_cases(data, columns, kind=kind, limit=limit)
    for text in labelled.column_notes:
        notice(text)
    for row in labelled.skipped_rows[:MAX_LISTED]:
        warning(f"skipped: {row.location}: {row.message}")
    if labelled.skipped_rows:
        warning(f"{pluralize(len(labelled.skipped_rows), 'row')} skipped")
    return labelled


async def _measure_live(
    labelled: LabelledCases,
    grader: Any,
    attacks: str | None,
    how: Mapping[str, Any],
    settings: OptionValues,
) -> ValidationResult:
    """Call the grader on each case; `how` are the arguments of `validate`."""
    model = await find_judge(settings["judge"], settings["model"])
    announce_sources(model)
    strings = read_attacks(attacks) if attacks else []
    given: Any = {**how, **judging_settings(settings)}
    progress = CasesProgress(len(labelled.cases) * how["repeats"] + len(strings))
    with progress.display:
        return await api.validate(
            labelled, grader, model or False, attacks=strings, on_case=progress, **given
        )


def _as_data(
    labelled: LabelledCases,
    *,
    threshold: float,
    scale: tuple[float, float] | None,
    lower_is_better: bool | None,
) -> LabelledData:
    """Return the cases with how their labels and scores are read."""
    directed = api.in_direction(labelled, lower_is_better=lower_is_better, scale=scale)
    return api.labelled_data(directed, threshold, scale)


def _read_verdicts(
    labelled: LabelledCases,
    columns: Mapping[str, str],
    data: str,
    outputs: str | None,
    form: str,
) -> list[Verdict]:
    """Read recorded outputs, beside the labels or in a file of their own."""
    verdicts = read_verdicts(
        outputs or data,
        labelled.cases,
        columns,
        lambda text: parse_output(text, form),
        labelled.ignored_filters,
        beside_labels=outputs is None,
    )
    if (repeats := max((verdict.repeat for verdict in verdicts), default=0) + 1) > 1:
        message = f"up to {repeats} outputs on the same row are taken as repeats of one judge"
        warning(message, "for several judges, choose one with -c where:COLUMN=VALUE")
    return verdicts


class CasesProgress:
    """Shows how many of the cases are judged: in a terminal as a bar."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._lost = total, 0, 0
        self._bar = Progress(console=console(stderr=True))
        self._task = self._bar.add_task("judging", total=total)
        self.display = make_display(self._bar.get_renderable, write=message_writer())

    def __call__(self, case: JudgedCase) -> None:
        self._done += 1
        self._lost += bool(case.outage)
        is_last = self._done >= self._total
        self._bar.update(self._task, advance=1, description="measuring" if is_last else "judging")
        lost = f", {self._lost:,} lost" if self._lost else ""
        line = f"{self._done:,} of {self._total:,} judged{lost}"
        show = self.display.show if is_last else self.display.show_progress
        show(line, "judged", lambda: {"done": self._done, "of": self._total, "lost": self._lost})


def _show_card(result: ValidationResult) -> None:
    """Print the verdict, the measures, the plots, and the path of the card."""
    out = console(stderr=False)
    for part in _card_parts(result, with_meaning=out.is_terminal and out.width >= WIDE):
        out.print(part)


def _card_parts(result: ValidationResult, *, with_meaning: bool) -> Iterator[Text | Table]:
    card = result.card
    if card.trusted:
        yield Text("better than chance", "bold green")
    else:
        yield Text("not shown to be better than chance", "bold red")
    yield text_line(f"{card.grader}: {page.format_headline(card.headline)}", "bold")
    yield Text()
    for line in filter(None, (card.repeats_line(), page.direction_hint(card))):
        yield text_line(line, "yellow")
    yield _measure_table("measure", card.measures, with_meaning=with_meaning)
    if card.calibration:
        yield text_line(f"calibrated by {page.format_calibration(card.calibration)}")
    elif card.kind in {"score", "pass"}:
        yield text_line(f"not calibrated to people's labels: {CALIBRATION_HINT}")
    if card.class_rates:
        headings = ("class", "precision", "recall", "F1", "n")
        yield figure_table(headings, map(page.class_rate_cells, card.class_rates), headings[1:])
    if card.groups:
        groups = [(g.name, g.value, g.low, g.high, g.n, g.chance) for g in card.groups]
        yield plots.forest_text(groups)
    if card.attacks:
        measures = [Measure(**row) for row in card.attacks["measures"]]
        yield _measure_table("attack", measures, with_meaning=with_meaning)
        yield text_line(card.attacks["note"])
    yield from _plots(result.report)
    for reason, times in (card.parse_errors or {}).items():
        yield text_line(f"unreadable, {times} x: {reason}", "dim")
    if card.unjudged:
        failed = "failed: run the same command to retry them"
        what = failed if card.source == "live" else "have no recorded output"
        yield text_line(f"{card.unjudged} rows {what}", "yellow")
    yield text_line(f"card: {result.card_folder / 'card.md'}", "dim")


def _plots(report: ValidationReport) -> Iterator[Table]:
    """Yield the plots of what the labels and the scores allow to draw."""
    if report.confusion:
        yield plots.confusion_text(page.class_names(report.confusion), report.confusion)
    if report.scores:
        yield plots.histogram_text(report.scores)
    if report.probabilities:
        yield plots.reliability_text(page.score_reliability(report))


def _measure_table(name: str, measures: Iterable[Measure], *, with_meaning: bool) -> Table:
    headings = (name, "value", "95%", "n", "chance", *([""] if with_meaning else []))
    rows = (page.measure_cells(measure)[: len(headings)] for measure in measures)
    return figure_table(headings, rows, headings[1:5])
