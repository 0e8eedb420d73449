"""Figures of the measurement model from SciPy and from dense matrices: probabilities, expectations,
forecasts, noise, fits.
"""

import random
from dataclasses import replace
from itertools import pairwise, product
from math import exp, inf, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats
from test_posterior import Dense, families, grades_of, priors

from redraft.errors import ConfigError
from redraft.loop.records import Candidate, Feedback
from redraft.loop.steps import Compare, Generate, Grade, Refine
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.quality import labelled_figures as labelled_figures_module
from redraft.plans.quality import posterior
from redraft.plans.quality.calibration import Calibration
from redraft.plans.quality.diagnosis import (
    bonferroni_z,
    estimate_noise_sd,
    gain_over_first,
    mean_change_sd,
    scores_to_show,
)
from redraft.plans.quality.fit import HYPERPRIOR_SD, fit_with_errors, lift
from redraft.plans.quality.labels import LabelPosterior, label_posterior
from redraft.plans.quality.likelihood import (
    ScoreInterval,
    Site,
    density,
    interval_moments,
    normal_cdf,
    update_sites,
)
from redraft.plans.quality.lineage import Node, Observations, TreeShape, mixed_repeats, observe
from redraft.plans.quality.noise import fit_noise
from redraft.plans.quality.posterior import Posterior, expected_improvement
from redraft.plans.quality.priors import Priors
from redraft.plans.quality.simulate import SimulatedTask, simulate_tasks

SHIPPED = Priors()
JUDGE = PanelGrader("judge")
ENDS = (-inf, -40.0, -8.0, -3.0, -0.7, 0.0, 0.4, 2.0, 6.0, 38.0, inf)


# ---- the normal distribution


def test_the_normal_distribution():
    """Density, distribution function and expected positive part are those of SciPy, far into the
    tails.
    """
    for x in (-37.0, -12.0, -5.0, -1.0, -1e-9, 0.0, 0.3, 1.96, 8.0):
        assert density(x) == pytest.approx(stats.norm.pdf(x), rel=1e-12)
        assert normal_cdf(x) == pytest.approx(stats.norm.cdf(x), rel=1e-12)
    for mean, sd in product((-0.3, -0.01, 0.0, 0.2), (1e-3, 0.05, 1.0)):
        due, _ = integrate.quad(
            lambda z, m=mean, s=sd: (m + s * z) * stats.norm.pdf(z), -mean / sd, 40, epsabs=1e-12
        )
        assert expected_improvement(mean, sd) == pytest.approx(max(due, 0.0), abs=1e-9)
    for mean in (-0.3, 0.0, 0.2):
        assert (
            expected_improvement(mean, 0.0) == expected_improvement(mean, 1e-10) == max(mean, 0.0)
        )


@pytest.mark.parametrize("low", ENDS[:-1])
def test_a_truncated_normal_distribution(low):
    """Probability, mean and shrinkage are those of SciPy; where it has no digits left, all of the
    mass is at the nearer end.
    """
    for high in ENDS:
        if high <= low:
            continue
        probability, shift, shrinkage = interval_moments(low, high)
        mirrored = interval_moments(-high, -low)
        assert (mirrored[0], -mirrored[1], mirrored[2]) == pytest.approx(
            (probability, shift, shrinkage), abs=1e-9
        )
        due = (
            stats.norm.cdf(high) - stats.norm.cdf(low)
            if low <= 0
            else stats.norm.sf(low) - stats.norm.sf(high)
        )
        assert probability == pytest.approx(due, rel=1e-9, abs=1e-300)
        if probability > 1e-30:
            mean, variance = stats.truncnorm.stats(low, high, moments="mv")
            assert (shift, 1 - shrinkage) == pytest.approx(
                (float(mean), float(variance)), rel=1e-6, abs=1e-6
            )
        else:
            assert abs(shift - (low if low > 0 else high)) < 0.1 and 0.9 < shrinkage <= 1


