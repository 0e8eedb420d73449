"""A grader that lets another one grade: the one that suits the task."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..base import checks
from ..base.error_text import error_text
from ..base.own_code import fingerprint_name
from ..errors import ConfigError
from ..loop.records import Candidate, Feedback
from ..loop.task import Task
from ..protocols import JudgeClient
from .composite import Composite, as_part, grade_part

Key: TypeAlias = str | Callable[[Task], str]
METADATA = "metadata."
MISSING = object()


def router(
    graders: Mapping[str, Any], by: Key, default: Any = None, *, name: str = "router"
) -> Router:
    """Return a grader that chooses one of several graders for each task.

    Args:
        graders: The graders by key: names, functions or graders.
        by: What gives the key of a task: the path of a value in its metadata, such as
            "metadata.domain", or a function of the task. Numbers and bools are converted as in
            JSON: 3 becomes "3", True "true".
        default: The grader of tasks whose key is missing or not in the mapping; None: such a task
            is an error.
        name: The name of the grader.

    Returns:
        A grader; its feedback is that of the chosen one, which is also its only vote.

    Raises:
        ConfigError: An argument is not as described. A task without a grader is an error before any
            call.
    """
    return Router(graders, by, default, name)


@fingerprint_name("router")
@dataclass(frozen=True)
class Router(Composite):
    """A grader that chooses one of several graders for each task; see `router`."""

    graders: Mapping[str, Any]
    by: Key
    default: Any = None
    name: str = "router"

    reads_metadata = True

    def __post_init__(self) -> None:
        checks.text("name", self.name)
        if (
            not isinstance(self.graders, Mapping)
            or not self.graders
            or not all(isinstance(key, str) for key in self.graders)
        ):
            raise checks.invalid_argument(
                "graders",
                'graders by key, such as {"math": "math", "code": "code_quality"}',
                self.graders,
            )
        object.__setattr__(
            self,
            "graders",
            {key: as_part(grader, f"{self.name}: {key}") for key, grader in self.graders.items()},
        )
        if self.default is not None:
            object.__setattr__(self, "default", as_part(self.default, f"{self.name}: default"))
        is_path = (
            isinstance(self.by, str) and self.by.startswith(METADATA) and all(self.by.split("."))
        )
        if isinstance(self.by, type) or not (is_path or callable(self.by)):
            raise checks.invalid_argument(
                "by", 'a path such as "metadata.domain", or a function of a task', self.by
            )

    @property
    def parts(self) -> tuple[Any, ...]:
        return (*self.graders.values(), *(() if self.default is None else (self.default,)))

    @property
    def may_call_model(self) -> bool:
        """Whether only the usage shows if a model is called: whether some of the graders call one,
        and others do not.
        """
        return not self.model_free and any(
            part.model_free or part.may_call_model for part in self.part_traits
        )

    def parts_for(self, task: Task) -> tuple[Any, ...]:
        """Return the grader of a task, as a tuple. Raises ConfigError if there is none."""
        key = self._key_of(task)
        grader = self.graders.get(key, self.default) if isinstance(key, str) else self.default
        if grader is None:
            problem = (
                f"the task has no {self.by}"
                if key is MISSING
                else f"there is no grader for {checks.format_value(key)}"
            )
            known = ", ".join(map(repr, self.graders))
            raise ConfigError(f"grader {self.name!r}: {problem}; there are {known}, and no default")
        return (grader,)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the feedback of the chosen grader. Raises what it raises, and ConfigError for a
        task without a grader.
        """
        (grader,) = self.parts_for(task)
        part = next(part for part in self.part_traits if part.grader is grader)
        feedback = await grade_part(part, task, candidate, ask)
        return replace(feedback, votes=(feedback,))

    def _key_of(self, task: Task) -> Any:
        """Return the key of a task, MISSING without one, or any other value that is no key. Raises
        ConfigError.
        """
        value = (
            _metadata_value(task, self.by.removeprefix(METADATA))
            if isinstance(self.by, str)
            else self._call(self.by, task)
        )
        return json.dumps(value) if isinstance(value, bool | int | float) else value

    def _call(self, function: Callable[[Task], Any], task: Task) -> Any:
        try:
            return function(task)
        except Exception as error:
            raise ConfigError(f"grader {self.name!r}: by: {error_text(error)}") from error


def _metadata_value(task: Task, path: str) -> Any:
    """Return the value at a path of keys with dots between them, MISSING if there is none or it is
    None.
    """
    value: Any = task.metadata
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return MISSING if value is None else value
