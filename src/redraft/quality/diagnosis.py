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
from ..core.trace import NEAR, Seat, Trace
from ..plans.adaptive import SURE, preferred
from .lineage import Family, family
from .priors import Priors

MATTERS = 0.1  # a gain that is sure to be less is called noise
WEIGHT = 4  # looks that what was believed of the noise before counts as
SHIPPED = Priors().noise_sd  # goes for work that ended by no belief


class Kind(StrEnum):
    """What there is to say, the most telling first."""

    REACHED = "reached"
    BAD_CHECK = "bad check"
    REGRESSION = "regression"
    NOISE = "noise"
    TOO_FEW_LOOKS = "too few looks"
    CEILING = "ceiling"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A finding, and what it rests on, in words."""

    kind: Kind
    words: str


def diagnosed(trace: Trace) -> Diagnosis | None:
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
    if end is None or end.reason.resumable or end.reason is StopReason.TOOL_CALLS or not trace.graded or trace.best is None:
        return None
    if end.reason in {StopReason.TARGET, StopReason.DONE}:
        return Diagnosis(Kind.REACHED, end.note)
    known = family(trace)
    noise = noise_of(known, SHIPPED if end.noise is None else end.noise)
    gain = gain_of(trace, known, noise)
    words = {
        Kind.BAD_CHECK: unmet(trace),
        Kind.REGRESSION: lowered(trace, known, noise),
        Kind.NOISE: alike(known, gain, noise),
        Kind.TOO_FEW_LOOKS: inconclusive(known, gain, noise),
        Kind.CEILING: exhausted(trace, trace.best, known),
    }
    return next((Diagnosis(kind, said) for kind, said in words.items() if said), None)


class Gain(NamedTuple):
    """By how much one answer scores above another, and how far off that may be by noise, with 95 %."""

    observed: float
    margin: float

    @property
    def sure(self) -> bool:
        """Whether noise does not explain it."""
        return self.observed - self.margin > NEAR

    @property
    def inconclusive(self) -> bool:
        """Whether it may be nothing, as well as a gain that matters."""
        return self.observed - self.margin <= NEAR and self.observed + self.margin >= MATTERS


def improved(trace: Trace) -> bool:
    """Whether the answer that was kept scores above the first by more than noise explains."""
    known, end = family(trace), trace.outcome
    noise = noise_of(known, SHIPPED if end is None or end.noise is None else end.noise)
    gain = gain_of(trace, known, noise)
    return gain is not None and gain.sure


def gain_of(trace: Trace, known: Family, noise: float) -> Gain | None:
    """What the kept answer has gained over the first; where the first was kept, the best of the others. None without two.

    The margin is wider the more there were to choose from: the highest of several scores has been lucky (Bonferroni).
    """
    scored = [c for c in trace.candidates if trace.scores[c.id] is not None]
    best = trace.best
    if best not in scored or trace.kept_share(best.id) != trace.kept_share(scored[0].id):
        return None
    alike = [known.places[c.id] for c in scored if trace.kept_share(c.id) == trace.kept_share(best.id)]
    scores = {place: known.score_at(place) for place in alike}
    first, kept = alike[0], known.places[best.id]
    if len(scores) < 2:
        return None
    other = max((place for place in scores if place != first), key=scores.__getitem__) if kept == first else kept
    looks = sum(known.shape.kin[place].noise or 0.0 for place in (first, other))
    return Gain(scores[other] - scores[first], sure_of(len(scores) - 1) * noise * sqrt(looks))


@cache
def sure_of(many: int) -> float:
    """How many standard deviations on both sides hold the highest of so many comparisons with 95 %, at least."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(1 - 0.025 / many)


def why_kept(trace: Trace) -> str:
    """Why the answer that was kept is not the one that graders scored highest, as a sentence; "" where it is."""
    best, rival = trace.best, max(trace.graded, key=lambda c: (trace.scores[c.id] or 0.0, -c.id), default=None)
    if trace.outcome is None or best is None or rival is None:
        return ""
    lead = (trace.scores[rival.id] or 0.0) - (trace.scores[best.id] or 0.0)
    if lead <= NEAR:
        return ""
    return f"answer {rival.id} was scored {lead:.2f} higher than answer {best.id}, which was kept {_reason(trace, best, rival)}"


def _reason(trace: Trace, best: Candidate, rival: Candidate) -> str:
    if trace.kept_share(best.id) > trace.kept_share(rival.id):
        broken = [s.grader for s in trace.scorers if s.must and trace.seat_score(rival.id, s) != 1]
        return f"because it keeps more of what it must: the other breaks {', '.join(broken)}"
    if preferred(trace, [best, rival]) == best.id:
        return "because it came first when the two were compared"
    believed = trace.settled.scores
    if (believed[best.id] or 0.0) > (believed[rival.id] or 0.0) + NEAR:
        return "because it is believed to be better, given all that was seen and how noisy graders are"
    return "because the graders call it done" if trace.content(best.id) else "by the plan"


def noise_of(known: Family, before: float) -> float:
    """The standard deviation of one look's noise, from what was believed of it before and what looks at the same texts tell.

    0 where no grader has any.
    """
    looks, squares = known.again
    return sqrt((WEIGHT * before**2 + squares) / (WEIGHT + looks)) if known.shape.share else 0.0


