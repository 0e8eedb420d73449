"""The plan with other priors than those that it ships with: at a price, and with the priors that
describe a world best.
"""

from __future__ import annotations

from statistics import fmean

from redraft.loop.stopping import done, max_iterations, target
from redraft.plans.adaptive import Adaptive
from redraft.plans.quality.priors import Priors
from redraft.plans.self_refine import SelfRefine

from .results import TARGET
from .worlds import KINSHIP, Episode

ATTEMPTS = 8
DEFAULT_PRICE = Adaptive().min_expected_gain
RULES = SelfRefine(target(TARGET) | done() | max_iterations(ATTEMPTS))


def adaptive(price, priors):
    """Return the plan at a price that does not rise, with more attempts than its default."""
    return Adaptive(
        RULES,
        min_expected_gain=price,
        max_attempts=ATTEMPTS,
        priors=priors,
        exact_stop=max_iterations(ATTEMPTS),
        price_rises=False,
    )


def true_priors(world, seed, tasks=2000):
    """Return the priors that describe a world best: its own numbers, and a straight line fitted to
    the effect of refinements.

    The line is fitted where refinements are made: along four of them, each of the best so far. A
    judge that becomes more lenient counts as one that favours revisions, the nearest that priors
    can express. Where a world is more than its Gaussian numbers (`World.plain`), the levels and the
    noise are measured.
    """
    episodes = [Episode(world, seed, "truth", k) for k in range(tasks)]
    before, after = refinements(episodes)
    middle, level = fmean(before), fmean(after)
    spread = fmean((x - middle) ** 2 for x in before)
    carry = (
        fmean((x - middle) * (y - level) for x, y in zip(before, after, strict=True)) / spread
        if spread
        else 1.0
    )
    carry = min(1.0, max(0.0, carry))
    gain = level - carry * middle
    left = fmean((y - gain - carry * x) ** 2 for x, y in zip(before, after, strict=True)) ** 0.5
    drafts = dict(draft_mean=world.draft_mean, draft_mean_sd=world.task_sd, draft_sd=world.draft_sd)
    noise_sd = (world.judge_sd**2 + world.quantum**2 / 12) ** 0.5
    if not world.plain:
        drafts, noise_sd = measured_drafts(episodes), measured_noise_sd(episodes)
    return Priors(
        **drafts,
        gain=gain,
        gain_sd=0.01,
        retention=carry,
        step_sd=left,
        noise_sd=noise_sd,
        bias_sd=world.style_sd,
        bias_inheritance=KINSHIP,
        bias_drift=max(-1.0, min(1.0, world.drift + world.leniency)),
    )


def refinements(episodes):
    """Return the qualities before and after each of four refinements of every task, each of the
    best text so far.
    """
    before, after = [], []
    for episode in episodes:
        best = 0
        episode.draft(0)
        for id in range(1, 5):
            episode.refine(id, best)
            old, new = episode.texts[best].quality, episode.texts[id].quality
            before.append(old)
            after.append(new)
            best = id if new >= old else best
    return before, after


def measured_drafts(episodes):
    """Return the mean of drafts, and how far tasks and the drafts of a task differ, from two drafts
    of every task.
    """
    pairs = []
    for episode in episodes:
        episode.draft(1000)
        pairs.append((episode.texts[0].quality, episode.texts[1000].quality))
    mean = fmean(fmean(pair) for pair in pairs)
    within = fmean((a - b) ** 2 / 2 for a, b in pairs)
    total = fmean((q - mean) ** 2 for pair in pairs for q in pair)
    return {
        "draft_mean": mean,
        "draft_mean_sd": max(0.0, total - within) ** 0.5,
        "draft_sd": within**0.5,
    }


def measured_noise_sd(episodes):
    """Return the root mean square of what the scores of drafts are away from quality and style."""
    scored = [(episode.texts[0], episode.grade(0)) for episode in episodes]
    squares = [
        (score - text.quality - text.style) ** 2 for text, score in scored if score is not None
    ]
    return min(1.0, fmean(squares) ** 0.5) if squares else 1.0
