"""Diagnose a finished trace: one word for how it went, and the figures behind it (formulas:
README.md).

A pure function of the trace. Estimates and the prior noise come from the trace's outcome; the
noise is updated by repeated scores of the same text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import ceil, sqrt
from typing import NamedTuple

from ...loop.records import Candidate, StopReason
from ...loop.trace import SCORE_TOLERANCE, PanelGrader, Trace
from .likelihood import Z_95
from .lineage import Observations, comparison_winner, observe
from .priors import Priors

MIN_RELEVANT_GAIN = 0.1  # a gain that is smaller with 95% confidence counts as noise
PRIOR_PSEUDO_COUNT = 4  # degrees of freedom of the prior noise
DEFAULT_NOISE_SD = Priors().noise_sd  # for an outcome that names no noise


class DiagnosisKind(StrEnum):
    """The kinds of diagnosis, in order of precedence."""

    REACHED = "reached"
    BAD_CHECK = "bad check"
    REGRESSION = "regression"
    NOISE = "noise"
    TOO_FEW_REPEATS = "too few repeats"
    CEILING = "ceiling"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A diagnosis, and a sentence with the figures behind it."""

    kind: DiagnosisKind
    message: str


def diagnose(trace: Trace) -> Diagnosis | None:
    """Return the diagnosis of a finished trace; None if it was cut short or nothing stands out.

    - reached: the target score was reached, or the graders want no more changes.
    - bad check: at least two answers were written and none met a must, a requirement or a grader
      that calls no model.
    - regression: refinements lowered the score, on average by more than the graders' noise
      explains, and the best answer is not a refinement.
    - noise: the gain of the best answer over the first (if the first is the best: of the best
      other answer) is below 0.1 with 95% confidence, and may be zero. Graders that call no model
      have no noise.
    - too few repeats: noise explains the difference, but would also hide a gain of 0.1 or more.
    - ceiling: the latest refinements did not improve on the best answer.
    """
    end = trace.outcome
    if (
        end is None
        or end.reason.resumable
        or end.reason is StopReason.TOOL_CALLS
        or not trace.graded_candidates
        or trace.best is None
    ):
        return None
    if end.reason in {StopReason.TARGET, StopReason.DONE}:
        return Diagnosis(DiagnosisKind.REACHED, end.note)
    if len(trace.candidates) == 1:
        return None  # there is nothing to compare it with
    observations = observe(trace)
    noise = estimate_noise_sd(
        observations, DEFAULT_NOISE_SD if end.noise_sd is None else end.noise_sd
    )
    gain = gain_over_first(trace, observations, noise)
    messages = {
        DiagnosisKind.BAD_CHECK: unmet_checks_message(trace),
        DiagnosisKind.REGRESSION: regression_message(trace, observations, noise),
        DiagnosisKind.NOISE: within_noise_message(observations, gain, noise),
        DiagnosisKind.TOO_FEW_REPEATS: inconclusive_message(observations, gain, noise),
        DiagnosisKind.CEILING: plateau_message(trace, trace.best, observations),
    }
    return next((Diagnosis(kind, message) for kind, message in messages.items() if message), None)


class Gain(NamedTuple):
    """The score difference of two answers, and the half-width of its 95% interval by noise
    alone.
    """

    difference: float
    margin: float

    @property
    def is_significant(self) -> bool:
        """Whether the difference is larger than noise explains."""
        return self.difference - self.margin > SCORE_TOLERANCE

    @property
    def is_inconclusive(self) -> bool:
        """Whether it may be zero, and may be a relevant gain."""
        return (
            self.difference - self.margin <= SCORE_TOLERANCE
            and self.difference + self.margin >= MIN_RELEVANT_GAIN
        )


def has_significant_gain(trace: Trace) -> bool:
    """Whether the best answer scores above the first by more than noise explains."""
    observations, end = observe(trace), trace.outcome
    noise = estimate_noise_sd(
        observations, DEFAULT_NOISE_SD if end is None or end.noise_sd is None else end.noise_sd
    )
    gain = gain_over_first(trace, observations, noise)
    return gain is not None and gain.is_significant


