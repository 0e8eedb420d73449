"""The plans of this package, carried out in an episode: the package's plan, records and trace, with
a simulated writer and judge.

A player takes all tasks of a run and returns a result for each. It sees scores, never the true
qualities. Nothing here waits, so a plan's steps are carried out one after the other without an
event loop; steps that it asks for together count as one round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import inf

from redraft.loop.records import Failure, Feedback, StopReason
from redraft.loop.steps import Generate, Grade, Refine, Stop
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans import Left, NoiseAwarePlan
from redraft.plans.quality.simulate import CALL, simulated_record
from redraft.plans.self_refine import UNREADABLE_ERROR
from redraft.runs.allocation import BudgetAllocator

from .results import TaskResult
from .worlds import Episode

ADVICE = "Say what is missing."
TASK = Task("Write it well.")


def run_plan(plan, episodes):
    """Run a plan task by task."""
    return [run_task(plan, episode) for episode in episodes]


def run_plan_as_noisy(plan, episodes):
    """Run a plan that takes a computed grader for a judge that calls a model."""
    return [run_task(plan, episode, free=False) for episode in episodes]


def run_with_separate_budgets(plan, calls, episodes):
    """Run a plan with a budget of `calls` for each task; what one leaves over is lost."""
    return [run_task(plan, episode, most=calls) for episode in episodes]


def run_with_shared_budget(plan, calls, episodes):
    """Run a plan with one budget for all tasks (`calls` a task), at the price that Redraft's
    allocator sets.
    """
    budget, ended, started, played = calls * len(episodes), 0, [], []

    def spent():
        return ended + sum(episode.calls for episode in started)

    allocator = BudgetAllocator(
        plan,
        "calls",
        left=lambda: budget - spent(),
        spent=lambda: {"calls": spent()},
        rows=len(episodes),
    )
    for episode in episodes:
        account, performer, started = (
            allocator.start_row(),
            Performer(episode, budget - spent()),
            [episode],
        )
        trace = grow_trace(partial(account.next_steps, plan), performer)
        account.finish(trace)
        played.append(task_result(performer, trace))
        ended, started = ended + episode.calls, []
    return played


def run_task(plan, episode, *, free=None, most=inf):
    """Run one task to its end with at most `most` calls."""
    performer = Performer(episode, most)
    return task_result(performer, grow_trace(plan, performer, free=free))


def grow_trace(plan, performer, *, free=None):
    """Return the trace of a task. The plan sees how many calls are left."""
    episode = performer.episode
    plan = (
        partial(steps_within, plan, performer)
        if isinstance(plan, NoiseAwarePlan) and performer.most < inf
        else plan
    )
    is_free = episode.world.free if free is None else free
    step = 1.0 if episode.world.binary_at else None  # a judge that is asked for yes or no
    trace = Trace(TASK, (PanelGrader("judge", model_free=is_free, score_step=step),))
    while not trace.outcome and (steps := trace.missing(plan(trace))):
        with episode.at_once():
            for step in steps:
                trace += performer.perform(step)
    return trace


def steps_within(plan, performer, trace):
    """Return the next steps of a plan that sees how many calls are left."""
    return plan.decide(trace, Left(calls=max(0, performer.most - performer.episode.calls))).steps


def task_result(performer, trace):
    """Return the result of a task: of the answer that the user gets, graded or not."""
    end, best, episode = trace.outcome, trace.best, performer.episode
    failed = end.reason is StopReason.FAILED
    return TaskResult(
        episode.texts[best.id].quality if best else 0.0,
        episode.calls,
        trace.score,
        reached=end.reason is StopReason.TARGET,
        rounds=episode.rounds,
        interval=end.interval,
        failed=failed,
        failed_graded=failed and any(isinstance(record, Feedback) for record in trace.records),
        ungraded=bool(performer.ungraded),
    )


@dataclass
class Performer:
    """Carries out the steps of a plan in an episode, with at most `most` calls.

    As in the package (`redraft.session.reservations`), a text is written only if its grade can be
    paid for, too.
    """

    episode: Episode
    most: float = inf
    ungraded: set = field(default_factory=set)

    def perform(self, step):
        """Return the record of a step: a failure if the budget has no room for it, or if the grade
        cannot be read.
        """
        if not (isinstance(step, Stop) or self.affords(step)):
            return Failure(
                step.slot,
                step.role,
                "BudgetExhaustedError",
                "all calls are made",
                StopReason.BUDGET,
            )
        try:
            return simulated_record(self, step)
        except UnreadableError:
            return Failure(
                step.slot, step.role, UNREADABLE_ERROR, "the grade cannot be read", usage=CALL
            )

    def affords(self, step):
        left = self.most - self.episode.calls - len(self.ungraded)
        if isinstance(step, Generate | Refine):
            return left >= 2
        return left >= 1 or (isinstance(step, Grade) and step.candidate.id in self.ungraded)

    def text(self, step):
        if isinstance(step, Generate):
            self.episode.draft(step.id)
        else:
            self.episode.refine(
                step.id,
                step.parent,
                1.0 if ADVICE in step.messages[-1]["content"] else self.episode.world.vague,
            )
        self.ungraded.add(step.id)
        return f"text {step.id}"

    def feedback(self, step):
        self.ungraded.discard(step.candidate.id)
        score = self.episode.grade(step.candidate.id, step.repeat)
        if score is None:
            raise UnreadableError
        return Feedback(score, actions=(ADVICE,))

    def ranking(self, step):
        raise TypeError(f"no grader of this panel compares, got {step!r:.80}")


class UnreadableError(Exception):
    """The judge's answer cannot be read."""