@pytest.mark.parametrize("bounds", [(-inf, 0.5), (0.25, 0.75), (0.5, inf)])
def test_the_site_of_one_interval(bounds):
    """With it, mean and variance are those of the integral over the impression; applied again, it
    stays.
    """
    for mean, sd, noise in ((0.6, 0.2, 0.02), (0.1, 0.3, 0.1), (1.5, 0.1, 0.01)):
        noise_sd = sqrt(noise)

        x = np.linspace(mean - 14 * sd, mean + 14 * sd, 40_001)
        inside = stats.norm.cdf((bounds[1] - x) / noise_sd) - stats.norm.cdf(
            (bounds[0] - x) / noise_sd
        )
        shares = inside * stats.norm.pdf(x, mean, sd)
        first, second = (np.sum(x**power * shares) / np.sum(shares) for power in (1, 2))
        interval = ScoreInterval(*bounds)
        (site,) = update_sites([interval], [Site()], mean, sd**2, noise)
        precision = sd**-2 + site.precision
        value = (mean * sd**-2 + site.weighted_value) / precision
        assert value == pytest.approx(first, abs=1e-6)
        assert 1 / precision == pytest.approx(second - first**2, abs=1e-6)
        (again,) = update_sites([interval], [site], value, 1 / precision, noise)
        assert tuple(again) == pytest.approx(tuple(site), rel=1e-6)


# ---- the posterior, and what it expects


@settings(max_examples=40)
@given(families(), priors, st.data())
def test_forecasts_of_texts_that_do_not_exist_yet(known, prior, data):
    """Mean, chance and bias are those of dense matrices."""
    texts = range(len(known.shape.nodes))
    posterior, share = Posterior(known, prior), known.shape.repeat_noise_weight
    parent = data.draw(st.sampled_from([None, *texts]))
    role = "generate" if parent is None else data.draw(st.sampled_from(["refine", "repair"]))
    dense = Dense([*known.shape.nodes, Node(role, parent, None)], share, prior)
    means, cov = dense.condition(grades_of(known))
    text = posterior.tree.predict_candidate(role, parent)
    assert posterior.mean_of(text) == pytest.approx(means[-1], abs=1e-6)
    for i in texts:
        assert posterior.unlimited_mean(i) == pytest.approx(means[i], abs=2e-6)
        assert posterior.prior_bias(i) == pytest.approx(dense.style_mean[i])
        sd = sqrt(max(0.0, cov[i, i]))
        if sd > 2e-4:
            due = stats.norm.sf(0.6, means[i], sd)
            assert posterior.p_at_least(i, 0.6) == pytest.approx(due, abs=1e-4)


@settings(max_examples=40)
@given(families(), priors, st.data())
def test_a_text_that_is_imagined(known, prior, data):
    """It is as if it had been written and had the score that is expected: all means stay, the
    spreads shrink.
    """
    texts = range(len(known.shape.nodes))
    share = known.shape.repeat_noise_weight
    parent = data.draw(st.sampled_from([None, *texts]))
    role = "generate" if parent is None else "refine"
    dense = Dense([*known.shape.nodes, Node(role, parent, share)], share, prior)
    expected, _ = dense.predict(grades_of(known), len(texts), share)
    means, cov = dense.condition([*grades_of(known), (len(texts), share, expected)])
    imagined = Posterior(known, prior).with_expected_text(role, parent, 77)
    order = [*texts, 77]
    assert [imagined.unlimited_mean(i) for i in order] == pytest.approx(means.tolist(), abs=3e-6)
    assert [imagined.sds[i] ** 2 for i in order] == pytest.approx(np.diag(cov).tolist(), abs=1e-7)


def test_a_known_quality_reaches_a_target_or_does_not():
    """Without any spread the probability is 0 or 1, and a quality that equals the target reaches
    it.
    """
    check = PanelGrader("check", model_free=True)
    trace = Trace(
        Task("q"),
        (check,),
        (Candidate(0, "a", role="generate"), Feedback(0.7, candidate=0, grader="check")),
    )
    posterior = Posterior(observe(trace), SHIPPED)
    assert [posterior.p_at_least(0, quality) for quality in (0.69, 0.7, 0.7 + 1e-7, 0.71)] == [
        1.0,
        1.0,
        1.0,
        0.0,
    ]


# ---- people's labels behind a posterior

BENT = Calibration(
    100,
    100,
    ((0.1, 0.0), (0.5, 0.3), (0.9, 0.9)),
    tuple(n / 100 for n in range(-50, 50)),
    0.4,
    0.5,
    0.2,
    0.1,
    0.15,
    0.3,
)


