"""Settings of graders that run code: where it runs, what it may import, and whether tests beside it
count.

A grader of Redraft that runs code has fields of these names, or of some of them. A field that has
its default value is filled in from the settings of the run; one that the user has set stays. A
grader that runs a tool which is installed beside Redraft, such as ruff, does so in the best sandbox
here even if code runs in a container: an image seldom has that tool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any

from ..base.own_code import is_own
from .traits import traits_of

EXECUTION_FIELDS = ("sandbox", "packages", "trust_in_process")


@dataclass(frozen=True, slots=True)
class CodeExecution:
    """How the code of answers runs: the tier of the sandbox, its packages, and whether tests beside
    the code count.

    Raises ConfigError for an unknown tier, or a package that is not installed.
    """

    sandbox: str = "auto"
    packages: tuple[str, ...] = ()
    trust_in_process: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "packages", tuple(sorted(self.packages)))
        if self.sandbox != "auto" or self.packages:
            from ..sandbox import Sandbox  # few runs need it

            Sandbox(self.sandbox, packages=self.packages)

    def configure(self, grader: Any) -> Any:
        """Return the grader with these settings, and so the graders that it is made of; itself if
        nothing changes.
        """
        if self == DEFAULT or not (is_own(type(grader)) and is_dataclass(grader)):
            return grader
        traits = traits_of(grader)
        if traits.runs_installed_tool and self.sandbox.startswith("docker:"):
            return grader
        changes = dict(self._changes(grader, {id(part.grader) for part in traits.parts}))
        return replace(grader, **changes) if changes else grader  # type: ignore[type-var]

    def _changes(self, grader: Any, parts: set[int]) -> Iterator[tuple[str, Any]]:
        """Yield the fields that change, with their new values. `parts`: the identities of its
        parts.
        """
        for each in fields(grader):
            value = getattr(grader, each.name)
            if each.name in EXECUTION_FIELDS and each.default is not MISSING:
                new = getattr(self, each.name) if value == each.default else value
            else:
                new = self._configure_parts(value, parts)
            if each.init and new is not value and new != value:
                yield each.name, new

    def _configure_parts(self, value: Any, parts: set[int]) -> Any:
        """Return the value of a field with the graders in it configured."""
        if id(value) in parts:
            return self.configure(value)
        if isinstance(value, Mapping):
            return (
                {key: self._configure_parts(each, parts) for key, each in value.items()}
                if parts
                else value
            )
        if isinstance(value, list | tuple):
            return (
                type(value)(self._configure_parts(each, parts) for each in value)
                if parts
                else value
            )
        return value


DEFAULT = CodeExecution()
