"""Fitting recovers the priors that simulated tasks were drawn from, as far as scores can tell them,
and changes no others.
"""

import random
from dataclasses import replace
from math import hypot, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.plans.quality.fit import (
    GAIN_SPREAD,
    diagonal_of_inverse,
    fit_priors,
    fit_with_errors,
    lift,
    with_latent_scores,
)
from redraft.plans.quality.labelled_figures import KNOWN_NOISE_DRIFT, shrunk_move
from redraft.plans.quality.lineage import (
    THRESHOLD_SD,
    Node,
    Observations,
    TreeShape,
    mixed_repeats,
    split_intervals,
    sum_sq,
)
from redraft.plans.quality.noise import NOISE_PSEUDO_COUNT, fit_noise
from redraft.plans.quality.priors import Priors

SHIPPED = Priors()
REPEATS = 2  # at the first text of each family
ROLES = [("generate", None), ("refine", 0), ("refine", 1), ("generate", None), ("refine", 3)]


def draw_family(chance, p, roles=ROLES, share=1.0):
    """Draw a family from the priors: its texts in `roles`, each graded once, the first of them
    `LOOKS` times.
    """
    level, gain = chance.gauss(p.draft_mean, p.draft_mean_sd), chance.gauss(p.gain, p.gain_sd)
    qualities, styles, scores, nodes, again = [], [], [], [], (0, 0.0)
    for i, (role, parent) in enumerate(roles):
        own = p.bias_sd * sqrt(share)
        if parent is None:
            qualities.append(chance.gauss(level, p.draft_sd))
            styles.append(chance.gauss(0, own))
        else:
            qualities.append(gain + p.retention * qualities[parent] + chance.gauss(0, p.step_sd))
            drift = p.bias_drift if share else 0.0
            styles.append(
                drift
                + p.bias_inheritance * styles[parent]
                + chance.gauss(0, own * sqrt(1 - p.bias_inheritance**2))
            )
        repeats = [
            qualities[i] + styles[i] + chance.gauss(0, p.noise_sd) * sqrt(share)
            for _ in range(1 if i else REPEATS)
        ]
        scores.append(sum(repeats) / len(repeats))
        nodes.append(Node(role, parent, share / len(repeats)))
        if not i and share:
            again = (REPEATS - 1, sum_sq(repeats))
    return Observations(
        TreeShape(tuple(nodes), share), tuple(scores), {i: i for i in range(len(nodes))}, again
    )


def scored_by(judge, step, p, n, roles=ROLES[:3], seed=1):
    """Return families whose scores a judge gives that turns an impression with noise into a score
    on a scale with this step.
    """
    chance = random.Random(seed)
    return [
        graded(
            chance, judge, step, draw_family(chance, replace(p, noise_sd=0.0), roles), p.noise_sd
        )
        for _ in range(n)
    ]


def graded(chance, judge, step, family, noise_sd):
    """Return a family with the scores of a judge in place of impressions, two for its first
    text.
    """
    scores = [
        [judge(h + chance.gauss(0, noise_sd)) for _ in range(1 if i else REPEATS)]
        for i, h in enumerate(family.scores)
    ]
    intervals, values = split_intervals(scores, step)
    shape = family.shape._replace(threshold_sd=THRESHOLD_SD if step >= 0.25 else 0.0)
    return family._replace(
        shape=shape,
        scores=tuple(sum(text) / len(text) for text in scores),
        repeat_stats=(REPEATS - 1, sum_sq(scores[0])),
        intervals=intervals,
        values=values,
        coarse_step=step if step >= 0.25 else 0.0,
        mixed_repeats=mixed_repeats(scores, step),
    )


def clipped(impression):
    """Score in tenths, with 1.0 for everything from .95 on."""
    return min(1.0, max(0.0, round(round(impression, 1), 9)))


def yes_or_no(impression):
    return float(impression >= 0.5)


def families(p, n, seed=1, **more):
    chance = random.Random(seed)
    return [draw_family(chance, p, **more) for _ in range(n)]


WORLD = replace(
    SHIPPED,
    draft_mean=0.7,
    draft_mean_sd=0.08,
    draft_sd=0.14,
    gain=0.02,
    retention=0.9,
    step_sd=0.15,
    noise_sd=0.07,
)


@pytest.fixture(scope="module")
def fitted_priors():
    """Return the priors fitted to 400 families of a world that differs from the shipped priors, as
    a judge scores them.
    """
    return fit_priors(families(WORLD, 400), SHIPPED)


@pytest.fixture(scope="module")
def exact_priors():
    """Return the priors fitted to the same world, as a grader scores it that computes."""
    return fit_priors(families(WORLD, 400, share=0.0), SHIPPED)


