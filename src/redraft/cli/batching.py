"""The work behind `redraft batch`: set up, follow, heed signals, say how it ended."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import RedraftError
from ..graders import Judge, must
from ..models import connect
from ..result import error_data
from ..runs import Limits, Progress, Report, Run
from ..tables.columns import TaskColumns
from . import batchview as view
from . import notices
from .batch import COLUMNS
from .choosing import DRAFTS
from .exits import FAILED, HINTS, INTERRUPTED, OK, heeding_sigterm
from .metrics import served
from .origins import announce
from .wishes import budget_of, canonical, chosen_graders, model_found, model_named, settings_of

MISSED = 3  # some rows have no result, or one that breaks a must
GOES_ON = "the same command goes on"


def carry_out(typed: Mapping[str, Any]) -> int:
    """Do every row; the exit code."""
    if typed["engine"] == "ray":  # it tells of the death of a worker on stdout, where rows may go
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        ended = asyncio.run(_carried_out(typed))
    except (KeyboardInterrupt, asyncio.CancelledError):
        kept = _resumable(typed)
        notices.error("interrupted" + ("; what was finished is kept" if kept else ""), f"{GOES_ON} from here" if kept else "")
        return INTERRUPTED
    except RedraftError as error:
        if typed["as_json"]:
            notices.emit("error", stdout=_to_stdout(typed), **error_data(error))
        raise
    return OK if ended is None else _concluded(*ended, typed)


async def _carried_out(typed: Mapping[str, Any]) -> tuple[Report, str] | None:
    """The report of the run, and where unreadable rows are listed; None when it was only rehearsed."""
    run = wished(typed)

    def now() -> Progress:
        return run.progress

    with ExitStack() as around:
        if not _resumable(typed):
            folder = around.enter_context(TemporaryDirectory(prefix="redraft-"))
            run.asked = replace(run.asked, journal=Path(folder, "journal"))
            if not typed["dry_run"]:
                view.say(
                    "rows go to stdout and no journal is kept, so a run that is cut short begins anew; --journal FILE keeps one"
                )
        if typed["metrics"] is not None and not typed["dry_run"]:
            where = around.enter_context(served(typed["metrics"], lambda: now().as_data()))
            view.say(f"numbers for Prometheus: {where}")
        if typed["dry_run"]:
            await run.check_rows(list_errors=False)
            await seat(run, typed)
            preview = await run.prepare(explain=typed["explain"])
            view.announce(preview, explain=typed["explain"])
            view.rehearse(preview, as_json=typed["as_json"])
            return None
        run.say = around.enter_context(view.eyes(as_json=typed["as_json"], stdout=_to_stdout(typed))(now))
        around.enter_context(_heeding(run, run.say))
        await run.check_rows()
        if not run.stopped:
            await seat(run, typed)
        return await run.go(), run.asked.errors


def _check_prices(run: Run) -> None:
    """Say of prices that are for none of the models that were named; graders may have models of their own."""
    names = {connect(model).name for model in (run.model, run.judge) if model}
    for name in run.asked.options.prices or {}:
        if names and name not in names:
            view.say(f"--price {name}: no model of this run is called so; there is {', '.join(sorted(names))}")


def wished(typed: Mapping[str, Any]) -> Run:
    """The run that was typed, without its models. Raises ConfigError."""
    graders_of(typed, judges=True)
    inputs = typed["inputs"]
    return Run.of(inputs[0] if len(inputs) == 1 else list(inputs), typed["output"], False, **asked(typed))


async def seat(run: Run, typed: Mapping[str, Any]) -> None:
    """Give the run its models and graders. Raises ConfigError."""
    model = await model_found(typed["model"])
    if model is None and typed["model"] is None and typed["mode"] != "grade":
        notices.warning(
            "no model was found, so the built-in editor repairs what form allows", "`redraft models` shows where it was looked for"
        )
    run.model, run.judge = model or False, model_named(typed["judge"]) or None
    announce(model, run.judge)
    run.graders = graders_of(typed, judges=bool(run.judge or (model and typed["mode"] != "grade")))
    _check_prices(run)


def graders_of(typed: Mapping[str, Any], *, judges: bool) -> list[Any] | None:
    """The requirements as musts, and the graders that were named; without those the judge, if there is one."""
    musts = [must(spec) for spec in canonical(typed["require"])]
    named = chosen_graders(typed)
    if named is None and not musts:
        return None
    return [*musts, *(named if named is not None else [Judge()] if judges else [])]


def asked(typed: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed beside input, output, models and graders, by its names in `batch`."""
    same = ("mode", "on_duplicate", "journal", "name", "retry", "errors", "durability", "limit", "max_in_flight")
    where = ("engine", "ray_address", "shards", "poll", "learn", "spreadsheet_safe")
    return {
        **settings_of(typed),
        **{name: typed[name] for name in (*same, *where)},
        "n": typed["n"] or DRAFTS,
        "columns": TaskColumns(**{name: typed[f"{name}_col"] for name in COLUMNS}),
        "ordered": not typed["unordered"],
        "budget": budget_of(typed),
        "limits": Limits(typed["start_in_flight"], typed["min_in_flight"], typed["rpm"], typed["tpm"], typed["outage"]),
    }


