"""What the end of the work says about the work: one word for it, and the figures behind it.

A pure function of the trace. What was believed when the work ended is taken from its outcome; so is what was believed of the
graders' noise before, to which it adds what looks at the same text tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import ceil, sqrt
from typing import NamedTuple

from ..core.records import Candidate, StopReason
from ..core.trace import SCORE_TOLERANCE, PanelGrader, Trace
from ..plans.adaptive import Z_95, comparison_winner
from .lineage import Observations, observe
from .priors import Priors

MIN_RELEVANT_GAIN = 0.1  # a gain that is sure to be less is called noise
PRIOR_PSEUDO_COUNT = 4  # looks that what was believed of the noise before counts as
DEFAULT_NOISE_SD = Priors().noise_sd  # goes for work that ended by no belief


class DiagnosisKind(StrEnum):
    """What there is to say, the most telling first."""

    REACHED = "reached"
    BAD_CHECK = "bad check"
    REGRESSION = "regression"
    NOISE = "noise"
    TOO_FEW_REPEATS = "too few looks"
    CEILING = "ceiling"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A finding, and what it rests on, in words."""

    kind: DiagnosisKind
    message: str


def diagnose(trace: Trace) -> Diagnosis | None:
    """What there is to say of work that has ended; None where it was cut short, or nothing stands out.

    - reached: the target was, or the graders want no more changes.
    - bad check: no answer ever met a must, a requirement, or a check that calls no model, though two or more were written.
    - regression: refinements lowered the score, on average by more than the graders' noise explains, and none was kept that
      raised it.
    - noise: what the kept answer has gained over the first (or the others over it, where the first was kept) is sure to be
      less than 0.1, and may be nothing. Graders that call no model have no noise.
    - too few looks: that noise explains the difference, and would also hide a gain of 0.1 or more.
    - ceiling: the latest refinements did not improve on the answer that was kept.
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
    known = observe(trace)
    noise = estimate_noise_sd(known, DEFAULT_NOISE_SD if end.noise_sd is None else end.noise_sd)
    gain = gain_over_first(trace, known, noise)
    words = {
        DiagnosisKind.BAD_CHECK: unmet_checks_message(trace),
        DiagnosisKind.REGRESSION: regression_message(trace, known, noise),
        DiagnosisKind.NOISE: within_noise_message(known, gain, noise),
        DiagnosisKind.TOO_FEW_REPEATS: inconclusive_message(known, gain, noise),
        DiagnosisKind.CEILING: plateau_message(trace, trace.best, known),
    }
    return next((Diagnosis(kind, said) for kind, said in words.items() if said), None)


class Gain(NamedTuple):
    """By how much one answer scores above another, and how far off that may be by noise, with 95 %."""

    difference: float
    margin: float

    @property
    def is_significant(self) -> bool:
        """Whether noise does not explain it."""
        return self.difference - self.margin > SCORE_TOLERANCE

    @property
    def is_inconclusive(self) -> bool:
        """Whether it may be nothing, as well as a gain that matters."""
        return self.difference - self.margin <= SCORE_TOLERANCE and self.difference + self.margin >= MIN_RELEVANT_GAIN


def has_significant_gain(trace: Trace) -> bool:
    """Whether the answer that was kept scores above the first by more than noise explains."""
    known, end = observe(trace), trace.outcome
    noise = estimate_noise_sd(known, DEFAULT_NOISE_SD if end is None or end.noise_sd is None else end.noise_sd)
    gain = gain_over_first(trace, known, noise)
    return gain is not None and gain.is_significant


def gain_over_first(trace: Trace, observations: Observations, noise: float) -> Gain | None:
    """What the kept answer has gained over the first; where the first was kept, the best of the others. None without two.

    The margin is wider the more there were to choose from: the highest of several scores has been lucky (Bonferroni).
    """
    scored = [c for c in trace.candidates if trace.scores[c.id] is not None]
    best = trace.best
    if best not in scored or trace.must_pass_rate(best.id) != trace.must_pass_rate(scored[0].id):
        return None
    alike = [observations.node_indices[c.id] for c in scored if trace.must_pass_rate(c.id) == trace.must_pass_rate(best.id)]
    scores = {place: observations.score_at(place) for place in alike}
    first, kept = alike[0], observations.node_indices[best.id]
    if len(scores) < 2:
        return None
    other = max((place for place in scores if place != first), key=scores.__getitem__) if kept == first else kept
    looks = sum(observations.shape.nodes[place].noise_weight or 0.0 for place in (first, other))
    return Gain(scores[other] - scores[first], bonferroni_z(len(scores) - 1) * noise * sqrt(looks))


@cache
def bonferroni_z(n_comparisons: int) -> float:
    """How many standard deviations on both sides hold the highest of so many comparisons with 95 %, at least."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(1 - 0.025 / n_comparisons)


