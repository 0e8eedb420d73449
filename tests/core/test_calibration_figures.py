"""Every public method of a calibration gives the figure that numpy computes from the formulas of
quality/README.md.
"""

import json
from dataclasses import fields, replace
from itertools import product
from math import ceil, inf, nan, sqrt

import numpy as np
import pytest

from each_row import each_row
from redraft.errors import ConfigError
from redraft.loop.trace import PanelGrader
from redraft.plans.quality.calibration import Calibration, label_spread, labels_text, mapped_label
from redraft.plans.quality.labelled_figures import LabelledFigures, labelled_figures, shrunk_move
from redraft.plans.quality.priors import Priors
from redraft.validation import fit_calibration

BENT = Calibration(
    labels=40,
    clusters=40,
    knots=((0.1, 0.05), (0.4, 0.3), (0.6, 0.3), (0.9, 1.0)),
    errors=tuple(np.round(np.sort(np.random.default_rng(2).normal(0, 0.4, 40)), 3).tolist()),
    label_mean=0.4,
    score_mean=0.55,
    score_sd=0.2,
    bias=0.15,
    error_sd=0.12,
    score_error_sd=0.25,
)
THINNED = replace(BENT, labels=500, errors=BENT.errors)  # of 500 labels, 40 errors are kept
CALIBRATIONS = {
    "noise unknown": BENT,
    "no noise": replace(BENT, noise_sd=0.0),
    "noise of one score": replace(BENT, noise_sd=0.1),
    "noise of the mean of four": replace(BENT, noise_sd=0.1, repeats=4.0),
    "noise of 1.5 scores": replace(BENT, noise_sd=0.1, repeats=1.5),
    "more noise than the scores vary": replace(BENT, noise_sd=0.3),
    "scores that do not vary": replace(BENT, noise_sd=0.1, score_sd=0.0),
    "a single cluster": replace(BENT, noise_sd=0.1, error_sd=None),
    "an exact map": replace(BENT, noise_sd=0.1, error_sd=0.0),
    "few errors of many labels": THINNED,
    "few labels": replace(BENT, labels=5, errors=BENT.errors[::8]),
    "no errors": replace(BENT, errors=()),
    "one knot": replace(BENT, knots=((0.5, 0.7),), noise_sd=0.1),
    "labels of one kind": replace(BENT, label_mean=1.0),
    "labels outside the scale": replace(BENT, knots=((0.0, -0.5), (1.0, 1.5)), noise_sd=0.1),
}
SCORES, SDS = (-0.4, 0.1, 0.25, 0.55, 0.77, 1.3), (None, 0.0, 0.02, 0.3)


class ByNumpy:
    """The formulas of the README, "From scores to people's labels"."""

    def __init__(self, calibration):
        self.c = c = calibration
        known = bool(c.noise_sd) and bool(c.score_sd)
        self.reliability = max(0.3, 1 - c.noise_sd**2 / c.repeats / c.score_sd**2) if known else 1.0
        self.left_open = sqrt(self.reliability / c.repeats) * c.noise_sd if c.noise_sd else 0.0

    def map(self, score):
        return float(np.clip(np.interp(score, *zip(*self.c.knots, strict=True)), 0, 1))

    def of_average(self, average):
        return self.map(self.c.score_mean + (average - self.c.score_mean) / self.reliability)

    def lam(self, average, sd):
        return (self.of_average(average + sd) - self.of_average(average - sd)) / 2

    def mean_and_scale(self, score, sd):
        if sd is None:
            return self.map(score), 1.0
        if not self.c.error_sd:
            return self.of_average(score), 1.0
        change = (
            self.lam(score, sd) ** 2 - self.lam(score, self.left_open) ** 2
        ) / self.c.error_sd**2
        return self.of_average(score), sqrt(max(0.25, 1 + change))

    def spread(self, mean):
        return sqrt(max(self.c.label_mean * (1 - self.c.label_mean) / 3, 0.01) + mean * (1 - mean))

    def interval(self, mean, scale, confidence):
        k = ceil((self.c.labels + 1) * confidence - 1e-9)
        if k > self.c.labels or not self.c.errors:
            return (0.0, 1.0)
        size = np.quantile(np.abs(self.c.errors), k / self.c.labels - 1e-12, method="inverted_cdf")
        half = size * scale * self.spread(mean)
        return (max(0.0, mean - half), min(1.0, mean + half))

    def reaching(self, target, mean, scale):
        lifted = mean + self.spread(mean) * scale * np.array(self.c.errors)
        return (np.sum(lifted >= target - 1e-9) + 0.5) / (len(self.c.errors) + 1)


