"""What a run learns from its own rows while it goes on, without its output depending on which of them ended first.

Rows from certain places on (256, then four times as far each time) go by priors that were learned from rows before half of
that place, evenly chosen; whoever comes to such a place waits for those. What was learned is noted with the run, so that it
goes on with the same after an interruption. A row that keeps everybody waiting is not waited for long: then the stage is
left out for the whole run, and that is noted, too. How a row is carried out, and where it is kept, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ..quality.fit import fit_priors
from ..quality.lineage import Observations
from ..quality.priors import Priors

FIRST, FURTHER = 256, 4  # the place of the first stage, and how much further on each next one is
PUPILS = 256  # rows from which is learned, at most
PATIENCE = 60.0  # seconds that rows wait for them
LEAST = 32  # rows from which is learned for other runs


@dataclass
class Schooling:
    """What rows of a run go by. `start`: the priors of its beginning; `stages`: what was learned by the place from which it
    holds, None where that was left out. `on`: whether it learns at all. `source`: the kind of priors that were asked for at the
    beginning, "shipped" or "learned".
    """

    start: Priors
    on: bool = True
    stages: dict[int, Priors | None] = field(default_factory=dict)
    source: str = "shipped"
    first: int = FIRST
    patience: float = PATIENCE
    _ids: dict[int, str] = field(default_factory=dict)  # of rows evenly chosen, by place
    _apart: int = 1
    _open: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, start: Priors, noted: Mapping[str, Any] | None, **given: Any) -> Self:
        """As it was noted with the run; `start` counts where nothing was."""
        if noted is None:
            return cls(start, **given)
        stages = {int(place): priors and Priors.from_dict(priors) for place, priors in noted["stages"].items()}
        return cls(Priors.from_dict(noted["start"]), stages=stages, **{**given, "source": noted.get("source", "")})

    def as_data(self) -> dict[str, Any]:
        """What is to be noted."""
        stages = {str(place): priors and priors.to_dict() for place, priors in self.stages.items()}
        return {"start": self.start.to_dict(), "stages": stages, "source": self.source}

    @property
    def told(self) -> tuple[dict[str, int], ...]:
        """For people: from which row on what how many rows taught holds."""
        stages = sorted(self.stages.items()) if self.on else []
        return tuple({"from": place, "rows": priors.tasks - self.start.tasks} for place, priors in stages if priors)

    def met(self, n: int, id: str, *, ended: bool) -> None:
        """The row at place n comes by; all do, in order."""
        if n % self._apart:
            return
        self._ids[n] = id
        if not ended:
            self._open.add(n)
        if len(self._ids) > 4 * PUPILS:
            self._apart *= 2
            self._ids = {n: id for n, id in self._ids.items() if n % self._apart == 0}

    def ended(self, n: int) -> None:
        """The row at place n has ended."""
        self._open.discard(n)

    def stage(self, n: int) -> int | None:
        """The stage that must be over before the row at place n begins; None where there is none, or it is."""
        place = self._place(n)
        return place if self.on and place is not None and place not in self.stages else None

    def ready(self, stage: int) -> bool:
        """Whether all rows have ended from which is learned for a stage."""
        return not any(n in self._open for n in self._ids if n < stage // 2)

    def pupils(self, stage: int | None = None) -> list[str]:
        """The ids of rows from which is learned: for a stage, or from all that came by."""
        ids = [id for n, id in sorted(self._ids.items()) if stage is None or n < stage // 2]
        most = min(PUPILS, len(ids))
        return [ids[i * len(ids) // most] for i in range(most)]

    def priors(self, n: int) -> Priors:
        """What the row at place n goes by."""
        places = sorted(place for place, priors in self.stages.items() if place <= n and priors)
        return (self.stages[places[-1]] if places and self.on else None) or self.start

    def _place(self, n: int) -> int | None:
        place = self.first
        if n < place:
            return None
        while place * FURTHER <= n:
            place *= FURTHER
        return place


def taught(families: Iterable[Observations], before: Priors) -> tuple[Priors, int]:
    """What families teach who believed something `before`, and how many of them can.

    For other runs it is always what is shipped, so that nothing drifts from run to run.
    """
    graded = [family for family in families if family.scores]
    return fit_priors(graded, before), len(graded)
