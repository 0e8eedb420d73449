"""Tasks that nobody gave, answered and graded as `Priors` say that texts and grades come: what may be expected of a run before
any of its rows has ended. Seeded: the same priors make up the same tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import sqrt
from random import Random

from ..core.records import Candidate, Comparison, Feedback, Record, Task, Usage
from ..core.steps import Compare, Generate, Grade, Refine, Step, Stop
from ..core.trace import PanelGrader, Trace
from ..plans import Plan
from ..quality.priors import Priors

TASKS = 48
CALL, DUEL = Usage(1), Usage(2)  # two answers are compared in both orders
JUDGE = PanelGrader("judge")


def imagined(priors: Priors, panel: Iterable[PanelGrader], *, answered: bool, tasks: int = TASKS) -> Iterator[tuple[World, Trace]]:
    """So many tasks, each with the world that it is in. `answered`: each comes with a response."""
    asking = [seat for seat in panel if not (seat.model_free or seat.must)]
    judges = tuple(seat for seat in asking if not seat.compares) or (JUDGE,)
    seats = (*judges, *(seat for seat in asking if seat.compares))
    dice = Random(0)
    for _ in range(tasks):
        world = World(priors, dice)
        trace = Trace(Task("task", response="given" if answered else None), seats)
        yield world, trace + Candidate(0, world.text(None)) if answered else trace


def worked(trace: Trace, plan: Plan, world: World) -> Trace:
    """Taken to its end."""
    while not trace.outcome and (steps := trace.missing(plan(trace))):
        for step in steps:
            trace += world.perform(step)
    return trace


@dataclass
class World:
    """Where the answers and the grades of one task come from."""

    priors: Priors
    dice: Random
    level: float = field(init=False)
    gain: float = field(init=False)
    qualities: list[float] = field(default_factory=list)
    styles: defaultdict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    parents: list[int | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.level = self.dice.gauss(self.priors.draft_mean, self.priors.draft_mean_sd)
        self.gain = self.dice.gauss(self.priors.gain, self.priors.gain_sd)

    def perform(self, step: Step) -> Record:
        """What a step leaves behind."""
        match step:
            case Generate():
                return Candidate(step.id, self.text(None), by="nobody", role="generate", usage=CALL)
            case Refine():
                return Candidate(step.id, self.text(step.parent), step.parent, by="nobody", role="refine", usage=CALL)
            case Grade():
                score = self.score(step.candidate.id, step.grader)
                return Feedback(score, candidate=step.candidate.id, grader=step.grader, repeat=step.repeat, usage=CALL)
            case Compare():
                scores = {c.id: self.score(c.id, step.grader) for c in step.candidates}
                return Comparison(
                    tuple(sorted(scores, key=lambda n: -scores[n])), grader=step.grader, repeat=step.repeat, usage=DUEL
                )
            case Stop():
                return step.outcome
        raise TypeError(step)

    def text(self, parent: int | None) -> str:
        """A new text, of a quality that is as it may be expected."""
        p = self.priors
        mean = self.level if parent is None else self.gain + p.retention * self.qualities[parent]
        self.qualities.append(self.dice.gauss(mean, p.draft_sd if parent is None else p.step_sd))
        self.parents.append(parent)
        return str(len(self.qualities))

    def score(self, text: int, grader: str) -> float:
        """A grade."""
        return min(1.0, max(0.0, self.dice.gauss(self.qualities[text] + self.style(text, grader), self.priors.noise_sd)))

    def style(self, text: int, grader: str) -> float:
        """A grader's lasting bias for a text."""
        known, p, parent = self.styles[grader], self.priors, self.parents[text]
        if text not in known:
            mean = 0.0 if parent is None else p.bias_drift + p.bias_inheritance * self.style(parent, grader)
            known[text] = self.dice.gauss(mean, p.bias_sd * (1.0 if parent is None else sqrt(1 - p.bias_inheritance**2)))
        return known[text]
