"""Worlds where the true quality of every text is known: what drafts, refinements and grades do in them.

All chance is a function of the seed, the task and the step. Two policies that meet the same task write the same first draft,
so that what is left between them is their own doing.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import MISSING, dataclass, fields
from math import isfinite
from pathlib import Path
from random import Random
from typing import NamedTuple

KINSHIP = 0.7  # how much of a style bias a revision inherits
STILL_SD = 0.01  # how much a refinement that neither helps nor hurts moves the quality
VAGUE = 0.7  # what `up` is multiplied by where nobody says what to change
MOST_WORLDS, MOST_BYTES = 16, 1_000_000
NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


class BadWorldError(ValueError):
    """A file of worlds that cannot be."""


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
        """Whether the judge computes: it says the same every time."""
        return self.judge_sd == 0

    @property
    def hurts(self):
        """Whether a refinement harms more often than it helps."""
        return self.down > self.up

    @classmethod
    def of(cls, name, table):
        """From its table in a file."""
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
    """The worlds of a file, in its order. Raises BadWorldError that names the world, the key and what is allowed."""
    try:
        with Path(path).open("rb") as file:
            tables = tomllib.loads(file.read(MOST_BYTES).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise BadWorldError(f"{path}: {error}") from error
    if not 0 < len(tables) <= MOST_WORLDS:
        raise BadWorldError(f"{path}: must hold 1 to {MOST_WORLDS} worlds, each a table such as [writing], got {len(tables)}")
    return [World.of(name, table) for name, table in tables.items()]


class Text(NamedTuple):
    """What is true of a text, and no policy is told: its quality, and the judge's lasting bias for or against it."""

    quality: float
    style: float


class Episode:
    """One task of a world, while a policy works at it. `key` decides all that is left to chance."""

    def __init__(self, world, *key):
        self.world, self.key = world, key
        luck = self.luck("task")
        self.ceiling = min(1.0, max(0.0, luck.gauss(world.ceiling, world.ceiling_sd)))
        self.level = self.within(luck.gauss(world.draft_mean, world.task_sd))
        self.texts, self.revisions, self.seen, self.calls = {}, set(), set(), 0

    def luck(self, *step):
        return Random("/".join(map(str, (*self.key, *step))))

    def within(self, quality):
        return min(self.ceiling, max(0.0, quality))

    def draft(self, id, *, hinted=False):
        """Write a draft. A hint from an earlier attempt may lift it as vague advice does, and never harms."""
        self.calls += 1
        luck = self.luck("draft", id)
        quality = self.within(luck.gauss(self.level, self.world.draft_sd))
        style = luck.gauss(0, self.world.style_sd)
        self.texts[id] = Text(self.moved(quality, luck, VAGUE, 0.0) if hinted else quality, style)

    def refine(self, id, parent, up=1.0):
        """Write a better version of `parent`, or what comes of trying."""
        self.calls += 1
        luck, old = self.luck("refine", id), self.texts[parent]
        own = luck.gauss(0, self.world.style_sd) * (1 - KINSHIP**2) ** 0.5
        self.texts[id] = Text(self.moved(old.quality, luck, up), KINSHIP * old.style + own + self.world.drift)
        self.revisions.add(id)

    def moved(self, quality, luck, up=1.0, down=1.0):
        """A quality after a refinement; `up` and `down` multiply the chances of either."""
        world, chance = self.world, luck.random()
        if chance < world.up * up:
            quality += luck.uniform(world.gap_lo, world.gap_hi) * (self.ceiling - quality)
        elif chance >= 1 - world.down * down:
            quality -= luck.expovariate(1.0) * world.drop
        else:
            quality += luck.gauss(0, STILL_SD)
        return self.within(quality)

    def grade(self, id, look=0):
        """The judge's score of a text, on its scale from 0 to 1."""
        self.calls += 1
        world, text = self.world, self.texts[id]
        said = text.quality + text.style + self.luck("grade", id, look).gauss(0, world.judge_sd)
        said += world.leniency * len(self.seen - {id})
        self.seen |= {id} & self.revisions
        return min(1.0, max(0.0, round(round(said / world.quantum) * world.quantum, 9)))

    def advise(self):
        """A call that writes down what to do better."""
        self.calls += 1
