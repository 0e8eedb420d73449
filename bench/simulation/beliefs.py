"""The initial priors of a plan: learned from other tasks of the world, or the true ones."""

from __future__ import annotations

from statistics import fmean

from redraft.core.stopping import done, max_iterations, target
from redraft.plans.adaptive import Adaptive
from redraft.plans.self_refine import SelfRefine
from redraft.quality.fit import fit_priors
from redraft.quality.priors import Priors

from .players import TARGET, run_plan
from .worlds import KINSHIP, Episode

ATTEMPTS = 8
LESSON_PRICE = 0.01
RULES = SelfRefine(target(TARGET) | done() | max_iterations(ATTEMPTS))


def adaptive(price, priors):
    """Return the plan at a price, with more attempts than its default."""
    return Adaptive(RULES, min_expected_gain=price, max_attempts=ATTEMPTS, priors=priors)


def learn_priors(world, seed, tasks, before):
    """Return the priors that a run with the priors `before` learns from this many tasks, which occur nowhere else."""
    episodes = [Episode(world, seed, "lesson", k) for k in range(tasks)]
    return fit_priors([played.family for played in run_plan(adaptive(LESSON_PRICE, before), episodes)], before)


def true_priors(world, seed, tasks=2000):
    """Return the priors that describe a world best: its own numbers, and a straight line fitted to the effect of refinements.

    The line is fitted where refinements are made: along four of them, each of the best so far. A judge that
    becomes more lenient counts as one that favours revisions, the nearest that priors can express.
    """
    before, after = [], []
    for k in range(tasks):
        episode, best = Episode(world, seed, "truth", k), 0
        episode.draft(0)
        for id in range(1, 5):
            episode.refine(id, best)
            old, new = episode.texts[best].quality, episode.texts[id].quality
            before.append(old)
            after.append(new)
            best = id if new >= old else best
    middle, level = fmean(before), fmean(after)
    spread = fmean((x - middle) ** 2 for x in before)
    carry = fmean((x - middle) * (y - level) for x, y in zip(before, after, strict=True)) / spread if spread else 1.0
    carry = min(1.0, max(0.0, carry))
    gain = level - carry * middle
    left = fmean((y - gain - carry * x) ** 2 for x, y in zip(before, after, strict=True)) ** 0.5
    return Priors(
        draft_mean=world.draft_mean,
        draft_mean_sd=world.task_sd,
        draft_sd=world.draft_sd,
        gain=gain,
        gain_sd=0.01,
        retention=carry,
        step_sd=left,
        noise_sd=(world.judge_sd**2 + world.quantum**2 / 12) ** 0.5,
        bias_sd=world.style_sd,
        bias_inheritance=KINSHIP,
        bias_drift=min(1.0, world.drift + world.leniency),
    )
