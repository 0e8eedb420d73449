"""Compare policies in simulated worlds: true quality of the answer, number of calls, and error of the reported score.

    python bench/policies.py [WORLDS.toml] [--seed N] [--tasks N] [--json FILE] [--docs FOLDER]

Redraft's plans are carried out by its own engine with a simulated world. The loops of other tools are re-implemented in
bench/simulation/players.py. Every policy gets the same tasks. Each model call (a draft, a refinement, a grade, a piece of advice)
counts 1.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from redraft.options import Options
from redraft.plans.self_refine import BestOfN
from redraft.quality.priors import Priors
from simulation.beliefs import adaptive, learn_priors, true_priors
from simulation.drawing import LINES, Curve, Spot, frontier_svg
from simulation.figures import Figure, Point, at_calls, calls_ratio, lead, mean, single_setting
from simulation.players import (
    dspy,
    each,
    executionkit,
    openjudge,
    run_plan,
    run_plan_as_noisy,
    run_with_separate_budgets,
    run_with_shared_budget,
    single,
)
from simulation.worlds import BadWorldError, Episode, read
from tables import table, write

HERE = Path(__file__).parent
WORKERS = 2
TASKS, LESSONS = 250, 200
PRICES = (1.0, 0.1, 0.07, 0.05, 0.036, 0.027, 0.02, 0.015, 0.011, 0.007, 0.003)
FEWER_PRICES = (1.0, 0.1, 0.06, 0.036, 0.022, 0.014, 0.009, 0.005)

SINGLE, KIT, JUDGE = "single draft", "executionkit refine_loop", "OpenJudge LLMRefinement"
PLAIN, OURS = "SelfRefine, default", "Adaptive, default"
DSPY, BEST = "DSPy Refine", "best of N"
SHIPPED, LEARNED, TRUE = (f"Adaptive, {which} priors" for which in ("shipped", "learned", "true"))
DOUBTED = "Adaptive, shipped priors, judge taken as noisy"
APIECE, TOGETHER = "equal calls for each task", "equal calls on average, in one budget"
BUDGETS = (4, 6, 8)
KNOBBED = (BEST, DSPY, SHIPPED, LEARNED, TRUE)
SHORTLY = {KIT: "executionkit", JUDGE: "OpenJudge", PLAIN: "SelfRefine", OURS: "Adaptive"}
USUAL = {DSPY: 3}  # the attempts in its own example

# What is to be reached: at executionkit's calls, how much better; and its quality, for which share of its calls.
LEAD = {SHIPPED: dict(writing=0.04, noisy=0.04, hostile=0.015, verifier=0.015)}
LEAD[LEARNED] = dict(writing=0.05, noisy=0.06, hostile=0.03, verifier=0.03)
SHARE = dict(writing=0.68, noisy=0.64, hostile=0.55, verifier=0.86)
HONEST, FALSE = 0.05, 0.5

EXAMPLES = """
examples:
  python bench/policies.py                        all worlds of bench/worlds.toml
  python bench/policies.py mine.toml --tasks 100  worlds of your own, roughly
  python bench/policies.py --docs docs            and rewrite docs/frontier.svg and the table in docs/adaptive.md
"""


def fixed(world):
    """Return the policies that need no knowledge of a world: name -> {setting: player}."""
    plan = adaptive(0.0, Priors())
    computed = (
        {DOUBTED: {price: partial(run_plan_as_noisy, adaptive(price, Priors())) for price in FEWER_PRICES}} if world.free else {}
    )
    return {
        **computed,
        APIECE: {n: partial(run_with_separate_budgets, plan, n) for n in BUDGETS},
        TOGETHER: {n: partial(run_with_shared_budget, plan, n) for n in BUDGETS},
        SINGLE: {0: single},
        KIT: {0: partial(each, executionkit)},
        JUDGE: {0: partial(each, openjudge)},
        DSPY: {n: partial(each, partial(dspy, n)) for n in range(1, 7)},
        BEST: {n: partial(run_plan, BestOfN(n)) for n in range(1, 10)},
        PLAIN: {0: partial(run_plan, Options(noise_aware=False).make_plan(writes=True, noisy=True))},
        OURS: {0: partial(run_plan, Options(noise_aware=True).make_plan(writes=True, noisy=True))},
        SHIPPED: at_prices(Priors()),
    }


def at_prices(priors, prices=PRICES):
    """Return Redraft's plan with these priors, at every price."""
    return {price: partial(run_plan, adaptive(price, priors)) for price in prices}


