"""Run a coroutine from synchronous code, and handle Ctrl-C meanwhile; say where no coroutine of
Redraft can run.

Threads that gevent or eventlet has replaced are greenlets, which share one thread of the system, so
that they can have one event loop only.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import sys

# exported by asyncio for the authors of event loops, of which `_HidingSelector` is a part
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, thread, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial, update_wrapper
from inspect import cleandoc, signature
from socket import socketpair
from threading import Thread, current_thread, local, main_thread
from threading import enumerate as enumerate_threads
from typing import Any, Generic, ParamSpec, TypeVar

from ..errors import RedraftError, attach, attachment
from .descriptors import descriptor_limit
from .threads import submit_to_daemon_thread

P = ParamSpec("P")
T = TypeVar("T")

MIN_DESCRIPTORS = 64  # for uvloop, which needs seven more than the loop of asyncio
POLL_INTERVAL = (
    0.5  # seconds: a signal that arrives just before a thread waits does not interrupt the wait
)


def run_sync(coroutine: Coroutine[Any, Any, T], *stop_callbacks: Callable[[], object]) -> T:
    """Run a coroutine and return its result. If an event loop is running in this thread, run it in
    another thread.

    Ctrl-C cancels the coroutine, waits until it has ended, and raises KeyboardInterrupt. The
    exception's `result` is what the coroutine returned despite the cancellation, or the `result` of
    its CancelledError, or None. With `stop_callbacks`, each Ctrl-C calls the next of them in the
    coroutine's event loop instead of cancelling. One more Ctrl-C interrupts at once. This also
    applies if SIGINT was ignored at the start, as it is for background processes; a handler that
    the program has set itself stays in place.

    Greenlets share an event loop. What is raised in one that waits, such as a timeout, cancels its
    coroutine.
    """
    try:
        _check_threads()
        if threads_are_greenlets():
            return _run_among_greenlets(coroutine)
    except RedraftError:
        coroutine.close()
        raise
    loop_blocked = _get_running_loop() is not None
    runner = _SyncRunner(coroutine, stop_callbacks)
    try:
        with _sigint_handler(runner.interrupt, loop_blocked=loop_blocked):
            result = runner.run_in_thread() if loop_blocked else runner.run_here()
        if not runner.interrupts:
            return result
    except asyncio.CancelledError:
        if not runner.interrupts:
            raise
    except KeyboardInterrupt:
        pass
    interrupt = KeyboardInterrupt()
    attach(interrupt, result=runner.result)
    raise interrupt


def async_to_sync(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return the function that does without await what a coroutine function does; type checkers see
    the same signature. It is called NAME_sync: assign it to that name.
    """

    def call(*arguments: P.args, **settings: P.kwargs) -> T:
        return run_sync(function(*arguments, **settings))

    call.__doc__ = (
        f"Call `{function.__name__}` without await. It also works where an event loop is running."
        "\n\nCtrl-C stops it: KeyboardInterrupt carries as `.result` what there is by then, "
        "or None."
    )
    return sync_form_of(function)(call)


