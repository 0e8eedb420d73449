"""Worlds in which the true quality of every text is known: the effects of drafts, refinements and grades.

They deliberately differ from the measurement model of `redraft.quality`: qualities have a ceiling, refinements help or harm by
chance, and scores come in steps, so that the benchmark shows what the plans lose where their model is wrong. All random numbers
are a function of the seed, the task and the step: two policies get the same first draft for the same task, so that their
differences are due to the policies.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import MISSING, dataclass, fields
from math import isfinite
from pathlib import Path
from random import Random
from typing import NamedTuple

KINSHIP = 0.7  # share of a style bias that a refinement inherits
STILL_SD = 0.01  # how much a refinement that neither helps nor hurts moves the quality
VAGUE = 0.7  # factor of `up` without advice on what to change
MOST_WORLDS, MOST_BYTES = 16, 1_000_000
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

    def __post_init__(self):
        if not NAME.fullmatch(self.name):
            raise BadWorldError(f"a world's name is made of 1 to 32 letters, digits, - and _, got {self.name[:40]!r}")
        for f in fields(self)[1:]:
            value, low = getattr(self, f.name), -1 if f.name in {"drift", "leniency"} else 0
            number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
            if not number or not low <= value <= 1 or (f.name == "quantum" and value == 0):
                allowed = "(0, 1]" if f.name == "quantum" else f"[{low}, 1]"
                raise BadWorldError(f"world {self.name!r}: {f.name} must be a number in {allowed}, got {value!r:.40}")
        for what, value, most in (("gap_lo", self.gap_lo, self.gap_hi), ("up + down", self.up + self.down, 1)):
            if value > most + 1e-9:
                raise BadWorldError(f"world {self.name!r}: {what} must be at most {most:g}, got {value:g}")

    @property
    def free(self):
        """Whether the judge is deterministic: it gives the same score every time."""
        return self.judge_sd == 0

    @property
    def hurts(self):
        """Whether a refinement harms more often than it helps."""
        return self.down > self.up

    @classmethod
    def from_table(cls, name, table):
        """Return the world that a table of a file describes."""
        if not isinstance(table, dict):
            raise BadWorldError(f"world {name!r:.40} must be a table, [{name:.32}], got {table!r:.40}")
        known = {f.name: f.default is MISSING for f in fields(cls)[1:]}
        if unknown := sorted(set(table) - set(known)):
            raise BadWorldError(f"world {name!r:.40}: unknown key {unknown[0]!r:.40}; there are {', '.join(known)}")
        if missing := [key for key, needed in known.items() if needed and key not in table]:
            raise BadWorldError(
                f"world {name!r:.40}: {missing[0]} is missing; needed are {', '.join(k for k in known if known[k])}"
            )
        return cls(name, **table)


def read(path):
    """Return the worlds of a file, in order. Raises BadWorldError that names the world, the key and what is allowed."""
    try:
        with Path(path).open("rb") as file:
            tables = tomllib.loads(file.read(MOST_BYTES).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise BadWorldError(f"{path}: {error}") from error
    if not 0 < len(tables) <= MOST_WORLDS:
        raise BadWorldError(f"{path}: must hold 1 to {MOST_WORLDS} worlds, each a table such as [writing], got {len(tables)}")
    return [World.from_table(name, table) for name, table in tables.items()]


class Text(NamedTuple):
    """The hidden truth about a text: its quality, and the judge's lasting bias for or against it."""

    quality: float
    style: float


class Episode:
    """One task of a world. All random numbers follow from `key`."""

    def __init__(self, world, *key):
        self.world, self.key = world, key
        rng = self.rng("task")
        self.ceiling = min(1.0, max(0.0, rng.gauss(world.ceiling, world.ceiling_sd)))
        self.level = self.clip(rng.gauss(world.draft_mean, world.task_sd))
        self.texts, self.revisions, self.seen, self.calls = {}, set(), set(), 0

    def rng(self, *step):
        return Random("/".join(map(str, (*self.key, *step))))

    def clip(self, quality):
        return min(self.ceiling, max(0.0, quality))

    def draft(self, id, *, hinted=False):
        """Write a draft. A hint from an earlier attempt may raise its quality as vague advice does, and never lowers it."""
        self.calls += 1
        rng = self.rng("draft", id)
        quality = self.clip(rng.gauss(self.level, self.world.draft_sd))
        style = rng.gauss(0, self.world.style_sd)
        self.texts[id] = Text(self.refined_quality(quality, rng, VAGUE, 0.0) if hinted else quality, style)

    def refine(self, id, parent, up=1.0):
        """Refine `parent`, which may help or harm."""
        self.calls += 1
        rng, old = self.rng("refine", id), self.texts[parent]
        own = rng.gauss(0, self.world.style_sd) * (1 - KINSHIP**2) ** 0.5
        self.texts[id] = Text(self.refined_quality(old.quality, rng, up), KINSHIP * old.style + own + self.world.drift)
        self.revisions.add(id)

    def refined_quality(self, quality, rng, up=1.0, down=1.0):
        """Return a quality after a refinement; `up` and `down` multiply the probabilities of a gain and of a loss."""
        world, chance = self.world, rng.random()
        if chance < world.up * up:
            quality += rng.uniform(world.gap_lo, world.gap_hi) * (self.ceiling - quality)
        elif chance >= 1 - world.down * down:
            quality -= rng.expovariate(1.0) * world.drop
        else:
            quality += rng.gauss(0, STILL_SD)
        return self.clip(quality)

    def grade(self, id, repeat=0):
        """Return the judge's score of a text, in steps from 0 to 1."""
        self.calls += 1
        world, text = self.world, self.texts[id]
        score = text.quality + text.style + self.rng("grade", id, repeat).gauss(0, world.judge_sd)
        score += world.leniency * len(self.seen - {id})
        self.seen |= {id} & self.revisions
        return min(1.0, max(0.0, round(round(score / world.quantum) * world.quantum, 9)))

    def advise(self):
        """Count a call that returns advice."""
        self.calls += 1
