"""What decides a row's result, part by part: when a part changes, the row is redone, and it can be said why.

Budgets, retries, time limits and how much is in flight decide when something comes, not what: they are no part of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from hashlib import sha256
from typing import Any

import orjson

from ..core.records import Task
from ..core.serialize import pack
from ..graders.fingerprint import grader_fingerprint
from ..options import Options
from ..perform import Roles
from ..plans import Plan
from ..plans.adaptive import Adaptive
from ..quality.priors import Priors
from ..session import Session

UNTOLD = Priors(**dict.fromkeys((f.name for f in fields(Priors)), 0))  # stands for all that a user did not give
VERSION = 1  # of the key: counts as a part of it
OF_A_TASK = ("messages", "response", "reference", "context", "tests", "requirements", "metadata", "tools", "tool_choice")


class Keys:
    """What decides results in a run. `settings` are the parts that all its rows share, `shared` is one key for them."""

    def __init__(self, desk: Session, plan: Plan) -> None:
        _, cast = desk.common_panel()
        self.settings = settings_parts(desk, plan)
        self.shared = key_of(self.settings)
        self._metadata = reads_metadata(cast.graders.values())

    def parts(self, task: Task) -> dict[str, str]:
        """The parts of a row, `settings` for all that it shares with the others."""
        return {"settings": self.shared, **task_parts(task, metadata=self._metadata)}


def settings_parts(desk: Session, plan: Plan) -> dict[str, str]:
    """The parts that all rows of a run share."""
    _, cast = desk.common_panel()
    options = desk.options
    sampling = {"temperature": options.temperature, "max_tokens": options.max_tokens, "seed": options.seed}
    return {
        "version": str(VERSION),
        "model": short(cast.writer.identity if cast.writer else ""),
        "sampling": short(sampling),
        "plan": grader_fingerprint(_as_asked(plan, options), lambda _: None),
        "editor": grader_fingerprint(cast.editor, lambda _: None) if cast.editor else "none",
        **_graders(desk, cast),
    }


def _as_asked(plan: Plan, options: Options) -> Plan:
    """The plan without what was learned since: priors count where a user gave them."""
    if not isinstance(plan, Adaptive) or options.plan is not None or isinstance(options.priors, Priors):
        return plan
    return replace(plan, priors=UNTOLD)


def _graders(desk: Session, cast: Roles) -> dict[str, str]:
    panel, _ = desk.common_panel()
    told: dict[str, list[Any]] = {}
    for seat in panel:
        reads = ["tool_calls"] if seat.reads_tool_calls else []
        told[seat.name] = [seat.weight, seat.must, seat.repeats, desk.fingerprint(cast, seat.name), *reads]
    return {f"grader {name}": short(what) for name, what in told.items()}


def task_parts(task: Task, *, metadata: bool) -> dict[str, str]:
    """The parts of a task, those that hold something. `metadata` counts where a grader may read it."""
    packed = pack(task)
    return {name: short(packed[name]) for name in OF_A_TASK if name in packed and (metadata or name != "metadata")}


def content_id(task: Task) -> str:
    """An id for a row that has none: a hash of all that the task holds."""
    return hashed(task_parts(task, metadata=True))[:16]


def reads_metadata(graders: Iterable[Any]) -> bool:
    """Whether one of the graders, or of their parts, may read what a task holds beside its named fields: any foreign one."""
    return any(_reads(g) or reads_metadata(getattr(g, "parts", ())) for g in graders)


def _reads(grader: Any) -> bool:
    return bool(getattr(grader, "reads_metadata", not type(grader).__module__.startswith("redraft.")))


def key_of(*parts: Mapping[str, str]) -> str:
    """One key for all parts."""
    return hashed({name: value for part in parts for name, value in part.items()})


def hashed(value: Any) -> str:
    """64 hex digits for plain data, whatever characters are in it."""
    try:
        text = orjson.dumps(value, default=str, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # half a surrogate pair, or a number beyond 64 bits
        text = json.dumps(value, sort_keys=True, default=str).encode()
    return sha256(text).hexdigest()


def short(value: Any) -> str:
    """Enough of a hash to tell changes apart."""
    return hashed(value)[:12]


def changed(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """The names of the parts that differ."""
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