def sync_form_of(
    function: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Return the decorator of a function that does without await what a coroutine function does: it
    gets its signature, and a name and a docstring that refer to it.
    """
    parameters = signature(function)
    arguments = "\n".join(
        f"    {name}: As in `{function.__name__}`." for name in parameters.parameters
    )

    def describe(call: Callable[..., T]) -> Callable[P, T]:
        about = cleandoc(call.__doc__ or "")
        update_wrapper(call, function)
        del call.__wrapped__  # type: ignore[attr-defined]  # tools would take it for a coroutine function
        call.__name__ = call.__qualname__ = f"{function.__name__}_sync"
        call.__signature__ = parameters  # type: ignore[attr-defined]
        call.__doc__ = (
            f"{about}\n\nArgs:\n{arguments}\n\nReturns:\n"
            f"    As in `{function.__name__}`, which also lists the errors."
        )
        return call

    return describe


def uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the function that creates an event loop of uvloop; None if that is not installed, or
    descriptors are scarce.
    """
    if descriptor_limit() >= MIN_DESCRIPTORS:
        with suppress(ImportError):
            from uvloop import new_event_loop

            return new_event_loop
    return None


def run_on_uvloop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like `asyncio.run`, on uvloop if it is installed."""
    with asyncio.Runner(loop_factory=uvloop_factory()) as runner:
        return runner.run(main)


def check_event_loop() -> None:
    """Raise RedraftError if the coroutine that calls this does not run on asyncio, or while Python
    shuts down.
    """
    _check_threads()
    loop = _get_running_loop()
    if loop is None or asyncio.current_task() is None:
        raise RedraftError(
            "this function runs on asyncio, and here is no task of it: under trio call the one "
            "that ends in _sync in a thread, such as `await "
            "trio.to_thread.run_sync(redraft.refine_sync, ...)`"
        )
    if _main_thread_has_ended():
        loop.set_default_executor(_LoopThreadPool())  # the other one starts nothing any more


def _check_threads() -> None:
    """Raise RedraftError where no thread can be started, or where a library has replaced them too
    late.
    """
    if sys.is_finalizing() or (
        _main_thread_has_ended()
        and all(each.daemon or each is main_thread() for each in enumerate_threads())
    ):
        raise RedraftError(
            "Python is shutting down, and starts no more threads: call this before the main "
            "thread ends"
        )
    if threads_are_greenlets() and not _WORKS_IN_GREENLETS:
        raise RedraftError(
            "gevent or eventlet has replaced threads after Redraft was imported, or has not "
            "replaced `select` as well: call `gevent.monkey.patch_all()` at the start of the "
            "program, before any other import"
        )


def _main_thread_has_ended() -> bool:
    return bool(getattr(thread, "_shutdown", False))


def threads_are_greenlets() -> bool:
    """Whether gevent or eventlet has replaced threads."""
    return _is_replaced("threading") or _is_replaced("thread")  # as gevent calls it, and eventlet


def _is_replaced(module: str) -> bool:
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    return bool(
        (gevent and gevent.is_module_patched(module))
        or (eventlet and eventlet.is_monkey_patched(module))
    )


_WORKS_IN_GREENLETS = threads_are_greenlets() and _is_replaced("select")


class _SyncRunner(Generic[T]):
    """Runs one coroutine and counts how often it was interrupted."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], stop_callbacks: tuple[Callable[[], object], ...]
    ) -> None:
        self.interrupts = 0
        self.result: Any = None
        self._coroutine = coroutine
        self._stop_callbacks = stop_callbacks
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = _LoopThreadPool()

    def run_here(self) -> T:
        """Run the coroutine in this thread."""
        try:
            return asyncio.run(self._main())
        finally:
            self._coroutine.close()  # in case it never began

    def run_in_thread(self) -> T:
        """Run the coroutine in another thread, a daemon, so that one that does not end is
        abandoned.
        """
        outcome = submit_to_daemon_thread(partial(copy_context().run, self.run_here))
        while not outcome.done():
            wait([outcome], POLL_INTERVAL)
        return outcome.result()

    async def _main(self) -> T:
        self._loop, task = asyncio.get_running_loop(), asyncio.current_task()
        self._loop.set_default_executor(self._threads)
        self._stop_callbacks = self._stop_callbacks or (task.cancel,)  # type: ignore[union-attr]
        try:
            with _signal_wakeup(self._loop):
                if self.interrupts:  # before the coroutine began
                    raise asyncio.CancelledError
                self.result = await self._coroutine
        except asyncio.CancelledError as error:
            self.result = attachment(error)
            raise
        return self.result  # type: ignore[no-any-return]

    def interrupt(self, *_: object) -> None:
        """Handle SIGINT."""
        self.interrupts += 1
        if (
            self._loop is None
            or self._loop.is_closed()
            or self.interrupts > len(self._stop_callbacks)
        ):
            raise KeyboardInterrupt
        self._threads.abandon_running = True
        self._loop.call_soon_threadsafe(self._stop_callbacks[self.interrupts - 1])


# ---- greenlets

_greenlet_loops: list[tuple[asyncio.AbstractEventLoop, Thread]] = []
"""The event loop that all greenlets share, once there is one, and the greenlet that runs it."""


