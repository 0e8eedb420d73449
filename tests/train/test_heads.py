"""Heads: what they are fitted to, what they say, and what they abstain from."""

import json
import random
from dataclasses import asdict
from math import log

import pytest

from redraft.errors import ConfigError, GradingError, StoreError
from redraft.train.fitting import Target, fit_head, ranked_targets
from redraft.train.head import Features, Head, HeadScore

RNG = random.Random(0)
QUALITY = [RNG.random() for _ in range(300)]
NAMES = ("judge", "noise")


def answers_of(qualities, error=0.1):
    """Answers that a judge scores with an error, beside a grader that says nothing."""
    rng = random.Random(1)
    return [
        Features({"judge": quality + rng.gauss(0, error), "noise": rng.random()})
        for quality in qualities
    ]


def single_labels(labels):
    return [Target(n, None, label, n) for n, label in enumerate(labels)]


def pairs_of(qualities):
    """Each answer with the next: people choose the better one."""
    return [
        Target(n, n + 1, float(qualities[n] > qualities[n + 1]), n)
        for n in range(0, len(qualities), 2)
    ]


KINDS = {
    "score": single_labels(QUALITY),
    "pass": single_labels([float(quality > 0.5) for quality in QUALITY]),
    "pair": pairs_of(QUALITY),
    "ranking": [
        target
        for n in range(0, len(QUALITY), 3)
        for target in ranked_targets(n, [sorted(QUALITY[n : n + 3], reverse=True).index(q) for q in QUALITY[n : n + 3]], n)
    ],
}  # fmt: skip


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_learns_what_counts(kind):
    """The score rises with the judge's, hardly moves with the noise, and lies in its interval."""
    fitted = fit_head(answers_of(QUALITY), KINDS[kind], NAMES)
    head, loss = fitted.head, fitted.loss
    assert loss < log(2) - 0.03
    low, high = (head.score(Features({"judge": x, "noise": 0.5})) for x in (0.2, 0.8))
    assert high.value - low.value > 0.4
    assert low.low < low.value < low.high < high.low < high.value < high.high
    quiet, loud = (head.score(Features({"judge": 0.5, "noise": x})) for x in (0.1, 0.9))
    assert abs(quiet.value - loud.value) < (high.value - low.value) / 3


def test_scores_are_labels():
    """Of kind score they are on the scale of the labels: the mean error is small, at both ends."""
    answers = answers_of(QUALITY)
    head = fit_head(answers, KINDS["score"], NAMES).head
    errors = [head.score(a).value - q for a, q in zip(answers, QUALITY, strict=True)]
    for part in (QUALITY, sorted(QUALITY)[:100], sorted(QUALITY)[-100:]):
        chosen = [e for e, q in zip(errors, QUALITY, strict=True) if q in part]
        assert abs(sum(chosen) / len(chosen)) < 0.1


@pytest.mark.slow
def test_the_average_answer_of_pairs_scores_a_half():
    """A score is the probability that people prefer the answer to the average one; what is said of
    the first and of the second weighs the same.
    """
    answers = answers_of(QUALITY)
    head = fit_head(answers, KINDS["pair"], NAMES).head
    middle = Features(dict(zip(head.names, head.center, strict=True)))
    assert head.score(middle).value == pytest.approx(0.5)
    turned = [Target(t.second, t.first, 1 - t.label, t.cluster) for t in KINDS["pair"]]
    other = fit_head(answers, turned, NAMES).head
    assert other.weights == pytest.approx(head.weights, abs=1e-3)


def test_noise_is_no_better_than_chance():
    """Nothing is learned from labels that no feature predicts."""
    rng = random.Random(5)
    labels = [float(rng.random() < 0.5) for _ in QUALITY]
    fitted = fit_head(answers_of(QUALITY), single_labels(labels), NAMES)
    head, loss = fitted.head, fitted.loss
    assert loss > log(2) - 0.01
    assert all(abs(head.score(each).value - 0.5) < 0.15 for each in answers_of(QUALITY)[:50])


