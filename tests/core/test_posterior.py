"""The posterior equals that of a reference implementation with independent causes and dense
matrices in numpy.
"""

import random
from itertools import permutations
from math import isfinite, sqrt
from statistics import NormalDist, fmean, stdev

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from redraft.loop.records import Candidate, Feedback
from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.quality.lineage import Node, Observations, TreeShape, observe
from redraft.plans.quality.posterior import DIGITS, Posterior, expected_improvement
from redraft.plans.quality.priors import Priors
from redraft.plans.quality.tree import REPAIR_SD

SHIPPED = Priors()
ROUNDED = 0.5 / 10**DIGITS + 1e-8  # how much a mean may be rounded; gains are not
JUDGE, CHECK = PanelGrader("judge"), PanelGrader("check", model_free=True)


class Dense:
    """All qualities and biases as a matrix over independent causes: the mean, the gain, and two
    causes for each text.
    """

    def __init__(self, kin, share, priors):
        self.kin, self.share, self.p = list(kin), share, priors
        causes = 2 + 2 * len(self.kin)
        sds = np.zeros(causes)
        sds[:2] = priors.draft_mean_sd, priors.gain_sd
        self.quality, self.style = (
            np.zeros((len(self.kin), causes)),
            np.zeros((len(self.kin), causes)),
        )
        self.quality_mean, self.style_mean = np.zeros(len(self.kin)), np.zeros(len(self.kin))
        for i, text in enumerate(self.kin):
            sds[2 + 2 * i], sds[3 + 2 * i] = self.grow(i, text)
        self.sources = np.diag(sds**2)

    def grow(self, i, text):
        """Fill in the rows of a text and the standard deviations of its own causes."""
        p, style = self.p, self.p.bias_sd * sqrt(self.share)
        self.quality[i, 2 + 2 * i] = self.style[i, 3 + 2 * i] = 1.0
        if text.parent is None:
            self.quality[i, 0], self.quality_mean[i] = 1.0, p.draft_mean
            return p.draft_sd, style
        if text.role == "repair":
            self.inherit(i, text.parent, 1.0, 1.0)
            return REPAIR_SD, 0.0
        self.inherit(i, text.parent, p.retention, p.bias_inheritance)
        self.quality[i, 1] += 1.0
        self.quality_mean[i] += p.gain
        self.style_mean[i] += p.bias_drift if self.share else 0.0
        return p.step_sd, style * sqrt(1 - p.bias_inheritance**2)

    def inherit(self, i, parent, carry, kinship):
        self.quality[i] += carry * self.quality[parent]
        self.style[i] += kinship * self.style[parent]
        self.quality_mean[i] += carry * self.quality_mean[parent]
        self.style_mean[i] += kinship * self.style_mean[parent]

    def condition(self, grades):
        """Return the means and covariances of all qualities after grades of the form (text, share
        of one grade's noise, score).
        """
        seen = [i for i, _, _ in grades]
        noise = np.diag([n * self.p.noise_sd**2 + 1e-12 for _, n, _ in grades])
        grade = self.quality[seen] + self.style[seen]
        cov = grade @ self.sources @ grade.T + noise
        both = self.quality @ self.sources @ grade.T
        surprise = (
            np.array([score for *_, score in grades])
            - self.quality_mean[seen]
            - self.style_mean[seen]
        )
        means = self.quality_mean + both @ np.linalg.solve(cov, surprise)
        return means, self.quality @ self.sources @ self.quality.T - both @ np.linalg.solve(
            cov, both.T
        )

    def predict(self, grades, i, noise):
        """Return the mean and the standard deviation of one more grade of a text."""
        row = self.quality[i] + self.style[i]
        seen = [j for j, _, _ in grades]
        grade = self.quality[seen] + self.style[seen]
        cov = grade @ self.sources @ grade.T + np.diag(
            [n * self.p.noise_sd**2 + 1e-12 for _, n, _ in grades]
        )
        updated = np.linalg.solve(cov, grade @ self.sources @ row)
        surprise = (
            np.array([score for *_, score in grades])
            - self.quality_mean[seen]
            - self.style_mean[seen]
        )
        mean = self.quality_mean[i] + self.style_mean[i] + updated @ surprise
        return mean, sqrt(
            row @ self.sources @ row
            + noise * self.p.noise_sd**2
            - updated @ (grade @ self.sources @ row)
        )

    def gain(self, grades, i, rival):
        """Return the value of a first grade: the expected lead over the rival after it."""
        mean, sd = self.predict(grades, i, self.share)
        ahead = []
        for score in (mean, mean + sd):
            after, _ = self.condition([*grades, (i, self.share, score)])
            ahead.append(after[i] - after[rival])
        difference, slope = ahead[0], abs(ahead[1] - ahead[0])
        if slope < 1e-9:
            return max(difference, 0.0)
        return slope * NormalDist().pdf(difference / slope) + difference * NormalDist().cdf(
            difference / slope
        )