def selection_reason(trace: Trace) -> str:
    """Why the answer that was kept is not the one that graders scored highest, as a sentence; "" where it is."""
    best, rival = trace.best, max(trace.graded_candidates, key=lambda c: (trace.scores[c.id] or 0.0, -c.id), default=None)
    if trace.outcome is None or best is None or rival is None:
        return ""
    lead = (trace.scores[rival.id] or 0.0) - (trace.scores[best.id] or 0.0)
    if lead <= SCORE_TOLERANCE:
        return ""
    return f"answer {rival.id} was scored {lead:.2f} higher than answer {best.id}, which was kept {_preference_reason(trace, best, rival)}"


def _preference_reason(trace: Trace, best: Candidate, rival: Candidate) -> str:
    if trace.must_pass_rate(best.id) > trace.must_pass_rate(rival.id):
        broken = [s.name for s in trace.scorers if s.must and trace.grader_score(rival.id, s) != 1]
        return f"because it keeps more of what it must: the other breaks {', '.join(broken)}"
    if comparison_winner(trace, [best, rival]) == best.id:
        return "because it came first when the two were compared"
    believed = trace.with_estimates.scores
    if (believed[best.id] or 0.0) > (believed[rival.id] or 0.0) + SCORE_TOLERANCE:
        return "because it is believed to be better, given all that was seen and how noisy graders are"
    return "because the graders call it done" if trace.is_done(best.id) else "by the plan"


def estimate_noise_sd(observations: Observations, prior_sd: float) -> float:
    """The standard deviation of one look's noise, from what was believed of it before and what looks at the same texts tell.

    0 where no grader has any.
    """
    looks, squares = observations.repeat_stats
    return (
        sqrt((PRIOR_PSEUDO_COUNT * prior_sd**2 + squares) / (PRIOR_PSEUDO_COUNT + looks))
        if observations.shape.repeat_noise_weight
        else 0.0
    )


def unmet_checks_message(trace: Trace) -> str:
    """The checks that no answer met, though two or more were written for them."""
    names = [seat.name for seat in trace.pointwise_graders if is_never_met(trace, seat)]
    if not names:
        return ""
    return f"none of {len(new_candidates(trace))} answers met {' or '.join(names)}: can it be met, and is it what you want?"


def is_never_met(trace: Trace, grader: PanelGrader) -> bool:
    """Whether a check fails all that was written. A must or what an editor repairs is met by a full score alone."""
    scores = [trace.grader_score(c.id, grader) for c in trace.candidates]
    tried = {c.text for c in new_candidates(trace) if trace.grader_score(c.id, grader) is not None}
    least = 1.0 if grader.must or grader.editable else SCORE_TOLERANCE
    failed = all(score is None or score < least for score in scores)
    return len(tried) > 1 and failed and (grader.must or grader.model_free)


def new_candidates(trace: Trace) -> list[Candidate]:
    """The answers that were made in the course of the work, none twice."""
    return [c for c in trace.candidates if c.role != "given" and not trace.is_unchanged(c)]


