"""The noise of a judge, by repeated scores of the same text (formulas: README.md, "Learning the
parameters").

Scores that are values tell it in closed form. Where one of a text's scores is an interval (an end
of the scale, or a level of a coarse one), the likelihood of all scores of that text is integrated
over its impression, and the maximum is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import exp, fsum, log, sqrt
from typing import NamedTuple

from .likelihood import density, normal_cdf
from .lineage import THRESHOLD_SD, BoundedScore, Observations, sum_sq
from .priors import Priors

# of a learned standard deviation: scores come in steps, so equal scores do not show that nothing
# varies
MIN_SD = 0.02
NOISE_PSEUDO_COUNT = 4  # degrees of freedom that the previous noise counts for
# of the integral over an impression: points, and standard deviations to either side of its mean
GRID_POINTS, GRID_SDS = (25, 3.0)
SEARCH_STEPS = 24  # of the golden section, which then brackets the logarithm of the noise to .0001
GOLDEN = (sqrt(5) - 1) / 2
MIN_LIKELIHOOD = 1e-300


class NoiseEstimate(NamedTuple):
    """The noise of one score, with its standard error; None if no text was scored repeatedly."""

    sd: float
    error: float | None


def fit_noise(observations: Sequence[Observations], prior: Priors) -> NoiseEstimate:
    """Return the noise by repeated scores; the one before if no text was scored repeatedly."""
    degrees = sum(task.repeat_stats[0] for task in observations)
    if not degrees:
        return NoiseEstimate(prior.noise_sd, None)
    squares = fsum(task.repeat_stats[1] for task in observations)
    mixed = [scores for task in observations for scores in task.mixed_repeats]
    degrees -= sum(len(scores) - 1 for scores in mixed)
    squares -= fsum(sum_sq([score.score for score in scores]) for scores in mixed)
    count = NOISE_PSEUDO_COUNT + degrees
    squares = max(0.0, squares) + NOISE_PSEUDO_COUNT * prior.noise_sd**2
    if not mixed:
        noise_sd = min(1.0, max(MIN_SD, sqrt(squares / count)))
        return NoiseEstimate(noise_sd, noise_sd / sqrt(2 * count))
    is_coarse = any(task.coarse_step for task in observations)
    impressions = impression_grid(mixed, prior, is_coarse=is_coarse)

    def height(log_sd: float) -> float:
        variance = exp(2 * log_sd)
        end_variance = 0.0 if is_coarse else THRESHOLD_SD**2
        terms = [log_likelihood(scores, impressions, variance, end_variance) for scores in mixed]
        return fsum([*terms, -count * log_sd, -squares / (2 * variance)])

    return highest_noise(height)


def impression_grid(
    repeats: Sequence[Sequence[BoundedScore]], prior: Priors, *, is_coarse: bool
) -> list[tuple[float, float]]:
    """Return the impressions that texts make, each with its probability: normal around the mean of
    the scores.
    """
    scores = [score.score for text in repeats for score in text]
    mean = fsum(scores) / len(scores)
    variance = (
        prior.draft_mean_sd**2 + prior.draft_sd**2 + prior.bias_sd**2 + is_coarse * THRESHOLD_SD**2
    )
    zs = [GRID_SDS * (2 * k / (GRID_POINTS - 1) - 1) for k in range(GRID_POINTS)]
    total = fsum(map(density, zs))
    return [(mean + z * sqrt(variance), density(z) / total) for z in zs]


def log_likelihood(
    scores: Iterable[BoundedScore],
    impressions: Iterable[tuple[float, float]],
    variance: float,
    end_variance: float,
) -> float:
    """Return the log likelihood of the scores of one text, given the variance of the noise."""
    sd, interval_sd = sqrt(variance), sqrt(variance + end_variance)
    total = 0.0
    for impression, share in impressions:
        likelihood = share
        for _, low, high in scores:
            if low == high:
                likelihood *= density((low - impression) / sd) / sd
            else:
                likelihood *= normal_cdf((high - impression) / interval_sd) - normal_cdf(
                    (low - impression) / interval_sd
                )
        total += likelihood
    return log(max(total, MIN_LIKELIHOOD))


def highest_noise(height: Callable[[float], float]) -> NoiseEstimate:
    """Return the noise at the maximum of the log posterior of its logarithm, with the error by the
    curvature there.
    """
    low, high = log(MIN_SD), 0.0
    for _ in range(SEARCH_STEPS):
        inner, outer = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, outer) if height(inner) >= height(outer) else (inner, high)
    best, step = (low + high) / 2, 0.1
    curvature = (2 * height(best) - height(best - step) - height(best + step)) / step**2
    error = 1 / sqrt(max(curvature, 2 * NOISE_PSEUDO_COUNT))
    return NoiseEstimate(exp(best), exp(best) * error)
