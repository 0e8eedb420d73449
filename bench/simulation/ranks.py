"""Where defaults stand in all worlds: ranks, differences paired by world, and the worlds where ours
loses.

The default of `refine` is ranked with five others in each world; what a batch has learned takes its
place among them. A mean over worlds has the standard error of the worlds: no two share their luck.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from .catalogue import EARLIER, LEARNED, LEARNED_64, REFINE, RIVALS, default_after
from .figures import Figure, mean
from .goals import default_point, goal

OURS = (REFINE, default_after(LEARNED_64), default_after(LEARNED))
FIRST_IN, OF = 13, 22  # in so many of so many worlds our default must be first
LOWEST_RANK = 3
ABOVE_EARLIER = 0.015


class Standing(NamedTuple):
    """A default in a world: its rank by mean quality, and how far it is below the first, paired by
    task (0 if it is the first itself). `ahead` are the better ones with their lead.
    """

    rank: int
    below: Figure
    ahead: dict[str, Figure]

    @property
    def is_first(self):
        """Whether it is first or within a standard error of the first."""
        return self.below.value <= self.below.error


class Ranking(NamedTuple):
    """A default in all worlds. `above` is how much better it is than the default of `refine`,
    paired by world; `first` and `lowest` count and compare its ranks.
    """

    calls: Figure
    quality: Figure
    above: Figure
    rank: Figure
    first: int
    lowest: int


def world_standing(policies, name):
    """Return where a default stands among the six in a world."""
    own = default_point(policies, name)
    rivals = [REFINE, *RIVALS] if name in RIVALS else RIVALS
    leads = {
        rival: quality_above(default_point(policies, rival), own)
        for rival in rivals
        if rival != name
    }
    ahead = {rival: lead for rival, lead in leads.items() if lead.value > 0}
    below = max(ahead.values(), key=lambda lead: lead.value, default=Figure(0.0, 0.0))
    return Standing(1 + len(ahead), below, ahead)


def quality_above(point, other):
    """Return how much better the answers of a policy are than those of another one, paired by
    task.
    """
    pairs = zip(point.plays, other.plays, strict=True)
    return mean([one.quality - another.quality for one, another in pairs])


def ranking(points, name):
    """Return how a default stands in all worlds."""
    standings = [world_standing(policies, name) for policies in points.values()]
    own, ours = (
        [default_point(policies, each) for policies in points.values()] for each in (name, REFINE)
    )
    return Ranking(
        mean([point.calls for point in own]),
        mean([point.quality for point in own]),
        mean([a.quality - b.quality for a, b in zip(own, ours, strict=True)]),
        mean([place.rank for place in standings]),
        sum(place.is_first for place in standings),
        max(place.rank for place in standings),
    )


def rankings(points):
    """Return how each default stands in all worlds, the one with the highest mean quality first."""
    found = {name: ranking(points, name) for name in (*OURS, *RIVALS)}
    return dict(sorted(found.items(), key=lambda item: -item[1].quality.value))


def losses(points):
    """Return the standing of our default in the worlds where it is more than a standard error below
    the first.
    """
    found = {world: world_standing(policies, REFINE) for world, policies in points.items()}
    return {world: place for world, place in found.items() if not place.is_first}


class Across(NamedTuple):
    """All worlds together: how each default stands, and the worlds where ours loses."""

    rankings: dict[str, Ranking]
    losses: dict[str, Standing]

    @classmethod
    def from_points(cls, points):
        return cls(rankings(points), losses(points))

    def to_dict(self):
        return {
            field: {name: line._asdict() for name, line in lines.items()}
            for field, lines in self._asdict().items()
        }


def overall_goals(points):
    """Yield the goals for all worlds together with their results."""
    worlds = len(points)
    least = ceil(worlds * FIRST_IN / OF)
    for name in OURS:
        found = ranking(points, name)
        yield goal(
            f"{name}: worlds where it is first of six, or within a standard error",
            None,
            Figure(found.first, 0.0),
            least=least,
        )
        yield goal(f"{name}: lowest rank of six", None, Figure(found.lowest, 0.0), most=LOWEST_RANK)
        quality, calls = above_earlier(points, name)
        yield goal(f"{name}: quality above {EARLIER}", None, quality, least=ABOVE_EARLIER)
        yield goal(f"{name}: calls above {EARLIER}", None, calls, most=0.0)


def above_earlier(points, name):
    """Return how much better a default is than the earlier one, and how many more calls it makes,
    paired by world. Tuition is among the calls.
    """
    pairs = [
        (default_point(policies, name), default_point(policies, EARLIER))
        for policies in points.values()
    ]
    return (
        mean([point.quality - earlier.quality for point, earlier in pairs]),
        mean([point.calls - earlier.calls for point, earlier in pairs]),
    )
