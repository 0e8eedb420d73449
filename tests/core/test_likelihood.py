"""What scores on coarse scales and at the ends of a scale say: compared with numerical integration
and with simulation.
"""

import random
from math import inf, isfinite
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from redraft.loop.records import Candidate, Feedback
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.quality.likelihood import (
    ScoreInterval,
    Site,
    common_step,
    interval_moments,
    score_bounds,
    score_interval,
    update_sites,
)
from redraft.plans.quality.lineage import observe
from redraft.plans.quality.posterior import Posterior
from redraft.plans.quality.priors import Priors
from redraft.plans.quality.tree import FIRST_TEXT_INDEX, cached_tree

YES_NO = PanelGrader("judge", score_step=1.0)
FIVE = PanelGrader("judge", score_step=0.25)
JUDGE = PanelGrader("judge")
NORMAL = NormalDist()


def posterior_of(panel, *scores, prior=None, parents=()):
    """Return the posterior of texts, each with a list of scores; `parents` maps texts to the text
    they refine.
    """
    return Posterior(observations_of(panel, *scores, parents=parents), prior or Priors())


def observations_of(panel, *scores, parents=()):
    """Return the observations of texts, each with a list of scores."""
    records = []
    for i, repeats in enumerate(scores):
        parent = dict(parents).get(i)
        records.append(
            Candidate(
                i, f"text {i}", parent, by="m", role="generate" if parent is None else "refine"
            )
        )
        records += [
            Feedback(score, candidate=i, grader="judge", repeat=n)
            for n, score in enumerate(repeats)
        ]
    return observe(Trace(Task("q"), (panel,), tuple(records)))


@given(st.floats(-6, 6), st.floats(0.01, 6))
def test_moments_of_an_interval(low, width):
    """Probability, mean and variance are those of a truncated normal distribution, integrated
    numerically.
    """
    x = np.linspace(low, low + width, 4001)
    density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    weight = np.trapezoid(density, x)
    mean = np.trapezoid(x * density, x) / weight
    variance = np.trapezoid((x - mean) ** 2 * density, x) / weight
    probability, shift, shrinkage = interval_moments(low, low + width)
    assert probability == pytest.approx(weight, rel=1e-4, abs=1e-12)
    assert shift == pytest.approx(mean, abs=1e-3)
    assert 1 - shrinkage == pytest.approx(variance, abs=2e-3)


@given(st.floats(-60, 60), st.one_of(st.just(inf), st.floats(0, 60)))
def test_moments_are_finite_in_the_tails(low, width):
    """The mean lies in the interval, however improbable that is."""
    _, shift, shrinkage = interval_moments(low, low + width)
    assert isfinite(shift) and 0 <= shrinkage <= 1
    assert low - 0.1 <= shift <= low + width + 0.1


@pytest.mark.parametrize(
    ("scores", "step"),
    [
        ([], 0.1),
        ([1.0], 0.1),
        ([1.0, 1.0, 1.0], 0.1),
        ([0.0], 1.0),
        ([0.0, 1.0], 1.0),
        ([0.0, 1.0, 0.8], 0.2),
        ([0.8], 0.2),
        ([0.7], 0.1),
        ([0.7, 0.75], 0.05),
        ([0.25, 0.75], 1 / 8),
        ([0.7312], 0.0),
    ],
)
def test_step_of_the_scores_seen(scores, step):
    """It is the largest of which all are multiples; only a 0 shows a judge that says yes or no."""
    assert common_step(scores) == pytest.approx(step)


@pytest.mark.parametrize("step", [1.0, 0.5, 0.25])
def test_scores_cover_the_line(step):
    """Every impression has one score."""
    bounds = [score_bounds(k * step, step) for k in range(round(1 / step) + 1)]
    assert bounds[0][0] == -inf and bounds[-1][1] == inf
    assert all(
        one[1] == pytest.approx(next_one[0])
        for one, next_one in zip(bounds, bounds[1:], strict=False)
    )


def integrated(mean, variance, intervals, noise):
    """Return the mean and the sd of one impression after intervals, by numerical integration."""
    x = np.linspace(mean - 20 * variance**0.5, mean + 20 * variance**0.5, 2001)
    weight = np.exp(-((x - mean) ** 2) / (2 * variance))
    for low, high in intervals:
        weight *= [
            NORMAL.cdf((high - v) / noise**0.5) - NORMAL.cdf((low - v) / noise**0.5) for v in x
        ]
    weight /= np.trapezoid(weight, x)
    centre = np.trapezoid(weight * x, x)
    return centre, np.trapezoid(weight * (x - centre) ** 2, x) ** 0.5


