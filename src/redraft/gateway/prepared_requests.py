"""Requests to profiles that were checked, and whose refinement has not begun."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

from ..base.text import utf8_size
from ..loop.trace import Trace
from ..protocols import Store
from ..session.perform import ModelClient
from ..session.refinement import Refinement
from ..session.reservations import grader_calls
from ..usage import NO_USAGE, Usage
from .config import Profile
from .neutral import Request
from .profile_models import WriterModel


class TraceLog:
    """Keeps the latest trace of a request, and passes it on to `store`. What was spent is known
    even if it is cancelled.

    `hold` is called with the size of each new text in bytes; it raises GatewayError if there is no
    memory for it.
    """

    def __init__(self) -> None:
        self.trace: Trace | None = None
        self.store: Store | None = None
        self.hold: Callable[[int], None] | None = None
        self._candidates = 0

    def append(self, trace: Trace) -> None:
        """Store the records of a trace that are not stored yet."""
        self.trace = trace
        if self.store:
            self.store.append(trace)
        new, self._candidates = trace.candidates[self._candidates :], len(trace.candidates)
        if new and self.hold:
            self.hold(
                sum(
                    utf8_size(candidate.text) + utf8_size(candidate.reasoning or "")
                    for candidate in new
                )
            )

    @property
    def usage(self) -> Usage:
        """The usage of all calls so far."""
        return self.trace.usage if self.trace else NO_USAGE


@dataclass(frozen=True)
class PreparedRequest:
    """A request that was checked and can be answered: its refinement has not begun. `writer` is the
    model that writes for it, `hosts` are those of the models, which clients are not told.
    """

    request: Request
    profile: Profile
    refinement: Refinement
    writer: WriterModel
    log: TraceLog
    trace_id: str
    hosts: Collection[str]
    is_refined: bool = True

    @property
    def usage(self) -> Usage:
        """The usage of all calls so far."""
        usage, extra = self.log.usage, self.writer.cache_cost
        return usage if usage.cost is None else usage.with_cost(usage.cost + extra)

    @property
    def max_calls(self) -> int:
        """The number of calls after which it ends, as far as that is known beforehand: without
        retries and repeated questions.
        """
        options = self.refinement.session.options
        if options.budget and options.budget.calls is not None:
            return int(options.budget.calls)
        if not self.is_refined:
            return 1
        texts = max(options.drafts, options.width or 1) + options.max_iterations * (
            options.width or 1
        )
        return texts * (1 + len(self.grading_calls))

    @cached_property
    def grading_calls(self) -> tuple[tuple[ModelClient, int | None], ...]:
        """The client of each call that grades one text, and the most tokens of its answer; None
        without a limit.
        """
        trace, session = self.refinement.trace, self.refinement.session
        if not self.is_refined:
            return ()
        panel, roles = session.resolve_panel(
            trace.task.requirements, has_tests=bool(trace.task.tests)
        )
        return tuple(
            (
                client,
                0 if caller.model_free else caller.max_tokens or client.max_tokens,
            )
            for member in panel
            for client, caller in grader_calls(
                roles.traits[member.name],
                trace.task,
                roles.judges.get(member.name),
                roles,
                first_for_task=True,
            )
            for _ in range(member.repeats)
            if client
        )

    @property
    def max_cost(self) -> float | None:
        """The cost in USD after which it ends; None without such a limit."""
        budget = self.refinement.session.options.budget
        return budget.usd if budget else None
