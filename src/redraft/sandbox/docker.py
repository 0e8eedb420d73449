"""The tier "docker:IMAGE": a new container of Docker or Podman for each program, on Linux and
macOS.

It is slower than the other tiers (about 0.4 s for each program), and an image can hold other
languages and versions. The image is never downloaded: `docker pull` it before. The program sees the
files of the image, read-only, and a /tmp in memory; with `packages=`, also the packages of the
image's Python, which must have those that are named. Their versions are not checked.

On Linux the filter of system calls applies inside, as in the other tiers. Podman has no limit on
the number of files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from ..base.checks import invalid_argument
from ..errors import SandboxUnavailableError
from ..workers.pool import bootstrap_source
from .execution import Limits
from .interpreter import ENVIRONMENT
from .launch import (
    FOLDER,
    Launch,
    Program,
    base_setup,
    restricted_setup,
    source_of,
)

PREFIX = "docker:"
CLIENTS = ("docker", "podman")  # the first that is installed
CLIENT_ENVIRONMENT = (  # what a client needs to find its service
    "PATH", "HOME", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH",  # noqa: E501
    "CONTAINER_HOST", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "TMPDIR",
)  # fmt: skip
IMAGE = re.compile(r"[a-zA-Z0-9][\w.:/@-]*")
FLAGS = ("-s", "-B", "-X", "utf8")  # of the interpreter: an older one may lack others
OWN_MEMORY = 64 * 2**20  # bytes of memory of process 1 and the kernel
OWN_FILES = 256  # descriptors of process 1; the program gets its own limit
MOST_PROCESSES = (
    4096  # of that user, on the whole machine; --pids-limit is the limit of the container
)
USER = "65534:65534"
START = (  # an older Python may not even read `container.py`
    "import sys\n"
    "if sys.version_info < (3, 11):\n"
    "    sys.exit('its python3 is Python %d.%d, and 3.11 or later is needed' % "
    "sys.version_info[:2])\n"
    "exec(sys.argv.pop(1))"
)


def check_image(spec: str) -> str:
    """Return the image that "docker:IMAGE" names. Raises ConfigError."""
    image = spec.removeprefix(PREFIX)
    if not IMAGE.fullmatch(image):
        raise invalid_argument(
            "sandbox",
            "docker:IMAGE with the name of an image, such as docker:python:3.12-slim",
            spec,
        )
    return image


def launch(image: str, program: Program) -> Launch:
    """Return how to start a program in a new container. Raises SandboxUnavailableError if no client
    is installed.
    """
    client, limits = _find_client(), program.limits
    settings = {
        "bootstrap": bootstrap_source(),
        "flags": FLAGS if program.packages.search_path else (*FLAGS, "-S"),
        "environment": {**ENVIRONMENT, "PYTHONSAFEPATH": "1"},
        "limits": [limits.cpu_seconds, limits.threads, limits.memory_bytes],
    }
    inside = [
        "python3",
        "-I",
        "-S",
        "-B",
        "-c",
        START,
        f"{source_of('container.py')}\nrun_program()",
        json.dumps(settings),
    ]
    start = [*client_command(client, image, limits), *inside]
    relay = [sys.executable, "-I", "-S", "-B", "-c", f"{source_of('container.py')}\nrun_client()"]
    return Launch(
        lambda descriptor, info: [*relay, str(descriptor), str(info), *start],
        _setup(image, program),
        f"{PREFIX}{image}",
        has_info=True,
        reports_end=True,
        environment={name: os.environ[name] for name in CLIENT_ENVIRONMENT if name in os.environ},
    )


def client_command(client: str, image: str, limits: Limits) -> list[str]:
    """Return the command that runs a program in a new container, up to the program."""
    is_podman = os.path.basename(client) == "podman"  # noqa: PTH119  (a path is not needed)
    memory = str(limits.memory_bytes + limits.disk_bytes + OWN_MEMORY)
    folder = f"{FOLDER}:size={limits.disk_bytes},mode=1777,nosuid,nodev,exec"
    return [
        *(
            client,
            "run",
            "--rm",
            "--interactive",
            "--pull=never",
            "--network=none",
            "--ipc=none",
            "--log-driver=none",
        ),
        *(
            "--read-only",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges",
            f"--user={USER}",
            "--hostname=sandbox",
        ),
        *(
            "--memory",
            memory,
            "--memory-swap",
            memory,
            "--pids-limit",
            str(limits.threads + 8),
            "--workdir",
            "/",
        ),
        *("--entrypoint", "", "--ulimit", f"nofile={OWN_FILES}:{OWN_FILES}"),
        *(
            _podman_options(folder)
            if is_podman
            else ("--tmpfs", f"{folder},nr_inodes={limits.inodes + 1}")
        ),
        image,
    ]


def _podman_options(folder: str) -> tuple[str, ...]:
    """Return what Podman needs besides: it sets more limits by default, raises them if it can, and
    adds folders and variables.
    """
    import resource

    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    processes = MOST_PROCESSES if most == resource.RLIM_INFINITY else min(most, MOST_PROCESSES)
    return (
        "--ulimit",
        f"nproc={processes}:{processes}",
        "--http-proxy=false",
        "--read-only-tmpfs=false",
        "--tmpfs",
        folder,
    )


def _find_client() -> str:
    found: Sequence[str] = [path for name in CLIENTS if (path := shutil.which(name))]
    if sys.platform == "win32":
        raise SandboxUnavailableError(
            "programs in containers are started from Linux or macOS; use WSL"
        )
    if not found:
        raise SandboxUnavailableError("neither docker nor podman is installed")
    return found[0]


def _setup(image: str, program: Program) -> dict[str, Any]:
    """Return the first frame: tools and packages come from the image."""
    setup = restricted_setup(program) if sys.platform == "linux" else base_setup(program)
    content: dict[str, Any] = {"packages": []}
    if names := program.packages.search_path:
        content |= {
            "image": image,
            "image_packages": list(names),
            "extensions": [source_of("container.py")],
        }
    if program.is_tool:
        first, *others = program.content["command"]
        content = {**content, "command": ["python3" if first == "python" else first, *others]}
    return {**setup, **content}
