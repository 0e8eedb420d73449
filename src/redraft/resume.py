"""Decide which finished traces are reopened: those that the present plan would not end in the same way."""

from __future__ import annotations

from dataclasses import replace

from .core.records import Outcome
from .core.steps import Stop
from .core.trace import Trace
from .options import Options
from .plans import NoiseAwarePlan, Plan
from .quality.priors import Priors


def reopen_if_needed(trace: Trace, plan: Plan) -> Trace:
    """Return a finished trace unchanged if the plan would end it again for the same reason, else without its outcome."""
    if trace.outcome is None:
        return trace
    reasons = [step.reason for step in plan(without_outcome(trace).for_new_run()) if isinstance(step, Stop)]
    return trace if reasons == [trace.outcome.reason] else without_outcome(trace)


def without_outcome(trace: Trace) -> Trace:
    """Return a trace without its outcome."""
    return replace(trace, records=tuple(r for r in trace.records if not isinstance(r, Outcome)))


def with_original_priors(trace: Trace, plan: Plan, options: Options) -> Plan:
    """Return the plan with the shipped priors if those reproduce the stored outcome and the learned ones do not.

    Priors that were learned since are no reason to pay for more calls; priors that the user gives are.
    """
    if trace.outcome is None or not isinstance(plan, NoiseAwarePlan) or options.priors != "learned" or options.plan is not None:
        return plan
    shipped = plan.with_priors(Priors())
    return shipped if reproduces(shipped, trace) and not reproduces(plan, trace) else plan


def reproduces(plan: NoiseAwarePlan, trace: Trace) -> bool:
    """Whether the plan reproduces the trace's stored outcome."""
    end = trace.outcome
    return end is not None and plan.outcome_if_stopped(without_outcome(trace).for_new_run(), end.reason, end.note) == end
