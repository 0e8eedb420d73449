"""The work behind `redraft run`: set up, watch, hand over what came of it."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import click

from .. import api
from ..core.records import Comparison, Record
from ..core.steps import Step
from ..core.trace import Trace
from ..errors import RedraftError, StoreError
from ..plans.adaptive import Adaptive
from ..quality.priors import Priors
from ..result import Result, diagnosis_text, error_data
from ..storage import JsonlStore, read_trace, write_atomic
from ..storage.priors_store import PriorsKey, PriorsStore
from ..sync import run_sync
from ..text import strip_control_sequences
from . import files, lines
from .config import Configured
from .consent import keep_for_trace
from .exits import INTERRUPTED, complain, exit_code, heeding_sigterm
from .origins import announce
from .progress import Progress, Watcher, tally, verdict
from .wishes import Wish, chosen_in, new_task, recalled, remembered, taken_up, wish


def refine(ctx: click.Context, typed: dict[str, Any]) -> int:
    """Refine, say how it went, print the answer; the exit code."""
    watch = Watch(typed["as_json"])
    try:
        result = carry_out(ctx, typed, watch)
    except (KeyboardInterrupt, asyncio.CancelledError) as cut:
        if (best := best_so_far(cut)) is None:
            return _interrupted(watch, typed)
        result = best
    except RedraftError as error:
        if error.result is not None:
            hand_over(error.result, typed)
        if typed["as_json"]:
            lines.emit("error", **error_data(error))
        raise
    if not typed["as_json"]:
        _conclude(result, typed, watch)
    hand_over(result, typed)
    return exit_code(result)


def best_so_far(cut: BaseException) -> Result | None:
    """What was graded when somebody interrupted; None where nothing was."""
    result: Result | None = getattr(cut, "result", None)
    return result if result is not None and result.trace.graded_candidates else None


def carry_out(ctx: click.Context, typed: dict[str, Any], watch: Watch) -> Result:
    """The work itself, kept in the trace file that was named."""
    assert isinstance(ctx.command, Configured)
    params = ctx.command.settings
    with ExitStack() as open_files:
        store = _store(typed, open_files)
        if typed["resume"]:
            given = read_trace(typed["resume"])
            typed.update(recalled(ctx, typed, params, given, typed["resume"]))
            given = taken_up(given, typed)
        else:
            given = Trace(new_task(typed), settings=remembered(typed, params))
            if typed["trace"]:
                keep_for_trace(typed["trace"], chosen_in(given, Path(typed["trace"])))
        asked = wish(typed, given, store=store, on_record=watch.record, on_step=watch.step)
        return run_sync(watched(asked, watch))


async def watched(asked: Wish, watch: Watch) -> Result:
    """Refine under somebody's eyes. Being told to end is like being interrupted: what is there is handed over."""
    work = asyncio.current_task()
    assert work is not None
    with heeding_sigterm(asyncio.get_running_loop(), work.cancel):
        return await _watched(asked, watch)


async def _watched(asked: Wish, watch: Watch) -> Result:
    job = await api.prepare_refinement(asked.given, asked.model, asked.graders, asked.judge, asked.options)
    if asked.model is None and job.writer_name is None and not watch.as_json:
        complain(
            "no model was found, so the built-in editor repairs what form allows", "`redraft models` shows where it was looked for"
        )
    announce(job.session.writer, job.session.judge)
    watch.begin(job.trace)
    _tell_of_priors(job, watch)
    try:
        return await api.finish_refinement(job)
    finally:
        watch.end()


def _tell_of_priors(job: api.Refinement, watch: Watch) -> None:
    """Say by which priors the plan goes, where they are not the shipped ones, or that those asked for are not there."""
    if not isinstance(job.plan, Adaptive):
        return
    learned, tasks = job.session.options.priors == "learned", job.plan.priors.tasks
    pair = job.session.priors_key if learned else None
    if job.plan.priors == Priors():
        if learned:
            complain(*_without_learned(pair))
    elif watch.as_json:
        lines.emit("priors", tasks=tasks, key=pair.key if pair else None)
    elif tasks:
        shown = f" (redraft priors show {pair.key[:8]})" if pair else ""
        complain(f"what is expected was learned from {tasks:,} task{'s' * (tasks > 1)}{shown}")
    else:
        complain("what is expected was given, and is not as shipped")


