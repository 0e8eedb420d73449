"""What ends a page server."""

import subprocess
import sys
from textwrap import dedent

import pytest


@pytest.mark.skipif(sys.platform == "win32", reason="not POSIX")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_that_arrives_while_the_address_is_announced_ends_it(name):
    """Also in a callback whose exceptions Python ignores, as those that asyncio has for the objects
    of a new event loop.
    """
    code = f"""
        import signal, weakref
        from redraft.base.page_server import PageServer

        def interrupt(*_):
            raise KeyboardInterrupt

        def announce():
            thing = type("Thing", (), {{}})()
            reference = weakref.ref(thing, lambda _: signal.raise_signal(signal.{name}))
            del thing
            print("announced", flush=True)

        async def app(scope, receive, send):
            raise NotImplementedError

        signal.signal(signal.{name}, interrupt)
        PageServer().run(app, (), announce)
        print("ended", signal.getsignal(signal.{name}) is interrupt)
        """
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("announced\nended True\n", "")
