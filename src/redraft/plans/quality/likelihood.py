"""What a score on a coarse scale, or at an end of a scale, says: that a judge's impression lies in
an interval.

A judge's impression of a text is its quality, its bias and noise. A score of a fine scale is taken
as the impression itself. A yes or no, one of a few levels, or a score at an end of the scale says
only between which cuts the impression is. The posterior is then no longer Gaussian; expectation
propagation (Minka 2001, UAI) finds the Gaussian observations that stand for such scores best: each
has the effect on the mean and the variance that its interval has, given all the others (formulas:
README.md).

Nothing here knows of texts and their tree: it works on the mean and the variance of one impression.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import erf, erfc, exp, inf, pi, sqrt
from typing import NamedTuple, TypeAlias

Vector: TypeAlias = list[float]

# from this step on (five levels or fewer), every score is an interval; of finer scales, only the
# ends are
COARSE_STEP = 0.25
DEFAULT_STEP = 0.1  # of a scale that is known only by scores at its ends
MAX_LEVELS = 20  # of the scales that are recognised by their scores
SCORE_TOLERANCE = 1e-6
MIN_PRECISION = 1e-6  # of what an interval says
SQRT_2, SQRT_2PI = sqrt(2), sqrt(2 * pi)
# a normal variable is within this many standard deviations of its mean with probability 95%
Z_95 = 1.96


class ScoreInterval(NamedTuple):
    """A score: the impression is between `low` and `high`."""

    low: float
    high: float


class Site(NamedTuple):
    """The Gaussian observation that stands for an interval: its precision, and precision times
    value.
    """

    precision: float = 0.0
    weighted_value: float = 0.0


def common_step(scores: Iterable[float]) -> float:
    """Return the largest step, 1 / k for k from 5 to 20, of which all scores are multiples; 0 if
    there is none.

    If all are 0 or 1, and one is 0, the judge says yes or no: the step is 1. On a finer scale a 0
    is much rarer. Scores of 1 alone occur on every scale: `DEFAULT_STEP`.
    """
    seen = set(scores)
    if all(is_end(score) for score in seen):
        return 1.0 if any(score < SCORE_TOLERANCE for score in seen) else DEFAULT_STEP
    for k in range(5, MAX_LEVELS + 1):
        for score in seen:
            if abs(score * k - round(score * k)) >= SCORE_TOLERANCE:
                break
        else:
            return 1 / k
    return 0.0


def is_end(score: float) -> bool:
    """Whether a score is the lowest or the highest possible."""
    return score < SCORE_TOLERANCE or score > 1 - SCORE_TOLERANCE


def is_interval(score: float, step: float) -> bool:
    """Whether a score on a scale with this step is an interval, and not a value."""
    return step >= COARSE_STEP or is_end(score)


def has_interval(scores: Iterable[float], step: float) -> bool:
    """Return whether one of the scores is an interval."""
    seen = set(scores)
    return bool(seen) and (is_interval(min(seen), step) or is_interval(max(seen), step))


@lru_cache(maxsize=256)
def score_interval(score: float, step: float) -> ScoreInterval:
    """Return a score that is an interval, on a scale with this step."""
    return ScoreInterval(*score_bounds(score, step))


def score_bounds(score: float, step: float) -> tuple[float, float]:
    """Return between which impressions a judge gives this score: half a step to either side,
    without bounds at the ends.
    """
    low = -inf if score < SCORE_TOLERANCE else score - step / 2
    return low, inf if score > 1 - SCORE_TOLERANCE else score + step / 2


def interval_moments(low: float, high: float) -> tuple[float, float, float]:
    """Return the probability that a standard normal variable lies between two bounds, and its mean
    and shrinkage if it does.

    The mean is (phi(low) - phi(high)) / Z; the shrinkage, in [0, 1], is by how much the variance is
    below 1.
    """
    sign = 1.0
    if low > 0 or high == inf:  # the upper tail, mirrored, keeps its digits
        low, high, sign = -high, -low, -1.0
    probability, at_high = normal_cdf(high), density(high) if high < inf else 0.0
    if low == -inf:
        # beyond 37 standard deviations: all of the mass is at the nearer bound
        if probability < 1e-300:
            return 0.0, sign * high, 1.0
        mean = -at_high / probability
        return (
            probability,
            sign * mean,
            min(1.0, max(0.0, mean * (mean - high))) if at_high else 0.0,
        )
    probability -= normal_cdf(low)
    if probability < 1e-300:
        return 0.0, sign * min(high, 0.0), 1.0
    at_low = density(low)
    mean = (at_low - at_high) / probability
    edges = (low * at_low if at_low else 0.0) - (high * at_high if at_high else 0.0)
    return probability, sign * mean, min(1.0, max(0.0, mean * mean - edges / probability))


def density(x: float) -> float:
    """Return the standard normal density."""
    return exp(-x * x / 2) / SQRT_2PI


def normal_cdf(x: float) -> float:
    """Return the standard normal distribution function, exact in the lower tail."""
    return erfc(-x / SQRT_2) / 2 if x < 0 else (1 + erf(x / SQRT_2)) / 2


def update_sites(
    intervals: Sequence[ScoreInterval],
    sites: Sequence[Site],
    mean: float,
    variance: float,
    noise: float,
) -> tuple[Site, ...]:
    """Return the Gaussian observations that stand for the intervals of one text, each updated once,
    in order.

    `mean` and `variance` describe the impression given all scores, with these sites. `noise` is
    the noise variance of a score.
    """
    updated: list[Site] = []
    for interval, site in zip(intervals, sites, strict=True):
        new = _updated_site(interval, site, mean, variance, noise)
        added, weighted = new.precision - site.precision, new.weighted_value - site.weighted_value
        mean, variance = (
            (mean + variance * weighted) / (1 + variance * added),
            variance / (1 + variance * added),
        )
        updated.append(new)
    return tuple(updated)


def _updated_site(
    interval: ScoreInterval, site: Site, mean: float, variance: float, noise: float
) -> Site:
    """Return the site that has the effect of the interval, given the mean and the variance without
    the old site.
    """
    precision, weighted_value = site
    remaining = 1 - variance * precision
    if variance <= 0 or remaining <= 1e-9:
        return site
    cavity, centre = variance / remaining, (mean - variance * weighted_value) / remaining
    total = cavity + noise
    sd = sqrt(total)
    _, shift, shrinkage = interval_moments(
        (interval.low - centre) / sd, (interval.high - centre) / sd
    )
    kept = max(1 - cavity * shrinkage / total, 1e-9)  # of the variance
    precision = max((1 / kept - 1) / cavity, MIN_PRECISION)
    return Site(
        precision, (centre + cavity * shift / sd) * (1 / cavity + precision) - centre / cavity
    )
