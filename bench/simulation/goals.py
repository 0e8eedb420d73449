"""What is to be reached: a value for each goal and world, and whether it is met."""

from __future__ import annotations

from .catalogue import (
    APIECE,
    BEST,
    DEFAULTS,
    FOREIGN,
    KIT,
    LEARNED,
    LEARNED_64,
    OURS,
    REFINE,
    RELEARNED,
    SHIPPED,
    TRUE,
    default_after,
)
from .figures import Figure, at_calls, lead, single_setting

QUALITY_AT_7 = {"poison": 0.79, "coin-flip": 0.665, "noisy": 0.68, "writing": 0.685, "tests": 0.78}
# above executionkit at its calls
LEAD = {SHIPPED: dict(writing=0.04, noisy=0.04, hostile=0.015, verifier=0.015)}
LEAD[LEARNED] = dict(writing=0.05, noisy=0.06, hostile=0.03, verifier=0.03)
LOST, REGRET, EXTRA = 0.005, 0.01, 0.05
UNLEARNED_HONEST, HONEST, FALSE, RECALL, FALSE_CLAIMS = 0.05, 0.03, 0.5, 0.6, 0.25
COVERED = 0.92  # share of intervals that have the true quality
GOOD_DRAFTS = 0.85  # mean quality of drafts from which on the target is often truly reached


def goals(points, worlds, priors):
    """Yield the goals with their results, by world."""
    for world in worlds:
        policies = points[world.name]
        yield from quality_goals(world, policies)
        yield from learning_goals(world, policies, priors[world.name])
        yield from honesty_goals(world, policies)
        yield from budget_goals(world, policies)


def learning_goals(world, policies, priors):
    """Learning does no harm, costs little, and comes near to the true priors."""
    extra = Figure(priors[LEARNED_64]["extra"], 0.0)
    yield goal("learning from 64 rows: more calls, as a share", world, extra, most=EXTRA)
    for calls in (7, 10):
        learned = at_calls(policies[LEARNED_64], calls)
        lost = negative(lead(policies[SHIPPED], learned))
        yield goal(
            f"{LEARNED_64}: quality above the shipped plan's at {calls} calls, with tuition",
            world,
            lost,
            least=-LOST,
        )
        if calls == 10:
            regret = lead(policies[TRUE], learned)
            yield goal(
                f"{LEARNED_64}: quality below true priors at {calls} calls",
                world,
                regret,
                most=REGRET,
            )


def quality_goals(world, policies):
    """The quality at seven calls a task, and above executionkit and best of N at executionkit's
    calls.
    """
    if (least := QUALITY_AT_7.get(world.name)) is not None:
        quality = at_calls(policies[LEARNED_64], 7).summary()["quality"]
        yield goal(f"{LEARNED_64}: quality at 7 calls", world, quality, least=least)
    kit = single_setting(default_point(policies, KIT))
    for name, leads in LEAD.items():
        if (least := leads.get(world.name)) is not None:
            yield goal(
                f"{name}: quality above executionkit's at its calls",
                world,
                lead(policies[name], kit),
                least=least,
            )
    if world.hurts:
        drafts = at_calls(policies[BEST], mean_calls(kit))
        for name in (SHIPPED, LEARNED, *([RELEARNED] if FOREIGN in policies else [])):
            yield goal(
                f"{name}: quality above best of N", world, lead(policies[name], drafts), least=0.0
            )


def honesty_goals(world, policies):
    """The reported score, and claims to have reached the target."""
    learned, kit = (
        single_setting(default_point(policies, name)).summary()
        for name in (default_after(LEARNED), KIT)
    )
    if world.unbiased:
        for name, most in ((OURS, UNLEARNED_HONEST), (default_after(LEARNED), HONEST)):
            bias = single_setting(default_point(policies, name)).summary()["reported_minus_latent"]
            yield goal(f"{name}: |reported - true|", world, size(bias), most=most)
    if world.binary_at:
        ours = single_setting(default_point(policies, REFINE)).summary()["reported_minus_latent"]
        yield goal(
            f"{default_after(LEARNED)}: |reported - true|, no more than before learning",
            world,
            size(learned["reported_minus_latent"]),
            most=max(HONEST, abs(ours.value)),
        )
    if (world.unbiased or world.binary_at) and not world.free:
        yield goal(
            f"{default_after(LEARNED)}: intervals that have the true quality",
            world,
            learned["coverage"],
            least=COVERED,
        )
    if world.draft_mean >= GOOD_DRAFTS:
        yield goal(
            f"{default_after(LEARNED)}: recall of the target",
            world,
            learned["recall"],
            least=RECALL,
        )
        yield goal(
            f"{default_after(LEARNED)}: share of claims that are false",
            world,
            learned["false_claims"],
            most=FALSE_CLAIMS,
        )
    else:
        half = FALSE * kit["false_convergence"].value
        false = learned["false_convergence"]
        yield goal(
            f"{default_after(LEARNED)}: tasks with a false claim, half of executionkit's",
            world,
            false,
            most=half,
        )


def budget_goals(world, policies):
    """Nothing that is paid for is left ungraded, and nothing fails that was graded."""
    for calls in (3, 5, 7):
        (point,) = (point for point in policies[f"{SHIPPED}, {APIECE}"] if point.setting == calls)
        ungraded = single_setting(point).summary()["ungraded"]
        yield goal(
            f"{SHIPPED}: tasks with an ungraded text in a budget of {calls} calls",
            world,
            ungraded,
            most=0.0,
        )
    failed = single_setting(default_point(policies, REFINE)).summary()["failed_graded"]
    yield goal(f"{REFINE}: tasks that failed though graded", world, failed, most=0.0)


def default_point(policies, name):
    """Return the default setting of a policy."""

    points = policies[name]
    return (
        points[0]
        if len(points) == 1
        else next(point for point in points if point.setting == DEFAULTS[name])
    )


def mean_calls(mix):
    return mix.summary()["calls"].value


def goal(what, world, figure, least=None, most=None):
    """Return a goal with its result in a world, or in all worlds together (None)."""
    value = figure.value
    met = value is not None and (value >= least - 1e-9 if most is None else value <= most + 1e-9)
    must = f">= {least:+.3f}" if most is None else f"<= {most:.3f}"
    return {
        "goal": what,
        "world": world.name if world else "all",
        "must_be": must,
        "found": figure,
        "met": met,
    }


def size(figure):
    return Figure(None if figure.value is None else abs(figure.value), figure.error)


def negative(figure):
    return Figure(None if figure.value is None else -figure.value, figure.error)