@settings(max_examples=15, deadline=None)
@given(
    st.floats(0.3, 0.8),
    st.floats(0.1, 0.3),
    st.floats(0.1, 0.3),
    st.sampled_from([0.0, 0.25, 0.5, 0.75]),
    st.lists(st.sampled_from([0.0, 0.25]), min_size=1, max_size=6),
)
def test_sites_have_the_effect_of_the_intervals(mean, sd, noise_sd, lowest, above):
    """The mean is the exact one within a fifth of the posterior standard deviation, which is exact
    within a fifth.
    """
    intervals = [score_interval(lowest + more, 0.25) for more in above]
    sites, value, precision = [Site()] * len(intervals), mean, 1 / sd**2
    for _ in range(2):
        sites = update_sites(intervals, sites, value, 1 / precision, noise_sd**2)
        precision = 1 / sd**2 + sum(site.precision for site in sites)
        value = (mean / sd**2 + sum(site.weighted_value for site in sites)) / precision
    due_mean, due_sd = integrated(mean, sd**2, [(i.low, i.high) for i in intervals], noise_sd**2)
    assert value == pytest.approx(due_mean, abs=0.2 * due_sd)
    assert precision**-0.5 == pytest.approx(due_sd, rel=0.2)


def test_one_interval_is_exact():
    """A single score needs no approximation of the mean and the variance."""
    (site,) = update_sites([ScoreInterval(0.5, inf)], [Site()], 0.6, 0.04, 0.0225)
    precision = 25 + site.precision
    due_mean, due_sd = integrated(0.6, 0.04, [(0.5, inf)], 0.0225)
    assert (0.6 * 25 + site.weighted_value) / precision == pytest.approx(due_mean, abs=1e-5)
    assert precision**-0.5 == pytest.approx(due_sd, abs=1e-5)


def sampled_means(seen, prior, chance, chains=2000, sweeps=60):
    """Return the posterior means of the qualities by Gibbs sampling of the impressions, with the
    noise, within their intervals.
    """
    tree = cached_tree(seen.unscored_shape, prior)
    scores = [
        (i, v.score, v.score, tree.noise_variance(v.noise_weight)) for i, v in seen.values.items()
    ]
    scores += [
        (i, v.low, v.high, tree.interval_noise) for i, each in seen.intervals.items() for v in each
    ]
    nodes = [i for i, *_ in scores]
    mean = np.array([tree.impression_means[i] for i in nodes])
    cov = np.array([tree.impression_covs(i, nodes) for i in nodes]) + np.diag(
        [noise for *_, noise in scores]
    )
    inverse = np.linalg.inv(cov)
    found, total = (
        np.tile(
            np.array(
                [np.clip(m, low, high) for m, (_, low, high, _) in zip(mean, scores, strict=True)]
            ),
            (chains, 1),
        ),
        0,
    )
    for sweep in range(sweeps):
        for k, (_, low, high, _) in enumerate(scores):
            sd = inverse[k, k] ** -0.5
            centre = found[:, k] - (found - mean) @ inverse[k] * sd**2
            share = ndtr((low - centre) / sd) + chance.random(chains) * (
                ndtr((high - centre) / sd) - ndtr((low - centre) / sd)
            )
            found[:, k] = (
                found[:, k]
                if low == high
                else centre + sd * ndtri(np.clip(share, 1e-12, 1 - 1e-12))
            )
        total = total + found.mean(0) * (sweep >= 20) / (sweeps - 20)
    quality_cov = np.array(
        [
            [tree.qualities.cov(FIRST_TEXT_INDEX + i, FIRST_TEXT_INDEX + j) for j in nodes]
            for i in range(len(tree.shape.nodes))
        ]
    )
    return np.array(tree.qualities.means[FIRST_TEXT_INDEX:]) + quality_cov @ inverse @ (
        total - mean
    )


@pytest.mark.slow(but_each=3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("panel", "scale"),
    [
        (YES_NO, [0.0, 1.0]),
        (FIVE, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (JUDGE, [0.4, 0.6, 0.7, 0.9, 1.0, 1.0]),
    ],
)
def test_the_sweeps_are_nearly_exact(panel, scale, seed):
    """In random trees of texts, means are within a tenth of the posterior standard deviation of the
    exact ones.
    """
    chance = random.Random(seed)
    parents = {i: chance.randrange(i) for i in range(1, 8) if chance.random() < 0.6}
    scores = [[chance.choice(scale) for _ in range(chance.choice([1, 1, 2]))] for _ in range(8)]
    found = posterior_of(panel, *scores, parents=parents)
    due = sampled_means(
        observations_of(panel, *scores, parents=parents), Priors(), np.random.default_rng(seed)
    )
    for i, mean in found.means.items():
        assert mean == pytest.approx(min(1.0, max(0.0, due[i])), abs=0.1 * found.sds[i])


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1.0]), st.sampled_from([None, 0.0, 1.0])),
        min_size=2,
        max_size=5,
    )
)
def test_equal_texts_have_equal_means(families):
    """Drafts with equal scores whose refinements have equal scores are estimated equally, in
    whatever order they were written.
    """
    drafts = [[score] for score, _ in families]
    refined = [i for i, (_, score) in enumerate(families) if score is not None]
    parents = {len(drafts) + n: i for n, i in enumerate(refined)}
    found = posterior_of(YES_NO, *drafts, *([families[i][1]] for i in refined), parents=parents)
    by_family = {}
    for i, family in enumerate(families):
        assert found.means[i] == by_family.setdefault(family, found.means[i])


