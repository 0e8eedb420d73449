"""The progress of a call: which notes are sent, and that nobody waits long for a client that does
not read them.
"""

import asyncio
from time import monotonic

import pytest

from redraft.mcp_server import progress as module
from redraft.mcp_server.progress import CallProgress


class Client:
    """Takes notes; while it does not `read`, sending waits."""

    def __init__(self, *, reads=True):
        self.heard, self.reads = [], asyncio.Event()
        if reads:
            self.reads.set()

    async def hear(self, number, total, note):
        await self.reads.wait()
        self.heard.append((number, note))


def others():
    """The tasks besides that of the test."""
    return asyncio.all_tasks() - {asyncio.current_task()}


async def test_the_last_note_is_sent_though_the_work_is_quick():
    """Also if there was no time to send any before; without a note nothing is sent."""
    client, progress = Client(), CallProgress()
    async with progress.sent_to(client.hear):
        progress.note("first")
        progress.note("last")
    async with CallProgress().sent_to(client.hear):
        pass
    assert client.heard == [(2, "last")]
    assert not others()


async def test_a_note_is_sent_once():
    """The last one is not repeated at the end if it was sent."""
    client, progress = Client(), CallProgress()
    async with progress.sent_to(client.hear):
        progress.note("first")
        await asyncio.sleep(0.01)
        progress.note("last")
        await asyncio.sleep(0.01)
    assert client.heard == [(1, "first"), (2, "last")]


async def test_the_last_note_is_sent_though_the_work_fails():
    """The error is that of the work."""
    client, progress = Client(), CallProgress()
    with pytest.raises(ValueError, match="of the work"):
        async with progress.sent_to(client.hear):
            progress.note("failed: no model")
            raise ValueError("of the work")
    assert client.heard == [(1, "failed: no model")]
    assert not others()


async def test_the_last_note_follows_one_that_is_being_sent():
    """A client that is slow for a moment hears both."""
    client, progress = Client(reads=False), CallProgress()
    async with progress.sent_to(client.hear):
        progress.note("first")
        await asyncio.sleep(0.01)
        progress.note("last")
        asyncio.get_running_loop().call_later(0.05, client.reads.set)
    assert client.heard == [(1, "first"), (2, "last")]


@pytest.mark.parametrize("is_read_before", [True, False])
async def test_a_client_that_does_not_read_holds_nobody_up(monkeypatch, is_read_before):
    """The result goes on after a moment, and nothing is sent behind it."""
    monkeypatch.setattr(module, "LAST_NOTE_SECONDS", 0.05)
    client, progress = Client(reads=is_read_before), CallProgress()
    async with progress.sent_to(client.hear):
        progress.note("first")
        await asyncio.sleep(0.01)
        client.reads.clear()
        progress.note("last")
    client.reads.set()
    await asyncio.sleep(0.01)
    assert client.heard == ([(1, "first")] if is_read_before else [])
    assert not others()


async def test_sending_that_fails_changes_nothing():
    """The work goes on, and its result counts."""

    async def fail(number, total, note):
        raise OSError("gone")

    progress, done = CallProgress(), []
    async with progress.sent_to(fail):
        progress.note("first")
        await asyncio.sleep(0.01)
        progress.note("last")
        done.append(True)
    assert done
    assert not others()


@pytest.mark.parametrize("is_over", [False, True])
async def test_cancellation_ends_at_once_and_sends_no_more(monkeypatch, is_over):
    """During the work, and while the last note waits for the client."""
    monkeypatch.setattr(module, "LAST_NOTE_SECONDS", 60)
    client, progress = Client(reads=False), CallProgress()

    async def work():
        async with progress.sent_to(client.hear):
            progress.note("last")
            await asyncio.sleep(0 if is_over else 60)

    task, began = asyncio.create_task(work()), monotonic()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert monotonic() - began < 30
    client.reads.set()
    await asyncio.sleep(0.01)
    assert client.heard == []
    assert not others()
