"""Learn priors from finished tasks: empirical Bayes, shrunk so that little data changes little.

The noise comes first, from repeated scores (see `noise`). Then the level of drafts, the lift of a
refinement, the retention and the spread of drafts are fitted (maximum a posteriori, MAP), and each
moves only as far as it exceeds its standard error. Scores without noise tell the spreads apart;
scores that are intervals are replaced by latent ones. README.md gives the formulas. Sums are exact
and the search is deterministic, so the result depends only on the set of observations and not on
their order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import exp, fsum, hypot, inf, log, sqrt
from typing import Any, TypeAlias

from .filtering import tree_with_intervals
from .labelled_figures import (
    DRIFT_ERROR,
    KNOWN_NOISE_DRIFT,
    UNLABELLED,
    LabelledFigures,
    shrunk_move,
)
from .lineage import Observations, TreeShape
from .noise import MIN_SD, fit_noise
from .priors import Priors
from .tree import GaussianTree, backward_solve, dot

GAIN_SPREAD = (
    0.02  # standard deviation of the gain between tasks, without what is unknown about its mean
)
# errors of the lift that a move must exceed: tasks of several kinds shift it, which its error does
# not show
LIFT_CAUTION = 1.5
MAX_SEARCH_ROUNDS = 60
# of the EM algorithm, whose limit is extrapolated; with 3, values far from the prior ones are not
# reached
EM_STEPS = 8
# share of the information about a coordinate that may be missing because scores are intervals
MAX_MISSING = 0.8
MAX_SHARED_TEXTS = (
    16  # of a tree that extends another one: few long ones begin alike, and each copy takes memory
)
SEARCH_TOLERANCE = 0.01  # shortest steps of the search, as shares of tau
# tau: standard deviation of each coordinate around its previous value, for spreads of the
# logarithm
HYPERPRIOR_SD = {
    "level": 0.15,
    "lift": 0.1,
    "retention": 0.15,
    "spread": 0.5,
    "draft_mean_sd": 0.5,
    "draft_sd": 0.5,
    "step_sd": 0.5,
}
NOISY = ("level", "lift", "retention", "spread")
COARSE = ("level", "lift")
EXACT = ("level", "lift", "retention", "draft_mean_sd", "draft_sd", "step_sd")

Groups: TypeAlias = Mapping[TreeShape, Sequence[Observations]]


@dataclass(frozen=True, slots=True)
class PriorsFit:
    """Priors fitted to tasks, and what the tasks themselves show with its standard error; None for
    what they do not show.

    The priors move only part of the way to what is shown (`shrunk_move`).
    """

    priors: Priors
    noise_error: float | None = None
    level: float | None = None
    level_error: float | None = None
    lift: float | None = None
    lift_error: float | None = None


def lift(priors: Priors) -> float:
    """Return by how much a refinement raises the quality of a first draft on average, in points of
    the score.
    """
    return priors.gain + (priors.retention - 1) * priors.draft_mean


def fit_priors(
    observations: Iterable[Observations], prior: Priors, known: LabelledFigures = UNLABELLED
) -> Priors:
    """Return the priors that fit these observations, starting from `prior`. Without any score it is
    `prior` itself.

    `known`: what people's labels show, which is taken as it is.
    """
    return fit_with_errors(observations, prior, known).priors


def fit_with_errors(
    observations: Iterable[Observations], prior: Priors, known: LabelledFigures = UNLABELLED
) -> PriorsFit:
    """Return the priors that fit these observations, starting from `prior`, with their standard
    errors. `known`: as above.
    """
    tasks = [task for task in observations if task.scores]
    if not tasks:
        return PriorsFit(prior)
    prior = known.applied_to(prior)
    noise_sd, noise_error = prior.noise_sd, known.noise_error
    if known.noise_sd is None:
        noise_sd, noise_error = fit_noise(tasks, prior)
    drift = (
        KNOWN_NOISE_DRIFT
        if noise_error and prior.bias_drift == Priors().bias_drift
        else prior.bias_drift
    )
    start = replace(prior, noise_sd=noise_sd, bias_drift=drift, tasks=prior.tasks + len(tasks))
    search, maximum, missing = fit_to_latent_scores(tasks, start)
    drift_error = DRIFT_ERROR if known.drift_error is None else known.drift_error
    errors = search.standard_errors(maximum, noise_error, drift_error)
    errors = {name: error / sqrt(1 - missing[name]) for name, error in errors.items()}
    cautious = {**errors, "lift": LIFT_CAUTION * errors["lift"]}
    moves = {name: shrunk_move(maximum[name], cautious[name]) for name in search.names}
    fitted = replace(
        moved_priors(start, moves) or start,
        gain_sd=min(prior.gain_sd, hypot(GAIN_SPREAD, errors["lift"])),
    )
    has_refinements = any(node.role == "refine" for task in tasks for node in task.shape.nodes)
    shown_level, shown_lift = start.draft_mean + maximum["level"], lift(start) + maximum["lift"]
    about_lift = (shown_lift, errors["lift"]) if has_refinements else (None, None)
    return PriorsFit(fitted, noise_error, shown_level, errors["level"], *about_lift)


def fit_to_latent_scores(
    tasks: Sequence[Observations], known: Priors
) -> tuple[Search, dict[str, float], dict[str, float]]:
    """Return the search at its end, the highest point, and the share of the information about each
    coordinate that is missing.

    Scores that are intervals are replaced by the latent ones that are expected given all scores of
    the task: the expectation step of the EM algorithm (Dempster, Laird & Rubin 1977). The share of
    missing information is the rate at which it converges (Meng & Rubin 1991), by which the last
    move is extended.
    """
    names = coordinates(tasks)
    search = Search(by_shape(tasks), known, names)
    if not any(task.intervals for task in tasks):
        return search, search.maximum(), dict.fromkeys(names, 0.0)
    points = [dict.fromkeys(names, 0.0)]
    for n in range(EM_STEPS):
        priors = moved_priors(known, points[-1]) or known
        search = Search(
            by_shape([with_latent_scores(task, priors) for task in tasks]), known, names
        )
        points.append(search.maximum(points[-1] if n else None))
    missing = {name: missing_share(name, points) for name in names}
    last = points[-1]
    limit = {
        name: last[name] + (last[name] - points[-2][name]) * missing[name] / (1 - missing[name])
        for name in names
    }
    return search, limit if moved_priors(known, limit) else last, missing


def missing_share(name: str, points: Sequence[Mapping[str, float]]) -> float:
    """Return the ratio of the last two moves of a coordinate, in [0, `MAX_MISSING`]; 0 if it hardly
    moves.
    """
    first, second, third = (point[name] for point in points[-3:])
    is_still = abs(second - first) <= SEARCH_TOLERANCE * HYPERPRIOR_SD[name]
    return 0.0 if is_still else min(MAX_MISSING, max(0.0, (third - second) / (second - first)))


def coordinates(tasks: Iterable[Observations]) -> tuple[str, ...]:
    """Return the coordinates that are searched: more without noise, fewer on a coarse scale, which
    hardly tells a spread.
    """
    if not any(task.shape.repeat_noise_weight for task in tasks):
        return EXACT
    return COARSE if any(task.coarse_step for task in tasks) else NOISY


def by_shape(tasks: Iterable[Observations]) -> Groups:
    """Return tasks by the shape of their trees: tasks of one shape have the same covariances."""
    groups: defaultdict[TreeShape, list[Observations]] = defaultdict(list)
    for task in tasks:
        groups[task.shape].append(task)
    return groups


def with_latent_scores(task: Observations, priors: Priors) -> Observations:
    """Return the task with values in place of intervals: those that have the effect on the means
    which the intervals have.
    """
    if not task.intervals:
        return task
    tree, scores = tree_with_intervals(task, priors)
    alpha = backward_solve(tree.cholesky, tree.innovations(scores))
    latent: list[float] = []
    for n, i in enumerate(tree.graded_indices):
        mean = tree.impression_means[i] + dot(tree.impression_covs(i, tree.graded_indices), alpha)
        latent.append(
            mean + tree.noise_variance(task.shape.nodes[i].noise_weight or 0.0) * alpha[n]
        )
    return task._replace(scores=tuple(latent), intervals={}, values={})


@dataclass
class Search:
    """The search for the most probable values of some coordinates, given as moves from `prior`."""

    groups: Groups
    prior: Priors
    names: tuple[str, ...]

    def maximum(self, start: Mapping[str, float] | None = None) -> dict[str, float]:
        """Return the highest point that coordinate search finds, from no move at all or from
        `start`, which is near.
        """
        point = dict(start) if start else dict.fromkeys(self.names, 0.0)
        steps = {name: HYPERPRIOR_SD[name] / (10 if start else 1) for name in self.names}
        highest = self.height(point)
        for _ in range(MAX_SEARCH_ROUNDS):
            for name in self.names:
                for sign in (1, -1):
                    trial = {**point, name: point[name] + sign * steps[name]}
                    if (height := self.height(trial)) > highest:
                        point, highest, steps[name] = trial, height, sign * steps[name] * 1.5
                        break
                else:
                    steps[name] /= 3
            if all(
                abs(steps[name]) < SEARCH_TOLERANCE * HYPERPRIOR_SD[name] for name in self.names
            ):
                break
        return point

    def standard_errors(
        self, point: Mapping[str, float], noise_error: float | None, drift_error: float
    ) -> dict[str, float]:
        """Return the standard errors at the maximum: by the curvature there, and the errors of
        the noise and of the drift.
        """
        errors = self.curvature_errors(point)
        if noise_error:
            noises = (
                self.prior.noise_sd + noise_error,
                max(MIN_SD, self.prior.noise_sd - noise_error),
            )
            ends = [
                replace(self, prior=replace(self.prior, noise_sd=min(1.0, noise))).maximum(point)
                for noise in noises
            ]
            errors = {
                name: hypot(error, (ends[0][name] - ends[1][name]) / 2)
                for name, error in errors.items()
            }
        has_drift = any(shape.repeat_noise_weight for shape in self.groups)
        return {**errors, "lift": hypot(errors["lift"], drift_error * has_drift)}

    def curvature_errors(self, point: Mapping[str, float]) -> dict[str, float]:
        """Return the standard errors by the curvature of the log posterior, each at most the
        hyperprior's.
        """
        steps = {name: HYPERPRIOR_SD[name] / 10 for name in self.names}
        top = self.height(point)

        def height(*moved: tuple[str, int]) -> float:
            return (
                self.height(
                    {**point, **{name: point[name] + sign * steps[name] for name, sign in moved}}
                )
                - top
            )

        ups, downs = ({name: height((name, sign)) for name in self.names} for sign in (1, -1))
        # the others are at a bound
        inner = [name for name in self.names if ups[name] > -inf and downs[name] > -inf]
        information = [[-ups[a] - downs[a] if a == b else 0.0 for b in inner] for a in inner]
        for (i, a), (j, b) in combinations(enumerate(inner), 2):
            mixed = (
                height((a, 1), (b, 1))
                - ups[a]
                - ups[b]
                + height((a, -1), (b, -1))
                - downs[a]
                - downs[b]
            )
            information[i][j] = information[j][i] = -mixed / 2
        errors = {
            name: steps[name] * sqrt(v)
            for name, v in zip(inner, diagonal_of_inverse(information), strict=True)
        }
        return {name: min(HYPERPRIOR_SD[name], errors.get(name, inf)) for name in self.names}

    def height(self, moves: Mapping[str, float]) -> float:
        """Return log likelihood plus log hyperprior, up to a constant; minus infinity outside the
        allowed range.
        """
        priors = moved_priors(self.prior, moves)
        if priors is None:
            return -inf
        terms = [-((move / HYPERPRIOR_SD[name]) ** 2) / 2 for name, move in moves.items()]
        trees: dict[TreeShape, GaussianTree] = {}
        for shape, group in self.groups.items():
            terms += log_likelihoods(tree_by_prefix(shape, priors, trees), group)
        return fsum(terms)


def diagonal_of_inverse(matrix: Sequence[Sequence[float]]) -> list[float]:
    """Return the diagonal of the inverse of a matrix; infinity where the matrix is not positive
    definite.
    """
    size = len(matrix)
    rows = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for i in range(size):
        pivot = rows[i][i]
        if not 0 < pivot < inf:
            return [inf] * size
        rows[i] = [value / pivot for value in rows[i]]
        for j in range(size):
            if j != i:
                rows[j] = [
                    value - rows[j][i] * own for value, own in zip(rows[j], rows[i], strict=True)
                ]
    return [rows[i][size + i] for i in range(size)]


def moved_priors(prior: Priors, moves: Mapping[str, float]) -> Priors | None:
    """Return priors that are moved along the coordinates of the search; None if a value is out of
    range.

    "spread" scales how far drafts differ: down within and between tasks, up only between tasks,
    since scores that vary more than expected do not show that drafts of one task do.
    """
    moves = {name: move for name, move in moves.items() if move}
    spread = moves.get("spread", 0.0)
    scales = {"draft_mean_sd": spread, "draft_sd": min(0.0, spread)}
    logs = {
        name: scales.get(name, 0.0) + moves.get(name, 0.0)
        for name in ("draft_mean_sd", "draft_sd", "step_sd")
    }
    sds = {name: scaled_sd(getattr(prior, name), change) for name, change in logs.items() if change}
    draft_mean, retention = (
        prior.draft_mean + moves.get("level", 0.0),
        prior.retention + moves.get("retention", 0.0),
    )
    gain = lift(prior) + moves.get("lift", 0.0) - (retention - 1) * draft_mean
    if (
        not (0 <= draft_mean <= 1 and 0 <= retention <= 1 and -1 <= gain <= 1)
        or None in sds.values()
    ):
        return None
    values: dict[str, Any] = dict(sds)
    if moves.keys() & {"level", "lift", "retention"}:
        values |= {"draft_mean": draft_mean, "retention": retention, "gain": gain}
    return replace(prior, **values)


def scaled_sd(before: float, log_factor: float) -> float | None:
    """Return a standard deviation times exp(`log_factor`), at most 1; None if it falls below
    `MIN_SD`.
    """
    sd = min(1.0, max(before, 1e-3) * exp(log_factor))
    return None if sd < min(MIN_SD, before) else sd


def tree_by_prefix(
    shape: TreeShape, priors: Priors, trees: dict[TreeShape, GaussianTree]
) -> GaussianTree:
    """Return the tree of a shape. `trees` has those made so far with these priors: most tasks begin
    alike.
    """
    if not 1 < len(shape.nodes) <= MAX_SHARED_TEXTS:
        return GaussianTree(shape, priors)
    tree = trees.get(shape)
    if tree is None:
        prefix = tree_by_prefix(shape._replace(nodes=shape.nodes[:-1]), priors, trees)
        tree = trees[shape] = GaussianTree(shape, priors, prefix)
    return tree


def log_likelihoods(tree: GaussianTree, observations: Iterable[Observations]) -> Iterator[float]:
    """Yield the log likelihood of the scores of each task, for tasks of one shape."""
    half_log_det = sum(log(diagonal) for *_, diagonal in tree.cholesky)
    for task in observations:
        yield -half_log_det - sum(z * z for z in tree.innovations(task.scores)) / 2
