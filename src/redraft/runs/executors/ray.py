"""Shards on Ray: one actor for each, on an existing cluster or on one that is started here. Only this module knows Ray.

An actor that dies is created again by Ray, and resumes from its journal; a call to it waits for that. What the driver has
started dies with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from ...errors import ConfigError
from ...usage import NO_USAGE
from ..progress import Mean
from .quotas import Quota, QuotaUse
from .shard_worker import COUNTED, AssignedRow, Chunk, ShardJob, ShardStatus, ShardWorker, StopOrder

ACTOR = dict(num_cpus=0.1, max_restarts=-1, max_task_retries=-1)  # a worker waits most of its time
MAX_SHARDS = 64  # if their number is not given
STORE = 256 * 2**20  # bytes of memory for rows that are handed over; the rest goes to disk


def import_ray() -> Any:
    """Return the module `ray`. Raises ConfigError."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError("engine 'ray' needs Ray: pip install 'redraft[ray]'") from error
    return ray


@dataclass
class RayPool:
    """Starts workers on a cluster: at an address ("auto": this machine's), or, without one, on a Ray started here for the run.

    If the program is connected to a cluster already, that is used, and stays connected.
    """

    address: str | None = None
    max_shards: int | None = None
    _actors: list[Any] = field(default_factory=list)
    _started_here: bool = False

    async def __aenter__(self) -> Self:
        ray = import_ray()
        self._started_here = not ray.is_initialized()
        if self._started_here:
            await asyncio.to_thread(self._connect)  # of the loop's own threads: with the thread that starts Ray, Ray dies
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        ray = import_ray()
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
        if self._started_here:
            await asyncio.to_thread(ray.shutdown)

    def _connect(self) -> None:
        ray = import_ray()
        local = dict(include_dashboard=False, object_store_memory=STORE, _node_ip_address="127.0.0.1")
        try:
            with silence_ray():
                ray.init(
                    self.address or "local",
                    log_to_driver=False,
                    configure_logging=False,
                    **({} if self.address else local),
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = f"at {self.address!r}" if self.address else "here"
            raise ConfigError(f"ray_address: no usable Ray {where}: {_first_line(error)}") from error

    @property
    def shards(self) -> int:
        """The number that was given, or that of the processors."""
        return self.max_shards or max(1, min(MAX_SHARDS, int(import_ray().cluster_resources().get("CPU", 1))))

    def check(self, **values: Any) -> None:
        """Raises ConfigError for what cannot be sent to another process."""
        dumps: Any = import_module("ray.cloudpickle").dumps
        for name, value in values.items():
            try:
                dumps(value)
            except Exception as error:  # an object may raise anything when it is pickled
                kind = type(value).__name__
                raise ConfigError(
                    f"{name}: a {kind} cannot be sent to other processes ({_first_line(error)}); give it by its name"
                ) from error

    async def store(self, rows: Sequence[AssignedRow]) -> Chunk:
        """Put rows into Ray's object store, where a worker gets them when it needs them."""
        return StoredRows(await asyncio.to_thread(import_ray().put, list(rows)))

    def start_worker(self) -> RayWorker:
        """Start an actor."""
        actor = import_ray().remote(**ACTOR)(ShardWorker).remote()
        self._actors.append(actor)
        return RayWorker(actor)


@dataclass(frozen=True)
class StoredRows:
    """Rows in the object store; called, it returns them."""

    ref: Any

    def __call__(self) -> Sequence[AssignedRow]:
        rows: Sequence[AssignedRow] = import_ray().get(self.ref)
        return rows


@dataclass(frozen=True)
class RayWorker:
    """A shard's worker in an actor."""

    actor: Any

    async def run(self, shard: ShardJob) -> ShardStatus:
        """Work on a shard; return its last status, also if Ray cannot run the actor."""
        from ray.exceptions import RayError

        try:
            status: ShardStatus = await self.actor.run.remote(shard)
        except RayError as error:
            return failed_status(_first_line(error))
        return status

    async def exchange_quota(self, quota: Quota, order: StopOrder | None) -> ShardStatus:
        """Send a quota and an order, return the status. Waits for ever if Ray has given up the actor: `run` reports that."""
        from ray.exceptions import RayError

        try:
            status: ShardStatus = await self.actor.exchange_quota.remote(quota, order)
        except RayError:
            await asyncio.get_running_loop().create_future()
            raise
        return status


def failed_status(why: str) -> ShardStatus:
    """Return the status of a shard that cannot be run."""
    message = f"a shard cannot be run by Ray: {why}"
    return ShardStatus("", QuotaUse(), dict.fromkeys(COUNTED, 0), NO_USAGE, Mean(), Mean(), reason="fatal", message=message)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextmanager
def silence_ray() -> Iterator[None]:
    """Keep Ray from writing notices to stderr, and from reporting usage statistics."""
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
