"""The choice of a sandbox: which tier runs here, and how it starts a process.

A tier counts as available if a program ran in it: what a launcher says about itself, and which
kernel this is, is not asked.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from ..base import checks
from ..base.descriptors import descriptor_limit, is_shortage
from ..base.sync import threads_are_greenlets
from ..errors import ConfigError, SandboxUnavailableError
from . import bubblewrap, docker, landlock
from .execution import Execution, Limits, SandboxedProcessError
from .interpreter import (
    ENVIRONMENT,
    FLAGS,
    Packages,
    current_interpreter,
    find_packages,
    installed_programs,
)
from .launch import Launch, Program, launch_unsafe
from .process import SandboxedProcess

LAUNCHES: Mapping[str, Sequence[Callable[[Program], Launch]]] = {
    "bubblewrap": bubblewrap.LAUNCHES,
    "landlock": (landlock.launch,),
    "unsafe": (launch_unsafe,),
}
"""How each tier starts a program. Of several ways, the first that works on this machine is used."""

AUTOMATIC = ("bubblewrap", "landlock")
MIN_DESCRIPTORS = 32
"""Open files below which no sandbox starts beside a run: it takes about twelve while it starts."""
DEFAULT_LIMITS = Limits()
PROBE_LIMITS = Limits(cpu_seconds=10, wall_seconds=20)
PROBE = "def main(settings, channel):\n    channel.receive()\n    channel.send('works')\n"
INSTALL_HINT = (
    "On Linux, install bubblewrap (apt install bubblewrap, dnf install bubblewrap); elsewhere, "
    "use Docker: sandbox='docker:IMAGE'"
)
DOCKER_HINT = (
    "The service must run, and have the image (docker pull IMAGE), with Python 3.11 or later as "
    "python3"
)


@dataclass(frozen=True, slots=True, init=False)
class Sandbox:
    """A choice of a sandbox, and of the packages that programs in it may import.

    Args:
        tier: "auto" (the first of bubblewrap and landlock that works here), "bubblewrap",
            "landlock", "docker:IMAGE", or "unsafe", which limits resources and protects nothing;
            "auto" never chooses it.
        packages: Names of installed distributions or modules, such as "numpy"; what they require is
            included. In a container, programs see the packages of its image instead, if `packages`
            names any, and the image must have these.

    Attributes:
        spec: The choice as it was given; `tier` is what it means here.
        packages: The names as they were given.

    Raises:
        ConfigError: the tier is unknown, or a package is not installed.
    """

    spec: str
    packages: tuple[str, ...]

    def __init__(self, tier: str = "auto", *, packages: Sequence[str] = ()) -> None:
        names = ("auto", *LAUNCHES)
        if not isinstance(tier, str) or not (tier in names or tier.startswith(docker.PREFIX)):
            raise checks.invalid_argument(
                "sandbox", f"one of {', '.join(names)}, or docker:IMAGE", tier
            )
        if isinstance(packages, str) or not all(
            isinstance(name, str) and name for name in packages
        ):
            raise checks.invalid_argument("packages", 'a list of names such as ["numpy"]', packages)
        object.__setattr__(self, "spec", tier)
        object.__setattr__(self, "packages", tuple(packages))
        self._find_packages()

    @property
    def tier(self) -> str:
        """The tier in use. Raises SandboxUnavailableError with what is missing and what to
        install.
        """
        return self._choose()[0]

    def _choose(self) -> tuple[str, Callable[[Program], Launch]]:
        """Return the tier and how it starts a program; in a container, packages are looked for,
        too.
        """
        return choose_tier(self.spec, self.packages if self.spec.startswith(docker.PREFIX) else ())

    def start(
        self, runner: Path, settings: Any, limits: Limits = DEFAULT_LIMITS
    ) -> SandboxedProcess:
        """Start a runner, a Python file that uses only the standard library, and wait until it is
        locked down.

        `settings` is a JSON value for its `main(settings, channel)`. Raises
        SandboxUnavailableError.
        """
        content = {"runner": runner.read_text("utf-8"), "settings": settings}
        return self._start(Program(content, limits, self._find_packages()))

    def run_tool(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> Execution:
        """Run one of our own tools on input that is not trusted, and return how it ended.

        `command[0]` is "python" for the interpreter, or the name or path of a program here. `files`
        are written to its working folder, by relative name. In a container, the programs are those
        of its image. Raises SandboxUnavailableError, and ConfigError if there is no such program.
        """
        for name in files or {}:
            if not name or Path(name).is_absolute() or ".." in Path(name).parts:
                raise checks.invalid_argument("files", "relative names", name)
        content = {"files": {name: data.hex() for name, data in (files or {}).items()}}
        with self._start(self._tool(command, content, limits), stdin) as process:
            return process.wait()

    def _tool(self, command: Sequence[str], content: Mapping[str, Any], limits: Limits) -> Program:
        packages = self._find_packages()
        if self.spec.startswith(docker.PREFIX):
            return Program(
                {**content, "command": list(command), "environment": ENVIRONMENT}, limits, packages
            )
        executable, search_path = _find_program(command[0]), os.pathsep.join(packages.search_path)
        flags = FLAGS if command[0] == "python" else ()
        environment = dict(current_interpreter().environment)
        if search_path:
            environment["PYTHONPATH"] = search_path
        command = [executable, *flags, *command[1:]]
        return Program(
            {**content, "command": command, "environment": environment},
            limits,
            packages,
            executable,
        )

    def _find_packages(self) -> Packages:
        """Return the packages that programs may import. Raises ConfigError."""
        if self.spec.startswith(docker.PREFIX):
            docker.check_image(self.spec)
            return Packages(search_path=self.packages)
        return find_packages(self.packages)

    def _start(self, program: Program, stdin: bytes | None = None) -> SandboxedProcess:
        tier, launch = self._choose()
        try:
            return SandboxedProcess(launch(program), program.limits, stdin)
        except SandboxedProcessError as error:
            raise SandboxUnavailableError(
                f"the sandbox ({tier}) could not start a process: {_reason(error.execution)}"
            ) from error


def _find_program(name: str) -> str:
    """Return the path of a program: beside this interpreter, of an installed distribution of that
    name, or on the PATH.
    """
    if name == "python":
        return current_interpreter().executable
    candidates = [
        str(Path(sys.executable).parent / name),
        *installed_programs(name),
        shutil.which(name) or "",
    ]
    found = next(
        (path for path in candidates if Path(path).is_file() and os.access(path, os.X_OK)), None
    )
    if found is None:
        raise ConfigError(f"the program {name!r} is not installed")
    return str(Path(found).resolve())


@lru_cache(maxsize=16)
def choose_tier(
    spec: str, packages: tuple[str, ...] = ()
) -> tuple[str, Callable[[Program], Launch]]:
    """Return the tier that a choice means on this machine, and how it starts a program. Raises
    SandboxUnavailableError.

    `packages` are those that an image must have.
    """
    if (limit := descriptor_limit()) < MIN_DESCRIPTORS:
        raise SandboxUnavailableError(
            f"a sandbox needs a limit of at least {MIN_DESCRIPTORS} open files, got {limit:.0f}: "
            "raise it (`ulimit -n`)"
        )
    if threads_are_greenlets():
        raise SandboxUnavailableError(
            "code cannot be run where gevent or eventlet has replaced threads: they take the end "
            "of a process from its sandbox"
        )
    problems: list[str] = []
    for tier in AUTOMATIC if spec == "auto" else (spec,):
        launch, problem = _working_launch(tier, packages)
        if launch is not None:
            return tier, launch
        problems.append(f"{tier}: {problem}")
    hint = DOCKER_HINT if spec.startswith(docker.PREFIX) else INSTALL_HINT
    raise SandboxUnavailableError(f"no sandbox can run code here ({'; '.join(problems)}). {hint}")


def _working_launch(
    tier: str, packages: tuple[str, ...]
) -> tuple[Callable[[Program], Launch] | None, str]:
    """Return the first way to start a program in a tier that works here; otherwise None and why the
    first does not.
    """
    launches: Sequence[Callable[[Program], Launch]] = (
        (partial(docker.launch, docker.check_image(tier)),)
        if tier.startswith(docker.PREFIX)
        else LAUNCHES[tier]
    )
    problem = ""
    for launch in launches:
        try:
            found = _problem_of(launch, packages)
        except TimeoutError as error:  # the others would take as long
            return None, problem or str(error)
        if found is None:
            return launch, ""
        problem = problem or found
    return None, problem


def _problem_of(launch: Callable[[Program], Launch], packages: tuple[str, ...]) -> str | None:
    """Run a program that answers one message; return what went wrong, or None. Raises TimeoutError
    if it does not answer.
    """
    try:
        probe = launch(
            Program(
                {"runner": PROBE, "settings": None}, PROBE_LIMITS, Packages(search_path=packages)
            )
        )
        with SandboxedProcess(probe, PROBE_LIMITS) as process:
            return None if process.request(0) == "works" else "a program in it gave a wrong answer"
    except SandboxUnavailableError as error:
        return str(error)
    except SandboxedProcessError as error:
        if error.execution.status == "wall":
            raise TimeoutError(_reason(error.execution)) from None
        return _reason(error.execution)
    except OSError as error:
        if is_shortage(error):  # no reason to choose another tier
            raise
        return error.strerror or str(error)


def _reason(execution: Execution) -> str:
    return " ".join(execution.stderr.split())[-300:] or f"its process ended ({execution.status})"
