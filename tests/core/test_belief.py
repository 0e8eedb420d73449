"""Belief beside a reference that was written for it alone: independent causes, dense matrices, and numpy."""

import random
from itertools import permutations
from math import isfinite, sqrt
from statistics import NormalDist, fmean, stdev

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from redraft.quality.posterior import DIGITS, REPAIR_SD, Posterior, expected_improvement
from redraft.quality.lineage import Observations, Node, TreeShape, observe
from redraft.quality.priors import Priors
from redraft.core.records import Candidate, Feedback, Task
from redraft.core.trace import PanelGrader, Trace

SHIPPED = Priors()
ROUNDED = 0.5 / 10**DIGITS + 1e-8  # how much a mean may be rounded; gains are not
JUDGE, CHECK = PanelGrader("judge"), PanelGrader("check", model_free=True)


class Dense:
    """All qualities and styles as a matrix over independent causes: the level, the gain, and two of each text's own."""

    def __init__(self, kin, share, priors):
        self.kin, self.share, self.p = list(kin), share, priors
        causes = 2 + 2 * len(self.kin)
        sds = np.zeros(causes)
        sds[:2] = priors.draft_mean_sd, priors.gain_sd
        self.quality, self.style = np.zeros((len(self.kin), causes)), np.zeros((len(self.kin), causes))
        self.quality_mean, self.style_mean = np.zeros(len(self.kin)), np.zeros(len(self.kin))
        for i, text in enumerate(self.kin):
            sds[2 + 2 * i], sds[3 + 2 * i] = self.grow(i, text)
        self.sources = np.diag(sds**2)

    def grow(self, i, text):
        """Fill in a text's rows; the standard deviations of its own causes."""
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

    def given(self, grades):
        """Means and covariances of all qualities after grades: (text, share of a look's noise, score)."""
        seen = [i for i, _, _ in grades]
        noise = np.diag([n * self.p.noise_sd**2 + 1e-12 for _, n, _ in grades])
        grade = self.quality[seen] + self.style[seen]
        cov = grade @ self.sources @ grade.T + noise
        both = self.quality @ self.sources @ grade.T
        surprise = np.array([score for *_, score in grades]) - self.quality_mean[seen] - self.style_mean[seen]
        means = self.quality_mean + both @ np.linalg.solve(cov, surprise)
        return means, self.quality @ self.sources @ self.quality.T - both @ np.linalg.solve(cov, both.T)

    def predicted(self, grades, i, noise):
        """The mean and the standard deviation of one more grade of a text."""
        row = self.quality[i] + self.style[i]
        seen = [j for j, _, _ in grades]
        grade = self.quality[seen] + self.style[seen]
        cov = grade @ self.sources @ grade.T + np.diag([n * self.p.noise_sd**2 + 1e-12 for _, n, _ in grades])
        told = np.linalg.solve(cov, grade @ self.sources @ row)
        surprise = np.array([score for *_, score in grades]) - self.quality_mean[seen] - self.style_mean[seen]
        mean = self.quality_mean[i] + self.style_mean[i] + told @ surprise
        return mean, sqrt(row @ self.sources @ row + noise * self.p.noise_sd**2 - told @ (grade @ self.sources @ row))

    def gain(self, grades, i, rival, *, look):
        """What one more grade of a text adds: the best of two after it, over the better (or the rival) before it."""
        mean, sd = self.predicted(grades, i, self.share)
        leads = []
        for score in (mean, mean + sd):
            after, _ = self.given([*grades, (i, self.share, score)])
            leads.append(after[i] - after[rival])
        lead, slope = leads[0], abs(leads[1] - leads[0])
        if look:
            lead = -abs(lead)
        if slope < 1e-9:
            return max(lead, 0.0)
        return slope * NormalDist().pdf(lead / slope) + lead * NormalDist().cdf(lead / slope)


def grades_of(known):
    graded = [(i, kin.noise_weight) for i, kin in enumerate(known.shape.nodes) if kin.noise_weight is not None]
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
    """Texts each after its parent, some of them not graded, some looked at more than once."""
    share, kin, scores = draw(shares), [], []
    for i in range(draw(st.integers(1, most))):
        role = draw(st.sampled_from(["generate", "refine", "refine", "repair"])) if i else "generate"
        parent = None if role == "generate" else draw(st.integers(0, i - 1))
        looks = draw(st.sampled_from([1, 1, 1, 2, 3, 0]))
        kin.append(Node(role, parent, share / looks if looks else None))
        if looks:
            scores.append(draw(st.integers(0, 20)) / 20)
    assume(scores)
    return Observations(TreeShape(tuple(kin), share), tuple(scores), {i: i for i in range(len(kin))})