def grades_of(known):
    graded = [
        (i, kin.noise_weight)
        for i, kin in enumerate(known.shape.nodes)
        if kin.noise_weight is not None
    ]
    return [(i, noise, score) for (i, noise), score in zip(graded, known.scores, strict=True)]


shares = st.sampled_from([1.0, 0.5, 5 / 9, 0.04])
spreads = st.floats(0.02, 0.5)
priors = st.builds(
    Priors,
    draft_mean=st.floats(0, 1),
    draft_mean_sd=spreads,
    draft_sd=spreads,
    gain=st.floats(-0.5, 0.5),
    gain_sd=spreads,
    retention=st.floats(0, 1),
    step_sd=spreads,
    noise_sd=spreads,
    bias_sd=spreads,
    bias_inheritance=st.floats(0, 1),
    bias_drift=st.floats(-0.1, 0.1),
)


@st.composite
def families(draw, most=9):
    """Draw texts after their parents, some without a grade and some graded repeatedly."""
    share, kin, scores = draw(shares), [], []
    for i in range(draw(st.integers(1, most))):
        role = (
            draw(st.sampled_from(["generate", "refine", "refine", "repair"])) if i else "generate"
        )
        parent = None if role == "generate" else draw(st.integers(0, i - 1))
        repeats = draw(st.sampled_from([1, 1, 1, 2, 3, 0]))
        kin.append(Node(role, parent, share / repeats if repeats else None))
        if repeats:
            scores.append(draw(st.integers(0, 20)) / 20)
    assume(scores)
    return Observations(
        TreeShape(tuple(kin), share), tuple(scores), {i: i for i in range(len(kin))}
    )


@given(families(), priors)
def test_posterior_is_the_conditional_distribution(known, prior):
    """Means and standard deviations are those of a Gaussian conditioned on the grades."""
    posterior = Posterior(known, prior)
    means, cov = Dense(known.shape.nodes, known.shape.repeat_noise_weight, prior).condition(
        grades_of(known)
    )
    for i in posterior.means:
        assert posterior.means[i] == pytest.approx(min(1.0, max(0.0, means[i])), abs=ROUNDED)
        assert posterior.sds[i] ** 2 == pytest.approx(cov[i, i], abs=1e-8)


@given(families(), priors, st.data())
def test_value_of_a_candidate(known, prior, data):
    """A new draft or refinement is worth the expected maximum of it and the best, over the best."""
    texts = range(len(known.shape.nodes))
    rival, parent = data.draw(st.sampled_from(texts)), data.draw(st.sampled_from([None, *texts]))
    role = "generate" if parent is None else data.draw(st.sampled_from(["refine", "repair"]))
    dense = Dense(
        [*known.shape.nodes, Node(role, parent, None)], known.shape.repeat_noise_weight, prior
    )
    due = dense.gain(grades_of(known), len(texts), rival)
    assert Posterior(known, prior).value_of_candidate(role, parent, rival) == pytest.approx(
        due, abs=1e-8
    )


