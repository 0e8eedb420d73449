"""Reduce a trace to what the measurement model needs: the tree of texts, their scores and how noisy
each score is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from ...loop.records import Candidate, Comparison, Feedback
from ...loop.trace import PanelGrader, Trace
from .likelihood import (
    COARSE_STEP,
    ScoreInterval,
    common_step,
    has_interval,
    is_interval,
    score_bounds,
    score_interval,
)

# of what is not known about the quality from which on a judge gives the next higher level, or the
# highest
THRESHOLD_SD = 0.1


class Node(NamedTuple):
    """A text: its role, the index of its parent, and the noise variance of its score as a multiple
    of noise_sd**2.

    `noise_weight` is None for a text without a score.
    """

    role: str
    parent: int | None
    noise_weight: float | None


class TreeShape(NamedTuple):
    """The texts of a task without their scores. `repeat_noise_weight` is the noise weight of one
    score by every judge.

    `threshold_sd` is the standard deviation of what all scores have in common: for a judge with few
    levels, of its thresholds.
    """

    nodes: tuple[Node, ...]
    repeat_noise_weight: float
    threshold_sd: float = 0.0


class NoisyScore(NamedTuple):
    """A score of a text and its noise variance as a multiple of noise_sd**2."""

    score: float
    noise_weight: float


class BoundedScore(NamedTuple):
    """A score, and the bounds of the impression behind it; both are the score itself if it is a
    value.
    """

    score: float
    low: float
    high: float


class Observations(NamedTuple):
    """The texts of a task, parents first, and the scores of those that have one.

    `node_indices` maps candidate ids to nodes; candidates with the same content share a node.
    `repeat_stats` are the degrees of freedom and the sum of squared deviations of repeated scores
    of the same text.

    `intervals` are the scores of texts, by index, that only say between which bounds the judge's
    impression is; they are in `scores`, too, as if they were values. `values` are the other scores
    of texts, by index, if there are intervals. `coarse_step` is the step of a judge's scale with
    few levels, 0 for a fine one. `mixed_repeats` are the scores of each text with several of which
    one is an interval.
    """

    shape: TreeShape
    scores: tuple[float, ...]
    node_indices: Mapping[int, int]
    repeat_stats: tuple[int, float] = (0, 0.0)
    intervals: Mapping[int, tuple[ScoreInterval, ...]] = {}
    values: Mapping[int, NoisyScore] = {}
    coarse_step: float = 0.0
    mixed_repeats: tuple[tuple[BoundedScore, ...], ...] = ()

    def score_at(self, index: int) -> float:
        """Return the score of the node with this index, which must have one."""
        return self.scores[sum(node.noise_weight is not None for node in self.shape.nodes[:index])]

    @property
    def unscored_shape(self) -> TreeShape:
        """The texts without their scores."""
        return self.shape._replace(
            nodes=tuple([Node(role, parent, None) for role, parent, _ in self.shape.nodes])
        )


def observe(trace: Trace) -> Observations:
    """Return the observations in a trace. Identical texts are pooled: their scores count as
    repeats.

    Graders that call no model have no noise.
    """
    noisy_graders = llm_graders(trace.scorers)
    single_weight = sum([share**2 for _, share in noisy_graders])
    node_indices: dict[int, int] = {}
    index_by_content: dict[tuple[object, ...], int] = {}
    texts: list[ScoredText] = []
    repeat_stats: list[tuple[int, float]] = []
    feedback, observed, unchanged = trace.feedback, trace.scores, trace.unchanged_ids
    for c in trace.candidates:
        index = node_indices[c.id] = index_by_content.setdefault(c.content_key, len(texts))
        if index == len(texts):
            texts.append(ScoredText(c.role, None if c.parent is None else node_indices[c.parent]))
        score = observed[c.id]
        if score is None or c.id in unchanged:
            continue
        weight, text = single_weight, texts[index]
        by_grader = [repeat_scores(feedback[c.id], grader) for grader, _ in noisy_graders]
        for scores in by_grader:
            text.single_scores += scores
            if len(scores) > 1:
                weight = noise_weight_of(by_grader, noisy_graders)
                repeat_stats.append((len(scores) - 1, sum_sq(scores)))
        text.scores.append(NoisyScore(score, weight))
    for text in texts:
        if len(text.scores) > 1:
            repeat_stats += text.pool_scores()
    single_scores = [text.single_scores for text in texts]
    step = score_step(noisy_graders, single_scores)
    intervals, values = split_intervals(single_scores, step)
    coarse_step = step if step is not None and step >= COARSE_STEP else 0.0
    return Observations(
        TreeShape(
            tuple([text.node for text in texts]),
            single_weight,
            THRESHOLD_SD if coarse_step else 0.0,
        ),
        tuple([score.score for text in texts for score in text.scores]),
        node_indices,
        (sum([n for n, _ in repeat_stats]), sum([squares for _, squares in repeat_stats])),
        intervals,
        values,
        coarse_step,
        mixed_repeats(single_scores, step) if intervals and step is not None else (),
    )


@dataclass(slots=True)
class ScoredText:
    """A text with the scores of the candidates that have it, and each single score by a judge."""

    role: str
    parent: int | None
    scores: list[NoisyScore] = field(default_factory=list)
    single_scores: list[float] = field(default_factory=list)

    @property
    def node(self) -> Node:
        """The text in the tree, once its scores are pooled."""
        return Node(self.role, self.parent, self.scores[0].noise_weight if self.scores else None)

    def pool_scores(self) -> list[tuple[int, float]]:
        """Replace several scores by their mean; return how they spread, if they are noisy."""
        several = self.scores
        self.scores = [pool_scores(several)]
        is_noisy = bool(several[0].noise_weight)
        return [(len(several) - 1, between_sum_sq(several))] if is_noisy else []


def score_step(
    graders: Sequence[tuple[PanelGrader, float]], scores_by_node: Iterable[Iterable[float]]
) -> float | None:
    """Return the step of the scale on which a single judge scores: as declared, or by the scores
    seen.

    None if there is no judge, or if a score is the mean of several graders: its steps are finer
    than theirs.
    """
    if len(graders) != 1 or graders[0][1] < 1:
        return None
    declared = graders[0][0].score_step
    return declared if declared is not None else common_step(chain.from_iterable(scores_by_node))


def split_intervals(
    scores_by_node: Sequence[Sequence[float]], step: float | None
) -> tuple[dict[int, tuple[ScoreInterval, ...]], dict[int, NoisyScore]]:
    """Return the scores of each text that are intervals, and the mean of the others; both empty
    without an interval.
    """
    intervals: dict[int, tuple[ScoreInterval, ...]] = {}
    values: dict[int, NoisyScore] = {}
    if step is None or not has_interval(chain.from_iterable(scores_by_node), step):
        return intervals, values
    for i, scores in enumerate(scores_by_node):
        fine: list[float] = []
        for score in sorted(scores) if len(scores) > 1 else scores:
            if is_interval(score, step):
                intervals[i] = (*intervals.get(i, ()), score_interval(score, step))
            else:
                fine.append(score)
        if fine:
            values[i] = NoisyScore(sum(fine) / len(fine), 1 / len(fine))
    return intervals, values


def mixed_repeats(
    scores_by_node: Iterable[Sequence[float]], step: float
) -> tuple[tuple[BoundedScore, ...], ...]:
    """Return the scores of each text that has several, if one of them is an interval."""
    repeated = (sorted(scores) for scores in scores_by_node if len(scores) > 1)
    mixed = (scores for scores in repeated if has_interval(scores, step))
    return tuple(tuple(bounded_score(score, step) for score in scores) for scores in mixed)


def bounded_score(score: float, step: float) -> BoundedScore:
    """Return a score with the bounds of the impression behind it."""
    return BoundedScore(
        score, *(score_bounds(score, step) if is_interval(score, step) else (score, score))
    )


def noise_weight_of(
    repeat_scores_by_grader: Iterable[Sequence[float]], graders: Iterable[tuple[PanelGrader, float]]
) -> float:
    """Return the noise variance of a weighted score as a multiple of noise_sd**2."""
    return sum(
        share**2 / max(1, len(scores))
        for scores, (_, share) in zip(repeat_scores_by_grader, graders, strict=True)
    )


def pool_scores(scores: Sequence[NoisyScore]) -> NoisyScore:
    """Return the mean of several scores of one text, weighted by their precision."""
    if not all(s.noise_weight for s in scores):
        return NoisyScore(sum(s.score for s in scores) / len(scores), scores[0].noise_weight)
    precision = sum(1 / s.noise_weight for s in scores)
    return NoisyScore(sum(s.score / s.noise_weight for s in scores) / precision, 1 / precision)


def between_sum_sq(scores: Sequence[NoisyScore]) -> float:
    """Return the sum of squared deviations between scores of one text, each scaled to the noise of
    one score.
    """
    mean = pool_scores(scores).score
    return sum((s.score - mean) ** 2 / s.noise_weight for s in scores)


def llm_graders(panel: Iterable[PanelGrader]) -> list[tuple[PanelGrader, float]]:
    """Return the graders that call a model, whose scores are noisy, each with its share in a
    candidate's score.
    """
    pointwise = [grader for grader in panel if not grader.compares]
    weighted = [grader for grader in pointwise if not grader.must] or pointwise
    total_weight = sum([grader.weight for grader in weighted])
    return [(grader, grader.weight / total_weight) for grader in weighted if not grader.model_free]


def repeat_scores(feedback: Iterable[Feedback], grader: PanelGrader) -> list[float]:
    """Return a grader's repeated scores of one text; for a jury of one grader asked several times,
    each vote is one.
    """
    return [
        score
        for f in feedback
        if f.grader == grader.name
        for score in (vote_scores(f) if f.votes else (f.score,))
        if score is not None
    ]


def vote_scores(feedback: Feedback) -> list[float | None]:
    """Return the scores of the votes behind a feedback; its own score if the votes come from
    different graders.
    """
    if not feedback.votes:
        return [feedback.score]
    votes = [vote for vote in feedback.votes if isinstance(vote, Feedback)]
    return (
        [vote.score for vote in votes]
        if len(votes) > 1 and len({vote.grader for vote in votes}) == 1
        else [feedback.score]
    )


def sum_sq(scores: Sequence[float]) -> float:
    """Return the sum of squared deviations from the mean."""
    mean = sum(scores) / len(scores) if scores else 0.0
    return sum((score - mean) ** 2 for score in scores)


def comparison_winner(trace: Trace, pair: Sequence[Candidate]) -> int | None:
    """Return the id of the candidate that won more comparisons of the pair; None for a tie.
    Inconsistent ones do not count.
    """
    ids = tuple(sorted(c.id for c in pair))
    comparisons = [
        r for r in trace.records if isinstance(r, Comparison) and tuple(sorted(r.ranking)) == ids
    ]
    ranks = [comparison.ranks for comparison in comparisons if comparison.consistent is not False]
    lead = sum((r[ids[0]] < r[ids[1]]) - (r[ids[0]] > r[ids[1]]) for r in ranks)
    return ids[0] if lead > 0 else ids[1] if lead < 0 else None
