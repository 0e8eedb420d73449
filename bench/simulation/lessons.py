"""What a default batch learns, and what the lesson costs."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import NamedTuple

from redraft.loop.task import Task
from redraft.loop.trace import PanelGrader
from redraft.plans import NoiseAwarePlan
from redraft.plans.quality.priors import Priors
from redraft.runs.dataset import BatchRow, PendingRow
from redraft.runs.online_priors import OnlinePriors, RefitSchedule, second_look_rows
from redraft.session.options import Options
from redraft.storage.priors_store import PriorsKey

from .players import Performer, grow_trace, run_plan
from .worlds import Episode

SPREAD_OVER = 256  # rows among which the cost of a lesson is divided


class Lesson(NamedTuple):
    """The priors that a lesson ended with, and its tuition: calls beyond those of the plain plan,
    for each of `SPREAD_OVER` rows.

    `extra` are the calls of the lesson beyond those of the plain plan, as a share of the latter.
    """

    priors: Priors
    tuition: float = 0.0
    extra: float = 0.0


@dataclass
class LessonJournal:
    """The part of a journal that learning uses."""

    traces: dict = field(default_factory=dict)

    def trace(self, run, id):
        return self.traces.get(id)

    def metadata(self, name):
        return {}

    def update_run(self, name, **metadata):
        pass


def default_plan(world, start=None, **settings):
    """Return the plan of `refine` and `redraft batch`, by default with default settings; `start`
    are other priors to begin with.
    """
    settings.setdefault("noise_aware", True if settings else None)
    plan = Options(**settings).make_plan(writes=True, noisy=not world.free)
    return plan.with_priors(start) if start and isinstance(plan, NoiseAwarePlan) else plan


def teach(world, rows, seed, start=None):
    """Return what a default batch of so many rows learns for other runs. The rows occur nowhere
    else.

    Learning is that of the package (`redraft.runs.online_priors`). Where the judge computes, the
    batch asks for that plan.
    """
    episodes = lesson_episodes(world, rows, seed)
    plan = default_plan(world, start, noise_aware=True)
    with own_data_folder():
        learned = asyncio.run(run_batch(plan, episodes, start or Priors()))
    plain = sum(played.calls for played in run_plan(plan, lesson_episodes(world, rows, seed)))
    more = max(0, sum(episode.calls for episode in episodes) - plain)
    return Lesson(learned, more / SPREAD_OVER, more / plain)


def lesson_episodes(world, rows, seed):
    return [Episode(world, seed, "lesson", k) for k in range(rows)]


async def run_batch(plan, episodes, start):
    """Run the rows of a batch one after the other, and return the priors that it saves for other
    runs.
    """
    journal = LessonJournal()
    looks = second_look_rows(
        (PanelGrader("judge", model_free=episodes[0].world.free),), start, len(episodes)
    )
    first = (
        OnlinePriors.first_calibrated_refit
        if looks or episodes[0].world.free
        else OnlinePriors.first_refit
    )
    schedule = RefitSchedule(start, first=first, second_looks=looks)
    policy = OnlinePriors(schedule, journal, "lesson", "", no_wait, lambda: False, lambda _: None)
    for n, episode in enumerate(episodes):
        row = PendingRow(BatchRow(n, "", {}, Task("Write it well.", id=str(n))), "", {}, None)
        await policy.row_seen(row, None)
        policy.row_started(row)
        trace = journal.traces[row.id] = grow_trace(
            policy.plan_for(row, plan, None), Performer(episode)
        )
        policy.row_finished(row, trace)
        policy.row_saved(row)
    saved = await policy.save_for_other_runs(
        PriorsKey("0" * 16, "model", ("judge",), ("judge",)), "{rows} rows of a lesson"
    )
    return saved[1] if saved else start


async def no_wait(condition, seconds):
    """Return at once: the rows of a lesson end in turn."""


@contextmanager
def own_data_folder():
    """Let the package keep its data in a folder of its own that is deleted at the end."""
    before = os.environ.get("REDRAFT_HOME")
    with TemporaryDirectory() as folder:
        os.environ["REDRAFT_HOME"] = folder
        try:
            yield
        finally:
            del os.environ["REDRAFT_HOME"]
            if before is not None:
                os.environ["REDRAFT_HOME"] = before
