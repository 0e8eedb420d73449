"""Reduce a trace to what the measurement model needs: the tree of texts, their scores and how noisy each score is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..core.records import Candidate, Comparison, Feedback
from ..core.trace import PanelGrader, Trace


class Node(NamedTuple):
    """A text: its role, the index of its parent, and the noise variance of its score as a multiple of noise_sd**2.

    `noise_weight` is None for a text without a score.
    """

    role: str
    parent: int | None
    noise_weight: float | None


class TreeShape(NamedTuple):
    """The texts of a task without their scores. `repeat_noise_weight` is the noise weight of one score by every judge."""

    nodes: tuple[Node, ...]
    repeat_noise_weight: float


class Observations(NamedTuple):
    """The texts of a task, parents first, and the scores of those that have one.

    `node_indices` maps candidate ids to nodes; candidates with the same content share a node. `repeat_stats` are the
    degrees of freedom and the sum of squared deviations of repeated scores of the same text.
    """

    shape: TreeShape
    scores: tuple[float, ...]
    node_indices: Mapping[int, int]
    repeat_stats: tuple[int, float] = (0, 0.0)

    def score_at(self, index: int) -> float:
        """Return the score of the node with this index, which must have one."""
        return self.scores[sum(node.noise_weight is not None for node in self.shape.nodes[:index])]


def observe(trace: Trace) -> Observations:
    """Return the observations in a trace. Identical texts are pooled: their scores count as repeats.

    Graders that call no model have no noise.
    """
    noisy_graders = llm_graders(trace.scorers)
    node_indices: dict[int, int] = {}
    index_by_content: dict[tuple[object, ...], int] = {}
    origins: list[tuple[str, int | None]] = []
    scores_by_node: list[list[NoisyScore]] = []
    repeat_stats: list[tuple[int, float]] = []
    for c in trace.candidates:
        index = node_indices[c.id] = index_by_content.setdefault(c.content_key, len(origins))
        if index == len(origins):
            origins.append((c.role, None if c.parent is None else node_indices[c.parent]))
            scores_by_node.append([])
        score = trace.scores[c.id]
        if score is not None and not trace.is_unchanged(c):
            repeats = [repeat_scores(trace.feedback[c.id], grader) for grader, _ in noisy_graders]
            repeat_stats += ((len(scores) - 1, sum_sq(scores)) for scores in repeats if len(scores) > 1)
            scores_by_node[index].append(NoisyScore(score, noise_weight_of(repeats, noisy_graders)))
    repeat_stats += (
        (len(scores) - 1, between_sum_sq(scores)) for scores in scores_by_node if len(scores) > 1 and scores[0].noise_weight
    )
    pooled = [pool_scores(scores) if scores else None for scores in scores_by_node]
    nodes = tuple(Node(*origin, score and score.noise_weight) for origin, score in zip(origins, pooled, strict=True))
    shape = TreeShape(nodes, sum(share**2 for _, share in noisy_graders))
    known_scores = tuple(score.score for score in pooled if score)
    degrees, squares = sum(n for n, _ in repeat_stats), sum(squares for _, squares in repeat_stats)
    return Observations(shape, known_scores, node_indices, (degrees, squares))


def noise_weight_of(repeat_scores_by_grader: Iterable[Sequence[float]], graders: Iterable[tuple[PanelGrader, float]]) -> float:
    """Return the noise variance of a weighted score as a multiple of noise_sd**2."""
    return sum(share**2 / max(1, len(scores)) for scores, (_, share) in zip(repeat_scores_by_grader, graders, strict=True))


class NoisyScore(NamedTuple):
    """A score of a text and its noise variance as a multiple of noise_sd**2."""

    score: float
    noise_weight: float


def pool_scores(scores: Sequence[NoisyScore]) -> NoisyScore:
    """Return the mean of several scores of one text, weighted by their precision."""
    if len(scores) == 1:
        return scores[0]
    if not all(s.noise_weight for s in scores):
        return NoisyScore(sum(s.score for s in scores) / len(scores), scores[0].noise_weight)
    precision = sum(1 / s.noise_weight for s in scores)
    return NoisyScore(sum(s.score / s.noise_weight for s in scores) / precision, 1 / precision)


def between_sum_sq(scores: Sequence[NoisyScore]) -> float:
    """Return the sum of squared deviations between scores of one text, each scaled to the noise of one score."""
    mean = pool_scores(scores).score
    return sum((s.score - mean) ** 2 / s.noise_weight for s in scores)


def llm_graders(panel: Iterable[PanelGrader]) -> list[tuple[PanelGrader, float]]:
    """Return the graders that call a model, whose scores are noisy, each with its share in a candidate's score."""
    pointwise = [grader for grader in panel if not grader.compares]
    weighted = [grader for grader in pointwise if not grader.must] or pointwise
    total_weight = sum(grader.weight for grader in weighted)
    return [(grader, grader.weight / total_weight) for grader in weighted if not grader.model_free]


def repeat_scores(feedback: Iterable[Feedback], grader: PanelGrader) -> list[float]:
    """Return a grader's repeated scores of one text; for a jury of one grader asked several times, each vote is one."""
    return [score for f in feedback if f.grader == grader.name for score in vote_scores(f) if score is not None]


def vote_scores(feedback: Feedback) -> list[float | None]:
    """Return the scores of the votes behind a feedback; its own score if the votes come from different graders."""
    votes = [vote for vote in feedback.votes if isinstance(vote, Feedback)]
    return [vote.score for vote in votes] if len(votes) > 1 and len({vote.grader for vote in votes}) == 1 else [feedback.score]


def sum_sq(scores: Sequence[float]) -> float:
    """Return the sum of squared deviations from the mean."""
    mean = sum(scores) / len(scores) if scores else 0.0
    return sum((score - mean) ** 2 for score in scores)


def comparison_winner(trace: Trace, pair: Sequence[Candidate]) -> int | None:
    """Return the id of the candidate that won more comparisons of the pair; None for a tie. Inconsistent ones do not count."""
    ids = tuple(sorted(c.id for c in pair))
    comparisons = [r for r in trace.records if isinstance(r, Comparison) and tuple(sorted(r.ranking)) == ids]
    ranks = [comparison.ranks for comparison in comparisons if comparison.consistent is not False]
    lead = sum((r[ids[0]] < r[ids[1]]) - (r[ids[0]] > r[ids[1]]) for r in ranks)
    return ids[0] if lead > 0 else ids[1] if lead < 0 else None
