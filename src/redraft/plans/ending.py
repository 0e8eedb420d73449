"""How a noise-aware plan ends: when its rules are met by the estimates, whether the two best are
compared, and what a stop says.

The estimates come from `quality.posterior`, or are what people would say of the texts if labels
stand behind the judge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from ..loop.records import Candidate, Outcome, StopReason
from ..loop.steps import Compare, Stop
from ..loop.trace import Trace
from .quality.calibration import labels_text
from .quality.labels import LabelPosterior
from .quality.likelihood import Z_95
from .quality.lineage import comparison_winner, llm_graders
from .quality.posterior import DIGITS, MIN_SD, Posterior
from .self_refine import SelfRefine

MAX_CONTENDERS = 3  # candidates with the highest estimates, which may be refined
BELOW_TARGET = 1e-6  # how far below the target an estimate is put that does not reach it


@dataclass(frozen=True)
class Ending:
    """The end of the work by the estimates.

    Args:
        base_plan: The rules, which are applied to the estimates.
        confidence: Probability with which the quality of the best text must reach the target.
        trace: The trace with the estimates as scores.
        posterior: The estimates in the judge's points.
        by_labels: The estimates in people's points; None without labels.
    """

    base_plan: SelfRefine
    confidence: float
    trace: Trace
    posterior: Posterior
    by_labels: LabelPosterior | None = None

    @property
    def target_score(self) -> float | None:
        """The target of the rules; None without one."""
        return self.base_plan.stop.target_score

    def stop_by_rules(self, observed: Trace) -> Stop | None:
        """Return the stop by the rules, given the estimates. `observed`: the trace with the
        graders' scores.

        A target must be reached with the probability `confidence`. By the estimates of a judge
        without people's labels, it must be reached by the observed scores, too.
        """
        confident = self.with_confidence()
        end = self.base_plan.stop_by_rules(confident)
        if end is None or self.by_labels or end.reason is not StopReason.TARGET:
            return end
        lower = {
            id: min(score, confident.scores[id] or 0.0)
            for id, score in observed.scores.items()
            if score
        }
        by_scores = self.base_plan.stop_by_rules(observed.with_scores(lower))
        return (
            end
            if by_scores and by_scores.reason is end.reason
            else by_scores and replace(by_scores, best=end.best)
        )

    def with_confidence(self) -> Trace:
        """Return the trace with estimates that reach the target if the best does with the
        probability `confidence`.

        All estimates are moved by the same amount, so their order and their differences remain.
        """
        best, means, goal = self.trace.best, self.posterior.means, self.target_score
        if best is None or best.id not in means or goal is None:
            return self.trace
        if self.by_labels is None:
            sd = self.posterior.sd_of(best.id)
            move = 0.0 if sd < MIN_SD else normal_quantile(1 - self.confidence) * sd
        else:
            is_reached = self.by_labels.probability(best.id, goal) >= self.confidence
            mean = means[best.id]
            move = (max(mean, goal) if is_reached else min(mean, goal - BELOW_TARGET)) - mean
        if not move:
            return self.trace
        return self.trace.with_scores({id: mean + move for id, mean in means.items()})

    def tie_break(self, stop: Stop) -> list[Compare]:
        """Return the comparisons that are missing before the end, if graders of the panel can
        compare.
        """
        rankers = [grader for grader in self.trace.panel if grader.compares]
        if not rankers or self.trace.fatal_failure:
            return []
        task, pair = self.trace.task, tuple(sorted(self.tie_break_pair(stop), key=lambda c: c.id))
        return (
            self.trace.missing(
                Compare(r.name, task, pair, n) for r in rankers for n in range(r.repeats)
            )
            if pair
            else []
        )

    def tie_break_pair(self, stop: Stop) -> list[Candidate]:
        """Return the two best if it is not clear which of them is better, and either could have
        ended the refinement.
        """
        pair, goal = close_pair(self.trace, self.posterior), self.target_score
        if stop.reason not in {StopReason.TARGET, StopReason.DONE}:
            return pair
        if self.by_labels and goal is not None and stop.reason is StopReason.TARGET:
            return (
                pair
                if all(self.by_labels.probability(c.id, goal) >= self.confidence for c in pair)
                else []
            )
        ends = [self.base_plan.stop(self.trace + Outcome(c.id, stop.reason)) for c in pair]
        return pair if all(end and end.reason == stop.reason for end in ends) else []

    def with_estimate(self, stop: Stop) -> Stop:
        """Return the stop with the estimates of the chosen answer."""
        preference = comparison_winner(self.trace, self.tie_break_pair(stop))
        best = stop.best if preference is None else preference
        if best is None or self.trace.scores.get(best) is None:
            return stop
        stop = replace(stop, best=best, noise_sd=self.posterior.tree.priors.noise_sd)
        return (
            self.with_label_estimate(stop, best, self.by_labels)
            if self.by_labels
            else self.with_judge_estimate(stop, best)
        )

    def with_judge_estimate(self, stop: Stop, best: int) -> Stop:
        """Return the stop with the estimates in the judge's points."""
        mean, sd = self.posterior.means[best], self.posterior.sd_of(best)
        interval = _clip(mean - Z_95 * sd), _clip(mean + Z_95 * sd)
        estimates = tuple((c.id, self.posterior.means[c.id]) for c in self.trace.graded_candidates)
        p_target = (
            None
            if self.target_score is None
            else round(self.posterior.p_at_least(best, self.target_score), DIGITS)
        )
        return replace(stop, score=mean, interval=interval, estimates=estimates, p_target=p_target)

    def with_label_estimate(self, stop: Stop, best: int, by_labels: LabelPosterior) -> Stop:
        """Return the stop with what people would say of its answer, and of the others."""
        mean, interval = by_labels.prediction(best)
        p_target = (
            None
            if self.target_score is None
            else round(by_labels.probability(best, self.target_score), DIGITS)
        )
        estimates = tuple(
            (c.id, round(by_labels.means[c.id], DIGITS)) for c in self.trace.graded_candidates
        )
        low, high = (round(end, DIGITS) for end in interval)
        labels = by_labels.calibration.labels
        return replace(
            stop,
            score=round(mean, DIGITS),
            interval=(low, high),
            estimates=estimates,
            p_target=p_target,
            labels=labels,
        )