def regression_message(trace: Trace, observations: Observations, noise: float) -> str:
    """Whether refinements made it worse: as it was observed, beyond what noise explains; and as it is believed to be."""
    pairs = list(refinements(trace))
    observed, believed = mean_change(trace, pairs), mean_change(trace.with_estimates, pairs)
    if (
        observed > -max(Z_95 * mean_change_sd(observations, pairs, noise), SCORE_TOLERANCE)
        or believed > -SCORE_TOLERANCE
        or is_refined(trace)
    ):
        return ""
    many = f"{len(pairs)} refinements lowered" if len(pairs) > 1 else "the refinement lowered"
    return f"{many} the score by {-observed:.2f}{' on average' * (len(pairs) > 1)}; fresh drafts may do better"


def refinements(trace: Trace) -> Iterator[tuple[int, int]]:
    """Every scored refinement that changed something, and its scored parent."""
    for c in new_candidates(trace):
        if c.role == "refine" and c.parent is not None and None not in (trace.scores[c.id], trace.scores[c.parent]):
            yield c.id, c.parent


def mean_change(trace: Trace, pairs: list[tuple[int, int]]) -> float:
    """By how much refinements raised the score on average; 0 where there were none."""
    lifts = [(trace.scores[child] or 0.0) - (trace.scores[parent] or 0.0) for child, parent in pairs]
    return sum(lifts) / len(lifts) if lifts else 0.0


def mean_change_sd(observations: Observations, pairs: list[tuple[int, int]], noise: float) -> float:
    """The standard deviation of that average, from noise alone; a parent of several is in it more than once."""
    shares: Counter[int] = Counter()
    for child, parent in pairs:
        shares[observations.node_indices[child]] += 1
        shares[observations.node_indices[parent]] -= 1
    return (
        noise * sqrt(sum(n * n * (observations.shape.nodes[i].noise_weight or 0.0) for i, n in shares.items())) / max(1, len(pairs))
    )


def is_refined(trace: Trace) -> bool:
    """Whether the answer that was kept is a refinement, or goes back to one."""
    candidate = trace.best
    while candidate and candidate.role != "refine":
        candidate = None if candidate.parent is None else trace.by_id[candidate.parent]
    return candidate is not None


def within_noise_message(observations: Observations, gain: Gain | None, noise: float) -> str:
    """Whether what was gained is nothing, as far as it matters."""
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
    taken = f"what is taken for the graders' noise ({noise:.2f} a look)"
    return f"all answers score between {between}, no further apart than {taken} explains"


def inconclusive_message(observations: Observations, gain: Gain | None, noise: float) -> str:
    """Whether what was gained cannot be told from nothing, though it may matter."""
    if gain is None or not gain.margin or not gain.is_inconclusive or common_score(observations.scores):
        return ""
    needed = ceil(2 * (Z_95 * noise / MIN_RELEVANT_GAIN) ** 2)
    change = "a gain" if gain.difference >= 0 else "a loss"
    return (
        f"a difference of {gain.difference:+.2f} may be {change}, or what is taken for the graders' noise ({noise:.2f} a look): "
        f"too few looks to tell; some {needed} at each answer would tell a gain of {MIN_RELEVANT_GAIN:g}"
    )


def common_score(scores: Sequence[float]) -> str:
    """The score that all answers have, as people read it; "" where they differ, or are fewer than two."""
    shown = {f"{score:.2f}" for score in scores}
    return shown.pop() if len(shown) == 1 < len(scores) else ""


def plateau_message(trace: Trace, best: Candidate, observations: Observations) -> str:
    """Whether the latest refinements did not improve on the best."""
    later = sum(c.role == "refine" and c.id > best.id for c in trace.candidates)
    if not later:
        return ""
    named = f"refining helped at first, the next {later}" if is_refined(trace) else f"{later} refinement{'s' * (later > 1)}"
    same = common_score(observations.scores)
    told = f": the graders tell no difference, they give every answer {same}" if same else ""
    return f"{named} did not improve on answer {best.id}{told}"
