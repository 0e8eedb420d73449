"""An event loop whose time is not real: tests of long waits take no time, and what they measure is
exact.
"""

import asyncio
import selectors


class FakeClock(asyncio.SelectorEventLoop):
    """An event loop whose time advances only while nothing else can happen, and then at once."""

    def __init__(self):
        super().__init__(FakeSelector(self))
        self.now = 0.0

    def time(self):
        return self.now


class FakeSelector(selectors.SelectSelector):
    def __init__(self, loop):
        super().__init__()
        self.loop = loop

    def select(self, timeout=None):
        if timeout is None:
            raise AssertionError("the test waits for ever")
        self.loop.now += max(0.0, timeout)
        return super().select(0)


def pass_time(monkeypatch, seconds):
    """Let the running event loop find that so many seconds have passed."""
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda time=loop.time: time() + seconds)