def unmet(trace: Trace) -> str:
    """The checks that no answer met, though two or more were written for them."""
    names = [seat.grader for seat in trace.scoring if is_unmet(trace, seat)]
    if not names:
        return ""
    return f"none of {len(written(trace))} answers met {' or '.join(names)}: can it be met, and is it what you want?"


def is_unmet(trace: Trace, seat: Seat) -> bool:
    """Whether a check fails all that was written. A must or what an editor repairs is met by a full score alone."""
    scores = [trace.seat_score(c.id, seat) for c in trace.candidates]
    tried = {c.text for c in written(trace) if trace.seat_score(c.id, seat) is not None}
    least = 1.0 if seat.must or seat.editable else NEAR
    failed = all(score is None or score < least for score in scores)
    return len(tried) > 1 and failed and (seat.must or seat.free)


def written(trace: Trace) -> list[Candidate]:
    """The answers that were made in the course of the work, none twice."""
    return [c for c in trace.candidates if c.role != "given" and not trace.unchanged(c)]


def lowered(trace: Trace, known: Family, noise: float) -> str:
    """Whether refinements made it worse: as it was observed, beyond what noise explains; and as it is believed to be."""
    pairs = list(refinements(trace))
    observed, believed = lift(trace, pairs), lift(trace.settled, pairs)
    if observed > -max(SURE * sd_of_lift(known, pairs, noise), NEAR) or believed > -NEAR or is_refined(trace):
        return ""
    many = f"{len(pairs)} refinements lowered" if len(pairs) > 1 else "the refinement lowered"
    return f"{many} the score by {-observed:.2f}{' on average' * (len(pairs) > 1)}; fresh drafts may do better"


def refinements(trace: Trace) -> Iterator[tuple[int, int]]:
    """Every scored refinement that changed something, and its scored parent."""
    for c in written(trace):
        if c.role == "refine" and c.parent is not None and None not in (trace.scores[c.id], trace.scores[c.parent]):
            yield c.id, c.parent


def lift(trace: Trace, pairs: list[tuple[int, int]]) -> float:
    """By how much refinements raised the score on average; 0 where there were none."""
    lifts = [(trace.scores[child] or 0.0) - (trace.scores[parent] or 0.0) for child, parent in pairs]
    return sum(lifts) / len(lifts) if lifts else 0.0


def sd_of_lift(known: Family, pairs: list[tuple[int, int]], noise: float) -> float:
    """The standard deviation of that average, from noise alone; a parent of several is in it more than once."""
    shares: Counter[int] = Counter()
    for child, parent in pairs:
        shares[known.places[child]] += 1
        shares[known.places[parent]] -= 1
    return noise * sqrt(sum(n * n * (known.shape.kin[i].noise or 0.0) for i, n in shares.items())) / max(1, len(pairs))


def is_refined(trace: Trace) -> bool:
    """Whether the answer that was kept is a refinement, or goes back to one."""
    candidate = trace.best
    while candidate and candidate.role != "refine":
        candidate = None if candidate.parent is None else trace.by_id[candidate.parent]
    return candidate is not None


def alike(known: Family, gain: Gain | None, noise: float) -> str:
    """Whether what was gained is nothing, as far as it matters."""
    if gain is None or not gain.margin or gain.sure or gain.inconclusive or gain.observed < -gain.margin or the_one(known.scores):
        return ""
    between = f"{min(known.scores):.2f} and {max(known.scores):.2f}"
    taken = f"what is taken for the graders' noise ({noise:.2f} a look)"
    return f"all answers score between {between}, no further apart than {taken} explains"


def inconclusive(known: Family, gain: Gain | None, noise: float) -> str:
    """Whether what was gained cannot be told from nothing, though it may matter."""
    if gain is None or not gain.margin or not gain.inconclusive or the_one(known.scores):
        return ""
    needed = ceil(2 * (SURE * noise / MATTERS) ** 2)
    change = "a gain" if gain.observed >= 0 else "a loss"
    return (
        f"a difference of {gain.observed:+.2f} may be {change}, or what is taken for the graders' noise ({noise:.2f} a look): "
        f"too few looks to tell; some {needed} at each answer would tell a gain of {MATTERS:g}"
    )


def the_one(scores: Sequence[float]) -> str:
    """The score that all answers have, as people read it; "" where they differ, or are fewer than two."""
    shown = {f"{score:.2f}" for score in scores}
    return shown.pop() if len(shown) == 1 < len(scores) else ""


def exhausted(trace: Trace, best: Candidate, known: Family) -> str:
    """Whether the latest refinements did not improve on the best."""
    later = sum(c.role == "refine" and c.id > best.id for c in trace.candidates)
    if not later:
        return ""
    named = f"refining helped at first, the next {later}" if is_refined(trace) else f"{later} refinement{'s' * (later > 1)}"
    same = the_one(known.scores)
    told = f": the graders tell no difference, they give every answer {same}" if same else ""
    return f"{named} did not improve on answer {best.id}{told}"
