"""A worker in a process of this machine: a `ShardWorker` that receives its shard and its orders
over a socket.

The process of the run starts it with the socket as standard input. It ends at once when that is
closed, so it never outlives the run. Ctrl-C and SIGTERM are left to the process of the run.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from socket import socket
from threading import Thread

from ...base.error_text import error_text
from ...base.sync import reset_in_children, uvloop_factory
from .process_channel import WorkerEnd, encode, messages
from .shard_protocol import Orders, ShardJob, ShardStatus
from .shard_worker import ShardWorker


async def serve(connection: socket, incoming: Iterator[bytes], shard: ShardJob) -> None:
    """Process a shard to its end."""
    loop, worker, tasks = asyncio.get_running_loop(), ShardWorker(), set[asyncio.Task[None]]()

    async def answer(orders: Orders) -> None:
        _send(connection, await worker.exchange(orders))

    def obey(orders: Orders) -> None:
        task = loop.create_task(answer(orders))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def read() -> None:
        try:
            for data in incoming:
                loop.call_soon_threadsafe(obey, pickle.loads(data))  # noqa: S301  (from the process of the run)
        finally:
            os._exit(1)  # that process has ended

    Thread(target=read, name="redraft-worker", daemon=True).start()
    _send(connection, WorkerEnd(await worker.run(shard)))


def _send(connection: socket, message: object) -> None:
    """Send a message. If the process of the run has ended, so does this one: nobody needs its work,
    or an account of the loss.
    """
    try:
        connection.sendall(encode(message))
    except OSError:
        os._exit(1)


def main() -> None:
    """Receive a shard over standard input, and process it."""
    with _leave_signals():
        _work()


def _work() -> None:
    """Process a shard. What graders print goes to stderr: stdout may be the output."""
    os.dup2(2, 1)
    gc.freeze()  # what was imported stays
    gc.set_threshold(50_000, 20, 100)  # as in `redraft batch`
    connection = socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123  (a descriptor)
        os.dup2(nothing.fileno(), 0)
    incoming, loop = messages(connection), sys.argv[1]
    arguments, first = next(incoming, None), next(incoming, None)
    if arguments is None or first is None:
        return
    sys.argv[:] = pickle.loads(arguments)  # noqa: S301  (those of the script, which may read them)
    try:
        shard = pickle.loads(first)  # noqa: S301  (from the process of the run)
    except Exception as error:  # noqa: BLE001  (code of the user, which is imported or run here)
        problem = f"a worker process cannot load the models and graders: {error_text(error)}"
        _send(connection, WorkerEnd(ShardStatus("", reason="fatal", message=problem)))
        return
    with asyncio.Runner(loop_factory=uvloop_factory() if loop == "uvloop" else None) as runner:
        runner.run(serve(connection, incoming, shard))


@contextmanager
def _leave_signals() -> Iterator[None]:
    """Do nothing on Ctrl-C and SIGTERM. The processes that graders start receive them as usual:
    also those that are forked.
    """
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)

    with reset_in_children(restore):
        for number in usual:
            # which, unlike SIG_IGN, a program that is started does not inherit
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, usual)  # blocked until now
        yield
