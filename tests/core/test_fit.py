"""Fitting recovers the priors that simulated tasks were drawn from, and changes no others."""

import random
from dataclasses import replace
from math import sqrt

import pytest

from redraft.quality.lineage import Observations, Node, TreeShape, sum_sq
from redraft.quality.fit import fit_priors
from redraft.quality.priors import Priors

SHIPPED = Priors()
REPEATS = 2  # at the first text of each family
ROLES = [("generate", None), ("refine", 0), ("refine", 1), ("generate", None), ("refine", 3)]


def draw_family(chance, p, roles=ROLES, share=1.0):
    """Draw a family from the priors: its texts in `roles`, each graded once, the first of them `LOOKS` times."""
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
            styles.append(drift + p.bias_inheritance * styles[parent] + chance.gauss(0, own * sqrt(1 - p.bias_inheritance**2)))
        repeats = [qualities[i] + styles[i] + chance.gauss(0, p.noise_sd) * sqrt(share) for _ in range(1 if i else REPEATS)]
        scores.append(sum(repeats) / len(repeats))
        nodes.append(Node(role, parent, share / len(repeats)))
        if not i and share:
            again = (REPEATS - 1, sum_sq(repeats))
    return Observations(TreeShape(tuple(nodes), share), tuple(scores), {i: i for i in range(len(nodes))}, again)


def families(p, n, seed=1, **more):
    chance = random.Random(seed)
    return [draw_family(chance, p, **more) for _ in range(n)]


WORLD = replace(SHIPPED, draft_mean=0.7, draft_mean_sd=0.08, draft_sd=0.14, gain=0.02, retention=0.9, step_sd=0.15, noise_sd=0.07)


@pytest.fixture(scope="module")
def fitted_priors():
    """Return the priors fitted to 400 families of a world that differs from the shipped priors."""
    return fit_priors(families(WORLD, 400), SHIPPED)


def test_draft_mean_is_recovered(fitted_priors):
    """The fit lies within three standard errors."""
    error = sqrt((WORLD.draft_mean_sd**2 + WORLD.draft_sd**2 / 2 + WORLD.noise_sd**2 / 3) / 400)
    assert fitted_priors.draft_mean == pytest.approx(WORLD.draft_mean, abs=3 * error)


@pytest.mark.parametrize("quality", [0.5, 0.6, 0.7, 0.8])
def test_gain_of_a_refinement_is_recovered(fitted_priors, quality):
    """The fit is close where scores are; gain and retention cannot be separated as well."""
    fitted, true = (p.gain + p.retention * quality for p in (fitted_priors, WORLD))
    assert fitted == pytest.approx(true, abs=0.025)


@pytest.mark.parametrize("name", ["draft_mean_sd", "draft_sd", "step_sd", "noise_sd"])
def test_standard_deviations_are_recovered(fitted_priors, name):
    """Each fit lies within a quarter of the true value."""
    assert getattr(fitted_priors, name) == pytest.approx(getattr(WORLD, name), rel=0.25)


def test_more_families_fit_better():
    """The influence of the prior shrinks as families are added."""
    far = [abs(fit_priors(families(WORLD, n), SHIPPED).draft_mean - WORLD.draft_mean) for n in (0, 10, 100)]
    assert far == sorted(far, reverse=True)


def test_harmful_refinement_is_detected():
    """A few tasks are enough."""
    harmful = replace(SHIPPED, gain=-0.05, retention=0.9)
    fitted = fit_priors(families(harmful, 40), SHIPPED)
    assert fitted.gain + fitted.retention * 0.6 < 0.55
    assert SHIPPED.gain + SHIPPED.retention * 0.6 > 0.6


def test_order_of_families_does_not_matter():
    """The fit is the same to the last digit."""
    known = [*families(WORLD, 30), *families(WORLD, 30, seed=2, roles=ROLES[:2]), *families(SHIPPED, 20, seed=3, roles=ROLES[:1])]
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
    odd = Observations(TreeShape((Node("generate", None, 1.0), Node("refine", 0, 1.0)), 1.0), (0.2, 0.9), {0: 0, 1: 1})
    fitted = fit_priors([odd], SHIPPED)
    assert fitted.tasks == 1
    assert fitted.draft_mean == pytest.approx(SHIPPED.draft_mean, abs=0.15)
    assert fitted.gain + fitted.retention * 0.6 == pytest.approx(SHIPPED.gain + SHIPPED.retention * 0.6, abs=0.15)
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
    quiet, loud = ([Observations(shape, (0.6,), {0: 0}, (3, 3 * sd**2))] * 50 for sd in (0.02, 0.25))
    assert fit_priors(quiet, SHIPPED).noise_sd == pytest.approx(0.02, rel=0.3)
    assert fit_priors(loud, SHIPPED).noise_sd == pytest.approx(0.25, rel=0.3)


@pytest.mark.parametrize("scores", [(0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (0.0, 0.0), (0.5, 0.5)])
def test_extreme_worlds_give_valid_priors(scores):
    """Fitted values at the end of their range are valid."""
    shape = TreeShape((Node("generate", None, 1.0), Node("refine", 0, 1.0)), 1.0)
    fitted = fit_priors([Observations(shape, scores, {0: 0, 1: 1})] * 300, SHIPPED)
    assert fitted.draft_mean == pytest.approx(scores[0], abs=0.05)
    assert fitted.gain + fitted.retention * scores[0] == pytest.approx(scores[1], abs=0.05)


@pytest.mark.parametrize("name", ["draft_mean_sd", "draft_sd", "gain_sd", "step_sd", "noise_sd", "bias_sd"])
def test_zero_standard_deviations_can_be_fitted(name):
    """Priors with zero spread can still be fitted."""
    assert fit_priors(families(WORLD, 5), replace(SHIPPED, **{name: 0.0})).tasks == 5
