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

LOOK_AGAIN = 0.5  # seconds: a signal that comes just before a thread begins to wait does not end that wait


def run_sync(work: Coroutine[Any, Any, T], *stops: Callable[[], object]) -> T:
    """The result of `work`, run here or, where an event loop is running already, in a thread of its own.

    Ctrl-C cancels the work, waits until that has ended, and raises KeyboardInterrupt; its `result` is what the work returned all
    the same, or the `result` of its CancelledError, or None. With `stops` the first Ctrl-C calls the first of them in the event
    loop of the work, the next one the second, in place of cancelling it. One more Ctrl-C does not wait for anything. This holds
    also where SIGINT was ignored at the start, as it is for programs in the background; a handler that the program has set
    itself is left in place.
    """
    held_up = _loop_is_running()
    running = _Running(work, stops)
    try:
        with _on_sigint(running.interrupt, held_up=held_up):
            result = running.in_thread() if held_up else running.here()
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


class _Running(Generic[T]):
    """Work under way, and how often it was interrupted."""

    def __init__(self, work: Coroutine[Any, Any, T], stops: tuple[Callable[[], object], ...]) -> None:
        self.interrupts = 0
        self.result: Any = None
        self._work = work
        self._stops = stops
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = _Threads()

    def here(self) -> T:
        """Run it in this thread."""
        try:
            return asyncio.run(self._main())
        finally:
            self._work.close()  # where it never began

    def in_thread(self) -> T:
        """Run it in another thread. Where that does not end when it should, it is left behind."""
        ended: Future[T] = Future()

        def run() -> None:
            try:
                ended.set_result(self.here())
            except BaseException as error:  # noqa: BLE001  (raised where the result is waited for)
                ended.set_exception(error)

        Thread(target=copy_context().run, args=(run,), name="redraft", daemon=True).start()
        while not ended.done():
            wait([ended], LOOK_AGAIN)
        return ended.result()

    async def _main(self) -> T:
        self._loop, task = asyncio.get_running_loop(), asyncio.current_task()
        self._loop.set_default_executor(self._threads)
        self._stops = self._stops or (task.cancel,)  # type: ignore[union-attr]
        try:
            with _woken_by_signals(self._loop):
                if self.interrupts:  # before it could begin
                    raise asyncio.CancelledError
                self.result = await self._work
        except asyncio.CancelledError as cut:
            self.result = getattr(cut, "result", None)
            raise
        return self.result  # type: ignore[no-any-return]

    def interrupt(self, *_: object) -> None:
        """What SIGINT does."""
        self.interrupts += 1
        if self._loop is None or self._loop.is_closed() or self.interrupts > len(self._stops):
            raise KeyboardInterrupt
        self._threads.left_alone = True
        self._loop.call_soon_threadsafe(self._stops[self.interrupts - 1])


class _Threads(ThreadPoolExecutor):
    """The threads of an event loop: functions that are running in them when it is interrupted are not waited for."""

    left_alone = False

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002  (as its parent's)
        super().shutdown(wait and not self.left_alone, cancel_futures=cancel_futures or self.left_alone)


@contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
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
        _reset_in_child.append(in_child)
        try:
            yield
        finally:
            _withdraw(in_child)
            signal.set_wakeup_fd(before)
            loop.remove_reader(reader)


@contextmanager
def _on_sigint(handler: Callable[..., None], *, held_up: bool) -> Iterator[None]:
    """Have SIGINT handled so for a while: where it would raise KeyboardInterrupt, or do nothing.

    Where an event loop is held up, whatever that does about it comes too late.
    """
    before = signal.getsignal(signal.SIGINT) if current_thread() is main_thread() else None
    if before in {None, signal.SIG_DFL} or not (held_up or before in {signal.default_int_handler, signal.SIG_IGN}):
        yield
        return
    signal.signal(signal.SIGINT, handler)
    in_child = partial(signal.signal, signal.SIGINT, before)
    _reset_in_child.append(in_child)
    try:
        yield
    finally:
        _withdraw(in_child)
        signal.signal(signal.SIGINT, before)


_reset_in_child: list[Callable[[], object]] = []
"""What makes signals a forked child's own again: those for the work under way here are none of its business."""


def _withdraw(reset: Callable[[], object]) -> None:
    with suppress(ValueError):  # it was done, in a forked child
        _reset_in_child.remove(reset)


def _forked() -> None:
    while _reset_in_child:
        _reset_in_child.pop()()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
