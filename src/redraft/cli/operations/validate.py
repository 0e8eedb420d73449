"""Measures a grader against labelled data, and shows its card."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any, Literal, cast

import click
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from ...base.text import pluralize
from ...errors import ConfigError
from ...graders import as_grader
from ...graders.cards import MIN_CALIBRATION_LABELS, CardStore, Measure
from ...settings import ValidationSettings, settings_for
from ...validation import card_page as page
from ...validation import plots
from ...validation.api import in_direction, labelled_data, validate
from ...validation.attacks import read_attacks
from ...validation.card_page import write_card
from ...validation.labelled import LabelledCases, read_cases
from ...validation.recorded import read_verdicts
from ...validation.recorded_formats import OUTPUT_FORMATS, find_format, parse_output
from ...validation.report import ValidationReport
from ...validation.run import JudgedCase, ValidationResult, validate_recorded
from ..errors import FAILED, INTERRUPTED, OK, UNPROVEN
from ..grader_code import load_grader
from ..output import messages_are_json, notice, warning, write_event
from ..request import (
    SettingArguments,
    announce_sources,
    find_judge,
    judge_of,
    load_rubric,
    make_budget,
    parameter_settings,
    parse_prices,
    warn_if_unsafe,
)
from ..terminal import console, grid, text_line

CALIBRATION_HINT = (
    f"that takes {MIN_CALIBRATION_LABELS} labels from 0 to 1 with a score (another scale: --scale "
    "LOW-HIGH)"
)
RESUME = "run the same command without --restart to resume"
MAX_LISTED = 20  # skipped rows that are listed one by one
JSON_INTERVAL = 2.0  # seconds between two JSON lines of progress
TEXT_INTERVAL = 30.0  # seconds between two lines of text
WIDE = 120  # columns from which there is room for the meaning of each measure


@dataclass(frozen=True, kw_only=True)
class JudgingArguments(SettingArguments):
    """The arguments that `validate` and `rubric` share, named after their options."""

    data: str
    columns: dict[str, str]
    kind: Literal["score", "pass", "pair", "ranking"] | None
    limit: int | None
    model: str | None
    judge: str | None
    model_param: Mapping[str, Any] | None
    judge_param: Mapping[str, Any] | None
    budget_usd: float | None
    budget_calls: int | None
    budget_tokens: int | None
    price: tuple[str, ...]
    as_json: bool

    def read_cases(self) -> LabelledCases:
        """Read the labelled data and report how its columns were understood and which rows were
        skipped.
        """
        labelled = read_cases(self.data, self.columns, kind=self.kind, limit=self.limit)
        for text in labelled.column_notes:
            notice(text)
        for row in labelled.skipped_rows[:MAX_LISTED]:
            warning(f"skipped: {row.location}: {row.message}")
        if labelled.skipped_rows:
            warning(f"{pluralize(len(labelled.skipped_rows), 'row')} skipped")
        return labelled

    def session_settings(self) -> ValidationSettings:
        """Return the settings of a session, with the budget, the prices and the parameters that
        were given.
        """
        more = {
            "judge_params": parameter_settings(self).get("judge_params"),
            "budget": make_budget(
                usd=self.budget_usd, calls=self.budget_calls, tokens=self.budget_tokens
            ),
            "prices": parse_prices(self.price),
        }
        return cast("ValidationSettings", {**settings_for("validate", self.settings), **more})


@dataclass(frozen=True, kw_only=True)
class ValidateArguments(JudgingArguments):
    """The arguments of `redraft validate`, named after its options."""

    grader: str | None
    rubric: str | None
    template: str | None
    repeats: int
    threshold: float
    scale: str | None
    lower_is_better: bool | None
    recorded: str | None
    outputs: str | None
    attacks: str | None
    restart: bool

    @property
    def label_range(self) -> tuple[float, float] | None:
        """The lowest and highest label that --scale gives. Raises UsageError."""
        if self.scale is None:
            return None
        low_text, _, high_text = self.scale.partition("-")
        try:
            low, high = float(low_text), float(high_text)
        except ValueError:
            low = high = 0.0
        if not low < high or not isfinite(low) or not isfinite(high):
            raise click.UsageError(
                f"--scale {self.scale}: a scale is given as LOW-HIGH, such as 1-5"
            )
        return low, high


def list_formats() -> None:
    """Print the formats of recorded outputs."""
    table = grid()
    for form in OUTPUT_FORMATS.values():
        table.add_row(form.name, form.kind, f"{form.about}, such as {form.example!r}")
    console(stderr=False).print(table)


def run_command(values: Mapping[str, Any]) -> int:
    """Measure a grader, save and show its card, and return the exit code."""
    arguments = ValidateArguments.from_values(values)
    _check(arguments)
    labelled = _read_labelled(arguments)
    store = CardStore.in_folder(arguments.settings.get("cards_dir"))
    try:
        if arguments.recorded:
            result = _measure_recorded(labelled, arguments, arguments.recorded, store)
        else:
            result = asyncio.run(_measure_live(labelled, arguments))
    except (KeyboardInterrupt, asyncio.CancelledError):
        warning("interrupted; finished answers are saved", RESUME)
        return INTERRUPTED
    if not write_card(result.card, result.report, result.card_folder):
        warning("the saved card is about more rows of the same data, and is kept")
    if arguments.as_json:
        click.echo(result.card.to_json(), nl=False)
    else:
        show_card(result)
    if result.stop_reason:
        warning(
            f"ended early: {result.stop_reason}; nothing is known about {result.card.unjudged} "
            "rows",
            RESUME,
        )
        return FAILED
    return OK if result.card.trusted else UNPROVEN


def _check(arguments: ValidateArguments) -> None:
    """Raise UsageError or ConfigError for invalid arguments before any data are read."""
    by_rubric = arguments.rubric or arguments.template
    if arguments.grader and by_rubric:
        option = "--rubric" if arguments.rubric else "--template"
        raise click.UsageError(f"--grader and {option} name two graders: measure one at a time")
    if arguments.recorded is None and not arguments.grader and not by_rubric:
        raise click.UsageError(
            "name what to measure: --grader NAME, --rubric FILE or --template FILE, or --recorded "
            "FORMAT for outputs of another system"
        )
    _ = arguments.columns, arguments.label_range  # raise for a wrong syntax
    if arguments.recorded:
        find_format(arguments.recorded)
    elif arguments.grader:
        as_grader(load_grader(arguments.grader))


def _read_labelled(arguments: ValidateArguments) -> LabelledCases:
    """Read the labelled data, and report their scale. Raises ConfigError for a filter on a column
    that no row has.
    """
    labelled = arguments.read_cases()
    if labelled.scale and not (arguments.label_range or labelled.label_scale):
        low, high = labelled.scale
        notice(f"labels range from {low:g} to {high:g}; --scale LOW-HIGH also measures leniency")
    if labelled.ignored_filters and not arguments.outputs:
        raise ConfigError(f"where:{labelled.ignored_filters[0]}: no row has such a column")
    return labelled


async def _measure_live(labelled: LabelledCases, arguments: ValidateArguments) -> ValidationResult:
    """Call the grader on each case."""
    a = arguments
    rubric = load_rubric(a.rubric, a.template)
    grader: Any = judge_of(rubric) if rubric else load_grader(a.grader) if a.grader else None
    model = await find_judge(a.judge, a.model)
    announce_sources(model)
    attacks = read_attacks(a.attacks) if a.attacks else []
    warn_if_unsafe(a.settings.get("sandbox"), [a.grader] if a.grader else [])
    with _show_progress(len(labelled.cases) * a.repeats + len(attacks)) as report:
        return await validate(
            labelled,
            grader,
            model or False,
            repeats=a.repeats,
            threshold=a.threshold,
            scale=a.label_range,
            lower_is_better=a.lower_is_better,
            attacks=attacks,
            restart=a.restart,
            on_case=report,
            **a.session_settings(),
        )


def _measure_recorded(
    labelled: LabelledCases, arguments: ValidateArguments, form: str, store: CardStore
) -> ValidationResult:
    """Read recorded outputs instead of calling the grader."""
    if arguments.attacks:
        raise ConfigError("--attacks need a live grader: recorded outputs cannot be asked again")
    path = arguments.outputs or arguments.data
    columns, ignored = arguments.columns, labelled.ignored_filters
    beside = arguments.outputs is None
    verdicts = read_verdicts(
        path,
        labelled.cases,
        columns,
        lambda text: parse_output(text, form),
        ignored,
        beside_labels=beside,
    )
    repeats = max((verdict.repeat for verdict in verdicts), default=0) + 1
    if repeats > 1:
        message = f"up to {repeats} outputs on the same row are taken as repeats of one judge"
        warning(message, "for several judges, choose one with -c where:COLUMN=VALUE")
    directed = in_direction(
        labelled, lower_is_better=arguments.lower_is_better, scale=arguments.label_range
    )
    data = labelled_data(directed, arguments.threshold, arguments.label_range)
    return validate_recorded(
        data, verdicts, store, grader=arguments.grader or Path(path).stem, output_format=form
    )


@contextmanager
def _show_progress(total: int) -> Iterator[Callable[[JudgedCase], None]]:
    """Show progress: a bar on a terminal, else a line every half minute, or a JSON line every other
    second if asked for.
    """
    if not sys.stderr.isatty() or messages_are_json():
        yield _ProgressLines(total)
        return
    with Progress(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("judging", total=total)
        left = iter(range(total - 1, -1, -1))

        def advance(_: JudgedCase) -> None:
            bar.update(task, advance=1, description="judging" if next(left, 0) else "measuring")

        yield advance


@dataclass
class _ProgressLines:
    """Writes the progress line by line."""

    total: int
    done: int = 0
    lost: int = 0
    written: float = field(default_factory=monotonic)

    def __call__(self, case: JudgedCase) -> None:
        self.done += 1
        self.lost += bool(case.outage)
        interval = JSON_INTERVAL if messages_are_json() else TEXT_INTERVAL
        if self.done < self.total and monotonic() - self.written < interval:
            return
        self.written = monotonic()
        if messages_are_json():
            write_event("judged", done=self.done, of=self.total, lost=self.lost)
        else:
            notice(
                f"{self.done:,} of {self.total:,} judged"
                + (f", {self.lost:,} lost" if self.lost else "")
            )


def show_card(result: ValidationResult) -> None:
    """Print the verdict, the measures, the plots, and the path of the card."""
    out, card, report = console(stderr=False), result.card, result.report
    verdict, style = (
        ("better than chance", "bold green")
        if card.trusted
        else ("not shown to be better than chance", "bold red")
    )
    out.print(Text(verdict, style))
    out.print(text_line(f"{card.grader}: {page.format_headline(card.headline)}", "bold"))
    out.print()
    for line in filter(None, (card.repeats_line(), page.direction_hint(card))):
        out.print(text_line(line, "yellow"))
    out.print(_measure_table("measure", card.measures))
    if card.calibration:
        out.print(text_line(f"calibrated by {page.format_calibration(card.calibration)}"))
    elif card.kind in {"score", "pass"}:
        out.print(text_line(f"not calibrated to people's labels: {CALIBRATION_HINT}"))
    if card.class_rates:
        out.print(
            _table(
                ("class", "precision", "recall", "F1", "n"),
                map(page.class_rate_cells, card.class_rates),
            )
        )
    if card.groups:
        out.print(
            plots.forest_text(
                [(g.name, g.value, g.low, g.high, g.n, g.chance) for g in card.groups]
            )
        )
    if card.attacks:
        out.print(_measure_table("attack", [Measure(**row) for row in card.attacks["measures"]]))
        out.print(text_line(card.attacks["note"]))
    for plot in _report_plots(report):
        out.print(plot)
    for reason, times in (card.parse_errors or {}).items():
        out.print(text_line(f"unreadable, {times} x: {reason}", "dim"))
    if card.unjudged:
        what = (
            "failed: run the same command to retry them"
            if card.source == "live"
            else "have no recorded output"
        )
        out.print(text_line(f"{card.unjudged} rows {what}", "yellow"))
    out.print(text_line(f"card: {result.card_folder / 'card.md'}", "dim"))


def _report_plots(report: ValidationReport) -> Iterator[Table]:
    """The plots of what the labels and the scores allow to draw."""
    if report.confusion:
        yield plots.confusion_text(page.class_names(report.confusion), report.confusion)
    if report.scores:
        yield plots.histogram_text(report.scores)
    if report.probabilities:
        yield plots.reliability_text(page.score_reliability(report))


def _measure_table(name: str, measures: Iterable[Measure]) -> Table:
    out = console(stderr=False)
    meaning = [""] if out.is_terminal and out.width >= WIDE else []
    headers = (name, "value", "95 %", "n", "chance", *meaning)
    return _table(headers, (page.measure_cells(measure)[: len(headers)] for measure in measures))


def _table(headers: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for n, header in enumerate(headers):
        justify = "left" if n == 0 or not header else "right"
        table.add_column(
            header,
            justify=justify,  # type: ignore[arg-type]
            no_wrap=bool(header),
            style=None if header else "dim",
        )
    for cells in rows:
        table.add_row(*map(text_line, cells))
    table.add_section()
    return table