@pytest.mark.parametrize(
    "changes", [{}, {"repeats": 3.0}, {"drift": 0.1, "drift_se": 0.01, "drift_pairs": 40}]
)
@pytest.mark.parametrize("prior", [SHIPPED, Priors(draft_mean=0.4, noise_sd=0.25, bias_drift=0.08)])
@pytest.mark.parametrize("votes", [0, 3])
def test_labels_behind_a_posterior(prior, changes, votes):
    """The equivalent score of the README: B^-1(E[q]) + drift; its label, and the interval scaled by
    the change of the variance.
    """
    calibration = replace(BENT, **changes)
    jury = tuple(Feedback(score, grader="member") for score in (0.4, 0.45, 0.5)[:votes])
    records = [
        Candidate(0, "a", role="generate"),
        Feedback(None, actions=("more",), candidate=0, grader="critic"),
    ]
    records += [
        Feedback(0.45, candidate=0, grader="judge", votes=jury),
        Candidate(1, "b", 0, role="refine"),
    ]
    records += [
        Feedback(0.66, candidate=1, grader="judge"),
        Feedback(0.72, candidate=1, grader="judge", repeat=1),
    ]
    trace = Trace(
        Task("q"), (JUDGE, PanelGrader("critic")), (*records, Candidate(2, "c", 1, role="refine"))
    )
    posterior = Posterior(observe(trace), prior)
    found = label_posterior(trace, posterior, calibration, "judge")
    variance = prior.draft_mean_sd**2 + prior.draft_sd**2
    w = variance / (
        variance + prior.bias_sd**2 + prior.noise_sd**2 / calibration.repeats / max(1, votes)
    )
    # that of the best text, a refinement
    drift = prior.bias_drift * 40 / 100 if changes.get("drift") else prior.bias_drift
    single_sd = sqrt(variance * (1 - w))
    xs, ys = zip(*calibration.knots, strict=True)

    def label(mean):
        return float(
            np.clip(
                np.interp(prior.draft_mean + (mean - prior.draft_mean) / w + drift, xs, ys), 0, 1
            )
        )

    for id in (0, 1, 2):
        mean, sd = posterior.unlimited_mean(id), posterior.sd_of(id)
        lam, lam_single = ((label(mean + s) - label(mean - s)) / 2 for s in (sd, single_sd))
        scale = sqrt(max(0.25, 1 + (lam**2 - lam_single**2) / calibration.error_sd**2))
        got = found.prediction(id)
        assert got.mean == found.means[id] == pytest.approx(label(mean), abs=1e-6)
        assert got.interval == pytest.approx(
            calibration.interval_around(label(mean), scale), abs=1e-6
        )
        assert found.probability(id, 0.5) == pytest.approx(
            calibration.share_reaching(0.5, label(mean), scale), abs=0.011
        )


@pytest.mark.parametrize("step", [1.0, 0.25])
def test_beliefs_between_the_scores_of_a_coarse_scale(step):
    """Between two anchors, score and spread are on the line that joins them; beyond the last ones,
    the spread stays.
    """
    judge = PanelGrader("judge", score_step=step)
    trace = Trace(
        Task("q"),
        (judge,),
        (Candidate(0, "a", role="generate"), Feedback(1.0, candidate=0, grader="judge")),
    )
    found = label_posterior(
        trace, Posterior(observe(trace), SHIPPED), replace(BENT, repeats=2.0), "judge"
    )
    assert [anchor.score for anchor in found.anchors] == pytest.approx(
        np.arange(0, 1.0001, step / 2).tolist()
    )
    for low, high in pairwise(found.anchors):
        for share in (0.0, 0.25, 0.75):
            mean = low.mean + share * (high.mean - low.mean)
            due = (
                low.score + share * (high.score - low.score),
                low.sd + share * (high.sd - low.sd),
            )
            assert found.equivalent(mean) == pytest.approx(due)
    first, second, *_ = found.anchors
    *_, before, last = found.anchors
    assert found.equivalent(2 * first.mean - second.mean) == pytest.approx(
        (2 * first.score - second.score, first.sd)
    )
    assert found.equivalent(2 * last.mean - before.mean) == pytest.approx(
        (2 * last.score - before.score, last.sd)
    )


