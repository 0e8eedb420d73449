"""Worlds in which the true quality of every text is known: the effects of drafts, refinements and
grades.

They deliberately differ from the measurement model of `redraft.plans.quality`: qualities have a
ceiling, refinements help or harm by chance, and scores come in steps, so that the benchmark shows
what the plans lose where their model is wrong. All random numbers are a function of the world's
name, the seed, the task and the step: two policies get the same first draft for the same task, so
that their differences are due to the policies; two worlds share no luck, so that a mean over worlds
is as exact as its standard error says.
"""

from __future__ import annotations

import re
import tomllib
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from math import isfinite
from pathlib import Path
from random import Random
from typing import NamedTuple

KINSHIP = 0.7  # share of a style bias that a refinement inherits
STILL_SD = 0.01  # how much a refinement that neither helps nor hurts moves the quality
# factor of the deviations in heavy tails: Tukey 1960, "A survey of sampling from contaminated
# distributions"
TAIL = 3.0
MOST_WORLDS, MOST_BYTES = 64, 1_000_000
MOST_DRIFT = 0.02  # of a judge that still counts as unbiased
POSITIVE = {"quantum", "saturates_at"}
NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


class BadWorldError(ValueError):
    """A file of worlds is invalid."""


@dataclass(frozen=True, slots=True)
class World:
    """How tasks, a writer and a judge behave; worlds.toml says what each number means."""

    name: str
    draft_mean: float
    task_sd: float
    draft_sd: float
    ceiling: float
    ceiling_sd: float
    up: float
    down: float
    gap_lo: float
    gap_hi: float
    drop: float
    judge_sd: float
    style_sd: float
    drift: float
    quantum: float
    leniency: float = 0.0
    vague: float = 0.7
    quality_step: float = 0.0
    binary_at: float = 0.0
    saturates_at: float = 1.0
    judge_sd_bad: float | None = None
    judge_tails: float = 0.0
    draft_tails: float = 0.0
    silent: float = 0.0
    silent_bad: float = 0.0
    easy: float = 0.0
    easy_at: float = 0.95
    impossible: float = 0.0
    impossible_at: float = 0.2

    def __post_init__(self):
        if not NAME.fullmatch(self.name):
            raise BadWorldError(
                "a world's name is made of 1 to 32 letters, digits, - and _, got "
                f"{self.name[:40]!r}"
            )
        for f in fields(self)[1:]:
            value, low = getattr(self, f.name), -1 if f.name in {"drift", "leniency"} else 0
            number = (
                isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
            )
            if value is None and f.default is None:
                continue
            if not number or not low <= value <= 1 or (f.name in POSITIVE and value == 0):
                allowed = "(0, 1]" if f.name in POSITIVE else f"[{low}, 1]"
                raise BadWorldError(
                    f"world {self.name!r}: {f.name} must be a number in {allowed}, got "
                    f"{value!r:.40}"
                )
        for what, value, most in (
            ("gap_lo", self.gap_lo, self.gap_hi),
            ("up + down", self.up + self.down, 1),
            ("silent + silent_bad", self.silent + self.silent_bad, 1),
            ("easy + impossible", self.easy + self.impossible, 1),
        ):
            if value > most + 1e-9:
                raise BadWorldError(
                    f"world {self.name!r}: {what} must be at most {most:g}, got {value:g}"
                )

    @property
    def free(self):
        """Whether the judge is deterministic: it gives the same score every time."""
        return self.judge_sd == 0 and not self.judge_sd_bad

    @property
    def plain(self):
        """Whether tasks and judge follow the Gaussian numbers alone: no key of another kind of
        judge or task is set.
        """
        usual = (
            self.binary_at == 0
            and self.saturates_at == 1
            and self.quality_step == 0
            and self.judge_sd_bad is None
        )
        return usual and not (self.judge_tails or self.draft_tails or self.easy or self.impossible)

    @property
    def unbiased(self):
        """Whether the judge's mean score of texts is their mean quality, but for the ends of the
        scale.
        """
        return (
            abs(self.drift) <= MOST_DRIFT
            and self.leniency == 0
            and self.saturates_at == 1
            and self.binary_at == 0
        )

    def noise_sd(self, quality):
        """Return the standard deviation of the judge's noise for a text of this quality."""
        bad = self.judge_sd if self.judge_sd_bad is None else self.judge_sd_bad
        return bad + (self.judge_sd - bad) * quality

    def score(self, impression):
        """Return what the judge says of a text that makes this impression on it: quality, style and
        noise together.
        """
        if self.binary_at:
            return float(impression >= self.binary_at)
        score = impression / self.saturates_at
        return min(1.0, max(0.0, round(round(score / self.quantum) * self.quantum, 9)))

    @property
    def hurts(self):
        """Whether a refinement harms more often than it helps."""
        return self.down > self.up

    @classmethod
    def from_table(cls, name, table):
        """Return the world that a table of a file describes."""
        if not isinstance(table, dict):
            raise BadWorldError(
                f"world {name!r:.40} must be a table, [{name:.32}], got {table!r:.40}"
            )
        known = {f.name: f.default is MISSING for f in fields(cls)[1:]}
        if unknown := sorted(set(table) - set(known)):
            raise BadWorldError(
                f"world {name!r:.40}: unknown key {unknown[0]!r:.40}; there are {', '.join(known)}"
            )
        if missing := [key for key, needed in known.items() if needed and key not in table]:
            raise BadWorldError(
                f"world {name!r:.40}: {missing[0]} is missing; needed are "
                f"{', '.join(k for k in known if known[k])}"
            )
        return cls(name, **table)


