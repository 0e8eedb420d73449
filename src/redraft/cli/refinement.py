"""One refinement, as `redraft run` and `redraft best` carry it out: its progress is shown, and its answer written."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

from .. import api
from ..core.records import Record
from ..core.steps import Step
from ..core.trace import Trace
from ..errors import StoreError
from ..plans.adaptive import Adaptive
from ..quality.priors import Priors
from ..result import Result
from ..storage import write_atomic
from ..storage.priors_store import PriorsStore
from .errors import handle_sigterm
from .output import pluralize, print_answer, warning
from .progress import JsonReporter, PlainReporter, ProgressReporter, TraceProgress, print_event
from .request import RefineRequest, announce_sources


class RefinementDisplay:
    """Shows a refinement while it runs: as a live view, line by line, or as JSON."""

    def __init__(self, *, as_json: bool) -> None:
        self.progress = TraceProgress()
        self.as_json = as_json
        self._reporter = _make_reporter(self.progress, as_json=as_json)

    def begin(self, trace: Trace) -> None:
        self.progress.trace = trace
        self._reporter.begin(trace)

    def step(self, step: Step) -> None:
        self.progress.step(step)
        self._reporter.step(step)

    def record(self, record: Record) -> None:
        self.progress.record(record)
        self._reporter.record(record)

    def end(self) -> None:
        self._reporter.end()


def _make_reporter(progress: TraceProgress, *, as_json: bool) -> ProgressReporter:
    if as_json:
        return JsonReporter(progress)
    if sys.stderr.isatty():
        from .terminal import LiveReporter, console

        if not console(stderr=True).is_dumb_terminal:
            return LiveReporter(progress)
    return PlainReporter(progress)


async def run_request(request: RefineRequest, display: RefinementDisplay) -> Result:
    """Refine and show the progress. SIGTERM works like Ctrl-C: the best answer so far is returned."""
    task = asyncio.current_task()
    assert task is not None
    with handle_sigterm(asyncio.get_running_loop(), task.cancel):
        refinement = await api.prepare_refinement(request.trace, request.model, request.graders, request.judge, request.options)
        if request.model is None and refinement.writer_name is None and not display.as_json:
            warning(
                "no model was found, so only the built-in editor is used", "`redraft models` shows where Redraft looked for one"
            )
        announce_sources(refinement.session.writer, refinement.session.judge)
        display.begin(refinement.trace)
        _report_priors(refinement, as_json=display.as_json)
        try:
            return await api.finish_refinement(refinement)
        finally:
            display.end()


def _report_priors(refinement: api.Refinement, *, as_json: bool) -> None:
    """Report the priors that the plan uses unless they are the shipped ones, and that learned priors are missing."""
    if not isinstance(refinement.plan, Adaptive):
        return
    learned, tasks = refinement.session.options.priors == "learned", refinement.plan.priors.tasks
    key = refinement.session.priors_key if learned else None
    if refinement.plan.priors == Priors():
        if not learned:
            return
        with suppress(StoreError):
            if key and (damage := PriorsStore.in_folder().load_error(key)):
                warning(f"{damage}; the shipped priors are used", f"`redraft priors forget {key.key[:8]}` deletes it")
                return
        warning("nothing has been learned yet about this model with these graders: the shipped priors are used")
    elif as_json:
        print_event("priors", tasks=tasks, key=key.key if key else None)
    elif tasks:
        details = f" (redraft priors show {key.key[:8]})" if key else ""
        warning(f"priors learned from {pluralize(tasks, 'task')}{details}")
    else:
        warning("priors given by --priors")


def best_so_far(interruption: BaseException) -> Result | None:
    """Return the result that an interruption carries; None if no answer was graded before."""
    result: Result | None = getattr(interruption, "result", None)
    return result if result is not None and result.trace.graded_candidates else None


def write_result(result: Result, output: str | None, *, as_json: bool) -> None:
    """Write the answer to the file `output`, or print it. If the file cannot be written, print the answer and raise OSError."""
    if output:
        try:
            write_atomic(output, result.display_text)
        except OSError as error:
            print_answer(result.display_text)
            message = f"cannot be written ({error.strerror}); the answer is on stdout instead"
            raise OSError(error.errno, message, output) from error
    if as_json:
        print_event("result", **result.to_dict())
    elif not output:
        print_answer(result.display_text)
