"""The engine: ask the plan for steps, have them performed, add their records to the trace, until
the plan stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Self, TypeAlias

from ..errors import attachment
from .records import Feedback, Record, Slot
from .steps import Round, Step
from .trace import Trace

Plan: TypeAlias = Callable[[Trace], Sequence[Step]]
Perform: TypeAlias = Callable[[Step], Awaitable[Record]]


class Engine:
    """Runs a plan record by record: `next_trace` returns the trace after each. Leaving its context
    ends the steps that still run.

    The plan is asked again after each record, while other steps are still running. `by_rounds`:
    while steps of a `Round` are running, it is not asked after feedback. Steps already completed or
    failed in this run are ignored, so a plan cannot loop.

    When the context is left, running steps are cancelled, and it waits for them to end.
    `on_late_records` is then called with the trace and the records that arrived too late, including
    the Failures of steps that were cancelled after a model had been asked. Each of these traces can
    be passed to another engine to continue it.
    """

    def __init__(
        self,
        trace: Trace,
        plan: Plan,
        perform: Perform,
        on_late_records: Callable[[Trace], object] | None = None,
        *,
        by_rounds: bool = False,
    ) -> None:
        self.trace = trace.for_new_run()
        self._plan, self._perform, self._on_late_records = plan, perform, on_late_records
        self._by_rounds, self._awaits_round = by_rounds, False
        self._running: dict[Slot, asyncio.Future[Record]] = {}
        self._ended: set[Slot] = set()
        # asyncio.wait would add a callback to every running task after each record
        self._has_ended = asyncio.Event()
        self._arrived: list[
            Slot
        ] = []  # slots whose records are not in the trace yet, in the order of the plan

    async def __aenter__(self) -> Self:
        return self

    @property
    def is_over(self) -> bool:
        """Whether the trace has an outcome, and no further record has arrived."""
        return not self._arrived and self.trace.outcome is not None

    async def next_trace(self) -> Trace | None:
        """Return the trace after the next record; None when it has an outcome, or when the plan has
        no more steps.
        """
        if not self._arrived:
            if self.trace.outcome:
                return None
            if not (self._running and self._awaits_round):
                planned = self._plan(self.trace)
                self._awaits_round = self._by_rounds and isinstance(planned, Round)
                steps = self.trace.missing(planned)
                if len(steps) == 1 and not self._running:  # a single step needs no task
                    self.trace += await self._perform(steps[0])
                    return self.trace
                self._start(steps)
            if not self._running:
                return None
            await self._wait_for_arrivals()
        record = self._running.pop(self._arrived.pop(0)).result()
        self._awaits_round = self._awaits_round and isinstance(record, Feedback)
        self.trace += record
        return self.trace

    def _start(self, steps: Iterable[Step]) -> None:
        """Perform the steps that are not running yet, each in its own task."""
        for step in steps:
            if (slot := step.slot) not in self._running:
                self._running[slot] = task = asyncio.ensure_future(
                    _perform_step(self._perform, step)
                )
                task.add_done_callback(partial(self._note_end, slot))

    def _note_end(self, slot: Slot, _: object) -> None:
        self._ended.add(slot)
        self._has_ended.set()

    async def _wait_for_arrivals(self) -> None:
        await self._has_ended.wait()
        self._has_ended.clear()
        ended, self._ended = self._ended, set()
        self._arrived = (
            [slot for slot in self._running if slot in ended] if len(ended) > 1 else [*ended]
        )

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if isinstance(error, asyncio.CancelledError) and (
                record := attachment(error, "record")
            ):
                self._add_late([record])
        finally:
            if self._running:
                await self._end_running()

    async def _end_running(self) -> None:
        """Cancel the steps that still run, wait for them, and add the records that they give all
        the same.
        """
        try:
            await cancel_and_wait(self._running.values())
        finally:
            self._add_late(
                [
                    task.result()
                    for task in self._running.values()
                    if not (task.cancelled() or task.exception())
                ]
            )

    def _add_late(self, records: Sequence[Record]) -> None:
        """Add records that arrived when no more traces are wanted."""
        for record in records:
            self.trace += record
        if records and self._on_late_records:
            self._on_late_records(self.trace)


async def advance(
    trace: Trace,
    plan: Plan,
    perform: Perform,
    on_late_records: Callable[[Trace], object] | None = None,
    *,
    by_rounds: bool = False,
) -> AsyncGenerator[Trace, None]:
    """Yield the trace after every new record; the arguments are as in `Engine`. Closing the
    iterator ends the running steps.
    """
    async with Engine(trace, plan, perform, on_late_records, by_rounds=by_rounds) as engine:
        while new := await engine.next_trace():
            yield new


async def _perform_step(perform: Perform, step: Step) -> Record:
    """Perform a step in its own task; if it is cancelled, return the record that the performer
    attached.
    """
    try:
        return await perform(step)
    except asyncio.CancelledError as error:
        record: Record | None = attachment(error, "record")
        if record is None:
            raise
        return record


async def cancel_and_wait(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until all have ended; their results and exceptions are dropped.

    If the caller is cancelled meanwhile, CancelledError is raised once all tasks have ended.
    """
    pending = list(tasks)
    for task in pending:
        task.cancel()
    cancelled = None
    while running := [task for task in pending if not task.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in pending:
        _ = task.cancelled() or task.exception()  # retrieved, so that asyncio does not log it
    if cancelled:
        raise cancelled