def check_predictions(calibration):
    """`predict`, `probability`, `expected_label`, `interval_around`, `share_reaching` and
    `scale_of`.
    """
    reference = ByNumpy(calibration)
    for score, sd in product(SCORES, SDS):
        mean, scale = reference.mean_and_scale(score, sd)
        assert calibration.expected_label(score) == pytest.approx(reference.map(score), abs=1e-12)
        for candidates, confidence in ((1, 0.95), (5, 0.9), (1, 0.999)):
            due = reference.interval(mean, scale, 1 - (1 - confidence) / candidates)
            got = calibration.predict(score, sd, candidates=candidates, confidence=confidence)
            assert (got.mean, *got.interval) == pytest.approx((mean, *due), abs=1e-9), (
                score,
                sd,
                confidence,
            )
        for target in (0.0, 0.31, 1.0):
            assert calibration.probability(target, score, sd) == pytest.approx(
                reference.reaching(target, mean, scale), abs=1e-9
            )
    for mean, scale, confidence in product((0.0, 0.3, 1.0), (0.5, 1.0, 2.0), (0.5, 0.95)):
        due = reference.interval(mean, scale, confidence)
        assert calibration.interval_around(mean, scale, confidence) == pytest.approx(due, abs=1e-9)
        for target in (0.0, 0.3, 0.99):
            assert calibration.share_reaching(target, mean, scale) == pytest.approx(
                reference.reaching(target, mean, scale)
            )
    assert calibration.interval_around(0.3) == calibration.interval_around(0.3, 1.0, 0.95)
    assert calibration.share_reaching(0.5, 0.3) == calibration.share_reaching(0.5, 0.3, 1.0)
    error = calibration.error_sd
    for change in (-1.0, -0.01, 0.0, 0.02):
        due = sqrt(max(0.25, 1 + change / error**2)) if error else 1.0
        assert calibration.scale_of(change) == pytest.approx(due)


def check_data(calibration):
    """`to_data` and `from_data`."""
    data = json.loads(json.dumps(calibration.to_data()))
    assert Calibration.from_data(data) == calibration
    assert set(data) == {field.name for field in fields(Calibration)}


def check_source(calibration):
    assert (
        calibration.source
        == labels_text(calibration.labels)
        == f"people's labels (n = {calibration.labels})"
    )


CHECKS = {
    check_predictions: {
        "predict",
        "probability",
        "expected_label",
        "interval_around",
        "share_reaching",
        "scale_of",
    },
    check_data: {"to_data", "from_data"},
    check_source: {"source"},
}


@each_row("name", CALIBRATIONS)
@each_row("check", CHECKS, ids=lambda check: check.__name__)
def test_figures_of_a_calibration(check, name):
    """With the noise unknown, 0 or known, with and without a spread of the scores or of the
    errors.
    """
    check(CALIBRATIONS[name])


def test_every_public_method_of_a_calibration_has_a_check():
    """A new one needs a row in the table above."""
    public = {name for name in vars(Calibration) if not name.startswith("_")} - {
        field.name for field in fields(Calibration)
    }
    assert public == set().union(*CHECKS.values())


@pytest.mark.parametrize("score", SCORES)
def test_with_unknown_noise_a_score_is_looked_up_as_it_is(score):
    """Nothing says that it would be nearer to the mean; nor does a spread of 0 without noise."""
    for calibration in (BENT, replace(BENT, noise_sd=0.0)):
        assert (
            calibration.predict(score).mean
            == mapped_label(BENT.knots, score)
            == calibration.predict(score, 0.0).mean
        )


@pytest.mark.parametrize(
    ("labels", "confidence", "rank"),
    [
        (8, 0.9, None),
        (9, 0.9, 9),
        (18, 0.95, None),
        (19, 0.95, 19),
        (20, 0.95, 20),
        (39, 0.95, 38),
        (99, 0.99, 99),
        (98, 0.99, None),
    ],
)
def test_the_rank_of_a_conformal_interval(labels, confidence, rank):
    """90 % needs 9 labels and 95 % needs 19; with fewer the interval is the whole scale."""
    sizes = tuple(n / 1000 for n in range(1, labels + 1))
    calibration = replace(BENT, labels=labels, clusters=labels, errors=sizes, label_mean=0.5)
    spread = label_spread(0.5, 0.5)
    due = (0.0, 1.0) if rank is None else (0.5 - rank / 1000 * spread, 0.5 + rank / 1000 * spread)
    assert calibration.interval_around(0.5, 1.0, confidence) == pytest.approx(due)
    # the same but for rounding
    assert calibration.interval_around(0.5, 1.0, 1 - (1 - confidence)) == pytest.approx(due)


