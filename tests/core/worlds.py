"""Small worlds for plans to be carried out in: what they answer depends on the step alone, not on the moment."""

import asyncio
import random

from redraft.core.records import Candidate, Comparison, Failure, Feedback, Outcome
from redraft.usage import Usage
from redraft.core.steps import Compare, Generate, Grade, Refine, Repair, Stop


def chance(*key):
    return random.Random(repr(key))


class World:
    """Performs steps. `fails` is the share of slots that always fail (not an editor's, which asks nobody); `asked`
    keeps the slots it was asked for."""

    def __init__(self, seed, fails=0.0, jitter=True):
        self.seed, self.fails, self.jitter, self.asked = seed, fails, jitter, []

    async def __call__(self, step):
        if self.jitter:
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)  # arrival order is never the asking order
        return self.answer(step)

    def answer(self, step):
        if isinstance(step, Stop):
            return Outcome(step.best, step.reason, step.note)
        self.asked.append(step.slot)
        if not isinstance(step, Repair) and chance(self.seed, "fails", step.slot).random() < self.fails:
            return Failure(step.slot, step.role, "ModelError", "no", usage=Usage(calls=1))
        match step:
            case Generate():
                return Candidate(step.id, self.text(step.id), by="m", role="generate", usage=Usage(1, 10, 5))
            case Refine():
                return Candidate(step.id, self.text(step.id), step.parent, by="m", role="refine", usage=Usage(1, 10, 5))
            case Repair():
                text = step.parent.text.replace("a", "b", 1)
                return Candidate(step.id, text, step.parent.id, by="editor", role="repair")
            case Grade():
                score = self.score(step)
                return Feedback(score, candidate=step.candidate.id, grader=step.grader, repeat=step.repeat, usage=Usage(1, 4, 1))
            case Compare():
                ids = sorted((c.id for c in step.candidates), key=lambda i: chance(self.seed, "rank", i).random())
                return Comparison(tuple(ids), "because", grader=step.grader, repeat=step.repeat, usage=Usage(1, 4, 1))

    def text(self, id):
        return "".join(chance(self.seed, "text", id).choices("abc ", k=6))

    def score(self, step):
        if step.grader == "no_a":
            return float("a" not in step.candidate.text)
        return round(chance(self.seed, step.candidate.text, step.grader, step.repeat).random(), 3)


async def last(growing):
    trace = None
    async for trace in growing:
        pass
    return trace


def same(one, other):
    """Whether two traces hold the same, whatever the order; a failure that was tried again may stand twice."""
    return set(map(repr, one.records)) == set(map(repr, other.records))
