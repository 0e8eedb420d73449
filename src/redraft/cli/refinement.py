"""One refinement of the command line, which `redraft run` and `redraft best` have in common: its
request, what is shown while it runs, and how its answer is written.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ..base.text import pluralize
from ..errors import ConfigError, GradingError, RedraftError, StoreError, attachment
from ..loop.records import Failure, Outcome, Record, Slot
from ..loop.serialize import record_to_json
from ..loop.steps import Step, Stop
from ..loop.trace import Trace
from ..plans import plan_traits
from ..plans.quality.priors import Priors
from ..result import Result, is_graded
from ..session.options import Options
from ..session.refinement import Refinement, finish_refinement, prepare_refinement
from ..storage import write_atomic
from ..storage.priors_store import PriorsStore
from ..usage import NO_USAGE
from .display import make_display
from .errors import error_event, exit_code, report_error
from .exit_codes import IMPERFECT, INTERRUPTED
from .options import OptionValues
from .output import notice, print_answer, warning
from .progress import (
    candidate_rows,
    describe_origin,
    describe_step,
    format_usage,
    print_event,
)
from .request import (
    announce_sources,
    answer_of,
    budget_of,
    build_settings,
    check_judge_params,
    graders_of,
    parse_model,
    report_unused_prices,
)
from .terminal import text_line

MAX_ANSWERS = 12  # shown in the live view: the latest, and the best


@dataclass(frozen=True)
class RefineRequest:
    """One refinement that the command line requests."""

    trace: Trace
    model: Any
    graders: list[Any] | None
    judge: Any
    options: Options


def build_request(settings: OptionValues, trace: Trace, **more: Any) -> RefineRequest:
    """Build the request from the settings of a command; `more` are settings without an option.
    Raises ConfigError.
    """
    if settings["model"] == "none" and not trace.task.given_responses and not trace.candidates:
        raise ConfigError(
            "--model none: there is no model to write an answer; give one to repair with "
            "--response FILE"
        )
    options: dict[str, Any] = {
        **build_settings(settings),
        "answer": answer_of(settings),
        "budget": budget_of(settings, trace.usage),
        **more,
    }
    return RefineRequest(
        trace,
        parse_model(settings["model"]),
        graders_of(settings),
        parse_model(settings["judge"]),
        Options(**options),
    )


class RefinementProgress:
    """Follows a refinement, and shows it: the trace as it grows, and the steps that are pending.

    As JSON it has the events start, step, record, and later result or error. As text, failures are
    reported when the work goes on; those that end it are left to the message that says why it
    ended. `given_records`: the number of records at the start that are given answers.
    """

    def __init__(self, *, as_json: bool, given_records: int = 0) -> None:
        self.as_json = as_json  # whether JSON goes to stdout
        self.trace: Trace | None = None
        self._given_records = given_records
        self._pending: dict[Slot, Step] = {}
        self._scored: set[int] = set()
        self._failures: list[Failure] = []
        self._started = monotonic()
        self.display = make_display(
            self.draw, write=print_event if as_json else None, is_transient=False
        )

    @property
    def seconds(self) -> float:
        return monotonic() - self._started

    def begin(self, trace: Trace) -> None:
        """Show where the refinement begins."""
        self.trace, records = trace, len(trace.records) - self._given_records
        self._scored = {c.id for c in trace.candidates if trace.scores[c.id] is not None}
        answers, calls = len(trace.candidates), trace.usage.calls
        resumed = f"resuming after {len(trace.records)} records: {answers} answers, {calls} calls"
        self.display.show(
            resumed if records > len(trace.task.given_responses) else "",
            "start",
            lambda: {"records": records, "panel": [s.name for s in trace.panel]},
        )

    def step(self, step: Step) -> None:
        """Show a step that begins."""
        if isinstance(step, Stop):
            return
        self._pending[step.slot] = step
        self._show_failures()
        about = describe_step(step)
        self.display.show(
            f"{about} ...",
            "step",
            lambda: {"step": step.role, "slot": step.slot, "description": about},
        )

    def record(self, record: Record) -> None:
        """Show what a step has given."""
        assert self.trace is not None
        self.trace += record
        self._pending.pop(getattr(record, "step_slot", record.slot), None)
        if isinstance(record, Failure):
            self._failures.append(record)
        elif not isinstance(record, Outcome):
            self._show_failures()
        for candidate, score, remark in candidate_rows(self.trace):
            if score and candidate.id not in self._scored:
                self._scored.add(candidate.id)
                parts = [f"{candidate.id} {describe_origin(candidate)}", f"score {score}", remark]
                self.display.show(" · ".join(filter(None, parts)))
        self.display.show("", "record", lambda: self._record_fields(record))

    def _record_fields(self, record: Record) -> dict[str, Any]:
        trace = self.trace
        assert trace is not None
        is_graded = bool(trace.graded_candidates)
        return {
            "record": json.loads(record_to_json(record)),
            "best": trace.best.id if is_graded and trace.best else None,
            "score": trace.score if is_graded else None,
            "judge_score": trace.judge_score if is_graded else None,
            "calls": trace.usage.calls,
        }

    def _show_failures(self, end_reason: str = "") -> None:
        """Show the failures since they were last shown, except those that are the reason why the
        work ended.
        """
        for line in dict.fromkeys(
            f"failed: {f.role}: {f.message}" for f in self._failures if f.message not in end_reason
        ):
            self.display.show(line)
        self._failures.clear()

    def end(self, error: str) -> None:
        """Show that the refinement has ended; `error` is the message of the error that ended it."""
        self._show_failures(error or (self.trace.stop_note if self.trace else ""))
        self._pending.clear()

    def draw(self) -> RenderableType:
        """Return the whole view in its present state."""
        trace = self.trace
        parts: list[RenderableType] = [candidate_table(trace)] if trace and trace.candidates else []
        if steps := [describe_step(step) for step in list(self._pending.values())]:
            more = f" and {len(steps) - 3} more" if len(steps) > 3 else ""
            parts.append(Spinner("dots", text_line(" · ".join(steps[:3]) + more), style="cyan"))
        usage = format_usage(trace.usage if trace else NO_USAGE, self.seconds)
        parts.append(Text(f"  {usage}", "dim", no_wrap=True, overflow="ellipsis"))
        return Group(*parts)


def candidate_table(trace: Trace) -> Table:
    """Return a table with a row for each answer: its score, its origin and a remark; the best is
    highlighted.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, expand=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, max_width=34, overflow="ellipsis")
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    best = trace.best.id if trace.graded_candidates and trace.best else None
    rows = list(candidate_rows(trace))
    for candidate, score, remark in [
        r for i, r in enumerate(rows) if i >= len(rows) - MAX_ANSWERS or r[0].id == best
    ]:
        style = "bold green" if candidate.id == best else ""
        source = text_line(
            f"{describe_origin(candidate)} by {candidate.by}"
            if candidate.by != "given"
            else "given"
        )
        table.add_row(
            Text(str(candidate.id), "dim"),
            Text(score or "·", style),
            source,
            text_line(remark, "dim"),
        )
    return table


