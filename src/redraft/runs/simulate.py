"""Simulated tasks, answered and graded as `Priors` describe: what to expect of a run before any of its rows has ended.

Seeded: the same priors give the same tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import sqrt
from random import Random

from ..core.records import Candidate, Comparison, Feedback, Record, Task
from ..core.steps import Compare, Generate, Grade, Refine, Step, Stop
from ..core.trace import PanelGrader, Trace
from ..plans import Plan
from ..quality.priors import Priors
from ..usage import Usage

TASKS = 48
CALL, COMPARISON = Usage(1), Usage(2)  # two answers are compared in both orders
JUDGE = PanelGrader("judge")


def simulate_tasks(
    priors: Priors, panel: Iterable[PanelGrader], *, with_response: bool, tasks: int = TASKS
) -> Iterator[tuple[SimulatedTask, Trace]]:
    """Yield so many tasks, each with the trace that it starts with. `with_response`: each has a given response."""
    asking = [grader for grader in panel if not (grader.model_free or grader.must)]
    judges = tuple(grader for grader in asking if not grader.compares) or (JUDGE,)
    graders = (*judges, *(grader for grader in asking if grader.compares))
    rng = Random(0)
    for _ in range(tasks):
        task = SimulatedTask(priors, rng)
        trace = Trace(Task("task", response="given" if with_response else None), graders)
        yield task, trace + Candidate(0, task.text(None)) if with_response else trace


def run_to_end(trace: Trace, plan: Plan, task: SimulatedTask) -> Trace:
    """Carry out a plan on a simulated task."""
    while not trace.outcome and (steps := trace.missing(plan(trace))):
        for step in steps:
            trace += task.perform(step)
    return trace


@dataclass
class SimulatedTask:
    """Produces the answers of one task, and their grades."""

    priors: Priors
    rng: Random
    level: float = field(init=False)
    gain: float = field(init=False)
    qualities: list[float] = field(default_factory=list)
    biases: defaultdict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    parents: list[int | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.level = self.rng.gauss(self.priors.draft_mean, self.priors.draft_mean_sd)
        self.gain = self.rng.gauss(self.priors.gain, self.priors.gain_sd)

    def perform(self, step: Step) -> Record:
        """Return the record of a step."""
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
                ranking = tuple(sorted(scores, key=lambda n: -scores[n]))
                return Comparison(ranking, grader=step.grader, repeat=step.repeat, usage=COMPARISON)
            case Stop():
                return step.outcome
        raise TypeError(step)

    def text(self, parent: int | None) -> str:
        """Return a new text, of a quality drawn from the priors."""
        p = self.priors
        mean = self.level if parent is None else self.gain + p.retention * self.qualities[parent]
        self.qualities.append(self.rng.gauss(mean, p.draft_sd if parent is None else p.step_sd))
        self.parents.append(parent)
        return str(len(self.qualities))

    def score(self, text: int, grader: str) -> float:
        """Return a grade."""
        return min(1.0, max(0.0, self.rng.gauss(self.qualities[text] + self.bias(text, grader), self.priors.noise_sd)))

    def bias(self, text: int, grader: str) -> float:
        """Return a grader's lasting bias for a text, drawn once."""
        known, p, parent = self.biases[grader], self.priors, self.parents[text]
        if text not in known:
            mean = 0.0 if parent is None else p.bias_drift + p.bias_inheritance * self.bias(parent, grader)
            known[text] = self.rng.gauss(mean, p.bias_sd * (1.0 if parent is None else sqrt(1 - p.bias_inheritance**2)))
        return known[text]
