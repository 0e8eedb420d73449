"""Servers in their own processes, which end with the test."""

from contextlib import ExitStack

import pytest

from .killing import serving


@pytest.fixture
def serve(tmp_path):
    """Start servers: `serve(*options)` the logging one, `serve(*options, script="chaos_server.py")`
    the other.
    """
    with ExitStack() as stack:
        count = iter(range(100))

        def start(*options, script="logging_server.py", port=None):
            return stack.enter_context(
                serving(script, *options, log=tmp_path / f"log-{next(count)}", port=port)
            )

        yield start
