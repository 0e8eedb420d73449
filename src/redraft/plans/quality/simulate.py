"""Simulated tasks: carry out a plan where the true quality of every text is known.

`simulated_record` turns a step into a record; a `Simulator` decides what the texts and grades are.
`SimulatedTask` is the simulator of the measurement model, with the parameters of `Priors`. Chance
enters as an argument: the same random numbers give the same tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Protocol

from ...loop.records import Candidate, Comparison, Feedback, Record
from ...loop.steps import Compare, Generate, Grade, Refine, Step, Stop
from ...loop.task import Task
from ...loop.trace import PanelGrader, Trace
from ...usage import Usage
from .priors import Priors

DEFAULT_TASKS = 48
CALL, COMPARISON = Usage(1), Usage(2)  # two answers are compared in both orders
JUDGE = PanelGrader("judge")


class Simulator(Protocol):
    """Decides what the steps of one task lead to."""

    def text(self, step: Generate | Refine) -> str:
        """Return the text of a new candidate."""
        ...

    def feedback(self, step: Grade) -> Feedback:
        """Return the feedback on a candidate; `simulated_record` adds the candidate, the grader and
        the usage.
        """
        ...

    def ranking(self, step: Compare) -> Sequence[int]:
        """Return the ids of the compared candidates, best first."""
        ...


def simulated_record(simulator: Simulator, step: Step) -> Record:
    """Return the record of a step. Raises TypeError for a repair: simulated texts meet their
    requirements.
    """
    match step:
        case Generate():
            return Candidate(
                step.id, simulator.text(step), by="simulator", role="generate", usage=CALL
            )
        case Refine():
            return Candidate(
                step.id,
                simulator.text(step),
                step.parent,
                by="simulator",
                role="refine",
                usage=CALL,
            )
        case Grade():
            feedback = simulator.feedback(step)
            return replace(
                feedback,
                candidate=step.candidate.id,
                grader=step.grader,
                repeat=step.repeat,
                usage=CALL,
            )
        case Compare():
            return Comparison(
                tuple(simulator.ranking(step)),
                grader=step.grader,
                repeat=step.repeat,
                usage=COMPARISON,
            )
        case Stop():
            return step
    raise TypeError(step)


def run_to_end(
    trace: Trace, plan: Callable[[Trace], Sequence[Step]], simulator: Simulator
) -> Trace:
    """Carry out a plan on a simulated task and return the last trace."""
    while not trace.outcome and (steps := trace.missing(plan(trace))):
        for step in steps:
            trace += simulated_record(simulator, step)
    return trace


class NormalSource(Protocol):
    """A source of normal random numbers, such as `random.Random`."""

    def gauss(self, mu: float, sigma: float, /) -> float: ...


def simulate_tasks(
    priors: Priors,
    panel: Iterable[PanelGrader],
    rng: NormalSource,
    *,
    with_response: bool,
    tasks: int = DEFAULT_TASKS,
) -> Iterator[tuple[SimulatedTask, Trace]]:
    """Yield this many tasks of the measurement model, each with the trace that it starts with.

    Of the panel, graders that call no model and musts are left out; without any other grader there
    is one judge. With `with_response` each task has a given response.
    """
    asking = [grader for grader in panel if not (grader.model_free or grader.must)]
    judges = tuple(grader for grader in asking if not grader.compares) or (JUDGE,)
    graders = (*judges, *(grader for grader in asking if grader.compares))
    for _ in range(tasks):
        task = SimulatedTask(priors, rng)
        trace = Trace(Task("task", response="given" if with_response else None), graders)
        yield task, trace + Candidate(0, task.new_text(None)) if with_response else trace


@dataclass
class SimulatedTask:
    """One task of the measurement model (see README.md): its level and gain, and the qualities and
    biases of its texts.

    `qualities` and `parents` are by candidate id. A bias is drawn when a grader first grades the
    text.
    """

    priors: Priors
    rng: NormalSource
    level: float = field(init=False)
    gain: float = field(init=False)
    qualities: list[float] = field(default_factory=list)
    parents: list[int | None] = field(default_factory=list)
    biases: defaultdict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))

    def __post_init__(self) -> None:
        self.level = self.rng.gauss(self.priors.draft_mean, self.priors.draft_mean_sd)
        self.gain = self.rng.gauss(self.priors.gain, self.priors.gain_sd)

    def text(self, step: Generate | Refine) -> str:
        """Return a new text."""
        return self.new_text(step.parent if isinstance(step, Refine) else None)

    def feedback(self, step: Grade) -> Feedback:
        """Return a score."""
        return Feedback(self.score(step.candidate.id, step.grader))

    def ranking(self, step: Compare) -> list[int]:
        """Return the candidates by scores that are drawn for the comparison."""
        scores = {c.id: self.score(c.id, step.grader) for c in step.candidates}
        return sorted(scores, key=lambda candidate: -scores[candidate])

    def new_text(self, parent: int | None) -> str:
        """Return a new text of a random quality."""
        p = self.priors
        mean = self.level if parent is None else self.gain + p.retention * self.qualities[parent]
        self.qualities.append(self.rng.gauss(mean, p.draft_sd if parent is None else p.step_sd))
        self.parents.append(parent)
        return str(len(self.qualities))

    def score(self, candidate: int, grader: str) -> float:
        """Return a new score: quality, bias and noise, clipped to [0, 1]."""
        noisy = self.rng.gauss(
            self.qualities[candidate] + self.bias(candidate, grader), self.priors.noise_sd
        )
        return min(1.0, max(0.0, noisy))

    def bias(self, candidate: int, grader: str) -> float:
        """Return a grader's lasting bias for a text, drawn once."""
        known, p, parent = self.biases[grader], self.priors, self.parents[candidate]
        if candidate not in known:
            mean = (
                0.0
                if parent is None
                else p.bias_drift + p.bias_inheritance * self.bias(parent, grader)
            )
            known[candidate] = self.rng.gauss(
                mean, p.bias_sd * (1.0 if parent is None else sqrt(1 - p.bias_inheritance**2))
            )
        return known[candidate]
