"""The policies: a name for each, its players by setting, and which setting is its default."""

from __future__ import annotations

from functools import partial

from redraft.plans.quality.priors import Priors
from redraft.plans.self_refine import BestOfN
from redraft.session.options import Options

from .beliefs import DEFAULT_PRICE, adaptive
from .lessons import default_plan
from .players import run_plan, run_plan_as_noisy, run_with_separate_budgets, run_with_shared_budget
from .rivals import dspy, each, executionkit, openjudge, single
from .stopping import COSTS, KAPPAS, beacon, pandora

PRICES = (1.0, 0.1, 0.07, 0.05, 0.036, 0.027, 0.02, 0.015, 0.011, 0.007, 0.003)
FEWER_PRICES = (1.0, 0.06, 0.03, 0.016, 0.009, 0.005)
BUDGETS = (3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
SHARED = (4, 6, 7, 8, 10)
JUDGED = (7, 10)  # calls a task at which policies are compared with the goals

SINGLE, KIT, JUDGE = "single draft", "executionkit refine_loop", "OpenJudge LLMRefinement"
DSPY, BEST = "DSPy Refine", "best of N"
BEACON, PANDORA = "BEACON", "UCB Pandora"
REFINE, PLAIN, OURS = "refine, default", "SelfRefine, default", "Adaptive, default"
SHIPPED, LEARNED_64, LEARNED, TRUE = (
    f"Adaptive, {which}"
    for which in ("shipped priors", "learned in 64 rows", "learned in 256 rows", "true priors")
)
LESSONS = {LEARNED_64: 64, LEARNED: 256}
BELIEFS = (SHIPPED, LEARNED_64, LEARNED, TRUE)
DOUBTED = "Adaptive, shipped priors, judge taken as noisy"
FOREIGN, RELEARNED = (
    "Adaptive, priors of another world",
    "Adaptive, learned in 256 rows after those",
)
# the default of releases up to 0.2, which later ones are compared with
EARLIER, EARLIER_PRICE = "refine, three refinements and patience 2", 0.01
APIECE, APIECE_PRICED, TOGETHER = (
    "budget of each task",
    "budget of each task at the default price",
    "one budget for all tasks",
)
# Settings as shipped. BEST is this package's own, and three attempts are what DSPy's documentation
# uses in its examples.
RIVALS = {SINGLE: 0, DSPY: 3, JUDGE: 3, KIT: (5, 3), BEST: 4}
DEFAULTS = {**RIVALS, PLAIN: 0, OURS: 0, REFINE: 0, EARLIER: 0}
BARE = "a bare score as good as advice"


def rivals():
    """Return the loops of other tools, with every setting of their own knobs: name -> {setting:
    player}.
    """
    kits = [(n, 3) for n in range(1, 9)] + [(8, patience) for patience in (1, 2, 8)]
    return {
        SINGLE: {0: partial(each, single)},
        KIT: {
            (n, p): partial(each, partial(executionkit, iterations=n, patience=p)) for n, p in kits
        },
        f"{KIT}, {BARE}": {
            (n, p): partial(each, partial(executionkit, iterations=n, patience=p, bare=1.0))
            for n, p in kits
        },
        JUDGE: {n: partial(each, partial(openjudge, iterations=n)) for n in range(1, 9)},
        DSPY: {n: partial(each, partial(dspy, n)) for n in range(1, 8)},
        f"{DSPY}, {BARE}": {n: partial(each, partial(dspy, n, bare=1.0)) for n in range(1, 8)},
        BEST: {n: partial(run_plan, BestOfN(n)) for n in range(1, 10)},
        BEACON: {cost: partial(each, partial(beacon, cost)) for cost in COSTS},
        PANDORA: {
            (cost, kappa): partial(each, partial(pandora, cost, kappa))
            for cost in COSTS[:6]
            for kappa in KAPPAS
        },
    }


def defaults(world):
    """Return the plans of this package with default settings: the one that `refine` takes, the one
    that it took in releases up to 0.2, and both that it can take.
    """
    return {
        REFINE: {0: partial(run_plan, default_plan(world))},
        EARLIER: {0: partial(run_plan, earlier_plan(world))},
        PLAIN: {
            0: partial(run_plan, Options(noise_aware=False).make_plan(writes=True, noisy=True))
        },
        OURS: {0: partial(run_plan, Options(noise_aware=True).make_plan(writes=True, noisy=True))},
    }


def earlier_plan(world):
    """Return the default plan of releases up to 0.2."""
    return default_plan(
        world,
        noise_aware=not world.free,
        max_iterations=3,
        patience=2,
        min_expected_gain=EARLIER_PRICE,
    )


def default_after(name):
    return f"{REFINE}, {name.removeprefix('Adaptive, ')}"


def after_lesson(name, world, priors):
    """Return the plan that `refine` takes with these priors, all else being default."""
    return (
        {default_after(name): {0: partial(run_plan, default_plan(world, priors))}}
        if name in LESSONS
        else {}
    )


def at_prices(name, priors, prices=PRICES):
    """Return Redraft's plan with these priors, at every price."""
    return {name: {price: partial(run_plan, adaptive(price, priors)) for price in prices}}


def in_budgets(name, priors, apiece=BUDGETS, shared=SHARED):
    """Return Redraft's plan with these priors in budgets of so many calls a task."""
    free, priced = adaptive(0.0, priors), adaptive(DEFAULT_PRICE, priors)
    return {
        f"{name}, {APIECE}": {n: partial(run_with_separate_budgets, free, n) for n in apiece},
        f"{name}, {APIECE_PRICED}": {
            n: partial(run_with_separate_budgets, priced, n) for n in apiece
        },
        f"{name}, {TOGETHER}": {n: partial(run_with_shared_budget, free, n) for n in shared},
    }


def as_noisy(world):
    """Return Redraft's plan where a judge that computes is taken for one that asks a model."""
    if not world.free:
        return {}
    return {
        DOUBTED: {
            price: partial(run_plan_as_noisy, adaptive(price, Priors())) for price in FEWER_PRICES
        }
    }


def with_tuition(player, tuition, episodes):
    """Play, and add the tuition of a lesson to the calls of every task."""
    return [played._replace(calls=played.calls + tuition) for played in player(episodes)]


def charged(policies, tuition):
    """Return the policies with a tuition for every task."""
    return {
        name: {s: partial(with_tuition, p, tuition) for s, p in settings.items()}
        for name, settings in policies.items()
    }


def all_names():
    """Return the names of all policies."""
    variants = [n for name in BELIEFS for n in (name, *in_budgets(name, Priors()))]
    return [
        *rivals(),
        REFINE,
        EARLIER,
        PLAIN,
        OURS,
        *variants,
        *map(default_after, LESSONS),
        FOREIGN,
        RELEARNED,
        DOUBTED,
    ]
