"""People's labels behind the beliefs of a plan: what people would say of each text of a task, by
the calibration of its judge.

The posterior estimates the quality of a text in points of the judge, from all scores of the task. A
calibration maps one score to a label. Both meet in the *equivalent score*: the one score of a first
draft that would lead to the same belief. With one draft that was scored once, the prediction is
the calibration's, whatever the priors are. README.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import sqrt
from typing import NamedTuple

from ...loop.trace import PanelGrader, Trace
from .calibration import Calibration, LabelPrediction
from .likelihood import score_interval
from .lineage import (
    THRESHOLD_SD,
    Node,
    Observations,
    TreeShape,
    llm_graders,
    vote_scores,
)
from .posterior import Posterior
from .priors import Priors

MIN_WEIGHT = (
    0.001  # of a score in a belief: below it, rounding of the belief decides its equivalent score
)


class Anchor(NamedTuple):
    """A belief after one score of a first draft: posterior mean (not limited to [0, 1]) and
    standard deviation, and that score.
    """

    mean: float
    sd: float
    score: float


@dataclass(frozen=True)
class LabelPosterior:
    """What people would say of the texts of a task.

    `drift` is the part of the labelled answers' scores, on average, that is kindness to
    refinements. `anchors` are beliefs after one score, ascending.
    """

    calibration: Calibration
    posterior: Posterior
    anchors: Sequence[Anchor]
    drift: float

    def prediction(self, candidate: int) -> LabelPrediction:
        """Return the label that people would give to a text: its expected value, and its 95%
        interval.
        """
        mean, scale = self._mean_and_scale(candidate)
        return LabelPrediction(mean, self.calibration.interval_around(mean, scale))

    def probability(self, candidate: int, target: float) -> float:
        """Return the probability that people's label of a text is at least `target`."""
        return self.calibration.share_reaching(target, *self._mean_and_scale(candidate))

    @cached_property
    def means(self) -> dict[int, float]:
        """The expected label of each text."""
        return {
            id: self._label(self.equivalent(self.posterior.unlimited_mean(id))[0])
            for id in self.posterior.means
        }

    def _mean_and_scale(self, candidate: int) -> tuple[float, float]:
        """Return the expected label, and the factor by which more or less evidence than one score
        changes its interval.
        """
        score, single_sd = self.equivalent(self.posterior.unlimited_mean(candidate))
        change = (
            self._label_sd(candidate, self.posterior.sd_of(candidate)) ** 2
            - self._label_sd(candidate, single_sd) ** 2
        )
        return self._label(score), self.calibration.scale_of(change)

    def _label_sd(self, candidate: int, sd: float) -> float:
        """Return the standard deviation of the expected label, given the quality's, `sd`."""
        low, high = (
            self._label(self.equivalent(self.posterior.unlimited_mean(candidate) + step)[0])
            for step in (-sd, sd)
        )
        return (high - low) / 2

    def _label(self, score: float) -> float:
        return self.calibration.expected_label(score + self.drift)

    def equivalent(self, mean: float) -> tuple[float, float]:
        """Return the one score of a first draft after which the quality is believed to be `mean`,
        and the sd of that belief.
        """
        segments = pairwise(self.anchors)
        low, high = next(segments)
        for segment in segments:
            if mean > high.mean:
                low, high = segment
        share = (mean - low.mean) / (high.mean - low.mean)
        inside = min(1.0, max(0.0, share))
        return low.score + share * (high.score - low.score), low.sd + inside * (high.sd - low.sd)


def label_posterior(
    trace: Trace, posterior: Posterior, calibration: Calibration, grader: str
) -> LabelPosterior | None:
    """Return what people would say of the texts of a trace; None unless the judge of the
    calibration alone makes the score.

    `grader`: the name of that judge; "" for any. Requirements and other musts do not count.
    """
    judge = only_judge(trace)
    if judge is None or grader not in {"", judge.name}:
        return None
    priors = posterior.tree.priors
    votes = next(
        (
            len(vote_scores(f))
            for each in trace.feedback.values()
            for f in each
            if f.grader == judge.name
        ),
        1,
    )
    anchors = anchors_after_one_score(priors, posterior.coarse_step, votes, calibration.repeats)
    if anchors[-1].mean - anchors[0].mean < MIN_WEIGHT * (anchors[-1].score - anchors[0].score):
        return None
    if calibration.drift is None:
        # the labelled answers do not say how often they were refined: taken as the answer that is
        # returned
        best = trace.best
        drift = posterior.prior_bias(best.id) if best and best.id in posterior.node_indices else 0.0
    else:
        drift = priors.bias_drift * calibration.drift_pairs / calibration.labels
    return LabelPosterior(calibration, posterior, anchors, drift)


def only_judge(trace: Trace) -> PanelGrader | None:
    """Return the judge that alone makes the score of a task; None if there is none, or if several
    graders make it.
    """
    judges = llm_graders(trace.scorers)
    return judges[0][0] if len(judges) == 1 and judges[0][1] == 1 else None


@lru_cache(maxsize=256)
def anchors_after_one_score(
    priors: Priors, coarse_step: float, votes: int, repeats: float
) -> list[Anchor]:
    """Return the beliefs after one score of a first draft, ascending. A score is the mean of
    `repeats` scores by `votes` each.

    On a fine scale the belief is linear in the score, and two anchors are enough; on a coarse one
    there is one for each score.
    """
    if not coarse_step:
        variance = priors.draft_mean_sd**2 + priors.draft_sd**2
        total = variance + priors.bias_sd**2 + priors.noise_sd**2 / (repeats * votes)
        weight = variance / total if total else 0.0
        sd = sqrt(variance * (1 - weight))
        return [
            Anchor(priors.draft_mean + weight * (score - priors.draft_mean), sd, score)
            for score in (0.0, 1.0)
        ]
    count = round(repeats * votes)
    levels = round(1 / coarse_step)
    return [
        anchor_after(even_split(total, count, levels), priors, coarse_step)
        for total in range(levels * count + 1)
    ]


def even_split(total: int, count: int, levels: int) -> list[float]:
    """Return `count` scores on a scale of so many levels above 0, as equal as possible, that sum to
    `total` levels.
    """
    low, higher = divmod(total, count)
    return [(low + (n < higher)) / levels for n in range(count)]


def anchor_after(scores: Sequence[float], priors: Priors, step: float) -> Anchor:
    """Return the belief about a first draft after these scores on a coarse scale."""
    intervals = {0: tuple(score_interval(score, step) for score in scores)}
    mean = sum(scores) / len(scores)
    shape = TreeShape((Node("generate", None, 1 / len(scores)),), 1.0, THRESHOLD_SD)
    posterior = Posterior(
        Observations(shape, (mean,), {0: 0}, (0, 0.0), intervals, {}, step), priors
    )
    return Anchor(posterior.unlimited_mean(0), posterior.sd_of(0), mean)
