"""The key of a row: the hash of everything that determines its result, part by part.

When a part changes, the row is redone, and the run can say why. Budgets, retries, time limits and concurrency determine when a
result arrives, not what it is: they are not part of the key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from hashlib import sha256
from typing import Any

import orjson

from ..core.records import Task
from ..core.serialize import pack
from ..graders.fingerprint import grader_fingerprint
from ..options import Options
from ..perform import Roles
from ..plans import NoiseAwarePlan, Plan
from ..quality.priors import Priors
from ..session import Session

UNSPECIFIED = Priors(**dict.fromkeys((f.name for f in fields(Priors)), 0))  # stands for all priors that the user did not give
VERSION = 1  # of the key: counts as a part of it
TASK_FIELDS = ("messages", "response", "reference", "context", "tests", "requirements", "metadata", "tools", "tool_choice")


class RowKeys:
    """The keys of a run's rows. `settings` are the parts that all rows share, `shared` is one key for them."""

    def __init__(self, session: Session, plan: Plan) -> None:
        _, roles = session.common_panel()
        self.settings = settings_parts(session, plan)
        self.shared = row_key(self.settings)
        self._metadata = reads_metadata(roles.graders.values())

    def parts(self, task: Task) -> dict[str, str]:
        """Return the parts of a row; "settings" stands for all that it shares with the others."""
        return {"settings": self.shared, **task_parts(task, metadata=self._metadata)}


def settings_parts(session: Session, plan: Plan) -> dict[str, str]:
    """Return the parts that all rows of a run share."""
    _, roles = session.common_panel()
    options = session.options
    sampling = {"temperature": options.temperature, "max_tokens": options.max_tokens, "seed": options.seed}
    return {
        "version": str(VERSION),
        "model": short_hash(roles.writer.identity if roles.writer else ""),
        "sampling": short_hash(sampling),
        "plan": grader_fingerprint(_without_learned_priors(plan, options), lambda _: None),
        "editor": grader_fingerprint(roles.editor, lambda _: None) if roles.editor else "none",
        **_grader_parts(session, roles),
    }


def _without_learned_priors(plan: Plan, options: Options) -> Plan:
    """Return the plan without learned priors: priors count only if the user gave them."""
    if not isinstance(plan, NoiseAwarePlan) or options.plan is not None or isinstance(options.priors, Priors):
        return plan
    return plan.with_priors(UNSPECIFIED)


def _grader_parts(session: Session, roles: Roles) -> dict[str, str]:
    panel, _ = session.common_panel()
    deciding: dict[str, list[Any]] = {}
    for grader in panel:
        reads = ["tool_calls"] if grader.reads_tool_calls else []
        deciding[grader.name] = [grader.weight, grader.must, grader.repeats, session.fingerprint(roles, grader.name), *reads]
    return {f"grader {name}": short_hash(what) for name, what in deciding.items()}


def task_parts(task: Task, *, metadata: bool) -> dict[str, str]:
    """Return the parts of a task that are set. `metadata`: whether metadata counts, because a grader may read it."""
    packed = pack(task)
    return {name: short_hash(packed[name]) for name in TASK_FIELDS if name in packed and (metadata or name != "metadata")}


def content_id(task: Task) -> str:
    """Return an ID for a row that has none: a hash of its whole task."""
    return hash_data(task_parts(task, metadata=True))[:16]


def reads_metadata(graders: Iterable[Any]) -> bool:
    """Return whether a grader, or a part of one, may read a task's metadata: any grader that is not Redraft's own."""
    return any(_may_read_metadata(g) or reads_metadata(getattr(g, "parts", ())) for g in graders)


def _may_read_metadata(grader: Any) -> bool:
    return bool(getattr(grader, "reads_metadata", not type(grader).__module__.startswith("redraft.")))


def row_key(*parts: Mapping[str, str]) -> str:
    """Return one key for all parts."""
    return hash_data({name: value for part in parts for name, value in part.items()})


def hash_data(value: Any) -> str:
    """Return the SHA-256 of plain data in hex, whatever characters it holds."""
    try:
        text = orjson.dumps(value, default=str, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # half a surrogate pair, or a number beyond 64 bits
        text = json.dumps(value, sort_keys=True, default=str).encode()
    return sha256(text).hexdigest()


def short_hash(value: Any) -> str:
    """Return the first 12 hex digits of the hash: enough to detect a change."""
    return hash_data(value)[:12]


def changed_parts(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return the names of the parts that differ."""
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