@settings(max_examples=150, deadline=None)
@given(families(), priors)
def test_what_is_believed_is_the_conditional_distribution(known, prior):
    """Means and spreads are those of a Gaussian given the grades, worked out from the causes."""
    belief = Posterior(known, prior)
    means, cov = Dense(known.shape.nodes, known.shape.repeat_noise_weight, prior).given(grades_of(known))
    for i in belief.means:
        assert belief.means[i] == pytest.approx(min(1.0, max(0.0, means[i])), abs=ROUNDED)
        assert belief.sds[i] ** 2 == pytest.approx(cov[i, i], abs=1e-8)


@settings(max_examples=150, deadline=None)
@given(families(), priors, st.data())
def test_the_gain_of_a_text_is_that_of_the_better_of_two_after_its_grade(known, prior, data):
    """A text anew or from any parent, beside whichever is the best."""
    texts = range(len(known.shape.nodes))
    rival, parent = data.draw(st.sampled_from(texts)), data.draw(st.sampled_from([None, *texts]))
    role = "generate" if parent is None else data.draw(st.sampled_from(["refine", "repair"]))
    dense = Dense([*known.shape.nodes, Node(role, parent, None)], known.shape.repeat_noise_weight, prior)
    due = dense.gain(grades_of(known), len(texts), rival, look=False)
    assert Posterior(known, prior).value_of_candidate(role, parent, rival) == pytest.approx(due, abs=1e-8)


@settings(max_examples=150, deadline=None)
@given(families(), priors, st.data())
def test_the_gain_of_a_look_is_that_of_the_better_of_two_after_it(known, prior, data):
    """A look at either of two, over the one that is ahead before it."""
    texts = range(len(known.shape.nodes))
    assume(len(texts) > 1)
    one, other = data.draw(st.permutations(texts))[:2]
    due = Dense(known.shape.nodes, known.shape.repeat_noise_weight, prior).gain(grades_of(known), one, other, look=True)
    assert Posterior(known, prior).value_of_repeat(one, other) == pytest.approx(due, abs=1e-8)


@settings(max_examples=60, deadline=None)
@given(families(), priors, st.data(), st.floats(0.1, 3))
def test_two_are_told_apart_by_the_spread_of_their_difference(known, prior, data, deviations):
    """Kin go up and down together: their difference is surer than either of them."""
    texts = range(len(known.shape.nodes))
    assume(len(texts) > 1)
    one, other = data.draw(st.permutations(texts))[:2]
    means, cov = Dense(known.shape.nodes, known.shape.repeat_noise_weight, prior).given(grades_of(known))
    sd = sqrt(max(0.0, cov[one, one] + cov[other, other] - 2 * cov[one, other]))
    lead = abs(means[one] - means[other])
    assume(abs(lead - deviations * sd) > 1e-6)
    assert Posterior(known, prior).is_separated(one, other, deviations) == (lead > deviations * sd)


def test_gains_are_what_a_simulation_finds():
    """Worlds are drawn, grades made in them, and the better of two taken by what is then believed."""
    chance, p = random.Random(5), SHIPPED
    known = Observations(TreeShape((Node("generate", None, 1.0), Node("refine", 0, 1.0)), 1.0), (0.6, 0.7), {0: 0, 1: 1})
    belief, dense = Posterior(known, p), Dense([*known.shape.nodes, Node("refine", 1, None)], 1.0, p)
    grades = grades_of(known)
    mean, sd = dense.predicted(grades, 2, 1.0)
    found = []
    for _ in range(4000):
        after, _ = dense.given([*grades, (2, 1.0, chance.gauss(mean, sd))])
        found.append(max(0.0, after[2] - after[1]))
    assert belief.value_of_candidate("refine", 1, 1) == pytest.approx(fmean(found), abs=4 * stdev(found) / sqrt(len(found)))


def test_a_gain_is_the_mean_of_what_is_above_nothing():
    """Without a spread it is the lead itself; with one, even what is behind may gain."""
    assert expected_improvement(0.2, 0.0) == 0.2
    assert expected_improvement(-0.2, 0.0) == 0.0
    assert expected_improvement(0.0, 0.1) == pytest.approx(0.1 * NormalDist().pdf(0))
    assert 0 < expected_improvement(-0.2, 0.1) < expected_improvement(-0.1, 0.1)


def draft(id):
    return Candidate(id, f"text {id}", by="m", role="generate")


def child(id, parent, role="refine", text=None):
    return Candidate(id, text or f"text {id}", parent, by="m", role=role)