@pytest.mark.slow
def test_clusters_are_whole_in_cross_validation():
    """A vector that only tells the tasks apart predicts nothing of other tasks."""
    rng = random.Random(2)
    label_of = {task: float(rng.random() < 0.5) for task in range(40)}
    answers, targets = [], []
    for n in range(200):
        task = n % 40
        answers.append(Features({}, tuple(float(task == other) for other in range(40))))
        targets.append(Target(n, None, label_of[task], task))
    assert fit_head(answers, targets, ()).loss > log(2) - 0.01
    alone = [replace_cluster(target, n) for n, target in enumerate(targets)]
    assert fit_head(answers, alone, ()).loss < 0.3


def replace_cluster(target, cluster):
    return target._replace(cluster=cluster)


@pytest.mark.slow
def test_more_features_than_labels():
    """A long vector with one direction that counts helps, and the graders beside it still count."""
    rng = random.Random(3)
    vectors = [[rng.gauss(0, 1) for _ in range(200)] for _ in range(100)]
    plain = [rng.random() for _ in vectors]
    answers = [Features({"judge": p}, tuple(v)) for p, v in zip(plain, vectors, strict=True)]
    labels = [float(4 * p - 2 + v[0] > 0) for p, v in zip(plain, vectors, strict=True)]
    both = fit_head(answers, single_labels(labels), ["judge"])
    assert both.loss < log(2) - 0.05
    assert both.head.vector_length == 200
    assert sorted(both.head.weights)[-2:] == sorted(both.head.weights[:2])


HEAD = fit_head(
    [Features({"judge": q}, (q, 1 - q)) for q in QUALITY], KINDS["score"], ["judge"]
).head

UNLIKE = {
    "a missing score": (Features({"judge": None}, (0.5, 0.5)), "judge is unknown"),
    "a missing grader": (Features({}, (0.5, 0.5)), "judge is unknown"),
    "a high score": (Features({"judge": 1.5}, (0.5, 0.5)), "judge is 1.5, and 0.00"),
    "a low score": (Features({"judge": -0.5}, (0.5, 0.5)), "judge is -0.5"),
    "no number": (Features({"judge": float("nan")}, (0.5, 0.5)), "judge is nan"),
    "no vector": (Features({"judge": 0.5}), "has 0 numbers, not 2"),
    "another model's vector": (Features({"judge": 0.5}, (0.1,) * 3), "has 3 numbers, not 2"),
    "a distant vector": (Features({"judge": 0.5}, (3.0, 3.0)), "further from the labelled"),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_a_head_abstains_from_what_it_has_not_seen(name):
    """It says why, and never guesses."""
    features, why = UNLIKE[name]
    problem = HEAD.score(features)
    assert isinstance(problem, str) and why in problem


def test_a_little_beyond_is_accepted():
    """A score up to a standard deviation beyond the labelled answers is no reason to abstain."""
    assert isinstance(HEAD.score(Features({"judge": max(QUALITY) + 0.2}, (1, 0))), HeadScore)


def test_a_head_survives_json():
    """What was written is read again, exactly."""
    assert Head.from_data(json.loads(json.dumps(asdict(HEAD)))) == HEAD


DAMAGE = {
    "no weights": {"weights": ()},
    "a weight too many": {"weights": (1.0,) * 4},
    "other ends": {"low": ()},
    "other samples": {"resamples": ((1.0,),)},
    "no samples": {"resamples": ()},
    "no spread": {"spread": (0.0, 1.0, 1.0)},
    "no features": {"names": (), "vector_length": 0},
    "texts": {"center": ("a", "b", "c")},
    "no list": {"resamples": 3},
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_heads_are_refused(name):
    """A file that something else wrote is an error when it is read, not when it grades."""
    with pytest.raises((ConfigError, StoreError)):
        Head.from_data({**asdict(HEAD), **DAMAGE[name]})


def test_too_little_to_learn_from():
    """Few tasks, and graders that always say the same, are errors."""
    with pytest.raises(GradingError, match="at least 10 tasks, and there are 9"):
        fit_head(answers_of(QUALITY), KINDS["score"][:9], NAMES)
    same = [Features({"judge": 0.5}) for _ in QUALITY]
    with pytest.raises(GradingError, match="nothing that the graders say differs"):
        fit_head(same, KINDS["score"], ["judge"])
