"""Figures of the policies, with standard errors. The tasks are the same for every policy, so
differences are paired.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import sqrt
from operator import attrgetter
from statistics import fmean, stdev
from typing import NamedTuple


class Figure(NamedTuple):
    """A number and its standard error; None: unknown."""

    value: float | None
    error: float | None = None

    def __str__(self):
        return "-" if self.value is None else f"{self.value:.3f} ± {self.error:.3f}"

    @property
    def signed(self):
        return "-" if self.value is None else f"{self.value:+.3f} ± {self.error:.3f}"


def mean(values):
    """Return the mean of the known values."""
    known = [value for value in values if value is not None]
    if not known:
        return Figure(None)
    return Figure(fmean(known), stdev(known) / sqrt(len(known)) if len(known) > 1 else 0.0)


def decile(values):
    """Return the 10 % quantile, and its error from the neighbouring ranks."""
    ordered, n = sorted(values), len(values)
    at, wide = n // 10, max(1, round(sqrt(n * 0.09)))
    low, high = ordered[max(0, at - wide)], ordered[min(n - 1, at + wide)]
    return Figure(ordered[at], (high - low) / 2)


@dataclass(frozen=True)
class Point:
    """A policy at one setting, with its results by task."""

    setting: float
    plays: tuple

    @cached_property
    def calls(self):
        return fmean(played.calls for played in self.plays)

    @cached_property
    def quality(self):
        return fmean(played.quality for played in self.plays)


class Mix(NamedTuple):
    """A policy between two of its settings: a `share` of the tasks at the second."""

    low: Point
    high: Point
    share: float = 0.0

    def each(self, field):
        """Return a field of every task; None where the policy reports none."""
        ends = zip(
            *(
                [getattr(played, field) for played in point.plays]
                for point in (self.low, self.high)
            ),
            strict=True,
        )
        return [None if a is None or b is None else a + self.share * (b - a) for a, b in ends]

    @property
    def slope(self):
        """What one more call adds to the quality here."""
        more = self.high.calls - self.low.calls
        return (self.high.quality - self.low.quality) / more if more else 0.0

    def decile(self):
        low, high = (
            decile([played.quality for played in point.plays]) for point in (self.low, self.high)
        )
        return Figure(*(a + self.share * (b - a) for a, b in zip(low, high, strict=True)))

    def share_of(self, field):
        """Return the mean of a field over the tasks that have it, which need not be the same at
        both settings.
        """
        low, high = (
            mean([getattr(played, field) for played in point.plays])
            for point in (self.low, self.high)
        )
        if low.value is None or high.value is None:
            return low if high.value is None else high
        return Figure(*(a + self.share * (b - a) for a, b in zip(low, high, strict=True)))

    def summary(self):
        return {
            "calls": mean(self.each("calls")),
            "rounds": mean(self.each("rounds")),
            "quality": mean(self.each("quality")),
            "p10": self.decile(),
            "reported_minus_latent": mean(self.each("overestimate")),
            "reporting_error": mean(self.each("distance")),
            "coverage": self.share_of("covered"),
            "truly_reached": mean(self.each("good")),
            "says_reached": mean(self.each("reached")),
            "recall": self.share_of("recalled"),
            "false_claims": self.share_of("false_claim"),
            "false_convergence": mean(self.each("false")),
            "failed": mean(self.each("failed")),
            "failed_graded": mean(self.each("failed_graded")),
            "ungraded": mean(self.each("ungraded")),
        }


def single_setting(point):
    return Mix(point, point)


def swept(points):
    """Return the settings of a policy that no other one beats at as many calls or fewer, as a user
    chooses who knows them all.
    """
    best, kept = float("-inf"), []
    for point in sorted(points, key=lambda point: (point.calls, -point.quality)):
        if point.quality > best:
            best = point.quality
            kept.append(point)
    return kept


def at_calls(points, calls):
    """Return the policy at a mean number of calls a task; at its nearest setting if it never makes
    that many or that few.
    """
    ordered = sorted(points, key=attrgetter("calls"))
    for low, high in pairwise(ordered):
        if low.calls <= calls <= high.calls:
            return Mix(low, high, (calls - low.calls) / (high.calls - low.calls or 1.0))
    return single_setting(ordered[0] if calls < ordered[0].calls else ordered[-1])


def at_quality(points, quality):
    """Return the policy with the fewest calls that reaches a quality; None if it never does."""
    ordered = sorted(points, key=attrgetter("calls"))
    if ordered[0].quality >= quality:
        return single_setting(ordered[0])
    for low, high in pairwise(ordered):
        if low.quality < quality <= high.quality:
            return Mix(low, high, (quality - low.quality) / (high.quality - low.quality))
    return None


def lead(points, rival):
    """Return how much better a policy is at its rival's calls. The error includes the random
    difference of their calls.
    """
    ours = at_calls(points, fmean(rival.each("calls")))
    better = zip(ours.each("quality"), rival.each("quality"), strict=True)
    extra_calls = zip(ours.each("calls"), rival.each("calls"), strict=True)
    gaps = [(a - b, c - d) for (a, b), (c, d) in zip(better, extra_calls, strict=True)]
    return Figure(
        fmean(gap for gap, _ in gaps), mean(gap - ours.slope * more for gap, more in gaps).error
    )


def calls_ratio(points, rival):
    """Return a policy's calls to reach its rival's quality, as a share of the rival's calls."""
    ours, calls = at_quality(points, fmean(rival.each("quality"))), fmean(rival.each("calls"))
    if ours is None:
        return Figure(None)
    spent, steep = ours.each("calls"), ours.slope or float("inf")
    ratio = fmean(spent) / calls
    better = zip(ours.each("quality"), rival.each("quality"), strict=True)
    terms = zip(spent, better, rival.each("calls"), strict=True)
    return Figure(
        ratio, mean((c - (a - b) / steep - ratio * d) / calls for c, (a, b), d in terms).error
    )
