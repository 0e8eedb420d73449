"""Who plays: other tools' loops, told again in a few lines each, and our plans as they are in the package.

A player takes all tasks of a run, and gives for each what came of it. It sees scores, and nothing of what is true.
"""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf
from typing import NamedTuple

from redraft.core.engine import advance
from redraft.core.records import Candidate, Failure, Feedback, StopReason, Task
from redraft.core.steps import Generate, Grade, Refine, Stop
from redraft.core.trace import PanelGrader, Trace
from redraft.quality.lineage import Observations, observe
from redraft.runs.allocation import BudgetAllocator
from redraft.usage import Usage

from .worlds import VAGUE

TARGET = 0.9
ADVICE = "Say what is missing."
ONE = Usage(calls=1)


class Played(NamedTuple):
    """What came of a task: the true quality of the answer, the calls it took, the score it was handed over with (None: none), and
    whether that was said to reach the target.
    """

    quality: float
    calls: int
    said: float | None
    reached: bool
    family: Observations | None = None

    @property
    def too_high(self):
        return None if self.said is None else self.said - self.quality

    @property
    def false(self):
        """Whether it says that the target is reached, and it is not."""
        return float(self.reached and self.quality < TARGET)


def single(episodes):
    """One draft, as it comes."""
    for episode in episodes:
        episode.draft(0)
    return [Played(e.texts[0].quality, e.calls, None, reached=False) for e in episodes]


def each(play, episodes):
    """A player that takes its tasks one by one."""
    return [play(episode) for episode in episodes]


def executionkit(episode, iterations=5, patience=3, delta=0.01):
    """`refine_loop` of executionkit 0.4 with its defaults: refine the best, which is told its score and no more; stop at the
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
    return Played(episode.texts[best].quality, episode.calls, top, reached=last >= TARGET)


def openjudge(episode, iterations=3):
    """`LLMRefinement` of OpenJudge (RM-Gallery): critique the last answer, rewrite it, and return what came last, not graded."""
    episode.draft(0)
    for id in range(iterations):
        episode.grade(id)
        episode.refine(id + 1, id)
    return Played(episode.texts[iterations].quality, episode.calls, None, reached=False)


def dspy(attempts, episode):
    """`Refine` of DSPy: attempts anew, with advice from the one before, until one reaches the target; the best is returned.

    An attempt is a call, its reward another, the advice a third. That advice on one text helps to write another one as much as
    it would help to revise it, and never harms, is generous.
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
    return Played(episode.texts[best].quality, episode.calls, top, reached=top >= TARGET)


def planned(plan, episodes):
    """One of our plans, carried out by the package's own engine, task by task."""
    return asyncio.run(_planned(plan, episodes))


def doubted(plan, episodes):
    """The same, with a judge that computes taken for one that asks a model."""
    return asyncio.run(_planned(plan, episodes, free=False))


async def _planned(plan, episodes, free=None):
    return [await follow(plan, episode, free=free) for episode in episodes]


def apiece(plan, calls, episodes):
    """So many calls for each task: what is over at one is of no use to another."""
    return asyncio.run(_apiece(plan, calls, episodes))


async def _apiece(plan, calls, episodes):
    return [await follow(plan, episode, most=calls) for episode in episodes]


def together(plan, calls, episodes):
    """So many calls a task, in one budget for all, at the price that the package's allocator finds."""
    return asyncio.run(_together(plan, calls * len(episodes), episodes))


async def _together(plan, calls, episodes):
    def spent():
        return sum(episode.calls for episode in episodes)

    allocator = BudgetAllocator(plan, "calls", left=lambda: calls - spent(), spent=lambda: {"calls": spent()}, rows=len(episodes))
    played = []
    for episode in episodes:
        account = allocator.start_row()
        trace = await grown(partial(account.next_steps, plan), episode, most=calls - spent())
        account.finish(trace)
        played.append(result(episode, trace))
    return played


async def follow(plan, episode, *, free=None, most=inf):
    """One task, to its end."""
    return result(episode, await grown(plan, episode, free=free, most=most))


async def grown(plan, episode, *, free=None, most=inf):
    """The trace of a task, with no more than so many calls."""
    blank = Trace(Task("Write it well."), (PanelGrader("judge", model_free=episode.world.free if free is None else free),))

    async def within(step):
        if episode.calls >= most and not isinstance(step, Stop):
            return Failure(step.slot, step.role, "BudgetExhaustedError", "all calls are made", StopReason.BUDGET)
        return await perform(episode, step)

    *_, trace = [trace async for trace in advance(blank, plan, within)]
    return trace


def result(episode, trace):
    """What came of a task."""
    reached = trace.outcome.reason is StopReason.TARGET
    quality = episode.texts[trace.outcome.best].quality if episode.texts else 0.0
    return Played(quality, episode.calls, trace.score, reached, observe(trace))


async def perform(episode, step):
    """The world's answer to a step."""
    match step:
        case Generate():
            episode.draft(step.id)
            return Candidate(step.id, f"text {step.id}", by="writer", role="generate", usage=ONE)
        case Refine():
            told = ADVICE in step.messages[-1]["content"]
            episode.refine(step.id, step.parent, 1.0 if told else VAGUE)
            return Candidate(step.id, f"text {step.id}", step.parent, by="writer", role="refine", usage=ONE)
        case Grade():
            score = episode.grade(step.candidate.id, step.repeat)
            return Feedback(score, actions=(ADVICE,), candidate=step.candidate.id, grader="judge", repeat=step.repeat, usage=ONE)
        case Stop():
            return step.outcome
    raise TypeError(f"no plan that plays here asks for {step.role}")