def test_scores_of_refinements_count_for_their_drafts():
    """Of two drafts with equal scores, the one whose refinement scored higher is estimated higher."""
    better, worse = (
        posterior_of(YES_NO, [1.0], [1.0], [first], [second], parents={2: 0, 3: 1}).means
        for first, second in ((1.0, 0.0), (0.0, 1.0))
    )
    assert better[0] > better[1] + 0.01 and worse[0] < worse[1] - 0.01
    assert (better[0], better[1]) == pytest.approx((worse[1], worse[0]), abs=0.002)


def test_yes_and_no_move_the_estimate_less_than_values():
    """A yes says that the impression is above the middle, not that it is 1; repeats narrow it
    down.
    """
    yes, no = (posterior_of(YES_NO, [score]) for score in (1.0, 0.0))
    taken_as_value = posterior_of(PanelGrader("judge", score_step=0.0), [0.99])
    assert no.means[0] < Priors().draft_mean < yes.means[0] < taken_as_value.means[0]
    three = posterior_of(YES_NO, [1.0, 1.0, 1.0])
    assert three.means[0] > yes.means[0]
    assert three.sds[0] < yes.sds[0]


def test_a_full_score_says_at_least():
    """A 1.0 leaves open how far above the scale the impression is: the estimate is about that of a
    value of 1, and less certain.
    """
    full = posterior_of(JUDGE, [1.0])
    value = posterior_of(JUDGE, [0.98765])
    assert full.means[0] == pytest.approx(value.means[0], abs=0.03)
    assert full.sds[0] > value.sds[0]


def test_fine_scores_stay_gaussian():
    """Scores between the ends of a fine scale are values; there is no interval and no threshold."""
    records = (
        Candidate(0, "a", by="m", role="generate"),
        Feedback(0.7, candidate=0, grader="judge"),
    )
    seen = observe(Trace(Task("q"), (JUDGE,), records))
    assert (seen.intervals, seen.values, seen.coarse_step, seen.shape.threshold_sd) == (
        {},
        {},
        0.0,
        0.0,
    )


@pytest.mark.parametrize(
    "panel", [(JUDGE, PanelGrader("other")), (JUDGE, PanelGrader("check", model_free=True))]
)
def test_means_of_several_graders_are_values(panel):
    """A score that several graders share has finer steps than theirs."""
    records = [
        Candidate(0, "a", by="m", role="generate"),
        *(Feedback(1.0, candidate=0, grader=g.name) for g in panel),
    ]
    assert observe(Trace(Task("q"), panel, tuple(records))).intervals == {}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), max_size=3), min_size=1, max_size=7
    ),
    st.sampled_from([YES_NO, FIVE, JUDGE, PanelGrader("judge", score_step=0.0)]),
    st.data(),
)
def test_any_scores_give_finite_values(scores, panel, data):
    """Whatever texts were given which scores: finite means and gains, none below 0, independent of
    the order of records.
    """
    parents = {
        i: data.draw(st.integers(0, i - 1))
        for i in range(1, len(scores))
        if data.draw(st.booleans())
    }
    found = posterior_of(panel, *scores, parents=parents)
    assert all(0 <= mean <= 1 for mean in found.means.values())
    assert all(0 <= sd <= 1 for sd in found.sds.values())
    best = max(found.means, key=found.means.__getitem__)
    gains = [
        found.value_of_candidate("refine", best, best),
        found.value_of_candidate("generate", None, best),
    ]
    assert all(isfinite(gain) and gain >= 0 for gain in gains)
    assert all(0 <= found.p_at_least(i, 0.8) <= 1 for i in found.means)


def test_intervals_cover_the_truth_of_a_judge_that_says_yes_or_no():
    """Where the world is as the model says, 95 % intervals hold the quality in at least 90 % of the
    tasks.
    """
    chance, p, held = random.Random(4), Priors(), 0
    for _ in range(200):
        level = chance.gauss(p.draft_mean, p.draft_mean_sd)
        qualities = [chance.gauss(level, p.draft_sd) for _ in range(3)]
        threshold = chance.gauss(0.5, 0.1)
        scores = [
            [float(chance.gauss(q, (p.noise_sd**2 + p.bias_sd**2) ** 0.5) >= threshold)]
            for q in qualities
        ]
        found = posterior_of(YES_NO, *scores)
        held += abs(qualities[0] - found.means[0]) <= 1.96 * found.sds[0]
    assert held >= 180