def gain_over_first(trace: Trace, observations: Observations, noise: float) -> Gain | None:
    """Return the gain of the best answer over the first, or of the best other answer if the first
    is the best.

    None with fewer than two comparable answers. The margin grows with the number of answers,
    because the highest of several noisy scores is biased upwards (Bonferroni correction).
    """
    scored = [c for c in trace.candidates if trace.scores[c.id] is not None]
    best = trace.best
    if best not in scored or trace.must_pass_rate(best.id) != trace.must_pass_rate(scored[0].id):
        return None
    comparable = [
        observations.node_indices[c.id]
        for c in scored
        if trace.must_pass_rate(c.id) == trace.must_pass_rate(best.id)
    ]
    scores = {index: observations.score_at(index) for index in comparable}
    if len(scores) < 2:
        return None
    first, other = comparable[0], observations.node_indices[best.id]
    if other == first:
        other = max((index for index in scores if index != first), key=scores.__getitem__)
    noise_weight = sum(
        observations.shape.nodes[index].noise_weight or 0.0 for index in (first, other)
    )
    return Gain(
        scores[other] - scores[first], bonferroni_z(len(scores) - 1) * noise * sqrt(noise_weight)
    )


@cache
def bonferroni_z(n_comparisons: int) -> float:
    """Return the two-sided normal quantile for 95% with a Bonferroni correction for this many
    comparisons.
    """
    from statistics import NormalDist  # few programs need it

    return NormalDist().inv_cdf(1 - 0.025 / n_comparisons)


def selection_reason(trace: Trace) -> str:
    """Say why the best answer is not the one that graders scored highest; "" if it is."""
    best, rival = (
        trace.best,
        max(
            trace.graded_candidates, key=lambda c: (trace.scores[c.id] or 0.0, -c.id), default=None
        ),
    )
    if trace.outcome is None or best is None or rival is None:
        return ""
    lead = (trace.scores[rival.id] or 0.0) - (trace.scores[best.id] or 0.0)
    if lead <= SCORE_TOLERANCE:
        return ""
    reason = _preference_reason(trace, best, rival)
    return (
        f"answer {rival.id} was scored {lead:.2f} higher than answer {best.id}, which is the best "
        f"{reason}"
    )


def _preference_reason(trace: Trace, best: Candidate, rival: Candidate) -> str:
    if trace.must_pass_rate(best.id) > trace.must_pass_rate(rival.id):
        broken = [
            grader.name
            for grader in trace.scorers
            if grader.must and trace.grader_score(rival.id, grader) != 1
        ]
        return f"because it meets more musts: the other breaks {', '.join(broken)}"
    if comparison_winner(trace, [best, rival]) == best.id:
        return "because it won the comparison of the two"
    estimates = trace.with_estimates.scores
    if (estimates[best.id] or 0.0) > (estimates[rival.id] or 0.0) + SCORE_TOLERANCE:
        return "because its estimated quality is higher, given all scores and how noisy they are"
    return (
        "because the graders call it done" if trace.is_done(best.id) else "by the plan's decision"
    )


def estimate_noise_sd(observations: Observations, prior_sd: float) -> float:
    """Return the standard deviation of one score's noise: the prior, updated by repeated scores. 0
    if no grader is noisy.
    """
    if not observations.shape.repeat_noise_weight:
        return 0.0
    degrees, squares = observations.repeat_stats
    return sqrt((PRIOR_PSEUDO_COUNT * prior_sd**2 + squares) / (PRIOR_PSEUDO_COUNT + degrees))


def unmet_checks_message(trace: Trace) -> str:
    """Name the checks that no answer met; "" if there are none."""
    names = [grader.name for grader in trace.pointwise_graders if is_never_met(trace, grader)]
    if not names:
        return ""
    return (
        f"none of {len(new_candidates(trace))} answers met {' or '.join(names)}: can it be met, "
        "and is it what you want?"
    )


def is_never_met(trace: Trace, grader: PanelGrader) -> bool:
    """Whether every answer fails a check. A must, and a check that an editor repairs, is met by a
    full score only.
    """
    scores = [trace.grader_score(c.id, grader) for c in trace.candidates]
    checked_texts = {
        c.text for c in new_candidates(trace) if trace.grader_score(c.id, grader) is not None
    }
    passing_score = 1.0 if grader.must or grader.editable else SCORE_TOLERANCE
    always_fails = all(score is None or score < passing_score for score in scores)
    return len(checked_texts) > 1 and always_fails and (grader.must or grader.model_free)


def new_candidates(trace: Trace) -> list[Candidate]:
    """Return the answers that the run wrote, without unchanged copies."""
    return [c for c in trace.candidates if c.role != "given" and not trace.is_unchanged(c)]