def test_draft_mean_is_recovered(fitted_priors):
    """The fit lies within three standard errors."""
    error = sqrt((WORLD.draft_mean_sd**2 + WORLD.draft_sd**2 / 2 + WORLD.noise_sd**2 / 3) / 400)
    assert fitted_priors.draft_mean == pytest.approx(WORLD.draft_mean, abs=3 * error)


def test_noise_is_recovered(fitted_priors):
    """Repeated scores tell it."""
    assert fitted_priors.noise_sd == pytest.approx(WORLD.noise_sd, rel=0.1)


def test_noisy_scores_teach_the_lift_where_texts_are(fitted_priors):
    """The fit is close for first drafts; what noisy scores hardly tell stays."""
    assert lift(fitted_priors) == pytest.approx(lift(WORLD), abs=0.035)
    kept = ("step_sd", "bias_sd", "bias_inheritance")
    assert {name: getattr(fitted_priors, name) for name in kept} == {
        name: getattr(SHIPPED, name) for name in kept
    }


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("quality", [0.5, 0.6, 0.7, 0.8])
def test_exact_scores_teach_the_gain_at_every_quality(exact_priors, quality):
    """The fit is close where scores are; gain and retention cannot be separated as well."""
    fitted, true = (p.gain + p.retention * quality for p in (exact_priors, WORLD))
    assert fitted == pytest.approx(true, abs=0.025)


@pytest.mark.parametrize("name", ["draft_mean_sd", "draft_sd", "step_sd"])
def test_exact_scores_teach_the_spreads(exact_priors, name):
    """Each fit lies within a quarter of the true value."""
    assert getattr(exact_priors, name) == pytest.approx(getattr(WORLD, name), rel=0.25)


@pytest.mark.parametrize(("factor", "within"), [(0.4, True), (1.8, False)])
def test_drafts_that_differ_less_than_expected_do_so_within_tasks_too(factor, within):
    """The spread between tasks follows the scores both ways, that within tasks only downwards."""
    world = replace(
        SHIPPED,
        draft_mean_sd=SHIPPED.draft_mean_sd * factor,
        draft_sd=SHIPPED.draft_sd * min(1, factor),
    )
    fitted = fit_priors(families(world, 200, roles=ROLES[:2]), SHIPPED)
    assert fitted.draft_mean_sd == pytest.approx(world.draft_mean_sd, rel=0.35)
    assert (fitted.draft_sd < SHIPPED.draft_sd) is within
    assert fitted.draft_sd <= SHIPPED.draft_sd


@pytest.mark.parametrize(
    ("before", "after"), [(SHIPPED.bias_drift, KNOWN_NOISE_DRIFT), (0.05, 0.05), (0.0, 0.0)]
)
def test_a_drift_that_was_measured_stays(before, after):
    """Only the cautious shipped value is lowered, and only when the noise is known."""
    start = replace(SHIPPED, bias_drift=before)
    assert fit_priors(families(WORLD, 20), start).bias_drift == after
    bare = [task._replace(repeat_stats=(0, 0.0)) for task in families(WORLD, 20)]
    assert fit_priors(bare, start).bias_drift == before


def test_what_is_unknown_about_the_lift_shrinks():
    """The spread of the gain holds the error of its mean, never more than before; without
    refinements it stays.
    """
    sds = [fit_with_errors(families(WORLD, n), SHIPPED) for n in (2, 20, 200)]
    assert [fit.priors.gain_sd for fit in sds] == sorted(
        (fit.priors.gain_sd for fit in sds), reverse=True
    )
    for fit in sds:
        assert fit.priors.gain_sd == pytest.approx(
            min(SHIPPED.gain_sd, hypot(GAIN_SPREAD, fit.lift_error))
        )
    only_drafts = fit_with_errors(families(WORLD, 40, roles=ROLES[:1]), SHIPPED)
    assert (only_drafts.lift_error, only_drafts.priors.gain_sd) == (None, SHIPPED.gain_sd)
    assert lift(only_drafts.priors) == lift(SHIPPED)


@pytest.mark.parametrize("n", [20, 60])
@pytest.mark.slow(but_each=2)
def test_standard_errors_fit_the_deviations(n):
    """Over many samples, the errors of level and lift are as large as they are said to be."""
    fits = [
        fit_with_errors(families(SHIPPED, n, seed), replace(SHIPPED, draft_mean=0.5, gain=0.24))
        for seed in range(8)
    ]
    for true, value, error in (
        (SHIPPED.draft_mean, lambda f: f.priors.draft_mean, lambda f: f.level_error),
        (lift(SHIPPED), lambda f: lift(f.priors), lambda f: f.lift_error),
    ):
        z = [(value(fit) - true) / error(fit) for fit in fits]
        assert sum(each**2 for each in z) / len(z) < 4