def _without_learned(pair: PriorsKey | None) -> tuple[str, str]:
    """Why there are no learned priors of a model with its graders, and what to do about it."""
    with suppress(StoreError):
        if pair and (damage := PriorsStore.in_folder().load_error(pair)):
            return f"{damage}; the shipped priors hold", f"`redraft priors forget {pair.key[:8]}` removes it"
    return "nothing was learned yet of this model with these graders: the shipped priors hold", ""


def _store(typed: Mapping[str, Any], open_files: ExitStack) -> JsonlStore | None:
    path = typed["resume"] or typed["trace"]
    if not path:
        return None
    if not Path(path).exists():
        open_files.callback(_drop_if_empty, Path(path))
    return open_files.enter_context(JsonlStore(path, resume=bool(typed["resume"])))


def _drop_if_empty(path: Path) -> None:
    """A trace in which nothing began is none."""
    if path.is_file() and not path.stat().st_size:
        path.unlink()


class Watch:
    """Keeps the progress and tells of it: live, line by line, or as JSON."""

    def __init__(self, as_json: bool) -> None:
        self.progress = Progress()
        self.as_json = as_json
        self._watcher = _watcher(self.progress, as_json=as_json)

    def begin(self, trace: Trace) -> None:
        self.progress.trace = trace
        self._watcher.begin(trace)

    def step(self, step: Step) -> None:
        self.progress.step(step)
        self._watcher.step(step)

    def record(self, record: Record) -> None:
        self.progress.record(record)
        self._watcher.record(record)

    def end(self) -> None:
        self._watcher.end()


def _watcher(progress: Progress, *, as_json: bool) -> Watcher:
    if as_json:
        return lines.JsonLines(progress)
    if sys.stderr.isatty():
        from .live import LiveView, console

        if not console(stderr=True).is_dumb_terminal:
            return LiveView(progress)
    return lines.PlainLines(progress)


def hand_over(result: Result, typed: Mapping[str, Any]) -> None:
    """The answer, to where it was wanted."""
    if typed["output"]:
        _write(typed["output"], result.display_text)
    if typed["as_json"]:
        lines.emit("result", **result.to_dict())
    elif not typed["output"]:
        files.show_answer(result.display_text)


def _write(path: str, text: str) -> None:
    """Write the answer; where that fails it goes to stdout, and the error says so: it was paid for."""
    try:
        write_atomic(path, text)
    except OSError as error:
        files.show_answer(text)
        raise OSError(error.errno, f"cannot be written ({error.strerror}); the answer is on stdout instead", path) from error


def _conclude(result: Result, typed: Mapping[str, Any], watch: Watch) -> None:
    """How it went, on stderr."""
    click.echo(f"redraft: {lines.closing(result)}", err=True)
    if not sys.stderr.isatty():
        click.echo(f"redraft: {tally(result.usage, watch.progress.seconds)}", err=True)
    for comparison in [r for r in result.trace.records if isinstance(r, Comparison)][-1:]:
        complain(verdict(comparison))
    if remark := diagnosis_text(result):
        click.echo(f"redraft: {' '.join(remark.split())}", err=True)
    for name in result.metadata["broken"]:
        click.echo(f"redraft: still broken: {strip_control_sequences(name)}", err=True)
    if result.stop.resumable:
        click.echo(f"redraft: {_how_to_go_on(typed)}", err=True)
    if sys.stdout.isatty() and sys.stderr.isatty() and not typed["output"]:
        click.echo(err=True)


def _how_to_go_on(typed: Mapping[str, Any]) -> str:
    path = typed["resume"] or typed["trace"]
    return f"go on with: redraft run --resume {shlex.quote(path)}" if path else "with --trace FILE it could be resumed"


def _interrupted(watch: Watch, typed: Mapping[str, Any]) -> int:
    """Interrupted with nothing graded: hand over what there is."""
    complain("interrupted before anything was graded", _how_to_go_on(typed))
    trace = watch.progress.trace
    if trace is not None and trace.candidates:
        hand_over(Result(trace), typed)
    return INTERRUPTED