@pytest.mark.parametrize(
    ("panel", "looks", "due"),
    [
        # scores of the same text by two drafts: the pooled score, its noise weight, degrees of
        # freedom and squares
        ((JUDGE,), ((0.4,), (0.8,)), (0.6, 0.5, 1, 0.08)),
        (
            (JUDGE,),
            ((0.4, 0.5), (0.8,)),
            ((2 * 0.45 + 0.8) / 3, 1 / 3, 2, 0.005 + 2 * (0.35 / 3) ** 2 + (0.7 / 3) ** 2),
        ),
        ((JUDGE,), ((0.4, 0.5, 0.6),), (0.5, 1 / 3, 2, 0.02)),
        ((PanelGrader("judge", model_free=True),), ((0.4,), (0.8,)), (0.6, 0.0, 0, 0.0)),
        ((JUDGE, PanelGrader("check", model_free=True)), ((0.4,), (0.8,)), (0.3, 0.125, 1, 0.08)),
        (
            (JUDGE, PanelGrader("check", 3.0, model_free=True)),
            ((0.4,), (0.8,)),
            (0.15, 1 / 32, 1, 0.08),
        ),
    ],
)
def test_identical_texts_are_one(panel, looks, due):
    """Their scores are repeats of one text, weighted by precision, and show the noise of a
    judge.
    """
    records = []
    for id, scores in enumerate(looks):
        records.append(Candidate(id, "same", role="generate"))
        records += [
            Feedback(score, candidate=id, grader="judge", repeat=n)
            for n, score in enumerate(scores)
        ]
        records += [Feedback(0.0, candidate=id, grader=grader.name) for grader in panel[1:]]
    seen = observe(Trace(Task("q"), panel, tuple(records)))
    ((node,), (score,)) = seen.shape.nodes, seen.scores
    assert (score, node.noise_weight, *seen.repeat_stats) == pytest.approx(due)
    assert dict(seen.node_indices) == dict.fromkeys(range(len(looks)), 0)


# ---- learning


def task_of(scores, weights, parents, stats_=(0, 0.0)):
    nodes = tuple(
        Node("generate" if p is None else "refine", p, w)
        for p, w in zip(parents, weights, strict=True)
    )
    return Observations(
        TreeShape(nodes, 1.0), tuple(scores), {i: i for i in range(len(nodes))}, stats_
    )


@pytest.fixture(scope="module")
def tasks():
    """Twelve tasks with scores that vary more than the shipped priors say, some with repeats."""
    rng, found = random.Random(11), []
    for n in range(12):
        level = rng.gauss(0.42, 0.3)
        parents = [None, 0, 1] if n % 3 else [None, None]
        scores = [level + 0.22 * k * (n % 3 > 0) + rng.gauss(0, 0.1) for k in range(len(parents))]
        found.append(
            task_of(
                scores,
                [0.5 if n % 4 == 0 else 1.0] + [1.0] * (len(parents) - 1),
                parents,
                (1, 0.02) if n % 4 == 0 else (0, 0.0),
            )
        )
    return found


NAMES = ("level", "lift", "retention", "spread")


def moved(prior, moves):
    """The priors of the README at a point of the search."""
    level, more, retention, spread = moves
    mean, kept = prior.draft_mean + level, prior.retention + retention
    gain = prior.gain + (prior.retention - 1) * prior.draft_mean + more - (kept - 1) * mean
    sds = {
        "draft_mean_sd": prior.draft_mean_sd * exp(spread),
        "draft_sd": prior.draft_sd * exp(min(0.0, spread)),
    }
    return replace(prior, draft_mean=mean, retention=kept, gain=gain, **sds)


def log_posterior(tasks, prior, moves):
    """The log likelihood of all scores, by SciPy, and the log hyperprior."""
    try:
        at = moved(prior, moves)
    except ConfigError:  # out of range
        return -inf
    total = (
        -sum((move / HYPERPRIOR_SD[name]) ** 2 for name, move in zip(NAMES, moves, strict=True)) / 2
    )
    for shape in {task.shape for task in tasks}:
        dense, scores = (
            Dense(shape.nodes, 1.0, at),
            np.array([task.scores for task in tasks if task.shape == shape]),
        )
        both = dense.quality + dense.style
        cov = both @ dense.sources @ both.T + np.diag(
            [node.noise_weight * at.noise_sd**2 for node in shape.nodes]
        )
        total += stats.multivariate_normal.logpdf(
            scores, dense.quality_mean + dense.style_mean, cov
        ).sum()
    return total


def highest(tasks, prior):
    def height(moves):
        return -max(-1e9, log_posterior(tasks, prior, moves))

    return optimize.minimize(
        height,
        np.zeros(4),
        method="Nelder-Mead",
        options={"xatol": 1e-4, "fatol": 1e-6, "maxiter": 600},
    ).x