def with_priors_of(name, learned, true):
    """Return the policies whose priors come from a world: learned, true, or those of another world."""
    wrong = {foreign(other): at_prices(priors, FEWER_PRICES) for other, priors in true.items() if other != name}
    mended = {
        relearned(before): at_prices(priors, FEWER_PRICES) for (at, before), priors in learned.items() if at == name and before
    }
    return {LEARNED: at_prices(learned[name, None]), TRUE: at_prices(true[name]), **wrong, **mended}


def foreign(world):
    return f"Adaptive, priors of {world}"


def relearned(world):
    return f"Adaptive, learned after priors of {world}"


def play(world, player, seed, tasks):
    """Let a player process the tasks of a world."""
    return tuple(result._replace(family=None) for result in player([Episode(world, seed, k) for k in range(tasks)]))


class Games:
    """Runs players in a pool of processes, point by point."""

    def __init__(self, pool, seed, tasks):
        self.pool, self.seed, self.tasks, self.jobs = pool, seed, tasks, {}

    def add(self, world, policies):
        for name, settings in policies.items():
            for setting, player in settings.items():
                self.jobs[self.pool.submit(play, world, player, self.seed, self.tasks)] = world.name, name, setting

    def learn(self, world, before):
        return self.pool.submit(learn_priors, world, self.seed, min(LESSONS, self.tasks), before)

    def points(self):
        """Return the points by world, policy and setting."""
        found = {}
        for n, job in enumerate(as_completed(self.jobs), 1):
            world, name, setting = self.jobs[job]
            found.setdefault(world, {}).setdefault(name, []).append(Point(setting, job.result()))
            if n % 25 == 0 or n == len(self.jobs):
                print(f"{n} of {len(self.jobs)} points ...", file=sys.stderr, flush=True)
        return {w: {n: sorted(ps, key=lambda p: p.setting) for n, ps in policies.items()} for w, policies in found.items()}


def play_all(worlds, seed, tasks):
    """Play all policies. Return points by world and policy; learned priors by world and initial priors; true priors by world."""
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        games = Games(pool, seed, tasks)
        truths = {w.name: pool.submit(true_priors, w, seed) for w in worlds}
        learning = {(w.name, None): games.learn(w, Priors()) for w in worlds}
        for world in worlds:
            games.add(world, fixed(world))
        true = {name: job.result() for name, job in truths.items()}
        learning |= {(w.name, o): games.learn(w, true[o]) for w in worlds if w.hurts for o in true if o != w.name}
        learned = {key: job.result() for key, job in learning.items()}
        for world in worlds:
            games.add(world, with_priors_of(world.name, learned, true))
        points = games.points()
    return {world.name: points[world.name] for world in worlds}, learned, true


def figures_of(policies, others):
    """Compute all figures of a world. `rows`: policies with their defaults, or at executionkit's calls if they can vary theirs."""
    kit = single_setting(policies[KIT][0])
    as_they_come = {name: single_setting(policies[name][0]) for name in (SINGLE, KIT, JUDGE, PLAIN, OURS)}
    as_they_come |= {name: single_setting(next(p for p in policies[name] if p.setting == usual)) for name, usual in USUAL.items()}
    equal = {name: at_calls(policies[name], kit.low.calls) for name in (*KNOBBED, DOUBTED) if name in policies}
    true, drafts = equal[TRUE], equal[BEST]
    return {
        "as_they_come": {name: mix.summary() for name, mix in as_they_come.items()},
        "at_equal_calls": {
            name: {
                **mix.summary(),
                "lead": lead(policies[name], kit),
                "calls_ratio": calls_ratio(policies[name], kit),
                "above_best_of_n": lead(policies[name], drafts),
            }
            for name, mix in equal.items()
        },
        "wrong_priors": {other: against(policies, foreign(other), true, drafts) for other in others},
        "mended_priors": {
            other: against(policies, relearned(other), true, drafts) for other in others if relearned(other) in policies
        },
        "one_budget": {
            n: compare_budgets(*(next(p for p in policies[name] if p.setting == n) for name in (APIECE, TOGETHER))) for n in BUDGETS
        },
        "frontiers": {name: [{"setting": p.setting, **single_setting(p).summary()} for p in policies[name]] for name in KNOBBED},
    }


def compare_budgets(separate, shared):
    """Compare a number of calls for each task with as many in one budget for all tasks."""
    mixes = single_setting(separate), single_setting(shared)
    lead = Figure(*mean([b.quality - a.quality for a, b in zip(separate.plays, shared.plays, strict=True)]))
    return {"apiece": mixes[0].summary(), "together": mixes[1].summary(), "lead": lead}


def against(policies, name, true, drafts):
    """Compare a policy with Redraft's plan with the true priors, and with best of N, at executionkit's calls."""
    lost = lead(policies[name], true)
    return {"regret": Figure(-lost.value, lost.error), "above_best_of_n": lead(policies[name], drafts)}


