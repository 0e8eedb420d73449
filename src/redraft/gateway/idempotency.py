"""Requests with the same idempotency key share one run: `RunsInFlight`.

A run is a stream of items (progress, the answer, or bytes) that one task produces and keeps, so
that every request that joins reads all of them from the start. When the last reader has left, a run
in progress is cancelled after a moment, so that a client whose connection broke finds it when it
tries again. A finished run is replayed for some minutes; a failed one is forgotten, so that the
client's next attempt runs again.

A key belongs to a caller: other callers that send the same key share nothing. The same key with
another body is an error (422).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any, Generic, Self, TypeVar

from .exchange import Answer, GatewayError, Progress, invalid_request

T = TypeVar("T")
MAX_KEY_LENGTH = 255  # characters
REPLAY_SECONDS = 600.0
FREE_JOINS = 3  # of one run: the usual clients try again twice
GRACE_SECONDS = 0.8  # the first retry of the usual clients comes after half a second
MAX_REPLAY_BYTES = 64 * 2**20  # of all finished runs together
ITEM_BYTES = 200  # of an item besides its text


def item_size(item: Any) -> int:
    """Return about how many bytes an item takes in memory."""
    if isinstance(item, bytes | str):
        return len(item) + ITEM_BYTES
    match item:
        case Answer():
            return ITEM_BYTES + sum(len(repr(part)) for part in item.reply.parts)
        case Progress():
            return ITEM_BYTES + len(item.reason)
    return ITEM_BYTES


class SharedRun(Generic[T]):
    """The items of a run so far, the task that produces them, and how many requests read them.

    `on_end` is called when it has ended. It goes on for `grace_seconds` after its last reader has
    left.
    """

    def __init__(
        self,
        body_hash: str,
        items: AsyncIterator[T],
        on_end: Callable[[SharedRun[T]], None],
        grace_seconds: float,
    ) -> None:
        self.body_hash, self._on_end, self._grace_seconds = body_hash, on_end, grace_seconds
        self.items: list[T] = []
        self.error: BaseException | None = None
        self.readers = self.joins = self.size = 0
        self.is_done = self.is_cancelled = False
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._produce(items))

    async def _produce(self, items: AsyncIterator[T]) -> None:
        try:
            async for item in items:
                self.items.append(item)
                self.size += item_size(item)
                self._notify()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (every reader raises it)
            self.error = _error_for_reader(error)
        finally:
            self.is_done = True
            self._notify()
            self._on_end(self)
            if close := getattr(items, "aclose", None):
                await close()

    def _notify(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    async def item(self, position: int) -> T:
        """Return the item at a position, once it is there. Raises the error of the run, and
        StopAsyncIteration if it ends before.
        """
        while position >= len(self.items):
            if self.error is not None:
                raise _error_for_reader(self.error)
            if self.is_done:
                raise StopAsyncIteration
            await self._changed.wait()
        return self.items[position]

    async def leave(self) -> None:
        """Count one reader less. Without readers the run is cancelled: with a grace period after
        it, else before this returns.
        """
        self.readers -= 1
        if self._grace_seconds:
            loop = asyncio.get_running_loop()
            loop.call_later(self._grace_seconds, self._cancel_if_unread)
        elif not self.readers:
            await self.cancel()

    async def cancel(self) -> None:
        """Cancel the run and wait until it has ended. It is started in any case, so that what it
        holds is released.
        """
        self.is_cancelled = not self.is_done
        # after the first step of the task, which is scheduled already
        asyncio.get_running_loop().call_soon(self._task.cancel)
        await asyncio.wait({self._task})

    def _cancel_if_unread(self) -> None:
        if not self.readers and not self.is_done:
            self.is_cancelled = True
            self._task.cancel()


def _error_for_reader(error: BaseException) -> BaseException:
    """Return the error that a reader raises: a copy, since each reader adds its own traceback."""
    if isinstance(error, GatewayError):
        return error.copy()
    if isinstance(error, asyncio.CancelledError):
        return GatewayError(
            503, "cancelled", "the run of this request was cancelled", should_retry=True
        )
    return error


class RunReader(Generic[T]):
    """Yields the items of a run from the first on. `is_joined`: another request had started the
    run.

    Close it (`aclose`) when the client leaves: the run is cancelled after its last reader.
    """

    def __init__(self, run: SharedRun[T], *, is_joined: bool) -> None:
        self.is_joined = is_joined
        self._run: SharedRun[T] | None = run
        self._position = 0
        run.readers += 1

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._run is None:
            raise StopAsyncIteration
        item = await self._run.item(self._position)
        self._position += 1
        return item

    async def aclose(self) -> None:
        """Leave the run. May be called again."""
        run, self._run = self._run, None
        if run is not None:
            await run.leave()


class RunsInFlight(Generic[T]):
    """The runs that requests may join: those in progress and, for `replay_seconds`, those that
    succeeded.

    The oldest of the finished runs are forgotten if they take more than `max_replay_bytes`
    together. A run goes on for `grace_seconds` after its last reader has left.
    """

    def __init__(
        self,
        replay_seconds: float = REPLAY_SECONDS,
        max_replay_bytes: int = MAX_REPLAY_BYTES,
        grace_seconds: float = GRACE_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._replay_seconds, self._max_replay_bytes = replay_seconds, max_replay_bytes
        self._grace_seconds, self._clock = grace_seconds, clock
        self._runs: dict[tuple[str, str], SharedRun[T]] = {}
        self._finished: dict[tuple[str, str], float] = {}  # when each ended, in that order
        self._replay_bytes = 0
        self._in_progress: set[SharedRun[T]] = set()

    def _find(self, key: str, caller_id: str) -> SharedRun[T] | None:
        self._forget_old()
        run = self._runs.get((caller_id, key))
        return None if run is None or run.is_cancelled else run

    def body_hash(self, key: str, caller_id: str) -> str | None:
        """Return the hash of the body whose run a request with this key would join; None if there
        is no run.
        """
        run = self._find(key, caller_id)
        return run.body_hash if run else None

    def may_join_freely(self, key: str, caller_id: str) -> bool:
        """Whether there is a run with this key, and fewer than FREE_JOINS requests have asked this.
        Counts those that ask.
        """
        if run := self._find(key, caller_id):
            run.joins += 1
        return run is not None and run.joins <= FREE_JOINS

    async def join(
        self, key: str, caller_id: str, body_hash: str, start: Callable[[], AsyncIterator[T]]
    ) -> RunReader[T]:
        """Join the run of this key, or start one.

        `start` returns the items of the run; what it raises itself is raised here, and nothing is
        kept. Raises GatewayError 422 if the key was used with another body.
        """
        if not 0 < len(key) <= MAX_KEY_LENGTH:
            raise invalid_request(
                "Idempotency-Key", f"the idempotency key must have 1 to {MAX_KEY_LENGTH} characters"
            )
        run = self._find(key, caller_id)
        if run is None:
            return RunReader(self._start((caller_id, key), body_hash, start()), is_joined=False)
        if run.body_hash != body_hash:
            message = (
                "the idempotency key was used with another body: send a new key with a new request"
            )
            raise GatewayError(
                422, "idempotency_key_reused", message, param="Idempotency-Key", should_retry=False
            )
        return RunReader(run, is_joined=True)

    async def cancel_all(self) -> None:
        """Cancel every run in progress and wait until they have ended."""
        for run in list(self._in_progress):
            await run.cancel()

    def _start(
        self, place: tuple[str, str], body_hash: str, items: AsyncIterator[T]
    ) -> SharedRun[T]:
        def keep_or_forget(run: SharedRun[T]) -> None:
            self._in_progress.discard(run)
            if self._runs.get(place) is not run:
                return  # it was cancelled, and another one has its place
            if run.error is not None:
                del self._runs[place]
                return
            self._finished[place] = self._clock()
            self._replay_bytes += run.size
            self._forget_old()

        run = self._runs[place] = SharedRun(body_hash, items, keep_or_forget, self._grace_seconds)
        self._in_progress.add(run)
        return run

    def _forget_old(self) -> None:
        latest = self._clock() - self._replay_seconds
        while self._finished:
            place = next(iter(self._finished))
            if self._finished[place] > latest and self._replay_bytes <= self._max_replay_bytes:
                return
            del self._finished[place]
            self._replay_bytes -= self._runs.pop(place).size
