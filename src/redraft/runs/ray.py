"""Shards on Ray: one actor for each, on a cluster that is there or on one that is started here. Only this knows of Ray.

An actor that dies is made again by Ray and goes on from its journal; a call to it waits for that. With the driver dies
whatever it has started.
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

from ..core.records import NO_USAGE
from ..errors import ConfigError
from .part import COUNTED, Chunk, Errand, Handed, Order, Shard, Standing
from .progress import Mean
from .shares import Share, Use

ACTOR = dict(num_cpus=0.1, max_restarts=-1, max_task_retries=-1)  # a shard waits most of its time
MOST = 64  # shards, where their number is not given
STORE = 256 * 2**20  # bytes of memory for rows that are handed over; more go to disk


def library() -> Any:
    """Ray. Raises ConfigError."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError("engine 'ray' needs Ray: pip install 'redraft[ray]'") from error
    return ray


@dataclass
class Cluster:
    """Where shards run: at an address ("auto": the one of this machine), or, without one, on a Ray started here for the time.

    A program that is connected to a cluster already works on that, and stays connected.
    """

    address: str | None = None
    wanted: int | None = None
    _actors: list[Any] = field(default_factory=list)
    _ours: bool = False

    async def __aenter__(self) -> Self:
        ray = library()
        self._ours = not ray.is_initialized()
        if self._ours:
            await asyncio.to_thread(self._connect)  # of the loop's own threads: with the thread that starts Ray, Ray dies
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        ray = library()
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
        if self._ours:
            await asyncio.to_thread(ray.shutdown)

    def _connect(self) -> None:
        ray = library()
        local = dict(include_dashboard=False, object_store_memory=STORE, _node_ip_address="127.0.0.1")
        try:
            with quiet():
                ray.init(
                    self.address or "local",
                    log_to_driver=False,
                    configure_logging=False,
                    **({} if self.address else local),
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = f"at {self.address!r}" if self.address else "here"
            raise ConfigError(f"ray_address: no Ray {where} that can be used: {_first_line(error)}") from error

    @property
    def shards(self) -> int:
        """As many as were wanted, or as there are processors."""
        return self.wanted or max(1, min(MOST, int(library().cluster_resources().get("CPU", 1))))

    def check(self, **sent: Any) -> None:
        """Raises ConfigError for what cannot be sent to another process."""
        dumps: Any = import_module("ray.cloudpickle").dumps
        for name, value in sent.items():
            try:
                dumps(value)
            except Exception as error:  # whatever an object does when it is taken apart
                kind = type(value).__name__
                raise ConfigError(
                    f"{name}: a {kind} cannot be sent to other processes ({_first_line(error)}); give it by its name"
                ) from error

    async def keep(self, rows: Sequence[Handed]) -> Chunk:
        """Rows in Ray's object store, from where a shard gets them when it comes to them."""
        return Stored(await asyncio.to_thread(library().put, list(rows)))

    def hire(self) -> Hand:
        """An actor."""
        actor = library().remote(**ACTOR)(Shard).remote()
        self._actors.append(actor)
        return Hand(actor)


@dataclass(frozen=True)
class Stored:
    """Rows in the object store."""

    ref: Any

    def __call__(self) -> Sequence[Handed]:
        rows: Sequence[Handed] = library().get(self.ref)
        return rows


@dataclass(frozen=True)
class Hand:
    """A shard, by its actor."""

    actor: Any

    async def run(self, errand: Errand) -> Standing:
        """What came of it; of one that Ray cannot run, that."""
        from ray.exceptions import RayError

        try:
            standing: Standing = await self.actor.run.remote(errand)
        except RayError as error:
            return lost(_first_line(error))
        return standing

    async def trade(self, share: Share, order: Order | None) -> Standing:
        """Never returns for an actor that Ray has given up: `run` tells of it."""
        from ray.exceptions import RayError

        try:
            standing: Standing = await self.actor.trade.remote(share, order)
        except RayError:
            await asyncio.get_running_loop().create_future()
        return standing


def lost(why: str) -> Standing:
    """How a shard stands that is no more."""
    message = f"a shard cannot be run by Ray: {why}"
    return Standing("", Use(), dict.fromkeys(COUNTED, 0), NO_USAGE, Mean(), Mean(), ended="fatal", message=message)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextmanager
def quiet() -> Iterator[None]:
    """Ray without its notices on stderr, and without telling its makers that it is used."""
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
