"""The players: the loops of other tools, re-implemented in a few lines each, and Redraft's plans as they are in the package.

A player takes all tasks of a run and returns a result for each. It sees scores, never the true qualities.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import NamedTuple

from redraft.core.engine import advance
from redraft.core.records import Failure, Feedback, StopReason
from redraft.core.steps import Generate, Stop
from redraft.core.task import Task
from redraft.core.trace import PanelGrader, Trace
from redraft.quality.lineage import Observations, observe
from redraft.quality.simulate import simulated_record
from redraft.runs.allocation import BudgetAllocator

from .worlds import VAGUE, Episode

TARGET = 0.9
ADVICE = "Say what is missing."


class TaskResult(NamedTuple):
    """The result of a task: the true quality of the answer, its calls, the reported score (None: none), and whether the target was
    reported as reached.
    """

    quality: float
    calls: int
    score: float | None
    reached: bool
    family: Observations | None = None

    @property
    def overestimate(self):
        return None if self.score is None else self.score - self.quality

    @property
    def false(self):
        """Whether the target is reported as reached although it is not."""
        return float(self.reached and self.quality < TARGET)


def single(episodes):
    """Write one draft, without grading it."""
    for episode in episodes:
        episode.draft(0)
    return [TaskResult(e.texts[0].quality, e.calls, None, reached=False) for e in episodes]


def each(play, episodes):
    """Play the tasks one by one."""
    return [play(episode) for episode in episodes]


def executionkit(episode, iterations=5, patience=3, delta=0.01):
    """`refine_loop` of executionkit 0.4 with its defaults: refine the best with its score as the only feedback; stop at the
    target, or after three moves in a row of at most `delta`.
    """
    episode.draft(0)
    best, top = 0, episode.grade(0)
    last, stale = top, 0
    for id in range(1, iterations + 1):
        if last >= TARGET or stale >= patience:
            break
        episode.refine(id, best, VAGUE)
        score = episode.grade(id)
        stale = stale + 1 if abs(score - last) <= delta else 0
        last = score
        if score > top:
            best, top = id, score
    return TaskResult(episode.texts[best].quality, episode.calls, top, reached=last >= TARGET)


def openjudge(episode, iterations=3):
    """`LLMRefinement` of OpenJudge (RM-Gallery): critique the last answer, rewrite it, and return the last one, ungraded."""
    episode.draft(0)
    for id in range(iterations):
        episode.grade(id)
        episode.refine(id + 1, id)
    return TaskResult(episode.texts[iterations].quality, episode.calls, None, reached=False)


def dspy(attempts, episode):
    """`Refine` of DSPy: new attempts, each with advice on the one before, until one reaches the target; the best is returned.

    An attempt is one call, its reward another, the advice a third. The model is generous: advice on one text helps to write another
    one as much as it would help to revise it, and never harms.
    """
    best, top = 0, -1.0
    for id in range(attempts):
        episode.draft(id, hinted=id > 0)
        score = episode.grade(id)
        if score > top:
            best, top = id, score
        if score >= TARGET:
            break
        if id < attempts - 1:
            episode.advise()
    return TaskResult(episode.texts[best].quality, episode.calls, top, reached=top >= TARGET)


def run_plan(plan, episodes):
    """Run one of Redraft's plans with its own engine, task by task."""
    return asyncio.run(_run_plan(plan, episodes))


def run_plan_as_noisy(plan, episodes):
    """Run a plan that takes a computed grader for a judge that calls a model."""
    return asyncio.run(_run_plan(plan, episodes, free=False))


async def _run_plan(plan, episodes, free=None):
    return [await run_task(plan, episode, free=free) for episode in episodes]


def run_with_separate_budgets(plan, calls, episodes):
    """Run a plan with a budget of `calls` for each task; what one leaves over is lost."""
    return asyncio.run(_run_with_separate_budgets(plan, calls, episodes))


async def _run_with_separate_budgets(plan, calls, episodes):
    return [await run_task(plan, episode, most=calls) for episode in episodes]


def run_with_shared_budget(plan, calls, episodes):
    """Run a plan with one budget for all tasks (`calls` a task), at the price that Redraft's allocator sets."""
    return asyncio.run(_run_with_shared_budget(plan, calls * len(episodes), episodes))


async def _run_with_shared_budget(plan, calls, episodes):
    def spent():
        return sum(episode.calls for episode in episodes)

    allocator = BudgetAllocator(plan, "calls", left=lambda: calls - spent(), spent=lambda: {"calls": spent()}, rows=len(episodes))
    played = []
    for episode in episodes:
        account = allocator.start_row()
        trace = await grow_trace(partial(account.next_steps, plan), episode, most=calls - spent())
        account.finish(trace)
        played.append(task_result(episode, trace))
    return played


async def run_task(plan, episode, *, free=None, most=inf):
    """Run one task to its end."""
    return task_result(episode, await grow_trace(plan, episode, free=free, most=most))


async def grow_trace(plan, episode, *, free=None, most=inf):
    """Return the trace of a task with at most `most` calls."""
    blank = Trace(Task("Write it well."), (PanelGrader("judge", model_free=episode.world.free if free is None else free),))

    simulator = EpisodeSimulator(episode)

    async def perform(step):
        if episode.calls >= most and not isinstance(step, Stop):
            return Failure(step.slot, step.role, "BudgetExhaustedError", "all calls are made", StopReason.BUDGET)
        return simulated_record(simulator, step)

    *_, trace = [trace async for trace in advance(blank, plan, perform)]
    return trace


def task_result(episode, trace):
    """Return the result of a task."""
    reached = trace.outcome.reason is StopReason.TARGET
    quality = episode.texts[trace.outcome.best].quality if episode.texts else 0.0
    return TaskResult(quality, episode.calls, trace.score, reached, observe(trace))


@dataclass
class EpisodeSimulator:
    """Carries out the steps of a plan in an episode, for `redraft.quality.simulate`."""

    episode: Episode

    def text(self, step):
        if isinstance(step, Generate):
            self.episode.draft(step.id)
        else:
            self.episode.refine(step.id, step.parent, 1.0 if ADVICE in step.messages[-1]["content"] else VAGUE)
        return f"text {step.id}"

    def feedback(self, step):
        return Feedback(self.episode.grade(step.candidate.id, step.repeat), actions=(ADVICE,))

    def ranking(self, step):
        raise TypeError(f"no grader of this panel compares, got {step!r:.80}")