def regression_message(trace: Trace, observations: Observations, noise: float) -> str:
    """Say that refinements lowered the score, by more than noise explains and by the estimates too;
    else "".
    """
    pairs = list(refinements(trace))
    observed, estimated = mean_change(trace, pairs), mean_change(trace.with_estimates, pairs)
    if (
        observed > -max(Z_95 * mean_change_sd(observations, pairs, noise), SCORE_TOLERANCE)
        or estimated > -SCORE_TOLERANCE
        or is_refined(trace)
    ):
        return ""
    subject = f"{len(pairs)} refinements lowered" if len(pairs) > 1 else "the refinement lowered"
    return (
        f"{subject} the score by {-observed:.2f}{' on average' * (len(pairs) > 1)}; fresh drafts "
        "may do better"
    )


def refinements(trace: Trace) -> Iterator[tuple[int, int]]:
    """Yield (id, parent id) of every scored refinement that changed something and whose parent is
    scored.
    """
    for c in new_candidates(trace):
        if (
            c.role == "refine"
            and c.parent is not None
            and None not in (trace.scores[c.id], trace.scores[c.parent])
        ):
            yield c.id, c.parent


def mean_change(trace: Trace, pairs: list[tuple[int, int]]) -> float:
    """Return the mean change of score from parent to refinement; 0 without refinements."""
    changes = [
        (trace.scores[child] or 0.0) - (trace.scores[parent] or 0.0) for child, parent in pairs
    ]
    return sum(changes) / len(changes) if changes else 0.0


def mean_change_sd(observations: Observations, pairs: list[tuple[int, int]], noise: float) -> float:
    """Return the standard deviation of that mean by noise alone; a parent of several refinements
    counts several times.
    """
    coefficients: Counter[int] = Counter()
    for child, parent in pairs:
        coefficients[observations.node_indices[child]] += 1
        coefficients[observations.node_indices[parent]] -= 1
    nodes = observations.shape.nodes
    variance = sum(n * n * (nodes[i].noise_weight or 0.0) for i, n in coefficients.items())
    return noise * sqrt(variance) / max(1, len(pairs))


def is_refined(trace: Trace) -> bool:
    """Whether the best answer is a refinement or descends from one."""
    candidate = trace.best
    while candidate and candidate.role != "refine":
        candidate = None if candidate.parent is None else trace.by_id[candidate.parent]
    return candidate is not None


def within_noise_message(observations: Observations, gain: Gain | None, noise: float) -> str:
    """Say that no relevant gain was made; else ""."""
    if (
        gain is None
        or not gain.margin
        or gain.is_significant
        or gain.is_inconclusive
        or gain.difference < -gain.margin
        or common_score(observations.scores)
    ):
        return ""
    between = f"{min(observations.scores):.2f} and {max(observations.scores):.2f}"
    return (
        f"all answers score between {between}, no further apart than the graders' estimated noise "
        f"explains ({noise:.2f} per grade)"
    )


def inconclusive_message(observations: Observations, gain: Gain | None, noise: float) -> str:
    """Say that a relevant gain cannot be told from noise; else ""."""
    if (
        gain is None
        or not gain.margin
        or not gain.is_inconclusive
        or common_score(observations.scores)
    ):
        return ""
    needed = scores_to_show(MIN_RELEVANT_GAIN, noise)
    change = "a gain" if gain.difference >= 0 else "a loss"
    return (
        f"a difference of {gain.difference:+.2f} may be {change} or the graders' estimated noise "
        f"({noise:.2f} per grade): too few repeats; about {needed} at each answer would show a "
        f"gain of {MIN_RELEVANT_GAIN:g}"
    )


def scores_to_show(difference: float, noise: float) -> int:
    """Return how many scores of each of two texts show such a difference in quality with 95%
    confidence, given their noise.
    """
    return ceil(2 * (Z_95 * noise / difference) ** 2)


def common_score(scores: Sequence[float]) -> str:
    """Return the score that all answers have, to two digits; "" if they differ or there is only
    one.
    """
    rounded = {f"{score:.2f}" for score in scores}
    return rounded.pop() if len(rounded) == 1 < len(scores) else ""


def plateau_message(trace: Trace, best: Candidate, observations: Observations) -> str:
    """Say that the latest refinements did not improve on the best answer; else ""."""
    later = sum(c.role == "refine" and c.id > best.id for c in trace.candidates)
    if not later:
        return ""
    subject = (
        f"refining helped at first, the next {later}"
        if is_refined(trace)
        else f"{later} refinement{'s' * (later > 1)}"
    )
    same = common_score(observations.scores)
    suffix = f": the graders give every answer {same}" if same else ""
    return f"{subject} did not improve on answer {best.id}{suffix}"