@lru_cache(maxsize=16)
def normal_quantile(p: float) -> float:
    """Return the value that a standard normal variable is below with probability `p`."""
    from statistics import NormalDist  # few programs need it

    return NormalDist().inv_cdf(p)


def with_note(stop: Stop, trace: Trace, base_plan: SelfRefine) -> Stop:
    """Return the stop with a note that tells estimates from the observed scores, which `trace`
    has.
    """
    if stop.score is None or not llm_graders(trace.scorers):
        return stop
    meets_musts = stop.best is not None and trace.meets_musts(stop.best)
    by_estimates = meets_musts and stop.reason in {StopReason.TARGET, StopReason.PATIENCE}
    note = f"{stop.note}{', by the estimates' * by_estimates}"
    if stop.reason is StopReason.TARGET and stop.p_target is not None:
        goal = base_plan.stop.target_score
        subject = (
            "the estimate" if stop.labels is None else f"by {labels_text(stop.labels)} the estimate"
        )
        note = (
            f"{subject} is {stop.score:.2f}; it reaches the target, {goal:g}, with a probability "
            f"of {stop.p_target:.2f}"
        )
    is_settled = stop.reason in {StopReason.TARGET, StopReason.DONE} or stop.reason.resumable
    observed = None if is_settled else base_plan.stop(trace)
    if observed and observed.reason is StopReason.TARGET:
        note += (
            f"; graders gave {trace.score or 0.0:.2f}, which reaches the target, but the estimate "
            "does not"
        )
    return replace(stop, note=note)


def top_candidates(trace: Trace) -> list[Candidate]:
    """Return the candidates with the highest scores, best first; only those that keep as many musts
    as the best.
    """
    if trace.best is None:
        return []
    aggregates, pass_rate = trace.aggregates, trace.must_pass_rate(trace.best.id)
    distinct = {
        c.content_key: c for c in reversed(trace.graded_candidates)
    }.values()  # the earliest of identical ones
    equals = [
        (-(score or 0.0), c.id)
        for c in distinct
        for rate, score in [aggregates[c.id]]
        if rate == pass_rate
    ]
    return [trace.by_id[id] for _, id in sorted(equals)[:MAX_CONTENDERS]]


def close_pair(trace: Trace, posterior: Posterior) -> list[Candidate]:
    """Return the two best if it is not clear which of them is better."""
    pair = top_candidates(trace)[:2]
    return (
        pair if len(pair) == 2 and not posterior.is_separated(pair[0].id, pair[1].id, Z_95) else []
    )


def _clip(score: float) -> float:
    return min(1.0, max(0.0, score))
