"""How finished work teaches: empirical Bayes. The priors under which what was seen is likeliest, held back by those before.

The likelihood is that of the grades, whatever made a plan stop where it did: stopping by what was seen does not bias it. Sums
are exact and the search takes the same way every time, so that what is learned depends on the set of families alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import exp, fsum, log

from .lineage import Family, Shape
from .posterior import Tree
from .priors import Priors

LEAST = 0.02  # of a spread: grades come in steps, and who says the same of all tells nothing
PIVOT = 0.6  # the quality at which a gain is told: where most texts are, so that it can be told apart from `carry`
ROUNDS = 12
# How far each may lie from what was believed before, as a standard deviation: of its logarithm for a spread.
FAR = {
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


def learned(families: Iterable[Family], before: Priors) -> Priors:
    """What is believed after these families, where `before` was."""
    groups: defaultdict[Shape, list[Family]] = defaultdict(list)
    for family in families:
        if family.scores:
            groups[family.shape].append(family)
    if not groups:
        return before
    at, steps = searched(before), dict(FAR)
    if not any(family.again[0] for families in groups.values() for family in families):
        del steps["noise_sd"]  # nobody looked twice: what is noise and what differs cannot be told apart
    start, height = dict(at), posterior(groups, before, at, at)
    for _ in range(ROUNDS):
        for name in list(steps):
            for way in (1, -1):
                tried = {**at, name: at[name] + way * steps[name]}
                if (found := posterior(groups, before, tried, start)) > height:
                    at, height, steps[name] = tried, found, way * steps[name] * 1.5
                    break
            else:
                steps[name] /= 3
    unmoved = {name: getattr(before, name) for name in FAR if name.endswith("_sd") and at[name] == start[name]}
    return replace(found_at(at, before), **unmoved, tasks=before.tasks + sum(map(len, groups.values())))


def searched(priors: Priors) -> dict[str, float]:
    """The priors as a search sees them."""
    lift = priors.gain + (priors.carry - 1) * PIVOT
    spreads = {name: log(max(getattr(priors, name), 1e-3)) for name in FAR if name.endswith("_sd")}
    return {"level": priors.level, "lift": lift, "carry": priors.carry, **spreads}


def found_at(at: Mapping[str, float], before: Priors) -> Priors:
    """The priors at a place of the search."""
    spreads = {name: min(1.0, exp(at[name])) for name in FAR if name.endswith("_sd")}
    told = {**spreads, "level": at["level"], "gain": gain_at(at), "carry": at["carry"]}
    return Priors.of({**before.as_data(), **told})


def gain_at(at: Mapping[str, float]) -> float:
    """The gain at a place of the search."""
    return at["lift"] - (at["carry"] - 1) * PIVOT


def posterior(groups: Mapping[Shape, list[Family]], before: Priors, at: Mapping[str, float], start: Mapping[str, float]) -> float:
    """The logarithm of how likely the grades are, and the priors given those before; up to a constant."""
    if not (0 <= at["level"] <= 1 and 0 <= at["carry"] <= 1 and -1 <= gain_at(at) <= 1):
        return float("-inf")
    if any(at[name] < min(log(LEAST), start[name]) for name in at if name.endswith("_sd")):
        return float("-inf")
    priors = found_at(at, before)
    far = [-(((at[name] - start[name]) / sd) ** 2) / 2 for name, sd in FAR.items()]
    return fsum([*far, *(term for shape, families in groups.items() for term in likelihood(shape, families, priors))])


def likelihood(shape: Shape, families: Iterable[Family], priors: Priors) -> Iterator[float]:
    """Its logarithm, family by family."""
    tree = Tree(shape, priors)
    spread = sum(log(row[-1]) for row in tree.factor)
    for family in families:
        yield -spread - sum(new * new for new in tree.news(family.scores)) / 2
        more, squares = family.again
        yield -more * log(priors.noise_sd) - squares / (2 * priors.noise_sd**2)
