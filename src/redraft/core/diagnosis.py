"""What the end of the work says about the work: one word for it, and the figures behind it.

A pure function of the trace. What was believed when the work ended is taken from its outcome; so is what was believed of the
graders' noise before, to which it adds what looks at the same text tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt

from .family import Family, family
from .plans.adaptive import SURE
from .priors import Priors
from .records import Candidate, StopReason
from .trace import Seat, Trace

NEAR = 1e-9  # scores closer than this are the same
WEIGHT = 4  # looks that what was believed of the noise before counts as
SHIPPED = Priors().noise_sd  # goes for work that ended by no belief


class Kind(StrEnum):
    """What there is to say, the most telling first."""

    REACHED = "reached"
    BAD_CHECK = "bad check"
    REGRESSION = "regression"
    NOISE = "noise"
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
    - noise: the scores of all answers differ, by no more than that noise explains. Graders that call no model have none.
    - ceiling: the latest refinements did not improve on the answer that was kept.
    """
    end = trace.outcome
    if end is None or end.reason.resumable or not trace.graded or trace.best is None:
        return None
    if end.reason in {StopReason.TARGET, StopReason.DONE}:
        return Diagnosis(Kind.REACHED, end.note)
    known = family(trace)
    noise = noise_of(known, SHIPPED if end.noise is None else end.noise)
    words = {
        Kind.BAD_CHECK: unmet(trace),
        Kind.REGRESSION: lowered(trace, known, noise),
        Kind.NOISE: alike(known, noise),
        Kind.CEILING: exhausted(trace, trace.best, known),
    }
    return next((Diagnosis(kind, said) for kind, said in words.items() if said), None)


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


def alike(known: Family, noise: float) -> str:
    """Whether the scores of all answers differ by no more than noise explains: by a chi-square test, at some 5 %."""
    weights = [kin.noise for kin in known.shape.kin if kin.noise is not None]
    if len(weights) < 2 or not noise or not all(weights) or the_one(known.scores):
        return ""
    mean = sum(s / w for s, w in zip(known.scores, weights, strict=True)) / sum(1 / w for w in weights)
    squares = sum((s - mean) ** 2 / w for s, w in zip(known.scores, weights, strict=True)) / noise**2
    if squares > (free := len(weights) - 1) + 2 * sqrt(2 * free):
        return ""
    between = f"{min(known.scores):.2f} and {max(known.scores):.2f}"
    taken = f"what is taken for the graders' noise ({noise:.2f} a look)"
    return f"all answers score between {between}, no further apart than {taken} explains"


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
