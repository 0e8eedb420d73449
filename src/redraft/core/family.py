"""A trace as belief sees it: which text came from which, what was said of each, and how often somebody looked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .records import Feedback
from .trace import Seat, Trace


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


def family(trace: Trace) -> Family:
    """The family of a trace's candidates. Graders that call no model have no noise."""
    noisy = noisy_among(trace.panel)
    places: dict[int, int] = {}
    first: dict[str, int] = {}  # the place of each text
    kin: list[Kin] = []
    scores: list[float] = []
    more, squares = 0, 0.0
    for c in trace.candidates:
        parent = None if c.parent is None else places[c.parent]
        twin = parent if parent is not None and trace.unchanged(c) else first.get(c.text)
        if twin is not None and (twin == parent or kin[twin].noise is not None):
            places[c.id] = twin
            continue
        looks = [looks_of(trace.feedback[c.id], seat) for seat, _ in noisy]
        noise, score = sum(share**2 / max(1, len(own)) for own, (_, share) in zip(looks, noisy, strict=True)), trace.scores[c.id]
        places[c.id] = first[c.text] = len(kin)
        kin.append(Kin(c.role, parent, None if score is None else noise))
        if score is not None:
            scores.append(score)
        more += sum(max(0, len(own) - 1) for own in looks)
        squares += sum(map(scatter, looks))
    return Family(Shape(tuple(kin), sum(share**2 for _, share in noisy)), tuple(scores), places, (more, squares))


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
