"""Figures of what was played, with their standard errors. The tasks are the same for every policy, so differences are paired."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import sqrt
from operator import attrgetter
from statistics import fmean, stdev
from typing import NamedTuple


class Figure(NamedTuple):
    """A number and its standard error; None where there is none."""

    value: float | None
    error: float | None = None

    def __str__(self):
        return "-" if self.value is None else f"{self.value:.3f} ± {self.error:.3f}"

    @property
    def signed(self):
        return "-" if self.value is None else f"{self.value:+.3f} ± {self.error:.3f}"


def mean(values):
    """Of what is known."""
    known = [value for value in values if value is not None]
    if not known:
        return Figure(None)
    return Figure(fmean(known), stdev(known) / sqrt(len(known)) if len(known) > 1 else 0.0)


def decile(values):
    """The value that a tenth lies below, and its error by the ranks around it."""
    ordered, n = sorted(values), len(values)
    at, wide = n // 10, max(1, round(sqrt(n * 0.09)))
    low, high = ordered[max(0, at - wide)], ordered[min(n - 1, at + wide)]
    return Figure(ordered[at], (high - low) / 2)


@dataclass(frozen=True)
class Point:
    """A policy at one setting: what it played, task by task."""

    setting: float
    plays: tuple

    @cached_property
    def calls(self):
        return fmean(played.calls for played in self.plays)

    @cached_property
    def quality(self):
        return fmean(played.quality for played in self.plays)


class Mix(NamedTuple):
    """A policy between two of its settings: `share` of the tasks at the second, whichever they are."""

    low: Point
    high: Point
    share: float = 0.0

    def each(self, field):
        """A field of every task; None where the policy does not say."""
        ends = zip(*([getattr(played, field) for played in point.plays] for point in (self.low, self.high)), strict=True)
        return [None if a is None or b is None else a + self.share * (b - a) for a, b in ends]

    @property
    def slope(self):
        """What a call more adds to the quality here."""
        more = self.high.calls - self.low.calls
        return (self.high.quality - self.low.quality) / more if more else 0.0

    def decile(self):
        low, high = (decile([played.quality for played in point.plays]) for point in (self.low, self.high))
        return Figure(*(a + self.share * (b - a) for a, b in zip(low, high, strict=True)))

    def summary(self):
        return {
            "calls": mean(self.each("calls")),
            "quality": mean(self.each("quality")),
            "p10": self.decile(),
            "reported_minus_latent": mean(self.each("too_high")),
            "says_reached": mean(self.each("reached")),
            "false_convergence": mean(self.each("false")),
        }


def alone(point):
    return Mix(point, point)


def at_calls(points, calls):
    """The policy at so many calls a task in the mean; its nearest end where it makes fewer at most, or more at least."""
    ordered = sorted(points, key=attrgetter("calls"))
    for low, high in pairwise(ordered):
        if low.calls <= calls <= high.calls:
            return Mix(low, high, (calls - low.calls) / (high.calls - low.calls or 1.0))
    return alone(ordered[0] if calls < ordered[0].calls else ordered[-1])


def at_quality(points, quality):
    """The policy where it first reaches a quality, by calls; None where it never does."""
    ordered = sorted(points, key=attrgetter("calls"))
    if ordered[0].quality >= quality:
        return alone(ordered[0])
    for low, high in pairwise(ordered):
        if low.quality < quality <= high.quality:
            return Mix(low, high, (quality - low.quality) / (high.quality - low.quality))
    return None


def lead(points, rival):
    """How much better a policy is than its rival at the rival's calls. The error counts that their calls differ by chance, too."""
    ours = at_calls(points, fmean(rival.each("calls")))
    better = zip(ours.each("quality"), rival.each("quality"), strict=True)
    dearer = zip(ours.each("calls"), rival.each("calls"), strict=True)
    gaps = [(a - b, c - d) for (a, b), (c, d) in zip(better, dearer, strict=True)]
    return Figure(fmean(gap for gap, _ in gaps), mean(gap - ours.slope * more for gap, more in gaps).error)


def thrift(points, rival):
    """A policy's calls to reach its rival's quality, as a share of the rival's calls."""
    ours, calls = at_quality(points, fmean(rival.each("quality"))), fmean(rival.each("calls"))
    if ours is None:
        return Figure(None)
    spent, steep = ours.each("calls"), ours.slope or float("inf")
    ratio = fmean(spent) / calls
    better = zip(ours.each("quality"), rival.each("quality"), strict=True)
    terms = zip(spent, better, rival.each("calls"), strict=True)
    return Figure(ratio, mean((c - (a - b) / steep - ratio * d) / calls for c, (a, b), d in terms).error)
