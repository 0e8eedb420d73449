"""Requests to profiles that were checked, and whose refinement has not begun."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from ..base.jsontext import dumps
from ..base.text import utf8_size
from ..loop.records import Candidate
from ..loop.trace import Trace
from ..plans import plan_traits
from ..protocols import Store
from ..session.perform import ModelClient
from ..session.refinement import Refinement
from ..session.reservations import grader_calls
from ..usage import NO_USAGE, Usage
from .config import Profile
from .neutral import Other, Reply, Request, Thinking
from .profile_models import WriterModel


class TraceLog:
    """Keeps the latest trace of a request, and passes it on to `store`. What was spent is known
    even if it is cancelled.

    `hold` is called with the bytes of new answers; it raises GatewayError if there is no memory for
    them. `replies`: as models gave them, by the IDs of their candidates (see `WriterModel`).
    """

    def __init__(self) -> None:
        self.trace: Trace | None = None
        self.replies: Mapping[int, Reply] = {}
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
            self.hold(sum(_size(candidate, self.replies.get(candidate.id)) for candidate in new))

    @property
    def usage(self) -> Usage:
        """The usage of all calls so far."""
        return self.trace.usage if self.trace else NO_USAGE


def _size(candidate: Candidate, reply: Reply | None) -> int:
    """Return the bytes of an answer, with what only its reply has: signatures, and parts of the
    protocol of its model.
    """
    texts = [candidate.text, candidate.reasoning or ""]
    texts += [call.arguments for call in candidate.tool_calls]
    others = 0
    for part in reply.parts if reply else ():
        match part:
            case Thinking():
                texts += [part.signature, part.redacted]
            case Other():
                others += len(dumps(part.raw))
    return sum(map(utf8_size, texts)) + others


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
        return self.log.usage

    @property
    def max_calls(self) -> int:
        """The number of calls after which it ends, as far as that is known beforehand: without
        retries and repeated questions. An answer that pauses takes several.
        """
        options, pauses = self.refinement.session.options, self.writer.max_pauses
        plan = plan_traits(self.refinement.plan)
        if options.budget and options.budget.calls is not None:
            return int(options.budget.calls) + pauses
        if not self.is_refined:
            return 1 + pauses
        texts = plan.drafts + plan.max_attempts
        return texts * (1 + pauses + len(self.grading_calls))

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
