"""The engine: ask the plan for steps, have them performed, add their records to the trace, until the plan stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeAlias

from .cancellation import cancel_and_wait
from .records import Feedback, Record, Slot
from .steps import Round, Step
from .trace import Trace

Plan: TypeAlias = Callable[[Trace], Sequence[Step]]
Perform: TypeAlias = Callable[[Step], Awaitable[Record]]


async def advance(
    trace: Trace,
    plan: Plan,
    perform: Perform,
    on_late_records: Callable[[Trace], object] | None = None,
    *,
    by_rounds: bool = False,
) -> AsyncGenerator[Trace, None]:
    """Yield the trace after every new record; the plan is asked again after each, while other steps are still running.

    `by_rounds`: while steps of a `Round` are running, the plan is not asked after feedback. Steps already completed or failed in
    this run are ignored, so a plan cannot loop. Closing the iterator, or cancelling the task that waits on it, cancels the running
    steps and waits for them to end. Nothing is yielded then; instead `on_late_records` is called with the trace and the records
    that arrived too late, including the Failures of steps that were cancelled after a model had been asked. Each of these traces
    can be passed to `advance` again to continue it.
    """
    trace = trace.for_new_run()
    running: dict[Slot, asyncio.Future[Record]] = {}
    ended: set[Slot] = set()
    has_ended = asyncio.Event()  # asyncio.wait would add a callback to every running task after each record
    awaits_round = False

    def note_end(slot: Slot) -> None:
        ended.add(slot)
        has_ended.set()

    def start(step: Step) -> None:
        slot = step.slot
        running[slot] = asyncio.ensure_future(_perform_step(perform, step))
        running[slot].add_done_callback(lambda _: note_end(slot))

    try:
        while not trace.outcome:
            if not (running and awaits_round):
                planned = plan(trace)
                awaits_round = by_rounds and isinstance(planned, Round)
                steps = trace.missing(planned)
                if len(steps) == 1 and not running:  # a single step needs no task
                    trace += await perform(steps[0])
                    yield trace
                    continue
                for step in steps:
                    if step.slot not in running:
                        start(step)
            if not running:
                return
            await has_ended.wait()
            has_ended.clear()
            slots = [slot for slot in running if slot in ended] if len(ended) > 1 else [*ended]
            ended.clear()
            for slot in slots:
                new = running.pop(slot).result()
                awaits_round = awaits_round and isinstance(new, Feedback)
                trace += new
                yield trace
    except asyncio.CancelledError as error:
        if on_late_records and (record := _attached_record(error)):
            trace += record
            on_late_records(trace)
        raise
    finally:
        try:
            await cancel_and_wait(running.values())
        finally:
            late = [task.result() for task in running.values() if not (task.cancelled() or task.exception())]
            for record in late:
                trace += record
            if on_late_records and late:
                on_late_records(trace)


async def _perform_step(perform: Perform, step: Step) -> Record:
    """Perform a step in its own task; if it is cancelled, return the record that the performer attached."""
    try:
        return await perform(step)
    except asyncio.CancelledError as error:
        if record := _attached_record(error):
            return record
        raise


def _attached_record(error: asyncio.CancelledError) -> Record | None:
    """Return the record that a performer attached to the cancellation of a step."""
    return getattr(error, "record", None)


def replay_from(trace: Trace, perform: Perform) -> Perform:
    """Return a performer that takes records from `trace` and calls `perform` only for steps that are not in it."""

    async def replay(step: Step) -> Record:
        return trace.records_by_slot.get(step.slot) or await perform(step)

    return replay