@pytest.mark.slow
def test_a_fit_is_the_maximum_that_scipy_finds(tasks):
    """Level, lift, retention and spread, their errors by the inverse of the curvature, and the
    moves less these errors.
    """
    squares, degrees = 4 * SHIPPED.noise_sd**2 + 3 * 0.02, 4 + 3
    noise = sqrt(squares / degrees)
    noise_error = noise / sqrt(2 * degrees)
    start = replace(SHIPPED, noise_sd=noise, bias_drift=0.02)
    top = highest(tasks, start)
    steps = np.array([HYPERPRIOR_SD[name] / 10 for name in NAMES])

    def height(*signs):
        return log_posterior(tasks, start, top + steps * np.array(signs))

    unit = np.eye(4)
    hessian = np.array(
        [
            [
                (
                    height(*(unit[i] + unit[j]))
                    - height(*(unit[i] - unit[j]))
                    - height(*(unit[j] - unit[i]))
                    + height(*(-unit[i] - unit[j]))
                )
                / 4
                if i != j
                else height(*unit[i]) + height(*-unit[i]) - 2 * height(0, 0, 0, 0)
                for j in range(4)
            ]
            for i in range(4)
        ]
    )
    by_curvature = steps * np.sqrt(np.diag(np.linalg.inv(-hessian)))
    by_noise = (
        highest(tasks, replace(start, noise_sd=noise + noise_error))
        - highest(tasks, replace(start, noise_sd=noise - noise_error))
    ) / 2
    errors = np.sqrt(
        np.minimum(by_curvature, [HYPERPRIOR_SD[name] for name in NAMES]) ** 2
        + by_noise**2
        + np.array([0, 0.02**2, 0, 0])
    )
    found = fit_with_errors(tasks, SHIPPED)
    assert found.noise_error == pytest.approx(noise_error)
    assert found.priors.noise_sd == pytest.approx(noise)
    assert (found.level, found.lift) == pytest.approx(
        (start.draft_mean + top[0], lift(start) + top[1]), abs=0.004
    )
    assert (found.level_error, found.lift_error) == pytest.approx((errors[0], errors[1]), rel=0.1)
    cautious = errors * np.array([1, 1.5, 1, 1])
    shrunk = [
        m * max(0.0, 1 - (e / m) ** 2) if m else 0.0 for m, e in zip(top, cautious, strict=True)
    ]
    due = moved(start, shrunk)
    for name in ("draft_mean", "gain", "retention", "draft_mean_sd", "draft_sd"):
        assert getattr(found.priors, name) == pytest.approx(getattr(due, name), abs=0.01), name
    assert found.priors.gain_sd == pytest.approx(
        min(SHIPPED.gain_sd, sqrt(0.02**2 + errors[1] ** 2)), rel=0.1
    )
    assert (found.priors.tasks, found.priors.bias_drift) == (12, 0.02)


@pytest.mark.parametrize(
    ("step", "scores"), [(0.1, [0.6, 0.9, 1.0]), (1.0, [0.0, 1.0]), (0.25, [0.25, 0.5, 0.75, 1.0])]
)
def test_noise_of_scores_that_are_intervals(step, scores):
    """The maximum of the README's log posterior, with the integral over the impression by SciPy."""
    rng = random.Random(5)
    repeats = [[rng.choice(scores) for _ in range(2)] for _ in range(9)]
    shape, coarse = TreeShape((Node("generate", None, 0.5),), 1.0), step if step >= 0.25 else 0.0
    tasks, squares, degrees = [], 4 * SHIPPED.noise_sd**2, 4
    for pair in repeats:
        mixed = mixed_repeats([pair], step)
        own = sum((score - sum(pair) / 2) ** 2 for score in pair)
        if not mixed:
            squares, degrees = squares + own, degrees + 1
        tasks.append(Observations(shape, (sum(pair) / 2,), {0: 0}, (1, own), {}, {}, coarse, mixed))
    texts = [text for task in tasks for text in task.mixed_repeats]
    seen = [score.score for text in texts for score in text]
    centre = sum(seen) / len(seen)
    spread = sqrt(
        SHIPPED.draft_mean_sd**2
        + SHIPPED.draft_sd**2
        + SHIPPED.bias_sd**2
        + (0.01 if coarse else 0.0)
    )
    grid = np.linspace(centre - 3 * spread, centre + 3 * spread, 401)
    weights = stats.norm.pdf(grid, centre, spread)
    weights /= weights.sum()

    def height(log_sd):
        sd = exp(log_sd)
        # beside a fine scale, nobody knows where its ends are
        ends = sd if coarse else sqrt(sd**2 + 0.01)
        total = -degrees * log_sd - squares / (2 * sd**2)
        for text in texts:
            likelihood = weights.copy()
            for _, low, high in text:
                inside = stats.norm.cdf((high - grid) / ends) - stats.norm.cdf((low - grid) / ends)
                likelihood *= stats.norm.pdf(low, grid, sd) if low == high else inside
            total += log(likelihood.sum())
        return total

    due = optimize.minimize_scalar(
        lambda x: -height(x), bounds=(log(0.02), 0.0), method="bounded"
    ).x
    curvature = (2 * height(due) - height(due - 0.1) - height(due + 0.1)) / 0.01
    found = fit_noise(tasks, SHIPPED)
    assert found.sd == pytest.approx(exp(due), rel=0.01)
    assert found.error == pytest.approx(found.sd / sqrt(max(curvature, 8)), rel=0.03)