def _resumable(typed: Mapping[str, Any]) -> bool:
    """Whether a journal is kept: where rows go to stdout, only one that was named."""
    return bool(typed["output"] != "-" or typed["journal"])


def _to_stdout(typed: Mapping[str, Any]) -> bool:
    """Whether JSON goes to stdout: where the rows go there, it gives way."""
    return bool(typed["output"] != "-")


@contextmanager
def _heeding(run: Run, say: Callable[[str], None]) -> Iterator[None]:
    """The first Ctrl-C, or being told to end, lets calls in flight finish; the next Ctrl-C does not; one more kills."""
    loop, heard = asyncio.get_running_loop(), 0

    def stop() -> None:
        nonlocal heard
        heard += 1
        say("finishing what is in flight; Ctrl-C again ends at once")
        run.stop()

    def interrupt() -> None:
        if not heard:
            stop()
            return
        loop.remove_signal_handler(signal.SIGINT)
        say("ending at once")
        run.stop(now=True)

    with suppress(NotImplementedError):  # Windows: Ctrl-C ends at once there
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        with heeding_sigterm(loop, stop):
            yield
    finally:
        with suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)


def _concluded(report: Report, errors: str, typed: Mapping[str, Any]) -> int:
    """Say how it went; the exit code."""
    if report.ended:
        why = report.ended if report.ended == "interrupted" else f"cut short: {report.ended}"
        message = "" if report.message == report.ended else report.message
        hint = "" if GOES_ON in message else advice(report.ended, message, typed)
        notices.error(f"{why}{f': {message}' if message else ''}", hint)
    if report.bad:
        view.list_unreadable(report.bad, errors)
    if typed["as_json"]:
        notices.emit("report", stdout=_to_stdout(typed), **view.reported(report))
    else:
        view.conclude(report)
    if report.ended:
        return INTERRUPTED if report.ended == "interrupted" else FAILED
    missed = (report.failed, report.bad, report.cut, report.not_started, report.broken)
    return MISSED if any(missed) else OK


def advice(ended: str, message: str, typed: Mapping[str, Any]) -> str:
    """How a run that was cut short goes on."""
    if not _resumable(typed):
        return HINTS.get(message.partition(":")[0], "")
    match ended:
        case "budget":
            given = [f"--budget-{name}" for name in ("usd", "calls", "tokens") if typed[f"budget_{name}"] is not None]
            return f"with a larger {' or '.join(given) or 'budget'} {GOES_ON} from here"
        case "deadline":
            return f"with a longer --deadline, or for as long again, {GOES_ON} from here"
    hint = HINTS.get(message.partition(":")[0])
    return "; then ".join(filter(None, [hint, f"{GOES_ON} from here"]))
