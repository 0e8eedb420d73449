"""A trace as belief sees it: which text came from which, what was said of each, and how often somebody looked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..core.records import Feedback
from ..core.trace import PanelGrader, Trace


class Node(NamedTuple):
    """A text by its origin. `parent` is its place in the family; `noise` the variance of its score's noise, in terms of that
    of one look by one grader, None while it is not graded.
    """

    role: str
    parent: int | None
    noise_weight: float | None


class TreeShape(NamedTuple):
    """All of a family but its scores. `share`: the variance of one more look's noise, in the same terms."""

    nodes: tuple[Node, ...]
    repeat_noise_weight: float


class Observations(NamedTuple):
    """The texts of a task, each after its parent, and the scores of those that have one.

    `places` are those of the candidates by id; a text that was there already has that one's. `again`: how many looks there
    were at texts that had been looked at, and the sum of squares by which looks at the same text differ.
    """

    shape: TreeShape
    scores: tuple[float, ...]
    node_indices: Mapping[int, int]
    repeat_stats: tuple[int, float] = (0, 0.0)

    def score_at(self, index: int) -> float:
        """The score of the text in a place, where it has one."""
        return self.scores[sum(kin.noise_weight is not None for kin in self.shape.nodes[:index])]


def observe(trace: Trace) -> Observations:
    """The family of a trace's candidates. Graders that call no model have no noise; who said the same twice was looked at twice."""
    noisy = llm_graders(trace.scorers)
    places: dict[int, int] = {}
    texts: dict[tuple[object, ...], int] = {}
    origins: list[tuple[str, int | None]] = []
    grades: list[list[NoisyScore]] = []
    again: list[tuple[int, float]] = []
    for c in trace.candidates:
        place = places[c.id] = texts.setdefault(c.content_key, len(origins))
        if place == len(origins):
            origins.append((c.role, None if c.parent is None else places[c.parent]))
            grades.append([])
        score = trace.scores[c.id]
        if score is not None and not trace.is_unchanged(c):
            looks = [repeat_scores(trace.feedback[c.id], seat) for seat, _ in noisy]
            again += ((len(own) - 1, sum_sq(own)) for own in looks if len(own) > 1)
            grades[place].append(NoisyScore(score, noise_weight_of(looks, noisy)))
    again += ((len(some) - 1, between_sum_sq(some)) for some in grades if len(some) > 1 and some[0].noise_weight)
    whole = [pool_scores(some) if some else None for some in grades]
    kin = tuple(Node(*origin, grade and grade.noise_weight) for origin, grade in zip(origins, whole, strict=True))
    scores = tuple(grade.score for grade in whole if grade)
    shape = TreeShape(kin, sum(share**2 for _, share in noisy))
    return Observations(shape, scores, places, (sum(more for more, _ in again), sum(squares for _, squares in again)))


def noise_weight_of(repeat_scores_by_grader: Iterable[Sequence[float]], graders: Iterable[tuple[PanelGrader, float]]) -> float:
    """The variance of a score's noise, in terms of that of one look by one grader."""
    return sum(share**2 / max(1, len(own)) for own, (_, share) in zip(repeat_scores_by_grader, graders, strict=True))


class NoisyScore(NamedTuple):
    """A score of a text, and the variance of its noise in terms of that of one look."""

    score: float
    noise_weight: float


def pool_scores(scores: Sequence[NoisyScore]) -> NoisyScore:
    """Several grades of one text as one: each counts by how exact it is."""
    if len(scores) == 1:
        return scores[0]
    if not all(grade.noise_weight for grade in scores):
        return NoisyScore(sum(grade.score for grade in scores) / len(scores), scores[0].noise_weight)
    exact = sum(1 / grade.noise_weight for grade in scores)
    return NoisyScore(sum(grade.score / grade.noise_weight for grade in scores) / exact, 1 / exact)


def between_sum_sq(scores: Sequence[NoisyScore]) -> float:
    """The sum of squares by which grades of one text differ, in terms of one look."""
    mean = pool_scores(scores).score
    return sum((grade.score - mean) ** 2 / grade.noise_weight for grade in scores)


def llm_graders(panel: Iterable[PanelGrader]) -> list[tuple[PanelGrader, float]]:
    """The graders whose word depends on chance, with their shares in the score of a candidate: those that ask a model."""
    scoring = [seat for seat in panel if not seat.compares]
    counted = [seat for seat in scoring if not seat.must] or scoring
    whole = sum(seat.weight for seat in counted)
    return [(seat, seat.weight / whole) for seat in counted if not seat.model_free]


def repeat_scores(views: Iterable[Feedback], grader: PanelGrader) -> list[float]:
    """The scores of a grader's looks at a text; where a jury is one grader asked again and again, every vote is one."""
    return [score for f in views if f.grader == grader.name for score in vote_scores(f) if score is not None]


def vote_scores(view: Feedback) -> list[float | None]:
    """The scores of which a view was made; of graders that look at different things, its own."""
    votes = [vote for vote in view.votes if isinstance(vote, Feedback)]
    return [vote.score for vote in votes] if len(votes) > 1 and len({vote.grader for vote in votes}) == 1 else [view.score]


def sum_sq(scores: Sequence[float]) -> float:
    """The sum of squared distances from the mean."""
    mean = sum(scores) / len(scores) if scores else 0.0
    return sum((score - mean) ** 2 for score in scores)