@given(families(), priors, st.data(), st.floats(0.1, 3))
def test_difference_uses_the_covariance(known, prior, data, deviations):
    """Related texts move together, so that their difference is more certain than either quality."""
    texts = range(len(known.shape.nodes))
    assume(len(texts) > 1)
    one, other = data.draw(st.permutations(texts))[:2]
    means, cov = Dense(known.shape.nodes, known.shape.repeat_noise_weight, prior).condition(
        grades_of(known)
    )
    sd = sqrt(max(0.0, cov[one, one] + cov[other, other] - 2 * cov[one, other]))
    difference = abs(means[one] - means[other])
    assume(abs(difference - deviations * sd) > 1e-6)
    assert Posterior(known, prior).is_separated(one, other, deviations) == (
        difference > deviations * sd
    )


def test_values_agree_with_simulation():
    """Simulated worlds and grades give the same expected gains."""
    chance, p = random.Random(5), SHIPPED
    known = Observations(
        TreeShape((Node("generate", None, 1.0), Node("refine", 0, 1.0)), 1.0),
        (0.6, 0.7),
        {0: 0, 1: 1},
    )
    posterior, dense = (
        Posterior(known, p),
        Dense([*known.shape.nodes, Node("refine", 1, None)], 1.0, p),
    )
    grades = grades_of(known)
    mean, sd = dense.predict(grades, 2, 1.0)
    found = []
    for _ in range(4000):
        after, _ = dense.condition([*grades, (2, 1.0, chance.gauss(mean, sd))])
        found.append(max(0.0, after[2] - after[1]))
    assert posterior.value_of_candidate("refine", 1, 1) == pytest.approx(
        fmean(found), abs=4 * stdev(found) / sqrt(len(found))
    )


def test_expected_gain_is_the_mean_of_the_positive_part():
    """Without spread it is the lead itself; with spread even a candidate that is behind has a
    gain.
    """
    assert expected_improvement(0.2, 0.0) == 0.2
    assert expected_improvement(-0.2, 0.0) == 0.0
    assert expected_improvement(0.0, 0.1) == pytest.approx(0.1 * NormalDist().pdf(0))
    assert 0 < expected_improvement(-0.2, 0.1) < expected_improvement(-0.1, 0.1)


def draft(id):
    return Candidate(id, f"text {id}", by="m", role="generate")


def child(id, parent, role="refine", text=None):
    return Candidate(id, text or f"text {id}", parent, by="m", role=role)


def feedback(id, score, grader="judge", repeat=0, **more):
    return Feedback(score, candidate=id, grader=grader, repeat=repeat, **more)


def posterior_of(panel, *records, prior=SHIPPED):
    return Posterior(observe(Trace(Task("q"), tuple(panel), records)), prior)


@st.composite
def computed_traces(draw):
    """Draw texts with a computed score out of few values, so that ties occur."""
    records = []
    for i in range(draw(st.integers(1, 8))):
        role = draw(st.sampled_from(["generate", "refine", "repair"])) if i else "generate"
        records.append(
            draft(i) if role == "generate" else child(i, draw(st.integers(0, i - 1)), role)
        )
        records.append(feedback(i, draw(st.sampled_from([0.0, 0.25, 0.5, 0.7, 1.0])), "check"))
    return Trace(Task("q"), (CHECK,), tuple(records))


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(computed_traces())
def test_computed_scores_are_exact(trace):
    """With a grader that calls no model, the best is that of the plain rules, and ties go to the
    oldest.
    """
    posterior = Posterior(observe(trace), SHIPPED)
    assert posterior.means == pytest.approx(trace.scores, abs=1e-6)
    assert all(sd < 1e-4 for sd in posterior.sds.values())
    assert trace.with_scores(posterior.means).best == trace.best


def test_computed_score_of_a_repair_is_exact():
    """The measured score of a repair counts for more than the prior that repairs change little."""
    posterior = posterior_of(
        [CHECK],
        draft(0),
        feedback(0, 0.2, "check"),
        child(1, 0, "repair"),
        feedback(1, 1.0, "check"),
    )
    assert posterior.means == {0: 0.2, 1: 1.0}