def read(path):
    """Return the worlds of a file, in order. Raises BadWorldError that names the world, the key and
    what is allowed.
    """
    try:
        with Path(path).open("rb") as file:
            tables = tomllib.loads(file.read(MOST_BYTES).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise BadWorldError(f"{path}: {error}") from error
    if not 0 < len(tables) <= MOST_WORLDS:
        raise BadWorldError(
            f"{path}: must hold 1 to {MOST_WORLDS} worlds, each a table such as [writing], got "
            f"{len(tables)}"
        )
    return [World.from_table(name, table) for name, table in tables.items()]


class Text(NamedTuple):
    """The hidden truth about a text: its quality, and the judge's lasting bias for or against
    it.
    """

    quality: float
    style: float


class Episode:
    """One task of a world. All random numbers follow from the world's name and `key`.

    `calls` counts model calls, `rounds` those that had to wait for one another: calls within
    `at_once` take one round together.
    """

    def __init__(self, world, *key):
        self.world, self.key = world, (world.name, *key)
        rng = self.rng("task")
        self.ceiling = min(1.0, max(0.0, rng.gauss(world.ceiling, world.ceiling_sd)))
        level = rng.gauss(world.draft_mean, world.task_sd)
        if world.easy or world.impossible:
            level = self.mixed_level(level, rng.random())
        self.level = self.clip(level)
        self.texts, self.revisions, self.seen = {}, set(), set()
        self.calls, self.rounds, self.together = 0, 0, False

    def mixed_level(self, level, chance):
        """Return the level of a task that may be easy or impossible, and set its ceiling."""
        if chance < self.world.easy:
            self.ceiling = max(self.ceiling, self.world.easy_at)
            return self.world.easy_at
        if chance >= 1 - self.world.impossible:
            self.ceiling = min(self.ceiling, self.world.impossible_at)
            return self.world.impossible_at
        return level

    def rng(self, *step):
        return Random("/".join(map(str, (*self.key, *step))))

    def clip(self, quality):
        quality = min(self.ceiling, max(0.0, quality))
        return (
            round(round(quality / step) * step, 9) if (step := self.world.quality_step) else quality
        )

    def count(self):
        """Count a call."""
        self.calls += 1
        self.rounds += not self.together

    @contextmanager
    def at_once(self):
        """Count the calls made within as one round."""
        calls, self.together = self.calls, True
        yield
        self.together = False
        self.rounds += self.calls > calls

    def draft(self, id, *, hinted=False, vague=None):
        """Write a draft. A hint from an earlier attempt may raise its quality as vague advice does,
        and never lowers it.
        """
        self.count()
        rng = self.rng("draft", id)
        quality = self.clip(
            self.level
            + self.with_tails(
                rng.gauss(0, self.world.draft_sd), self.world.draft_tails, "draft", id
            )
        )
        style = rng.gauss(0, self.world.style_sd)
        up = self.world.vague if vague is None else vague
        self.texts[id] = Text(
            self.refined_quality(quality, rng, up, 0.0) if hinted else quality, style
        )

    def with_tails(self, deviation, share, *step):
        """Return a deviation that is multiplied by `TAIL` in a share of the steps."""
        return deviation * TAIL if share and self.rng("tail", *step).random() < share else deviation

    def refine(self, id, parent, up=1.0):
        """Refine `parent`, which may help or harm; `up` multiplies the probability of a gain."""
        self.count()
        rng, old = self.rng("refine", id), self.texts[parent]
        own = rng.gauss(0, self.world.style_sd) * (1 - KINSHIP**2) ** 0.5
        self.texts[id] = Text(
            self.refined_quality(old.quality, rng, up), KINSHIP * old.style + own + self.world.drift
        )
        self.revisions.add(id)

    def refined_quality(self, quality, rng, up=1.0, down=1.0):
        """Return a quality after a refinement; `up` and `down` multiply the probabilities of a gain
        and of a loss.
        """
        world, chance = self.world, rng.random()
        if chance < world.up * up:
            quality += rng.uniform(world.gap_lo, world.gap_hi) * (self.ceiling - quality)
        elif chance >= 1 - world.down * down:
            quality -= rng.expovariate(1.0) * world.drop
        else:
            quality += rng.gauss(0, STILL_SD)
        return self.clip(quality)

    def grade(self, id, repeat=0):
        """Return the judge's score of a text, in steps from 0 to 1; None if its answer cannot be
        read.
        """
        self.count()
        world, text, rng = self.world, self.texts[id], self.rng("grade", id, repeat)
        noise = self.with_tails(
            rng.gauss(0, world.noise_sd(text.quality)), world.judge_tails, "grade", id, repeat
        )
        score = world.score(
            text.quality + text.style + noise + world.leniency * len(self.seen - {id})
        )
        self.seen |= {id} & self.revisions
        return (
            None if rng.random() < world.silent + world.silent_bad * (1 - text.quality) else score
        )

    def advise(self):
        """Count a call that returns advice."""
        self.count()