async def run_request(request: RefineRequest, progress: RefinementProgress) -> Result:
    """Refine and show the progress."""
    refinement = await prepare_refinement(
        request.trace, request.model, request.graders, request.judge, request.options
    )
    is_missing = request.model is None and refinement.roles.writer is None
    if is_missing and not progress.as_json:
        warning(
            "no model was found, so only the built-in editor is used",
            "`redraft models` shows where Redraft looked for one",
        )
    session, models = refinement.session, refinement.session.models
    check_judge_params(session.graders)
    announce_sources(models.writer, models.judge)
    if note := session.default_judge_note:
        notice(note)
    report_unused_prices(session.options.prices, models.writer, models.judge)
    message = ""
    progress.begin(refinement.trace)
    with progress.display:
        _report_priors(refinement, as_json=progress.as_json)
        try:
            return await finish_refinement(refinement)
        except RedraftError as error:
            message = str(error)
            raise
        finally:
            progress.end(message)


def _report_priors(refinement: Refinement, *, as_json: bool) -> None:
    """Report the priors that the plan uses unless they are the shipped ones, and that learned
    priors are missing.
    """
    plan = plan_traits(refinement.plan).noise_aware
    if plan is None:
        return
    learned, tasks = refinement.session.options.priors == "learned", plan.priors.tasks
    key = refinement.session.knowledge.priors_key if learned else None
    if plan.calibration and not as_json:
        grader = refinement.session.knowledge.calibration.grader
        warning(f"scores and the target are by {plan.calibration.source}: the card of {grader!r}")
    if plan.priors == refinement.session.knowledge.labelled_figures.applied_to(Priors()):
        if not learned:
            return
        with suppress(StoreError):
            if key and (damage := PriorsStore.in_folder().load_error(key)):
                warning(
                    f"{damage}; the shipped priors are used",
                    f"`redraft priors forget {key.key[:8]}` deletes it",
                )
                return
        warning(
            "nothing has been learned yet about this model with these graders: the shipped priors "
            "are used"
        )
    elif as_json:
        print_event("priors", tasks=tasks, key=key.key if key else None)
    elif tasks:
        details = f" (redraft priors show {key.key[:8]})" if key else ""
        warning(f"priors learned from {pluralize(tasks, 'task')}{details}")
    else:
        warning("priors given by the plan")