def said(id, score, grader="judge", look=0, **more):
    return Feedback(score, candidate=id, grader=grader, repeat=look, **more)


def believed(panel, *records, prior=SHIPPED):
    return Posterior(observe(Trace(Task("q"), tuple(panel), records)), prior)


@st.composite
def checked_traces(draw):
    """Texts that a grader scored which computes; few different scores, so that there are ties."""
    records = []
    for i in range(draw(st.integers(1, 8))):
        role = draw(st.sampled_from(["generate", "refine", "repair"])) if i else "generate"
        records.append(draft(i) if role == "generate" else child(i, draw(st.integers(0, i - 1)), role))
        records.append(said(i, draw(st.sampled_from([0.0, 0.25, 0.5, 0.7, 1.0])), "check"))
    return Trace(Task("q"), (CHECK,), tuple(records))


@settings(max_examples=100, deadline=None)
@given(checked_traces())
def test_what_is_computed_is_believed(trace):
    """A grader that asks nobody is taken at its word, and the best is that of the plain rules, ties by age."""
    belief = Posterior(observe(trace), SHIPPED)
    assert belief.means == pytest.approx(trace.scores, abs=1e-6)
    assert all(sd < 1e-4 for sd in belief.sds.values())
    assert trace.with_scores(belief.means).best == trace.best


def test_a_perfect_repair_that_was_computed_reaches_a_perfect_target():
    """A repair hardly changes a quality, as a rule; what was measured counts for more."""
    belief = believed([CHECK], draft(0), said(0, 0.2, "check"), child(1, 0, "repair"), said(1, 1.0, "check"))
    assert belief.means == {0: 0.2, 1: 1.0}


@given(st.integers(2, 6), st.integers(0, 10), priors)
@settings(max_examples=60, deadline=None)
def test_of_equals_the_earliest_is_best(drafts, tenths, prior):
    """What was said alike of drafts is believed alike, to the last digit."""
    records = [r for i in range(drafts) for r in (draft(i), said(i, tenths / 10))]
    trace = Trace(Task("q"), (JUDGE,), tuple(records))
    assert trace.with_scores(Posterior(observe(trace), prior).means).best.id == 0


def test_more_looks_make_surer():
    """Every look narrows what is believed, the same words again too; a look that disagrees moves it."""
    looks = [said(0, 0.8, look=n) for n in range(5)]
    sds = [believed([JUDGE], draft(0), *looks[:n]).sds[0] for n in range(1, 6)]
    means = [believed([JUDGE], draft(0), *looks[:n]).means[0] for n in range(1, 6)]
    assert sds == sorted(sds, reverse=True) and len(set(sds)) == 5
    assert means == sorted(means) and means[-1] < 0.8
    assert believed([JUDGE], draft(0), *looks[:4], said(0, 0.2, look=4)).means[0] < means[3]


def test_a_look_does_not_tell_of_a_lasting_bias():
    """However often a grader looks, what it has for or against a text stays."""
    looks = [said(0, 0.8, look=n) for n in range(400)]
    assert believed([JUDGE], draft(0), *looks).sds[0] > 0.04


def test_the_order_of_records_decides_nothing():
    """What is believed depends on what was said, not on when."""
    texts = [draft(0), child(1, 0), draft(2)]
    words = [said(0, 0.3), said(0, 0.5, look=1), said(1, 0.9), said(2, 0.4)]
    found = [believed([JUDGE], *texts, *order) for order in permutations(words)]
    assert all((b.means, b.sds) == (found[0].means, found[0].sds) for b in found)
    backwards = believed([JUDGE], *reversed(words), *reversed(texts))
    assert (backwards.means, backwards.sds) == (found[0].means, found[0].sds)


def test_a_lucky_parent_is_seen_through_by_its_children():
    """Children that score lower than their parent lower it; better ones lift it."""
    alone = believed([JUDGE], draft(0), said(0, 0.9)).means[0]
    below = believed([JUDGE], draft(0), said(0, 0.9), child(1, 0), said(1, 0.5), child(2, 0), said(2, 0.4)).means[0]
    above = believed([JUDGE], draft(0), said(0, 0.9), child(1, 0), said(1, 1.0), child(2, 0), said(2, 1.0)).means[0]
    assert below < alone < above


def test_a_high_score_of_a_noisy_grader_is_held_back():
    """It is believed less than it says, and the less so the more noise there is."""
    quiet, loud = (believed([JUDGE], draft(0), said(0, 1.0), prior=Priors(noise_sd=sd)).means[0] for sd in (0.02, 0.3))
    assert SHIPPED.draft_mean < loud < quiet < 1.0


