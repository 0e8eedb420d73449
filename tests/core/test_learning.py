"""Learning: priors are found again in worlds that were drawn from them, and nowhere else are they changed."""

import random
from dataclasses import replace
from math import sqrt

import pytest

from redraft.quality.lineage import Observations, Node, TreeShape, sum_sq
from redraft.quality.fit import fit_priors
from redraft.quality.priors import Priors

SHIPPED = Priors()
LOOKS = 2  # at the first text of each family
ROLES = [("generate", None), ("refine", 0), ("refine", 1), ("generate", None), ("refine", 3)]


def drawn(chance, p, roles=ROLES, share=1.0):
    """A family as the priors have it: its texts in `roles`, each graded once, the first of them `LOOKS` times."""
    level, gain = chance.gauss(p.draft_mean, p.draft_mean_sd), chance.gauss(p.gain, p.gain_sd)
    qualities, styles, scores, kin, again = [], [], [], [], (0, 0.0)
    for i, (role, parent) in enumerate(roles):
        own = p.bias_sd * sqrt(share)
        if parent is None:
            qualities.append(chance.gauss(level, p.draft_sd))
            styles.append(chance.gauss(0, own))
        else:
            qualities.append(gain + p.retention * qualities[parent] + chance.gauss(0, p.step_sd))
            drift = p.bias_drift if share else 0.0
            styles.append(drift + p.bias_inheritance * styles[parent] + chance.gauss(0, own * sqrt(1 - p.bias_inheritance**2)))
        looks = [qualities[i] + styles[i] + chance.gauss(0, p.noise_sd) * sqrt(share) for _ in range(1 if i else LOOKS)]
        scores.append(sum(looks) / len(looks))
        kin.append(Node(role, parent, share / len(looks)))
        if not i and share:
            again = (LOOKS - 1, sum_sq(looks))
    return Observations(TreeShape(tuple(kin), share), tuple(scores), {i: i for i in range(len(kin))}, again)


def families(p, n, seed=1, **more):
    chance = random.Random(seed)
    return [drawn(chance, p, **more) for _ in range(n)]


WORLD = replace(SHIPPED, draft_mean=0.7, draft_mean_sd=0.08, draft_sd=0.14, gain=0.02, retention=0.9, step_sd=0.15, noise_sd=0.07)


@pytest.fixture(scope="module")
def found():
    """What four hundred families of a world teach, which is not as was believed."""
    return fit_priors(families(WORLD, 400), SHIPPED)


def test_the_level_of_a_world_is_found(found):
    """Within three standard errors."""
    error = sqrt((WORLD.draft_mean_sd**2 + WORLD.draft_sd**2 / 2 + WORLD.noise_sd**2 / 3) / 400)
    assert found.draft_mean == pytest.approx(WORLD.draft_mean, abs=3 * error)


@pytest.mark.parametrize("quality", [0.5, 0.6, 0.7, 0.8])
def test_what_a_refinement_brings_is_found(found, quality):
    """Where texts are, that is; gain and carry apart cannot be told so well."""
    told, true = (p.gain + p.retention * quality for p in (found, WORLD))
    assert told == pytest.approx(true, abs=0.025)


@pytest.mark.parametrize("name", ["draft_mean_sd", "draft_sd", "step_sd", "noise_sd"])
def test_the_spreads_of_a_world_are_found(found, name):
    """Each within a quarter."""
    assert getattr(found, name) == pytest.approx(getattr(WORLD, name), rel=0.25)


def test_more_families_teach_better():
    """What was believed before gives way."""
    far = [abs(fit_priors(families(WORLD, n), SHIPPED).draft_mean - WORLD.draft_mean) for n in (0, 10, 100)]
    assert far == sorted(far, reverse=True)


def test_a_world_where_refining_hurts_is_seen_as_such():
    """A few tasks will do."""
    harmful = replace(SHIPPED, gain=-0.05, retention=0.9)
    told = fit_priors(families(harmful, 40), SHIPPED)
    assert told.gain + told.retention * 0.6 < 0.55
    assert SHIPPED.gain + SHIPPED.retention * 0.6 > 0.6


