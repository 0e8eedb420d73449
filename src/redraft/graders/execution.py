"""Settings of graders that run code: where it runs, what it may import, and whether tests beside it
count.

A grader of Redraft that runs code has fields of these names, or of some of them. A field that has
its default value is filled in from the settings of the run; one that the user has set stays. A
grader that runs a tool which is installed beside Redraft, such as ruff, does so in the best sandbox
here even if code runs in a container: an image seldom has that tool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any

from ..own_code import is_own

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
        kind: Any = type(grader)
        if self == DEFAULT or not (is_own(kind) and is_dataclass(kind)):
            return grader
        if getattr(kind, "runs_installed_tool", False) and self.sandbox.startswith("docker:"):
            return grader
        changes = dict(self._changes(grader))
        return replace(grader, **changes) if changes else grader

    def _changes(self, grader: Any) -> Iterator[tuple[str, Any]]:
        """Yield the fields that change, with their new values."""
        parts = {id(part) for part in getattr(grader, "parts", ())}
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


def reports_hidden_tests(graders: Iterable[Any]) -> bool:
    """Return whether a grader, or a part of one, reports how many hidden tests pass."""
    return any(
        getattr(grader, "reports_hidden_tests", False)
        or reports_hidden_tests(getattr(grader, "parts", ()))
        for grader in graders
    )


def check_graders(graders: Iterable[Any]) -> None:
    """Raise ConfigError for a grader that can grade nothing on this machine, or a part of one:
    before any call.
    """
    for grader in graders:
        check_environment(grader)
        check_graders(getattr(grader, "parts", ()))


def check_environment(grader: Any) -> None:
    """Raise SandboxUnavailableError if a grader runs code and no sandbox works here, and what its
    own check raises.

    A grader may have a method `check_environment()`, which raises ConfigError if a package or a
    program that it needs is missing, or does not know an option. The parts of the grader are not
    checked.
    """
    if isinstance(tier := getattr(grader, "sandbox", None), str) and is_own(type(grader)):
        from ..sandbox import Sandbox  # few runs need it

        Sandbox(tier, packages=getattr(grader, "packages", ())).tier  # noqa: B018  (raises)
    if check := getattr(grader, "check_environment", None):
        check()
