"""Async work run to its end by synchronous code, and what Ctrl-C does meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from socket import socketpair
from threading import Thread, current_thread, main_thread
from typing import Any, Generic, TypeVar

T = TypeVar("T")

POLL_INTERVAL = 0.5  # seconds: a signal that comes just before a thread begins to wait does not end that wait


def run_sync(coroutine: Coroutine[Any, Any, T], *stop_callbacks: Callable[[], object]) -> T:
    """The result of `work`, run here or, where an event loop is running already, in a thread of its own.

    Ctrl-C cancels the work, waits until that has ended, and raises KeyboardInterrupt; its `result` is what the work returned all
    the same, or the `result` of its CancelledError, or None. With `stops` the first Ctrl-C calls the first of them in the event
    loop of the work, the next one the second, in place of cancelling it. One more Ctrl-C does not wait for anything. This holds
    also where SIGINT was ignored at the start, as it is for programs in the background; a handler that the program has set
    itself is left in place.
    """
    held_up = _loop_is_running()
    running = _SyncRunner(coroutine, stop_callbacks)
    try:
        with _sigint_handler(running.interrupt, loop_blocked=held_up):
            result = running.run_in_thread() if held_up else running.run_here()
    except (KeyboardInterrupt, asyncio.CancelledError) as cut:
        if isinstance(cut, KeyboardInterrupt) or running.interrupts:
            raise _interrupt(running.result) from None
        raise
    if running.interrupts:
        raise _interrupt(result)
    return result


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _interrupt(result: Any) -> KeyboardInterrupt:
    interrupt = KeyboardInterrupt()
    interrupt.result = result  # type: ignore[attr-defined]
    return interrupt


class _SyncRunner(Generic[T]):
    """Work under way, and how often it was interrupted."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], stop_callbacks: tuple[Callable[[], object], ...]) -> None:
        self.interrupts = 0
        self.result: Any = None
        self._coroutine = coroutine
        self._stop_callbacks = stop_callbacks
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = _LoopThreadPool()

    def run_here(self) -> T:
        """Run it in this thread."""
        try:
            return asyncio.run(self._main())
        finally:
            self._coroutine.close()  # where it never began

    def run_in_thread(self) -> T:
        """Run it in another thread. Where that does not end when it should, it is left behind."""
        ended: Future[T] = Future()

        def run() -> None:
            try:
                ended.set_result(self.run_here())
            except BaseException as error:  # noqa: BLE001  (raised where the result is waited for)
                ended.set_exception(error)

        Thread(target=copy_context().run, args=(run,), name="redraft", daemon=True).start()
        while not ended.done():
            wait([ended], POLL_INTERVAL)
        return ended.result()

    async def _main(self) -> T:
        self._loop, task = asyncio.get_running_loop(), asyncio.current_task()
        self._loop.set_default_executor(self._threads)
        self._stop_callbacks = self._stop_callbacks or (task.cancel,)  # type: ignore[union-attr]
        try:
            with _signal_wakeup(self._loop):
                if self.interrupts:  # before it could begin
                    raise asyncio.CancelledError
                self.result = await self._coroutine
        except asyncio.CancelledError as cut:
            self.result = getattr(cut, "result", None)
            raise
        return self.result  # type: ignore[no-any-return]

    def interrupt(self, *_: object) -> None:
        """What SIGINT does."""
        self.interrupts += 1
        if self._loop is None or self._loop.is_closed() or self.interrupts > len(self._stop_callbacks):
            raise KeyboardInterrupt
        self._threads.abandon_running = True
        self._loop.call_soon_threadsafe(self._stop_callbacks[self.interrupts - 1])


class _LoopThreadPool(ThreadPoolExecutor):
    """The threads of an event loop: functions that are running in them when it is interrupted are not waited for."""

    abandon_running = False

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002  (as its parent's)
        super().shutdown(wait and not self.abandon_running, cancel_futures=cancel_futures or self.abandon_running)


@contextmanager
def _signal_wakeup(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Have a signal wake the event loop, also one that comes just before it begins to wait."""
    if current_thread() is not main_thread() or os.name == "nt":
        yield
        return
    reader, writer = socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        loop.add_reader(reader, reader.recv, 4096)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        in_child = partial(signal.set_wakeup_fd, -1)
        _child_resets.append(in_child)
        try:
            yield
        finally:
            _unregister_child_reset(in_child)
            signal.set_wakeup_fd(before)
            loop.remove_reader(reader)


@contextmanager
def _sigint_handler(handler: Callable[..., None], *, loop_blocked: bool) -> Iterator[None]:
    """Have SIGINT handled so for a while: where it would raise KeyboardInterrupt, or do nothing.

    Where an event loop is held up, whatever that does about it comes too late.
    """
    before = signal.getsignal(signal.SIGINT) if current_thread() is main_thread() else None
    if before in {None, signal.SIG_DFL} or not (loop_blocked or before in {signal.default_int_handler, signal.SIG_IGN}):
        yield
        return
    signal.signal(signal.SIGINT, handler)
    in_child = partial(signal.signal, signal.SIGINT, before)
    _child_resets.append(in_child)
    try:
        yield
    finally:
        _unregister_child_reset(in_child)
        signal.signal(signal.SIGINT, before)


_child_resets: list[Callable[[], object]] = []
"""What makes signals a forked child's own again: those for the work under way here are none of its business."""


def _unregister_child_reset(reset: Callable[[], object]) -> None:
    with suppress(ValueError):  # it was done, in a forked child
        _child_resets.remove(reset)


def _reset_signals_in_child() -> None:
    while _child_resets:
        _child_resets.pop()()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_signals_in_child)
