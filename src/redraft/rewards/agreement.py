"""The agreement of a judge with computing graders and with labels, followed over a training run.

A policy may learn to please the judge and not to answer better (reward hacking). Then the judge's
order of the answers departs from the order by what can be computed or was labelled. Agreement is
the share of pairs of answers that both order alike, of those that both distinguish (the area under
the curve, where the other scores are 0 and 1). The latest answers are compared with the first.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from math import sqrt
from typing import TypeAlias

log = logging.getLogger("redraft.rewards")
WINDOW = 100  # answers at the beginning, and the latest, that are compared
MIN_ANSWERS = 30  # fewer say nothing
MIN_FALL = 0.1  # of the share; less is no reason to look
STANDARD_ERRORS = 3.0  # by which the share must have fallen: it is looked at after every step
Scores: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Agreement:
    """The share of pairs of answers that two graders order alike, from 0 to 1 (0.5 by chance), and
    its standard error, as if the answers were independent.
    """

    share: float
    error: float


def agreement_of(scores: list[Scores]) -> Agreement | None:
    """Return how far two graders agree, by both scores of each answer; None if too few answers
    have different scores.
    """
    n = len(scores)
    signs = [(a - c) * (b - d) for (a, b), (c, d) in combinations(scores, 2)]
    alike, differing = sum(sign > 0 for sign in signs), sum(sign < 0 for sign in signs)
    if n < MIN_ANSWERS or alike + differing < n:
        return None
    # the variance of Kendall's tau without ties, of which the share is a half, for the pairs left
    error = sqrt((4 * n + 10) / (9 * n * (n - 1))) / 2 * sqrt(len(signs) / (alike + differing))
    return Agreement(alike / (alike + differing), error)


@dataclass
class _Series:
    """The scores that two graders gave to the same answers, at the beginning and latest."""

    first: list[Scores] = field(default_factory=list)
    latest: deque[Scores] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def start_again(self) -> None:
        """Compare with the latest answers from now on, to warn of a further fall only."""
        self.first = [*self.latest]
        self.latest.clear()

    def add(self, scores: Scores) -> None:
        (self.first if len(self.first) < WINDOW else self.latest).append(scores)


class AgreementTracker:
    """Follows the agreement of judges with computing graders and with labels.

    A fall is logged as a warning of the logger "redraft.rewards", and counted in OpenTelemetry if
    the program has configured that (`redraft.rewards.agreement`, `redraft.rewards.falls`).
    """

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], _Series] = {}

    def add(self, judges: Mapping[str, float | None], others: Mapping[str, float | None]) -> None:
        """Add the scores of one answer: of the judges, and of what they are compared with."""
        for judge, score in judges.items():
            for other, value in others.items():
                if score is not None and value is not None:
                    self._series.setdefault((judge, other), _Series()).add((score, value))

    def latest(self) -> dict[tuple[str, str], float]:
        """Return the agreement of each pair of graders on the latest answers, where it is known;
        warn of those that fell. Called after each step.
        """
        found: dict[tuple[str, str], float] = {}
        for pair, series in self._series.items():
            before, now = agreement_of(series.first), agreement_of(list(series.latest))
            current = now or before
            if current:
                found[pair] = current.share
                _record_agreement(pair, current.share)
            if before and now and _has_fallen(before, now):
                _warn(pair, before, now)
                series.start_again()
        return found


def _has_fallen(before: Agreement, now: Agreement) -> bool:
    margin = STANDARD_ERRORS * sqrt(before.error**2 + now.error**2)
    return now.share < before.share - max(MIN_FALL, margin)


def _warn(pair: tuple[str, str], before: Agreement, now: Agreement) -> None:
    log.warning(
        "%s orders answers as %s does in %.0f%% of pairs, and did in %.0f%% at the beginning: "
        "the policy may have learned to please the judge (reward hacking); read some answers",
        *pair,
        100 * now.share,
        100 * before.share,
    )
    count("redraft.rewards.falls", 1, {"grader": pair[0], "other": pair[1]})


def _record_agreement(pair: tuple[str, str], share: float) -> None:
    if "opentelemetry" in sys.modules:
        from opentelemetry import metrics

        gauge = metrics.get_meter("redraft").create_gauge("redraft.rewards.agreement", "1")
        gauge.set(share, {"grader": pair[0], "other": pair[1]})


def count(name: str, amount: int, attributes: Mapping[str, str]) -> None:
    """Count something in OpenTelemetry, if the program has imported that to configure it."""
    if "opentelemetry" in sys.modules:
        from opentelemetry import metrics

        metrics.get_meter("redraft").create_counter(name).add(amount, dict(attributes))