def test_a_copy_is_its_parent():
    """A refinement that changed nothing teaches nothing; so does one of it that changed nothing."""
    without = believed([JUDGE], draft(0), said(0, 0.6))
    same = believed([JUDGE], draft(0), said(0, 0.6), child(1, 0, text="text 0"), child(2, 1, text="text 0"))
    assert same.means == dict.fromkeys(range(3), without.means[0])
    assert same.sds == dict.fromkeys(range(3), without.sds[0])
    assert not same.is_separated(0, 2, 0.001)


def test_a_repair_keeps_nearly_all_of_a_quality():
    """What is said of a repair holds for the text it was made from; of a refinement, less so."""
    repair, refinement = (believed([JUDGE], draft(0), child(1, 0, role), said(1, 0.9)) for role in ("repair", "refine"))
    assert repair.means[0] == pytest.approx(repair.means[1], abs=0.02)
    assert abs(refinement.means[0] - refinement.means[1]) > 0.03


def test_a_must_gates_and_is_not_believed_in():
    """A must that computes says nothing of quality; the score beside it is as noisy as ever."""
    must = PanelGrader("form", must=True, model_free=True)
    with_it = believed([must, JUDGE], draft(0), said(0, 0.0, "form"), said(0, 0.7))
    assert with_it.means == believed([JUDGE], draft(0), said(0, 0.7)).means


def test_the_part_of_a_score_that_is_computed_has_no_noise():
    """The more of the weight lies on a grader that computes, the surer the whole; two judges are surer than one."""

    def sd_of(*seats):
        return believed(seats, draft(0), *(said(0, 0.7, seat.name) for seat in seats)).sds[0]

    one = sd_of(JUDGE)
    assert sd_of(JUDGE, PanelGrader("other")) < one
    assert sd_of(JUDGE, PanelGrader("check", 3.0, model_free=True)) < sd_of(JUDGE, CHECK) < one
    assert sd_of(JUDGE, PanelGrader("other", 100.0)) == pytest.approx(one, abs=0.002)


def test_sixty_texts_are_no_trouble():
    """Long chains, many children and many drafts: all finite, none below nothing."""
    chance = random.Random(3)
    for parents in (range(-1, 59), [-1] + [0] * 59, [-1] * 60, [-1] + [chance.randrange(i) for i in range(1, 60)]):
        records = [r for i, p in enumerate(parents) for r in (child(i, p) if p >= 0 else draft(i), said(i, chance.random()))]
        for panel in ([JUDGE], [PanelGrader("judge", model_free=True)]):
            belief = believed(panel, *records)
            told = [
                *belief.means.values(),
                *belief.sds.values(),
                belief.value_of_candidate("refine", 3, 5),
                belief.value_of_repeat(3, 5),
            ]
            assert all(map(isfinite, told))
            assert min(belief.sds.values()) >= 0


@pytest.mark.parametrize(
    "prior",
    [
        Priors(noise_sd=0),
        Priors(noise_sd=1e-3, bias_sd=0),
        Priors(noise_sd=0, bias_sd=0, step_sd=0),
        Priors(draft_mean_sd=0),
        Priors(draft_mean_sd=0, draft_sd=0, gain_sd=0, step_sd=0),
        Priors(draft_mean_sd=0, draft_sd=0, gain_sd=0, step_sd=0, noise_sd=0, bias_sd=0),
        Priors(draft_mean_sd=1, draft_sd=1, gain_sd=1, step_sd=1, noise_sd=1, bias_sd=1, bias_inheritance=1, retention=1),
        Priors(bias_inheritance=0, retention=0),
    ],
)
@pytest.mark.parametrize("scores", [(0.5,) * 6, (0.1, 0.9, 0.3, 0.3, 1.0, 0.0)])
def test_priors_at_their_ends_are_no_trouble(prior, scores):
    """Who is sure of something beforehand still gets numbers, and no gain below nothing."""
    texts = [draft(0), draft(1), child(2, 0), child(3, 2), child(4, 0, "repair"), draft(5)]
    belief = believed([JUDGE], *texts, *(said(i, score) for i, score in enumerate(scores)), prior=prior)
    assert all(isfinite(mean) and -1 <= mean <= 2 for mean in belief.means.values())
    assert all(isfinite(sd) and sd >= 0 for sd in belief.sds.values())
    gains = [
        belief.value_of_candidate("refine", 3, 0),
        belief.value_of_candidate("generate", None, 0),
        belief.value_of_repeat(0, 1),
        belief.value_of_repeat(4, 0),
    ]
    assert all(isfinite(gain) and gain >= 0 for gain in gains)