NOISY_JUDGE = replace(SHIPPED, noise_sd=0.35, draft_mean=0.6, gain=0.2, bias_drift=0.0, bias_sd=0.0)
YES_NO = replace(SHIPPED, noise_sd=0.2, draft_mean=0.45, gain=0.15, bias_drift=0.0, bias_sd=0.0)


@pytest.mark.parametrize(
    ("judge", "step", "world"), [(clipped, 0.1, NOISY_JUDGE), (yes_or_no, 1.0, YES_NO)]
)
@pytest.mark.slow(but_each=2)
def test_scores_that_are_intervals_teach_noise_level_and_lift(judge, step, world):
    """They are nearer to the truth than the same scores taken as values, whose spread the ends of
    the scale limit.
    """
    tasks = scored_by(judge, step, world, 200)
    start = replace(SHIPPED, bias_drift=0.0, bias_sd=0.0)
    fitted = fit_priors(tasks, start)
    as_values = fit_priors(
        [
            task._replace(intervals=(), values={}, coarse_step=0.0, mixed_repeats=())
            for task in tasks
        ],
        start,
    )
    assert fitted.noise_sd == pytest.approx(world.noise_sd, rel=0.25)
    assert abs(fitted.noise_sd - world.noise_sd) < abs(as_values.noise_sd - world.noise_sd)
    assert fitted.draft_mean == pytest.approx(world.draft_mean, abs=0.04)
    assert lift(fitted) == pytest.approx(lift(world), abs=0.05)


def test_a_latent_score_lies_in_its_interval_or_near_it():
    """A full score stands for more than the lowest impression that gets it; values stay."""
    for task in scored_by(clipped, 0.1, NOISY_JUDGE, 30):
        latent = with_latent_scores(task, NOISY_JUDGE)
        assert latent.intervals == {} and latent.shape == task.shape
        for n, (before, after) in enumerate(zip(task.scores, latent.scores, strict=True)):
            if n in task.intervals:
                assert abs(after - before) < 1
            else:
                assert after == pytest.approx(before, abs=1e-6)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.2, 0.4, 0.5, 0.6, 0.8]), st.sampled_from([0.2, 0.4, 0.5, 0.6, 0.8])
        ),
        max_size=12,
    )
)
def test_noise_of_values_is_their_pooled_variance(pairs):
    """It is a mean of variances with the previous one as `NOISE_PSEUDO_COUNT` degrees of
    freedom.
    """
    tasks = [
        Observations(
            TreeShape((Node("generate", None, 0.5),), 1.0),
            (sum(pair) / 2,),
            {0: 0},
            (1, sum_sq(pair)),
        )
        for pair in pairs
    ]
    noise_sd, error = fit_noise(tasks, SHIPPED)
    squares = sum(sum_sq(pair) for pair in pairs) + NOISE_PSEUDO_COUNT * SHIPPED.noise_sd**2
    assert noise_sd == pytest.approx(sqrt(squares / (NOISE_PSEUDO_COUNT + len(pairs))))
    assert (error is None) is (not pairs)


def test_the_inverse_of_a_matrix_that_is_not_positive_definite_is_infinite():
    """Nothing is known about such a coordinate."""
    assert diagonal_of_inverse([[2.0, 1.0], [1.0, 3.0]]) == pytest.approx([0.6, 0.4])
    assert diagonal_of_inverse([[1.0, 2.0], [2.0, 1.0]]) == [float("inf")] * 2
    assert diagonal_of_inverse([]) == []


@given(st.floats(-1, 1), st.floats(1e-6, 1))
def test_a_move_is_shrunk_by_its_error(move, error):
    """It keeps its sign, never grows, is 0 below the error, and is kept almost whole far above
    it.
    """
    shrunk = shrunk_move(move, error)
    assert abs(shrunk) <= abs(move) and shrunk * move >= 0
    assert shrunk == 0 or abs(move) > error
    if abs(move) > 10 * error:
        assert abs(shrunk) >= 0.98 * abs(move)


def test_more_families_fit_better():
    """The influence of the prior shrinks as families are added."""
    far = [
        abs(fit_priors(families(WORLD, n), SHIPPED).draft_mean - WORLD.draft_mean)
        for n in (0, 10, 100)
    ]
    assert far == sorted(far, reverse=True)


