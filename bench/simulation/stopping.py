"""Stopping rules from the literature as rivals: draw and grade new texts until another one is not
expected to be worth its cost.

Both know the raw scores only and return the text with the highest one. `cost` is that of one more
text with its grade, in points of the score. They begin with three texts; a text whose grade cannot
be read counts among the draws, but tells them nothing.
"""

from __future__ import annotations

from math import inf, log, sqrt
from statistics import fmean, median

from .results import TARGET
from .rivals import result

FIRST, MOST_DRAWS = 3, 16
# with which the rules are tried
COSTS, KAPPAS = ((0.2, 0.1, 0.05, 0.03, 0.02, 0.012, 0.005), (0.1, 0.5, 1.0))
DELTA = 0.05


def draw_until(is_enough, episode):
    """Draw texts, the first three at once, until `is_enough(scores, draws)`; return the one with
    the highest score.
    """
    best, scores = 0, []
    with episode.at_once():
        for id in range(FIRST):
            episode.draft(id)
    with episode.at_once():
        first = [episode.grade(id) for id in range(FIRST)]
    for id in range(MOST_DRAWS):
        if id >= FIRST:
            episode.draft(id)
        score = first[id] if id < FIRST else episode.grade(id)
        if score is not None:
            best = id if score > max(scores, default=-inf) else best
            scores.append(score)
        if id + 1 >= FIRST and len(scores) >= FIRST and is_enough(scores, id + 1):
            break
    top = max(scores, default=None)
    return result(episode, best, top, reached=top is not None and top >= TARGET)


def beacon(cost, episode):
    """BEACON: Wan et al. 2025, "Bayesian optimal stopping for efficient LLM sampling" (arXiv
    2510.15945), by the index of Baucells & Zorc 2024, "Search in the dark". Rewards are taken as
    exact and normal, of unknown mean and variance (flat prior).
    """

    def is_enough(scores, draws):
        zeta, scale = standing(scores)
        return draws >= MOST_DRAWS or scale == 0 or index(len(scores), zeta) <= cost / scale

    return draw_until(is_enough, episode)


def standing(scores):
    """Return how far the best score is above the mean of the next one, in its scales, and that
    scale: of a Student t with k - 1 degrees of freedom, the predictive distribution under the flat
    prior.
    """
    k, mean = len(scores), fmean(scores)
    spread = sum((score - mean) ** 2 for score in scores)
    scale = sqrt((1 + 1 / k) * spread / (k - 1))
    return (max(scores) - mean) / scale if scale > 1e-9 else 0.0, scale if scale > 1e-9 else 0.0


def index(k, zeta, most=MOST_DRAWS):
    """Return the highest cost in scales at which it is worth drawing on after k of at most `most`
    draws.
    """
    from .indices import index_at  # numpy is loaded only where the rule is played

    return index_at(k, zeta, FIRST, most) if k < most else 0.0


def pandora(cost, kappa, episode):
    """The UCB Pandora's box rule: Kalayci, Raman & Dughmi 2025, "Optimal stopping vs best-of-N"
    (arXiv 2510.01394).
    """
    return draw_until(lambda scores, _: max(scores) >= threshold(scores, cost, kappa), episode)


def threshold(scores, cost, kappa):
    """Return the score from which on no draw is worth its cost: Weitzman's index with an upper
    bound on the mean excess.

    Scores above the median are taken to have an exponential tail of half the mass. The bound is
    `excess * (1 + kappa * sqrt(log(1 / DELTA) / n))`, a confidence bound only in name for kappa up
    to 1; with `kappa=None` it is one for exponential excesses at every n. All tasks share the scale
    of the scores, so no utility is needed that levels tasks.
    """
    middle = median(scores)
    excesses = [score - middle for score in scores if score > middle]
    if not excesses:
        return middle
    n, mean = len(excesses), fmean(excesses)
    if kappa is None:
        from .indices import chi_squared_quantile

        most = 2 * sum(excesses) / chi_squared_quantile(DELTA / (n * (n + 1)), 2 * n)
    else:
        most = mean * (1 + kappa * sqrt(log(1 / DELTA) / n))
    return middle + most * log(0.5 * most / cost)