def goals(found):
    """Return the goals and results: (goal, world, required value, figure, whether it is met)."""
    for world, figures in found.items():
        equal, kit = figures["at_equal_calls"], figures["as_they_come"][KIT]
        for name in (SHIPPED, LEARNED):
            here, half = equal[name], FALSE * kit["false_convergence"].value
            if (least := LEAD[name].get(world)) is not None:
                yield goal(f"{name}: quality above executionkit's at its calls", world, here["lead"], least=least)
            if (most := SHARE.get(world)) is not None:
                yield goal(f"{name}: calls to executionkit's quality, of its own", world, here["calls_ratio"], most=most)
            yield goal(f"{name}: |reported - latent|", world, size(here["reported_minus_latent"]), most=HONEST)
            yield goal(f"{name}: false convergence, half of executionkit's", world, here["false_convergence"], most=half)
        bias = size(figures["as_they_come"][OURS]["reported_minus_latent"])
        yield goal(f"{OURS}: |reported - latent|", world, bias, most=HONEST)
        mended = {relearned(other): row for other, row in figures["mended_priors"].items()}
        for name, row in {SHIPPED: equal[SHIPPED], LEARNED: equal[LEARNED], **mended}.items() if mended else ():
            yield goal(f"{name}: quality above best of N", world, row["above_best_of_n"], least=0.0)


def goal(what, world, figure, least=None, most=None):
    value = figure.value
    met = value is not None and (value >= least if most is None else value <= most)
    must = f">= {least:+.3f}" if most is None else f"<= {most:.3f}"
    return {"goal": what, "world": world, "must_be": must, "found": figure, "met": met}


def size(figure):
    return Figure(abs(figure.value), figure.error)


COLUMNS = ["calls", "quality", "p10", "reported - latent", "says reached", "and is not"]
WRONG = (
    ("quality lost at executionkit's calls where the priors are those of another world", "wrong_priors", "regret"),
    ("... and what that is above best of N", "wrong_priors", "above_best_of_n"),
    ("quality lost where refinement hurts, after learning began with the priors of another world", "mended_priors", "regret"),
    ("... and what that is above best of N", "mended_priors", "above_best_of_n"),
)
MORE = ["above executionkit", "calls to its quality", "above best of N"]


def show_world(name, figures):
    """Print the tables of a world."""
    calls = figures["as_they_come"][KIT]["calls"].value
    print(f"\n{name}\n")
    table(["as they come", *COLUMNS], [[each, *cells(row)] for each, row in figures["as_they_come"].items()])
    print()
    rows = [[each, *cells(row), *more(row)] for each, row in figures["at_equal_calls"].items()]
    table([f"at {calls:.1f} calls", *COLUMNS, *MORE], rows)


def cells(row):
    return [f"{row['calls'].value:.1f}", str(row["quality"]), str(row["p10"]), row["reported_minus_latent"].signed, *claims(row)]


def claims(row):
    """Return how often the target is reported as reached, and how often it is reported falsely."""
    if row["reported_minus_latent"].value is None:
        return ["-", "-"]
    return [rate(row["says_reached"]), rate(row["false_convergence"])]


def rate(figure):
    return f"{figure.value:.1%} ± {figure.error:.1%}"


def more(row):
    return [row["lead"].signed, share(row["calls_ratio"]), row["above_best_of_n"].signed]


def cell(row, column):
    return row[column].signed if row else "-"


def share(figure):
    return "never" if figure.value is None else f"{figure.value:.2f} ± {figure.error:.2f}x"


def show(found, took):
    """Print all tables."""
    for name, figures in found.items():
        show_world(name, figures)
    for what, kind, column in WRONG:
        rows = [[n, *(cell(t[kind].get(o), column) for o in found)] for n, t in found.items() if t[kind]]
        if rows:
            print(f"\n{what}\n")
            table(["world, down; priors, across", *found], rows)
    print("\nthe same calls for all tasks: quality with one budget above that with equal shares\n")
    rows = [[f"{n} calls a task", *(figures["one_budget"][n]["lead"].signed for figures in found.values())] for n in BUDGETS]
    table(["", *found], rows)
    print()
    reached = list(goals(found))
    rows = [[g["goal"], g["world"], g["must_be"], str(g["found"]), "met" if g["met"] else "missed"] for g in reached]
    table(["goal", "world", "must be", "found", ""], rows)
    print(f"\n{sum(g['met'] for g in reached)} of {len(reached)} goals met; {took}")