@given(st.integers(2, 6), st.integers(0, 10), priors)
def test_of_equals_the_earliest_is_best(drafts, tenths, prior):
    """Drafts with the same scores have the same estimate to the last digit."""
    records = [r for i in range(drafts) for r in (draft(i), feedback(i, tenths / 10))]
    trace = Trace(Task("q"), (JUDGE,), tuple(records))
    assert trace.with_scores(Posterior(observe(trace), prior).means).best.id == 0


def test_more_repeats_reduce_the_uncertainty():
    """Every repeat narrows the posterior, and one that disagrees moves it."""
    repeats = [feedback(0, 0.8, repeat=n) for n in range(5)]
    sds = [posterior_of([JUDGE], draft(0), *repeats[:n]).sds[0] for n in range(1, 6)]
    means = [posterior_of([JUDGE], draft(0), *repeats[:n]).means[0] for n in range(1, 6)]
    assert sds == sorted(sds, reverse=True) and len(set(sds)) == 5
    assert means == sorted(means) and means[-1] < 0.8
    assert (
        posterior_of([JUDGE], draft(0), *repeats[:4], feedback(0, 0.2, repeat=4)).means[0]
        < means[3]
    )


def test_repeats_do_not_remove_the_bias():
    """The bias of a grader towards a text remains however often it grades the text."""
    repeats = [feedback(0, 0.8, repeat=n) for n in range(400)]
    assert posterior_of([JUDGE], draft(0), *repeats).sds[0] > 0.04


def test_order_of_records_does_not_matter():
    """The posterior depends on the scores and not on when they arrived."""
    texts = [draft(0), child(1, 0), draft(2)]
    words = [feedback(0, 0.3), feedback(0, 0.5, repeat=1), feedback(1, 0.9), feedback(2, 0.4)]
    found = [posterior_of([JUDGE], *texts, *order) for order in permutations(words)]
    assert all((b.means, b.sds) == (found[0].means, found[0].sds) for b in found)
    backwards = posterior_of([JUDGE], *reversed(words), *reversed(texts))
    assert (backwards.means, backwards.sds) == (found[0].means, found[0].sds)


def test_children_correct_a_lucky_parent():
    """Children with lower scores lower their parent's estimate, and better ones raise it."""
    alone = posterior_of([JUDGE], draft(0), feedback(0, 0.9)).means[0]
    below = posterior_of(
        [JUDGE],
        draft(0),
        feedback(0, 0.9),
        child(1, 0),
        feedback(1, 0.5),
        child(2, 0),
        feedback(2, 0.4),
    ).means[0]
    above = posterior_of(
        [JUDGE],
        draft(0),
        feedback(0, 0.9),
        child(1, 0),
        feedback(1, 1.0),
        child(2, 0),
        feedback(2, 1.0),
    ).means[0]
    assert below < alone < above


def test_noisy_high_score_shrinks():
    """The estimate is below a high score, and the further below the noisier the grader."""
    quiet, loud = (
        posterior_of([JUDGE], draft(0), feedback(0, 1.0), prior=Priors(noise_sd=sd)).means[0]
        for sd in (0.02, 0.3)
    )
    assert SHIPPED.draft_mean < loud < quiet < 1.0


def test_copy_counts_as_its_parent():
    """A refinement that changed nothing adds no information, and neither does a copy of it."""
    without = posterior_of([JUDGE], draft(0), feedback(0, 0.6))
    same = posterior_of(
        [JUDGE], draft(0), feedback(0, 0.6), child(1, 0, text="text 0"), child(2, 1, text="text 0")
    )
    assert same.means == dict.fromkeys(range(3), without.means[0])
    assert same.sds == dict.fromkeys(range(3), without.sds[0])
    assert not same.is_separated(0, 2, 0.001)


def test_repair_keeps_most_of_the_quality():
    """Scores of a repair inform its parent's estimate more than scores of a refinement."""
    repair, refinement = (
        posterior_of([JUDGE], draft(0), child(1, 0, role), feedback(1, 0.9))
        for role in ("repair", "refine")
    )
    assert repair.means[0] == pytest.approx(repair.means[1], abs=0.02)
    assert abs(refinement.means[0] - refinement.means[1]) > 0.03