def test_the_order_of_families_decides_nothing():
    """Not even the last digit."""
    known = [*families(WORLD, 30), *families(WORLD, 30, seed=2, roles=ROLES[:2]), *families(SHIPPED, 20, seed=3, roles=ROLES[:1])]
    told = fit_priors(known, SHIPPED)
    for seed in range(3):
        assert fit_priors(random.Random(seed).sample(known, len(known)), SHIPPED) == told


def test_nothing_teaches_nothing():
    """Without families, and of families nobody graded, all stays as it was."""
    bare = Observations(TreeShape((Node("generate", None, None),), 1.0), (), {0: 0})
    assert fit_priors([], SHIPPED) is SHIPPED
    assert fit_priors([bare, bare], SHIPPED) is SHIPPED


def test_one_family_moves_little():
    """Be it an odd one."""
    odd = Observations(TreeShape((Node("generate", None, 1.0), Node("refine", 0, 1.0)), 1.0), (0.2, 0.9), {0: 0, 1: 1})
    told = fit_priors([odd], SHIPPED)
    assert told.tasks == 1
    assert told.draft_mean == pytest.approx(SHIPPED.draft_mean, abs=0.15)
    assert told.gain + told.retention * 0.6 == pytest.approx(SHIPPED.gain + SHIPPED.retention * 0.6, abs=0.15)
    assert told.noise_sd < 1.5 * SHIPPED.noise_sd


def test_tasks_are_counted_on_top():
    """What was learned from before counts, what nobody graded does not."""
    bare = Observations(TreeShape((Node("generate", None, None),), 1.0), (), {0: 0})
    assert fit_priors([*families(WORLD, 5), bare], replace(SHIPPED, tasks=7)).tasks == 12


@pytest.mark.parametrize("noise", [0.12, 0.0])
def test_graders_that_compute_teach_nothing_of_noise(noise):
    """Noise and style stay exactly as they were believed to be."""
    before = replace(SHIPPED, noise_sd=noise)
    told = fit_priors(families(WORLD, 30, share=0.0), before)
    assert (told.noise_sd, told.bias_sd, told.bias_inheritance, told.bias_drift) == (
        noise,
        before.bias_sd,
        before.bias_inheritance,
        before.bias_drift,
    )
    assert told.draft_mean != before.draft_mean


def test_what_looks_differ_by_is_noise():
    """Looks at the same text teach the noise, where nothing else differs."""
    shape = TreeShape((Node("generate", None, 0.25),), 1.0)
    quiet, loud = ([Observations(shape, (0.6,), {0: 0}, (3, 3 * sd**2))] * 50 for sd in (0.02, 0.25))
    assert fit_priors(quiet, SHIPPED).noise_sd == pytest.approx(0.02, rel=0.3)
    assert fit_priors(loud, SHIPPED).noise_sd == pytest.approx(0.25, rel=0.3)


@pytest.mark.parametrize("scores", [(0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (0.0, 0.0), (0.5, 0.5)])
def test_the_most_one_sided_world_still_gives_priors(scores):
    """Numbers at the end of their range are no trouble."""
    shape = TreeShape((Node("generate", None, 1.0), Node("refine", 0, 1.0)), 1.0)
    told = fit_priors([Observations(shape, scores, {0: 0, 1: 1})] * 300, SHIPPED)
    assert told.draft_mean == pytest.approx(scores[0], abs=0.05)
    assert told.gain + told.retention * scores[0] == pytest.approx(scores[1], abs=0.05)


@pytest.mark.parametrize("name", ["draft_mean_sd", "draft_sd", "gain_sd", "step_sd", "noise_sd", "bias_sd"])
def test_spreads_of_nothing_are_no_trouble(name):
    """Who was sure that nothing differs can still be taught."""
    assert fit_priors(families(WORLD, 5), replace(SHIPPED, **{name: 0.0})).tasks == 5