def markdown(found, tasks):
    """Return the tables of the documentation."""
    worlds = list(found)
    yield f"| policy: quality (calls), {tasks} tasks a world | {' | '.join(worlds)} |"
    yield "|---|" + "---|" * len(worlds)
    for name in (SINGLE, DSPY, JUDGE, KIT, PLAIN, OURS):
        yield f"| {name} | {' | '.join(brief(found[w]['as_they_come'][name]) for w in worlds)} |"
    for name in (BEST, SHIPPED, LEARNED, TRUE):
        yield f"| {name}, at executionkit's calls | {' | '.join(brief(found[w]['at_equal_calls'][name]) for w in worlds)} |"
    yield ""
    yield "| at executionkit's calls | " + " | ".join(worlds) + " |"
    yield "|---|" + "---|" * len(worlds)
    for name in (SHIPPED, LEARNED):
        figures = [found[w]["at_equal_calls"][name] for w in worlds]
        yield f"| {name}: quality above executionkit's | {' | '.join(t['lead'].signed for t in figures)} |"
        yield f"| {name}: calls to executionkit's quality, of its own | {' | '.join(share(t['calls_ratio']) for t in figures)} |"
    for name in (KIT, PLAIN, SHIPPED, LEARNED):
        figures = [found[w]["as_they_come" if name in (KIT, PLAIN) else "at_equal_calls"][name] for w in worlds]
        yield f"| {name}: reported - true | {' | '.join(t['reported_minus_latent'].signed for t in figures)} |"
        yield f"| {name}: says the target is reached, and it is not | {' | '.join(rate(t['false_convergence']) for t in figures)} |"
    for n in BUDGETS:
        figures = [found[w]["one_budget"][n]["lead"].signed for w in worlds]
        yield f"| {n} calls a task in one budget: quality above {n} for each | {' | '.join(figures)} |"


def brief(row):
    return f"{row['quality'].value:.3f} ({row['calls'].value:.1f})"


def draw(points):
    """Draw the points of every world."""
    worlds = []
    for world, policies in points.items():
        curves = [Curve(name, [(p.calls, p.quality) for p in sorted(policies[name], key=lambda p: p.calls)]) for name in LINES]
        lone = {name: policies[name][0] for name in (SINGLE, KIT, JUDGE, PLAIN, OURS)}
        lone |= {name: next(p for p in policies[name] if p.setting == n) for name, n in USUAL.items()}
        spots = [Spot(SHORTLY.get(name, name), p.calls, p.quality, name in (PLAIN, OURS)) for name, p in lone.items()]
        worlds.append((world, curves, spots))
    return frontier_svg(worlds)


def write_docs(folder, points, found, tasks):
    """Write the picture, and the tables between their marks in adaptive.md."""
    page = Path(folder, "adaptive.md")
    Path(folder, "frontier.svg").write_text(draw(points))
    text = page.read_text() if page.exists() else "<!-- policies -->\n<!-- /policies -->\n"
    between = "<!-- policies -->\n" + "\n".join(markdown(found, tasks)) + "\n<!-- /policies -->"
    page.write_text(re.sub("<!-- policies -->.*?<!-- /policies -->", lambda _: between, text, count=1, flags=re.DOTALL))


def plain(value):
    """Return figures as plain data."""
    if isinstance(value, Figure):
        return {"value": value.value, "error": value.error}
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list) else value


def whole(text):
    number = int(text)
    if not 2 <= number <= 100_000:
        raise argparse.ArgumentTypeError(f"must be a whole number from 2 to 100000, got {text}")
    return number


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "worlds", nargs="?", default=HERE / "worlds.toml", metavar="WORLDS.toml", help="the worlds (default: bench/worlds.toml)"
    )
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same figures (0)")
    parser.add_argument("--tasks", type=whole, default=TASKS, help=f"tasks in each world ({TASKS})")
    parser.add_argument("--json", metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--docs", metavar="FOLDER", help="write frontier.svg and the tables in adaptive.md in FOLDER")
    given = parser.parse_args()
    try:
        given.worlds = read(given.worlds)
    except BadWorldError as error:
        parser.error(str(error))
    if given.docs:
        Path(given.docs).mkdir(parents=True, exist_ok=True)
    return given


def main():
    given, began = arguments(), time.perf_counter()
    points, learned, true = play_all(given.worlds, given.seed, given.tasks)
    found = {name: figures_of(policies, [other for other in points if other != name]) for name, policies in points.items()}
    spent = os.times()
    cpu = spent.user + spent.children_user
    show(found, f"{given.tasks} tasks a world, {time.perf_counter() - began:.0f} seconds, {cpu:.0f} of CPU")
    if given.docs:
        write_docs(given.docs, points, found, given.tasks)
    priors = {name: {"learned": learned[name, None].to_dict(), "true": true[name].to_dict()} for name in points}
    figures = {"seed": given.seed, "tasks": given.tasks, "worlds": found, "priors": priors, "goals": list(goals(found))}
    write(given.json, plain(figures))


if __name__ == "__main__":
    main()
