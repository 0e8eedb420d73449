"""The key of a row: a hash of everything that determines its result, with a hash of each part.

A row is redone when its key changes, and the parts that differ are the reason. Budgets, retries,
time limits and concurrency are not part of the key: they determine when a result arrives, not what
it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from hashlib import sha256
from operator import attrgetter
from typing import Any

from ..base.jsontext import dumps
from ..graders.fingerprint import grader_fingerprint
from ..graders.traits import GraderTraits
from ..loop.task import Task
from ..loop.trace import PanelGrader
from ..plans import Plan, plan_traits
from ..plans.quality.priors import Priors
from ..session.options import Options
from ..session.perform import Roles
from ..session.session import Session

# replaces priors that the user did not give
UNSPECIFIED = Priors(**dict.fromkeys((f.name for f in fields(Priors)), 0))
VERSION = 1  # a part of every key
RESPONSES = ("response", "responses")
TASK_FIELDS = (
    "messages",
    *RESPONSES,
    "reference",
    "context",
    "tests",
    "requirements",
    "metadata",
    "tools",
    "tool_choice",
)
TASK_VALUES = attrgetter(*TASK_FIELDS)


class RowKeys:
    """Makes the keys of a run's rows. `settings` are the parts that all rows share, `shared` is the
    key of these parts.
    """

    def __init__(self, session: Session, plan: Plan) -> None:
        _, roles = session.common_panel()
        self.settings = settings_parts(session, plan)
        self.shared = row_key(self.settings)
        prompts = plan_traits(plan).prompts
        self._metadata = reads_metadata(roles.traits.values()) or bool(
            prompts and prompts.reads_metadata
        )

    def parts(self, task: Task) -> dict[str, str]:
        """Return the parts of a row's key; "settings" is the key of the shared parts."""
        return {"settings": self.shared, **task_parts(task, metadata=self._metadata)}


def settings_parts(session: Session, plan: Plan) -> dict[str, str]:
    """Return the parts that all rows of a run share."""
    panel, roles = session.common_panel()
    options = session.options
    sampling = {
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
        "seed": options.seed,
    }
    return {
        "version": str(VERSION),
        "model": short_hash(roles.writer.identity if roles.writer else ""),
        "sampling": short_hash(sampling),
        "plan": grader_fingerprint(_without_learned_priors(plan, options), lambda _: None),
        "editor": grader_fingerprint(roles.editor, lambda _: None) if roles.editor else "none",
        **{f"grader {grader.name}": _grader_part(session, roles, grader) for grader in panel},
    }


def _without_learned_priors(plan: Plan, options: Options) -> Plan:
    """Return the plan without its priors, unless the user gave them: fitted priors are not part of
    the key.
    """
    noise_aware = plan_traits(plan).noise_aware
    if noise_aware is None or options.plan is not None or isinstance(options.priors, Priors):
        return plan
    return noise_aware.with_priors(UNSPECIFIED)


def _grader_part(session: Session, roles: Roles, grader: PanelGrader) -> str:
    fingerprint = session.fingerprint(roles, grader.name)
    inputs = ["tool_calls"] if grader.reads_tool_calls else []
    return short_hash([grader.weight, grader.must, grader.repeats, fingerprint, *inputs])


def task_parts(task: Task, *, metadata: bool) -> dict[str, str]:
    """Return the parts of a task that are set, without its metadata unless `metadata` is true."""
    return {
        name: hash_data(value)[:12]
        for name, value in zip(TASK_FIELDS, TASK_VALUES(task), strict=True)
        if value and (metadata or name != "metadata")
    }


def content_id(task: Task) -> str:
    """Return an ID for a row without one: a hash of the task."""
    return hash_data(task_parts(task, metadata=True))[:16]


def reads_metadata(graders: Iterable[GraderTraits]) -> bool:
    """Return whether a grader, or a part of one, may read a task's metadata."""
    return any(each.reads_metadata for traits in graders for each in traits.walk())


def row_key(parts: dict[str, str]) -> str:
    """Return the key for all parts."""
    return hash_data(parts)


def hash_data(value: Any) -> str:
    """Return the SHA-256 of plain data in hex."""
    return sha256(dumps(value, sort_keys=True, default=str)).hexdigest()


def short_hash(value: Any) -> str:
    """Return the first 12 hex digits of the hash: enough to detect a change."""
    return hash_data(value)[:12]


def changed_parts(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return the names of the parts that differ."""
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