@pytest.mark.parametrize(
    ("mean", "half", "due"),
    [
        (0.5, 0.485, (0.0, 1.0)),
        (0.5, 0.475, (0.025, 0.975)),
        (0.9, 0.11, (0.79, 1.0)),
        (0.9, 0.07, (0.83, 0.97)),
        (0.1, 0.085, (0.0, 0.185)),
    ],
)
def test_an_interval_contains_the_end_of_the_scale_that_it_nearly_reaches(mean, half, due):
    error = half / label_spread(mean, 0.5)
    calibration = replace(BENT, errors=(error,) * 40, label_mean=0.5)
    assert calibration.interval_around(mean) == pytest.approx(due)


def test_intervals_cover_labels_of_0_and_1_that_the_score_says_nothing_about():
    """Intervals that ended a hair before 0 or 1 at one of the scores left out half of its labels."""
    levels = [0.2, 0.4, 0.6, 0.8, 1.0]
    for labels, seed in ((200, 90), (300, 50), (600, 53), (300, 57), (600, 24), (200, 94)):
        rng = np.random.default_rng(seed)
        scores = rng.choice(levels, labels)
        calibration = fit_calibration(scores.tolist(), rng.integers(0, 2, labels).tolist())
        intervals = [calibration.predict(score).interval for score in levels]
        assert intervals == [(0, 1)] * 5, f"{labels} labels, seed {seed}"


GOOD = BENT.to_data()
WRONG = {
    "labels": [0, -1, 1.5, True, None, "9"],
    "clusters": [0, 1.0],
    "label_mean": [-0.001, 1.001, nan, inf, None, True],
    "score_mean": [-0.001, 1.001],
    "score_sd": [-0.001, 1.001],
    "score_error_sd": [-0.001, 1.001],
    "error_sd": [-0.001, 1.001, nan],
    "noise_sd": [-0.001, 1.001],
    "bias": [-1.001, 1.001, nan],
    "repeats": [0.999, 0, nan],
    "drift_se": [-0.001],
    "drift_pairs": [-1, 41],
    "knots": [
        [],
        [[0.5, 0.5], [0.5, 0.6]],
        [[0.1, 0.6], [0.2, 0.5]],
        [[0.1, nan]],
        [[0.1]],
        [[0.1, 0.2, 0.3]],
        3,
    ],
    "errors": [[0.1, 0.0], [nan], [inf], "ab", 3],
    "unknown": [1],
}
RIGHT = {
    "labels": [40, 10**6],
    "label_mean": [0, 1],
    "score_sd": [0, 1],
    "error_sd": [None, 0, 1],
    "noise_sd": [None, 0, 1],
    "bias": [-1, 1],
    "repeats": [1, 1.5],
    "drift_se": [None, 0],
    "drift_pairs": [0, 40],
    "knots": [[[0.1, 0.6]], [[0.1, 0.6], [0.2, 0.6]]],
    "errors": [[], [0.1, 0.1]],
}


@pytest.mark.parametrize("name", WRONG)
def test_values_out_of_range_are_refused(name):
    """The ends of each range are values; beyond them is an error of the configuration, also as
    data.
    """
    for value in WRONG[name]:
        with pytest.raises(ConfigError):
            Calibration.from_data({**GOOD, name: value})
    for value in RIGHT.get(name, []):
        assert Calibration.from_data({**GOOD, name: value})


def test_a_value_that_is_left_out():
    """Values with a default may be missing; without one it is an error."""
    for field in fields(Calibration):
        data = {name: value for name, value in GOOD.items() if name != field.name}
        if field.name in {"noise_sd", "repeats", "drift", "drift_se", "drift_pairs"}:
            assert Calibration.from_data(data) == BENT
        else:
            with pytest.raises(ConfigError, match="not a calibration"):
                Calibration.from_data(data)


# ---- what labels say about the parameters of the model


@pytest.mark.parametrize(
    ("move", "error", "due"),
    [
        (0.0, 0.0, 0.0),
        (0.1, 0.1, 0.0),
        (-0.1, 0.1, 0.0),
        (0.1, 0.0, 0.1),
        (0.1, 0.05, 0.075),
        (-0.1, 0.05, -0.075),
        (0.05, 0.1, 0.0),
    ],
)
def test_a_move_less_its_error(move, error, due):
    """The positive part of a James-Stein estimate: move (1 - error^2 / move^2)."""
    assert shrunk_move(move, error) == pytest.approx(due)


