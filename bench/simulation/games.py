"""Plays policies in worlds, in a pool of processes."""

from __future__ import annotations

import sys
from bisect import bisect_left
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context

from redraft.plans.quality.priors import Priors

from .beliefs import true_priors
from .catalogue import (
    BELIEFS,
    FEWER_PRICES,
    FOREIGN,
    JUDGED,
    LEARNED,
    LESSONS,
    RELEARNED,
    SHIPPED,
    TRUE,
    after_lesson,
    as_noisy,
    at_prices,
    charged,
    default_after,
    defaults,
    in_budgets,
    rivals,
)
from .figures import Point
from .lessons import Lesson, teach
from .worlds import Episode

WORKERS = 2


def play(world, player, seed, tasks):
    """Let a player process the tasks of a world."""
    return tuple(player([Episode(world, seed, k) for k in range(tasks)]))


def play_near(world, players, calls, seed, tasks):
    """Play at the two neighbouring prices between which a policy makes this mean number of calls;
    return both results.

    They are found by bisection with a fifth of the tasks, and moved until they hold for all.
    """
    prices = sorted(players, reverse=True)  # the lower the price, the more calls

    @cache
    def point(i, tasks):
        return Point(prices[i], play(world, players[prices[i]], seed, tasks))

    high = min(
        bisect_left(range(len(prices)), calls, 1, key=lambda i: point(i, max(2, tasks // 5)).calls),
        len(prices) - 1,
    )
    while high > 1 and point(high - 1, tasks).calls > calls:
        high -= 1
    while high < len(prices) - 1 and point(high, tasks).calls < calls:
        high += 1
    return [(prices[i], point(i, tasks).plays) for i in (high - 1, high)]


def any_name(name):
    """Choose every policy."""
    return bool(name)


class Games:
    """Plays policies, setting by setting. `chosen(name)`: whether a policy is to be played."""

    def __init__(self, pool, seed, tasks, chosen=any_name):
        self.pool, self.seed, self.tasks, self.chosen = pool, seed, tasks, chosen
        self.jobs, self.done = {}, 0

    def add(self, world, policies, calls=()):
        """Play policies at all their settings; those with prices only near these numbers of calls,
        if there are any.
        """
        for name, settings in policies.items():
            if not self.chosen(name):
                continue
            if calls and name in BELIEFS:
                for n in calls:
                    self.submit((world.name, name, None), play_near, world, settings, n)
            else:
                for setting, player in settings.items():
                    self.submit((world.name, name, setting), play, world, player)

    def submit(self, key, play, *args):
        job = self.pool.submit(play, *args, self.seed, self.tasks)
        job.add_done_callback(self.count)
        self.jobs[job] = key

    def count(self, job):
        """Show progress."""
        self.done += 1
        if self.done % 200 == 0:
            print(f"{self.done} points ...", file=sys.stderr, flush=True)

    def points(self):
        """Return the points by world, policy and setting, in the order in which they were added."""
        found = {}
        for job, (world, name, setting) in self.jobs.items():
            played = job.result() if setting is None else [(setting, job.result())]
            found.setdefault(world, {}).setdefault(name, {}).update(
                {setting: Point(setting, plays) for setting, plays in played}
            )
        return {
            w: {n: [ps[s] for s in sorted(ps)] for n, ps in policies.items()}
            for w, policies in found.items()
        }


class Beliefs:
    """The priors with which the plan can start in each world: learned, true, and those of another
    world. Each is made once.
    """

    def __init__(self, pool, seed, worlds):
        self.pool, self.seed, self.worlds, self.jobs = pool, seed, worlds, {}

    def order(self, name, world):
        """Begin to make the priors of a policy. Nothing is to be made for the shipped ones."""
        other = self.opposite(world)
        if name in LESSONS:
            self.submit(name, world, teach, world, LESSONS[name])
        elif name == TRUE:
            self.submit(name, world, true_lesson, world)
        elif name == FOREIGN and other:
            self.submit(name, world, true_lesson, other)
        elif name == RELEARNED and other:
            self.submit(name, world, teach_again, world, other)

    def submit(self, name, world, make, *args):
        if (name, world.name) not in self.jobs:
            self.jobs[name, world.name] = self.pool.submit(make, *args, self.seed)

    def lesson(self, name, world):
        """Return the priors of a policy and their tuition; None if no other world is unlike this
        one.
        """
        if name == SHIPPED:
            return Lesson(Priors())
        self.order(name, world)
        job = self.jobs.get((name, world.name))
        return job and job.result()

    def made(self):
        """Return the priors that were made, with their tuition, by world and policy."""
        made = {}
        for (name, world), job in self.jobs.items():
            made.setdefault(world, {})[name] = {
                **job.result()._asdict(),
                "priors": job.result().priors.to_dict(),
            }
        return made

    def opposite(self, world):
        """Return the first world where refinements harm if they help here, and the other way
        round.
        """
        return next((other for other in self.worlds if other.hurts is not world.hurts), None)


def true_lesson(world, seed):
    return Lesson(true_priors(world, seed))


def teach_again(world, other, seed):
    """Return what a batch learns that begins with the true priors of another world."""
    return teach(world, LESSONS[LEARNED], seed, true_priors(other, seed))


def variants(name):
    """Return the names of the policies that begin with the same priors."""
    return [
        name,
        *in_budgets(name, Priors()),
        default_after(name),
    ]


def policies_of(world, beliefs, chosen, calls=()):
    """Yield the policies of a world that are chosen; with `calls`, those that can be played at
    these numbers of calls a task.
    """
    yield {**rivals(), **defaults(world), **({} if calls else as_noisy(world))}
    for name in BELIEFS:
        if not any(map(chosen, variants(name))):
            continue
        lesson = beliefs.lesson(name, world)
        budgets = (
            {}
            if name == SHIPPED and not calls
            else {"apiece": calls or JUDGED, "shared": calls or JUDGED[:1]}
        )
        policies = {**at_prices(name, lesson.priors), **in_budgets(name, lesson.priors, **budgets)}
        yield charged({**policies, **after_lesson(name, world, lesson.priors)}, lesson.tuition)
    for name in () if calls else (FOREIGN, RELEARNED):
        if chosen(name) and (lesson := beliefs.lesson(name, world)):
            yield charged(at_prices(name, lesson.priors, FEWER_PRICES), lesson.tuition)


def play_all(worlds, seed, tasks, chosen=any_name, calls=()):
    """Play the chosen policies. Return the points by world, policy and setting, and the priors by
    world and policy.
    """
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        games, beliefs = Games(pool, seed, tasks, chosen), Beliefs(pool, seed, worlds)
        for world in worlds:
            for name in (*BELIEFS, FOREIGN, RELEARNED):
                if any(map(chosen, variants(name))) and not (
                    calls and name in {FOREIGN, RELEARNED}
                ):
                    beliefs.order(name, world)
        for world in worlds:
            for policies in policies_of(world, beliefs, chosen, calls):
                games.add(world, policies, calls)
        points = games.points()
        return {world.name: points.get(world.name, {}) for world in worlds}, beliefs.made()
