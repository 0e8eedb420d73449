"""Workers on Ray: actors on an existing cluster or on one started for the run.
Only this module imports Ray.

Ray creates an actor again when it has died; the worker then resumes from its journal, and a call to
it waits until it is ready. Actors die with the process that has started them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import TracebackType
from typing import Any, ClassVar, Self

from ...base.checks import needs_extra
from ...errors import ConfigError
from .shard_protocol import Orders, ShardJob, ShardStatus
from .shard_worker import ShardWorker
from .sharded import first_line

ACTOR = dict(num_cpus=0.1, max_restarts=-1, max_task_retries=-1)  # a worker waits most of the time
MAX_WORKERS = 64  # unless a number is given
LOCAL = "local"  # the address of a Ray that is started for the run
STORE = 256 * 2**20  # bytes of memory for long messages; Ray moves more to disk


def import_ray() -> Any:
    """Return the module `ray`. Raises ConfigError."""
    with needs_extra("ray", "ray needs the package Ray"):
        import ray
    return ray


@dataclass
class RayPool:
    """Starts workers on the cluster at an address ("auto": that of this machine), or with "local"
    on a Ray started for the run. `workers`: their number; None: one for each processor.

    If the program is already connected to a cluster, that one is used, and stays connected.
    """

    setting: ClassVar[str] = "ray"

    address: str = LOCAL
    workers: int | None = None
    _actors: list[Any] = field(default_factory=list)
    _started_here: bool = False

    async def __aenter__(self) -> Self:
        ray = import_ray()
        self._started_here = not ray.is_initialized()
        if self._started_here:
            # a thread that lives on: Ray dies with the thread that starts it
            await asyncio.to_thread(self._connect)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ray = import_ray()
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
        if self._started_here:
            await asyncio.to_thread(ray.shutdown)

    def _connect(self) -> None:
        ray = import_ray()
        local = dict(
            include_dashboard=False, object_store_memory=STORE, _node_ip_address="127.0.0.1"
        )
        try:
            with silence_ray():
                ray.init(
                    self.address,
                    log_to_driver=False,
                    configure_logging=False,
                    **(local if self.address == LOCAL else {}),
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = "here" if self.address == LOCAL else f"at {self.address!r}"
            raise ConfigError(f"ray: no usable Ray {where}: {first_line(error)}") from error

    @property
    def size(self) -> int:
        """The given number, or that of the processors of the cluster."""
        return self.workers or max(
            1, min(MAX_WORKERS, int(import_ray().cluster_resources().get("CPU", 1)))
        )

    def dumps(self, value: object) -> bytes:
        """Return a value, pickled; functions and classes of the user with their code."""
        _send_modules_by_value()
        data: bytes = import_module("ray.cloudpickle").dumps(value)
        return data

    def start_worker(self) -> RayWorker:
        """Start an actor."""
        actor = import_ray().remote(**ACTOR)(ShardWorker).remote()
        self._actors.append(actor)
        return RayWorker(actor)


@dataclass(frozen=True)
class RayWorker:
    """A worker in an actor."""

    actor: Any

    async def run(self, shard: ShardJob) -> ShardStatus:
        """Run a shard and return its final status; if Ray cannot run the actor, a status with the
        reason "fatal".
        """
        from ray.exceptions import RayError

        try:
            status: ShardStatus = await self.actor.run.remote(shard)
        except RayError as error:
            return ShardStatus(
                "", reason="fatal", message=f"a worker cannot be run by Ray: {first_line(error)}"
            )
        return status

    async def exchange(self, orders: Orders) -> ShardStatus:
        """Send orders, and return the status. If Ray has given up the actor, wait for ever: `run`
        reports that.
        """
        from ray.exceptions import RayError

        try:
            status: ShardStatus = await self.actor.exchange.remote(orders)
        except RayError:
            await asyncio.get_running_loop().create_future()
            raise
        return status


def _send_modules_by_value() -> None:
    """Send modules that workers cannot import, such as a file of graders, together with what they
    define.
    """
    register: Any = import_module("ray.cloudpickle").register_pickle_by_value
    for name, module in list(sys.modules.items()):
        if (
            name != "__main__"
            and getattr(module, "__spec__", None) is None
            and getattr(module, "__file__", None)
        ):
            register(module)


@contextmanager
def silence_ray() -> Iterator[None]:
    """Keep Ray from writing notices to stderr and from sending usage statistics."""
    logger, before = logging.getLogger("ray"), os.environ.get("RAY_USAGE_STATS_ENABLED")
    level = logger.level
    logger.setLevel(logging.ERROR)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        yield
    finally:
        logger.setLevel(level)
        if before is None:
            os.environ.pop("RAY_USAGE_STATS_ENABLED", None)
