"""How probable it is that a new text meets the musts, by how many texts of the same task did."""

from __future__ import annotations

from ..loop.trace import Trace


def p_meets_musts(trace: Trace, role: str) -> float:
    """Return the probability that a new text meets every must, if its parent does: 1 without musts.

    It is (4 + met) / (5 + seen) over the texts of this role so far, that is, with the prior Beta(4,
    1).
    """
    if not trace.graders.has_musts:
        return 1.0
    texts = [
        c
        for c in trace.graded_candidates
        if c.role == role and (c.parent is None or trace.meets_musts(c.parent))
    ]
    return (4 + sum(trace.meets_musts(c.id) for c in texts)) / (5 + len(texts))


def p_meets_broken_must(trace: Trace, role: str) -> float:
    """Return the probability that a new text meets a must that the best breaks.

    For refinements, which are told what is broken, the prior is Beta(2, 2), over how many met more
    musts than their parent; for drafts Beta(1, 3), over how many met more than the best, which is
    none.
    """
    texts = [c for c in trace.graded_candidates if c.role == role]
    if role == "generate":
        return 1 / (4 + len(texts))
    gains = [
        trace.must_pass_rate(c.id) > trace.must_pass_rate(c.parent)
        for c in texts
        if c.parent is not None
    ]
    return (2 + sum(gains)) / (4 + len(gains))
