"""Calibration: the map from scores to people's labels is monotone, its intervals cover labels that
it has not seen, and cards keep it.
"""

import json
import random
import re
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from in_process import run_in_process
from redraft.errors import ConfigError
from redraft.graders.cards import Card, Measure, calibration_for
from redraft.plans.quality.calibration import Calibration
from redraft.validation import fit_calibration, validate_sync
from redraft.validation.calibration import MAX_ERRORS

SHARES = st.floats(0, 1)
ROWS = st.lists(st.tuples(SHARES, SHARES, st.integers(0, 8)), min_size=3, max_size=70)
GOOD = Measure("Spearman", 0.9, 0.85, 0.94, 200, 0.0)


def unit(value):
    return min(1.0, max(0.0, value))


def draw_rows(rng, n, per_cluster=1, *, binary=False):
    """Return scores, labels and clusters: a lenient judge with noise, whose scores rise half as
    fast as labels.
    """
    rows = []
    for cluster in range(n // per_cluster):
        task = rng.gauss(0.5, 0.15)
        for _ in range(per_cluster):
            quality = unit(task + rng.gauss(0, 0.15))
            label = float(rng.random() < quality) if binary else unit(quality + rng.gauss(0, 0.1))
            rows.append((unit(0.35 + 0.5 * quality + rng.gauss(0, 0.08)), label, cluster))
    return tuple(zip(*rows, strict=True))


def fit(columns):
    scores, labels, clusters = columns
    return fit_calibration(scores, labels, clusters=clusters)


@settings(max_examples=60)
@given(ROWS, SHARES, SHARES, st.floats(0, 0.5), st.integers(1, 9))
def test_predictions_are_monotone_and_inside_their_intervals(rows, a, b, sd, candidates):
    """For any data: labels do not fall with the score, and intervals are within [0, 1] and grow
    with the number of candidates.
    """
    calibration = fit(tuple(zip(*rows, strict=True)))
    low, high = sorted((a, b))
    assert 0 <= calibration.expected_label(low) <= calibration.expected_label(high) <= 1
    for uncertainty in (None, sd):
        one, several = (calibration.predict(a, uncertainty, candidates=k) for k in (1, candidates))
        assert 0 <= one.interval[0] <= one.mean <= one.interval[1] <= 1
        assert several.interval[0] <= one.interval[0]
        assert several.interval[1] >= one.interval[1]
        assert (
            0
            < calibration.probability(high, a, uncertainty)
            <= calibration.probability(low, a, uncertainty)
            < 1
        )


@settings(max_examples=30)
@given(ROWS)
def test_a_calibration_survives_json(rows):
    """It is read back equal, and equal data give an equal calibration."""
    calibration = fit(tuple(zip(*rows, strict=True)))
    assert Calibration.from_data(json.loads(json.dumps(calibration.to_data()))) == calibration
    assert fit(tuple(zip(*rows, strict=True))) == calibration


@pytest.mark.slow(but_each=2)
@pytest.mark.parametrize(("per_cluster", "binary"), [(1, False), (4, False), (1, True)])
def test_intervals_cover_and_errors_fall(per_cluster, binary):
    """With 100 labels, 95 % intervals cover at least 92 % of other labels, and the mapped score has
    a lower error than the score.
    """
    rng, hits, errors = random.Random(3), [], []
    for _ in range(10):
        calibration = fit(draw_rows(rng, 100, per_cluster, binary=binary))
        for score, label, _ in zip(*draw_rows(rng, 200, per_cluster, binary=binary), strict=True):
            mean, (low, high) = calibration.predict(score)
            hits.append(low <= label <= high)
            errors.append(((mean - label) ** 2, (score - label) ** 2))
    assert fmean(hits) >= 0.92
    assert fmean(own for own, _ in errors) < (1 if binary else 0.8) * fmean(
        judge for _, judge in errors
    )
    assert binary or fmean(hits) <= 0.98  # 0/1 labels leave no choice but wide intervals


def test_the_highest_score_of_several_is_covered():
    """The map corrects the optimism of choosing: the best of four is covered, and its expected
    label is not too high.
    """
    rng, hits, ours, judges = random.Random(5), [], [], []
    for _ in range(15):
        calibration = fit(draw_rows(rng, 100))
        scores, labels, _ = draw_rows(rng, 200)
        for i in range(0, 200, 4):
            score, label = max(zip(scores[i : i + 4], labels[i : i + 4], strict=True))
            mean, (low, high) = calibration.predict(score)
            hits.append(low <= label <= high)
            ours.append(mean - label)
            judges.append(score - label)
    assert fmean(hits) >= 0.9
    assert abs(fmean(ours)) < 0.03 < fmean(judges)


def test_a_posterior_mean_is_not_shrunk_twice():
    """With known noise, the posterior mean of the judge's average score predicts as well as the
    score that it came from.
    """
    rng = random.Random(11)
    opinions = [unit(rng.gauss(0.6, 0.15)) for _ in range(1000)]
    scores, labels = (
        [unit(x + rng.gauss(0, 0.15)) for x in opinions],
        [unit(x + rng.gauss(0, 0.05)) for x in opinions],
    )
    calibration = fit_calibration(scores, labels, noise_sd=0.15)
    assert calibration == fit_calibration(scores, labels, noise_sd=0.15, repeats=1)
    assert calibration != fit_calibration(scores, labels, noise_sd=0.15, repeats=2)
    for score in (0.3, 0.6, 0.8):
        # as much noise as spread: half of a difference is noise
        posterior = 0.6 + 0.5 * (score - 0.6)
        assert calibration.predict(posterior, 0.15 * 0.5**0.5).mean == pytest.approx(
            calibration.predict(score).mean, abs=0.04
        )
    sure, unsure = (calibration.predict(0.6, sd).interval for sd in (0.01, 0.3))
    assert sure[1] - sure[0] < unsure[1] - unsure[0]


def test_few_and_uninformative_labels_say_little():
    """Three labels, or one cluster, give the interval (0, 1); equal labels are expected
    everywhere.
    """
    assert fit_calibration([0.2, 0.5, 0.9], [0.1, 0.5, 1.0]).predict(0.5).interval == (0.0, 1.0)
    one_cluster = fit_calibration([0.1, 0.5, 0.9] * 20, [0.0, 0.5, 1.0] * 20, clusters=["a"] * 60)
    assert one_cluster.predict(0.5).interval == (0.0, 1.0)
    assert one_cluster.error_sd is None
    equal = fit_calibration([i / 100 for i in range(100)], [1.0] * 100)
    assert equal.predict(0.2) == (pytest.approx(1.0, abs=0.02), pytest.approx((1.0, 1.0), abs=0.06))
    tied = fit_calibration([0.7] * 60, [0.0, 1.0] * 30)
    assert tied.predict(0.7).mean == pytest.approx(0.5)
    assert tied.predict(0.7).interval == (0.0, 1.0)


def test_an_exact_judge_is_left_alone():
    """Scores that equal the labels are mapped to themselves, without error; a judge that is always
    wrong is not believed.
    """
    scores = [i / 100 for i in range(101)]
    exact = fit_calibration(scores, scores)
    assert exact.predict(0.37).mean == pytest.approx(0.37, abs=0.01)
    assert exact.error_sd < 0.02
    reversed_judge = fit_calibration(scores, scores[::-1])
    assert (
        reversed_judge.expected_label(0)
        == reversed_judge.expected_label(1)
        == pytest.approx(0.5, abs=0.01)
    )


def test_a_step_is_found_with_many_labels():
    """The map is isotonic where that is better: labels that jump at one score are followed."""
    rng = random.Random(2)
    scores = [rng.random() for _ in range(400)]
    calibration = fit_calibration(scores, [float(score > 0.8) for score in scores])
    assert calibration.expected_label(0.7) < 0.1
    assert calibration.expected_label(0.9) > 0.9
    assert len(calibration.errors) == MAX_ERRORS


def test_drift_is_the_gain_that_people_do_not_see():
    """Refinements gain 0.2 by the judge and 0.05 by people: the drift is 0.15."""
    rng = random.Random(4)
    scores, labels, parents, clusters = [], [], [], []
    for task in range(80):
        first = rng.uniform(0.2, 0.6)
        parents += [None, len(scores)]
        labels += [first, first + 0.05]
        scores += [first, first + 0.2 + rng.uniform(-0.1, 0.1)]
        clusters += [task, task]
    calibration = fit_calibration(scores, labels, parents=parents, clusters=clusters)
    assert calibration.drift == pytest.approx(0.15, abs=3 * calibration.drift_se)
    assert calibration.drift_se < 0.01
    assert calibration.drift_pairs == 80
    assert fit_calibration(scores, labels).drift is None


WRONG = [
    ({"scores": [0.1, 0.2]}, "equally long"),
    ({"scores": [0.1, 0.2], "labels": [0.1, 0.2]}, "at least 3 labels, got 2"),
    ({"scores": [0.1, float("nan"), 0.2]}, r"scores\[1\] must be a number in \[0, 1\], got nan"),
    ({"scores": [0.1, None, 0.2]}, r"scores\[1\].*got None"),
    ({"labels": [0.1, 5, 0.2]}, r"labels\[1\] must be a number in \[0, 1\], got 5"),
    ({"clusters": ["a"]}, "equally long"),
    ({"parents": [None, 7, None]}, r"parents\[1\].*7"),
    ({"noise_sd": -1}, "noise_sd"),
    ({"repeats": 0}, "repeats"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_wrong_arguments_are_named(changes, message):
    """The error has the argument, its place, what is allowed, and the value."""
    with pytest.raises(ConfigError, match=message):
        fit_calibration(**{"scores": [0.1, 0.5, 0.9], "labels": [0.0, 0.5, 1.0]} | changes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.predict(float("nan")), "score"),
        (lambda c: c.predict(0.5, -0.1), "sd"),
        (lambda c: c.predict(0.5, candidates=0), "candidates"),
        (lambda c: c.predict(0.5, confidence=1), "confidence"),
        (lambda c: c.probability(1.5, 0.5), "target"),
        (lambda c: replace(c, knots=((0.5, 0.1), (0.4, 0.2))), "knots"),
        (lambda c: Calibration.from_data(c.to_data() | {"labels": "many"}), "labels"),
        (lambda c: Calibration.from_data({}), "not a calibration"),
        (lambda c: replace(c, bias=1.5), "calibration: bias"),
        (lambda c: replace(c, drift_se=-0.1), "calibration: drift_se"),
        (lambda c: replace(c, drift_pairs=4), "calibration: drift_pairs"),
    ],
)
def test_wrong_questions_are_errors(call, message):
    """A question out of range, and data that are no calibration, are refused by name."""
    with pytest.raises(ConfigError, match=message):
        call(fit_calibration([0.1, 0.5, 0.9], [0.0, 0.5, 1.0]))


# ---- cards


def number_in(text: str) -> float:
    return float(text)


def rows_of(n, label):
    """Return labelled rows whose response holds its score."""
    rng = random.Random(9)
    scores = [round(rng.random(), 2) for _ in range(n)]
    return [
        {"id": str(i), "prompt": f"Task {i // 2}", "response": str(s), "label": label(s)}
        for i, s in enumerate(scores)
    ]


@pytest.mark.parametrize(
    ("n", "label", "options", "expected"),
    [
        (120, lambda s: 0.2 + 0.5 * s, {}, 0.45),
        (120, lambda s: 1 + 4 * (0.2 + 0.5 * s), {"scale": (1, 5)}, 0.45),
        (120, lambda s: 1 + 4 * (0.2 + 0.5 * s), {}, None),
        (120, lambda s: s > 0.4, {}, 1.0),
        (99, lambda s: 0.2 + 0.5 * s, {}, None),
    ],
    ids=["shares", "stars", "unknown scale", "pass", "99 labels"],
)
@pytest.mark.slow
def test_a_card_of_100_labels_holds_a_calibration(tmp_path, n, label, options, expected):
    """Labels are taken on the scale from 0 to 1; without a known scale, or with fewer labels, there
    is no calibration.
    """
    result = validate_sync(rows_of(n, label), number_in, cards_dir=tmp_path, **options)
    card = Card.from_json((result.save_card() / "card.json").read_text(), "card.json")
    assert card.calibration == result.calibration == calibration_for(card)
    assert ("people's labels (n = 120)" in (result.card_folder / "card.md").read_text()) == (
        expected is not None
    )
    if expected is None:
        assert result.calibration is None
        assert "calibration" not in json.loads(card.to_json())
    else:
        assert result.calibration.expected_label(0.5) == pytest.approx(expected, abs=0.1)
        assert result.calibration.clusters == 60


@pytest.mark.slow
def test_the_command_prints_the_calibration(tmp_path):
    """Its bias and its error, beside that of the score itself."""
    (tmp_path / "graders.py").write_text("def number_in(text):\n    return float(text)\n")
    rows = rows_of(120, lambda s: 0.2 + 0.5 * s)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run_in_process(
        ["validate", "rows.jsonl", "--grader", "graders.py:number_in", "--cards-dir", "cards"],
        cwd=tmp_path,
    )
    assert re.search(
        r"calibrated by people's labels \(n = 120\): bias \+0\.\d+, error 0\.\d+", done.out
    )
    (tmp_path / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:99]))
    done = run_in_process(
        ["validate", "few.jsonl", "--grader", "graders.py:number_in", "--cards-dir", "cards"],
        cwd=tmp_path,
    )
    assert "not calibrated to people's labels: that takes 100 labels" in " ".join(done.out.split())


@pytest.mark.slow
def test_a_parent_column_shows_drift(tmp_path):
    """A row names the row that it refines; the card has the drift of those with both labels."""
    rows = rows_of(120, lambda s: 0.5 * s)
    rows = [{**row, "parent": "" if i % 2 == 0 else str(i - 1)} for i, row in enumerate(rows)]
    result = validate_sync(rows, number_in, cards_dir=tmp_path)
    assert result.calibration.drift_pairs == 60


@pytest.mark.parametrize(("headline", "known"), [(GOOD, True), (replace(GOOD, low=-0.1), False)])
def test_only_a_trusted_card_calibrates(headline, known):
    """The card of a grader that may be no better than chance says nothing about people's labels."""
    calibration = fit_calibration([0.1, 0.5, 0.9], [0.0, 0.5, 1.0])
    card = Card(
        "g",
        "f",
        "m",
        "2026-01-02",
        "d",
        "s",
        "live",
        "score",
        200,
        0,
        headline,
        calibration=calibration,
    )
    assert (calibration_for(card) is not None) == known
    assert calibration_for(None) is None
