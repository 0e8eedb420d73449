"""Simulated worlds that perform steps: each answer depends only on the step, not on when it is
asked for.
"""

import asyncio
import random

from redraft.loop.records import Candidate, Failure, Feedback, Outcome
from redraft.loop.steps import Repair, Stop
from redraft.plans.quality.simulate import simulated_record
from redraft.usage import Usage


def chance(*key):
    return random.Random(repr(key))


class World:
    """Performs steps: `fails` is the share of slots that always fail (repairs never do), `asked`
    the performed slots in order.
    """

    def __init__(self, seed, fails=0.0, jitter=True):
        self.seed, self.fails, self.jitter, self.asked = seed, fails, jitter, []

    async def __call__(self, step):
        if self.jitter:
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)  # records arrive in another order than their steps
        return self.answer(step)

    def answer(self, step):
        """Return the record of a step."""
        if isinstance(step, Stop):
            return Outcome(step.best, step.reason, step.note)
        self.asked.append(step.slot)
        if isinstance(step, Repair):
            return Candidate(
                step.id,
                step.parent.text.replace("a", "b", 1),
                step.parent.id,
                by="editor",
                role="repair",
            )
        if chance(self.seed, "fails", step.slot).random() < self.fails:
            return Failure(step.slot, step.role, "ModelError", "no", usage=Usage(calls=1))
        return simulated_record(self, step)

    def text(self, step):
        return "".join(chance(self.seed, "text", step.id).choices("abc ", k=6))

    def feedback(self, step):
        return Feedback(self.score(step))

    def ranking(self, step):
        return sorted(
            (c.id for c in step.candidates), key=lambda id: chance(self.seed, "rank", id).random()
        )

    def score(self, step):
        if step.grader == "no_a":
            return float("a" not in step.candidate.text)
        return round(chance(self.seed, step.candidate.text, step.grader, step.repeat).random(), 3)


async def last(traces):
    trace = None
    async for trace in traces:  # noqa: B007
        pass
    return trace


def same(one, other):
    """Return whether two traces hold the same records in any order; a failure that was tried again
    may occur twice.
    """
    return set(map(repr, one.records)) == set(map(repr, other.records))
