"""Learn priors from finished tasks: maximum a posteriori (MAP) by coordinate search, that is, empirical Bayes.

README.md gives the objective and the reasons for the hyperprior. Sums are exact and the search is deterministic, so the result
depends only on the set of observations and not on their order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import exp, fsum, log

from .lineage import Observations, TreeShape
from .posterior import GaussianTree
from .priors import Priors

MIN_SD = 0.02  # of a learned standard deviation: scores come in steps, so equal scores do not show that nothing varies
PIVOT = 0.6  # the quality at which the gain is searched: where most texts are, it hardly depends on `retention`
SEARCH_ROUNDS = 12
# tau: standard deviation of each coordinate around its previous value, for "_sd" that of the logarithm
HYPERPRIOR_SD = {
    "draft_mean": 0.15,
    "gain_at_pivot": 0.1,
    "retention": 0.15,
    "draft_mean_sd": 0.5,
    "draft_sd": 0.5,
    "step_sd": 0.5,
    "noise_sd": 0.5,
    "gain_sd": 0.3,
    "bias_sd": 0.2,  # hard to tell from quality without human labels
}


def fit_priors(observations: Iterable[Observations], prior: Priors) -> Priors:
    """Return the priors that fit these observations, starting from `prior`. Without any score it is `prior` itself."""
    groups: defaultdict[TreeShape, list[Observations]] = defaultdict(list)
    for task in observations:
        if task.scores:
            groups[task.shape].append(task)
    if not groups:
        return prior
    point, steps = to_search_space(prior), dict(HYPERPRIOR_SD)
    if not any(task.repeat_stats[0] for group in groups.values() for task in group):
        del steps["noise_sd"]  # without repeated scores, noise and differences in quality cannot be separated
    start, highest = dict(point), log_posterior(groups, prior, point, point)
    for _ in range(SEARCH_ROUNDS):
        for name in list(steps):
            for sign in (1, -1):
                trial = {**point, name: point[name] + sign * steps[name]}
                if (height := log_posterior(groups, prior, trial, start)) > highest:
                    point, highest, steps[name] = trial, height, sign * steps[name] * 1.5
                    break
            else:
                steps[name] /= 3
    unmoved = {name: getattr(prior, name) for name in HYPERPRIOR_SD if name.endswith("_sd") and point[name] == start[name]}
    return replace(from_search_space(point, prior), **unmoved, tasks=prior.tasks + sum(map(len, groups.values())))


def to_search_space(priors: Priors) -> dict[str, float]:
    """Return the coordinates of the search: standard deviations as logarithms, and the gain at `PIVOT` instead of at 0."""
    gain_at_pivot = priors.gain + (priors.retention - 1) * PIVOT
    log_sds = {name: log(max(getattr(priors, name), 1e-3)) for name in HYPERPRIOR_SD if name.endswith("_sd")}
    return {"draft_mean": priors.draft_mean, "gain_at_pivot": gain_at_pivot, "retention": priors.retention, **log_sds}


def from_search_space(point: Mapping[str, float], prior: Priors) -> Priors:
    """Return the priors at a point of the search."""
    sds = {name: min(1.0, exp(point[name])) for name in HYPERPRIOR_SD if name.endswith("_sd")}
    values = {**sds, "draft_mean": point["draft_mean"], "gain": gain_at(point), "retention": point["retention"]}
    return Priors.from_dict({**prior.to_dict(), **values})


def gain_at(point: Mapping[str, float]) -> float:
    """Return the gain (at quality 0) at a point of the search."""
    return point["gain_at_pivot"] - (point["retention"] - 1) * PIVOT


def log_posterior(
    groups: Mapping[TreeShape, list[Observations]], prior: Priors, point: Mapping[str, float], start: Mapping[str, float]
) -> float:
    """Return log likelihood plus log hyperprior, up to a constant; minus infinity outside the allowed range."""
    if not (0 <= point["draft_mean"] <= 1 and 0 <= point["retention"] <= 1 and -1 <= gain_at(point) <= 1):
        return float("-inf")
    if any(point[name] < min(log(MIN_SD), start[name]) for name in point if name.endswith("_sd")):
        return float("-inf")
    priors = from_search_space(point, prior)
    penalties = [-(((point[name] - start[name]) / sd) ** 2) / 2 for name, sd in HYPERPRIOR_SD.items()]
    return fsum([*penalties, *(term for shape, group in groups.items() for term in log_likelihoods(shape, group, priors))])


def log_likelihoods(shape: TreeShape, observations: Iterable[Observations], priors: Priors) -> Iterator[float]:
    """Yield the terms of the log likelihood for tasks of one shape: two for each task, of its scores and of its repeated scores."""
    tree = GaussianTree(shape, priors)
    half_log_det = sum(log(row[-1]) for row in tree.cholesky)
    for task in observations:
        yield -half_log_det - sum(z * z for z in tree.innovations(task.scores)) / 2
        degrees, squares = task.repeat_stats
        yield -degrees * log(priors.noise_sd) - squares / (2 * priors.noise_sd**2)
