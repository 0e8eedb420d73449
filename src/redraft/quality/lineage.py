"""A trace as belief sees it: which text came from which, what was said of each, and how often somebody looked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..core.records import Feedback
from ..core.trace import Seat, Trace


class Kin(NamedTuple):
    """A text by its origin. `parent` is its place in the family; `noise` the variance of its score's noise, in terms of that
    of one look by one grader, None while it is not graded.
    """

    role: str
    parent: int | None
    noise: float | None


class Shape(NamedTuple):
    """All of a family but its scores. `share`: the variance of one more look's noise, in the same terms."""

    kin: tuple[Kin, ...]
    share: float


class Family(NamedTuple):
    """The texts of a task, each after its parent, and the scores of those that have one.

    `places` are those of the candidates by id; a text that was there already has that one's. `again`: how many looks there
    were at texts that had been looked at, and the sum of squares by which looks at the same text differ.
    """

    shape: Shape
    scores: tuple[float, ...]
    places: Mapping[int, int]
    again: tuple[int, float] = (0, 0.0)

    def score_at(self, place: int) -> float:
        """The score of the text in a place, where it has one."""
        return self.scores[sum(kin.noise is not None for kin in self.shape.kin[:place])]


def family(trace: Trace) -> Family:
    """The family of a trace's candidates. Graders that call no model have no noise; who said the same twice was looked at twice."""
    noisy = noisy_among(trace.scorers)
    places: dict[int, int] = {}
    texts: dict[tuple[object, ...], int] = {}
    origins: list[tuple[str, int | None]] = []
    grades: list[list[Grade]] = []
    again: list[tuple[int, float]] = []
    for c in trace.candidates:
        place = places[c.id] = texts.setdefault(c.substance, len(origins))
        if place == len(origins):
            origins.append((c.role, None if c.parent is None else places[c.parent]))
            grades.append([])
        score = trace.scores[c.id]
        if score is not None and not trace.unchanged(c):
            looks = [looks_of(trace.feedback[c.id], seat) for seat, _ in noisy]
            again += ((len(own) - 1, scatter(own)) for own in looks if len(own) > 1)
            grades[place].append(Grade(score, noise_of(looks, noisy)))
    again += ((len(some) - 1, apart(some)) for some in grades if len(some) > 1 and some[0].noise)
    whole = [merged(some) if some else None for some in grades]
    kin = tuple(Kin(*origin, grade and grade.noise) for origin, grade in zip(origins, whole, strict=True))
    scores = tuple(grade.score for grade in whole if grade)
    shape = Shape(kin, sum(share**2 for _, share in noisy))
    return Family(shape, scores, places, (sum(more for more, _ in again), sum(squares for _, squares in again)))


def noise_of(looks: Iterable[Sequence[float]], noisy: Iterable[tuple[Seat, float]]) -> float:
    """The variance of a score's noise, in terms of that of one look by one grader."""
    return sum(share**2 / max(1, len(own)) for own, (_, share) in zip(looks, noisy, strict=True))


class Grade(NamedTuple):
    """A score of a text, and the variance of its noise in terms of that of one look."""

    score: float
    noise: float


def merged(grades: Sequence[Grade]) -> Grade:
    """Several grades of one text as one: each counts by how exact it is."""
    if len(grades) == 1:
        return grades[0]
    if not all(grade.noise for grade in grades):
        return Grade(sum(grade.score for grade in grades) / len(grades), grades[0].noise)
    exact = sum(1 / grade.noise for grade in grades)
    return Grade(sum(grade.score / grade.noise for grade in grades) / exact, 1 / exact)


def apart(grades: Sequence[Grade]) -> float:
    """The sum of squares by which grades of one text differ, in terms of one look."""
    mean = merged(grades).score
    return sum((grade.score - mean) ** 2 / grade.noise for grade in grades)


def noisy_among(panel: Iterable[Seat]) -> list[tuple[Seat, float]]:
    """The graders whose word depends on chance, with their shares in the score of a candidate: those that ask a model."""
    scoring = [seat for seat in panel if not seat.compares]
    counted = [seat for seat in scoring if not seat.must] or scoring
    whole = sum(seat.weight for seat in counted)
    return [(seat, seat.weight / whole) for seat in counted if not seat.free]


def looks_of(views: Iterable[Feedback], seat: Seat) -> list[float]:
    """The scores of a grader's looks at a text; where a jury is one grader asked again and again, every vote is one."""
    return [score for f in views if f.grader == seat.grader for score in votes_of(f) if score is not None]


def votes_of(view: Feedback) -> list[float | None]:
    """The scores of which a view was made; of graders that look at different things, its own."""
    votes = [vote for vote in view.votes if isinstance(vote, Feedback)]
    return [vote.score for vote in votes] if len(votes) > 1 and len({vote.grader for vote in votes}) == 1 else [view.score]


def scatter(scores: Sequence[float]) -> float:
    """The sum of squared distances from the mean."""
    mean = sum(scores) / len(scores) if scores else 0.0
    return sum((score - mean) ** 2 for score in scores)
