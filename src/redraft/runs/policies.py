"""What the rows of a run have in common: a policy is asked whenever a row comes by, starts, decides or ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..core.trace import Trace
from ..plans import NoiseAwarePlan, PlanDecision
from .pending_rows import PendingRow
from .row_result import RowResult


class RowPolicy(Protocol):
    """Decides for all rows of a run together by which plan each of them is worked on.

    A plan is pure: a policy hands out plans, and is told of their decisions by the row's runner.
    """

    async def row_seen(self, row: PendingRow, result: RowResult | None) -> None:
        """A row comes by; all do, in order, before they start. `result`: that of an earlier run, which is kept. May wait."""
        ...

    def row_started(self, row: PendingRow) -> None:
        """A row starts."""
        ...

    def plan_for(self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace | None) -> NoiseAwarePlan:
        """Return the plan for the next step of a row, given the plan by the policies before; trace None: before the first."""
        ...

    def row_resumed(self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace) -> None:
        """A row is resumed with this trace."""
        ...

    def decision_made(self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace, decision: PlanDecision) -> None:
        """The plan that was handed out has decided what comes next."""
        ...

    def row_finished(self, row: PendingRow, trace: Trace | None) -> Mapping[str, Any]:
        """A row has ended (trace None: it could not start). Return what the journal is to keep with its result."""
        ...

    def row_saved(self, row: PendingRow) -> None:
        """The result of a row is in the journal."""
        ...
