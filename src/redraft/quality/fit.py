"""How finished work teaches: empirical Bayes. The priors under which what was seen is likeliest, held back by those before.

The likelihood is that of the grades, whatever made a plan stop where it did: stopping by what was seen does not bias it. Sums
are exact and the search takes the same way every time, so that what is learned depends on the set of families alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import exp, fsum, log

from .lineage import Observations, TreeShape
from .posterior import GaussianTree
from .priors import Priors

MIN_SD = 0.02  # of a spread: grades come in steps, and who says the same of all tells nothing
PIVOT = 0.6  # the quality at which a gain is told: where most texts are, so that it can be told apart from `carry`
SEARCH_ROUNDS = 12
# How far each may lie from what was believed before, as a standard deviation: of its logarithm for a spread.
HYPERPRIOR_SD = {
    "level": 0.15,
    "lift": 0.1,
    "carry": 0.15,
    "level_sd": 0.5,
    "draft_sd": 0.5,
    "step_sd": 0.5,
    "noise_sd": 0.5,
    "gain_sd": 0.3,
    "style_sd": 0.2,  # without people's labels, hard to tell from quality
}


def fit_priors(observations: Iterable[Observations], prior: Priors) -> Priors:
    """What is believed after these families, where `before` was."""
    groups: defaultdict[TreeShape, list[Observations]] = defaultdict(list)
    for family in observations:
        if family.scores:
            groups[family.shape].append(family)
    if not groups:
        return prior
    at, steps = to_search_space(prior), dict(HYPERPRIOR_SD)
    if not any(family.repeat_stats[0] for families in groups.values() for family in families):
        del steps["noise_sd"]  # nobody looked twice: what is noise and what differs cannot be told apart
    start, height = dict(at), log_posterior(groups, prior, at, at)
    for _ in range(SEARCH_ROUNDS):
        for name in list(steps):
            for way in (1, -1):
                tried = {**at, name: at[name] + way * steps[name]}
                if (found := log_posterior(groups, prior, tried, start)) > height:
                    at, height, steps[name] = tried, found, way * steps[name] * 1.5
                    break
            else:
                steps[name] /= 3
    unmoved = {name: getattr(prior, name) for name in HYPERPRIOR_SD if name.endswith("_sd") and at[name] == start[name]}
    return replace(from_search_space(at, prior), **unmoved, tasks=prior.tasks + sum(map(len, groups.values())))


def to_search_space(priors: Priors) -> dict[str, float]:
    """The priors as a search sees them."""
    lift = priors.gain + (priors.retention - 1) * PIVOT
    spreads = {name: log(max(getattr(priors, name), 1e-3)) for name in HYPERPRIOR_SD if name.endswith("_sd")}
    return {"level": priors.draft_mean, "lift": lift, "carry": priors.retention, **spreads}


def from_search_space(point: Mapping[str, float], prior: Priors) -> Priors:
    """The priors at a place of the search."""
    spreads = {name: min(1.0, exp(point[name])) for name in HYPERPRIOR_SD if name.endswith("_sd")}
    told = {**spreads, "level": point["level"], "gain": gain_at(point), "carry": point["carry"]}
    return Priors.from_dict({**prior.to_dict(), **told})


def gain_at(point: Mapping[str, float]) -> float:
    """The gain at a place of the search."""
    return point["lift"] - (point["carry"] - 1) * PIVOT


def log_posterior(
    groups: Mapping[TreeShape, list[Observations]], prior: Priors, point: Mapping[str, float], start: Mapping[str, float]
) -> float:
    """The logarithm of how likely the grades are, and the priors given those before; up to a constant."""
    if not (0 <= point["level"] <= 1 and 0 <= point["carry"] <= 1 and -1 <= gain_at(point) <= 1):
        return float("-inf")
    if any(point[name] < min(log(MIN_SD), start[name]) for name in point if name.endswith("_sd")):
        return float("-inf")
    priors = from_search_space(point, prior)
    far = [-(((point[name] - start[name]) / sd) ** 2) / 2 for name, sd in HYPERPRIOR_SD.items()]
    return fsum([*far, *(term for shape, families in groups.items() for term in log_likelihoods(shape, families, priors))])


def log_likelihoods(shape: TreeShape, observations: Iterable[Observations], priors: Priors) -> Iterator[float]:
    """Its logarithm, family by family."""
    tree = GaussianTree(shape, priors)
    spread = sum(log(row[-1]) for row in tree.cholesky)
    for family in observations:
        yield -spread - sum(new * new for new in tree.innovations(family.scores)) / 2
        more, squares = family.repeat_stats
        yield -more * log(priors.noise_sd) - squares / (2 * priors.noise_sd**2)