def conclude(
    refine: Callable[[], Result],
    progress: RefinementProgress,
    report: Callable[[Result], object],
    output: str | None,
    *,
    needs_grade: bool = False,
    advice: str = "",
) -> int:
    """Refine, report the result, write the answer to the file `output` or stdout, and return the
    exit code. An interruption or an error that has an answer ends with that.

    `needs_grade`: whether an answer without a grade is none; `advice`: what to do after an
    interruption without an answer.
    """
    try:
        result = refine()
    except (KeyboardInterrupt, asyncio.CancelledError) as interruption:
        last = _best_so_far(interruption, progress)
        if last is None or (needs_grade and not is_graded(last.trace)):
            warning("interrupted before there was an answer", advice)
            return INTERRUPTED
        result = last
    except RedraftError as error:
        last = None if needs_grade else error.result
        if last is not None:
            _write_result(last, output, as_json=progress.as_json)
        if progress.as_json:
            print_event("error", **error_event(error))
        if last is None or not isinstance(error, GradingError):
            raise
        report_error(error)
        return IMPERFECT
    report(result)
    if not (progress.as_json or output) and sys.stdout.isatty() and sys.stderr.isatty():
        click.echo(err=True)  # between messages and answer on one terminal
    _write_result(result, output, as_json=progress.as_json)
    return exit_code(result)


def _best_so_far(interruption: BaseException, progress: RefinementProgress) -> Result | None:
    """Return the result that an interruption carries, or that of the trace that was shown last;
    None if there is no answer.
    """
    result: Result | None = attachment(interruption)
    trace = result.trace if result else progress.trace
    return (result or Result(trace)) if trace and trace.candidates else None


def _write_result(result: Result, output: str | None, *, as_json: bool) -> None:
    """Write the answer, or those that are kept, to the file `output`, or print it.

    If the file cannot be written, print the answer and raise OSError.
    """
    text = _answer_text(result)
    if output:
        try:
            write_atomic(output, text)
        except OSError as error:
            print_answer(text)
            message = f"cannot be written ({error.strerror}); the answer is on stdout instead"
            raise OSError(error.errno, message, output) from error
    if as_json:
        print_event("result", **result.to_dict())
    elif not output:
        print_answer(text)


def _answer_text(result: Result) -> str:
    """Return the answer; of several that are kept all, best first, with a line between them."""
    kept = [row.candidate.display_text for row in result.top]
    if len(kept) < 2:
        return result.display_text
    return "\n\n---\n\n".join(text.strip("\n") for text in kept)