def test_must_does_not_enter_the_estimate():
    """A computed `must` carries no information on quality, and the score beside it keeps its
    noise.
    """
    must = PanelGrader("form", must=True, model_free=True)
    with_it = posterior_of([must, JUDGE], draft(0), feedback(0, 0.0, "form"), feedback(0, 0.7))
    assert with_it.means == posterior_of([JUDGE], draft(0), feedback(0, 0.7)).means


def test_computed_share_of_a_score_has_no_noise():
    """More weight on a computed grader, or a second judge, makes the score more certain."""

    def sd_of(*graders):
        return posterior_of(
            graders, draft(0), *(feedback(0, 0.7, grader.name) for grader in graders)
        ).sds[0]

    one = sd_of(JUDGE)
    assert sd_of(JUDGE, PanelGrader("other")) < one
    assert sd_of(JUDGE, PanelGrader("check", 3.0, model_free=True)) < sd_of(JUDGE, CHECK) < one
    assert sd_of(JUDGE, PanelGrader("other", 100.0)) == pytest.approx(one, abs=0.002)


def test_sixty_texts_have_the_conditional_distribution():
    """Long chains, many children and many drafts, of a judge and of a grader that computes, give
    the figures of dense matrices.
    """
    chance = random.Random(3)
    for parents in (
        range(-1, 59),
        [-1] + [0] * 59,
        [-1] * 60,
        [-1] + [chance.randrange(i) for i in range(1, 60)],
    ):
        records = [
            r
            for i, p in enumerate(parents)
            for r in (child(i, p) if p >= 0 else draft(i), feedback(i, chance.random()))
        ]
        for panel in ([JUDGE], [PanelGrader("judge", model_free=True)]):
            known = observe(Trace(Task("q"), tuple(panel), tuple(records)))
            posterior, share = Posterior(known, SHIPPED), known.shape.repeat_noise_weight
            dense = Dense(known.shape.nodes, share, SHIPPED if share else Priors(bias_drift=0))
            means, cov = dense.condition(grades_of(known))
            assert [posterior.unlimited_mean(i) for i in range(60)] == pytest.approx(
                means.tolist(), abs=1e-5
            )
            assert [posterior.sds[i] ** 2 for i in range(60)] == pytest.approx(
                np.diag(cov).tolist(), abs=1e-8
            )


@pytest.mark.parametrize(
    "prior",
    [
        Priors(noise_sd=0),
        Priors(noise_sd=1e-3, bias_sd=0),
        Priors(noise_sd=0, bias_sd=0, step_sd=0),
        Priors(draft_mean_sd=0),
        Priors(draft_mean_sd=0, draft_sd=0, gain_sd=0, step_sd=0),
        Priors(draft_mean_sd=0, draft_sd=0, gain_sd=0, step_sd=0, noise_sd=0, bias_sd=0),
        Priors(
            draft_mean_sd=1,
            draft_sd=1,
            gain_sd=1,
            step_sd=1,
            noise_sd=1,
            bias_sd=1,
            bias_inheritance=1,
            retention=1,
        ),
        Priors(bias_inheritance=0, retention=0),
    ],
)
@pytest.mark.parametrize("scores", [(0.5,) * 6, (0.1, 0.9, 0.3, 0.3, 1.0, 0.0)])
def test_extreme_priors_give_finite_values(prior, scores):
    """Priors without uncertainty give finite values and no gain below zero."""
    texts = [draft(0), draft(1), child(2, 0), child(3, 2), child(4, 0, "repair"), draft(5)]
    posterior = posterior_of(
        [JUDGE], *texts, *(feedback(i, score) for i, score in enumerate(scores)), prior=prior
    )
    assert all(isfinite(mean) and -1 <= mean <= 2 for mean in posterior.means.values())
    assert all(isfinite(sd) and sd >= 0 for sd in posterior.sds.values())
    gains = [
        posterior.value_of_candidate("refine", 3, 0),
        posterior.value_of_candidate("generate", None, 0),
    ]
    assert all(isfinite(gain) and gain >= 0 for gain in gains)