@pytest.mark.parametrize(
    ("squares", "degrees", "due"),
    [
        (0.0, 0, (0.12, None)),
        (0.0, 4, (0.12 / sqrt(2), 0.12 / sqrt(2) / 4)),
        (100.0, 4, (1.0, 0.25)),
        (0.0, 996, (0.02, 0.02 / sqrt(2000))),
    ],
)
def test_noise_of_values_has_limits(squares, degrees, due):
    """Four degrees of freedom of the noise before; at least 0.02, at most 1."""
    found = fit_noise([task_of([0.5], [0.5], [None], (degrees, squares))], SHIPPED)
    assert tuple(found) == (pytest.approx(due[0]), due[1] and pytest.approx(due[1]))


# ---- diagnosis


def test_figures_of_a_diagnosis():
    """The normal quantile with Bonferroni's correction, the pooled noise, and the spread of a mean
    change.
    """
    assert [bonferroni_z(n) for n in (1, 2, 7)] == pytest.approx(
        [stats.norm.ppf(1 - 0.025 / n) for n in (1, 2, 7)]
    )
    records = [
        Candidate(0, "a", role="generate"),
        *(Feedback(s, candidate=0, grader="judge", repeat=n) for n, s in enumerate((0.5, 0.7))),
    ]
    records += [Candidate(1, "b", 0, role="refine"), Feedback(0.8, candidate=1, grader="judge")]
    records += [Candidate(2, "c", 0, role="refine"), Feedback(0.65, candidate=2, grader="judge")]
    trace = Trace(Task("q"), (JUDGE,), tuple(records))
    seen = observe(trace)
    noise = estimate_noise_sd(seen, 0.12)
    assert noise == pytest.approx(sqrt((4 * 0.12**2 + 0.02) / 5))
    gain = gain_over_first(trace, seen, noise)
    assert gain == pytest.approx((0.2, stats.norm.ppf(1 - 0.0125) * noise * sqrt(0.5 + 1)))
    assert mean_change_sd(seen, [(1, 0), (2, 0)], noise) == pytest.approx(
        noise * sqrt(1 + 1 + 4 * 0.5) / 2
    )
    assert mean_change_sd(seen, [(1, 0)], noise) == pytest.approx(noise * sqrt(1.5))
    assert [scores_to_show(0.1, sd) for sd in (0.0, 0.05, 0.12, 0.2)] == [0, 2, 12, 31]
    free = Trace(Task("q"), (PanelGrader("judge", model_free=True),), tuple(records))
    assert estimate_noise_sd(observe(free), 0.12) == 0.0


# ---- simulated tasks


class OneAbove:
    """A source of random numbers that are all one standard deviation above their mean, and of what
    was asked.
    """

    def __init__(self):
        self.asked = []

    def gauss(self, mu, sigma):
        self.asked.append((mu, sigma))
        return mu + sigma