def test_harmful_refinement_is_detected():
    """A few tasks are enough."""
    harmful = replace(SHIPPED, gain=-0.05, retention=0.9)
    fitted = fit_priors(families(harmful, 40), SHIPPED)
    assert lift(fitted) < -0.05
    assert lift(SHIPPED) > 0


def test_order_of_families_does_not_matter():
    """The fit is the same to the last digit."""
    known = [
        *families(WORLD, 30),
        *families(WORLD, 30, seed=2, roles=ROLES[:2]),
        *families(SHIPPED, 20, seed=3, roles=ROLES[:1]),
    ]
    fitted = fit_priors(known, SHIPPED)
    for seed in range(3):
        assert fit_priors(random.Random(seed).sample(known, len(known)), SHIPPED) == fitted


def test_no_grades_change_no_priors():
    """Without families, or with families without grades, the priors stay."""
    bare = Observations(TreeShape((Node("generate", None, None),), 1.0), (), {0: 0})
    assert fit_priors([], SHIPPED) is SHIPPED
    assert fit_priors([bare, bare], SHIPPED) is SHIPPED


def test_one_family_changes_little():
    """One family changes the priors little, even an unusual one."""
    odd = Observations(
        TreeShape((Node("generate", None, 1.0), Node("refine", 0, 1.0)), 1.0),
        (0.2, 0.9),
        {0: 0, 1: 1},
    )
    fitted = fit_priors([odd], SHIPPED)
    assert fitted.tasks == 1
    assert fitted.draft_mean == pytest.approx(SHIPPED.draft_mean, abs=0.15)
    assert fitted.gain + fitted.retention * 0.6 == pytest.approx(
        SHIPPED.gain + SHIPPED.retention * 0.6, abs=0.15
    )
    assert fitted.noise_sd < 1.5 * SHIPPED.noise_sd


def test_task_counts_add_up():
    """Tasks of an earlier fit are counted; families without grades are not."""
    bare = Observations(TreeShape((Node("generate", None, None),), 1.0), (), {0: 0})
    assert fit_priors([*families(WORLD, 5), bare], replace(SHIPPED, tasks=7)).tasks == 12


@pytest.mark.parametrize("noise", [0.12, 0.0])
def test_computed_scores_leave_noise_unchanged(noise):
    """Noise and bias keep exactly their prior values."""
    before = replace(SHIPPED, noise_sd=noise)
    fitted = fit_priors(families(WORLD, 30, share=0.0), before)
    assert (fitted.noise_sd, fitted.bias_sd, fitted.bias_inheritance, fitted.bias_drift) == (
        noise,
        before.bias_sd,
        before.bias_inheritance,
        before.bias_drift,
    )
    assert fitted.draft_mean != before.draft_mean


def test_repeats_determine_the_noise():
    """Repeated grades of the same text fit the noise when nothing else differs."""
    shape = TreeShape((Node("generate", None, 0.25),), 1.0)
    quiet, loud = (
        [Observations(shape, (0.6,), {0: 0}, (3, 3 * sd**2))] * 50 for sd in (0.02, 0.25)
    )
    assert fit_priors(quiet * 4, SHIPPED).noise_sd == pytest.approx(0.02, rel=0.3)
    assert fit_priors(loud, SHIPPED).noise_sd == pytest.approx(0.25, rel=0.1)
    assert fit_with_errors(loud, SHIPPED).noise_error == pytest.approx(
        0.25 / sqrt(2 * 156), rel=0.1
    )
    assert fit_with_errors(loud[:0], SHIPPED).noise_error is None


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize("scores", [(0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (0.0, 0.0), (0.5, 0.5)])
def test_extreme_worlds_give_valid_priors(scores):
    """Fitted values at the end of their range are valid."""
    shape = TreeShape((Node("generate", None, 1.0), Node("refine", 0, 1.0)), 1.0)
    fitted = fit_priors([Observations(shape, scores, {0: 0, 1: 1})] * 300, SHIPPED)
    assert fitted.draft_mean == pytest.approx(scores[0], abs=0.1)
    assert Priors.from_dict(fitted.to_dict()) == fitted
    assert abs(fitted.gain + fitted.retention * scores[0] - scores[1]) <= abs(
        0.16 + 0.8 * scores[0] - scores[1]
    )


@pytest.mark.parametrize(
    "name", ["draft_mean_sd", "draft_sd", "gain_sd", "step_sd", "noise_sd", "bias_sd"]
)
def test_zero_standard_deviations_can_be_fitted(name):
    """Priors with zero spread can still be fitted."""
    assert fit_priors(families(WORLD, 5), replace(SHIPPED, **{name: 0.0})).tasks == 5
