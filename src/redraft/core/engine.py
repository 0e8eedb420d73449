"""Carrying it out: plan, perform, record, until there is nothing left to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeAlias

from .plans import Plan
from .records import Record, Slot
from .steps import Step
from .trace import Trace

Perform: TypeAlias = Callable[[Step], Awaitable[Record]]


async def advance(trace: Trace, plan: Plan, perform: Perform) -> AsyncGenerator[Trace, None]:
    """Yield the trace after every new record, and plan anew on each; what is under way is left alone.

    A plan that asks again for what was carried out, or failed in this run, is not heeded: no run goes in circles.
    Closing the iterator, or cancelling whoever waits on it, cancels what is under way. What was yielded is complete:
    given back here, it goes on where it stopped.
    """
    trace = trace.reopened()
    flying: dict[asyncio.Future[Record], Slot] = {}
    try:
        while not trace.outcome:
            steps = trace.lacks(plan(trace))
            if len(steps) == 1 and not flying:  # nothing goes on beside it
                trace += await perform(steps[0])
                yield trace
                continue
            for step in steps:
                if step.slot not in flying.values():
                    flying[asyncio.ensure_future(perform(step))] = step.slot
            if not flying:
                return
            cancelled = None
            try:
                await asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError as error:
                cancelled = error  # what has arrived by now is handed on all the same
            for arrival in [flight for flight in flying if flight.done()]:
                del flying[arrival]
                trace += arrival.result()
                yield trace
            if cancelled:
                raise cancelled
    finally:
        for flight in flying:
            flight.cancel()
        if flying:
            await asyncio.gather(*flying, return_exceptions=True)


async def advance_together(
    traces: Sequence[Trace], plan: Plan, perform_all: Callable[[list[Step]], Awaitable[list[Record]]]
) -> list[Trace]:
    """Take all traces to their end, one wave of steps over all of them at a time: the shape of a provider's batch API."""
    going = [trace.reopened() for trace in traces]
    while wave := [(i, step) for i, trace in enumerate(going) if not trace.outcome for step in trace.lacks(plan(trace))]:
        for (i, _), record in zip(wave, await perform_all([step for _, step in wave]), strict=True):
            going[i] += record
    return going


def remembering(trace: Trace, perform: Perform) -> Perform:
    """A performer that answers from a trace before it asks the world: a replay."""

    async def recall(step: Step) -> Record:
        return trace.filled.get(step.slot) or await perform(step)

    return recall