def test_a_simulated_task_is_that_of_the_model():
    """Every draw has the mean and the standard deviation of the README's equations."""
    p, rng = Priors(noise_sd=0.01), OneAbove()
    task = SimulatedTask(p, rng)
    level, gain = p.draft_mean + p.draft_mean_sd, p.gain + p.gain_sd
    assert rng.asked == [(p.draft_mean, p.draft_mean_sd), (p.gain, p.gain_sd)]
    assert (task.text(Generate(0, ())), task.text(Refine(1, (), 0))) == ("1", "2")
    first = level + p.draft_sd
    second = gain + p.retention * first + p.step_sd
    assert task.qualities == pytest.approx([first, second])
    assert rng.asked[2:] == [
        (pytest.approx(level), p.draft_sd),
        (pytest.approx(second - p.step_sd), p.step_sd),
    ]
    del rng.asked[:]
    task.qualities[:] = [0.3, 0.4]
    biases = [
        p.bias_sd,
        p.bias_drift + p.bias_inheritance * p.bias_sd + p.bias_sd * sqrt(1 - p.bias_inheritance**2),
    ]
    assert task.score(1, "judge") == pytest.approx(0.4 + biases[1] + p.noise_sd)
    assert task.score(0, "judge") == pytest.approx(0.3 + biases[0] + p.noise_sd)
    assert rng.asked[:2] == [
        (0.0, p.bias_sd),
        (pytest.approx(biases[1] - rng.asked[1][1]), pytest.approx(p.bias_sd * sqrt(1 - 0.7**2))),
    ]
    assert len(rng.asked) == 4  # a bias is drawn once for a text and a grader
    assert (
        task.score(0, "other") == pytest.approx(0.3 + biases[0] + p.noise_sd)
        and len(rng.asked) == 6
    )
    task.qualities[:] = [2.0, -1.0]
    assert (task.score(0, "judge"), task.score(1, "judge")) == (1.0, 0.0)
    task.qualities[:] = [0.2, 0.6]
    candidates = (Candidate(0, "1"), Candidate(1, "2"))
    assert task.ranking(Compare("judge", Task("q"), candidates)) == [1, 0]
    assert task.feedback(Grade("judge", Task("q"), candidates[0])).score == pytest.approx(
        0.2 + biases[0] + p.noise_sd
    )


@pytest.mark.parametrize(
    ("panel", "graders"),
    [
        ((), ["judge"]),
        ((PanelGrader("check", model_free=True), PanelGrader("must", must=True)), ["judge"]),
        ((PanelGrader("own"), PanelGrader("ranker", compares=True)), ["own", "ranker"]),
        ((PanelGrader("ranker", compares=True),), ["judge", "ranker"]),
    ],
)
def test_the_panel_of_simulated_tasks(panel, graders):
    """Musts and graders without a model are left out; there is a judge in any case."""
    for with_response in (False, True):
        drawn = list(
            simulate_tasks(SHIPPED, panel, random.Random(1), with_response=with_response, tasks=3)
        )
        assert len(drawn) == 3
        for task, trace in drawn:
            assert [grader.name for grader in trace.panel] == graders
            assert [c.id for c in trace.candidates] == [0] * with_response
            assert len(task.qualities) == with_response
            assert (trace.task.response is None) is not with_response
    levels = [
        task.level for task, _ in simulate_tasks(SHIPPED, (), random.Random(1), with_response=False)
    ]
    assert len(levels) == 48 and all(one != other for one, other in pairwise(levels))


# against SciPy, numpy or dense matrices: here, in test_posterior.py and test_calibration_figures.py
CHECKED = {
    posterior: {"expected_improvement", "Posterior"},
    labelled_figures_module: {"LabelledFigures", "labelled_figures", "shrunk_move"},
    Posterior: {
        "means",
        "unlimited_mean",
        "sds",
        "sd_of",
        "prior_bias",
        "p_at_least",
        "is_separated",
        "mean_of",
        "with_expected_text",
        "value_of_candidate",
    },
    LabelPosterior: {"prediction", "probability", "means", "equivalent"},
}


@pytest.mark.parametrize("place", CHECKED, ids=lambda place: place.__name__)
def test_every_public_figure_is_checked(place):
    """A new one needs a check of its own."""
    name = getattr(place, "__module__", place.__name__)
    fields = getattr(place, "__dataclass_fields__", {})
    is_own = (
        (lambda _: True)
        if isinstance(place, type)
        else (lambda value: getattr(value, "__module__", "") == name and callable(value))
    )
    assert {
        key
        for key, value in vars(place).items()
        if not key.startswith("_") and key not in fields and is_own(value)
    } == CHECKED[place]