JUDGE, COARSE, FINE = (
    PanelGrader("j"),
    PanelGrader("j", score_step=0.25),
    PanelGrader("j", score_step=0.2),
)
NOISY = replace(BENT, noise_sd=0.1, repeats=2.0)


@pytest.mark.parametrize(
    ("calibration", "judge", "noise", "due"),
    [
        (None, None, None, (None, None, None, None)),
        (None, JUDGE, (0.2, 50), (0.2, 0.02, None, None)),
        (None, FINE, (0.2, 50), (0.2, 0.02, None, None)),
        # a level does not show the impression behind it
        (None, COARSE, (0.2, 50), (None, None, None, None)),
        (NOISY, JUDGE, None, (0.1, 0.1 / sqrt(2 * 40), None, None)),
        # the calibration's own noise counts first
        (NOISY, JUDGE, (0.2, 50), (0.1, 0.1 / sqrt(2 * 40), None, None)),
        (replace(NOISY, repeats=3.5), JUDGE, None, (0.1, 0.1 / sqrt(2 * 100), None, None)),
        (replace(NOISY, repeats=1.0), JUDGE, (0.2, 50), (0.2, 0.02, None, None)),
        (replace(NOISY, noise_sd=0.0), JUDGE, (0.2, 50), (0.2, 0.02, None, None)),
        (NOISY, COARSE, (0.2, 50), (None, None, None, None)),
        (NOISY, FINE, None, (0.1, 0.1 / sqrt(2 * 40), None, None)),
        (NOISY, None, None, (0.1, 0.1 / sqrt(2 * 40), None, None)),
        (
            replace(BENT, drift=0.12, drift_se=0.05),
            JUDGE,
            None,
            (None, None, 0.02 + 0.1 * 0.75, 0.05),
        ),
        (
            replace(BENT, drift=-0.08, drift_se=0.05),
            COARSE,
            None,
            (None, None, 0.02 - 0.1 * 0.75, 0.05),
        ),
        (replace(BENT, drift=0.05, drift_se=0.05), JUDGE, None, (None, None, 0.02, 0.02)),
        (replace(BENT, drift=0.025, drift_se=0.01), JUDGE, None, (None, None, 0.02, 0.01)),
        (replace(BENT, drift=0.12, drift_se=None), JUDGE, None, (None, None, None, None)),
        (
            replace(NOISY, drift=0.12, drift_se=0.0),
            JUDGE,
            None,
            (0.1, 0.1 / sqrt(2 * 40), 0.12, 0.0),
        ),
    ],
)
def test_figures_by_labels(calibration, judge, noise, due):
    """The noise with its error by degrees of freedom; the drift as far as it exceeds its error."""
    found = labelled_figures(calibration, judge, noise)
    assert tuple(found) == tuple(None if value is None else pytest.approx(value) for value in due)


LEARNED = Priors(gain=0.3, bias_drift=0.05, noise_sd=0.2, tasks=7)


@pytest.mark.parametrize(
    ("figures", "priors", "due"),
    [
        ((), Priors(), (0.12, 0.03, 0.16)),
        # the noise is known, so that the shipped drift is too cautious
        ((0.2,), Priors(), (0.2, 0.02, 0.16)),
        ((0.2,), Priors(bias_drift=0.05), (0.2, 0.05, 0.16)),
        ((1.5,), Priors(), (1.0, 0.02, 0.16)),
        ((None, None, 0.1), Priors(), (0.12, 0.1, 0.16)),
        ((None, None, 0.1), LEARNED, (0.2, 0.1, 0.25)),  # scores show the sum of gain and drift
        ((None, None, -0.05), LEARNED, (0.2, -0.05, 0.4)),
        ((None, None, 1.5), Priors(), (0.12, 1.0, 0.16)),
        ((None, None, -1.5), Priors(), (0.12, -1.0, 0.16)),
        ((0.1,), replace(LEARNED, bias_drift=0.03), (0.1, 0.02, 0.31)),
        ((None, None, -0.9), replace(LEARNED, gain=0.9), (0.2, -0.9, 1.0)),
        ((None, None, 0.9), replace(LEARNED, gain=-0.9), (0.2, 0.9, -1.0)),
    ],
)
def test_priors_with_what_labels_show(figures, priors, due):
    """Noise, drift and gain; nothing else changes."""
    found = LabelledFigures(*figures).applied_to(priors)
    assert (found.noise_sd, found.bias_drift, found.gain) == pytest.approx(due)
    assert replace(found, noise_sd=0.0, bias_drift=0.0, gain=0.0) == replace(
        priors, noise_sd=0.0, bias_drift=0.0, gain=0.0
    )
