"""Carrying it out: plan, perform, record, until there is nothing left to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeAlias

from ..plans import Plan
from .cancellation import cancel_and_wait
from .records import Record, Slot
from .steps import Step
from .trace import Trace

Perform: TypeAlias = Callable[[Step], Awaitable[Record]]


async def advance(
    trace: Trace, plan: Plan, perform: Perform, on_late_records: Callable[[Trace], object] | None = None
) -> AsyncGenerator[Trace, None]:
    """Yield the trace after every new record, and plan anew on each; what is under way is left alone.

    A plan that asks again for what was carried out, or failed in this run, is not heeded: no run goes in circles.
    Closing the iterator, or cancelling whoever waits on it, cancels what is under way and waits for its end. Nothing is yielded
    then; `salvage` is called with the trace and the records that came too late: what had arrived, and the Failures of steps
    that were cut off when a model had been asked. Given back here, any of these traces goes on where it stopped.
    """
    trace = trace.for_new_run()
    flying: dict[asyncio.Future[Record], Slot] = {}
    try:
        while not trace.outcome:
            steps = trace.missing(plan(trace))
            if len(steps) == 1 and not flying:  # nothing goes on beside it
                trace += await perform(steps[0])
                yield trace
                continue
            for step in steps:
                if step.slot not in flying.values():
                    flying[asyncio.ensure_future(_perform_step(perform, step))] = step.slot
            if not flying:
                return
            await asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED)
            for arrival in [flight for flight in flying if flight.done()]:
                trace += arrival.result()
                del flying[arrival]
                yield trace
    except asyncio.CancelledError as error:
        if on_late_records and (cut := _attached_record(error)):
            trace += cut
            on_late_records(trace)
        raise
    finally:
        try:
            await cancel_and_wait(flying)
        finally:
            late = [flight.result() for flight in flying if not (flight.cancelled() or flight.exception())]
            for record in late:
                trace += record
            if on_late_records and late:
                on_late_records(trace)


async def _perform_step(perform: Perform, step: Step) -> Record:
    """A step in a task of its own, where a record that was cut off is handed on like any other."""
    try:
        return await perform(step)
    except asyncio.CancelledError as error:
        if record := _attached_record(error):
            return record
        raise


def _attached_record(error: asyncio.CancelledError) -> Record | None:
    """What a performer says of a step that was cancelled."""
    return getattr(error, "record", None)


async def advance_together(
    traces: Sequence[Trace], plan: Plan, perform_batch: Callable[[list[Step]], Awaitable[list[Record]]]
) -> list[Trace]:
    """Take all traces to their end, one wave of steps over all of them at a time: the shape of a provider's batch API."""
    going = [trace.for_new_run() for trace in traces]
    while wave := [(i, step) for i, trace in enumerate(going) if not trace.outcome for step in trace.missing(plan(trace))]:
        for (i, _), record in zip(wave, await perform_batch([step for _, step in wave]), strict=True):
            going[i] += record
    return going


def replay_from(trace: Trace, perform: Perform) -> Perform:
    """A performer that answers from a trace before it asks the world: a replay."""

    async def replay(step: Step) -> Record:
        return trace.records_by_slot.get(step.slot) or await perform(step)

    return replay