class _HidingSelector(selectors.DefaultSelector):
    """Hides its event loop while that waits: other greenlets run then, and must find no loop in
    their thread, or their own.
    """

    others_loop: asyncio.AbstractEventLoop | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        loop = _get_running_loop()
        _set_running_loop(self.others_loop)
        try:
            return super().select(timeout)
        finally:
            self.others_loop = _get_running_loop()
            _set_running_loop(loop)

    def run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run an event loop that has this selector."""
        self.others_loop = _get_running_loop()
        _set_running_loop(None)
        loop.run_forever()


def _run_among_greenlets(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop that all greenlets share, and let the others work until it
    has ended.
    """
    if not _greenlet_loops:
        selector = _HidingSelector()
        shared = asyncio.SelectorEventLoop(selector)
        _greenlet_loops.append(
            (shared, Thread(target=selector.run_loop, args=(shared,), name="redraft", daemon=True))
        )
        _greenlet_loops[0][1].start()
    loop, greenlet = _greenlet_loops[0]
    if current_thread() is greenlet:
        raise RedraftError(
            "a coroutine that Redraft calls cannot wait for another call of it: use `await "
            "redraft.refine(...)`"
        )
    outcome = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return outcome.result()
    finally:
        outcome.cancel()  # has an effect only if the wait was interrupted


class _LoopThreadPool(ThreadPoolExecutor):
    """The thread pool of an event loop; after an interrupt, shutdown does not wait for running
    functions.
    """

    abandon_running = False

    def submit(
        self, function: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs
    ) -> Future[T]:
        """Run a function in a thread of the pool, or in one of its own, since a pool ends with the
        main thread.
        """
        try:
            return super().submit(function, *arguments, **keywords)
        except RuntimeError:
            if not _main_thread_has_ended():
                raise
        return submit_to_daemon_thread(partial(function, *arguments, **keywords))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002  (the signature of the base class)
        super().shutdown(
            wait and not self.abandon_running, cancel_futures=cancel_futures or self.abandon_running
        )


@contextmanager
def _signal_wakeup(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Make signals wake the event loop, even one that arrives just before the loop waits."""
    if current_thread() is not main_thread() or os.name == "nt":
        yield
        return
    reader, writer = socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        loop.add_reader(reader, reader.recv, 4096)
        previous_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            with reset_in_children(partial(signal.set_wakeup_fd, -1)):
                yield
        finally:
            signal.set_wakeup_fd(previous_fd)
            loop.remove_reader(reader)


@contextmanager
def _sigint_handler(handler: Callable[..., None], *, loop_blocked: bool) -> Iterator[None]:
    """Replace the handler of SIGINT if it is Python's own or ignores the signal.

    With `loop_blocked` any Python handler is replaced: one of the blocked event loop would act too
    late.
    """
    previous = signal.getsignal(signal.SIGINT) if current_thread() is main_thread() else None
    if previous in {None, signal.SIG_DFL} or not (
        loop_blocked or previous in {signal.default_int_handler, signal.SIG_IGN}
    ):
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        with reset_in_children(partial(signal.signal, signal.SIGINT, previous)):
            yield
    finally:
        signal.signal(signal.SIGINT, previous)


_child_resets: list[Callable[[], object]] = []
"""Functions that restore the default signal handling in a forked child."""

_fork = local()
"""`mask`: the signals that this thread blocked before it forks."""


@contextmanager
def reset_in_children(reset: Callable[[], object]) -> Iterator[None]:
    """Call a function, which restores the default signal handling, in each child that is forked
    meanwhile.

    A SIGTERM that a child receives before is delivered after the call: the handler of the parent
    would set a flag, which Python clears in a child, or write to a socket that the parent reads.
    """
    _child_resets.append(reset)
    try:
        yield
    finally:
        with suppress(ValueError):  # this is a forked child, where it was called
            _child_resets.remove(reset)


def _hold_sigterm() -> None:
    _fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM} if _child_resets else ())


def _release_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _fork.mask)


def _reset_signals_in_child() -> None:
    while _child_resets:
        _child_resets.pop()()
    _release_sigterm()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_greenlet_loops.clear)
    os.register_at_fork(
        before=_hold_sigterm,
        after_in_parent=_release_sigterm,
        after_in_child=_reset_signals_in_child,
    )
